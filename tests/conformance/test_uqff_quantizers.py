"""Our quantizers beside those of mistral.rs: the same bytes where that is promised, no more error where it is not.

The tool quantizes the same model as we do, by itself, and every tensor of its file is compared with ours: weights of a real
model, and rows that are constant, zero, tiny, huge, tied, and of both signs of zero. docs/decisions/0181 lists what may differ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import flyweight
from flyweight.codecs import codec_for
from flyweight.codecs.hqq import Hqq
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import RAW, EncodedTensor, TensorSpec
from flyweight.quantizers import QUANTIZERS
from support.mistral_rs import CURRENT, MistralRs
from support.toys import safetensors_bytes
from support.uqff_sources import CONFIGS, shapes, write_source

DEMO = Path(os.environ["FLYWEIGHT_DEMO_MODEL"])
BLOCKS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1")
EXACT = ("afq2", "afq3", "afq4", "afq6", "afq8", "fp8", "f8q8", "mxfp4", "hqq4", "hqq8", "q8k", *BLOCKS)
SEARCHED = ("q2k", "q3k", "q4k", "q5k", "q6k")
TYPES = ("f32", "bf16", "f16")
ODD_ROWS = 19
CONFIG = CONFIGS["small"] | {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def tool() -> Iterator[MistralRs]:
    with MistralRs(CURRENT, timeout=600) as running:
        yield running


def awkward(rows: int, columns: int, seed: int) -> np.ndarray:
    """Ordinary rows, of which the first are replaced."""
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], columns)
    special = [
        np.zeros(columns), np.full(columns, 0.25), np.full(columns, -3.0),
        1e-30 * rng.random(columns), 1e-6 * rng.standard_normal(columns), 3e-8 * rng.standard_normal(columns),
        rng.integers(-8, 8, columns) / 16, rng.integers(0, 16, columns) / 8, rng.integers(-254, 255, columns) / 254,
        (rng.integers(-4, 4, columns) + 0.5) / 3, np.arange(columns) % 32 == 0, 5e-13 * rng.random(columns),
        0.1 + 1e-9 * rng.standard_normal(columns), np.clip(50 * rng.standard_normal(columns), -120, 120),
        np.where(np.arange(columns) % 2, 1, -1), np.exp2(rng.integers(-20, 2, columns)) * signs,
        6 * np.exp2(np.repeat(rng.integers(-3, 3, columns // 32), 32)), np.linspace(-100, 100, columns),
        np.full(columns, 448 / 416),
    ]  # fmt: skip
    values = 0.02 * rng.standard_normal((rows, columns))
    values[:ODD_ROWS] = special
    return values.astype(np.float32)


def random_model(path: Path, dtype: str) -> Path:
    """Of awkward rows, of weights as large as they come, and of nothing but zeros or one number."""
    config = CONFIG | {"torch_dtype": {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[dtype]}
    write_source(path, config)
    made = {name: np.ones(shape, np.float32) for name, shape in shapes(config).items()}
    matrices = [name for name, array in made.items() if array.ndim == 2]
    for seed, name in enumerate(matrices):
        made[name] = awkward(*made[name].shape, seed)
    layer = "model.layers.0."
    made[f"{layer}self_attn.o_proj.weight"][...] = 0
    made[f"{layer}self_attn.v_proj.weight"][...] = 0.3
    made[f"{layer}mlp.up_proj.weight"] *= 30
    made[f"{layer}mlp.up_proj.weight"] = np.clip(made[f"{layer}mlp.up_proj.weight"], -130, 130)
    weights = {name: array.astype(DType.parse(dtype).numpy) for name, array in made.items()}
    (path / "model.safetensors").write_bytes(safetensors_bytes(weights))
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {dtype: random_model(root / dtype, dtype) for dtype in TYPES}


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedding and the first layer of the demo model, in bf16."""
    root = tmp_path_factory.mktemp("smollm2")
    flyweight.convert(DEMO, root / "whole", to="hf", dtype="bf16")
    with flyweight.open(root / "whole") as whole:
        weights = {name: np.array(whole[name]) for name in whole if ".layers." not in name or ".layers.0." in name}
    (root / "whole" / "model.safetensors").write_bytes(safetensors_bytes(weights))
    config = json.loads((root / "whole" / "config.json").read_bytes())
    (root / "whole" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    return root / "whole"


def quantized(tool: MistralRs, model: Path, dtype: str, isq: str, out: Path) -> Iterator[tuple[str, EncodedTensor, np.ndarray]]:
    """What the tool made of every matrix that it quantized, and the matrix itself."""
    tool.ask(model, isq=isq, write=out / f"{isq}.uqff", dtype=dtype.upper(), arch="Llama")
    with flyweight.open(model) as source, flyweight.open(out) as written:
        for name in source:
            if written.manifest.entries[name].codec != RAW:
                yield name, written.encoded(name), np.asarray(source[name], np.float32)


def exact(tensor: EncodedTensor) -> bool:
    """Whether its bytes can be ours: embeddings of some types are promoted to one whose scales are searched for."""
    return QUANTIZERS["mistralrs"].takes(codec_for(tensor.codec))


def ours(theirs: EncodedTensor, values: np.ndarray, quantizer: str) -> EncodedTensor:
    """Our tensor of the same codec."""
    spec = TensorSpec(values.shape, DType.F32)
    return EncodedTensor(spec, theirs.codec, QUANTIZERS[quantizer](values, codec_for(theirs.codec), spec))


def same_bytes(a: EncodedTensor, b: EncodedTensor) -> bool:
    return all(np.ascontiguousarray(a.parts[part]).tobytes() == np.array(b.parts[part]).tobytes() for part in b.parts)


def with_their_last_bits(tensor: EncodedTensor, theirs: EncodedTensor) -> EncodedTensor:
    """Their zeros where ours differ in the last bits of what was summed up, in one group of 200 at most.

    Errors above 1/8 go through a logarithm and an exponential. Theirs are a library's, of whose results one in a thousand is
    not the nearest number: a power that is off by 2^-23, times t / β of up to 2^4 / 10, in a mean of 64.
    """
    zero, wanted = tensor.parts["zero"], np.array(theirs.parts["zero"])
    near = np.abs(zero - wanted) <= 2.0**-22
    assert (zero != wanted).sum() <= max(zero.size // 200, 1)
    return EncodedTensor(tensor.spec, tensor.codec, {**tensor.parts, "zero": np.where(near, wanted, zero)})


def decoded(tensor: EncodedTensor) -> np.ndarray:
    return codec_for(tensor.codec).decode(tensor.spec, tensor.parts)


def relative_error(tensor: EncodedTensor, values: np.ndarray) -> float:
    return float(np.linalg.norm(decoded(tensor).astype(np.float64) - values) / np.linalg.norm(values.astype(np.float64)))


@pytest.mark.parametrize("isq", EXACT)
@pytest.mark.parametrize("dtype", TYPES)
def test_awkward_weights_have_the_same_bytes(
    tool: MistralRs, models: dict[str, Path], dtype: str, isq: str, tmp_path: Path
) -> None:
    compared = 0
    for name, theirs, values in quantized(tool, models[dtype], dtype, isq, tmp_path):
        if exact(theirs):
            found = ours(theirs, values, "mistralrs")
            if isinstance(codec_for(theirs.codec), Hqq):
                found = with_their_last_bits(found, theirs)
            assert same_bytes(found, theirs), name
            compared += 1
    assert compared >= 7


@pytest.mark.parametrize("isq", ["afq4", "fp8", "f8q8", "mxfp4", "hqq4", "q4_0", "q8_0"])
def test_a_real_model_has_the_same_bytes(tool: MistralRs, smollm2: Path, isq: str, tmp_path: Path) -> None:
    compared = 0
    for name, theirs, values in quantized(tool, smollm2, "bf16", isq, tmp_path):
        if exact(theirs):
            assert same_bytes(ours(theirs, values, "mistralrs"), theirs), name
            compared += 1
    assert compared >= 7


@pytest.mark.parametrize("isq", SEARCHED)
@pytest.mark.parametrize("dtype", TYPES)
def test_k_types_lose_less(tool: MistralRs, models: dict[str, Path], dtype: str, isq: str, tmp_path: Path) -> None:
    """Their bytes differ, since both search: ours have 3 % less error at least, of each matrix without odd rows."""
    compared = 0
    for name, theirs, values in quantized(tool, models[dtype], dtype, isq, tmp_path):
        if name.endswith(("gate_proj.weight", "q_proj.weight")):
            plain = values[ODD_ROWS:]
            spec = TensorSpec(plain.shape, DType.F32)
            blocks = {"blocks": np.array(theirs.parts["blocks"])[ODD_ROWS:]}
            rows = EncodedTensor(spec, theirs.codec, blocks)
            assert relative_error(ours(rows, plain, "nearest"), plain) < 0.97 * relative_error(rows, plain), name
            compared += 1
    assert compared == 2


@pytest.mark.parametrize("isq", ["afq4", *BLOCKS, "q8k", "f8q8", "mxfp4"])
def test_what_may_differ_decodes_alike(tool: MistralRs, isq: str, tmp_path: Path) -> None:
    """Zeros of both signs in one group, and blocks so small that their scale is zero in f16 (docs/decisions/0181)."""
    path = random_model(tmp_path / "model", "f32")
    with flyweight.open(path) as opened:
        weights = {name: np.array(opened[name]) for name in opened}
    rng = np.random.default_rng(1)
    gate = weights["model.layers.0.mlp.gate_proj.weight"]
    gate[::2] = rng.choice(np.float32([0.0, -0.0]), gate[::2].shape)
    gate[1::2] = 1e-40 * rng.standard_normal(gate[1::2].shape)
    (path / "model.safetensors").write_bytes(safetensors_bytes(weights))
    for name, theirs, values in quantized(tool, path, "f32", isq, tmp_path / "out"):
        if name.endswith("gate_proj.weight"):
            assert np.array_equal(decoded(ours(theirs, values, "mistralrs")), decoded(theirs))
            return
    pytest.fail("the tensor was not quantized")
