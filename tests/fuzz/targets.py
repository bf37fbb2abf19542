"""What is fuzzed: every container of the table, and the readers of untrusted bytes below and beside them.

A target takes an input and returns how it ended, or raises: anything but a return is a finding.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from blake3 import blake3

from flyweight import kernels, models
from flyweight.checkpoint import Checkpoint, read_checkpoint
from flyweight.checkpoint.model_opening import read_delta
from flyweight.checkpoint.overlay import Overlay
from flyweight.checkpoint.tensor_bytes import stored_bytes
from flyweight.codecs import CODECS
from flyweight.codecs.entropy_coded import CHUNK
from flyweight.containers import CONTAINERS, recognise
from flyweight.containers.mlpackage import check_content
from flyweight.containers.squizd.audit import audit
from flyweight.containers.squizd.squizd_reading import check_archive, read
from flyweight.deltas import KINDS
from flyweight.deltas.changes import Delta
from flyweight.deltas.lora import named_as, read_adapter
from flyweight.deltas.recognition import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from flyweight.foundation import strict_json
from flyweight.foundation.cursor import SCALARS, Cursor
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Extent
from flyweight.foundation.tensor import TensorSpec
from flyweight.models import FAMILIES
from flyweight.models.checked_record import Record
from flyweight.models.dialects import DIALECTS, gguf_tokenizer
from flyweight.models.dialects.contract import Text
from flyweight.models.tokenizers import tokenizer_files
from flyweight.pipeline.deltas.delta_check import look_at_file
from flyweight.pipeline.plans.job import Job
from flyweight.pipeline.plans.plan import Plan
from flyweight.pipeline.plans.planning import job_of_plan, make_job
from flyweight.pipeline.plans.quantization_names import preset, recipe_for
from flyweight.pipeline.plans.recipe_file import load_recipe
from flyweight.pipeline.transcode import carry_out
from flyweight.runtime.text.chat_template import templates_of
from flyweight.runtime.text.tokenizer import Tokenizer
from flyweight.sources import MemoryBundle, MemorySource
from flyweight.sources.zstd import ZstdSource
from flyweight.statistics_files.known_files import open_statistics
from flyweight.targets.ane.records.activation_record import RECORD_BYTES, ActivationRecord
from flyweight.targets.ane.records.kernel_unit import Descriptor, KernelUnit
from fuzz.framing import Input
from fuzz.oracle import MAX_DECODED, check_container, check_manifest, decoded, placed_again, promise
from fuzz.seeds import PLANNED_TENSORS, SQUIZD_WHOLE
from support import coreml_files
from support.raw_files import safetensors_file, tensor_json
from support.squizd_files import NAME
from support.toys import safetensors_bytes
from support.wdelta_files import BASE

__all__ = ["TARGETS", "Target"]

Target = Callable[[Input], str]
"""Takes an input; returns how it ended. What it raises is a finding."""

# Everything is imported now: a module that is imported inside an execution would cost that execution its time.
list(CONTAINERS), list(CODECS), list(FAMILIES), list(DIALECTS), list(KINDS)

ROWS = 20
"""Of the embedding beside a tokenizer."""


def _only(given: Input) -> bytes:
    return next(iter(given.files.values()), b"")


def _squizd_audit(given: Input) -> str:
    """Every broken rule is listed, also of a file that is refused."""
    if given.is_directory:
        return "a directory"
    return ", ".join(sorted({finding.code for finding in audit(read(MemorySource(_only(given), NAME), NAME))})) or "sound"


def _squizd_damage(given: Input) -> str:
    """A sound file with edits that leave its digests as they were. The audit finds something, whatever the edits are.

    The input is the number of the file, then edits: u16 place, u8 length, that many bytes to put there.
    """
    edits = _only(given)
    original = SQUIZD_WHOLE[edits[0] % len(SQUIZD_WHOLE)] if edits else SQUIZD_WHOLE[0]
    damaged, at = bytearray(original), 1
    while at + 4 <= len(edits):
        place, length = struct.unpack_from("<HB", edits, at)
        damaged[place % len(damaged) : place % len(damaged) + length] = edits[at + 3 : at + 3 + length]
        at += 3 + length
    raw = bytes(damaged)
    if raw in SQUIZD_WHOLE:
        return "not damaged"
    found = list(audit(read(MemorySource(raw, NAME), NAME)))
    promise(bool(found), "damage was not found")
    return found[0].code


def _archive(given: Input) -> str:
    raw = b"ANLX" + struct.pack("<Q", len(_only(given))) + _only(given)
    source, extent = MemorySource(raw, NAME), Extent(NAME, 12, len(raw) - 12)
    try:
        check_archive(source, extent)
        check_content(source, extent)
    except FlyweightError as error:
        return error.code
    return "read"


def _zstd(given: Input) -> str:
    """Read in order and out of order: the same bytes, as many as the frame says."""
    try:
        source = ZstdSource(MemorySource(_only(given), "x.zst"))
        half = min(source.size // 2, 1 << 20)
        late = bytes(source.read(half, min(source.size - half, 1000)))
        first = bytes(source.read(0, min(source.size, 1 << 20)))
    except FlyweightError as error:
        return error.code
    promise(len(first) == min(source.size, 1 << 20), "less than was promised")
    promise(first[half : half + len(late)] == late[: max(len(first) - half, 0)], "other bytes at the second reading")
    return "read"


def _strict_json(given: Input) -> str:
    try:
        value = strict_json.loads(_only(given), file="x.json")
    except FlyweightError as error:
        return error.code
    text = strict_json.dumps(value)
    promise(strict_json.dumps(strict_json.loads(text, file="again")) == text, "a value does not survive being written")
    return "read"


def _cursor(given: Input) -> str:
    """The program's bytes choose reads. Many strings at once must be the strings one by one."""
    data, label_of = given.files.get("data", b""), list(SCALARS)
    cursor = Cursor(MemorySource(data, "data"))
    try:
        for step in given.files.get("program", b""):
            match step % 6:
                case 0:
                    cursor.scalar(label_of[step // 6 % len(label_of)])
                case 1:
                    promise(len(cursor.take(step // 6)) == step // 6, "another length than was asked for")
                case 2:
                    cursor.scalars(label_of[step // 6 % len(label_of)], step % 5)
                case 3:
                    cursor.text()
                case 4:
                    cursor.count(cursor.u64() >> step // 6, 1 + step % 9, 1000, "items")
                case _:
                    _texts(cursor, data, step // 6)
            promise(0 <= cursor.offset <= len(data), "a cursor outside its bytes")
    except FlyweightError as error:
        return error.code
    return "read"


def _texts(cursor: Cursor, data: bytes, count: int) -> None:
    single, one_by_one, refused = Cursor(MemorySource(data, "data"), cursor.offset), list[str](), False
    try:
        for _ in range(count):
            one_by_one.append(single.text())
    except FlyweightError:
        refused = True
    try:
        together = cursor.texts(count)
    except FlyweightError:
        promise(refused, "strings that are read one by one are refused together")
        raise
    promise(together == one_by_one and not refused, "strings are read together that are others one by one")
    promise(cursor.offset == single.offset, "reading together ends elsewhere")


def _statistics(given: Input) -> str:
    """Statistics of whichever kind: what is read are finite numbers."""
    os.ftruncate(_MEMORY, 0)
    os.pwrite(_MEMORY, _only(given), 0)
    try:
        with open_statistics(f"/proc/self/fd/{_MEMORY}") as found:
            for name in found.matrices:
                known = found.inputs_of(name)
                assert known is not None
                promise(bool(np.isfinite(known.importance).all() and (known.importance >= 0).all()), "importance that is none")
                gram = known.gram
                promise(gram is None or bool(np.isfinite(gram).all()), "a Gram matrix of no numbers")
            return f"{min(len(found.matrices), 8)} matrices" + (" with Gram matrices" if found.has_gram else "")
    except FlyweightError as error:
        return error.code


_MEMORY = os.memfd_create("recipe") if hasattr(os, "memfd_create") else -1
_SPEC = TensorSpec((4, 64), DType.F32)


def _recipe(given: Input) -> str:
    os.ftruncate(_MEMORY, 0)
    os.pwrite(_MEMORY, _only(given), 0)
    try:
        recipe = load_recipe(f"/proc/self/fd/{_MEMORY}")
        for name in ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "x"):
            recipe.choose(_SPEC, name)
        strict_json.dumps(recipe.as_json())
    except FlyweightError as error:
        return error.code
    return "read"


PLANNED = read_checkpoint(
    MemoryBundle({"m.safetensors": safetensors_bytes(PLANNED_TENSORS)}, is_directory=False), CONTAINERS["safetensors"]
)
"""What plans are for: the seeds are plans of its conversion."""
_MOST_WRITTEN = 1 << 20
"""In place of a disk, which refuses an output that it cannot hold before anything of it is made."""


def _plan(given: Input) -> str:
    """What can be read is written as it is, and refused or carried out."""
    try:
        plan = Plan.from_json(_only(given), "/plans")
        promise(Plan.from_json(plan.to_json("/plans"), "/plans") == plan, "a plan does not survive being written")
        job = job_of_plan(plan, PLANNED, "x")
        promise(job.plan.steps == plan.steps, "other steps than those of the plan")
        if job.nbytes > _MOST_WRITTEN:
            return "too large"
        for step in plan.steps:
            carry_out(job, step, lambda _file, _offset, _bytes: None)
    except FlyweightError as error:
        return error.code
    return "carried out"


_EMBEDDING = safetensors_file({"model.embed_tokens.weight": tensor_json("I8", [ROWS, 1], 0, ROWS)}, bytes(ROWS))


def _beside_an_embedding(given: Input) -> Checkpoint:
    """The files as those of a model: a GGUF file, or a directory with an embedding and nothing else."""
    if not given.is_directory:
        bundle = MemoryBundle(given.files, is_directory=False)
        return read_checkpoint(bundle, CONTAINERS["gguf"])
    files = {name: data for name, data in given.files.items() if not name.endswith((".safetensors", ".index.json"))}
    bundle = MemoryBundle({"config.json": b"{}", **files, "model.safetensors": _EMBEDDING})
    return read_checkpoint(bundle, CONTAINERS["hf"])


def _template(given: Input) -> str:
    try:
        found = templates_of(_beside_an_embedding(given))
    except FlyweightError as error:
        return error.code
    promise(all(type(name) is type(text) is str for name, text in found.items()), "templates are texts by name")
    return f"{len(found)} templates"


def _tokenizer(given: Input) -> str:
    """tokenizer.json to GGUF and back: what could be translated once can be again, to the same."""
    present: dict[str, Callable[[], bytes]] = {name: partial(bytes, data) for name, data in given.files.items()}
    try:
        words, templates, settings = tokenizer_files.from_files(present, ROWS)
        metadata = gguf_tokenizer.text_metadata(Text(words, templates, settings, None))
        record = Record({key: typed.value for key, typed in metadata.items()}, "x.gguf")
        again = gguf_tokenizer.read_vocabulary(record, ROWS)
        templates = gguf_tokenizer.read_templates(record)
        if again is not None:
            settings = gguf_tokenizer.read_remembered(record, gguf_tokenizer.TOKENIZER_SETTINGS)
            tokenizer_files.to_files(again, templates, settings, 64)
    except FlyweightError as error:
        return error.code
    promise((words is None) == (again is None), "a vocabulary is lost in translation")
    promise(words is None or again is None or words.tokens == again.tokens, "tokens change in translation")
    return "translated"


def _tokenizer_library(given: Input) -> str:
    """Through the library that cuts texts, which is not ours."""
    try:
        tokenizer = Tokenizer.of(_beside_an_embedding(given))
        ids = tokenizer.encode("ab c 12 <s>")
        tokenizer.decode(ids)
    except FlyweightError as error:
        return error.code
    return "read"


def _model(given: Input) -> str:
    """Settings and names of a model: what is run, and what is translated to the other dialect."""
    bundle = MemoryBundle(given.files, is_directory=given.is_directory)
    code = ""
    try:
        checkpoint = read_checkpoint(bundle, CONTAINERS["hf" if given.is_directory else "gguf"])
    except FlyweightError as error:
        return error.code
    steps: list[Callable[[], Any]] = [
        lambda: models.blueprint(checkpoint.manifest, checkpoint.read),
        lambda: models.translate(checkpoint.manifest, "gguf" if given.is_directory else "hf", checkpoint.read),
    ]
    for step in steps:
        try:
            with np.errstate(all="raise"):
                step()
            code += "done "
        except FlyweightError as error:
            code += f"{error.code} "
    return code


def _adapter(given: Input) -> str:
    """A LoRA adapter: what can be read is checked, and its first chunk rebuilt on zeros."""
    if not {ADAPTER_CONFIG, ADAPTER_WEIGHTS} <= given.files.keys():
        return "no adapter"
    try:
        delta = named_as(read_adapter(MemoryBundle(given.files)), {"model.layers.0.self_attn.q_proj.weight"})
        for name, change in delta.changes.items():
            kind = change.parts["data"]
            kind.check()
            out = np.empty(min(change.spec.size, CHUNK), change.spec.dtype.storage)
            kind.rebuild(0, len(out), np.zeros_like(out), out)
            promise(change.name == name and change.parent in (name, None), "a change of another tensor")
    except FlyweightError as error:
        return error.code
    return f"{len(delta.changes)} changes"


_QUANTS = ("lut4", "int8", "int4-b32", "sparse", "keep", "lut2-v2")


def _coreml_rewriting(given: Input) -> str:
    """A package with its weights compressed anew: the rest of its program is what it was, byte for byte."""
    bundle = MemoryBundle(given.files, is_directory=given.is_directory)
    target = CONTAINERS["coreml"]
    if not given.is_directory or not target.probe(bundle):
        return "no package"
    try:
        checkpoint = read_checkpoint(bundle, target)
        numbers = sum(entry.spec.size for entry in checkpoint.manifest.entries.values())
        if checkpoint.manifest.nbytes > _MOST_WRITTEN or numbers > MAX_DECODED:
            return "too large"
        quant = _QUANTS[sum(map(len, given.files.values())) % len(_QUANTS)]
        job = make_job(checkpoint, target, "x.mlpackage", recipe=recipe_for(target, quant))
        written = _carried_out(job)
    except FlyweightError as error:
        return error.code
    again = read_checkpoint(MemoryBundle(written), target)
    promise(again.manifest.entries.keys() == checkpoint.manifest.entries.keys(), "other tensors than before")
    decoded(again)
    for name, entry in checkpoint.manifest.entries.items():
        promise(again.manifest.entries[name].spec.shape == entry.spec.shape, "a tensor of another shape")
    if coreml_files.MODEL in checkpoint.manifest.files:  # else the program is made anew
        before = checkpoint.read(checkpoint.manifest.files[coreml_files.MODEL])
        same = coreml_files.without_weights(before) == coreml_files.without_weights(written[coreml_files.MODEL])
        promise(same, "another program than before")
    return f"written as {quant}"


def _carried_out(job: Job) -> dict[str, bytes]:
    """The files that a job writes, in memory."""
    files = {name: bytearray(image.nbytes) for name, image in job.placement.images.items()}
    for name, image in job.placement.images.items():
        for offset, chunk in image.chunks:
            files[name][offset : offset + len(chunk)] = chunk

    def write(file: str, offset: int, data: Any) -> None:
        files[file][offset : offset + len(data)] = bytes(data)

    for step in job.plan.steps:
        carry_out(job, step, write)
    copies = {name: bytes(job.checkpoint.read(extent)) for name, extent in job.placement.copies.items()}
    return {**{name: bytes(raw) for name, raw in files.items()}, **copies}


def _uqff_bridge(given: Input) -> str:
    """From the generation of UQFF that it is to the other: what is copied is the same there, byte for byte."""
    bundle = MemoryBundle(given.files, is_directory=given.is_directory)
    other = {CONTAINERS["uqff_blob"]: CONTAINERS["uqff"], CONTAINERS["uqff"]: CONTAINERS["uqff_blob"]}
    try:
        source = recognise(bundle)
        if source not in other:
            return "another format"
        target = other[source]
        checkpoint = read_checkpoint(bundle, source)
        job = make_job(checkpoint, target, "x", recipe=preset("keep"))
        if job.nbytes > _MOST_WRITTEN:
            return "too large"
        written = _carried_out(job)
    except FlyweightError as error:
        return error.code
    there = MemoryBundle(written)
    promise(recognise(there) is target, "what was written is of another generation")
    crossed = read_checkpoint(there, target)
    copied = [step for step in job.plan.steps if step.action == "remux" and step.source and not step.transform]
    for step in copied:
        promise(crossed.manifest.entries[step.name].codec == step.codec, "a tensor changed its codec")
        same = b"".join(stored_bytes(crossed, step.name)) == b"".join(stored_bytes(job.checkpoint, step.source or ""))
        promise(same, "a tensor that is copied has other bytes")
    return f"{min(len(copied), 8)} copied to {target.name}"


def _ane_records(given: Input) -> str:
    """Kernel units and activation records, and descriptors as text: what is read is written as it was."""
    raw, code = _only(given), ""
    try:
        unit = KernelUnit.read(MemorySource(raw, "x.unit"))
        promise(b"".join(unit.pieces()) == raw, "a kernel unit is written as another")
        code += "unit "
    except FlyweightError as error:
        code += f"{error.code} "
    try:
        record = ActivationRecord.read(MemorySource(raw, "x.lut"))
        promise(record.to_bytes(deltas=len(raw) > RECORD_BYTES) == raw, "an activation record is written as another")
        record.evaluate(np.array([-1.0, 0.0, 0.5, 70000.0]))
        code += "record "
    except FlyweightError as error:
        code += f"{error.code} "
    try:
        descriptor = Descriptor.from_text(raw.decode("latin-1"))
        promise(Descriptor.from_text(descriptor.text()) == descriptor, "a descriptor does not survive being written")
        code += "descriptor"
    except FlyweightError as error:
        code += error.code
    return code


DELTA_BASE = read_checkpoint(MemoryBundle(BASE, "/models/base"), CONTAINERS["hf"])
"""What deltas are opened on: the seeds are made from it."""


_MOST_REBUILT = _MOST_WRITTEN if kernels.active() != "reference" else 1 << 13
"""Bytes of a model that deltas make: the definitions of the kernels take half a second for a chunk."""


def _wdelta(given: Input) -> str:
    """Checked as a file, opened on a base, read and written; what has digests and can be read is what they say."""
    if given.is_directory:
        return "a directory"
    bundle = MemoryBundle(given.files, f"/models/{NAME}", is_directory=False)
    try:
        delta = read_delta(bundle)
        found = list(look_at_file(bundle, delta))
        opened = Overlay(DELTA_BASE, delta, bundle, owns_base=False)
    except FlyweightError as error:
        return error.code
    try:
        return _read_and_written(opened, delta) + (f", {found[0].code}" if found else "")
    finally:
        opened.close()


def _read_and_written(opened: Overlay, delta: Delta) -> str:
    check_manifest(opened.manifest, opened.bundle, twins=True)
    if opened.manifest.nbytes > _MOST_REBUILT:
        return "too large"
    code = decoded(opened)
    code += placed_again(opened.container, opened)
    for name, change in delta.changes.items():
        if change.digest is not None and opened.manifest.entries[name].nbytes <= _MOST_WRITTEN:
            try:
                opened.check_tensor(name)
            except FlyweightError:
                continue
            raw = b"".join(stored_bytes(opened, name))
            promise(blake3(raw).hexdigest() == change.digest, "a tensor that is not what its digest says was not found")
    return code


TARGETS: dict[str, Target] = {
    **{name: partial(check_container, CONTAINERS[name]) for name in CONTAINERS.lines},
    "coreml_rewriting": _coreml_rewriting,
    "ane_records": _ane_records,
    "uqff_bridge": _uqff_bridge,
    "wdelta": _wdelta,
    "squizd_audit": _squizd_audit,
    "squizd_damage": _squizd_damage,
    "archive": _archive,
    "zstd": _zstd,
    "strict_json": _strict_json,
    "cursor": _cursor,
    "recipe": _recipe,
    "statistics": _statistics,
    "plan": _plan,
    "template": _template,
    "tokenizer": _tokenizer,
    "tokenizer_library": _tokenizer_library,
    "model": _model,
    "adapter": _adapter,
}
