"""The demo model through every format, read back by the tools that own them."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model
from safetensors import safe_open

import flyweight

MODEL = Path(os.environ["FLYWEIGHT_DEMO_MODEL"])
PROMPT = [504, 3575, 282, 4649, 314]  # "The capital of France is"
PARIS = 7042


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("real")
    flyweight.convert(MODEL, root / "hf")
    flyweight.convert(root / "hf", root / "q8_0.gguf", quant="q8_0", dtype="f16")
    flyweight.convert(root / "hf", root / "q4_0.gguf", quant="q4_0", dtype="f16")
    flyweight.convert(root / "hf", root / "mlx", to="mlx", quant="int4", dtype="f16")
    flyweight.convert(MODEL, root / "exact", to="mlx")
    flyweight.convert(MODEL, root / "kept.safetensors")
    return root


@pytest.mark.parametrize("name", ["q8_0.gguf", "q4_0.gguf"])
def test_gguf_py_decodes_what_we_wrote_to_the_same_values(made: Path, name: str) -> None:
    reader = gguf.GGUFReader(made / name)
    with flyweight.open(made / name) as ours:
        assert [t.name for t in reader.tensors] == list(ours)
        for tensor in reader.tensors:
            theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            mine = ours[tensor.name].astype(np.float32)
            assert np.array_equal(theirs.astype(np.float32).view(np.uint32), mine.view(np.uint32)), tensor.name
    with flyweight.open(MODEL) as source:
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_template", "tokenizer.ggml.pre"):
            assert reader.fields[key].contents() == source.manifest.value(key), key


def test_safetensors_reads_the_directory_and_the_kept_blocks(made: Path) -> None:
    for file in (made / "hf" / "model.safetensors", made / "kept.safetensors"):
        with safe_open(file, "np") as theirs, flyweight.open(file) as ours:
            assert set(theirs.keys()) == set(ours)
            for name in ours:
                (part,) = ours.encoded(name).parts.values()
                assert np.array_equal(theirs.get_tensor(name), part), name


@pytest.mark.parametrize("name", ["mlx", "exact"])
def test_mlx_lm_runs_what_we_wrote(made: Path, name: str) -> None:
    model, _ = load_model(made / name)
    logits = model(mx.array([PROMPT]))[0, -1]
    assert int(mx.argmax(logits)) == PARIS
