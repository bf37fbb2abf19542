"""MLX reads what we write and we read what MLX writes, number for number.

MLX computes in the type of the scales, we in float32: with float32 scales both agree exactly, with
f16 and bf16 within two roundings of that type.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from flyweight.codecs import codec_for
from flyweight.codecs.affine import Affine
from flyweight.containers.mlx import MlxDirectory
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry, Manifest
from flyweight.foundation.tensor import RAW, EncodedTensor, TensorSpec
from flyweight.quantizers import QUANTIZERS
from flyweight.sources import Bundle, open_bundle
from support.materialise import materialise

mx.set_default_device(mx.cpu)

MLX = MlxDirectory()
BITS, GROUPS = (1, 2, 3, 4, 5, 6, 8), (32, 64, 128)
TYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
ROUNDOFF = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}
SMALLEST = {"f32": 0.0, "f16": 2.0**-24, "bf16": 2.0**-133}
CASES = list(product(BITS, GROUPS, TYPES))


def numpy_of(array: Any) -> np.ndarray:
    """An MLX array with its own bits."""
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(array)


def weights(seed: int, shape: tuple[int, ...] = (24, 256)) -> np.ndarray:
    """Rows of all magnitudes a model has, and the awkward ones: zero, constant, one-sided, sparse, coarse."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * rng.choice([1e-9, 1e-4, 0.02, 1, 100], (*shape[:-1], 1))
    rows = values.reshape(-1, shape[-1])
    rows[0], rows[1], rows[2] = 0, 0.5, -0.25
    rows[3], rows[4] = np.abs(rows[3]), -np.abs(rows[4])
    rows[5, ::3] = 0
    rows[6] = np.round(rows[6] * 4) / 4
    return values.astype(np.float32)


def read_part(bundle: Bundle, entry: Entry, part: str) -> np.ndarray:
    extent, spec = entry.extents[part], entry.parts[part]
    return np.frombuffer(bundle[extent.file].read(extent.offset, extent.nbytes), spec.dtype.storage).reshape(spec.shape)


def read(directory: Path) -> dict[str, EncodedTensor]:
    bundle = open_bundle(directory)
    made = {}
    for entry in MLX.parse(bundle).entries.values():
        parts = {part: read_part(bundle, entry, part) for part in entry.parts}
        made[entry.name] = EncodedTensor(entry.spec, entry.codec, parts)
    return made


def write(directory: Path, tensors: dict[str, EncodedTensor], config: dict[str, Any], shard_bytes: int | None = None) -> None:
    layouts = {name: codec_for(tensor.codec).layout(tensor.spec) for name, tensor in tensors.items()}
    entries = {name: Entry(name, tensor.spec, tensor.codec, layouts[name]) for name, tensor in tensors.items()}
    manifest = Manifest("mlx", entries, {}, {"config.json": json.dumps(config).encode()}, "hf")
    placement = MLX.place(manifest, "", shard_bytes)
    for name, data in materialise(placement, lambda entry, part: tensors[entry.name].parts[part].tobytes()).items():
        (directory / name).write_bytes(data)


def decode(tensor: EncodedTensor) -> np.ndarray:
    return codec_for(tensor.codec).decode(tensor.spec, tensor.parts)


def assert_agrees(ours: np.ndarray, theirs: Any, tensor: EncodedTensor) -> None:
    """Exactly, or within u · (|s·q| + |s·q + b|) and a subnormal step: one rounding of the product, one of the sum."""
    scale = str(tensor.codec.params["scale"])
    other = np.array(theirs.astype(mx.float32))
    if scale == "f32":
        assert np.array_equal(ours, other)
        return
    grid = codec_for(tensor.codec).grid(tensor.spec, tensor.parts)
    product_size = np.abs(np.repeat(grid.scale.astype(np.float64), grid.group, axis=1) * grid.codes).reshape(ours.shape)
    u = ROUNDOFF[scale]
    bound = (u * (1 + 2 * u) + 2.0**-23) * (product_size + np.abs(ours)) + 2 * SMALLEST[scale]
    assert (np.abs(ours.astype(np.float64) - other) <= bound).all()


@pytest.mark.parametrize(("bits", "group", "scale"), CASES)
def test_edge_is_the_rule_of_mlx(bits: int, group: int, scale: str) -> None:
    """Every bit of codes, scales and biases; with one bit the sign of a zero bias aside."""
    given = mx.array(weights(bits)).astype(TYPES[scale])
    theirs = dict(zip(("codes", "scale", "bias"), map(numpy_of, mx.quantize(given, group, bits)), strict=True))
    values = np.array(given.astype(mx.float32))
    codec = Affine(bits, group, "scale_bias", scale, word="u32")
    ours = QUANTIZERS["anchored"](values, codec, TensorSpec(values.shape, DType.F32))
    for part in ("codes", "scale", "bias"):
        if bits == 1 and part == "bias":
            assert np.array_equal(ours[part], theirs[part])
        else:
            assert ours[part].tobytes() == theirs[part].tobytes(), part


@pytest.mark.parametrize(("bits", "group", "scale"), CASES)
def test_we_read_what_mlx_writes(bits: int, group: int, scale: str, tmp_path: Path) -> None:
    given = mx.array(weights(bits, (2, 12, 256))).astype(TYPES[scale])
    pieces = dict(zip(("weight", "scales", "biases"), mx.quantize(given, group, bits), strict=True))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {f"a.{k}": v for k, v in pieces.items()}, {"format": "mlx"})
    config = {"model_type": "toy", "quantization": {"group_size": group, "bits": bits}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensor = read(tmp_path)["a.weight"]
    theirs = mx.dequantize(pieces["weight"], pieces["scales"], pieces["biases"], group, bits)
    assert tensor.spec.shape == theirs.shape
    assert_agrees(decode(tensor), theirs, tensor)


@pytest.mark.parametrize(("bits", "group", "scale"), CASES)
@pytest.mark.parametrize("quantizer", ["nearest", "anchored", "clip", "hqq"])
def test_mlx_reads_what_we_write(quantizer: str, bits: int, group: int, scale: str, tmp_path: Path) -> None:
    values = weights(bits)
    codec, spec = Affine(bits, group, "scale_bias", scale, word="u32"), TensorSpec(values.shape, DType.F32)
    tensor = EncodedTensor(spec, codec.spec, QUANTIZERS[quantizer](values, codec, spec))
    dense = EncodedTensor(TensorSpec((3,), DType.BF16), RAW, {"data": np.array([1, 2, 3], ml_dtypes.bfloat16)})
    write(tmp_path, {"a.weight": tensor, "n.weight": dense}, {"model_type": "toy"})
    loaded, metadata = mx.load(str(tmp_path / "model.safetensors"), return_metadata=True)
    assert metadata == {"format": "mlx"}
    assert set(loaded) == {"a.weight", "a.scales", "a.biases", "n.weight"}
    assert loaded["n.weight"].dtype == mx.bfloat16
    assert loaded["n.weight"].tolist() == [1, 2, 3]
    assert loaded["a.scales"].dtype == loaded["a.biases"].dtype == TYPES[scale]
    theirs = mx.dequantize(loaded["a.weight"], loaded["a.scales"], loaded["a.biases"], group, bits)
    assert_agrees(decode(tensor), theirs, tensor)


# A whole model

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5, "vocab_size": 96, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "max_position_embeddings": 64,
}  # fmt: skip
MATRICES = {
    "self_attn.q_proj": (128, 128), "self_attn.k_proj": (64, 128), "self_attn.v_proj": (64, 128),
    "self_attn.o_proj": (128, 128), "mlp.gate_proj": (256, 128), "mlp.up_proj": (256, 128), "mlp.down_proj": (128, 256),
}  # fmt: skip


def tiny_llama() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    made = {"model.embed_tokens.weight": matrix(96, 128), "lm_head.weight": matrix(96, 128)}
    for layer in range(2):
        made |= {f"model.layers.{layer}.{name}.weight": matrix(*shape) for name, shape in MATRICES.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"model.layers.{layer}.{norm}.weight"] = 1 + matrix(128)
    return made | {"model.norm.weight": 1 + matrix(128)}


def grid_for(name: str) -> Affine | None:
    """Three grids in one model: the default, one with more bits, one with smaller groups."""
    if "norm" in name or name == "lm_head.weight":
        return None
    if "embed" in name:
        return Affine(8, 64, word="u32")
    return Affine(4, 32, word="u32") if "down_proj" in name else Affine(4, 64, word="u32")


def logits(directory: Path) -> np.ndarray:
    model, _ = load_model(directory)
    return np.array(model(mx.array([[5, 17, 3, 88, 42]])))


@pytest.mark.parametrize("shard_bytes", [None, 40_000], ids=["whole", "sharded"])
def test_mlx_lm_runs_a_model_we_wrote(shard_bytes: int | None, tmp_path: Path) -> None:
    packed, dense = {}, {}
    for name, values in tiny_llama().items():
        spec, codec = TensorSpec(values.shape, DType.F32), grid_for(name)
        plain = EncodedTensor(spec, RAW, {"data": values})
        packed[name] = plain if codec is None else EncodedTensor(spec, codec.spec, codec.encode(spec, values))
        dense[name] = EncodedTensor(spec, RAW, {"data": decode(packed[name])})
    for directory, tensors in (("packed", packed), ("dense", dense)):
        (tmp_path / directory).mkdir()
        write(tmp_path / directory, tensors, CONFIG, shard_bytes)
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    assert config["quantization"]["model.embed_tokens"] == {"group_size": 64, "bits": 8}
    assert (len(list((tmp_path / "packed").glob("*.safetensors"))) > 1) == (shard_bytes is not None)
    got, want = logits(tmp_path / "packed"), logits(tmp_path / "dense")
    assert got.shape == want.shape == (1, 5, 96)
    assert np.abs(want).max() > 1
    # The same numbers, multiplied in another order: float32 sums of at most 256 products, a few layers deep.
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def test_we_read_a_model_mlx_lm_quantized(tmp_path: Path) -> None:
    """A model packed and saved by mlx-lm itself, with one module it was told to treat differently."""
    plain = {n: EncodedTensor(TensorSpec(v.shape, DType.F32), RAW, {"data": v}) for n, v in tiny_llama().items()}
    (tmp_path / "dense").mkdir()
    write(tmp_path / "dense", plain, CONFIG)
    model, config = load_model(tmp_path / "dense")
    special = {"group_size": 32, "bits": 6}
    model, config = quantize_model(
        model, config, 64, 4, quant_predicate=lambda path, _: special if path.endswith("v_proj") else "lm_head" not in path
    )
    (tmp_path / "packed").mkdir()
    save_model(tmp_path / "packed", model)
    save_config(config, tmp_path / "packed" / "config.json")
    tensors = read(tmp_path / "packed")
    assert set(tensors) == set(plain)
    found = {(t.codec.params["bits"], t.codec.params["group"]) for n, t in tensors.items() if n.endswith("v_proj.weight")}
    assert found == {(6, 32)}
    assert tensors["lm_head.weight"].codec == RAW
    weights_of = dict(tree_flatten(model.parameters()))
    for name, tensor in tensors.items():
        if tensor.codec != RAW:
            path = name.removesuffix(".weight")
            bits, group = int(tensor.codec.params["bits"]), int(tensor.codec.params["group"])
            pieces = (weights_of[f"{path}.{piece}"] for piece in ("weight", "scales", "biases"))
            assert_agrees(decode(tensor), mx.dequantize(*pieces, group, bits), tensor)
