"""The definition of the encoders that search for scales: the K types, iq4_xs and iq4_nl.

A block of 256 has G groups of 256 / G elements, a scale per group and a scale of scales, d. Per group the values are

    q3_k q6_k          w = (d · step) · q
    iq4_xs             w = (d · step) · level[code]
    q2_k q4_k q5_k     w = (d · sc) · q − dmin · mn

(iq4_nl and q8_k have one scale per block, w = d · level[code] and w = d · q: step 1 finds it, a lane is every eighth element)
and the encoder looks for the d, steps and codes of least Σ weight · (x − w)²:

 1. For each group alone: round the values on some trial grids, for each the best scale by least squares; keep the best.
    Then twice more (types with minimums: once), on the grid just found.
 2. For some trial d: for each group the best of the three steps around the ratio.
 3. The best d for the codes found, by least squares; step 2 around it, and the codes.

Types with minimums keep the codes of step 1 in step 2. The loss is then a quadratic of scale and minimum: a trial costs no
rounding of values, and the best minimum of a scale is known. Only the three scales of step 3 round the values again.

Block by block x is first scaled by a power of two to a peak in [1, 2), so that no sum leaves the range of f32. Arrays are
(elements of a group, blocks, groups): sums run over the first axis in order, sums over groups by halves (`_over_groups`),
so that the order, and with it every bit, is the same on every machine. docs/formats/ggml-blocks.md has the error bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from flyweight.kernels.blocks.fields import FORMS, Fields
from flyweight.kernels.blocks.layout import F16_NAN, IQ4_VALUES
from flyweight.kernels.checks import Array

F = np.float32

TINY, HUGE = F(2.0**-40), F(2.0**40)
"""A block with a smaller peak is zeros: no f16 scale is so small. One with a larger peak does not fit any."""

_ROUND = F(1.5 * 2**23)  # x + this − this is x rounded to nearest even, for |x| < 2^22


# Sums, quotients, rounding --------------------------------------------------------------------


def _sum(terms: Array) -> Array:
    """Over the elements of a group, in order."""
    total: Array = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _over_groups(terms: Array) -> Array:
    """(n, groups) → (n, 1), by halves."""
    while terms.shape[1] > 1:
        half = terms.shape[1] // 2
        terms = terms[:, :half] + terms[:, half:]
    return terms


def _ratio(a: Array, b: Array) -> Array:
    """a / b; 0 unless b is positive."""
    return np.where(b > 0, a / np.where(b > 0, b, F(1)), F(0))


def _inverse(a: Array) -> Array:
    """1 / a; 0 for 0."""
    return np.where(a != 0, F(1) / np.where(a != 0, a, F(1)), F(0))


def _nearest(x: Array, low: int, high: int) -> Array:
    """Rounded to nearest even and held within low..high; NaN gives low."""
    held = np.where(x > F(low), np.where(x < F(high), x, F(high)), F(low))
    rounded: Array = (held + _ROUND) - _ROUND
    return rounded


def _none_yet(like: Array, count: int) -> tuple[Array, ...]:
    """An infinite loss, and zeros for what belongs to it."""
    return np.full_like(like, np.inf), *(np.zeros_like(like) for _ in range(count - 1))


def _better(best: tuple[Array, ...], offered: tuple[Array, ...]) -> tuple[Array, ...]:
    """Of two choices, loss first, that with less of it, group by group; the first of equals."""
    less = offered[0] < best[0]
    return tuple(np.where(less, new, old) for new, old in zip(offered, best, strict=True))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Values scaled by 1 / unit, a power of two per block."""

    x: Array  # (elements, n, groups)
    weight: Array  # (elements, n or 1, groups)
    unit: Array  # (n, 1)
    unfit: Array  # (n,) NaN, infinite or too large

    @classmethod
    def of(cls, values: Array, weights: Array, groups: int, interleaved: bool = False) -> _Blocks:
        """Groups of neighbours; or, interleaved, of every `groups`-th element."""
        n, size = values.shape
        peak = np.abs(values).max(axis=1, keepdims=True)
        unfit = ~(peak < HUGE)
        ordinary = ~unfit & (peak >= TINY)
        exponent = np.where(ordinary, peak, F(1)).view(np.uint32) & np.uint32(0x7F800000)
        unit = exponent.view(np.float32)
        scaled = np.where(ordinary, values, F(0)) * (F(1) / unit)
        shape, order = ((size // groups, groups), (1, 0, 2)) if interleaved else ((groups, size // groups), (2, 0, 1))
        lanes = [
            np.ascontiguousarray(array.reshape(len(array), *shape).transpose(order))
            for array in (scaled, weights if len(weights) == 1 else weights[np.arange(n) % max(len(weights), 1)])
        ]
        return cls(lanes[0], lanes[1], unit, unfit[:, 0])

    def narrow(self, scale: Array) -> Array:
        """A scale as f16 will hold it: at most 65504, and zero only if it is zero."""
        with np.errstate(over="ignore"):
            wide = np.minimum(np.maximum(scale * self.unit, F(-65504)), F(65504))
            half = wide.astype(np.float16).astype(np.float32)
        least = np.where(scale > 0, F(2.0**-24), np.where(scale < 0, F(-(2.0**-24)), F(0)))
        return np.where(half != 0, half, least) * (F(1) / self.unit)

    def overflow(self, scale: Array) -> None:
        """Blocks whose scale is beyond f16 do not fit."""
        np.logical_or(self.unfit, (np.abs(scale * self.unit) >= F(65520))[:, 0], out=self.unfit)


# w = (d · step) · q ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Centred:
    """A type with values q from low to high, steps from least to greatest."""

    low: int
    high: int
    least: int
    greatest: int
    trials: tuple[float, ...]
    """Where the largest magnitude of a group is tried, in steps of the grid, on either side of zero."""
    ratios: tuple[float, ...]
    """Which step the largest scale of a block is tried as."""

    def value(self, x: Array) -> Array:
        """The nearest q."""
        return _nearest(x, self.low, self.high)

    def code(self, x: Array) -> Array:
        """The same as a code from 0 up."""
        return self.value(x) - F(self.low)

    def fit(self, blocks: _Blocks, inverse: Array) -> tuple[Array, Array]:
        """Σ weight · x · q and Σ weight · q² for codes on the grid with this inverse scale."""
        q = self.value(blocks.x * inverse)
        weighted = blocks.weight * q
        return _sum(weighted * blocks.x), _sum(weighted * q)

    def scales(self, blocks: _Blocks) -> Array:
        """Step 1."""
        reach = _inverse(np.abs(blocks.x).max(axis=0))
        best, scale = np.zeros_like(reach), np.zeros_like(reach)

        def offer(inverse: Array) -> None:
            nonlocal best, scale
            xq, qq = self.fit(blocks, inverse)
            found = _ratio(xq, qq)
            gain = found * xq
            better = gain > best
            best, scale = np.where(better, gain, best), np.where(better, found, scale)

        for trial in self.trials:
            offer(reach * F(trial))
            offer(reach * F(-trial))
        for _ in range(2):
            offer(_inverse(scale))
        return scale

    def steps(self, blocks: _Blocks, scale: Array, d: Array) -> tuple[Array, ...]:
        """Step 2: of the steps around scale / d the best; with it the loss (less Σ weight · x²) and both sums."""
        middle = _nearest(scale * _inverse(d), self.least, self.greatest)
        best = _none_yet(scale, 4)
        for move in (0, -1, 1):
            step = np.minimum(np.maximum(middle + F(move), F(self.least)), F(self.greatest))
            v = d * step
            xq, qq = self.fit(blocks, _inverse(v))
            loss = v * (v * qq - (xq + xq))
            best = _better(best, (loss, step, xq, qq))
        return best

    def encode(self, blocks: _Blocks) -> tuple[Array, Array, Array]:
        """d as f16 will hold it, (n, 1); steps, (n, groups); codes from 0, (n, 256)."""
        scale = self.scales(blocks)
        largest = np.take_along_axis(scale, np.abs(scale).argmax(axis=1, keepdims=True), axis=1)
        least, d = np.full_like(largest, np.inf), np.zeros_like(largest)
        for ratio in self.ratios:
            tried = blocks.narrow(largest * F(-1 / ratio))
            loss = _over_groups(self.steps(blocks, scale, tried)[0])
            better = loss < least
            least, d = np.where(better, loss, least), np.where(better, tried, d)
        blocks.overflow(largest * F(-1 / self.ratios[0]))
        _, step, xq, qq = self.steps(blocks, scale, d)
        refit = _ratio(_over_groups(step * xq), _over_groups(step * step * qq))
        d = blocks.narrow(np.where(refit != 0, refit, d))
        _, step, _, _ = self.steps(blocks, scale, d)
        return d, step, _in_order(self.code(blocks.x * _inverse(d * step)))


@dataclass(frozen=True, slots=True)
class _Levels(_Centred):
    """q is one of the sixteen levels of iq4_xs, the lower of two equally near."""

    def value(self, x: Array) -> Array:
        found: Array = IQ4_VALUES[self.code(x)]
        return found

    def code(self, x: Array) -> Array:
        return np.searchsorted((IQ4_VALUES[:-1] + IQ4_VALUES[1:]) * F(0.5), x)


# w = (d · sc) · q − dmin · mn -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FromMinimum:
    """A type with codes from 0 to top, scales and minimums from 0 to greatest."""

    top: int
    greatest: int
    trials: tuple[tuple[float, float], ...]
    """How many steps of the grid the range of a group is tried as, and how many of them above its low end the grid begins."""
    ratios: tuple[float, ...]
    """Which step the largest scale, and which the largest minimum, of a block is tried as."""

    def fit(self, blocks: _Blocks, inverse: Array, low: Array) -> tuple[Array, Array, Array]:
        """Σ weight · q, Σ weight · q² and Σ weight · x · q for codes on the grid from `low`."""
        q = _nearest((blocks.x - low) * inverse, 0, self.top)
        weighted = blocks.weight * q
        return _sum(weighted), _sum(weighted * q), _sum(weighted * blocks.x)

    def scales(self, blocks: _Blocks, w: Array, wx: Array) -> tuple[Array, ...]:
        """Step 1: scale and minimum (the grid starts at −minimum) of every group, and the three sums of its codes."""
        start = np.minimum(blocks.x.min(axis=0), F(0))
        extent = blocks.x.max(axis=0) - start
        reach = _inverse(extent)
        best = _none_yet(start, 6)

        def offer(inverse: Array, low: Array) -> None:
            nonlocal best
            q, qq, xq = self.fit(blocks, inverse, low)
            s = _ratio(w * xq - wx * q, w * qq - q * q)
            m = _ratio(s * q - wx, w)
            above = ~(m > 0)
            s, m = np.where(above, _ratio(xq, qq), s), np.where(above, F(0), m)
            best = _better(best, (self.loss(s, m, q, qq, xq, w, wx), s, m, q, qq, xq))

        for steps, above in self.trials:
            offer(reach * F(steps), start + extent * F(above / steps))
        offer(_inverse(best[1]), -best[2])
        _, scale, minimum, *sums = best
        return np.maximum(scale, F(0)), minimum, *sums

    @staticmethod
    def loss(s: Array, m: Array, q: Array, qq: Array, xq: Array, w: Array, wx: Array) -> Array:
        """Σ weight · (x − s·q + m)², less Σ weight · x²."""
        beyond = s * q - wx
        made: Array = s * (s * qq - (xq + xq)) + m * (m * w - (beyond + beyond))
        return made

    def best_minimum(self, s: Array, q: Array, wx: Array, per_minimum: Array) -> Array:
        """Of least loss for codes with these sums. per_minimum: 1 / (w · dmin)"""
        return _nearest((s * q - wx) * per_minimum, 0, self.greatest)

    def encode(self, blocks: _Blocks) -> tuple[Array, Array, Array, Array, Array]:
        """d and dmin as f16 will hold them, (n, 1); scales and minimums, (n, groups); codes, (n, 256)."""
        w, wx = np.broadcast_to(_sum(blocks.weight), blocks.x.shape[1:]), _sum(blocks.weight * blocks.x)
        scale, minimum, q, qq, xq = self.scales(blocks, w, wx)
        s_top, m_top = (part.max(axis=1, keepdims=True) for part in (scale, minimum))
        for part in (s_top, m_top):
            blocks.overflow(part * F(1 / self.ratios[0]))
        least, d, dmin = np.full_like(s_top, np.inf), np.zeros_like(s_top), np.zeros_like(s_top)
        sc, mn = np.zeros_like(scale), np.zeros_like(scale)
        for s_ratio in self.ratios:
            s_tried = blocks.narrow(s_top * F(1 / s_ratio))
            sc_tried = _nearest(scale * _inverse(s_tried), 0, self.greatest)
            for m_ratio in self.ratios:
                m_tried = blocks.narrow(m_top * F(1 / m_ratio))
                mn_tried = self.best_minimum(s_tried * sc_tried, q, wx, _inverse(w) * _inverse(m_tried))
                loss = _over_groups(self.loss(s_tried * sc_tried, m_tried * mn_tried, q, qq, xq, w, wx))
                least, d, dmin, sc, mn = _better((least, d, dmin, sc, mn), (loss, s_tried, m_tried, sc_tried, mn_tried))
        d, dmin = self.refit(blocks, d, dmin, sc, mn, q, qq, xq, w, wx)
        sc, mn = self.settled(blocks, d, dmin, sc, q, w, wx)
        codes = _nearest((blocks.x + dmin * mn) * _inverse(d * sc), 0, self.top)
        return d, dmin, sc, mn, _in_order(codes)

    @staticmethod
    def refit(
        blocks: _Blocks, d: Array, dmin: Array, sc: Array, mn: Array, q: Array, qq: Array, xq: Array, w: Array, wx: Array
    ) -> tuple[Array, Array]:
        """Step 3: the d and dmin of least loss for the codes found."""
        ss, sm, mm = (_over_groups(t) for t in (sc * sc * qq, sc * mn * q, mn * mn * w))
        sx, mx = _over_groups(sc * xq), _over_groups(mn * wx)
        det = ss * mm - sm * sm
        refit = _ratio(sx * mm - mx * sm, det), _ratio(sx * sm - mx * ss, det)
        sound = (refit[0] > 0) & (refit[1] > 0)
        return blocks.narrow(np.where(sound, refit[0], d)), blocks.narrow(np.where(sound, refit[1], dmin))

    def settled(self, blocks: _Blocks, d: Array, dmin: Array, sc: Array, q: Array, w: Array, wx: Array) -> tuple[Array, Array]:
        """Step 3: the best of the three scales around `sc`, each with the best minimum for its own codes."""
        per_minimum, best = _inverse(w) * _inverse(dmin), _none_yet(sc, 3)
        for move in (0, -1, 1):
            tried = np.minimum(np.maximum(sc + F(move), F(0)), F(self.greatest))
            s = d * tried
            sums = self.fit(blocks, _inverse(s), -(dmin * self.best_minimum(s, q, wx, per_minimum)))
            mn = self.best_minimum(s, sums[0], wx, per_minimum)
            best = _better(best, (self.loss(s, dmin * mn, *sums, w, wx), tried, mn))
        _, sc, mn = best
        return sc, mn


def _in_order(codes: Array) -> Array:
    """(elements, n, groups) → (n, 256) u8"""
    return codes.transpose(1, 2, 0).reshape(codes.shape[1], 256).astype(np.uint8)


# w = d · q, w = d · level[code] ---------------------------------------------------------------


def _one_scale(grid: _Centred, blocks: _Blocks) -> Array:
    """Step 1 for a whole block, whose groups are its lanes: the scale of least error that the trials find, (n, 1)."""
    reach = _inverse(np.abs(blocks.x).max(axis=(0, 2), initial=0)[:, None])
    best, scale = np.zeros_like(reach), np.zeros_like(reach)
    for number in range(2 * len(grid.trials) + 2):
        trial, sign = divmod(number, 2)
        inverse = reach * F((1, -1)[sign] * grid.trials[trial]) if trial < len(grid.trials) else _inverse(scale)
        xq, qq = (_over_groups(sums) for sums in grid.fit(blocks, inverse))
        found = _ratio(xq, qq)
        better = found * xq > best
        best, scale = np.where(better, found * xq, best), np.where(better, found, scale)
    return scale


# The types: trials and ratios by measurement, docs/decisions/0030-search-for-scales.md -----------

_Q2_K = _FromMinimum(3, 15, ((3.8, 0.375), (3.6, 0.5), (3.6, 0), (3.2, 0), (3.4, 0.5)), (15, 14.5, 14, 13.5, 13, 12.5, 12))
_Q3_K = _Centred(-4, 3, -32, 31, (2.6, 3.0, 3.4, 3.8, 4.2, 4.6), (32, 31, 29))
_Q4_K = _FromMinimum(
    15, 63, ((15.25, 0.125), (15.25, -0.25), (15.25, 0.375), (15.25, 0), (14.25, 0.125)), (63, 62, 61, 60, 59, 58, 57)
)
_Q5_K = _FromMinimum(
    31, 63,
    ((31.25, 0.125), (30.25, 0.125), (31.25, 0.375), (31.25, -0.125), (29.25, 0.125), (30, -0.125), (30, 0.125), (31, 0)),
    (63, 62, 61, 60, 59, 58, 57),
)  # fmt: skip
_Q6_K = _Centred(-32, 31, -128, 127, (30.4, 30.8, 31.2, 31.6, 32.0, 32.4), (128, 127, 125))
_IQ4_XS = _Levels(-127, 113, -32, 31, (103, 109, 115, 121, 127, 135), (32, 31, 29))

_IQ4_NL = _Levels(-127, 113, 0, 0, (97, 103, 109, 115, 121, 127, 133, 139), ())
_Q8_K = _Centred(-127, 127, 0, 0, (126.0, 126.5, 127.0, 127.5), ())


def _store(name: str, made: _Blocks, blocks: Array, fields: Fields) -> None:
    """NaN scale, zero elsewhere, in the blocks that do not fit."""
    form = FORMS[name]
    form.write(blocks, fields)
    blocks[made.unfit] = 0
    blocks[made.unfit, form.d : form.d + 2] = F16_NAN


def _encode_from_minimum(name: str, search: _FromMinimum, groups: int, values: Array, weights: Array, blocks: Array) -> None:
    made = _Blocks.of(values, weights, groups)
    d, dmin, sc, mn, codes = search.encode(made)
    _store(name, made, blocks, Fields(d * made.unit, codes, dmin * made.unit, sc, mn))


def _encode_centred(name: str, search: _Centred, groups: int, values: Array, weights: Array, blocks: Array) -> None:
    made = _Blocks.of(values, weights, groups)
    d, step, codes = search.encode(made)
    _store(name, made, blocks, Fields(d * made.unit, codes, None, step))


encode_q2_k = partial(_encode_from_minimum, "q2_k", _Q2_K, 16)
encode_q3_k = partial(_encode_centred, "q3_k", _Q3_K, 16)
encode_q4_k = partial(_encode_from_minimum, "q4_k", _Q4_K, 8)
encode_q5_k = partial(_encode_from_minimum, "q5_k", _Q5_K, 8)
encode_q6_k = partial(_encode_centred, "q6_k", _Q6_K, 16)
encode_iq4_xs = partial(_encode_centred, "iq4_xs", _IQ4_XS, 8)


def encode_iq4_nl(values: Array, weights: Array, blocks: Array) -> None:
    made = _Blocks.of(values, weights, 8, interleaved=True)
    scale = _one_scale(_IQ4_NL, made)
    made.overflow(scale)
    d = made.narrow(scale)
    codes = _IQ4_NL.code(made.x * _inverse(d)).astype(np.uint8).transpose(1, 0, 2).reshape(values.shape)
    _store("iq4_nl", made, blocks, Fields(d * made.unit, codes))


def encode_q8_k(values: Array, weights: Array, blocks: Array) -> None:
    made = _Blocks.of(values, weights, 8, interleaved=True)
    scale = _one_scale(_Q8_K, made)
    codes = _Q8_K.value(made.x * _inverse(scale)).astype(np.int8).transpose(1, 0, 2).reshape(values.shape)
    sums = codes.reshape(-1, 16, 16).sum(axis=2, dtype="<i2")
    blocks[:, 0:4] = (scale * made.unit).astype("<f4").view(np.uint8)
    blocks[:, 4:260] = codes.view(np.uint8)
    blocks[:, 260:292] = sums.view(np.uint8)
    blocks[made.unfit] = 0
    blocks[made.unfit, 0:4] = np.array([np.nan], "<f4").view(np.uint8)
