"""Carrying out one step: read a slab of rows, turn it into the target's bytes, write it in place.

Memory is bounded by the slab, not by the tensor: rows are read with pread, decoded, encoded and
written before the next are touched. Codecs whose rows do not stand alone take the tensor whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from blake3 import blake3

from flyweight.checkpoint import Checkpoint
from flyweight.codecs import Array, Parts, codec_for
from flyweight.codecs.casts import as_float, astype
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import RAW, EncodedTensor, TensorSpec, has_rows, rows_encode_alone
from flyweight.pipeline.conversion_report import Drift, TensorReport
from flyweight.pipeline.plans.job import Job
from flyweight.pipeline.plans.plan import Step
from flyweight.pipeline.rows import SLAB_BYTES, decode_rows, pruned, read_rows, slabs
from flyweight.quantizers import QUANTIZERS

Writer = Callable[[str, int, memoryview], None]
"""write(file, offset, bytes)"""


def step_memory(job: Job, step: Step) -> int:
    """Bytes one worker needs at once for a step: source slab, its f32 values, the encoded slab and its check."""
    source = job.source(step)
    if source is None or (step.action == "remux" and step.transform is None):
        return SLAB_BYTES
    codec, columns = codec_for(step.codec), source.spec.columns
    quantizing = QUANTIZERS[step.quantizer].memory(codec, columns) if step.action == "transcode" else 0
    if _by_rows(source, job.target(step)):
        row = max(4 * columns, 1)
        return 6 * max(SLAB_BYTES, row) + quantizing
    return codec.copies_if_whole * 4 * source.spec.size + quantizing


def _by_rows(source: Entry, target: Entry) -> bool:
    return has_rows(source.spec, source.parts) and rows_encode_alone(target.spec, target.parts)


def carry_out(job: Job, step: Step, write: Writer, *, measured: bool = True) -> tuple[TensorReport, dict[str, str]]:
    """Do one step; returns its report, with errors if they are to be measured, and the BLAKE3 of every part written."""
    checkpoint, source, target = job.origin(step), job.source(step), job.target(step)
    hashers = {part: blake3() for part in target.parts}
    drift = Drift() if measured else None
    try:
        if source is None:
            _put(target, 0, codec_for(RAW).encode(step.spec, job.added[step.name]), hashers, write)
        elif step.action == "remux" and not (step.transform and step.transform.heads):
            _copy(checkpoint, source, target, hashers, write)
        else:
            for start, stop in slabs(source.spec, _by_rows(source, target)):
                # Nobody but `_turn` holds the slab, so that it can let go of it.
                parts = _turn(job, step, read_rows(checkpoint, source.name, start, stop, step.transform), drift)
                _put(target, start, parts, hashers, write)
    except FlyweightError as error:
        raise error.at(file=checkpoint.bundle.name, tensor=step.source or step.name) from None
    return TensorReport.of(step.action, target, drift), {part: hasher.hexdigest() for part, hasher in hashers.items()}


def _turn(job: Job, step: Step, tensor: EncodedTensor, drift: Drift | None) -> Parts:
    """A source slab as the target's parts."""
    if step.action == "remux":
        return tensor.parts
    source, target = codec_for(tensor.codec), codec_for(step.codec)
    spec = TensorSpec(tensor.spec.shape, step.spec.dtype)
    if step.action == "repack":
        return target.from_grid(spec, source.grid(tensor.spec, tensor.parts))
    if drift is None and spec.dtype is DType.BF16 and (rounded := _rounded(step, tensor)) is not None:
        return target.encode(spec, rounded)
    values = decode_rows(tensor, step.transform)
    same_type = spec.dtype is tensor.spec.dtype
    del tensor
    if target.exact:
        parts = target.encode(spec, _cast(pruned(values, target.spec, step.sparsity), spec.dtype))
    else:
        if not (target.takes_f16 and values.dtype == DType.F16.numpy):
            values = as_float(values)
        if not _all_finite(values):
            raise MalformedError(
                "the tensor has NaN or infinite values, which cannot be quantized", code="E_NONFINITE",
                hint="keep this tensor unquantized with a recipe",
            )  # fmt: skip
        parts = QUANTIZERS[step.quantizer](pruned(values, target.spec, step.sparsity), target, spec, job.inputs_of(step))
    unchanged = target.exact and same_type and not step.sparsity and not (step.transform and step.transform.add)
    if drift is not None and not unchanged:
        flat, at = values.reshape(-1), 0
        for run in target.decoded_runs(spec, parts):
            drift.add(flat[at : at + run.size], run)
            at += run.size
    return parts


def _rounded(step: Step, tensor: EncodedTensor) -> Array | None:
    """The values in bf16, where dense ones are wanted that nobody compares, straight from a codec that can; None if it cannot,
    or if there are infinite ones, of which `_cast` knows where they come from."""
    codec = codec_for(tensor.codec)
    if step.codec != RAW or not codec.rounds or (step.transform and step.transform.add):
        return None
    rounded = np.empty(tensor.spec.shape, DType.BF16.numpy)
    codec.decode(tensor.spec, tensor.parts, rounded)
    return None if _any_infinite(rounded) else rounded


def _cast(values: Array, dtype: DType) -> Array:
    """Round to `dtype`; a finite value that would become infinite is refused, not lost."""
    if dtype.numpy == values.dtype:
        return values
    cast = astype(values, dtype.numpy)
    if dtype.is_float and _any_infinite(cast) and not _any_infinite(values):
        top = float(np.abs(values[np.isfinite(values)]).max())
        raise MalformedError(
            f"a value of magnitude {top:.6g} is too large for {dtype}", code="E_OVERFLOW", hint="use --dtype bf16 or f32"
        )
    return cast


@cache
def _infinities() -> Mapping[np.dtype[Any], int]:
    """The bits of infinity, the largest magnitude but NaN's."""
    bits = {DType.F16: 0x7C00, DType.BF16: 0x7F80, DType.F32: 0x7F80_0000, DType.F64: 0x7FF0_0000_0000_0000}
    return {dtype.numpy: infinity for dtype, infinity in bits.items()}


def _any_infinite(values: Array) -> bool:
    return not _all_finite(values) and bool(np.isinf(_widened(values)).any())


def _all_finite(values: Array) -> bool:
    """By the bits where they tell: most arrays have neither infinity nor NaN, and need not be widened for that."""
    infinity = _infinities().get(values.dtype)
    if infinity is None:
        return bool(np.isfinite(values).all())
    bits, sign = values.reshape(-1), 1 << 8 * values.itemsize - 1
    positive, negative = (int(bits.view(f"{kind}{values.itemsize}").max(initial=0)) for kind in "iu")
    return positive < infinity and negative < sign + infinity


def _widened(values: Array) -> Array:
    """Sixteen-bit floats as f32, which holds them exactly and which NumPy works on fast; others as they are."""
    return astype(values, DType.F32.numpy) if values.itemsize == 2 and values.dtype.kind not in "iu" else values


def _put(target: Entry, start: int, parts: Parts, hashers: dict[str, blake3], write: Writer) -> None:
    """Write a slab's parts at their rows."""
    for name, spec in target.parts.items():
        extent = target.extents[name]
        width = spec.dtype.nbytes(spec.columns) if spec.shape else 0
        data = np.ascontiguousarray(parts[name]).reshape(-1).view(np.uint8).data
        hashers[name].update(data)
        write(extent.file, extent.offset + start * width, data)


def _copy(checkpoint: Checkpoint, entry: Entry, target: Entry, hashers: dict[str, blake3], write: Writer) -> None:
    """Copy stored bytes as they are, a buffer at a time."""
    checkpoint.checked_entry(entry.name)
    buffer = memoryview(bytearray(min(SLAB_BYTES, max((e.nbytes for e in entry.extents.values()), default=0))))
    for name, origin in entry.extents.items():
        source, place = checkpoint.source(origin.file), target.extents[name]
        for done in range(0, origin.nbytes, SLAB_BYTES):
            chunk = buffer[: min(SLAB_BYTES, origin.nbytes - done)]
            source.read_into(origin.offset + done, chunk)
            hashers[name].update(chunk)
            write(place.file, place.offset + done, chunk)
