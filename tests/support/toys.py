"""Small complete models for tests, written with nothing but NumPy and json, so that no code under test makes its own input."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "uint8": "U8",
    "uint32": "U32",
    "float64": "F64",
}
VOCABULARY = 96
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 64, 96, 2, 4, 2

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def safetensors_bytes(tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file, by the book."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    body = b""
    for name, array in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def llama_tensors(seed: int = 7, dtype: type = ml_dtypes.bfloat16, layers: int = LAYERS) -> dict[str, np.ndarray]:
    """Random weights under Hugging Face names."""
    random = np.random.default_rng(seed)
    head = HIDDEN // HEADS

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * 0.05).astype(dtype)

    def norm() -> np.ndarray:
        return (1 + random.standard_normal(HIDDEN) * 0.01).astype(dtype)

    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": norm(),
            at + "self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN),
            at + "self_attn.k_proj.weight": matrix(KV_HEADS * head, HIDDEN),
            at + "self_attn.v_proj.weight": matrix(KV_HEADS * head, HIDDEN),
            at + "self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN),
            at + "post_attention_layernorm.weight": norm(),
            at + "mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            at + "mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            at + "mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    return tensors | {"model.norm.weight": norm(), "lm_head.weight": matrix(VOCABULARY, HIDDEN)}


def tokenizer_files() -> dict[str, bytes]:
    """A byte-level BPE of three special tokens, a few letters and two merges."""
    special = ["<unk>", "<s>", "</s>"]
    letters = [chr(c) for c in range(ord("!"), ord("!") + VOCABULARY - len(special) - 3)] + ["Ġ"]
    merges = [["a", "b"], ["ab", "c"]]
    words = special + letters + ["ab", "abc"]
    assert len(words) == VOCABULARY
    added = [
        {"id": i, "content": w, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i, w in enumerate(special)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": merges,
        },
    }
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    }
    return {"tokenizer.json": json.dumps(document).encode(), "tokenizer_config.json": json.dumps(config).encode()}


def toy_llama_files(*, dtype: type = ml_dtypes.bfloat16, seed: int = 7, layers: int = LAYERS) -> dict[str, bytes]:
    """The files of a complete Hugging Face directory, an unknown side file among them."""
    return {
        "config.json": json.dumps({**CONFIG, "num_hidden_layers": layers}, indent=2).encode(),
        **tokenizer_files(),
        "README.md": b"# toy\n",
        "extra/notes.bin.txt": b"\x00\x01 unknown side file",
        "model.safetensors": safetensors_bytes(llama_tensors(seed, dtype, layers), {"format": "pt"}),
    }


def write_sparse_model(path: Path, layers: int, rows: int, columns: int, dtype: str = "BF16") -> Path:
    """A safetensors file of 16-bit matrices that are holes: full size to every reader, nothing on disk."""
    size = rows * columns * 2
    entry = {"dtype": dtype, "shape": [rows, columns]}
    header = {f"layer.{i}.weight": {**entry, "data_offsets": [i * size, (i + 1) * size]} for i in range(layers)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + layers * size)
    return path


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def write_toy_llama(root: Path, *, dtype: type = ml_dtypes.bfloat16, seed: int = 7, layers: int = LAYERS) -> Path:
    return write_files(root, toy_llama_files(dtype=dtype, seed=seed, layers=layers))


def draft_head() -> dict[str, np.ndarray]:
    """The shape of an EAGLE-3 head: a fusion of three states, a layer, a vocabulary of its own and the maps to it."""
    random = np.random.default_rng(3)
    return {
        "fc.weight": (random.standard_normal((64, 192)) * 0.05).astype(ml_dtypes.bfloat16),
        "midlayer.self_attn.q_proj.weight": random.standard_normal((64, 128)).astype(np.float16),
        "norm.weight": np.ones(64, np.float32),
        "lm_head.weight": random.standard_normal((32, 64)).astype(np.float32),
        "d2t": np.arange(32, dtype=np.int64),
    }


def write_package(root: Path) -> Path:
    return write_files(
        root,
        {
            "Manifest.json": b'{"fileFormatVersion": "1.0.0"}',
            "Data/com.apple.CoreML/model.mlmodel": bytes(range(256)),
            "Data/com.apple.CoreML/weights/weight.bin": b"\x00" * 5000,
        },
    )
