"""llama.cpp loads every mix that error feedback has filled, and its perplexity tool measures the KL divergence that we do.

FLYWEIGHT_LLAMA_TOOLS names the folder with its tools (`tools/build_llama_cpp.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.calibration import calibrate, shipped_texts
from flyweight.evaluate import evaluate, predictor, windows_of
from flyweight.runtime import open_model

MODEL = Path(os.environ["FLYWEIGHT_DEMO_MODEL"])
TOOLS = os.environ.get("FLYWEIGHT_LLAMA_TOOLS")
CONTEXT, WINDOWS = 256, 4
MIXES = ("q2_k", "q3_k_m", "iq4_xs", "q4_0", "q4_k_m", "q5_k_m", "q6_k", "q8_0")
pytestmark = pytest.mark.skipif(TOOLS is None, reason="FLYWEIGHT_LLAMA_TOOLS names no folder with llama.cpp's tools")


def perplexity(model: Path, text: Path, *arguments: str | Path) -> str:
    command = [f"{TOOLS}/llama-perplexity", "-m", model, "-f", text, "-c", CONTEXT, "--chunks", WINDOWS, "-t", "2", *arguments]
    ran = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in f32, its statistics, a text, and what llama.cpp says of it."""
    folder = tmp_path_factory.mktemp("llama")
    flyweight.convert(MODEL, folder / "source.gguf", quant="dense", dtype="f32")
    calibrate(MODEL, folder / "statistics", texts=shipped_texts(), tokens=4096, gram=True)
    (folder / "text").write_text("\n\n".join(text.content for text in shipped_texts(held_back=True)), "utf-8")
    perplexity(folder / "source.gguf", folder / "text", "--kl-divergence-base", folder / "base")
    return folder


def ours(form: Path, folder: Path) -> float:
    """Over the tokens that llama-perplexity scores: those of the second half of each window."""
    with open_model(folder / "source.gguf", int8=False, kv="f32") as source, open_model(form, int8=False, kv="f32") as model:
        written = (folder / "text").read_text("utf-8")
        windows = windows_of(source.tokenizer.encode(written, special=False), CONTEXT, CONTEXT * WINDOWS)
        divergence = evaluate(windows, predictor(model), predictor(source)).divergence
    assert divergence is not None
    return float(np.mean(divergence[:, CONTEXT // 2 - 1 + 1 :]))


def theirs(form: Path, folder: Path) -> float:
    said = perplexity(form, folder / "text", "--kl-divergence-base", folder / "base", "--kl-divergence")
    found = re.search(r"Mean\s+KLD:\s+([\d.]+)\s+±\s+([\d.]+)", said)
    assert found, said[-2000:]
    return float(found[1])


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.timeout(600)
def test_the_same_divergence(mix: str, folder: Path, tmp_path: Path) -> None:
    form, decoded = tmp_path / "form.gguf", tmp_path / "decoded.gguf"
    flyweight.convert(folder / "source.gguf", form, quant=mix, statistics=folder / "statistics")
    flyweight.convert(form, decoded, quant="dense", dtype="f32")
    measured = ours(form, folder)
    assert theirs(decoded, folder) == pytest.approx(measured, rel=0.03, abs=0.0003)
    # Of a file of K types llama.cpp rounds activations to 8 bits with one scale for 256, which costs this model up to 0.01 nats
    assert measured - 0.001 < theirs(form, folder) < measured + 0.01
