"""Tiny models that every verb can use, in every container and several forms: what `verbs.py` breaks.

One llama of a layer, 32 wide, with a tokenizer and a chat template, and what Flyweight itself makes of it; and deltas that make
another of it.
"""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np

import flyweight
from flyweight import Extras
from flyweight.containers import CONTAINERS, container_named
from flyweight.deltas import KINDS
from fuzz.framing import Input
from support.toys import CONFIG, VOCABULARY, draft_head, safetensors_bytes, tokenizer_files, write_files, write_package
from support.wdelta_files import edited

__all__ = ["originals"]

WIDTH, HEADS = 32, 2

# What each container holds the model as: the options of a conversion.
FORMS: dict[str, tuple[dict[str, object], ...]] = {
    "hf": ({},),
    "safetensors": ({}, {"quant": "lossless"}, {"quant": "sparse"}, {"quant": "fp8"}),
    "gguf": ({}, {"quant": "q8_0"}, {"quant": "q4_0"}),
    "mlx": ({"quant": "int4-g32"},),
    "npy_dir": ({"quant": "int8"}, {"quant": "int4"}, {"quant": "nf4"}),
    "uqff": ({"quant": "q8_0"}, {"quant": "hqq4"}, {"quant": "mxfp4"}),
    "uqff_blob": ({"quant": "q4_0"}, {"quant": "fp8"}),
    "coreml": ({"quant": "none"}, {"quant": "lut4"}, {"quant": "sparse-lut4"}),
    "squizd": ({"quant": "int4"}, {"quant": "none"}, {"quant": "tca"}),
}


def _tensors(seed: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int = WIDTH) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * 0.1).astype(ml_dtypes.bfloat16)

    norm = np.ones(WIDTH, ml_dtypes.bfloat16)
    attention = {f"self_attn.{name}_proj.weight": matrix(WIDTH) for name in "qkvo"}
    mlp = {f"mlp.{name}_proj.weight": matrix(WIDTH) for name in ("gate", "up", "down")}
    layer = {"input_layernorm.weight": norm, **attention, "post_attention_layernorm.weight": norm, **mlp}
    return {
        "model.embed_tokens.weight": matrix(VOCABULARY),
        **{f"model.layers.0.{name}": array for name, array in layer.items()},
        "model.norm.weight": norm,
        "lm_head.weight": matrix(VOCABULARY),
    }


def _source(root: Path, seed: int = 3) -> Path:
    config = {
        **CONFIG, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "max_position_embeddings": 64,
    }  # fmt: skip
    return write_files(
        root,
        {
            "config.json": json.dumps(config, indent=1).encode(),
            "generation_config.json": b'{"eos_token_id": 2}',
            **tokenizer_files(),
            "model.safetensors": safetensors_bytes(_tensors(seed), {"format": "pt"}),
        },
    )


def _read(path: Path) -> Input:
    if path.is_file():
        return Input({path.name: path.read_bytes()}, False)
    return Input({item.relative_to(path).as_posix(): item.read_bytes() for item in sorted(path.rglob("*")) if item.is_file()})


def originals(root: Path) -> dict[str, Input]:
    """Models by name, which begins with their container; made below `root`, which is left with them in it."""
    source = _source(root / "source")
    made = {"hf": _read(source)}
    for name in CONTAINERS.lines:
        container = container_named(name)
        for options in FORMS[name]:
            label = " ".join([name, *map(str, options.values())])
            if label == "hf":
                continue
            path = root / f"{label.replace(' ', '-')}{container.suffix}"
            flyweight.convert(source, path, to=name, **options)  # type: ignore[arg-type]
            made[label] = _read(path)
    sharded = root / "sharded"
    flyweight.convert(source, sharded, to="hf", shard_bytes=8000)
    made["hf sharded"] = _read(sharded)
    head = root / "head.safetensors"
    head.write_bytes(
        safetensors_bytes({name: array[:4, :8] if array.ndim == 2 else array[:4] for name, array in draft_head().items()})
    )
    whole = root / "whole.squizd"
    extras = Extras(sparse=0.25, eagle=head, coreml=write_package(root / "x.mlpackage"))
    flyweight.convert(source, whole, to="squizd", quant="int4", extras=extras)
    made["squizd whole"] = _read(whole)
    return made | _deltas(source, root)


def _deltas(source: Path, root: Path) -> dict[str, Input]:
    """From the model to one of other weights, by each strategy. A mutant is in a folder beside that of all models."""
    tuned, found = _source(root / "tuned", seed=4), {}
    for strategy in (*KINDS.lines, "auto"):
        path = root / f"{strategy}.wdelta"
        options = {"rank": 2} if strategy == "lowrank" else {"budget": 0.5} if strategy == "auto" else {}
        flyweight.create_delta(source, tuned, path, strategy=strategy, **options)  # type: ignore[arg-type]
        place = {"path": f"../models/{root.name}/source"}
        raw = edited(path.read_bytes(), lambda header, place=place: header["flyweight"]["parent"].update(place))  # type: ignore[misc]
        found[f"wdelta {strategy}"] = Input({path.name: raw}, False)
    return found
