"""`gptq`: codes and scales of least error of what a matrix computes, Σ (E·x)² over the inputs x seen, E = W − Ŵ.

With G the Gram matrix of the inputs that is tr(E·G·Eᵀ). Rows of E do not concern each other; columns do, and a column that is
coded later can make up for errors before it. G = Uᵀ·D·U with ones on the diagonal of U turns the error into

    Σ over columns k of D[k] · (E[k] + Σ over j > k of E[j] · U[k, j])²

so columns are coded from the last to the first, each as the code nearest to  W[k] + Σ E[j] · U[k, j]  (Frantar et al. 2022;
Chee et al. 2023). For that G gets a little more on its diagonal, a hundredth of its mean.

Scales are found when their group's turn comes, on the values as they are to be coded then and weighed by D, by the quantizer
that searches for such scales (`Codec.searched_by`). Then come `_PASSES` over all groups again, each with all others as they are
now: scales and biases by least squares for the codes they have (`_refit`; only what is better as it will be stored is taken),
and codes column by column, each the best beside all others (`kernels.descend_codes`). No step makes the error larger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock
from weakref import finalize

import numpy as np

from flyweight import kernels
from flyweight.codecs import Array, Codec, Parts
from flyweight.codecs.casts import astype
from flyweight.codecs.lines import Lines, Steps
from flyweight.codecs.palette import Palette
from flyweight.codecs.value_checks import require_finite
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import TensorSpec
from flyweight.quantizers import QUANTIZERS
from flyweight.quantizers.error_feedback import BLOCK, CodedRows, Factors, Part, lines_of, parts_of, pieces
from flyweight.quantizers.line_fits import Metric, refit, refit_steps
from flyweight.quantizers.palette_feedback import fill_palette
from flyweight.quantizers.quantizer import Quantizer

F = np.float32
_PASSES = 3
_DAMPING = (0.01, 0.1, 1.0, 10.0)
"""The first will do, unless rounding has left the matrix indefinite."""
_LEAST = 16
"""Columns whose lines are found together, at least."""
_WEIGHTS_AT_ONCE = 1 << 20


def _fill(array: Array, codec: Codec, spec: TensorSpec, inputs: InputStatistics | None) -> Parts:
    codec.layout(spec)  # refuses what cannot be stored
    if spec.size and not codec.takes_feedback(spec):
        raise UnsupportedError(
            f"gptq works along rows, and {codec.spec} does not for {spec}", code="E_QUANTIZER",
            hint=f"leave the quantizer to Flyweight, or name {codec.searched_by}",
        )  # fmt: skip
    rows = astype(np.asarray(array), DType.F32.numpy).reshape(spec.rows, spec.columns)
    require_finite(np.isfinite(rows).all())
    gram = None if inputs is None else inputs.gram
    if inputs is None or gram is None:
        raise UnsupportedError(
            "gptq needs the Gram matrix of what the matrix is multiplied with, and there is none", code="E_STATISTICS",
            hint="`flyweight calibrate MODEL --gram -o STATS`, then `--stats STATS`",
        )  # fmt: skip
    if gram.shape != (spec.columns, spec.columns):
        raise UnsupportedError(
            f"the Gram matrix is of {len(gram)} columns, and the matrix has {spec.columns}", code="E_STATISTICS"
        )
    if not rows.size:
        return codec.encode(spec, rows)
    with _kept.of(inputs, gram, codec if codec.feeds_back else None) as factors:
        if codec.feeds_back:
            return codec.fed_back(spec, rows, *factors)
        if isinstance(codec, Palette):
            return fill_palette(codec, spec, rows, factors)
        return _on_lines(codec, spec, rows, factors)


def _on_lines(codec: Codec, spec: TensorSpec, rows: Array, factors: Factors) -> Parts:
    codes, found = np.empty(rows.shape, np.uint8), []
    by_lines, codes_by_lines = (part.reshape(codec.tied, -1, spec.columns) for part in (rows, codes))
    step = max(_WEIGHTS_AT_ONCE // (codec.tied * spec.columns), 1)
    for start in range(0, by_lines.shape[1], step):
        own = by_lines[:, start : start + step]
        some = _Rows(codec, np.ascontiguousarray(own.reshape(-1, spec.columns).T), factors)
        codes_by_lines[:, start : start + step] = some.codes.T.reshape(own.shape)
        found.append(some.lines)
    return codec.from_lines(spec, Lines.beside(found), codes)


def _memory(codec: Codec, columns: int) -> int:
    """A Gram matrix as it is stored (half of it, in f16) and as it is used, its factor, and what is worked on of some rows; the
    matrix once more in the basis of a codec that has its own."""
    return (1 + 4 + 4 + 4 * codec.feeds_back) * columns * columns + 4 * 12 * max(_WEIGHTS_AT_ONCE, columns)


gptq = Quantizer("gptq", lambda codec: codec.has_lines or codec.feeds_back, _fill, _memory)


def _factors_of(gram: Array) -> Factors:
    diagonal = gram.diagonal()
    mean = float(diagonal.mean(dtype=np.float64))
    if np.isfinite(gram).all() and np.isfinite(F(mean)):
        for damping in _DAMPING:
            made = np.array(gram, F, order="C")
            made[np.diag_indices(len(made))] = diagonal + F(mean * damping if mean > 0 else 1)
            kernels.factorize(made)
            if (made.diagonal() > 0).all():
                return Factors(gram, made)
    raise UnsupportedError("not the Gram matrix of any inputs: it is not positive", code="E_STATISTICS")


class _Kept:
    """Factors for the next rows of a matrix, and for the next matrix with the same inputs: as many as there were ever users at
    once, the last used ones, and none for longer than the inputs are there. Who wants what is being made waits for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = self._most = 0
        self._made: OrderedDict[tuple[int, str], Future[Factors]] = OrderedDict()
        """By the identity of the inputs, and whose basis they are in."""

    @contextmanager
    def of(self, inputs: InputStatistics, gram: Array, turned_by: Codec | None) -> Iterator[Factors]:
        key, mine = (id(inputs), turned_by.name if turned_by else ""), None
        with self._lock:
            self._users += 1
            self._most = max(self._most, self._users)
            found = self._made.get(key)
            if found is None:
                mine = self._made[key] = found = Future()
                finalize(inputs, self._made.pop, key, None)
            self._made.move_to_end(key)
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        try:
            if mine is not None:
                try:
                    mine.set_result(_factors_of(turned_by.turned_gram(gram) if turned_by else gram))
                except BaseException as error:
                    with self._lock:
                        self._made.pop(key, None)  # another try may have the memory
                    mine.set_exception(error)
                    raise
            yield found.result()
        finally:
            with self._lock:
                self._users -= 1


_kept = _Kept()


class _Rows(CodedRows):
    """Some rows of a matrix whose lines are found on the way."""

    def __init__(self, codec: Codec, values: Array, factors: Factors) -> None:
        super().__init__(values, factors)
        self.codec = codec
        settled: list[Part] = []
        whole: list[Lines] = []
        rows = TensorSpec(values.shape[::-1], DType.F32)
        for unit in reversed(list(pieces(slice(0, len(values)), _together(codec.alone(rows))))):
            lines = self._found(unit)
            whole.append(lines)
            settled += self._coded(unit, lines)
        for _ in range(_PASSES):
            for part in settled:
                self._settle(part)
        self.lines = Lines.joined(whole[::-1])

    def _found(self, unit: slice) -> Lines:
        """Lines for columns that have them in common."""
        rows = np.ascontiguousarray(self.adjusted(unit).T)
        weights = InputStatistics(self.feedback.diagonal()[unit])
        spec = TensorSpec(rows.shape, DType.F32)
        return self.codec.lines(spec, QUANTIZERS[self.codec.searched_by](rows, self.codec, spec, weights))

    def _coded(self, unit: slice, lines: Lines) -> list[Part]:
        """First codes; the parts whose lines and codes are settled one after the other: a large group is one."""
        parts = parts_of(unit, lines)[::-1]
        for part in parts:
            self.code(part)
        if lines.group <= BLOCK:
            return parts
        return [Part(group, lines_of(lines, unit, group)) for group in reversed(list(pieces(unit, lines.group)))]

    def _settle(self, part: Part) -> None:
        """Better lines and better codes for some columns beside all others."""
        block, lines = part
        pull = self.pull(block)
        metric = Metric(self.gram, block.start)
        if isinstance(lines, Steps):
            refit_steps(lines, self.codes[block], self.error[block], pull, metric)
        else:
            refit(lines, self.codes[block], self.error[block], pull, metric)
        if lines.group <= BLOCK:
            self.descend(part, pull)
            return
        for piece in reversed(parts_of(block, lines)):
            self.descend(piece, self.pull(piece.columns))


def _together(alone: int) -> int:
    """Columns whose lines are found at once: a search for fewer takes longer than it finds."""
    return -(-_LEAST // alone) * alone
