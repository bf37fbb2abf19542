"""What a codec is: the interface of every codec, with defaults.

A codec is a small frozen dataclass: its fields are its parameters. It declares, as data, the
parts it stores for a tensor (`layout`); sizes, allocation, validation and fuzz inputs all follow
from that. Where sizes depend on the values they are parameters too, which `fit` finds, so that a
layout never does. `decode` defines the values; `encode` is nearest rounding, the plainest way to fill the
parts (better ways are quantizers).

Whatever else depends on the codec is an attribute or a method here, with a default that is right for most: nobody asks
for its name. Planner, runtime, benches and tests take a new codec as they find it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.tensor import CodecSpec, EncodedTensor, Layout, TensorSpec, has_rows

if TYPE_CHECKING:
    from flyweight.codecs.lines import Lines
    from flyweight.kernels import Matrix

Array = np.ndarray[Any, Any]
Parts = Mapping[str, Array]

_RUN = 1 << 18
"""Values decoded at a time where rows can be decoded alone: in f32 they are still in the cache when they are compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The integers and the affine map behind a tensor: w[r, c] = scale[r, g] · code[r, c] + bias[r, g], g = c // group.

    Codecs that store the same grid in different bytes are repacked through it without rounding.
    """

    bits: int
    group: int
    codes: Array  # (rows, columns) uint8, below 2**bits
    scale: Array  # (rows, columns / group) float32
    bias: Array  # (rows, columns / group) float32


class GridSpec(NamedTuple):
    """What is known of a codec's grids before their values are."""

    bits: int
    group: int
    """Weights of a row that share a scale and an offset; 0: all of them."""
    scale: str
    """The narrowest element type that holds every scale and offset."""


class StoredCodes(NamedTuple):
    """The part of a codec that is one stream of codes over the whole tensor."""

    part: str
    bits: int
    """Of a code, packed low bits first; 16 and 32: words of the part's own type."""
    shape: tuple[int, ...]
    """That of the tensor; shorter along an axis where a code stands for several neighbours."""


_BLOCK_GRIDS = {GridSpec(4, 32, "f16"): ("q4_1",), GridSpec(5, 32, "f16"): ("q5_1",)}
"""Codecs beside `affine` that store any grid of this kind."""


class Filler(Protocol):
    """A quantizer, as a codec sees it."""

    @property
    def name(self) -> str: ...

    def takes(self, codec: Codec, /) -> bool:
        """Whether it fills the parts of such a codec."""

    def fill(self, array: Array, codec: Any, spec: TensorSpec, inputs: InputStatistics | None, /) -> Parts: ...


@dataclass(frozen=True)
class Codec(ABC):
    name: ClassVar[str]
    encodes: ClassVar[bool] = True
    """Whether `encode` exists."""
    rounds: ClassVar[bool] = False
    """Whether `decode` takes an `out` of bf16 too, and rounds its values to nearest on their way there."""
    per_tensor: ClassVar[frozenset[str]] = frozenset()
    """Parameters that are another for every tensor: sizes that follow from its values, or its name in the file."""
    decodes_any_bytes: ClassVar[bool] = True
    """Whether parts of the right layout decode whatever they hold. If not, they must agree, and `decode` refuses others."""
    feeds_back: ClassVar[bool] = False
    """Whether it codes columns with what errors of others ask of them by itself: `turned_gram` and `fed_back`."""
    drops_blocks: ClassVar[bool] = False
    """Whether it gains by blocks of `block` zeros, so that weights may be pruned for it."""
    copies_to_fit: ClassVar[int] = 4
    """How many times its f32 values a tensor takes in memory while the codec is fitted: stored, widened, cast and gathered."""
    takes_f16: ClassVar[bool] = False
    """Whether it encodes f16 values as they are, a piece at a time, so that nobody need widen a whole tensor for it."""
    copies_if_whole: ClassVar[int] = 10
    """The same while it is encoded whole, because its rows cannot be encoded alone: what decomposes it needs the most."""

    @cached_property
    def spec(self) -> CodecSpec:
        return CodecSpec(self.name, {field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def needs_fit(self) -> bool:
        """Whether sizes depend on the values: then `fit` comes before `layout` and `encode`."""
        return False

    @property
    def exact(self) -> bool:
        """Whether decode(encode(x)) == x, bit for bit, for every x of the spec."""
        return False

    @property
    def quantizer(self) -> str:
        """The quantizer of least error on real weights."""
        return "nearest"

    @property
    def needs_gate(self) -> bool:
        """Whether it loses so much that a model is measured before it may be used: codes of three bits do
        (docs/decisions/0102)."""
        return self.spec.params.get("bits") == 3

    @property
    def masked_together(self) -> int:
        """Neighbours in a row that a mask keeps or drops as one, because a scale they share moves zeros; 0: all of them."""
        return 1

    @abstractmethod
    def layout(self, spec: TensorSpec) -> Layout:
        """The parts a tensor of this shape and type is stored as. UnsupportedError if it cannot be."""

    @abstractmethod
    def _decode(self, spec: TensorSpec, parts: Parts, out: Array) -> None:
        """The values into `out`, which has at least one element."""

    def decode(self, spec: TensorSpec, parts: Parts, out: Array | None = None) -> Array:
        """The values, of spec's shape and type; into `out` (C-contiguous) when given."""
        if out is None:
            out = np.empty(spec.shape, spec.dtype.numpy if self.exact else np.float32)
        if spec.size:  # an empty tensor may claim any number of columns
            self._decode(spec, parts, out)
        return out

    def fit(self, spec: TensorSpec, array: Array) -> Codec:
        """This codec with the parameters that `array` needs; `encode` of any other array may then be refused."""
        return self

    def encode(self, spec: TensorSpec, array: Array) -> Parts:
        """Parts for `array` (of spec's shape, any float type) by nearest rounding."""
        raise UnsupportedError(f"codec {self.name} can be decoded but not encoded", code="E_NO_ENCODER")

    def encode_weighted(self, spec: TensorSpec, array: Array, importance: Array | None) -> Parts:
        """As `encode`; where an encoder has a choice, importance weighs the columns' error. Nearest rounding has none."""
        if importance is not None:
            column_weights(importance, spec)  # refuses what is none
        return self.encode(spec, array)

    def filled_by(self, filler: Filler, spec: TensorSpec, array: Array, inputs: InputStatistics | None = None) -> Parts:
        """The parts as a quantizer finds them. A codec that stores another's parts, or its grids, hands it on to that one."""
        if not filler.takes(self):
            raise UnsupportedError(f"the quantizer {filler.name} does not work with {self.spec}", code="E_QUANTIZER")
        return filler.fill(array, self, spec, inputs)

    # Codecs whose codes lie on lines, a scale and a bias for each group, can be given codes by who knows better than they.

    has_lines: ClassVar[bool] = False
    """Whether the codes of some tensors do."""

    @property
    def tied(self) -> int:
        """How many rows share their lines: those of one number modulo rows / tied."""
        return 1

    def alone(self, spec: TensorSpec) -> int:
        """How many columns have lines that can be found without the others; 0: the codes of such a tensor lie on no lines that
        are of rows."""
        return 0

    def takes_feedback(self, spec: TensorSpec) -> bool:
        """Whether errors of columns can be fed back into others (`gptq`)."""
        return self.feeds_back or self.alone(spec) > 0

    @property
    def searched_by(self) -> str:
        """The quantizer that finds scales of least error where columns are weighed."""
        return self.quantizer

    def lines(self, spec: TensorSpec, parts: Parts) -> Lines:
        raise UnsupportedError(f"the codes of {self.name} lie on no lines", code="E_LINES")

    def from_lines(self, spec: TensorSpec, lines: Lines, codes: Array) -> Parts:
        """Parts for codes (rows, columns) on lines that can be stored; UnsupportedError where they leave the range of that."""
        raise UnsupportedError(f"the codes of {self.name} lie on no lines", code="E_LINES")

    # Codecs that feed errors back by themselves, in a basis of their own.

    def turned_gram(self, gram: Array) -> Array:
        """The Gram matrix of the inputs in the codec's basis."""
        return gram

    def fed_back(self, spec: TensorSpec, array: Array, gram: Array, feedback: Array) -> Parts:
        """Parts of least error by a Gram matrix in that basis, and its factors (`quantizers.gptq`)."""
        raise UnsupportedError(f"{self.name} does not feed errors back by itself", code="E_QUANTIZER")

    def decoded_dtype(self, dtype: DType) -> DType:
        """The element type that encoding a tensor of `dtype` decodes to."""
        return DType.F32

    @property
    def value_dtype(self) -> DType | None:
        """An element type narrower than f32 that holds every value it decodes to; None where there is none."""
        return None

    def f16_bound(self, spec: TensorSpec, parts: Parts) -> float | None:
        """The most that any value of these parts can be, either way, where f16 holds what does not exceed its range as well as
        anybody can measure (docs/decisions/0211); None where that is not known."""
        return None

    def stored_codes(self, spec: TensorSpec) -> StoredCodes | None:
        """Where the codes are, if they are one stream of which another codec may leave some out (`sparse_codes`)."""
        return None

    # Products with the weights as they are stored. What has none is decoded a few rows at a time.

    def product(self, spec: TensorSpec, parts: Parts) -> Matrix | None:
        """The product kernels' view of a matrix of whole 32 columns, or None where they have none for these parameters."""
        return None

    def masked_product(self, spec: TensorSpec, parts: Parts, block: int, mask: Array) -> Matrix | None:
        """The same, skipping the blocks that a mask drops; as if there were no mask, where the kernels cannot."""
        return self.product(spec, parts)

    def product_codec(self, spec: TensorSpec) -> CodecSpec | None:
        """Where there is no product: a codec that has one for the same codes, whose offsets are rounded once more at most."""
        return None

    # Codecs over a uniform grid of integers say which, and convert to and from it, for lossless repacking.

    @property
    def grid_spec(self) -> GridSpec | None:
        """The kind of grid that every tensor is, exactly; None where some or all are none."""
        return None

    @property
    def same_grid(self) -> tuple[CodecSpec, ...]:
        """The codecs that any tensor can be repacked into without a change of value, the plainest first."""
        grid = self.grid_spec
        if grid is None:
            return ()
        return (CodecSpec("affine", grid._asdict()), *map(CodecSpec, _BLOCK_GRIDS.get(grid, ())))

    def holds_grid(self, grid: GridSpec, columns: int) -> bool:
        """Whether `from_grid` stores every grid of this kind, of rows of so many columns."""
        return False

    def grid(self, spec: TensorSpec, parts: Parts) -> Grid:
        raise UnsupportedError(f"codec {self.name} is not uniform (scale · code + offset)", code="E_NO_GRID")

    def from_grid(self, spec: TensorSpec, grid: Grid) -> Parts:
        """Parts that decode to exactly the grid's values, or UnsupportedError if there are none."""
        raise UnsupportedError(f"codec {self.name} is not uniform (scale · code + offset)", code="E_NO_GRID")

    def check_layout(self, spec: TensorSpec, parts: Layout) -> None:
        """Refuse stored parts that are not what `layout` says."""
        try:
            expected = self.layout(spec)
        except UnsupportedError as error:
            raise MalformedError(f"{spec} cannot be stored as {self.name}: {error.message}", code="E_PART_SHAPE") from None
        if expected == parts:
            return
        if set(expected) != set(parts):
            raise MalformedError(
                f"codec {self.name} stores {sorted(expected)} but the file has {sorted(parts)}", code="E_PARTS"
            )
        for part, want in expected.items():
            if parts[part] != want:
                raise MalformedError(f"part '{part}' should be {want} but is {parts[part]}", code="E_PART_SHAPE")

    def decoded_runs(self, spec: TensorSpec, parts: Parts) -> Iterator[Array]:
        """The values in order, flat, in as many runs as the codec can make without holding all of them."""
        if spec.size <= _RUN or spec.rows == 1 or not has_rows(spec, self.layout(spec)):
            yield self.decode(spec, parts).reshape(-1)
            return
        step = max(_RUN // spec.columns, 1)
        for start in range(0, spec.rows, step):
            some = take_rows(EncodedTensor(spec, self.spec, parts), slice(start, start + step))
            yield self.decode(some.spec, some.parts).reshape(-1)

    def check_values(self, spec: TensorSpec, parts: Parts) -> str | None:
        """A complaint about values that decode to nonsense (a NaN scale, an index outside its table), or None."""
        with np.errstate(invalid="ignore"):  # a signalling NaN is a finding, not a warning
            for part, array in parts.items():
                if array.dtype.kind not in "iub" and not np.isfinite(array).all():
                    return f"part '{part}' has NaN or infinite values"
        return None


def column_weights(importance: Array | None, spec: TensorSpec) -> Array:
    """Importance as positive f32 weights, (columns,): the greatest is 1, none less than 2^-20. None weighs all alike.

    A floor, because a column of no importance must still decode to something near it.
    """
    if importance is None:
        return np.ones(spec.columns, np.float32)
    wide = np.asarray(importance, np.float64)
    if wide.shape != (spec.columns,) or not np.isfinite(wide).all() or (wide < 0).any():
        raise UnsupportedError(
            f"importance must be {spec.columns} finite numbers of 0 or more, one per column", code="E_IMPORTANCE"
        )
    top = wide.max(initial=0)
    return np.maximum(wide / top if top > 0 else np.ones_like(wide), 2.0**-20).astype(np.float32)


def take_rows(tensor: EncodedTensor, rows: slice | Array) -> EncodedTensor:
    """The chosen rows (all axes but the last flattened) of a tensor whose parts have its rows (`has_rows`)."""
    parts = {
        name: array.reshape(tensor.spec.rows, array.shape[-1])[rows] if array.ndim else array
        for name, array in tensor.parts.items()
    }
    count = next(len(array) for array in parts.values() if array.ndim)
    return EncodedTensor(TensorSpec((count, tensor.spec.columns), tensor.spec.dtype), tensor.codec, parts)
