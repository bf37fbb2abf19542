"""Against transformers, tokenizers, sentencepiece and gguf: what we write loads there, and means the same.

The real model is named by FLYWEIGHT_DEMO_MODEL.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

import flyweight
from flyweight import models
from flyweight.foundation.manifest import Manifest
from flyweight.models.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from support.tiny_models import LAYER_NAMES, TINY, as_gguf, hf_manifest, no_read, round_trip

TEXTS = (
    "Hello world! It's 2024, isn't it? 1234567890",
    "def f(x):\n    return x ** 2  # comment\n\n\n\tif x:\n        pass",
    "naïve café – Ünïcödé 你好世界 こんにちは Привет 🚀👩‍👩‍👧 ﬁ ½",
    "  leading and trailing  \n",
    "a    b\t\tc\r\nd",
    "",
    "camelCaseWords AND UPPER mixedUP I'LL they'Ve",
)
CORPUS = [text * 3 for text in TEXTS if text] + [
    "the quick brown fox jumps over the lazy dog and the other fox " * 4,
    "one two three four five six seven eight nine ten " * 4,
]
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "qwen2": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "phi3": {"type": "longrope", "long_factor": [1.5, 2.5], "short_factor": [1.0, 1.25]},
}


def write(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("model_type", LAYER_NAMES)
def test_names_are_those_of_the_gguf_package(model_type: str) -> None:
    names = gguf.get_tensor_name_map(ARCHITECTURES[model_type], 2)
    for source, renamed in models.translate(hf_manifest(model_type), "gguf", no_read).tensors.items():
        assert names.get_name(source, try_suffixes=(".weight", ".bias")) == renamed.name


@pytest.mark.parametrize("model_type", LAYER_NAMES)
def test_keys_are_those_of_the_gguf_package(model_type: str) -> None:
    arch = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[model_type]]
    known = {
        value.replace("{arch}", arch)
        for table in vars(gguf.constants.Keys).values()
        if isinstance(table, type)
        for value in vars(table).values()
        if isinstance(value, str)
    }
    config = {"rope_scaling": SCALINGS[model_type]} if model_type in SCALINGS else {}
    made = models.translate(hf_manifest(model_type, config), "gguf", no_read).metadata
    assert not {key for key in made if not key.startswith("flyweight.")} - known


@pytest.mark.parametrize("model_type", TINY)
def test_config_means_the_same_to_transformers(model_type: str, tmp_path: Path) -> None:
    config = {"rope_scaling": SCALINGS[model_type]} if model_type in SCALINGS else {}
    before_files = hf_manifest(model_type, config)
    before = transformers.AutoConfig.from_pretrained(write(tmp_path / "a", {"config.json": before_files.files["config.json"]}))
    made = round_trip(before_files)
    after = transformers.AutoConfig.from_pretrained(write(tmp_path / "b", {"config.json": made.files["config.json"]}))
    assert type(after) is type(before)
    ignored = {"transformers_version", "_name_or_path", "architectures", "dtype"}
    a, b = before.to_dict(), after.to_dict()
    assert {key: b.get(key) for key in a if key not in ignored and key != "rope_parameters"} == {
        key: value for key, value in a.items() if key not in ignored and key != "rope_parameters"
    }
    rope_a, rope_b = a["rope_parameters"], b["rope_parameters"]
    assert {key: rope_b[key] for key in rope_a} == rope_a
    # What transformers itself saves (its newest spelling) is read the same way.
    after.save_pretrained(tmp_path / "c")
    saved = Manifest("hf", before_files.entries, {}, {"config.json": (tmp_path / "c" / "config.json").read_bytes()}, "hf")
    once = models.translate(before_files, "gguf", no_read)
    again = models.translate(saved, "gguf", no_read)
    spelled = ("key_length", "value_length")  # transformers 5 spells head_dim out
    assert {k: v for k, v in again.metadata.items() if not k.startswith("flyweight.") and not k.endswith(spelled)} == {
        k: v for k, v in once.metadata.items() if not k.startswith("flyweight.") and not k.endswith(spelled)
    }
    for name, array in once.added.items():
        np.testing.assert_array_equal(again.added[name], array)


def with_tokenizer(tokenizer: Tokenizer, config: dict[str, Any]) -> Manifest:
    """A tiny model whose vocabulary fits a tokenizer, with some rows to spare."""
    rows = tokenizer.get_vocab_size() + 5
    manifest = hf_manifest("llama", {"vocab_size": rows})
    entries = {}
    for name, entry in manifest.entries.items():
        if entry.spec.shape[0] == 20:
            spec = type(entry.spec)((rows, 8), entry.spec.dtype)
            entry = type(entry)(name, spec, entry.codec, {"data": spec})
        entries[name] = entry
    files = {
        **manifest.files,
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    return Manifest("hf", entries, {}, files, "hf")


def same_tokens(before: Tokenizer, after: Tokenizer, texts: tuple[str, ...] = TEXTS) -> None:
    for text in texts:
        a, b = before.encode(text), after.encode(text)
        assert b.ids == a.ids
        assert b.tokens == a.tokens
        assert after.decode(b.ids) == before.decode(a.ids)


@pytest.mark.parametrize("row", PRE_TOKENIZERS, ids=lambda row: row.name)
def test_byte_level_tokenizers_encode_the_same(row: Any) -> None:
    blank = Tokenizer(BPE())
    document = json.loads(blank.to_str()) | {"normalizer": row.normalizer, "pre_tokenizer": row.pre_tokenizer}
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|user|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet))
    tokenizer.add_tokens(["<tool>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)])
    document = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = row.ignore_merges
    tokenizer = Tokenizer.from_str(json.dumps(document))
    manifest = with_tokenizer(tokenizer, {"bos_token": "<s>", "eos_token": "</s>"})
    there = models.translate(manifest, "gguf", no_read)
    assert there.metadata["tokenizer.ggml.pre"].value == row.name
    back = Tokenizer.from_str(round_trip(manifest).files["tokenizer.json"].decode())
    same_tokens(tokenizer, back, (*TEXTS, "<s>a<|user|> b</s> <tool>x"))
    plain = ("flyweight.config", "flyweight.tokenizer_config", "flyweight.added_tokens")
    stranger = Tokenizer.from_str(round_trip(manifest, without=plain).files["tokenizer.json"].decode())
    same_tokens(tokenizer, stranger)


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_encode_as_sentencepiece_does(prefix: bool, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"),
        model_prefix=str(tmp_path / "m"),
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        character_coverage=0.98,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    types = {"IsUnknown": 2, "IsControl": 3, "IsUnused": 5, "IsByte": 6}
    size = model.vocab_size()
    kinds = [next((t for ask, t in types.items() if getattr(model, ask)(i)), 1) for i in range(size)]
    manifest = hf_manifest("llama")
    base, _ = as_gguf(manifest, models.translate(manifest, "gguf", no_read))
    entries = {}
    for name, entry in base.entries.items():
        spec = type(entry.spec)((size, 8), entry.spec.dtype) if entry.spec.shape[0] == 20 else entry.spec
        entries[name] = type(entry)(name, spec, entry.codec, {"data": spec})
    typed = {
        "tokenizer.ggml.model": ("str", "llama"),
        "tokenizer.ggml.tokens": ("[str]", [model.id_to_piece(i) for i in range(size)]),
        "tokenizer.ggml.scores": ("[f32]", [model.get_score(i) for i in range(size)]),
        "tokenizer.ggml.token_type": ("[i32]", kinds),
        "tokenizer.ggml.unknown_token_id": ("u32", model.unk_id()),
        "tokenizer.ggml.bos_token_id": ("u32", model.bos_id()),
        "tokenizer.ggml.eos_token_id": ("u32", model.eos_id()),
        "tokenizer.ggml.add_space_prefix": ("bool", prefix),
        "llama.vocab_size": ("u32", size),
    }
    from flyweight.foundation.manifest import Typed

    metadata = {**base.metadata, **{key: Typed(*pair) for key, pair in typed.items()}}
    made = models.translate(Manifest("gguf", entries, metadata, {}, "gguf"), "hf", no_read)
    fast = Tokenizer.from_str(made.files["tokenizer.json"].decode())
    for text in TEXTS:
        if text:  # of an empty text the normaliser of tokenizers makes nothing, with or without a prefix
            assert fast.encode(text).ids == [model.bos_id(), *model.encode(text)], text
            assert fast.decode(fast.encode(text).ids) == text
    hf_entries = {renamed.name: entries[name] for name, renamed in made.tensors.items()}
    again = models.translate(Manifest("hf", hf_entries, {}, made.files, "hf"), "gguf", no_read)
    scores = again.metadata["tokenizer.ggml.scores"].value
    merged = [i for i in range(size) if kinds[i] == 1 and len(model.id_to_piece(i)) > 1]
    assert sorted(merged, key=lambda i: -scores[i]) == sorted(merged, key=lambda i: -model.get_score(i))


def test_llama2_style_tokenizers_encode_the_same() -> None:
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    # Pieces do not cross spaces here, as in SentencePiece.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("▁"), "merged_with_next")
    tokenizer.train_from_iterator(CORPUS, BpeTrainer(vocab_size=520, special_tokens=special))
    document = json.loads(tokenizer.to_str())
    document["pre_tokenizer"] = None
    document["added_tokens"] = [token for token in document["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    back = Tokenizer.from_str(
        round_trip(with_tokenizer(tokenizer, {"bos_token": "<s>", "unk_token": "<unk>"})).files["tokenizer.json"].decode()
    )
    same_tokens(tokenizer, back)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model as an HF directory."""
    source = os.environ["FLYWEIGHT_DEMO_MODEL"]
    target = tmp_path_factory.mktemp("smollm2") / "hf"
    flyweight.convert(source, target, dtype="f32")
    return target


# What the model's own tokenizer makes of these texts.
KNOWN = {
    "Hello world 1234567": ["Hello", "Ġworld", "Ġ", "1", "2", "3", "4", "5", "6", "7"],
    "<|im_start|>user\nhi<|im_end|>\n": ["<|im_start|>", "user", "Ċ", "hi", "<|im_end|>", "Ċ"],
}


def test_smollm2_tokenizer(smollm2: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    assert len(tokenizer) == 49152
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    for text, tokens in KNOWN.items():
        assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == tokens
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_smollm2_config(smollm2: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(smollm2)
    assert isinstance(config, transformers.LlamaConfig)
    assert (config.hidden_size, config.num_hidden_layers, config.num_key_value_heads) == (576, 30, 3)
    assert (config.tie_word_embeddings, config.rope_parameters["rope_theta"]) == (True, 100000.0)
    assert transformers.GenerationConfig.from_pretrained(smollm2).eos_token_id == 2


def test_smollm2_loads_in_torch(smollm2: Path) -> None:
    model, info = transformers.LlamaForCausalLM.from_pretrained(smollm2, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    state = model.state_dict()
    with flyweight.open(smollm2) as checkpoint:
        for name in checkpoint.manifest.entries:
            np.testing.assert_array_equal(state[name].numpy(), checkpoint[name])
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    with torch.no_grad():
        logits = model(**tokenizer("The capital of France is", return_tensors="pt")).logits
    assert tokenizer.decode(logits[0, -1].argmax()) == " Paris"


@pytest.mark.parametrize("model_type", TINY)
def test_models_come_back_with_the_same_logits(model_type: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    settings = TINY[model_type] | ({"rope_scaling": SCALINGS[model_type]} if model_type in SCALINGS else {})
    write(tmp_path / "config", {"config.json": json.dumps(settings | {"model_type": model_type}).encode()})
    config = transformers.AutoConfig.from_pretrained(tmp_path / "config")
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms of one and biases of zero would hide mistakes
            parameter.copy_(torch.randn_like(parameter) * 0.25)
    model.save_pretrained(tmp_path / "hf")
    flyweight.convert(tmp_path / "hf", tmp_path / "model.gguf")
    flyweight.convert(tmp_path / "model.gguf", tmp_path / "back")
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokens = torch.tensor([[1, 5, 9, 3, 17, 2, 8]])
    with torch.no_grad():
        expected, found = model(tokens).logits, again.eval()(tokens).logits
    # Gemma's norms lose a bit when GGUF adds one to them; everything else is exact.
    tolerance = 1e-5 if model_type.startswith("gemma") else 0
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=tolerance, atol=tolerance)
