"""`extract`: side files, a draft head, a Core ML package or single tensors of a model, written as separate files.

    draft     the draft head, as a safetensors file under its own names
    coreml    the Core ML package, as a directory, or as the archive it is stored as
    files     the side files (config, tokenizer, chat template), as a directory
    NAME      one side file, or one tensor as a safetensors file, as it is stored

Every output is there whole or not at all. Members of an archive are plain files below the directory they are written to,
inflated under the caps of `containers.mlpackage`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.containers import container_named, mlpackage
from flyweight.containers.container import Image
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.manifest import DRAFT, Entry, Extent, Manifest
from flyweight.pipeline.execution import Progress, carry_out_job
from flyweight.pipeline.output.replacing import require_apart
from flyweight.pipeline.output.staging import Staging, published
from flyweight.pipeline.plans.arguments import as_path
from flyweight.pipeline.plans.inputs import SOURCE, input_of
from flyweight.pipeline.plans.job import Job
from flyweight.pipeline.plans.plan import Plan, Step
from flyweight.pipeline.plans.recipe import Recipe
from flyweight.pipeline.rows import SLAB_BYTES

Content = tuple[int, Iterator[bytes]]
"""Bytes in all, and the bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something that can be extracted: `count` tensors or files."""

    name: str
    kind: str
    count: int
    nbytes: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ExtractReport:
    source: str
    part: str
    destination: str
    items: tuple[str, ...]
    nbytes: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def list_parts(source: Path | str) -> list[Part]:
    """What `extract` finds in a model, single tensors of the model itself left out."""
    with open_checkpoint(source) as checkpoint:
        files = checkpoint.manifest.files
        found = []
        if head := _draft(checkpoint):
            found.append(Part("draft", "draft head", len(head), sum(entry.nbytes for entry in head.values())))
        if mlpackage.NAME in files:
            members = _members(checkpoint)
            found.append(Part(mlpackage.PART, "Core ML package", len(members), sum(member.file_size for member in members)))
        plain = {name: _nbytes(content) for name, content in files.items() if name != mlpackage.NAME}
        if plain:
            found.append(Part("files", "side files", len(plain), sum(plain.values())))
        return found + [Part(name, "side file", 1, nbytes) for name, nbytes in plain.items()]


def extract(
    source: Path | str,
    part: str,
    destination: Path | str,
    *,
    archived: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> ExtractReport:
    """Write `part` of a model to `destination`. `archived`: a Core ML package as the archive it is."""
    destination = Path(os.path.abspath(as_path("destination", destination)))
    if archived and part != mlpackage.PART:
        raise ValueError("only a Core ML package is stored as an archive")
    if force:
        require_apart(destination, [source])
    with open_checkpoint(source) as checkpoint:
        try:
            tensors = _tensors(checkpoint, part)
            if tensors:
                nbytes = _write_tensors(checkpoint, tensors, destination, force, progress)
                return ExtractReport(str(source), part, str(destination), tuple(tensors), nbytes)
            is_directory = part == "files" or (part == mlpackage.PART and not archived)
            contents = _contents(checkpoint, part, destination.name, archived)
            _write(contents, destination, is_directory, force, progress)
        except FlyweightError as error:
            raise error.at(file=checkpoint.bundle.name) from None
    total = sum(nbytes for nbytes, _ in contents.values())
    return ExtractReport(str(source), part, str(destination), tuple(contents), total)


# Tensors --------------------------------------------------------------------------------------------


def _draft(checkpoint: Checkpoint) -> dict[str, Entry]:
    """The draft head by its own names."""
    entries = checkpoint.manifest.entries
    return {name.removeprefix(DRAFT): entry for name, entry in entries.items() if name.startswith(DRAFT)}


def _tensors(checkpoint: Checkpoint, part: str) -> dict[str, Entry]:
    if part == "draft":
        return _draft(checkpoint) or _nothing("there is no draft head")
    named = part in checkpoint.manifest.entries and part not in checkpoint.manifest.files
    return {part: checkpoint.manifest.entries[part]} if named else {}


def _write_tensors(
    checkpoint: Checkpoint, tensors: Mapping[str, Entry], destination: Path, force: bool, progress: Progress | None
) -> int:
    container = container_named("safetensors")
    entries = {name: replace(entry, name=name, extents={}) for name, entry in tensors.items()}
    placement = container.place(Manifest(container.name, entries), destination.name)
    steps = tuple(Step(name, entry.spec, entry.codec, "remux", entry.name) for name, entry in tensors.items())
    plan = Plan(container, destination.name, {SOURCE: input_of(checkpoint)}, Recipe("keep").as_json(), steps)
    carry_out_job(Job(plan, checkpoint, placement), destination, force=force, progress=progress)
    return placement.nbytes


# Files ----------------------------------------------------------------------------------------------


def _nbytes(content: Extent | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.nbytes


def _nothing(what: str) -> dict[str, Any]:
    raise UnsupportedError(what, code="E_NO_PART", hint="`flyweight extract MODEL --list` lists the parts")


def _contents(checkpoint: Checkpoint, part: str, name: str, archived: bool) -> dict[str, Content]:
    files = checkpoint.manifest.files
    if part == "files":
        plain = {file: content for file, content in files.items() if file != mlpackage.NAME}
        return {file: _pieces(checkpoint, content) for file, content in plain.items()} or _nothing("there are no side files")
    if part == mlpackage.PART and mlpackage.NAME not in files:
        return _nothing("there is no Core ML package")
    if part == mlpackage.PART and not archived:
        return {member.filename: _inflated(checkpoint, member) for member in _members(checkpoint)}
    file = mlpackage.NAME if part == mlpackage.PART else part
    return {name: _pieces(checkpoint, files[file])} if file in files else _nothing(f"there is no '{part}'")


def _pieces(checkpoint: Checkpoint, content: Extent | bytes) -> Content:
    if isinstance(content, bytes):
        return len(content), iter([content])
    source = checkpoint.source(content.file)
    starts = range(0, content.nbytes, SLAB_BYTES)
    reads = (bytes(source.read(content.offset + at, min(SLAB_BYTES, content.nbytes - at))) for at in starts)
    return content.nbytes, reads


def _archive(checkpoint: Checkpoint) -> Extent:
    content = checkpoint.manifest.files[mlpackage.NAME]
    assert isinstance(content, Extent)  # side files of what was opened lie in its files
    return content


def _members(checkpoint: Checkpoint) -> list[mlpackage.Member]:
    extent = _archive(checkpoint)
    members = mlpackage.members(checkpoint.source(extent.file), extent)
    names = {member.filename for member in members}
    for name in names:
        if any("/".join(name.split("/")[:depth]) in names for depth in range(1, name.count("/") + 1)):
            raise MalformedError(f"the member {name!r} is inside another member", code="E_ZIP_PATH", offset=extent.offset)
    return members


def _inflated(checkpoint: Checkpoint, member: mlpackage.Member) -> Content:
    extent = _archive(checkpoint)
    return member.file_size, mlpackage.read_member(checkpoint.source(extent.file), extent, member)


def _write(
    contents: Mapping[str, Content], destination: Path, is_directory: bool, force: bool, progress: Progress | None
) -> None:
    total = sum(nbytes for nbytes, _ in contents.values())
    staging = Staging(destination, contents, is_directory=is_directory, fingerprint="", resume=False, force=force)
    with published(staging):
        staging.allocate({name: Image(nbytes, ()) for name, (nbytes, _) in contents.items()})
        for name, (nbytes, pieces) in contents.items():
            at = 0
            for piece in pieces:
                staging.write(name, at, memoryview(piece))
                at += len(piece)
            if progress is not None:
                progress(name, nbytes, total)
