"""Which codecs a Core ML package holds, for which tensors, and how each is written where several spellings mean the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from flyweight.containers.carried import Carried
from flyweight.containers.coreml.constexprs import FLOATS, INTEGERS, block_text
from flyweight.containers.coreml.element_types import PLAIN
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW, CodecSpec, Layout, TensorSpec

_RAW = Carried("raw", dtypes=tuple(dtype for dtype in DType if dtype in PLAIN and dtype is not DType.BF16))
"""coremltools reads no bf16, though weight files have a number for it."""
_BLOCKWISE = Carried("blockwise", {"data": (*INTEGERS, *FLOATS), "scale": FLOATS, "offset": ("", "data", *FLOATS)})
_PALETTE = Carried("palette", {"table": (*FLOATS, "i8", "u8"), "scale": ("", *FLOATS)})
_SPARSE = Carried("sparse", {"form": ("stream",), "inner": (Carried("raw"),)})
_SCALED = Carried("scaled", {"scale": FLOATS, "inner": (_PALETTE, _SPARSE)})
_SPARSE_CODES = Carried("sparse_codes", {"inner": (_BLOCKWISE, _PALETTE)})


class _Form(NamedTuple):
    carried: Carried
    fits: Callable[[TensorSpec, CodecSpec], bool]
    canonical: Callable[[CodecSpec, tuple[int, ...], Layout], CodecSpec] = lambda codec, _shape, _parts: codec
    """The codec as reading finds it, for a tensor of this shape with these parts."""


def holds(spec: TensorSpec, codec: CodecSpec) -> bool:
    """Whether a tensor can be stored so, in a program of iOS 18."""
    form = _FORMS.get(codec.name)
    return form is not None and form.carried.matches(codec) and form.fits(spec, codec)


def canonical(entry: Entry) -> CodecSpec:
    """Of several parameters that mean the same for a tensor, those that reading finds."""
    return _canonical(entry.codec, entry.spec.shape, entry.parts)


def _canonical(codec: CodecSpec, shape: tuple[int, ...], parts: Layout) -> CodecSpec:
    form = _FORMS.get(codec.name)
    return codec if form is None else form.canonical(codec, shape, parts)


def _is_plain(spec: TensorSpec, _: CodecSpec) -> bool:
    return spec.dtype in _RAW.dtypes


def _is_filled(spec: TensorSpec, _: CodecSpec) -> bool:
    return spec.dtype is DType.F32 and bool(spec.shape) and 0 not in spec.shape


def _can_be_sparse(spec: TensorSpec, _: CodecSpec) -> bool:
    return spec.dtype in (DType.F32, DType.F16, DType.I8, DType.U8) and bool(spec.shape) and 0 not in spec.shape


def _has_whole_vectors(spec: TensorSpec, codec: CodecSpec) -> bool:
    """Whether vectors and groups of a palette are whole ones."""
    vector, group, shape = codec.integer("vector", 1), codec.integer("group", 0), spec.shape
    axis, vector_axis = codec.integer("axis", 0), codec.integer("vector_axis", -1)
    last = max(axis + codec.integer("axes", 1) - 1, vector_axis)
    if not _is_filled(spec, codec) or last >= len(shape) or shape[vector_axis] % vector:
        return False
    along_vectors = axis % len(shape) == vector_axis % len(shape)
    return not group or (shape[axis] % group == 0 and not (along_vectors and group % vector))


def _fits_inside(spec: TensorSpec, codec: CodecSpec) -> bool:
    inner = codec.params["inner"]
    return _is_filled(spec, codec) and isinstance(inner, CodecSpec) and holds(spec, inner)


def _blocks_by_count(codec: CodecSpec, shape: tuple[int, ...], parts: Layout) -> CodecSpec:
    blocks = parts["scale"].shape
    return codec.with_params(block=block_text(shape, blocks)) if len(blocks) == len(shape) else codec


def _axes_counted(codec: CodecSpec, shape: tuple[int, ...], parts: Layout) -> CodecSpec:
    """Axes from the first; that of tables or vectors of which there is one, by default."""
    *tables, _, vector = parts["tables"].shape
    grouped = [axis for axis, count in enumerate(tables) if count > 1]
    axis = codec.integer("vector_axis", -1) % max(len(shape), 1)
    codec = codec.with_params(vector_axis=axis if vector > 1 else -1)
    if not grouped or not codec.params.get("scale"):
        codec = codec.with_params(scale_per="table")
    if not grouped:
        return codec.with_params(axis=0, group=0, axes=1)
    return codec.with_params(axis=grouped[0], axes=grouped[-1] - grouped[0] + 1)


def _around(codec: CodecSpec, shape: tuple[int, ...], parts: Layout) -> CodecSpec:
    inner = codec.params["inner"]
    assert isinstance(inner, CodecSpec)
    within = {name.removeprefix("inner."): part for name, part in parts.items() if name.startswith("inner.")}
    return codec.with_params(inner=_canonical(inner, shape, within))


_FORMS: Mapping[str, _Form] = {
    RAW.name: _Form(_RAW, _is_plain),
    "blockwise": _Form(_BLOCKWISE, _is_filled, _blocks_by_count),
    "palette": _Form(_PALETTE, _has_whole_vectors, _axes_counted),
    "sparse": _Form(_SPARSE, _can_be_sparse, lambda codec, _shape, _parts: codec.with_params(index="u32")),
    "scaled": _Form(
        _SCALED, _fits_inside, lambda codec, shape, parts: _around(_blocks_by_count(codec, shape, parts), shape, parts)
    ),
    "sparse_codes": _Form(_SPARSE_CODES, _fits_inside, _around),
}
CODECS = tuple(form.carried for form in _FORMS.values())


def adapted(codec: CodecSpec) -> CodecSpec:
    """Scales and tables are f16 or f32, masks one stream of bits."""
    changed = {key: "f16" for key in ("scale", "table") if codec.params.get(key) == "bf16"}
    changed |= {"form": "stream"} if codec.params.get("form") == "mask" else {}
    inner = codec.params.get("inner")
    return codec.with_params(**changed, **({"inner": adapted(inner)} if isinstance(inner, CodecSpec) else {}))
