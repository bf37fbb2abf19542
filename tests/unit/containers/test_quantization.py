"""A quantization method that is not read makes a model unreadable: told by config, files or tensors; decoys stay plain."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import flyweight
from flyweight.cli import main
from flyweight.containers import recognise
from flyweight.foundation.errors import UnsupportedError
from flyweight.pipeline import diff, verify
from flyweight.sources import MemoryBundle
from support import quantized_models as models
from support import toys

NESTINGS = {
    "at the top": lambda setting: {"quantization_config": setting},
    "in text_config": lambda setting: {"text_config": {"quantization_config": setting}},
    "compression_config": lambda setting: {"compression_config": setting},
    "compression_config in vision_config": lambda setting: {"vision_config": {"compression_config": setting}},
}
BESIDE = {
    "quantize_config.json": {"bits": 4, "group_size": 128, "desc_act": False},
    "quant_config.json": {"zero_point": True, "q_group_size": 128, "w_bit": 4},
    "hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}},
}
USES = (
    "--to gguf",
    "--to mlx",
    "--to npy-dir",
    "--to squizd",
    "--to hf --dtype bf16",
    "--to hf --quant int4",
    "--to mlx --quant int4",
)


def foreign(files: dict[str, bytes]) -> str | None:
    """The method that the parsed manifest names, of every plain tensor or of none."""
    bundle = MemoryBundle(files)
    codecs = {entry.codec for entry in recognise(bundle).parse(bundle).entries.values()}
    if not any(codec.is_foreign for codec in codecs):
        return None
    assert len(codecs) == 1
    return str(codecs.pop().params["method"])


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("method", models.CONFIGS)
def test_config_names_the_method(method: str, nesting: str) -> None:
    assert foreign(models.directory(None, NESTINGS[nesting](models.CONFIGS[method]))) == method


@pytest.mark.parametrize("setting", [True, "gptq", ["x"], {"bits": 4}, {"quant_method": 4}, {"quant_method": ""}])
def test_a_setting_that_says_too_little_still_tells(setting: Any) -> None:
    assert foreign(models.directory(None, {"quantization_config": setting})) == (
        "gptq" if setting == "gptq" else "one that is not named"
    )


@pytest.mark.parametrize("setting", [None, {}, False, ""])
def test_an_empty_setting_tells_of_none(setting: Any) -> None:
    assert foreign(models.directory(None, {"quantization_config": setting})) is None


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("broken", [False, True])
def test_files_beside_the_weights(name: str, broken: bool) -> None:
    content = b"not JSON" if broken else json.dumps(BESIDE[name]).encode()
    expected = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}[name]
    expected = "FP8" if "hf" in name and not broken else expected
    assert foreign(models.directory(None) | {name: content}) == expected


def test_a_file_that_says_the_weights_are_plain() -> None:
    content = json.dumps({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}).encode()
    assert foreign(models.directory(None) | {"hf_quant_config.json": content}) is None


@pytest.mark.parametrize("layout", models.LAYOUTS)
def test_tensors_tell_without_a_config(layout: str, tmp_path: Path) -> None:
    """In a directory whose config is silent, in shards, in a file alone."""
    arrays = models.toy_arrays(models.LAYOUTS[layout])
    method = foreign(models.directory(layout))
    assert method is not None
    assert foreign({"model.safetensors": models.lone_file(arrays)}) == method
    halves = [dict(list(arrays.items())[0::2]), dict(list(arrays.items())[1::2])]
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    weight_map = {tensor: name for name, half in zip(names, halves, strict=True) for tensor in half}
    files = models.directory(layout) | {name: models.lone_file(half) for name, half in zip(names, halves, strict=True)}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    assert foreign(files) is not None


@pytest.mark.parametrize("decoy", models.DECOYS)
def test_decoys_stay_plain_and_convert(decoy: str, tmp_path: Path) -> None:
    arrays = models.toy_arrays(None) | models.DECOYS[decoy]
    assert foreign({"model.safetensors": models.lone_file(arrays)}) is None
    source = toys.write_files(tmp_path / "in", models.directory(None) | {"model.safetensors": models.lone_file(arrays)})
    flyweight.convert(source, tmp_path / "out", to="hf", dtype="f32")
    assert verify(tmp_path / "out").ok


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command's exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["flyweight", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return call


SOURCES = {
    "by config": models.directory(None, {"quantization_config": models.CONFIGS["gptq"]}),
    "by a file": models.directory(None) | {"quantize_config.json": b"{}"},
    "by tensors": models.directory("fp8 in blocks"),
    "by config and tensors": models.directory("fp8 in blocks", {"quantization_config": models.CONFIGS["fp8"]}),
    "in another mode of MLX": models.directory(None, {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}),
    "in a mode made for the terminal": models.directory(
        None, {"quantization": {"group_size": 32, "bits": 4, "mode": ["\x1b]0;gotcha\x07"]}}
    ),
    "in another mode of MLX, one module": models.directory(
        None, {"quantization": {"group_size": 64, "bits": 4, "lm_head": {"group_size": 16, "bits": 4, "mode": "nvfp4"}}}
    ),
    "as MLX and otherwise": models.directory(
        None, {"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"quant_method": "awq"}}
    ),
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return toys.write_files(tmp_path / "source", SOURCES[request.param])


@pytest.mark.parametrize("use", USES)
def test_convert_refuses_before_it_writes(source: Path, tmp_path: Path, use: str, run: Run) -> None:
    code, _, errors = run("convert", source, tmp_path / "out", *use.split())
    assert (code, "E_QUANT_METHOD" in errors) == (4, True), errors
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_running_refuses(source: Path, run: Run) -> None:
    for arguments in (("run", source, "hello"), ("chat", source), ("eval", source, "--text", source / "tokenizer.json")):
        code, _, errors = run(*arguments)
        assert (code, "E_QUANT_METHOD" in errors) == (4, True), errors


def test_looking_works_and_says_so(source: Path, run: Run) -> None:
    code, output, errors = run("inspect", source)
    assert (code, "E_QUANT_METHOD" in errors, "\x1b" in output + errors) == (0, True, False)
    code, output, _ = run("inspect", source, "--json")
    assert [warning["code"] for warning in json.loads(output)["warnings"]] == ["E_QUANT_METHOD"]
    code, output, _ = run("verify", source, "--json")
    assert (code, [finding["code"] for finding in json.loads(output)["findings"]]) == (1, ["E_QUANT_METHOD"])
    with flyweight.open(source) as checkpoint, pytest.raises(UnsupportedError, match="unsupported method") as error:
        checkpoint[next(iter(checkpoint))]
    assert error.value.code == "E_QUANT_METHOD"


def test_diff_compares_bytes_but_no_values(source: Path, tmp_path: Path) -> None:
    assert diff(source, source).identical
    plain = toys.write_files(tmp_path / "plain", models.directory(None))
    with pytest.raises(UnsupportedError) as error:
        diff(source, plain)
    assert error.value.code == "E_QUANT_METHOD"


def test_a_copy_is_as_unreadable(source: Path, tmp_path: Path) -> None:
    flyweight.convert(source, tmp_path / "copy", to="hf")
    assert diff(source, tmp_path / "copy").identical
    with flyweight.open(source) as checkpoint, flyweight.open(tmp_path / "copy") as copy:
        assert copy.manifest.foreign == checkpoint.manifest.foreign


def test_plain_tensors_do_not_go_under_a_config_that_tells_of_a_method() -> None:
    """A file that describes its own tensors may hold such a config; a directory would be read by it."""
    bundle = MemoryBundle(models.directory(None))
    container = recognise(bundle)
    manifest = container.parse(bundle)
    container.place(manifest, "out")
    config = json.dumps(toys.CONFIG | {"quantization_config": {"quant_method": "gptq"}}).encode()
    with pytest.raises(UnsupportedError) as error:
        container.place(replace(manifest, files={**manifest.files, "config.json": config}), "out")
    assert error.value.code == "E_QUANT_METHOD"


@pytest.mark.parametrize("layout", models.LAYOUTS)
def test_a_copy_keeps_every_byte_that_tells(layout: str, tmp_path: Path) -> None:
    """Resharded from directory to directory: config, files and companions as they were, and as unreadable."""
    files = models.directory(layout, {"quantization_config": {"quant_method": "fp8"}}) | {"quantize_config.json": b"{}"}
    source = toys.write_files(tmp_path / "in", files)
    flyweight.convert(source, tmp_path / "out", to="hf", shard_bytes=20000)
    for name in files:
        if not name.endswith(".safetensors"):
            assert (tmp_path / "out" / name).read_bytes() == files[name]
    assert diff(source, tmp_path / "out").identical
    with flyweight.open(tmp_path / "out") as copy:
        assert copy.manifest.foreign is not None


def test_a_copy_that_leaves_behind_what_tells_is_refused(tmp_path: Path) -> None:
    """A file alone keeps the method in its description; a directory made of it would have no config to say it."""
    source = toys.write_files(tmp_path / "in", models.directory(None, {"quantization_config": models.CONFIGS["gptq"]}))
    alone = tmp_path / "alone.safetensors"
    flyweight.convert(source, alone, to="safetensors")
    with flyweight.open(alone) as copy:
        assert copy.manifest.foreign is not None
    with pytest.raises(UnsupportedError) as error:
        flyweight.convert(alone, tmp_path / "out", to="hf")
    assert error.value.code == "E_QUANT_METHOD"
