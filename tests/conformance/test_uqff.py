"""mistral.rs writes what we read and reads what we write, in both generations of UQFF.

0.9.5 is the tool of 1.x, 0.6.0 that of 0.x. What it says to our files is held to what it says to its own file of the same
codes, to the last digit: where our quantizer gives its bytes, and where its file is only re-expressed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from support import GOLDEN
from support.mistral_rs import CURRENT, OLD, MistralRs, ToolError
from support.uqff_sources import CONFIGS, PROMPT, write_source

DEMO = Path(os.environ["FLYWEIGHT_DEMO_MODEL"])
BLOCKS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]
K_BLOCKS = ["q2k", "q3k", "q4k", "q5k", "q6k"]
AFQ = ["afq2", "afq3", "afq4", "afq6", "afq8"]
FLOATS = ["hqq4", "hqq8", "fp8", "f8q8", "mxfp4"]
TYPES = BLOCKS + K_BLOCKS + AFQ + FLOATS
MODELS = ["small", "wide", "bias", "tied", "odd"]
# What the tool quantizes such that it cannot use it itself: see docs/formats/uqff.md.
UNUSABLE = {("bias", "fp8"), ("bias", "mxfp4"), ("odd", "mxfp4")}

Answer = dict[str, Any]


@pytest.fixture(scope="module")
def current() -> Iterator[MistralRs]:
    with MistralRs(CURRENT, timeout=600) as tool:
        yield tool


@pytest.fixture(scope="module")
def old() -> Iterator[MistralRs]:
    with MistralRs(OLD) as tool:
        yield tool


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stored as f32: the tool stores scales, biases and what it leaves dense in the type it runs in, and we as they were."""
    root = tmp_path_factory.mktemp("sources")
    return {name: write_source(root / name, config, dtype=np.float32) for name, config in CONFIGS.items()}


def shards(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("*.uqff"))


def pairs(models: list[str], types: list[str]) -> list[tuple[str, str]]:
    """Those that the tool can use."""
    return [(model, isq) for model in models for isq in types if (model, isq) not in UNUSABLE]


# Of experts 1.x can hold and the tool can run only blocks of ggml, and 0.6.0 of rows of an odd number of blocks only these.
EXPERTS = [("experts", isq) for isq in BLOCKS]
OLD_EXPERTS = [("experts", isq) for isq in ("q4_0", "q8_0")]


def said(tool: MistralRs, path: Path, prompt: str = PROMPT, **question: Any) -> Answer:
    """Text and logprobs for a UQFF directory."""
    answer = tool.ask(path, uqff=shards(path), prompts=[prompt], **question)["answers"][0]
    return {"text": answer["text"], "logprobs": answer["logprobs"]}


def written(tool: MistralRs, source: Path, target: Path, isq: str, dtype: str = "F32") -> Path:
    target.mkdir(parents=True)
    tool.ask(source, isq=isq, write=target / f"{isq}.uqff", dtype=dtype)
    return target


def converted(source: Path, target: Path, **options: Any) -> Path:
    flyweight.convert(source, target, allow_ungated=True, **options)
    return target


# Presets of ours that have other codes than the tool gives the same type.
BETTER = {"mxfp4": "mxfp4", "fp8-448": "fp8"}


QUANTS = [*TYPES, "mxfp4-isq", "fp8-448"]


@pytest.mark.parametrize(("model", "quant"), [(model, quant) for model in MODELS for quant in QUANTS] + EXPERTS)
def test_it_reads_what_we_quantize(
    model: str, quant: str, sources: dict[str, Path], current: MistralRs, tmp_path: Path
) -> None:
    isq = BETTER.get(quant, quant.removesuffix("-isq"))
    ours = said(current, converted(sources[model], tmp_path / "ours", to="uqff", quant=quant))
    if (model, isq) in UNUSABLE:
        assert len(ours["text"]) == 8
        return
    theirs = written(current, sources[model], tmp_path / "theirs", isq)
    # K types, and heads promoted to them, have scales that are searched for; the tool does so in another way.
    searched = model == "wide" and quant in (*K_BLOCKS, "q4_0", "q4_1")
    if quant in BETTER or searched:
        assert errors(tmp_path / "ours", sources[model]) <= (1.05 if searched else 1) * errors(theirs, sources[model])
    else:
        assert ours == said(current, theirs)


OLD_RUNS = ["q4_0", "q8_0", "q2k", "q4k", "q6k", "hqq4", "hqq8", "fp8", *AFQ]


@pytest.mark.parametrize(
    ("model", "isq"), [(model, isq) for model in ("small", "bias", "tied") for isq in OLD_RUNS] + OLD_EXPERTS
)
def test_0_6_0_reads_what_we_quantize(model: str, isq: str, sources: dict[str, Path], old: MistralRs, tmp_path: Path) -> None:
    ours = said(old, converted(sources[model], tmp_path / "ours", to="uqff0", quant=isq))
    if (model, isq) in UNUSABLE:
        assert len(ours["text"]) == 9
    else:
        assert ours == said(old, written(old, sources[model], tmp_path / "theirs", isq))


def test_it_finds_our_shards(sources: dict[str, Path], current: MistralRs, tmp_path: Path) -> None:
    whole = converted(sources["small"], tmp_path / "whole", to="uqff", quant="q4_0")
    parts = converted(sources["small"], tmp_path / "parts", to="uqff", quant="q4_0", shard_bytes=8000)
    assert len(shards(parts)) > 2
    answer = current.ask(parts, uqff=shards(parts)[0], prompts=[PROMPT])["answers"][0]
    assert {key: answer[key] for key in ("text", "logprobs")} == said(current, whole)


def test_blocks_of_a_gguf_file(sources: dict[str, Path], current: MistralRs, tmp_path: Path) -> None:
    """They are copied, and the rows of queries and keys put in the order of Hugging Face."""
    gguf = converted(sources["small"], tmp_path / "small.gguf", to="gguf", quant="q8_0")
    ours = said(current, converted(gguf, tmp_path / "ours", to="uqff"))
    answer = current.ask(tmp_path, gguf=gguf.name, prompts=[PROMPT])["answers"][0]
    assert ours == {key: answer[key] for key in ("text", "logprobs")}


def test_what_it_makes_of_a_gguf_file(current: MistralRs, tmp_path: Path) -> None:
    """The rows in GGUF's order and the note about them, through 0.x and back."""
    theirs = GOLDEN / "uqff/1.2/from_gguf"
    before = converted(theirs, tmp_path / "before", to="uqff0")
    assert said(current, converted(before, tmp_path / "after", to="uqff")) == said(current, theirs)


@pytest.mark.parametrize("isq", AFQ)
@pytest.mark.parametrize("model", ["small", "tied"])
def test_scales_in_bf16(model: str, isq: str, current: MistralRs, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", CONFIGS[model])
    theirs = written(current, source, tmp_path / "theirs", isq, dtype="BF16")
    assert said(current, converted(source, tmp_path / "ours", to="uqff", quant=isq)) == said(current, theirs)


def errors(path: Path, source: Path) -> float:
    """The squared error of all weights together."""
    with flyweight.open(path) as model, flyweight.open(source) as dense:
        return sum(float(np.square(model[name] - np.asarray(dense[name], np.float32)).sum()) for name in dense)


@pytest.mark.parametrize(("model", "isq"), pairs(["small", "wide", "bias", "tied"], TYPES) + EXPERTS)
def test_there_and_back_changes_nothing_for_0_9_5(
    model: str, isq: str, sources: dict[str, Path], current: MistralRs, tmp_path: Path
) -> None:
    """1.2 → 0.1 → 1.2: the embedding is decoded on the way, the layers keep every byte."""
    theirs = written(current, sources[model], tmp_path / "theirs", isq)
    before = converted(theirs, tmp_path / "before", to="uqff0")
    after = converted(before, tmp_path / "after", to="uqff")
    assert said(current, after) == said(current, theirs)


@pytest.mark.parametrize(("model", "isq"), pairs(["small", "bias", "tied"], OLD_RUNS) + OLD_EXPERTS)
def test_there_and_back_changes_nothing_for_0_6_0(
    model: str, isq: str, sources: dict[str, Path], old: MistralRs, tmp_path: Path
) -> None:
    """0.1 → 1.2 → 0.1."""
    theirs = written(old, sources[model], tmp_path / "theirs", isq)
    after = converted(theirs, tmp_path / "after", to="uqff")
    before = converted(after, tmp_path / "before", to="uqff0")
    assert said(old, before) == said(old, theirs)
    assert blobs(before) == blobs(theirs)


def blobs(path: Path) -> dict[str, bytes]:
    """Every layer of a 0.x directory but for its first four bytes, which are the version."""
    found = {}
    for shard in shards(path):
        data = (path / shard).read_bytes()
        length = int.from_bytes(data[:8], "little")
        table = json.loads(data[8 : 8 + length])
        table.pop("__metadata__", None)
        for key, row in table.items():
            begin, end = (8 + length + offset for offset in row["data_offsets"])
            found[key] = data[begin + 4 : end]
    return found


@pytest.mark.parametrize(("model", "isq"), pairs(["small", "bias", "tied"], OLD_RUNS) + OLD_EXPERTS)
def test_migrated_files_mean_the_same_to_both(
    model: str, isq: str, sources: dict[str, Path], old: MistralRs, current: MistralRs, tmp_path: Path
) -> None:
    """0.6.0 has a file, 0.9.5 the migrated one: they differ by what they round, which is known from the dense model."""
    theirs = written(old, sources[model], tmp_path / "theirs", isq)
    before, after = said(old, theirs), said(current, converted(theirs, tmp_path / "after", to="uqff"))
    # 0.6.0 gives one token more than it is asked for.
    assert before["text"][:8] == after["text"]
    assert np.abs(np.subtract(before["logprobs"][:8], after["logprobs"])).max() <= (0.15 if isq.startswith("q") else 0.03)


@pytest.mark.parametrize("isq", ["q4_0", "q8_0"])
def test_experts_apart_and_in_stacks(
    isq: str, sources: dict[str, Path], current: MistralRs, old: MistralRs, tmp_path: Path
) -> None:
    """What we stack is what it stacks, byte for byte; stacks that were cut are layers that 0.6.0 takes, and come back."""
    theirs = written(current, sources["experts"], tmp_path / "theirs", isq)
    ours = converted(sources["experts"], tmp_path / "ours", to="uqff", quant=isq)
    assert said(current, ours) == said(current, theirs)
    apart = converted(theirs, tmp_path / "apart", to="uqff0")
    assert said(current, converted(apart, tmp_path / "after", to="uqff")) == said(current, theirs)
    first = written(old, sources["experts"], tmp_path / "first", isq)
    stacked = converted(first, tmp_path / "stacked", to="uqff")
    assert blobs(converted(stacked, tmp_path / "again", to="uqff0")) == blobs(first)
    assert said(old, apart)["text"][:8] == said(current, theirs)["text"]


RECORDED = [
    row
    for row in json.loads((GOLDEN / "uqff/expected.json").read_text("utf-8"))
    if "directory" in row and row["tool"] in ("0.9.5", "0.6.0", "0.3.2")
]


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: f"{row['directory']}/{row['type']}")
def test_the_recorded_answers_are_its_answers(row: Answer, current: MistralRs, old: MistralRs) -> None:
    tool = current if row["tool"] == "0.9.5" else old
    path = GOLDEN / "uqff" / row["directory"]
    if "error" in row:
        with pytest.raises(ToolError, match=re.escape(row["error"])):
            tool.ask(path, uqff=row["shards"], prompts=[PROMPT])
        return
    answer = tool.ask(path, uqff=row["shards"], prompts=[PROMPT])["answers"][0]
    assert answer["text"] == row["text"]
    assert np.abs(np.subtract(answer["logprobs"], row["logprobs"])).max() <= 1e-5


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model as it is published: in bf16, its chat template in tokenizer_config.json, where 0.6.0 looks for it."""
    path = converted(DEMO, tmp_path_factory.mktemp("demo") / "hf", to="hf", dtype="bf16")
    template, settings = path / "chat_template.jinja", path / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": template.read_text()}))
    template.unlink()
    return path


QUESTION = {"prompt": "What is the capital of France?", "tokens": 16}


@pytest.mark.timeout(900)  # its search for hqq4 takes minutes
@pytest.mark.parametrize("isq", ["q8_0", "afq4", "hqq4", "fp8"])
def test_the_real_model(isq: str, demo: Path, current: MistralRs, tmp_path: Path) -> None:
    ours = said(current, converted(demo, tmp_path / "ours", to="uqff", quant=isq), **QUESTION)
    theirs = written(current, demo, tmp_path / "theirs", isq, dtype="BF16" if isq == "afq4" else "F32")
    expected = said(current, theirs, **QUESTION)
    current.close()  # it keeps every model it has loaded
    assert ours == expected


def test_the_real_model_in_k_blocks(demo: Path, current: MistralRs, tmp_path: Path) -> None:
    """Its codes through 0.x and back; and ours, which are others, are no worse."""
    theirs = written(current, demo, tmp_path / "theirs", "q4k")
    before = converted(theirs, tmp_path / "before", to="uqff0")
    after = said(current, converted(before, tmp_path / "after", to="uqff"), **QUESTION)
    assert after == said(current, theirs, **QUESTION)
    ours = converted(demo, tmp_path / "ours", to="uqff", quant="q4k")
    assert said(current, ours, **QUESTION)["text"]
    current.close()
    assert errors(ours, demo) <= errors(theirs, demo)


def test_the_real_model_in_0_6_0(demo: Path, old: MistralRs, tmp_path: Path) -> None:
    ours = said(old, converted(demo, tmp_path / "ours", to="uqff0", quant="q8_0"), **QUESTION)
    assert ours == said(old, written(old, demo, tmp_path / "theirs", "q8_0"), **QUESTION)
