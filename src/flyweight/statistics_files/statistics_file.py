"""Our own statistics file: a safetensors file, so that every tool shows what is in it. `docs/formats/statistics.md`.

    <first matrix>.importance      f32 (columns,)                 the mean of x², for each input
    <first matrix>.gram            f16 (columns · (columns + 1) / 2,)   `gram_form`, if it was gathered
    <first matrix>.gram_diagonal   f32 (columns,)
    model.sketch                   f32 (n,)                       some weights of the model

The metadata has, under "flyweight.statistics", JSON text:

    {"version": 1, "tokens": 24576, "windows": 192, "window": 128, "inputs": {"<first matrix>": {"<matrix>": rows, …}, …}, …}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.containers.container import Image
from flyweight.containers.safetensors import build_image, read_header
from flyweight.foundation import strict_json
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import TensorSpec
from flyweight.sources import FileSource, Source
from flyweight.statistics_files.gram_form import diagonal_of, pack, packed_size, unpack
from flyweight.statistics_files.statistics_form import Gathered, Names, Wanted
from flyweight.statistics_files.stored import Measured, StoredStatistics, checked_importance

Array = np.ndarray[Any, Any]

KEY, VERSION, SKETCH = "flyweight.statistics", 1, "model.sketch"
MAX_COLUMNS = 1 << 18
"""Of a Gram matrix: larger than any layer, and f32 of it would take 256 GB."""
_CODE = "E_STATISTICS"


# Writing ----------------------------------------------------------------------------------------


class StatisticsForm:
    gives_gram = True

    def parts(self, names: Names, columns: int, *, gram: bool) -> dict[str, TensorSpec]:
        name, vector = names[0], TensorSpec((columns,), DType.F32)
        parts = {f"{name}.importance": vector}
        if gram:
            parts |= {f"{name}.gram_diagonal": vector, f"{name}.gram": TensorSpec((packed_size(columns),), DType.F16)}
        return parts

    def layout(self, file: str, wanted: Wanted) -> tuple[Image, Mapping[str, Extent]]:
        tensors: dict[str, TensorSpec] = {}
        for names, columns in wanted.inputs.items():
            tensors |= self.parts(names, columns, gram=wanted.gram)
        tensors[SKETCH] = TensorSpec(wanted.sketch.shape, DType.F32)
        shared = {names[0]: {name: wanted.rows[name] for name in names} for names in wanted.inputs}
        said = {"tokens": wanted.tokens, "windows": wanted.windows, "window": wanted.window, **wanted.about}
        text = strict_json.dumps({"version": VERSION, **said, "inputs": shared}).decode()
        image, extents = build_image(file, tensors, {"format": "pt", KEY: text})
        sketch = extents.pop(SKETCH).offset, wanted.sketch.astype("<f4").tobytes()
        return Image(image.nbytes, (*image.chunks, sketch)), extents

    def values(self, gathered: Gathered) -> Iterator[tuple[str, Iterator[Array]]]:
        name = gathered.names[0]
        yield f"{name}.importance", iter([gathered.importance.astype("<f4")])
        if gathered.gram:
            diagonal = diagonal_of(gathered.gram)
            yield f"{name}.gram_diagonal", iter([diagonal.astype("<f4")])
            yield f"{name}.gram", (piece.astype("<f2") for piece in pack(gathered.gram, diagonal))


# Reading ----------------------------------------------------------------------------------------


def is_statistics_file(source: Source) -> bool:
    return source.size >= 10 and source.read(8, 1)[0] == ord("{")


def read_statistics_file(path: Path) -> StoredStatistics:
    """Nothing but the header and the vectors are read."""
    source = FileSource(path)
    try:
        return _read(source, path)
    except FlyweightError as error:
        source.close()
        raise error.at(file=str(path)) from None


def _read(source: FileSource, path: Path) -> StoredStatistics:
    header = read_header(source, path.name)
    if KEY not in header.metadata:
        raise UnsupportedError(
            f"a safetensors file without '{KEY}' in its metadata: no statistics", code=_CODE,
            hint="`flyweight calibrate MODEL -o FILE` makes one",
        )  # fmt: skip
    about = _read_about(strict_json.loads(header.metadata[KEY].encode(), file=path.name))
    tensors = dict(header.tensors)
    matrices: dict[str, tuple[int, int]] = {}
    measured: dict[str, Measured] = {}
    for first, shared in about.pop("inputs").items():
        found = _read_input(source, tensors, first, about["tokens"])
        for name, rows in shared.items():
            if f"{name}.weight" in matrices:
                raise _malformed(f"'{name}' is in two inputs")
            matrices[f"{name}.weight"] = rows, len(found.importance)
            measured[f"{name}.weight"] = found
    sketch = _vector(source, tensors.pop(SKETCH), SKETCH) if SKETCH in tensors else None
    if tensors:
        raise _malformed(f"its tensor '{next(iter(tensors))}' belongs to no input")
    return StoredStatistics(str(path), "hf", matrices, measured, sketch, about, source.close)


def _read_about(document: Any) -> dict[str, Any]:
    match document:
        case {"version": int(version)} if version != VERSION:
            raise UnsupportedError(f"statistics of version {version}; this Flyweight reads version {VERSION}", code=_CODE)
        case {"version": 1, "tokens": int(tokens), "inputs": dict(inputs), **rest} if 0 <= tokens < 2**53 and _fit(inputs):
            return {"tokens": tokens, "inputs": inputs} | {str(key): value for key, value in rest.items()}
    raise _malformed(f"'{KEY}' is no description of statistics")


def _fit(inputs: Mapping[Any, Any]) -> bool:
    return all(
        isinstance(shared, dict) and first in shared and all(type(rows) is int and 0 < rows < 2**40 for rows in shared.values())
        for first, shared in inputs.items()
    )


def _read_input(source: Source, tensors: dict[str, Entry], first: str, tokens: int) -> Measured:
    name = f"{first}.importance"
    if name not in tensors:
        raise _malformed("the tensor is missing", name)
    importance = checked_importance(_vector(source, tensors.pop(name), name), name=name)
    both = [f"{first}.gram_diagonal", f"{first}.gram"]
    present = [tensors.pop(each, None) for each in both]
    if present == [None, None]:
        return Measured(importance, tokens)
    if None in present or len(importance) > MAX_COLUMNS:
        raise _malformed("a Gram matrix is a diagonal and correlations, of at most 2^18 columns", both[1])
    diagonal, gram = present
    assert diagonal is not None
    assert gram is not None
    values = checked_importance(_vector(source, diagonal, both[0]), name=both[0])
    wanted = TensorSpec((packed_size(len(importance)),), DType.F16)
    if len(values) != len(importance) or gram.spec != wanted:
        raise _malformed(f"it is {gram.spec}, but {len(importance)} columns have {wanted}", both[1])
    return Measured(importance, tokens, partial(_read_gram, source, gram.extents["data"], values, both[1]))


def _vector(source: Source, entry: Entry, name: str) -> Array:
    if entry.spec.dtype is not DType.F32 or len(entry.spec.shape) != 1:
        raise _malformed(f"it is {entry.spec}, not a vector of f32", name)
    extent = entry.extents["data"]
    return np.frombuffer(source.read(extent.offset, extent.nbytes), "<f4").astype(np.float32)


def _read_gram(source: Source, extent: Extent, diagonal: Array, name: str) -> Array:
    return unpack(np.frombuffer(source.read(extent.offset, extent.nbytes), "<f2"), diagonal, name=name)


def _malformed(message: str, tensor: str | None = None) -> MalformedError:
    return MalformedError(message, code=_CODE, tensor=tensor)
