"""`convert --add`: a form of four bits beside the eight-bit arrays of an npy-dir, in place.

    DIR/.DIR.partial/       hidden, so no part of the model; as in `staging`, with the new files in out/

The files are made and synced there and then renamed into the directory one by one, in the order in which the container
placed them; the last of them makes the new form count (`containers.npy_dir.adding`). A kill at any point leaves the old
values or the new ones. What a killed run left in tensors/ counts for nothing and is made again.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.codecs import codec_for
from flyweight.containers.npy_dir.adding import Addition
from flyweight.containers.npy_dir.reading import FOLDER, INT4_READY
from flyweight.errors import OutputError, UnsupportedError
from flyweight.manifest import Entry, Manifest
from flyweight.pipeline.plan import Plan, Step
from flyweight.pipeline.recipe import Recipe
from flyweight.pipeline.report import ConversionReport
from flyweight.pipeline.run import Progress, check_resources, fill_and_publish, fingerprint
from flyweight.pipeline.staging import Staging, sync_directory
from flyweight.quantizers import default_for

__all__ = ["add_form", "plan_addition"]


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
        steps.append(Step("transcode", source, target, quantizer=default_for(codec)))
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
    max_ram: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> ConversionReport:
    """Add four bits (`int4`, `int4-g64`, `int4-legacy`) to an npy-dir, made from its eight; the report has the error added."""
    started = time.perf_counter()
    directory = Path(os.path.abspath(directory))
    with open_checkpoint(directory) as checkpoint:
        plan = plan_addition(checkpoint, form)
        assert isinstance(plan.container, Addition)
        workers = check_resources(plan, directory, jobs=jobs, max_ram=max_ram, resume=resume)
        staging = Inlay(directory, plan.container, fingerprint=fingerprint(plan), resume=resume and bool(plan.steps))
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
    """Files that join a directory which is already there."""

    def __init__(self, directory: Path, addition: Addition, *, fingerprint: str, resume: bool) -> None:
        self.addition = addition
        super().__init__(directory, is_directory=True, fingerprint=fingerprint, resume=resume, force=True)

    def _home(self) -> Path:
        return self.destination

    def _rename(self) -> None:
        if not self._names:  # nothing is added: a run that was killed in its last breath is cleaned up after
            return
        sentinel, tensors = self.destination / INT4_READY, self.destination / FOLDER
        if os.path.lexists(sentinel):
            if not self.addition.was_ready:
                raise OutputError("four bits appeared while they were being added", code="E_EXISTS", file=str(self.destination))
            os.unlink(sentinel)  # no tensor had two forms, so none changes
            sync_directory(self.destination)
        for name in self.addition.idle(FOLDER + name for name in os.listdir(tensors)):
            os.unlink(self.destination / name)
        for name in self._names:
            if not name.startswith(FOLDER):
                sync_directory(tensors)
                sync_directory(self.destination)
            os.replace(self.out / name, self.destination / name)
        sync_directory(self.destination)
