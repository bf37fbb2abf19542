"""UQFF models of mistral.rs say here what they say there: the files and answers recorded in tests/golden/uqff."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flyweight
from flyweight.runtime import open_model
from support import GOLDEN
from support.plain_decoder import plain_logits
from support.uqff_sources import CONFIGS, PROMPT, TOKENS, weights, write_source

Array = np.ndarray[Any, Any]
UQFF = GOLDEN / "uqff"
ROWS = json.loads((UQFF / "expected.json").read_text("utf-8"))
SETS = [row for row in ROWS if "directory" in row]
# mixtral has no family here.
PLAIN = [row for row in SETS if row["source"] != "experts"]
# Recorded with five digits, from sums in f32.
RECORDED = 2e-5
# For blocks of ggml the tool rounds activations to 8 bits: an error of 1/254 of the largest of a block, in nine products.
BYTE_ACTIVATIONS = 0.1
# Root mean square of the error over that of the weights.
ERRORS = {"q2k": 0.3, "q3k": 0.15, "q4k": 0.08, "q5k": 0.045, "q6k": 0.04, "q8k": 0.007, "q4_0": 0.09, "q4_1": 0.08}
ERRORS |= {"q5_0": 0.045, "q8_0": 0.006, "q8_1": 0.006, "hqq4": 0.09, "hqq8": 0.006, "fp8": 0.03, "f8q8": 0.03, "mxfp4": 0.24}
ERRORS |= {"afq2": 0.45, "afq3": 0.2, "afq4": 0.1, "afq6": 0.025}


def name(row: dict[str, Any]) -> str:
    return f"{row['directory']}/{row['type']}"


def file(row: dict[str, Any]) -> Path:
    return UQFF / row["directory"] / row["shards"][0]


def answer(row: dict[str, Any]) -> dict[str, Any] | None:
    """What the tool said to the file, or to the same codes when it wrote them."""
    return row if "logprobs" in row else row.get("at_writing")


def ids(text: str) -> list[int]:
    return [TOKENS.index(letter) for letter in text.replace(" ", "Ġ")]


def logprobs(logits: Array, tokens: list[int]) -> Array:
    """How likely each token was, by the logits before it."""
    exact = logits.astype(np.float64)
    exact -= exact.max(-1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    return exact[np.arange(len(tokens)), tokens]


def ours(path: Path, text: str) -> tuple[list[int], Array]:
    """The likeliest tokens, and the logprobs of `text`, as our decoder continues the prompt with it."""
    with open_model(path, int8=False, kv="f32") as model:
        prompt = model.prompt([{"role": "user", "content": PROMPT}])
        assert prompt == ids(PROMPT)
        cache, said = model.cache(), ids(text)
        rows = [model.decoder.forward(prompt, cache)[-1]]
        rows += [model.decoder.forward([token], cache)[-1] for token in said[:-1]]
    logits = np.stack(rows)
    return logits.argmax(-1).tolist(), logprobs(logits, said)


DENSE = [row for row in ROWS if "directory" not in row and row["tool"] == "0.9.5" and row["source"] != "experts"]


@pytest.mark.parametrize("row", DENSE, ids=lambda row: row["source"])
def test_sources(row: dict[str, Any], tmp_path: Path) -> None:
    """The models before anything is quantized: what is compared below is the quantization."""
    said, values = ours(write_source(tmp_path / "model", CONFIGS[row["source"]]), row["text"])
    assert said == ids(row["text"])
    assert np.abs(values - row["logprobs"]).max() <= RECORDED


EXACT = [row for row in PLAIN if answer(row) and not row["type"].startswith("q") and row["directory"] != "1.2/small_bf16"]


@pytest.mark.parametrize("row", EXACT, ids=name)
def test_what_the_tool_computes_in_f32(row: dict[str, Any]) -> None:
    said, values = ours(file(row), row["text"])
    count = min(len(row["logprobs"]), len(values))
    # 0.6.0 and 0.8.4 round more than the weights; FP8 and AFQ, which they decode, they do not.
    bound = RECORDED if row["tool"] == "0.9.5" or row["type"] in ("fp8", "afq3", "afq4") else 0.01
    assert said == ids(row["text"])
    assert np.abs(values - row["logprobs"])[:count].max() <= bound


@pytest.mark.parametrize("row", [row for row in PLAIN if answer(row) and row["type"].startswith("q")], ids=name)
def test_what_the_tool_multiplies_as_blocks(row: dict[str, Any]) -> None:
    recorded = answer(row)
    assert recorded is not None
    _, values = ours(file(row), recorded["text"])
    assert np.abs(values - recorded["logprobs"]).max() <= BYTE_ACTIVATIONS


def in_blocks_of_bytes(x: Array) -> Array:
    """Activations as ggml rounds them for Q4_0, Q5_0 and Q8_0: 32 integers of a byte, and their scale in f16."""
    blocks = x.astype(np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    codes = blocks / scale
    codes = np.sign(codes) * np.floor(np.abs(codes) + 0.5)
    return (codes * scale.astype(np.float16).astype(np.float64)).reshape(x.shape)


def in_bf16(x: Array) -> Array:
    """Weights as the tool has them where their scales are bf16."""
    return x.astype(ml_dtypes.bfloat16)


def unchanged(x: Array) -> Array:
    return x


BLOCK_FILES = ("1.2/small/q5_0", "1.2/small/q8_0", "1.2/small/q8_1", "0.1.3/small/q4_0", "0.1.3/bias/q4_0")


@pytest.mark.parametrize(
    ("at", "weight", "activation"),
    [("1.2/small_bf16/afq4", in_bf16, unchanged), *((at, unchanged, in_blocks_of_bytes) for at in BLOCK_FILES)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_tool_in_float64(at: str, weight: Callable[[Array], Array], activation: Callable[[Array], Array]) -> None:
    """Our weights and what it rounds give its numbers, to the last digit."""
    (row,) = (row for row in SETS if name(row) == at)
    recorded, config = answer(row), CONFIGS[row["source"]]
    assert recorded is not None
    with flyweight.open(file(row)) as model:
        tensors = {key: weight(model[key]) for key in model}
    said = ids(recorded["text"])
    logits = plain_logits(
        tensors, ids(PROMPT) + said, heads=config["num_attention_heads"], windows=[0], scalar=config["head_dim"],
        eps=config["rms_norm_eps"], rounded=activation,
    )  # fmt: skip
    assert np.abs(logprobs(logits[len(PROMPT) - 1 : -1], said) - recorded["logprobs"]).max() <= RECORDED


@pytest.mark.parametrize("row", PLAIN, ids=name)
def test_weights_are_those_of_the_source(row: dict[str, Any], tmp_path: Path) -> None:
    source, path = weights(CONFIGS[row["source"]]), file(row)
    if row["directory"] == "1.2/from_gguf":
        # It has rows in the order of GGUF, which only a conversion undoes.
        path = tmp_path / "model"
        flyweight.convert(file(row), path, to="hf", dtype="f32")
    with flyweight.open(path) as model:
        assert set(source) <= set(model)
        # Before 1.2 a tied model has a head of its own.
        assert set(model) - set(source) <= {"lm_head.weight"}
        for key in model:
            wanted = source.get(key, source["model.embed_tokens.weight"]).astype(np.float64)
            error = np.sqrt(np.square(model[key] - wanted).mean() / np.square(wanted).mean())
            assert error <= (0 if "norm" in key else ERRORS[row["type"]]), key


@pytest.mark.parametrize("directory", ["1.2/experts", "0.1.3/experts"])
def test_experts(directory: str) -> None:
    """A stack of all of them, or each by its own name."""
    source = weights(CONFIGS["experts"])
    with flyweight.open(UQFF / directory / "q4_0-0.uqff") as model:
        for stored, theirs in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
            experts = "model.layers.0.block_sparse_moe.experts"
            names = [f"{experts}.{index}.{theirs}.weight" for index in range(2)]
            wanted = np.stack([source[key] for key in names]).astype(np.float64)
            stack = f"{experts}.{stored}.weight"
            values = model[stack] if directory.startswith("1.2") else np.stack([model[key] for key in names])
            assert np.sqrt(np.square(values - wanted).mean() / np.square(wanted).mean()) <= ERRORS["q4_0"]
