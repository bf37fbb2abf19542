"""Laws every codec obeys. A codec joins by being in CODECS; parameters worth trying are in `every_codec`.

A law that speaks of something which need not happen says that it did (`settle`); exemptions are stated in `every_codec`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.codecs import Codec, Grid, codec_for, f8q8, hqq, take_rows
from flyweight.codecs import codec as base
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.tensor import CodecSpec, EncodedTensor, TensorSpec, has_rows, rows_encode_alone
from flyweight.kernels import KERNELS
from flyweight.quantizers import QUANTIZERS
from support.every_codec import ENCODERS, INSTANCES, by_name, dtypes, named, noise, plausible, same_bits, settle, weights

GRIDS = [codec for codec in INSTANCES if codec.grid_spec]
SHAPES = [(3, 512), (2, 3, 256), (256,), (0, 256), (4, 0)]


def specs(codec: Codec) -> list[TensorSpec]:
    """The tensors to try: exact codecs keep the element types they know, the others decode to f32."""
    return [TensorSpec(shape, dtype) for shape in shapes(codec) for dtype in (dtypes(codec) if codec.exact else (DType.F32,))]


def shapes(codec: Codec) -> list[tuple[int, ...]]:
    """The shapes to try. Blocks of a matrix need not divide the axes of a tensor of higher rank: that may be refused."""
    return [shape for shape in SHAPES if len(shape) < 3 or is_stored(codec, shape)]


def is_stored(codec: Codec, shape: tuple[int, ...]) -> bool:
    with suppress(UnsupportedError):
        codec.layout(TensorSpec(shape, DType.F32))
        return True
    return False


@named(INSTANCES)
def test_its_spec_names_it(codec: Codec) -> None:
    assert codec_for(codec.spec) == codec
    assert hash(codec_for(codec.spec)) == hash(codec)
    assert {field.name for field in fields(codec)} == set(codec.spec.params)


@named(INSTANCES)
def test_unknown_parameters_are_malformed(codec: Codec) -> None:
    with pytest.raises(MalformedError) as caught:
        codec_for(CodecSpec(codec.name, {**codec.spec.params, "surprise": 1}))
    assert caught.value.code == "E_CODEC_PARAMS"


@named(INSTANCES)
def test_the_layout_depends_on_nothing_but_the_spec(codec: Codec) -> None:
    for spec in specs(codec):
        layout = codec.layout(spec)
        assert layout == codec_for(codec.spec).layout(spec)
        assert all(isinstance(dim, int) and dim >= 0 for part in layout.values() for dim in part.shape)


@named(ENCODERS)
def test_encode_fills_the_layout(codec: Codec) -> None:
    for shape in shapes(codec):
        spec = TensorSpec(shape, DType.F32)
        fitted = codec.fit(spec, weights(spec))
        assert codec_for(fitted.spec) == fitted == fitted.fit(spec, weights(spec))
        parts, layout = fitted.encode(spec, weights(spec)), fitted.layout(spec)
        assert list(parts) == list(layout)
        for name, part in layout.items():
            assert parts[name].shape == part.shape
            assert parts[name].dtype == part.dtype.storage
            assert parts[name].nbytes == part.nbytes
            assert parts[name].flags.c_contiguous
        assert fitted.check_values(spec, parts) is None


@named([codec for codec in ENCODERS if codec.needs_fit])
def test_encoding_what_it_was_not_fitted_to_fills_the_layout_or_is_refused(codec: Codec) -> None:
    spec = TensorSpec((3, 512), DType.F32)
    fitted = codec.fit(spec, weights(spec, 1))
    with suppress(UnsupportedError):
        parts = fitted.encode(spec, weights(spec, 2))
        assert {name: part.shape for name, part in parts.items()} == {n: p.shape for n, p in fitted.layout(spec).items()}


@named(ENCODERS)
def test_encoding_twice_gives_the_same_bytes(codec: Codec) -> None:
    spec = TensorSpec((3, 512), DType.F32)
    first, second = (codec.fit(spec, weights(spec)).encode(spec, weights(spec)) for _ in range(2))
    assert all(same_bits(first[name], second[name]) for name in first)


@by_name([codec for codec in ENCODERS if not codec.exact])
def test_bf16_is_encoded_as_the_same_values_in_f32(codecs: list[Codec]) -> None:
    """By every quantizer that a codec takes: conversions hand bf16 on as it is stored."""
    spec = TensorSpec((2, 256), DType.F32)
    narrow = weights(spec).astype(DType.BF16.numpy)
    wide = narrow.astype(np.float32)
    applied = False
    for codec, quantizer in product(codecs, QUANTIZERS):
        fitted = codec.fit(spec, wide)
        try:
            wanted = quantizer(wide, fitted, spec)
        except UnsupportedError:
            continue
        applied, found = True, quantizer(narrow, fitted, spec)
        assert all(same_bits(found[name], wanted[name]) for name in wanted), quantizer.name
    settle("bf16 is encoded as the same values in f32", codecs[0].name, applied)


@named(INSTANCES)
def test_decode_has_the_shape_and_type_of_the_spec(codec: Codec) -> None:
    for spec in specs(codec):
        fitted, parts = plausible(codec, spec, 1)
        if spec.dtype is DType.BOOL:
            parts["data"] = parts["data"] & 1
        decoded = fitted.decode(spec, parts)
        assert decoded.shape == spec.shape
        assert decoded.dtype == spec.dtype.numpy
        out = np.zeros(spec.shape, spec.dtype.numpy)
        assert fitted.decode(spec, parts, out) is out
        assert same_bits(out, decoded)


@named(INSTANCES)
def test_runs_are_the_values_in_order(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few values a codec decodes at a time."""
    for module in (base, f8q8, hqq):
        monkeypatch.setattr(module, "_RUN", 100)
    for spec in specs(codec):
        if spec.dtype.bits % 8 or spec.dtype is DType.BOOL:
            continue
        fitted, parts = plausible(codec, spec, 2)
        runs = [*fitted.decoded_runs(spec, parts)]
        assert all(run.ndim == 1 for run in runs)
        whole = np.concatenate(runs) if runs else np.empty(0, spec.dtype.numpy)
        assert same_bits(whole, fitted.decode(spec, parts).reshape(-1)), spec


@by_name(INSTANCES)
def test_an_empty_tensor_costs_nothing_however_long_its_other_axes(
    codecs: list[Codec], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "run", no_kernel)
    applied = False
    for codec, shape in product(codecs, [(0, 2**40), (2**40, 0), (0, 2**20, 2**20), (2**20, 0, 2**20)]):
        spec = TensorSpec(shape, DType.F32)
        try:
            layout = codec.layout(spec)
        except UnsupportedError:
            continue
        if sum(part.nbytes for part in layout.values()) < 2**20:  # more cannot be claimed without being stored
            parts = {name: np.zeros(part.shape, part.dtype.storage) for name, part in layout.items()}
            assert codec.decode(spec, parts).shape == shape
            assert sum(run.size for run in codec.decoded_runs(spec, parts)) == 0
            codec.check_values(spec, parts)
            applied = True
    settle("empty tensors", codecs[0].name, applied)


def no_kernel(*_arguments: object) -> None:
    pytest.fail("a kernel is called for a tensor of no elements")


@named([codec for codec in INSTANCES if codec.rounds])
def test_what_rounds_on_its_way_gives_the_nearest(codec: Codec) -> None:
    for seed, spec in enumerate(specs(codec)):
        fitted, parts = plausible(codec, spec, seed)
        out = np.zeros(spec.shape, DType.BF16.numpy)
        assert fitted.decode(spec, parts, out) is out
        with np.errstate(over="ignore", invalid="ignore"):
            assert same_bits(out, fitted.decode(spec, parts).astype(DType.BF16.numpy))


@named([codec for codec in ENCODERS if codec.exact])
def test_exact_codecs_return_every_bit(codec: Codec) -> None:
    """NaN payloads and the sign of zero included."""
    for spec in specs(codec):
        if spec.dtype.bits % 8 or spec.dtype is DType.BOOL:
            continue
        values = np.frombuffer(np.random.default_rng(2).bytes(spec.nbytes), spec.dtype.numpy).reshape(spec.shape)
        fitted = codec.fit(spec, values)
        assert same_bits(fitted.decode(spec, fitted.encode(spec, values)), values)


@by_name([codec for codec in ENCODERS if not codec.exact])
def test_error_does_not_grow_with_generations(codecs: list[Codec]) -> None:
    """Encoding what was decoded moves it by no more than encoding the weights did, and in the end by rounding alone.

    Bit-for-bit idempotence would be too much to ask. Once all values lie on a grid of codes 0 … N, the ends of the next grid
    are values of this one: with a step s and an offset b they err by 2^-23 · (N·s + |b|), the two roundings of decoding, and
    so does every value on the next. Choosing codes adds as much, decoding again once more; N·s is at most twice and |b| once
    the greatest magnitude M that shares the scale: together less than 3 · 3 · 2^-23 · M + M · 2^-22 < 2^-19 · M.
    """
    settled = True
    for codec, seed in product(codecs, range(3)):
        spec = TensorSpec((8, 512), DType.F32)
        generations = [weights(spec, seed)]
        for _ in range(4):
            fitted = codec.fit(spec, generations[-1])
            generations.append(fitted.decode(spec, fitted.encode(spec, generations[-1])))
        moved = [float(np.square(after - before, dtype=np.float64).sum()) for before, after in pairwise(generations)]
        assert max(moved[1:]) <= moved[0], codec.spec
        sharing = -1 if has_rows(spec, codec.layout(spec)) else None
        most = np.abs(generations[-1]).max(axis=sharing, keepdims=True)
        settled &= bool((np.abs(generations[-1] - generations[-2]) <= 2.0**-19 * most).all())
    settle("generations settle", codecs[0].name, settled)


@named(INSTANCES)
@given(seed=st.integers(0, 2**32 - 1), columns=st.sampled_from([256, 512]))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_any_bytes_decode_or_are_refused(codec: Codec, seed: int, columns: int) -> None:
    """Never another exception, never a warning (the suite turns warnings into errors)."""
    known = dtypes(codec)
    spec = TensorSpec((2, columns), known[seed % len(known)] if codec.exact else DType.F32)
    fitted = codec.fit(spec, weights(spec).astype(spec.dtype.numpy)) if codec.needs_fit else codec
    parts = noise(fitted, spec, seed)
    complaint = fitted.check_values(spec, parts)
    assert complaint is None or isinstance(complaint, str)
    try:
        fitted.decode(spec, parts)
    except FlyweightError:
        assert codec.exact or not codec.decodes_any_bytes


@named([codec for codec in INSTANCES if not codec.decodes_any_bytes])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_few_wrong_bytes_decode_or_are_refused(codec: Codec, seed: int) -> None:
    """Parts that must agree with one another, and do not quite."""
    rng = np.random.default_rng(seed)
    spec = TensorSpec((3, 200 if codec.exact else 256), DType.F32)
    fitted, parts = plausible(codec, spec, seed % 5)
    parts = {name: part.copy() for name, part in parts.items()}
    name = rng.choice([name for name, part in parts.items() if part.size])
    raw = parts[name].reshape(-1).view(np.uint8)
    raw[rng.integers(0, raw.size, 3)] = rng.integers(0, 256, 3)
    fitted.check_values(spec, parts)
    with suppress(MalformedError):
        assert fitted.decode(spec, parts).shape == spec.shape


@by_name(INSTANCES)
def test_parts_that_decode_to_nan_are_complained_about(codecs: list[Codec]) -> None:
    applied = False
    for codec, seed in product(codecs, range(3)):
        spec = TensorSpec((4, 512), DType.F32)
        fitted, parts = plausible(codec, spec, seed)
        for poisoned in (parts, *with_nan(parts)):
            with suppress(MalformedError):
                if np.isnan(fitted.decode(spec, poisoned)).any():
                    assert fitted.check_values(spec, poisoned) is not None, codec.spec
                    applied = True
    settle("NaN", codecs[0].name, applied)


def with_nan(parts: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Parts with ones in all bits of one of their first four words, of the last, or of all: NaN in every float type."""
    for name, part in parts.items():
        for place in (*(slice(at, at + 4) for at in (0, 4, 8, 12)), slice(-4, None), slice(None)):
            changed = part.copy()
            changed.reshape(-1).view(np.uint8)[place] = 0xFF
            yield parts | {name: changed}


@by_name(INSTANCES)
def test_rows_decode_alone(codecs: list[Codec]) -> None:
    applied = False
    for codec, shape in product(codecs, ((6, 512), (2, 3, 256))):
        spec = TensorSpec(shape, DType.F32)
        if not is_stored(codec, shape) or not has_rows(spec, codec.layout(spec)):
            continue
        tensor = EncodedTensor(spec, codec.spec, plausible(codec, spec, 3)[1])
        whole = codec.decode(spec, tensor.parts).reshape(6, -1)
        for rows in (slice(0, 1), slice(2, 5), slice(6, 6), np.array([4, 0, 3])):
            slab = take_rows(tensor, rows)
            assert same_bits(codec.decode(slab.spec, slab.parts), np.ascontiguousarray(whole[rows])), codec.spec
        applied = True
    settle("rows stand alone", codecs[0].name, applied)


@by_name(ENCODERS)
def test_rows_encode_alone(codecs: list[Codec]) -> None:
    spec, applied = TensorSpec((6, 512), DType.F32), False
    values = weights(spec)
    for codec in codecs:
        if not rows_encode_alone(spec, codec.layout(spec)):
            continue
        whole = codec.encode(spec, values)
        for start, stop in ((0, 1), (2, 6)):
            slab = codec.encode(TensorSpec((stop - start, 512), DType.F32), values[start:stop])
            assert all(same_bits(slab[name], np.ascontiguousarray(whole[name][start:stop])) for name in whole), codec.spec
        applied = True
    settle("rows encode alone", codecs[0].name, applied)


@named([codec for codec in GRIDS if codec.encodes])
def test_a_grid_is_the_tensor(codec: Codec) -> None:
    spec = TensorSpec((4, 512), DType.F32)
    parts = codec.encode(spec, weights(spec))
    grid = codec.grid(spec, parts)
    assert codec.grid_spec is not None
    assert grid.bits == codec.grid_spec.bits
    assert grid.group == (codec.grid_spec.group or spec.columns)
    assert int(grid.codes.max()) < 2**grid.bits
    scale, bias = (np.repeat(part, grid.group, axis=1)[:, : spec.columns] for part in (grid.scale, grid.bias))
    decoded = codec.decode(spec, parts)
    assert np.array_equal(scale * grid.codes + bias, decoded)
    assert np.array_equal(codec.decode(spec, codec.from_grid(spec, grid)), decoded)


@named([codec for codec in GRIDS if codec.encodes])
def test_every_grid_fits_an_affine_codec_of_its_own_measure(codec: Codec) -> None:
    """What the planner relies on: bits, group and scale type say enough to repack without loss."""
    spec = TensorSpec((4, 512), DType.F32)
    parts = codec.encode(spec, weights(spec))
    affine = codec_for(codec.same_grid[0])
    moved = affine.from_grid(spec, codec.grid(spec, parts))
    assert np.array_equal(affine.decode(spec, moved), codec.decode(spec, parts))


@named([codec for codec in INSTANCES if type(codec).grid is Codec.grid])
def test_a_codec_without_a_grid_refuses_both_ways(codec: Codec) -> None:
    spec = TensorSpec((2, 256), DType.F32)
    assert codec.grid_spec is None
    assert codec.same_grid == ()
    fitted, parts = plausible(codec, spec, 4)
    for refused in (lambda: fitted.grid(spec, parts), lambda: fitted.from_grid(spec, even_grid(spec, 1, 256))):
        with pytest.raises(UnsupportedError) as caught:
            refused()
        assert caught.value.code == "E_NO_GRID"


@by_name([codec for codec in INSTANCES if type(codec).grid is not Codec.grid and not codec.grid_spec])
def test_a_codec_that_promises_no_grid_gives_the_right_one_or_none(codecs: list[Codec]) -> None:
    """A grid of small whole numbers is exact in any arithmetic, so that one at least is found."""
    spec, found = TensorSpec((2, 192), DType.F32), False
    for codec in codecs:
        candidates = [plausible(codec, spec, 4)[1]]
        for bits, group in ((2, 32), (3, 48), (4, 48), (5, 192)):
            with refused("E_GRID", "E_NO_GRID"):
                candidates.append(dict(codec.from_grid(spec, even_grid(spec, bits, group))))
        for parts in candidates:
            with refused("E_GRID", "E_NO_GRID"):
                back = codec.from_grid(spec, codec.grid(spec, parts))
                assert np.array_equal(codec.decode(spec, back), codec.decode(spec, parts), equal_nan=True), codec.spec
                found = True
    settle("some grids are found", codecs[0].name, found)


@named([codec for codec in INSTANCES if codec.product_codec(TensorSpec((4, 512), DType.F32)) is not None])
def test_the_codec_with_a_product_has_the_same_codes(codec: Codec) -> None:
    """The values differ by four roundings to f32 at most: of s · q, of the offset, of their sum, and of s · (q − zero)."""
    spec = TensorSpec((4, 512), DType.F32)
    parts = codec.encode(spec, weights(spec))
    target = codec.product_codec(spec)
    assert target is not None
    other, grid = codec_for(target), codec.grid(spec, parts)
    moved = other.from_grid(spec, grid)
    assert codec.product(spec, parts) is None
    assert other.product(spec, moved) is not None
    largest = np.repeat(np.abs(grid.scale) * 2.0**grid.bits, grid.group, axis=1)
    assert (np.abs(other.decode(spec, moved) - codec.decode(spec, parts)) <= 4 * 2.0**-24 * largest).all()


@contextmanager
def refused(*codes: str) -> Iterator[None]:
    try:
        yield
    except UnsupportedError as refusal:
        if refusal.code not in codes:
            raise


def even_grid(spec: TensorSpec, bits: int, group: int) -> Grid:
    codes = np.random.default_rng(8).integers(0, 1 << bits, (spec.rows, spec.columns)).astype(np.uint8)
    scale = np.full((spec.rows, spec.columns // group), 0.5, np.float32)
    return Grid(bits, group, codes, scale, scale * np.float32(-(1 << bits - 1)))


@named([codec for codec in INSTANCES if codec.grid_spec])
def test_what_holds_a_grid_holds_any_of_its_kind(codec: Codec) -> None:
    """What the planner relies on when a codec is asked for: scales and offsets of the type that is named, whatever they are."""
    spec = TensorSpec((4, 512), DType.F32)
    kind = codec.grid_spec
    assert kind is not None
    if not codec.holds_grid(kind, 512):
        assert codec.name in ("affine", "q4_0", "q5_0", "q8_0")  # centred grids: an offset has no place
        return
    rng, group = np.random.default_rng(9), kind.group or 512
    scale, bias = (rng.standard_normal((4, -(-512 // group))).astype(DType.parse(kind.scale).numpy) for _ in range(2))
    codes = rng.integers(0, 1 << kind.bits, (4, 512)).astype(np.uint8)
    grid = Grid(kind.bits, group, codes, scale.astype(np.float32), bias.astype(np.float32))
    step, offset = (np.repeat(part, group, axis=1)[:, :512] for part in (grid.scale, grid.bias))
    assert np.array_equal(codec.decode(spec, codec.from_grid(spec, grid)), step * codes + offset)


@named(INSTANCES)
def test_parts_of_another_layout_are_refused(codec: Codec) -> None:
    spec = TensorSpec((3, 256), DType.F32)
    layout = dict(codec.layout(spec))
    codec.check_layout(spec, layout)
    for name, part in layout.items():
        wrong = [
            {other: kept for other, kept in layout.items() if other != name},
            layout | {name: TensorSpec((1, *part.shape), part.dtype)},
            layout | {name: TensorSpec(part.shape, DType.C64)},
        ]
        if part.shape:
            wrong += [
                layout | {name: TensorSpec((*part.shape[:-1], part.shape[-1] + 1), part.dtype)},
                layout | {name: TensorSpec((part.shape[0] + 1, *part.shape[1:]), part.dtype)},
                layout | {name: TensorSpec(part.shape[1:], part.dtype)},
            ]
        for parts in wrong:
            with pytest.raises(MalformedError) as caught:
                codec.check_layout(spec, parts)
            assert caught.value.code in ("E_PARTS", "E_PART_SHAPE")
    with pytest.raises(MalformedError):
        codec.check_layout(spec, layout | {"surprise": spec})


@named([codec for codec in ENCODERS if not codec.exact])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(codec: Codec, bad: float) -> None:
    spec = TensorSpec((2, 256), DType.F32)
    values = weights(spec)
    values[1, 7] = bad
    with pytest.raises(UnsupportedError):
        codec.encode(spec, values)


@named(ENCODERS)
def test_encode_takes_any_float_type_and_any_memory_order(codec: Codec) -> None:
    spec = TensorSpec((4, 256), DType.F32)
    halves = weights(spec).astype(np.float16)
    codec = codec.fit(spec, halves)
    expected = codec.encode(spec, halves.astype(np.float32))
    for given_values in (halves, np.asfortranarray(halves), halves.astype(np.float64)):
        made = codec.encode(spec, given_values)
        assert all(same_bits(made[name], expected[name]) for name in expected)
