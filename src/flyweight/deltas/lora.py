"""A LoRA adapter, as PEFT saves one, read as a delta: weight + scale · B · A.

    adapter_config.json         r, lora_alpha, and what kind of adapter it is
    adapter_model.safetensors   base_model.model.<module>.lora_A.weight           (r, in)
                                base_model.model.<module>.lora_B.weight           (out, r)
                                base_model.model.<module>.lora_embedding_A, …_B   (r, rows), (columns, r)
                                base_model.model.<tensor>                         one that is replaced: modules_to_save, biases

The scale is lora_alpha / r, or lora_alpha / √r with `use_rslora`. The ranks are those of the tensors; `alpha_pattern` has
modules of another alpha. To PEFT its keys are regular expressions. Here they are names or their ends, because a stranger's
regular expression may take forever. What makes an adapter more than a product is refused by the name of its field.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from flyweight.containers.safetensors import read_header
from flyweight.deltas.changes import Change, Delta, Parent
from flyweight.deltas.kind import Array, StoredArray
from flyweight.deltas.kinds.exact_delta import ExactDelta
from flyweight.deltas.kinds.low_rank_delta import LowRankDelta
from flyweight.deltas.recognition import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from flyweight.deltas.wdelta_file import FileArray
from flyweight.foundation import strict_json
from flyweight.foundation.cursor import check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import TensorSpec
from flyweight.models.checked_record import Record, shown
from flyweight.sources import Bundle, Source

PREFIX = "base_model.model."
FACTOR_TYPES = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "uint16"}
"""The element types of factors, and what `lowrank` stores them as."""
_DEFAULT = 8
"""What PEFT takes for `r` and `lora_alpha` where they are not said."""
_MORE_THAN_A_PRODUCT = (
    "use_dora", "use_qalora", "use_bdlora", "lora_bias", "layer_replication", "trainable_token_indices", "target_parameters",
    "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config", "velora_config", "megatron_config",
)  # fmt: skip
_CHANGES_THE_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga")
"""Ways to initialise an adapter that take what it begins with out of the base."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def read_adapter(bundle: Bundle) -> Delta:
    """Everything but the factors. Tensors have the names of the model the adapter was made for: see `named_as`."""
    config = _read_config(bundle)
    source = bundle[ADAPTER_WEIGHTS]
    pairs: dict[str, _Pair] = {}
    saved: dict[str, Entry] = {}
    for key, entry in read_header(source, ADAPTER_WEIGHTS).tensors.items():
        try:
            _sort(key, entry, pairs, saved)
        except FlyweightError as error:
            raise error.at(file=source.name, tensor=key) from None
    changes = {}
    for name, entry in saved.items():
        if name not in pairs:
            changes[name] = _replaced(name, entry, source)
    for name, pair in pairs.items():
        try:
            changes[name] = _added(name, pair, config, source)
        except FlyweightError as error:
            raise error.at(file=source.name, tensor=name) from None
    path = config.base if os.path.isabs(config.base) else None
    return Delta(bundle.name, changes, parent=Parent(config.base, path), strategy=LowRankDelta.strategy)


def named_as(delta: Delta, names: Container[str]) -> Delta:
    """An adapter whose tensors are called as in a base with these tensors: with `model.` before their names, or without.

    MalformedError if two are then the same. One that the base does not have keeps its name.
    """
    changes: dict[str, Change] = {}
    for name, change in delta.changes.items():
        spellings = (name, f"model.{name}", name.removeprefix("model."))
        there = next((spelling for spelling in spellings if spelling in names), name)
        if there in changes:
            raise MalformedError("the adapter has this tensor twice", code="E_DUPLICATE", file=delta.name, tensor=there)
        changes[there] = replace(change, name=there, parent=None if change.parent is None else there)
    return replace(delta, changes=changes)


def is_plain_name(name: str) -> bool:
    """Whether a name is also a regular expression for itself, dots apart."""
    return _PLAIN.issuperset(name)


# --- settings --------------------------------------------------------------------------------------


class _Config(NamedTuple):
    alpha: float
    alphas: Mapping[str, tuple[int, float]]
    """By the end of a module's name, or by `^` and all of it; the first of those that fit counts."""
    ranks: frozenset[int]
    rank_stabilized: bool
    transposed: bool
    """Whether the base stores its matrices as (in, out)."""
    base: str

    def scale(self, module: str, rank: int) -> float:
        starts = [0, *(at + 1 for at, character in enumerate(module) if character == ".")]
        ends = [f"^{module}", *(module[at:] for at in starts)]
        _, alpha = min((self.alphas[end] for end in ends if end in self.alphas), default=(0, self.alpha))
        return alpha / (sqrt(rank) if self.rank_stabilized else rank)


def _read_config(bundle: Bundle) -> _Config:
    file = bundle[ADAPTER_CONFIG].name
    record = Record(strict_json.load(bundle[ADAPTER_CONFIG]), file)
    if (peft_type := record.text("peft_type")) != "LORA":
        raise _unsupported(f"its peft_type is {shown(peft_type)}; only 'LORA' is supported", file)
    for field in _MORE_THAN_A_PRODUCT:
        if record.get(field) not in (None, False, [], {}):
            raise _unsupported(f"it sets '{field}', which makes it more than a product added to a weight", file)
    start = record.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_THE_BASE):
        raise _unsupported(
            f"its init_lora_weights is {shown(start)}: it fits a base that was changed when training began", file,
            hint="save it again with PEFT's path_initial_model_for_weight_conversion",
        )  # fmt: skip
    ranks = record.table("rank_pattern")
    values = {} if ranks is None else ranks.everything()
    rank = record.integer("r", _DEFAULT)
    if not all(type(value) is int and value > 0 for value in values.values()):
        record.fail("rank_pattern", "an object of positive integers")
    return _Config(
        _alpha(record, "lora_alpha", record.get("lora_alpha"), _DEFAULT),
        _read_alphas(record),
        frozenset({rank, *values.values()}),
        record.flag("use_rslora", False),
        record.flag("fan_in_fan_out", False),
        record.text("base_model_name_or_path", ""),
    )


def _read_alphas(record: Record) -> dict[str, tuple[int, float]]:
    table = record.table("alpha_pattern")
    alphas = {}
    for order, (pattern, value) in enumerate({} if table is None else table.everything().items()):
        if not is_plain_name(pattern.removeprefix("^")):
            raise _unsupported(
                f"the key {shown(pattern)} of its alpha_pattern is a regular expression", record.file,
                hint="name the modules, or the ends of their names",
            )  # fmt: skip
        alphas[pattern] = order, _alpha(record, "alpha_pattern", value)
    return alphas


def _alpha(record: Record, key: str, value: Any, default: float | None = None) -> float:
    value = default if value is None else value
    if type(value) not in (int, float) or not -1e18 <= value <= 1e18:
        record.fail(key, "a number of at most 10^18")
    return float(value)


def _unsupported(
    message: str, file: str, hint: str = "merge the adapter with PEFT, and make a delta of the result"
) -> FlyweightError:
    return UnsupportedError(message, code="E_ADAPTER", file=file, hint=hint)


# --- tensors ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pair:
    """The factors of one tensor as they are found."""

    is_embedding: bool
    a: Entry | None = None
    b: Entry | None = None


def _sort(key: str, entry: Entry, pairs: dict[str, _Pair], saved: dict[str, Entry]) -> None:
    """Put a tensor of the file where it belongs."""
    module, found, factor = key.removeprefix(PREFIX).rpartition(".lora_")
    if not found:
        name = _saved_name(key.removeprefix(PREFIX))
        if name is not None and saved.setdefault(name, entry) is not entry:
            raise MalformedError(f"the adapter has '{name}' twice", code="E_DUPLICATE")
        return
    side, *rest = factor.split(".")
    is_embedding = side.startswith("embedding_")
    if (
        side.removeprefix("embedding_") not in ("A", "B")
        or len(rest) > 2 - is_embedding
        or not (is_embedding or rest[-1:] == ["weight"])
    ):
        raise UnsupportedError(f"'lora_{factor}' is neither factor of a product", code="E_ADAPTER")
    pair = pairs.setdefault(f"{module}.weight", _Pair(is_embedding))
    field = side[-1].lower()
    if pair.is_embedding != is_embedding or getattr(pair, field) is not None:
        raise MalformedError(f"the module '{module}' has this factor twice", code="E_DUPLICATE")
    setattr(pair, field, entry)


def _saved_name(key: str) -> str | None:
    """The tensor that a key of the adapter replaces; None for one that is the base's own."""
    parts = key.split(".")
    if "original_module" in parts:
        return None
    if "modules_to_save" in parts:  # the name of the adapter follows
        at = parts.index("modules_to_save")
        del parts[at : at + 2]
    return ".".join(part for part in parts if part != "base_layer")


def _added(name: str, pair: _Pair, config: _Config, source: Source) -> Change:
    if pair.a is None or pair.b is None:
        raise MalformedError(f"there is no lora_{'A' if pair.a is None else 'B'} for it", code="E_ADAPTER")
    for entry in (pair.a, pair.b):
        if len(entry.spec.shape) != 2 or entry.spec.dtype not in FACTOR_TYPES:
            raise UnsupportedError(
                f"the factor {entry.spec} is no matrix of f32, f16 or bf16; those of convolutions are not supported",
                code="E_ADAPTER",
            )  # fmt: skip
    (rank, inputs), (outputs, other) = pair.a.spec.shape, pair.b.spec.shape
    if rank != other or rank not in config.ranks:
        raise MalformedError(
            f"its factors have the ranks {rank} and {other}; {ADAPTER_CONFIG} says {sorted(config.ranks)[:8]}", code="E_ADAPTER"
        )
    a, b = (_file_array(entry, source) for entry in (pair.a, pair.b))
    shape, up, down = [outputs, inputs], b, a
    if pair.is_embedding or config.transposed:
        shape, up, down = [inputs, outputs], Transposed(a, rank, inputs), Transposed(b, outputs, rank)
    spec = TensorSpec(check_shape(shape, file=source.name, tensor=name), DType.F32)
    about = {"rank": rank, "scale": config.scale(name.removesuffix(".weight"), rank)}
    kind = LowRankDelta(spec, about, {"up": up, "down": down})
    stored = (pair.b.extents["data"], pair.a.extents["data"])
    return Change(name, spec, parts={"data": kind}, layout={"data": spec}, parent=name, stored=stored)


def _replaced(name: str, entry: Entry, source: Source) -> Change:
    if entry.spec.dtype.bits % 8:
        raise UnsupportedError(f"{entry.spec} is narrower than a byte", code="E_ADAPTER", file=source.name, tensor=name)
    extent = entry.extents["data"]
    stored: dict[str, StoredArray] = {
        "tables": np.zeros(0, np.uint8),
        "chunks": FileArray(source, extent, "uint8"),
        "ends": np.zeros(0, np.uint64),
    }
    kind = ExactDelta(entry.spec, {"coding": "plain"}, stored)
    return Change(name, entry.spec, parts={"data": kind}, layout={"data": entry.spec}, stored=(extent,))


def _file_array(entry: Entry, source: Source) -> StoredArray:
    return FileArray(source, entry.extents["data"], FACTOR_TYPES[entry.spec.dtype])


@dataclass(frozen=True, slots=True)
class Transposed:
    """A stored matrix of so many rows and columns with both exchanged."""

    array: StoredArray
    rows: int
    columns: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: slice) -> Array:
        start, stop, _ = at.indices(len(self))
        if start >= stop:
            return np.zeros(0, self.dtype)
        first, last = start // self.rows, -(-stop // self.rows)
        if self.rows > self.columns:  # many short rows are read as one
            wanted = self.array[:].reshape(self.rows, self.columns)[:, first:last]
        else:
            wanted = np.stack([self.array[row * self.columns + first : row * self.columns + last] for row in range(self.rows)])
        skipped = first * self.rows
        return np.ascontiguousarray(wanted.T).reshape(-1)[start - skipped : stop - skipped]
