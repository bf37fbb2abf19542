"""The MLX directory: what is read, what is refused to be written, and what config.json becomes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flyweight.codecs import codec_for
from flyweight.codecs.affine import Affine
from flyweight.containers import recognise
from flyweight.containers.mlx import MlxDirectory
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import MemoryBundle
from support.materialise import from_bundle, materialise
from support.raw_files import safetensors_file, tensor_json

MLX = MlxDirectory()


def triple(
    path: str, shape: tuple[int, ...], bits: int, group: int, scale: str = "f16"
) -> dict[str, tuple[str, list[int], bytes]]:
    """Random pieces of a triple: name → type, shape, bytes."""
    rng = np.random.default_rng(len(path))
    *outer, columns = shape
    label, size = {"f16": ("F16", 2), "bf16": ("BF16", 2), "f32": ("F32", 4)}[scale]
    rows = int(np.prod(outer))
    scales = [*outer, columns // group]
    return {
        f"{path}.weight": ("U32", [*outer, columns * bits // 32], rng.bytes(rows * columns * bits // 8)),
        f"{path}.scales": (label, scales, bytes(rows * columns // group * size)),
        f"{path}.biases": (label, scales, bytes(rows * columns // group * size)),
    }


def weights(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    table, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        table[name] = tensor_json(dtype, shape, len(data), len(data) + len(raw))
        data += raw
    return safetensors_file(table, data)


def bundle(quantization: Any, tensors: dict[str, tuple[str, list[int], bytes]], **config: Any) -> MemoryBundle:
    text = json.dumps({"model_type": "toy", "quantization": quantization} | config).encode()
    return MemoryBundle({"config.json": text, "model.safetensors": weights(tensors)})


DENSE = {"norm.weight": ("F32", [4], bytes(16))}


# Reading


def test_a_triple_is_one_tensor() -> None:
    given = bundle({"group_size": 64, "bits": 4}, DENSE | triple("layer.0.up", (3, 128), 4, 64))
    assert recognise(given).name == "mlx"
    manifest = MLX.parse(given)
    assert list(manifest.entries) == ["norm.weight", "layer.0.up.weight"]
    entry = manifest.entries["layer.0.up.weight"]
    assert entry.spec == TensorSpec((3, 128), DType.F32)
    assert entry.codec == Affine(4, 64, "scale_bias", "f16", "little", "u32", -1).spec
    codec_for(entry.codec).check_layout(entry.spec, entry.parts)
    assert set(entry.extents) == {"codes", "scale", "bias"}
    assert manifest.dialect == "hf"


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("scale", ["f32", "f16", "bf16"])
def test_every_width_group_and_scale_type(bits: int, group: int, scale: str) -> None:
    manifest = MLX.parse(bundle({"group_size": group, "bits": bits}, triple("a", (2, 3, 256), bits, group, scale)))
    entry = manifest.entries["a.weight"]
    assert entry.spec.shape == (2, 3, 256)
    assert MLX.carries(entry.spec, entry.codec)
    codec_for(entry.codec).check_layout(entry.spec, entry.parts)


def test_modules_may_differ_from_the_default() -> None:
    settings = {"group_size": 64, "bits": 4, "mode": "affine", "b": {"group_size": 32, "bits": 8}, "c": True, "ghost": False}
    tensors = triple("a", (2, 128), 4, 64) | triple("b", (2, 128), 8, 32) | triple("c", (2, 128), 4, 64)
    entries = MLX.parse(bundle(settings, tensors)).entries
    assert {name: (e.codec.params["bits"], e.codec.params["group"]) for name, e in entries.items()} == {
        "a.weight": (4, 64), "b.weight": (8, 32), "c.weight": (4, 64),
    }  # fmt: skip


def test_companions_may_lie_in_another_shard() -> None:
    pieces = triple("a", (2, 128), 4, 64)
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    files = {
        "config.json": b'{"quantization": {"group_size": 64, "bits": 4}}',
        one: weights({"a.biases": pieces["a.biases"]}),
        two: weights({"a.weight": pieces["a.weight"], "a.scales": pieces["a.scales"]}),
        "model.safetensors.index.json": json.dumps(
            {"metadata": {}, "weight_map": {"a.biases": one, "a.weight": two, "a.scales": two}}
        ).encode(),
    }
    entry = MLX.parse(MemoryBundle(files)).entries["a.weight"]
    assert {part: extent.file for part, extent in entry.extents.items()} == {"codes": two, "scale": two, "bias": one}


def test_a_module_named_in_no_weights_is_no_error() -> None:
    """MLX never looks at it either."""
    settings = {"group_size": 64, "bits": 4, "vision.ghost": {"group_size": 32, "bits": 8}}
    assert list(MLX.parse(bundle(settings, DENSE)).entries) == ["norm.weight"]


def test_settings_without_a_triple_are_a_dense_model() -> None:
    given = bundle({"group_size": 64, "bits": 4}, DENSE)
    assert recognise(given).name == "mlx"
    assert all(entry.codec == RAW for entry in MLX.parse(given).entries.values())


@pytest.mark.parametrize(
    "config", [b"{}", b'{"quantization": null}', b'{"text_config": {"quantization": {}}}', b"[1]", b'"quantization"', b"{"]
)
def test_a_config_that_says_nothing_of_triples_is_not_ours(config: bytes) -> None:
    assert not MLX.probe(MemoryBundle({"config.json": config, "model.safetensors": weights(DENSE)}))


def test_a_lone_file_is_not_ours() -> None:
    assert not MLX.probe(MemoryBundle({"config.json": b'{"quantization": {}}'}, is_directory=False))


# Writing


def affine(bits: int, group: int, scale: str = "f16") -> CodecSpec:
    return Affine(bits, group, "scale_bias", scale, "little", "u32").spec


def draft(entries: dict[str, tuple[tuple[int, ...], CodecSpec]], config: Any = None) -> Manifest:
    made = {}
    for name, (shape, codec) in entries.items():
        spec = TensorSpec(shape, DType.F32)
        made[name] = Entry(name, spec, codec, codec_for(codec).layout(spec))
    text = config if isinstance(config, bytes) else json.dumps(config or {"model_type": "toy"}).encode()
    return Manifest("mlx", made, {}, {"config.json": text}, "hf")


def written_config(manifest: Manifest) -> dict[str, Any]:
    text = MLX.place(manifest, "").manifest.files["config.json"]
    assert isinstance(text, bytes)
    return json.loads(text)


def test_config_names_the_most_common_grid_and_the_exceptions() -> None:
    manifest = draft(
        {
            "embed.weight": ((4, 128), affine(8, 32)),
            "a.weight": ((2, 128), affine(4, 64)),
            "b.weight": ((2, 128), affine(4, 64)),
            "norm.weight": ((4,), RAW),
        },
        {"z": 1, "quantization_config": {"quant_method": "gptq"}, "a": [1.5, None]},
    )
    table = {"group_size": 64, "bits": 4, "embed": {"group_size": 32, "bits": 8}}
    config = written_config(manifest)
    assert config == {"z": 1, "quantization_config": table, "a": [1.5, None], "quantization": table}
    assert list(config) == ["z", "quantization_config", "a", "quantization"]


def test_a_dense_model_says_nothing_of_triples() -> None:
    manifest = draft({"a.weight": ((2, 128), RAW)}, {"quantization": {"bits": 4, "group_size": 64}, "quantization_config": {}})
    assert written_config(manifest) == {}


def test_a_config_that_is_already_right_keeps_its_bytes() -> None:
    """Its spacing, its redundant settings and its modules included."""
    text = b'{"quantization":  {"bits": 4, "group_size": 64, "mode": "affine", "a": {"bits": 4, "group_size": 64}, "n": false}}'
    manifest = draft({"a.weight": ((2, 128), affine(4, 64)), "n.weight": ((4,), RAW)}, text)
    assert MLX.place(manifest, "").manifest.files["config.json"] == text


@pytest.mark.parametrize(
    "said",
    [
        {"bits": 8, "group_size": 64},
        {"bits": 4, "group_size": 64, "a": False},
        {"bits": 4, "group_size": 64, "n": {"bits": 4, "group_size": 64}},
        7,
    ],
)
def test_a_config_that_is_wrong_is_made_right(said: Any) -> None:
    manifest = draft({"a.weight": ((2, 128), affine(4, 64)), "n.weight": ((4,), RAW)}, {"quantization": said})
    assert written_config(manifest)["quantization"] == {"bits": 4, "group_size": 64}


def test_what_is_read_is_written_again_byte_for_byte() -> None:
    settings = {"group_size": 64, "bits": 4, "b": {"group_size": 32, "bits": 8}}
    given = bundle(settings, DENSE | triple("a", (2, 128), 4, 64) | triple("b", (2, 128), 8, 32), extra="kept")
    parsed = MLX.parse(given)
    config = bytes(given["config.json"].read(0, given["config.json"].size))
    placement = MLX.place(replace(parsed, files={"config.json": config}), "")
    files = materialise(placement, from_bundle(parsed, given))
    assert files["config.json"] == config
    again = MLX.parse(MemoryBundle(files))
    assert dict(again.entries) == dict(placement.manifest.entries)
    assert b'"__metadata__":{"format":"mlx"}' in files["model.safetensors"]


def test_the_files_say_that_they_are_for_mlx() -> None:
    manifest = replace(draft({"n.weight": ((4,), RAW)}), metadata={"format": Typed("str", "pt"), "note": Typed("str", "kept")})
    image = MLX.place(manifest, "").images["model.safetensors"]
    assert b'{"__metadata__":{"format":"mlx","note":"kept"}' in image.chunks[0][1]


@pytest.mark.parametrize(
    ("spec", "codec"),
    [
        (TensorSpec((4, 4), DType.F64), RAW),
        (TensorSpec((4, 4), DType.F8_E4M3), RAW),
        (TensorSpec((4, 128), DType.F32), CodecSpec("q4_0")),
        (TensorSpec((4, 128), DType.F32), affine(7, 64)),
        (TensorSpec((4, 128), DType.F32), affine(4, 16)),
        (TensorSpec((4, 128), DType.F32), affine(4, 0)),
        (TensorSpec((4, 96), DType.F32), affine(4, 64)),
        (TensorSpec((128,), DType.F32), affine(4, 64)),
        (TensorSpec((4, 128), DType.F32), Affine(4, 64).spec),
        (TensorSpec((4, 128), DType.F32), Affine(4, 64, "symmetric", word="u32").spec),
        (TensorSpec((4, 128), DType.F32), Affine(4, 64, "scale_zero", word="u32").spec),
        (TensorSpec((4, 128), DType.F32), Affine(4, 64, packing="big", word="u32").spec),
        (TensorSpec((128, 128), DType.F32), Affine(4, 64, word="u32", axis=0).spec),
        (TensorSpec((4, 128), DType.F32), CodecSpec("affine", {**affine(1, 64).params, "bits": True})),
        (TensorSpec((4, 128), DType.F32), CodecSpec("affine", {**affine(4, 64).params, "group": 64.0})),
        (TensorSpec((4, 128), DType.F32), CodecSpec("affine", {"bits": 4, "group": 64})),
    ],
)
def test_what_mlx_cannot_hold_is_not_carried(spec: TensorSpec, codec: CodecSpec) -> None:
    assert not MLX.carries(spec, codec)


def test_adapt_changes_the_bytes_and_not_the_numbers() -> None:
    assert MLX.adapt(Affine(4, 64).spec) == Affine(4, 64, word="u32").spec
    assert MLX.adapt(Affine(4, 32, "symmetric", "f16", "big").spec) == Affine(4, 32, "symmetric", "f16", word="u32").spec
    assert MLX.adapt(CodecSpec("q4_0")) == CodecSpec("q4_0")


@pytest.mark.parametrize(
    ("entries", "error", "code"),
    [
        ({"a": ((2, 128), affine(4, 64))}, UnsupportedError, "E_KEY"),
        ({"a.weight": ((2, 128), affine(4, 64)), "a.scales": ((2,), RAW)}, UnsupportedError, "E_KEY"),
        ({"b.scales": ((2,), RAW)}, UnsupportedError, "E_KEY"),
        ({"b.biases": ((2,), RAW)}, UnsupportedError, "E_KEY"),
    ],
)
def test_names_that_would_be_read_as_something_else_are_refused(
    entries: dict[str, tuple[tuple[int, ...], CodecSpec]], error: type[Exception], code: str
) -> None:
    with pytest.raises(error) as caught:
        MLX.place(draft(entries), "")
    assert caught.value.code == code  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("files", "error", "code"),
    [
        ({}, UnsupportedError, "E_NO_CONFIG"),
        ({"config.json": Extent("config.json", 0, 2)}, UnsupportedError, "E_NO_CONFIG"),
        ({"config.json": b"[]"}, MalformedError, "E_QUANTIZATION"),
        ({"config.json": b'{"a": 1, "a": 2}'}, MalformedError, "E_JSON_DUPLICATE"),
    ],
)
def test_place_needs_the_bytes_of_a_config(files: dict[str, Any], error: type[Exception], code: str) -> None:
    with pytest.raises(error) as caught:
        MLX.place(replace(draft({"a.weight": ((2, 128), affine(4, 64))}), files=files), "")
    assert caught.value.code == code  # type: ignore[attr-defined]
