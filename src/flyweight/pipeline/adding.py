"""`convert --add`: a form of four bits beside the eight-bit arrays of an npy-dir, in place.

    DIR/.DIR.partial-RANDOM/    hidden, so no part of the model; as in `staging`, with the new files in out/

The files are made and synced there and then renamed into the directory one by one, in the order in which the container
placed them; the last of them makes the new form count (`containers.npy_dir.adding`). A kill at any point leaves the old
values or the new ones. What a killed run left in tensors/ counts for nothing and is made again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.codecs import codec_for
from flyweight.containers.npy_dir.adding import Addition
from flyweight.containers.npy_dir.reading import FOLDER, INT4_READY
from flyweight.errors import OutputError, UnsupportedError
from flyweight.manifest import Entry, Manifest
from flyweight.pipeline.arguments import as_count, as_size
from flyweight.pipeline.plan import Plan, Step
from flyweight.pipeline.recipe import Recipe
from flyweight.pipeline.report import ConversionReport
from flyweight.pipeline.run import Progress, check_resources, fill_and_publish, fingerprint
from flyweight.pipeline.staging import Staging
from flyweight.writing import Folder, Tree, move

__all__ = ["add_form", "plan_addition"]

_ARRAYS = FOLDER.rstrip("/")


def plan_addition(checkpoint: Checkpoint, form: str) -> Plan:
    """What `add_form` would do; without steps if the form is there already."""
    where = checkpoint.bundle.name
    if checkpoint.manifest.format != "npy_dir":
        message = f"a tensor has one form in {checkpoint.manifest.format}"
        raise UnsupportedError(message, code="E_FORMAT", file=where, hint="only an npy-dir has more")
    addition = Addition(checkpoint.bundle, form)
    codec = codec_for(addition.codec)
    steps, notes = [], []
    for source in addition.eights:
        if not addition.carries(source.spec, codec.spec):
            notes.append(f"{source.name} stays int8: {source.spec} cannot be stored as {codec.spec}")
            continue
        target = Entry(source.name, source.spec, codec.spec, codec.layout(source.spec))
        steps.append(Step("transcode", source, target, quantizer=codec.quantizer))
    if addition.turned:
        if steps or not addition.is_there:
            message = "four bits of another form, or of some tensors, count already"
            raise OutputError(message, code="E_EXISTS", file=where, hint="convert to a new directory instead")
        notes.append(f"{form} is there already")
    elif not steps:
        raise UnsupportedError("no tensor is in eight bits", code="E_NOTHING", file=where, hint="convert --quant int8 first")
    made = Manifest(addition.name, {step.target.name: step.target for step in steps}, dialect=addition.dialect)
    placement = addition.place(made, where)
    placed = tuple(replace(step, target=placement.manifest.entries[step.target.name]) for step in steps)
    return Plan(checkpoint, addition, Recipe(form), placement, placed, tuple(notes))


def add_form(
    directory: Path | str,
    form: str,
    *,
    jobs: int | None = None,
    max_ram: int | str | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> ConversionReport:
    """Add four bits (`int4`, `int4-g64`, `int4-legacy`) to an npy-dir, made from its eight; the report has the error added."""
    started = time.perf_counter()
    directory = Path(os.path.abspath(directory))
    jobs, max_ram = as_count("jobs", jobs), as_size("max_ram", max_ram)
    with open_checkpoint(directory, checks_digests=True) as checkpoint:
        plan = plan_addition(checkpoint, form)
        assert isinstance(plan.container, Addition)
        workers = check_resources(plan, directory, jobs=jobs, max_ram=max_ram, resume=resume)
        staging = Inlay(
            directory, plan.container, plan.placement.images, fingerprint=fingerprint(plan), resume=resume and bool(plan.steps)
        )
        done = fill_and_publish(plan, staging, workers, progress)
    return ConversionReport(
        source=str(directory),
        destination=str(directory),
        format=plan.container.name,
        recipe=form,
        nbytes=plan.nbytes,
        seconds=round(time.perf_counter() - started, 3),
        resumed=done.resumed,
        tensors=done.reports,
        notes=plan.notes,
    )


class Inlay(Staging):
    """Files that join a directory which is already there, and which someone else may have made."""

    def __init__(self, directory: Path, addition: Addition, files: Collection[str], *, fingerprint: str, resume: bool) -> None:
        self.addition = addition
        super().__init__(directory, files, is_directory=True, fingerprint=fingerprint, resume=resume, force=True)

    def _open_parent(self) -> Folder:
        return Folder(self.destination)

    def _require_free(self) -> None:
        """Refuse a directory in which a name that will be replaced or removed is not a file of this user's."""
        with self._parent.folder(_ARRAYS) as arrays:
            names = set(arrays.names())
            displaced = names.intersection(name.removeprefix(FOLDER) for name in (*self._files, *self._idle(arrays)))
            for name in displaced if self._files else ():
                arrays.require_own_file(name)
        for name in self._files.intersection(self._parent.names()):
            self._parent.require_own_file(name)

    def _idle(self, arrays: Folder) -> list[str]:
        return self.addition.idle(FOLDER + name for name in arrays.names())

    def _rename(self) -> None:
        if not self._names:  # nothing is added: a run that was killed in its last breath is cleaned up after
            return
        assert self._out is not None
        self._require_free()
        staged, tensors = Tree(self._out), self._parent.folder(_ARRAYS)
        with tensors, closing(staged):
            if self._parent.status(INT4_READY) is not None:
                if not self.addition.was_ready:
                    message = "four bits appeared while they were being added"
                    raise OutputError(message, code="E_EXISTS", file=str(self.destination))
                self._parent.remove(INT4_READY)  # no tensor had two forms, so none changes
                self._parent.sync()
            for name in self._idle(tensors):
                tensors.remove(name.removeprefix(FOLDER))
            for name in self._names:
                is_array = name.startswith(FOLDER)
                if not is_array:
                    tensors.sync()
                    self._parent.sync()
                with staged.at(name) as (folder, last):
                    move(folder, last, tensors if is_array else self._parent, last)

    def _clean_up(self) -> None:
        self.discard()
