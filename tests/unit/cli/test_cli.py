"""The command line's contract: exit codes, JSON, help, clean streams, fast start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flyweight.cli import VERBS
from support.toys import safetensors_bytes, write_toy_llama


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flyweight", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("cli") / "toy")


def test_inspect_json_has_the_promised_fields(toy: Path) -> None:
    done = run("inspect", toy, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["format"] == "hf"
    assert "metadata" in document
    tensor = next(t for t in document["tensors"] if t["name"] == "model.layers.0.mlp.up_proj.weight")
    assert tensor == {
        "name": "model.layers.0.mlp.up_proj.weight",
        "shape": [96, 64],
        "dtype": "bf16",
        "codec": {"name": "raw", "params": {}},
        "nbytes": 96 * 64 * 2,
        "bits_per_weight": 16.0,
    }


def test_convert_verify_diff_and_their_exit_codes(toy: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.gguf"
    planned = run("convert", toy, target, "--quant", "q8_0", "--dry-run", "--json")
    assert planned.returncode == 0
    assert not target.exists()
    made = run("convert", toy, target, "--quant", "q8_0", "--json")
    assert made.returncode == 0, made.stderr
    plan, report = json.loads(planned.stdout), json.loads(made.stdout)
    assert plan["nbytes"] == report["nbytes"] == target.stat().st_size
    assert run("verify", target).returncode == 0
    assert run("diff", toy, toy).returncode == 0
    compared = run("diff", toy, target, "--json")
    assert compared.returncode == 1
    moved = [t for t in json.loads(compared.stdout)["tensors"] if t["status"] == "close"]
    assert len(moved) == 16  # every matrix, the embedding and the output head too
    assert all(t["snr_db"] > 35 for t in moved)
    again = run("convert", toy, target)
    assert again.returncode == 6
    assert "already exists" in again.stderr
    assert again.stdout == ""


def test_a_broken_squizd_is_listed_rule_by_rule(toy: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.squizd"
    assert run("convert", toy, target, "--quant", "int4", "--sub-block", 32, "-q").returncode == 0
    assert run("verify", target, "--strict").returncode == 0
    raw = bytearray(target.read_bytes())
    raw[9] |= 0x80  # a flag that means nothing
    raw[-1] ^= 1
    target.write_bytes(raw)
    done = run("verify", target, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["malformed"]) == (3, True)
    errors = {finding["code"]: finding["offset"] for finding in report["findings"] if finding["level"] == "error"}
    assert errors["E_FLAGS"] == 6
    assert len(errors) >= 2
    table = run("verify", target)
    assert (table.returncode, "FAILED" in table.stdout, "offset" in table.stdout) == (3, True, True)


def test_wishes_of_squizd_elsewhere_are_usage_errors(toy: Path, tmp_path: Path) -> None:
    for options in (("--sparse", "0.5"), ("--sub-block", 32), ("--eagle", toy), ("--coreml", toy)):
        done = run("convert", toy, tmp_path / "x.gguf", *options)
        assert (done.returncode, done.stdout) == (2, ""), options
    for wrong in ("0", "1", "some"):
        assert run("convert", toy, tmp_path / "x.squizd", "--sparse", wrong).returncode == 2


def test_failures_have_their_exit_codes(toy: Path, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x08\0\0\0\0\0\0\0{ garbage")
    text = tmp_path / "text"
    text.write_text("hello")
    cases = {
        2: ("convert", toy),
        3: ("inspect", garbage),
        4: ("inspect", text),
        5: ("convert", toy, tmp_path / "x.gguf", "--max-ram", "1M"),
        6: ("inspect", tmp_path / "absent"),
    }
    for code, arguments in cases.items():
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), arguments
        assert done.stderr
        assert "Traceback" not in done.stderr
    error = json.loads(run("inspect", text, "--json").stderr)["error"]
    assert error["code"] == "E_UNKNOWN_FORMAT"


def test_verify_finds_a_nan(tmp_path: Path) -> None:
    bad = tmp_path / "nan.safetensors"
    bad.write_bytes(safetensors_bytes({"w": np.array([[1.0, np.nan]], np.float32), "z": np.zeros((2, 2), np.float32)}))
    done = run("verify", bad, "--json")
    findings = {(f["level"], f["code"], f["tensor"]) for f in json.loads(done.stdout)["findings"]}
    assert findings == {("error", "E_NONFINITE", "w"), ("warning", "E_ALL_ZERO", "z")}
    assert done.returncode == 1


def test_names_from_a_file_cannot_reach_the_terminal_raw(tmp_path: Path) -> None:
    evil = tmp_path / "evil.safetensors"
    name = "w\x1b]0;owned\x07\u202e"
    evil.write_bytes(safetensors_bytes({name: np.ones((2, 2), np.float32)}))
    shown = run("inspect", evil, "--tensors").stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b]0;owned" in shown


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_examples(verb: str) -> None:
    done = run(verb, "--help")
    assert done.returncode == 0
    assert "Examples:" in done.stdout


def test_help_starts_without_numpy() -> None:
    probe = """import sys
from flyweight.cli import cli
cli(['--help'], standalone_mode=False)
print({'numpy', 'rich'} & set(sys.modules))"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()", done.stdout + done.stderr


def test_bench_measures_beside_the_machine() -> None:
    document = json.loads(run("bench", "q8_0", "--runs", "1", "--megabytes", "1", "--json").stdout)
    assert set(document["limits"]) >= {"read", "write", "copy"}
    assert [r["name"] for r in document["results"]] == ["decode q8_0", "encode q8_0"]
    assert all(r["share_of_limit"] > 0 for r in document["results"])


def test_completion_scripts() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_FLYWEIGHT_COMPLETE" in run("completion", shell).stdout


def test_formats_lists_every_pair() -> None:
    document = json.loads(run("formats", "--json").stdout)
    carried = {codec["name"]: set(codec["carried_by"]) for codec in document["codecs"]}
    assert carried["raw"] == {"coreml", "gguf", "hf", "mlx", "npy_dir", "safetensors", "squizd", "uqff", "uqff_blob"}
    assert carried["q4_k"] == {"gguf", "hf", "safetensors", "uqff", "uqff_blob"}
    assert carried["affine"] == {"hf", "mlx", "npy_dir", "safetensors", "uqff", "uqff_blob"}
    assert "npy_dir" in carried["corrected"]
    (mlx,) = (c["carries"] for c in document["containers"] if c["name"] == "mlx")
    assert [way["params"]["group"] for way in mlx if way["codec"] == "affine"] == [[32, 64, 128]]
