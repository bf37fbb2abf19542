"""The forms a tensor can have, and the arrays each is stored as.

A tensor of n rows (all axes but the last flattened; a scalar is one row of one) and d columns, in groups:

    form          arrays                                     value
    int8          __q i8 (n, d)         __s                  s · q
    int4          __q4a u8 (n, ⌈d/2⌉)   __s4a __z4a          s · q + z
    int4-legacy   __q4 u8 (n, ⌈d/2⌉)    __s4                 s · (q − 7)
    nf4           __nf4 u8 (n, ⌈d/2⌉)   __s_nf4              s · NF4[q]
    int3          __q3 u8, flat         __s3 __z3            s · (q − z), and + A · B with __lra (n, r) and __lrb (r, d)
    dense         __pt, or __ptb u16 that are the bits of bf16

Scales and zeros are f32 (n, groups), or (n) for one group of int8; those of int4 may be f16, which is ours. int3 counts its
groups over the whole tensor. How long a group is, nothing says: it follows from the shapes and the type of the scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flyweight.containers.carried import Carried
from flyweight.containers.named_quantizations import Floor, Preset, PresetRule
from flyweight.containers.npy_dir.npy_header import DESCRS
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW, CodecSpec, Param, TensorSpec


class Stored(NamedTuple):
    """One part: the suffix of its file, the array in it, and the part as the codec has it."""

    suffix: str
    array: TensorSpec
    part: TensorSpec
    also: tuple[int, ...] | None = None
    """Another shape that says the same."""


class Form(NamedTuple):
    codec: str
    params: Mapping[str, Param]
    """Those of every tensor of this form; `group` is a tensor's own."""
    bits: int
    stored: DType
    files: Mapping[str, str]
    """Part → suffix, the codes first."""
    usual: Mapping[DType, int]
    """The types its scales may have, the public tool's first, and how long groups are with each unless shapes say otherwise."""
    flat: bool = False

    def spec(self, group: int, scale: DType = DType.F32) -> CodecSpec:
        own = {"group": group} | ({"scale": scale.label} if "scale" in self.params else {})
        return CodecSpec(self.codec, {**self.params, **own})

    def preset(self, scale: DType = DType.F32) -> CodecSpec:
        """Groups of the usual length."""
        return self.spec(self.usual[scale], scale)


_BY_32, _BY_64 = {DType.F32: 32}, {DType.F32: 64}
_AFFINE: dict[str, Param] = {"group": 0, "scale": "f32", "packing": "little", "word": "u8", "axis": -1}
FORMS = {
    "int4": Form(
        "affine", {"bits": 4, "form": "scale_bias", **_AFFINE}, 4, DType.U8,
        {"codes": "__q4a", "scale": "__s4a", "bias": "__z4a"}, {DType.F32: 32, DType.F16: 64},
    ),
    "int4-legacy": Form(
        "excess", {"bits": 4, "excess": 7, "top": 14, "group": 0, "flat": False, "zeros": False}, 4, DType.U8,
        {"codes": "__q4", "scale": "__s4"}, _BY_32,
    ),
    "int8": Form(
        "affine", {"bits": 8, "form": "symmetric", **_AFFINE}, 8, DType.I8, {"codes": "__q", "scale": "__s"}, _BY_64
    ),
    "nf4": Form("nf4", {"group": 0}, 4, DType.U8, {"codes": "__nf4", "scale": "__s_nf4"}, _BY_32),
    "int3": Form(
        "excess", {"bits": 3, "excess": 3, "top": 7, "group": 0, "flat": True, "zeros": True}, 3, DType.U8,
        {"codes": "__q3", "scale": "__s3", "zero": "__z3"}, _BY_64, flat=True,
    ),
}  # fmt: skip
"""In the order in which they are preferred."""


def _everywhere(codec: CodecSpec, floor: Floor | None = None) -> Preset:
    return Preset((PresetRule(("*",), codec, floor),))


PRESETS = {
    "int8": _everywhere(FORMS["int8"].spec(0), Floor(0.99995, FORMS["int8"].spec(64))),
    **{f"int8-g{group}": _everywhere(FORMS["int8"].spec(group)) for group in (32, 64, 128)},
    **{label: _everywhere(FORMS[label].preset()) for label in ("int4", "int4-legacy", "int3")},
    "int4-g64": _everywhere(FORMS["int4"].preset(DType.F16)),
}
"""What the quantizations of `npy_options.QUANTS` are."""
_SCALED = [(form, scale) for form in FORMS.values() for scale in form.usual]
INT4 = ("int4", "int4-legacy")
CORRECTION = {"left": "__lra", "right": "__lrb"}
DENSE = ("__ptb", "__pt")
SHAPE = "__shape"
PICKLE = "__pt_df11"
SUFFIXES = (
    *(suffix for form in FORMS.values() for suffix in form.files.values()), *CORRECTION.values(), *DENSE, SHAPE, PICKLE
)  # fmt: skip
_FREE = ("group", "scale")


def _carried(form: Form) -> Carried:
    fixed: dict[str, tuple[Param, ...]] = {key: (value,) for key, value in form.params.items() if key not in _FREE}
    return Carried(form.codec, fixed | ({"scale": tuple(s.label for s in form.usual)} if "scale" in form.params else {}))


CARRIED = (
    Carried("raw", dtypes=(*DESCRS.values(), DType.BF16)),
    *map(_carried, FORMS.values()),
    Carried("corrected", {"inner": (_carried(FORMS["int3"]),), "outliers": (0,), "factor": ("f32",)}),
)
_MAX_GROUP = 2**31 - 1
_POWERS = (8, 16, 32, 64, 128, 256, 512, 1024)


# Codec → arrays ---------------------------------------------------------------------------------


def arrange(spec: TensorSpec, codec: CodecSpec) -> dict[str, Stored] | None:
    """The arrays of a tensor by part, or None if there is no form for it."""
    if codec == RAW:
        return _dense(spec)
    if spec.dtype is not DType.F32 or not spec.size:
        return None
    inner, rank = _uncorrected(codec)
    group = inner.params.get("group")
    if type(group) is not int or not 0 <= group <= _MAX_GROUP:
        return None
    for form, scale in _SCALED:
        if inner == form.spec(group, scale) and (form.flat or not rank):
            stored = _flat(form, spec, group) if form.flat else _by_rows(form, spec, group, scale)
            return stored if not rank or stored is None else _corrected(stored, spec, rank)
    return None


def _dense(spec: TensorSpec) -> dict[str, Stored] | None:
    dtype = DType.U16 if spec.dtype is DType.BF16 else spec.dtype
    if dtype not in DESCRS.values():
        return None
    suffix = "__ptb" if spec.dtype is DType.BF16 else "__pt"
    return {"data": Stored(suffix, TensorSpec(spec.shape, dtype), spec, (spec.rows, spec.columns))}


def _by_rows(form: Form, spec: TensorSpec, group: int, scale: DType) -> dict[str, Stored] | None:
    rows, columns = spec.rows, spec.columns
    groups = -(-columns // (group or columns))
    if min(_group(form.usual[scale], columns, groups) or columns, columns) != min(group or columns, columns):
        return None  # a reader would find another length
    width, lead = -(-columns * form.bits // 8), spec.shape[:-1]
    beside = Stored("", TensorSpec((rows, groups), scale), TensorSpec((*lead, groups), scale))
    if groups == 1 and form is FORMS["int8"]:
        beside = beside._replace(array=TensorSpec((rows,), scale), also=(rows, 1))
    codes = Stored("", TensorSpec((rows, width), form.stored), TensorSpec((*lead, width), DType.U8))
    return {part: (codes if part == "codes" else beside)._replace(suffix=suffix) for part, suffix in form.files.items()}


def _flat(form: Form, spec: TensorSpec, group: int) -> dict[str, Stored] | None:
    """Groups over the whole tensor, eight codes to `bits` bytes; by rows to the codec where rows are whole groups."""
    columns, lead = (spec.columns, spec.shape[:-1]) if _in_rows(form, spec, group) else (spec.size, ())
    groups = -(-spec.size // (group or spec.size))
    if min(_group(form.usual[DType.F32], spec.size, groups) or spec.size, spec.size) != min(group or spec.size, spec.size):
        return None
    eights = TensorSpec((-(-spec.size // 8) * form.bits,), form.stored)
    codes = Stored("", eights, TensorSpec((*lead, -(-columns * form.bits // 8)), DType.U8))
    beside = Stored("", TensorSpec((groups,), DType.F32), TensorSpec((*lead, -(-columns // (group or columns))), DType.F32))
    return {part: (codes if part == "codes" else beside)._replace(suffix=suffix) for part, suffix in form.files.items()}


def _in_rows(form: Form, spec: TensorSpec, group: int) -> bool:
    return group > 0 and spec.columns % group == 0 and spec.columns * form.bits % 8 == 0


def _corrected(inner: dict[str, Stored], spec: TensorSpec, rank: int) -> dict[str, Stored]:
    parts = {f"inner.{part}": stored for part, stored in inner.items()}
    for part, shape in (("left", (spec.rows, rank)), ("right", (rank, spec.columns))):
        parts[part] = Stored(CORRECTION[part], TensorSpec(shape, DType.F32), TensorSpec(shape, DType.F32))
    return parts


def _correction(inner: CodecSpec, rank: int) -> CodecSpec:
    return CodecSpec("corrected", {"inner": inner, "rank": rank, "outliers": 0, "factor": "f32"})


def _uncorrected(codec: CodecSpec) -> tuple[CodecSpec, int]:
    """The codec a low rank is added to, and that rank; 0 for one that has none."""
    inner, rank = codec.params.get("inner"), codec.params.get("rank")
    if isinstance(inner, CodecSpec) and type(rank) is int and rank > 0 and codec == _correction(inner, rank):
        return inner, rank
    return codec, 0


def _group(usual: int, columns: int, groups: int) -> int | None:
    """How many columns share a scale, 0 for all of them; None if the shapes do not say."""
    if groups == 1:
        return 0
    if groups < 1 or groups > columns:
        return None
    even = [columns // groups] if columns % groups == 0 else []
    lengths: list[int] = [usual, *even, *_POWERS]
    return next((length for length in lengths if -(-columns // length) == groups), None)


def form_name(entry: Entry) -> str:
    """What a tensor's form is called: int8, int4, int3, nf4; nothing if it is dense."""
    stored = {extent.file.rpartition(SHAPE[:2])[2].partition(".")[0] for extent in entry.extents.values()}
    found = (label for label, form in FORMS.items() if form.files["codes"].removeprefix(SHAPE[:2]) in stored)
    return next(found, "").partition("-")[0]


# Arrays → codec ---------------------------------------------------------------------------------


def identify(label: str, shape: tuple[int, ...], arrays: Mapping[str, TensorSpec]) -> tuple[TensorSpec, CodecSpec]:
    """What a tensor of a form is, from its arrays by suffix; the caller holds them against `arrange`."""
    if label in DENSE:
        dtype = arrays[label].dtype
        return TensorSpec(shape, DType.BF16 if label == "__ptb" else dtype), RAW
    form, spec = FORMS[label], TensorSpec(shape, DType.F32)
    codes, scale = (arrays[form.files[part]] for part in ("codes", "scale"))
    if not spec.size:
        raise UnsupportedError(f"an empty tensor cannot be quantized, but it has {form.files['codes']}", code="E_SPEC")
    stored = scale.dtype if scale.dtype in form.usual else DType.F32
    if form.flat:
        found = _group(form.usual[stored], spec.size, scale.size)
    else:
        found = _group(form.usual[stored], spec.columns, scale.shape[1] if len(scale.shape) == 2 else 1)
    if found is None or found > _MAX_GROUP:
        raise MalformedError(f"the group length of {spec} cannot be found from {codes} and {scale}", code="E_GROUP")
    codec = form.spec(found, stored)
    if CORRECTION["left"] in arrays:
        rank = arrays[CORRECTION["left"]].shape[-1:] or (0,)
        codec = _correction(codec, rank[0])
    return spec, codec
