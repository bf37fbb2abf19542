"""Small valid files of each format, written byte by byte: what mutations start from."""

from __future__ import annotations

import json

from support.raw_files import GgufTensor, KeyValue, gguf_file, npy_file, npy_shape, safetensors_file, tensor_json

__all__ = ["gguf", "gguf_parts", "hf_directory", "npy_dir", "safetensors", "safetensors_described"]


def safetensors() -> dict[str, bytes]:
    table = {
        "__metadata__": {"format": "pt", "note": "grüße"},
        "embed": tensor_json("F32", [2, 3], 0, 24),
        "norm": tensor_json("BF16", [4], 24, 32),
        "mask": tensor_json("BOOL", [3], 32, 35),
        "empty": tensor_json("F16", [0, 7], 35, 35),
        "scalar": tensor_json("U8", [], 35, 36),
    }
    return {"model.safetensors": safetensors_file(table, bytes(range(36)))}


def safetensors_described() -> dict[str, bytes]:
    about = {
        "w": {"shape": [1, 32], "dtype": "f32", "codec": {"name": "strange", "params": {"bits": 4, "form": "x"}},
              "parts": {"codes": "w.codes", "scale": "w.scale"}},
        "q": {"shape": [1, 32], "dtype": "f32", "codec": {"name": "q4_0", "params": {}}, "parts": {"blocks": "q"}},
    }  # fmt: skip
    metadata = [["general.architecture", "str", "llama"], ["a", "[[i32]]", [[1, -2], []]], ["b", "f32", "fff0000000000000"]]
    table = {
        "__metadata__": {
            "format": "pt",
            "flyweight.tensors": json.dumps(about),
            "flyweight.metadata": json.dumps(metadata),
            "flyweight.dialect": "gguf",
        },
        "plain": tensor_json("I64", [1], 0, 8),
        "w.codes": tensor_json("U8", [1, 16], 8, 24),
        "q": tensor_json("U8", [1, 18], 28, 46),
        "w.scale": tensor_json("F32", [1], 24, 28),
    }
    return {"model.safetensors": safetensors_file(table, bytes(range(46)))}


def hf_directory() -> dict[str, bytes]:
    first = safetensors_file({"a": tensor_json("F16", [2, 2], 0, 8), "b": tensor_json("I8", [3], 8, 11)}, bytes(range(11)))
    second = safetensors_file({"__metadata__": {"format": "pt"}, "c": tensor_json("F32", [1], 0, 4)}, b"abcd")
    shards = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    names = list(shards)
    index = {"metadata": {"total_size": 15}, "weight_map": {"a": names[0], "b": names[0], "c": names[1]}}
    return shards | {
        "model.safetensors.index.json": json.dumps(index, indent=2).encode(),
        "config.json": b'{"model_type": "llama", "hidden_size": 2}\n',
        "tokenizer.json": b'{"version": "1.0"}',
        "assets/unknown.dat": b"\x00\xff",
    }


_KEYS = [
    KeyValue("general.architecture", 8, "llama"),
    KeyValue("general.alignment", 4, 32),
    KeyValue("u8", 0, 255),
    KeyValue("i8", 1, -128),
    KeyValue("u16", 2, 65535),
    KeyValue("i16", 3, -32768),
    KeyValue("i32", 5, -(2**31)),
    KeyValue("f32", 6, 0.5),
    KeyValue("bool", 7, True),
    KeyValue("tokens", 9, (8, ["<s>", "", "grüße", "\U0001f600"])),
    KeyValue("flags", 9, (7, [True, False])),
    KeyValue("none", 9, (6, [])),
    KeyValue("nested", 9, (9, [(5, [1, -2]), (5, [])])),
    KeyValue("u64", 10, 2**64 - 1),
    KeyValue("i64", 11, -(2**63)),
    KeyValue("f64", 12, float("inf")),
]


def gguf() -> dict[str, bytes]:
    table = [
        GgufTensor("token_embd.weight", (32, 2), 2, 0),  # q4_0, 36 bytes
        GgufTensor("output_norm.weight", (3,), 0, 64),
        GgufTensor("blk.0.ffn_gate_exps.weight", (4, 2, 2), 30, 96),
        GgufTensor("empty", (0, 3), 0, 128),
        GgufTensor("scalar", (), 24, 128),
    ]
    payloads = (bytes(range(36)), bytes(range(12)), bytes(range(32)), b"\x07")
    return {"model.gguf": gguf_file(_KEYS, table, b"".join(raw + bytes(-len(raw) % 32) for raw in payloads))}


def gguf_parts() -> dict[str, bytes]:
    """The same kind of model, cut in two."""
    files = {}
    for number, names in enumerate((["a", "b"], ["c"])):
        keys = _KEYS if number == 0 else []
        split = [KeyValue("split.no", 2, number), KeyValue("split.count", 2, 2), KeyValue("split.tensors.count", 5, 3)]
        table = [GgufTensor(name, (8,), 0, 32 * i) for i, name in enumerate(names)]
        files[f"m-{number + 1:05d}-of-00002.gguf"] = gguf_file([*keys, *split], table, bytes(range(32 * len(names))))
    return files


def npy_dir() -> dict[str, bytes]:
    """A tensor of every form, described."""
    arrays = {
        "a": {"q": ("|i1", (2, 128)), "s": ("<f4", (2, 2)), "shape": (2, 1, 128)},
        "b": {"q4a": ("|u1", (3, 17)), "s4a": ("<f4", (3, 2)), "z4a": ("<f4", (3, 2)), "shape": (3, 33)},
        "c": {"q4": ("|u1", (1, 5)), "s4": ("<f4", (1, 1)), "shape": (10,)},
        "d": {"nf4": ("|u1", (2, 32)), "s_nf4": ("<f4", (2, 2)), "shape": (2, 64)},
        "e": {
            "q3": ("|u1", (15,)), "s3": ("<f4", (1,)), "z3": ("<f4", (1,)), "lra": ("<f4", (5, 1)), "lrb": ("<f4", (1, 7)),
            "shape": (5, 7),
        },
        "f": {"pt": ("<f2", (3,)), "shape": (3,)},
        "g": {"ptb": ("<u2", (2, 2)), "shape": (2, 2)},
        "h": {"q": ("|i1", (1, 1)), "s": ("<f4", (1,)), "shape": ()},
    }  # fmt: skip
    files = {"manifest.json": json.dumps({name: name for name in arrays}).encode(), "config.json": b"{}"}
    for name, parts in arrays.items():
        for suffix, about in parts.items():
            files[f"tensors/{name}__{suffix}.npy"] = npy_shape(*about) if suffix == "shape" else npy_file(*about)
    return files | {"tensors/.manifest_ready": b"", "_compress_progress.json": b"{}"}
