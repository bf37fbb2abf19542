"""Codecs as data: specs within specs, what a stranger's JSON may say, and files that earlier versions wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flyweight
from flyweight.codecs import codec_for, without_per_tensor
from flyweight.codecs.affine import Affine
from flyweight.codecs.corrected import Corrected
from flyweight.codecs.masked import Masked
from flyweight.codecs.palette import Palette
from flyweight.codecs.sparse import Sparse
from flyweight.codecs.tabled import Tabled
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_CODEC_DEPTH, MAX_CODEC_PARAMS, MAX_CODEC_TEXT
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.pipeline import load_recipe
from flyweight.quantizers import QUANTIZERS
from support import GOLDEN
from support.toys import llama_tensors, safetensors_bytes

EARLIER_FILES = GOLDEN / "textual_specs"
NESTED = CodecSpec("masked", {"block": 64, "inner": CodecSpec("sparse", {"inner": CodecSpec("affine", {"bits": 4})})})


def masks(depth: int) -> CodecSpec:
    return RAW if depth == 1 else CodecSpec("masked", {"inner": masks(depth - 1), "block": depth})


def read(document: object) -> CodecSpec:
    return CodecSpec.read(document, code="E_DESCRIPTION")


def described(**params: object) -> dict[str, object]:
    return {"name": "masked", "params": params}


# As data --------------------------------------------------------------------------------------


def test_people_read_a_nested_spec_as_a_call() -> None:
    assert (
        str(CodecSpec("masked", {"inner": CodecSpec("affine", {"bits": 4}), "block": 64}))
        == "masked(block=64, inner=affine(bits=4))"
    )
    assert str(NESTED) == "masked(block=64, inner=sparse(inner=affine(bits=4)))"


def test_specs_are_equal_by_value_at_every_depth() -> None:
    same = CodecSpec("masked", {"inner": CodecSpec("sparse", {"inner": CodecSpec("affine", {"bits": 4})}), "block": 64})
    other = CodecSpec("masked", {"inner": CodecSpec("sparse", {"inner": CodecSpec("affine", {"bits": 5})}), "block": 64})
    assert (same, hash(same)) == (NESTED, hash(NESTED))
    assert other != NESTED
    assert len({same, NESTED, other}) == 2


def test_json_is_nested_and_comes_back() -> None:
    document = NESTED.as_json()
    assert document["params"]["inner"]["params"] == {"inner": {"name": "affine", "params": {"bits": 4}}}
    assert read(json.loads(json.dumps(document))) == NESTED


def test_a_codec_is_found_for_every_depth_that_is_allowed() -> None:
    deepest = masks(MAX_CODEC_DEPTH)
    codec = codec_for(deepest)
    assert codec_for(codec.spec) == codec
    assert codec.spec.depth == deepest.depth == MAX_CODEC_DEPTH
    with pytest.raises(ValueError, match="nested"):
        CodecSpec("masked", {"inner": deepest})
    with pytest.raises(ValueError, match="nested"):
        Masked(deepest)


def test_parts_two_levels_down_are_under_two_prefixes() -> None:
    values = np.float32([[0, 0, 1, 2], [0, 0, 0, 3]])
    spec = TensorSpec(values.shape, DType.F32)
    codec = Masked(Sparse(Affine(8, 0).spec).spec, 2).fit(spec, values)
    parts = codec.encode(spec, values)
    assert list(parts) == ["inner.mask", "inner.inner.codes", "inner.inner.scale", "inner.inner.bias", "mask"]
    assert parts["inner.inner.codes"].tolist() == [0, 127, 255]
    assert np.abs(codec.decode(spec, parts) - values).max() < 0.01


def test_a_quantizer_reaches_the_innermost_codec() -> None:
    values = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    values[:, :32] = 0
    spec, palette = TensorSpec(values.shape, DType.F32), Palette(2, table="f32")
    codec = Masked(Sparse(palette.spec).spec, 32).fit(spec, values)
    assert codec.quantizer == "kmeans"
    parts = QUANTIZERS["kmeans"](values, codec, spec)
    alone = QUANTIZERS["kmeans"](values[:, 32:].reshape(-1), palette, TensorSpec((128,), DType.F32))
    assert all(parts[f"inner.inner.{name}"].tobytes() == part.tobytes() for name, part in alone.items())
    tabled = Corrected(Masked(Tabled(4, 32).spec, 32).spec, rank=1)
    parts = QUANTIZERS["clip"](values, tabled, spec)
    alone = QUANTIZERS["clip"](values, Tabled(4, 32), spec)
    assert all(parts[f"inner.inner.{name}"].tobytes() == part.tobytes() for name, part in alone.items())
    with pytest.raises(UnsupportedError) as caught:
        QUANTIZERS["kmeans"](values, tabled, spec)
    assert caught.value.code == "E_QUANTIZER"


def test_what_is_different_in_every_tensor_is_left_out_at_every_depth() -> None:
    spec = Masked(Sparse("lossless", stored=7).spec, 32).spec
    assert str(without_per_tensor(spec)) == "masked(block=32, inner=sparse(form=mask, index=u32, inner=lossless))"
    unknown = CodecSpec("unheard", {"id": 7, "inner": Sparse().spec})
    assert str(without_per_tensor(unknown)) == "unheard(id=7, inner=sparse(form=mask, index=u32, inner=raw))"


# From strangers -------------------------------------------------------------------------------


def nest(depth: int) -> dict[str, Any]:
    return {"name": "raw", "params": {}} if depth == 1 else {"name": "masked", "params": {"inner": nest(depth - 1)}}


@pytest.mark.parametrize(
    "document",
    [
        None,
        "raw",
        [],
        {"name": "raw"},
        {"name": 3, "params": {}},
        {"name": "raw", "params": []},
        {"name": "raw", "params": {}, "more": 1},
        {"name": "x" * (MAX_CODEC_TEXT + 1), "params": {}},
        described(block=None),
        described(block=[1]),
        described(block=2**64),
        described(block="x" * (MAX_CODEC_TEXT + 1)),
        described(block=float("nan")),
        described(**{"x" * (MAX_CODEC_TEXT + 1): 1}),
        described(inner={"name": "raw"}),
        described(inner="{"),
        described(inner='{"name":"raw"}'),
        described(inner='{"name":"raw","name":"raw","params":{}}'),
        described(inner='{"name":"raw","params":{"bits":NaN}}'),
        described(inner='{"name":"\\ud800","params":{}}'),
        described(inner='{"a":' * 700 + "1" + "}" * 700),
        described(inner=json.dumps(nest(MAX_CODEC_DEPTH))),
        described(**{f"p{n}": n for n in range(MAX_CODEC_PARAMS + 1)}),
        described(**{f"p{n}": {"name": "raw", "params": {"a": 1, "b": 2}} for n in range(MAX_CODEC_PARAMS // 2)}),
        nest(MAX_CODEC_DEPTH + 1),
    ],
    ids=lambda document: repr(document)[:60],
)
def test_what_describes_no_codec_is_malformed(document: object) -> None:
    with pytest.raises(MalformedError) as caught:
        read(document)
    assert caught.value.code == "E_DESCRIPTION"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inside: st.lists(inside) | st.fixed_dictionaries({"name": st.text(), "params": st.dictionaries(st.text(), inside)}),
    max_leaves=30,
)


@given(document=JSON)
@settings(deadline=None)
def test_any_json_is_a_codec_or_malformed(document: object) -> None:
    try:
        spec = read(document)
    except MalformedError:
        return
    assert read(spec.as_json()) == spec
    assert spec.depth <= MAX_CODEC_DEPTH


# In files and recipes ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["masked", "corrected", "sparse"])
def test_a_safetensors_file_with_specs_as_text_means_the_same(name: str, tmp_path: Path) -> None:
    values = np.load(EARLIER_FILES / "values.npz")
    assert flyweight.verify(EARLIER_FILES / "model.safetensors").ok
    flyweight.convert(EARLIER_FILES / "model.safetensors", tmp_path / "again.safetensors")
    assert b'\\\\\\"name' not in (tmp_path / "again.safetensors").read_bytes()  # written anew, as plain data
    for file in (EARLIER_FILES / "model.safetensors", tmp_path / "again.safetensors"):
        with flyweight.open(file) as model:
            codec = model.manifest.entries[name].codec
            assert isinstance(codec.params["inner"], CodecSpec)
            assert codec_for(codec).spec == codec
            assert model[name].tobytes() == values[name].tobytes()


def test_an_npy_dir_with_specs_as_text_means_the_same() -> None:
    assert '"inner": "{' in (EARLIER_FILES / "npydir" / "flyweight.json").read_text("utf-8")
    assert flyweight.verify(EARLIER_FILES / "npydir").ok
    with flyweight.open(EARLIER_FILES / "npydir") as model:
        assert model.manifest.entries["corrected"].codec.params["inner"] == CodecSpec(
            "excess", {"bits": 3, "excess": 3, "top": 7, "group": 64, "flat": True, "zeros": True}
        )
        assert model["corrected"].tobytes() == np.load(EARLIER_FILES / "values.npz")["corrected"].tobytes()


def test_a_squizd_file_of_an_earlier_version_means_the_same() -> None:
    values = np.load(EARLIER_FILES / "values.npz")
    assert flyweight.verify(EARLIER_FILES / "model.squizd").ok
    with flyweight.open(EARLIER_FILES / "model.squizd") as model:
        assert sorted(f"squizd {name}" for name in model) == [name for name in values if name.startswith("squizd ")]
        assert all(model[name].tobytes() == values[f"squizd {name}"].tobytes() for name in model)


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ('"palette"', "palette(bits=4"),
        ('{ name = "palette", params = { bits = 6 } }', "palette(bits=6"),
        ('{ name = "sparse", params = { inner = { name = "palette", params = { bits = 2 } } } }', "inner=palette(bits=2"),
        ("""'{"name":"palette","params":{"bits":8}}'""", "palette(bits=8"),
    ],
)
def test_a_recipe_names_a_codec_inside_another(inner: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(
        f'[[rules]]\nmatch = "*.mlp.*"\ncodec = "masked"\nparams = {{ block = 8, inner = {inner} }}\n'
    )
    assert expected in str(load_recipe(tmp_path / "r.toml").rules[0].choice.codec)
    (tmp_path / "m.safetensors").write_bytes(safetensors_bytes(llama_tensors(dtype=np.float32)))
    report = flyweight.convert(tmp_path / "m.safetensors", tmp_path / "out.safetensors", recipe=tmp_path / "r.toml")
    assert {expected in tensor.codec for tensor in report.tensors if ".mlp." in tensor.name} == {True}
    assert flyweight.verify(tmp_path / "out.safetensors").ok


def test_row_stands_for_the_columns_at_every_depth(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(
        '[[rules]]\nmatch = "*"\ncodec = "corrected"\nparams = { inner = { name = "affine", params = { group = "row" } } }\n'
    )
    choice = load_recipe(tmp_path / "r.toml").rules[0].choice
    assert choice.codec is not None
    inner = choice.codec.params["inner"]
    assert isinstance(inner, CodecSpec)
    assert inner == Affine().spec.with_params(group="row")
    assert choice.for_tensor(TensorSpec((1, 96), DType.F32)).codec == Corrected(Affine(group=96).spec).spec
