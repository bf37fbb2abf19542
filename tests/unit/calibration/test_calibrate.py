"""Statistics against sums in f64, whatever the run sizes; kills, resumption, refusals."""

from __future__ import annotations

import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight import kernels
from flyweight.calibration import calibrate, input_sums, layer_walk
from flyweight.calibration.layer_walk import LayerWalk
from flyweight.calibration.sampling import Text
from flyweight.checkpoint import open_checkpoint
from flyweight.foundation.errors import FlyweightError
from flyweight.pipeline import convert
from flyweight.runtime import open_model
from flyweight.runtime.decoder import Settings
from flyweight.runtime.model import Model
from flyweight.runtime.tensors import Streamed
from flyweight.statistics_files.known_files import open_statistics
from support import GOLDEN
from support.calibrating import tapped
from support.command_line import flyweight as command
from support.toys import CONFIG, toy_llama_files, write_files

DECODERS = GOLDEN / "decoders"
WORDS = Text("words.txt", "abc ab a b 12 c! " * 400)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("calibrate") / "toy", toy_llama_files())


def walk_over(path: Path, out: Path, windows: np.ndarray, **options: Any) -> int:
    with open_model(path, kv="f32", int8=False) as model:
        return LayerWalk(model, out, windows, gram=True).carry_out({}, resume=False, force=False, progress=None)[1]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "phi3", "qwen3"])
@pytest.mark.parametrize("run", [12, 40, 4096])
def test_equals_sums_in_f64(family: str, run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_walk, "_RUN", run)
    windows = np.random.default_rng(3).integers(0, 64, (11, 12))
    walk_over(DECODERS / family, tmp_path / "out.stats", windows)
    inputs = tapped(DECODERS / family, windows)
    with open_statistics(tmp_path / "out.stats") as found:
        assert {name.removesuffix(".weight") for name in found.matrices} == inputs.keys()
        for name, x in inputs.items():
            known = found.inputs_of(f"{name}.weight")
            assert known is not None
            assert known.gram is not None
            assert known.tokens == windows.size
            wide = x.astype(np.float64)
            # f32 activations of runs of other sizes differ by rounding; the sums are f64, and f32 is 2^-24
            assert np.allclose(known.importance, (wide**2).mean(0), rtol=1e-4, atol=1e-12)
            norms = np.linalg.norm(wide, axis=1)
            scaled = wide * np.minimum(1, input_sums.CAP * np.median(norms) / norms)[:, None]
            gram = scaled.T @ scaled / len(wide)
            roots = np.sqrt(np.diag(gram))
            # inputs are rounded to bf16 where the processor multiplies that (tests/native/test_grams.py)
            rounded = 2e-4 + (2.0**-8 + 2.0**-18 if kernels.active() == "avx512bf16" else 0)
            assert np.allclose(np.diag(known.gram), np.diag(gram), rtol=rounded)
            # a correlation is rounded to f16: 2^-11 of 1 at most
            assert (np.abs(known.gram - gram) <= (2.0**-11 + rounded) * np.outer(roots, roots)).all()
            assert np.array_equal(known.gram, known.gram.T)


def test_tokens_of_large_norm_count_for_less(tmp_path: Path) -> None:
    x = np.ones((3000, 4), np.float32)
    x[7] *= 1000
    sums = input_sums.InputSums("x", 4, gram=True)
    for start in range(0, 3000, 100):
        sums.add(x[start : start + 100])
    (tile,) = sums.gram()
    assert np.allclose(np.diag(tile), (2999 + 4) / 3000)
    assert np.allclose(sums.importance(), (2999 + 1e6) / 3000)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_bytes_whatever_the_threads_and_memory(toy: Path, tmp_path: Path, threads: int) -> None:
    calibrate(toy, tmp_path / "a", texts=[WORDS], gram=True, tokens=2048, window=32, threads=2)
    calibrate(toy, tmp_path / "b", texts=[WORDS], gram=True, tokens=2048, window=32, threads=threads)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_model_has_the_same_sketch_and_names_in_other_containers(toy: Path, tmp_path: Path) -> None:
    convert(toy, tmp_path / "model.gguf")
    calibrate(toy, tmp_path / "a", texts=[WORDS], tokens=512, window=32)
    calibrate(tmp_path / "model.gguf", tmp_path / "b", texts=[WORDS], tokens=512, window=32)
    with open_statistics(tmp_path / "a") as hf, open_statistics(tmp_path / "b") as gguf:
        assert hf.matrices == gguf.matrices
        assert hf.sketch is not None
        assert gguf.sketch is not None
        assert np.array_equal(hf.sketch, gguf.sketch)


def test_windows_come_from_every_text(toy: Path) -> None:
    from flyweight.calibration.sampling import sample_windows, spread

    texts = [Text("a", "a" * 4000), Text("b", "b" * 2000), Text("c", "1" * 100000)]
    with open_model(toy) as model:
        ids = [model.tokenizer.encode(text, special=False)[0] for text in "ab1"]
        windows = sample_windows(model, texts, 50, 8)
        assert windows.shape == (50, 8)
        assert {int(window[0]) for window in windows} == set(ids)
        assert len({int(window[0]) for window in spread(windows, 5)[:10]}) > 1
        begun = sample_windows(model, texts, 50, 8, bos=True)
        assert (begun[:, 0] == model.tokenizer.bos).all()


def test_the_models_own_words_can_be_added(toy: Path, tmp_path: Path) -> None:
    done = calibrate(toy, tmp_path / "a", texts=[WORDS], tokens=256, window=32, samples=3)
    assert done.windows == 8 + 3


def refused(code: str, *arguments: Any, **options: Any) -> FlyweightError:
    with pytest.raises(FlyweightError) as caught:
        calibrate(*arguments, **options)
    assert caught.value.code == code, caught.value
    return caught.value


def test_refusals_write_nothing(toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.stats"
    error = refused("E_TEXT", toy, out, texts=[Text("short", "abc " * 20)])
    assert "tokens" in str(error)
    assert "4 are needed" in str(error)
    refused("E_TEXT", toy, out, texts=[])
    refused("E_CONTEXT", toy, out, texts=[WORDS], window=1 << 20)
    refused("E_RAM", toy, out, texts=[WORDS], max_ram="1M")
    assert list(tmp_path.iterdir()) == []
    out.write_text("mine")
    refused("E_EXISTS", toy, out, texts=[WORDS], tokens=512, window=32)
    refused("E_NOT_A_MODEL", toy, out, texts=[WORDS], tokens=512, window=32, force=True)
    assert out.read_text() == "mine"
    out.unlink()
    calibrate(toy, out, texts=[WORDS], tokens=256, window=32)
    calibrate(toy, out, texts=[WORDS], tokens=512, window=32, force=True)
    with open_statistics(out) as found:
        assert found.about["tokens"] == 512


def test_activations_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    from support.toys import llama_tensors, safetensors_bytes

    tensors = llama_tensors()
    name = "model.layers.1.self_attn.o_proj.weight"
    tensors[name] = np.full_like(tensors[name], np.inf)
    broken = write_files(tmp_path / "toy", toy_llama_files() | {"model.safetensors": safetensors_bytes(tensors)})
    error = refused("E_NOT_FINITE", broken, tmp_path / "out.stats", texts=[WORDS], tokens=512, window=32)
    assert "model.layers.1.mlp.gate_proj" in str(error)
    assert {path.name for path in tmp_path.iterdir()} == {"toy"}


KILLED = """
import os, signal, sys
from flyweight.calibration import calibrate
from flyweight.calibration.sampling import Text
point = int(sys.argv[3])
seen = 0
def progress(done, total):
    global seen
    seen += 1
    if seen == point:
        os.kill(os.getpid(), signal.SIGKILL)
calibrate(sys.argv[1], sys.argv[2], texts=[Text("words.txt", "abc ab a b 12 c! " * 400)], gram=True, tokens=2048, window=32,
          resume=len(sys.argv) > 4, progress=progress)
"""


def test_a_killed_run_goes_on_where_it_was(toy: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    calls: list[int] = []
    calibrate(toy, whole, texts=[WORDS], gram=True, tokens=2048, window=32, progress=lambda done, _: calls.append(done))
    resumed = []
    for point in range(1, len(calls) + 1):
        out = tmp_path / "out"
        done = subprocess.run([sys.executable, "-c", KILLED, str(toy), str(out), str(point)], capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not out.exists()
        report = calibrate(toy, out, texts=[WORDS], gram=True, tokens=2048, window=32, resume=True)
        resumed.append(report.resumed)
        assert out.read_bytes() == whole.read_bytes()
        out.unlink()
        assert {path.name for path in tmp_path.iterdir()} == {"whole"}
    assert resumed == sorted(resumed)
    assert resumed[-1] == CONFIG["num_hidden_layers"]


def test_another_run_is_not_taken_for_this_one(toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    subprocess.run([sys.executable, "-c", KILLED, str(toy), str(out), "5"], capture_output=True)
    refused("E_RESUME", toy, out, texts=[WORDS], tokens=1024, window=32, resume=True)


def test_streamed_weights_give_the_same_bytes(tmp_path: Path) -> None:
    windows = np.random.default_rng(3).integers(0, 64, (11, 12))
    walk_over(DECODERS / "llama", tmp_path / "kept", windows)
    with open_checkpoint(DECODERS / "llama") as checkpoint:
        model = Model(checkpoint, Streamed(checkpoint), 64, Settings(int8=False, threads=2), "f32")
        LayerWalk(model, tmp_path / "streamed", windows, gram=True).carry_out({}, resume=False, force=False, progress=None)
    assert (tmp_path / "kept").read_bytes() == (tmp_path / "streamed").read_bytes()


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Beyond the tokens themselves, of which there are three copies of eight bytes for a moment."""

    def peak(count: int) -> int:
        windows = np.random.default_rng(3).integers(0, 64, (count, 12))
        tracemalloc.start()
        try:
            walk_over(DECODERS / "llama", tmp_path / str(count), windows)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(400)  # what is loaded once
    few, many = 400, 6000
    assert peak(many) - peak(few + 1) < 4 * 8 * 12 * (many - few) + (256 << 10)
    stream = 4 * 32 * 12 * many
    assert 4 * 8 * 12 * (many - few) + (256 << 10) < stream, "a layer's inputs in memory would show"


def test_on_the_command_line(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(WORDS.content)
    options = ("--text", tmp_path / "words.txt", "--tokens", 512, "--window", 32)
    done = command("calibrate", toy, "-o", tmp_path / "a.stats", *options, "--gram", "--json")
    assert done.code == 0, done.said
    assert done.json()["tokens"] == 512
    assert done.json()["gram"] is True
    calibrate(toy, tmp_path / "b.stats", texts=[tmp_path / "words.txt"], tokens=512, window=32, gram=True)
    assert (tmp_path / "a.stats").read_bytes() == (tmp_path / "b.stats").read_bytes()
    for arguments, code in (
        ((toy, "-o", tmp_path / "a.stats", *options), 6),
        ((toy, "-o", tmp_path / "c.stats", "--text", tmp_path / "none.txt"), 2),
        ((tmp_path / "words.txt", "-o", tmp_path / "c.stats"), 4),
        ((toy, "-o", tmp_path / "missing" / "c.stats", *options), 6),
        ((toy,), 2),
        ((toy, "-o", tmp_path / "c.gguf", *options, "--gram"), 4),
    ):
        done = command("calibrate", *arguments)
        done.check()
        assert done.code == code, (arguments, done.said)
    assert {path.name for path in tmp_path.iterdir()} == {"a.stats", "b.stats", "words.txt"}
    shown = command("inspect", tmp_path / "a.stats")
    assert shown.code == 0
    assert "flyweight.statistics" in shown.said
