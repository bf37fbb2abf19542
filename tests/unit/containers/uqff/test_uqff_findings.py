"""What is told of a model that can be opened, however odd the files around its layers are."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from flyweight.checkpoint import read_checkpoint
from flyweight.containers import recognise
from flyweight.sources import MemoryBundle
from support.uqff_files import CONFIG, RESIDUAL, blob_directory, gguf, named_directory, named_file, residual, version

REPORT = "uqff_report.json"


def warned(files: dict[str, bytes]) -> dict[str, str]:
    bundle = MemoryBundle(files)
    container: Any = recognise(bundle)
    return dict(container.warnings(bundle, read_checkpoint(bundle, container).manifest))


def found(files: dict[str, bytes]) -> set[str]:
    bundle = MemoryBundle(files)
    container: Any = recognise(bundle)
    return {finding.code for finding in container.audit(bundle)}


def report(*shards: object, quant: object = "q8_0") -> bytes:
    return json.dumps({"schema": 1, "outputs": [{"quant": quant, "shards": [*shards]}]}).encode()


REPORTS = {
    "not JSON": b"{",
    "a list": b"[]",
    "a number": b"7",
    "deep": b'{"outputs":' + b"[" * 100_000,
    "no outputs": b"{}",
    "outputs that are a number": b'{"outputs": 7}',
    "an output that is text": b'{"outputs": ["q4k"]}',
    "an output without shards": b'{"outputs": [{"quant": "q4k"}]}',
    "shards that are a number": b'{"outputs": [{"quant": "q4k", "shards": 7}]}',
    "shards of lists": report(["q-0.uqff"]),
    "shards of objects": report({}),
    "other shards": report("q-0.uqff", "../../etc/passwd"),
    "the same key twice": b'{"outputs": [], "outputs": []}',
}


@pytest.mark.parametrize("text", REPORTS.values(), ids=REPORTS)
def test_a_report_that_is_none(text: bytes) -> None:
    assert "E_REPORT" in warned(named_directory() | {REPORT: text})


def test_a_report_of_many_outputs_costs_little() -> None:
    shards = {f"q-{number}.uqff": named_file(version() | gguf(str(number))) for number in range(1000)}
    many = b'{"outputs": [' + b'{"shards": []},' * 400_000 + b'{"shards": ["q-0.uqff"]}]}'
    begun = time.process_time()
    assert "E_REPORT" in warned({**named_directory(), **shards, REPORT: many})
    assert time.process_time() - begun < 3


REPORTS_TAKEN = {
    "this shard": report("q-0.uqff"),
    "a quantization that is a list": report("q-0.uqff", quant=["q4k"]),
    "another model": report("other-0.uqff"),
    "no output": b'{"outputs": []}',
    "files elsewhere": report("../../etc/passwd"),
}


@pytest.mark.parametrize("text", REPORTS_TAKEN.values(), ids=REPORTS_TAKEN)
def test_a_report_that_does_not_contradict(text: bytes) -> None:
    assert "E_REPORT" not in warned(named_directory() | {REPORT: text})


CONFIGS = {"not JSON": b"{", "a list": b"[]", "text": b'"llama"', "deep": b'{"a":' + b"[" * 100_000, "empty": b""}


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("directory", [named_directory, blob_directory])
def test_a_config_that_is_none_stays_as_it_is(directory: Any, text: bytes) -> None:
    """Also where the output head and a plain embedding would have it say that they are not tied."""
    layers = {"tensors": version() | gguf("lm_head")} if directory is named_directory else {}
    files = directory(**layers) | {"config.json": text, RESIDUAL: residual("model.embed_tokens.weight")}
    assert "E_CONFIG" in warned(files)
    bundle = MemoryBundle(files)
    checkpoint = read_checkpoint(bundle, recognise(bundle))
    assert checkpoint.read(checkpoint.manifest.files["config.json"]) == text


@pytest.mark.parametrize("layers", [-1, 1.5, True, None, [], "1", 10**12, 10**400])
@pytest.mark.parametrize("kind", ["llama", "mixtral", "qwen3_moe", "deepseek_v3"])
def test_settings_that_make_no_sense_give_no_names(layers: object, kind: str) -> None:
    files = blob_directory(config=CONFIG | {"model_type": kind, "num_hidden_layers": layers})
    assert "E_FAMILY" in warned(files)
    bundle = MemoryBundle(files)
    assert "layers.7.weight" in recognise(bundle).parse(bundle).entries


def test_layers_that_are_missing_are_named_up_to_a_point() -> None:
    assert found(named_directory()) == set()
    assert found(named_directory(config=CONFIG | {"num_hidden_layers": 1000})) == {"E_LAYER_MISSING"}
    assert found(blob_directory(config=CONFIG | {"num_hidden_layers": 2})) == {"E_LAYER_COUNT"}


def test_what_lies_beside() -> None:
    files = named_directory()
    assert "E_NO_RESIDUAL" in warned({name: data for name, data in files.items() if name != RESIDUAL})
    doubled = files | {RESIDUAL: residual("lm_head.weight", "lm_head.bias", "model.norm.weight")}
    assert {"E_DOUBLED", "E_BIAS_IGNORED"} <= warned(doubled).keys()
    assert "E_ROPE_LAYOUT" in warned(files | {"config.json": json.dumps(CONFIG | {"_mistralrs_qk_rope_layout": [1]}).encode()})
