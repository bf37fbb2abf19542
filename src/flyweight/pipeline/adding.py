"""`convert --add`: a second form of a model's tensors, added in place.

    DIR/.DIR.partial-RANDOM/    hidden, so no part of the model; as in `staging`, with the new files in out/

The files are made and synced there and then renamed into the directory one by one, in the order in which the container
placed them; the last of them makes the new form count (`containers.abilities.Addition`). A kill at any point leaves the old
values or the new ones. What a killed run left in the folder of arrays counts for nothing and is made again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.codecs import codec_for
from flyweight.containers.abilities import Addition, AddsForms
from flyweight.foundation.errors import OutputError, UnsupportedError
from flyweight.foundation.manifest import Entry, Manifest
from flyweight.pipeline.conversion_report import ConversionReport
from flyweight.pipeline.execution import Progress, check_resources, fill_and_publish
from flyweight.pipeline.output.staging import Staging
from flyweight.pipeline.plans.arguments import as_count, as_size
from flyweight.pipeline.plans.inputs import SOURCE, input_of
from flyweight.pipeline.plans.job import Job
from flyweight.pipeline.plans.plan import Plan, Step
from flyweight.pipeline.plans.recipe import Recipe
from flyweight.writing import Folder, Tree, move


def _plan(checkpoint: Checkpoint, form: str) -> Job:
    """What `add_form` would do; without steps if the form is there already."""
    where, container = checkpoint.bundle.name, checkpoint.container
    if not isinstance(container, AddsForms):
        message = f"{container.name} stores each tensor only once, so nothing can be added"
        raise UnsupportedError(message, code="E_FORMAT", file=where, hint="convert to a new model instead")
    addition = container.addition(checkpoint.bundle, form)
    codec = codec_for(addition.codec)
    steps, entries, notes = [], {}, []
    for source in addition.sources:
        if not addition.carried(source.spec, codec.spec):
            notes.append(f"{source.name} stays as it is: {source.spec} cannot be stored as {codec.spec}")
            continue
        entries[source.name] = Entry(source.name, source.spec, codec.spec, codec.layout(source.spec))
        steps.append(Step(source.name, source.spec, codec.spec, "transcode", source.name, quantizer=codec.quantizer))
    if note := addition.note(len(steps)):
        notes.append(note)
    placement = addition.place(Manifest(addition.name, entries, dialect=addition.dialect), where)
    plan = Plan(addition, where, {SOURCE: input_of(checkpoint)}, Recipe(form).as_json(), tuple(steps))
    return Job(plan, checkpoint, placement, notes=tuple(notes))


@contextmanager
def open_addition(directory: Path | str, form: str) -> Iterator[Job]:
    with open_checkpoint(directory, checks_digests=True) as checkpoint:
        yield _plan(checkpoint, form)


def add_form(
    directory: Path | str,
    form: str,
    *,
    jobs: int | None = None,
    max_ram: int | str | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> ConversionReport:
    """Add a form to a model, made from the one it has; the report has the error added."""
    started = time.perf_counter()
    directory = Path(os.path.abspath(directory))
    jobs, max_ram = as_count("jobs", jobs), as_size("max_ram", max_ram)
    with open_addition(directory, form) as job:
        assert isinstance(job.container, Addition)
        workers = check_resources(job, directory, jobs=jobs, max_ram=max_ram, resume=resume)
        resume = resume and bool(job.plan.steps)
        staging = Inlay(directory, job.container, job.placement.images, fingerprint=job.fingerprint(), resume=resume)
        done = fill_and_publish(job, staging, workers, progress)
    return ConversionReport(
        source=str(directory),
        destination=str(directory),
        format=job.container.name,
        recipe=form,
        nbytes=job.nbytes,
        seconds=round(time.perf_counter() - started, 3),
        resumed=done.resumed,
        tensors=done.reports,
        notes=job.notes,
    )


class Inlay(Staging):
    """Files that join a directory which is already there, and which someone else may have made."""

    def __init__(self, directory: Path, addition: Addition, files: Collection[str], *, fingerprint: str, resume: bool) -> None:
        self.addition = addition
        super().__init__(directory, files, is_directory=True, fingerprint=fingerprint, resume=resume, force=True)

    def _open_parent(self) -> Folder:
        return Folder(self.destination)

    def _arrays(self) -> Folder:
        return self._parent.folder(self.addition.folder.rstrip("/"))

    def _require_free(self) -> None:
        """Refuse a directory in which a name that will be replaced or removed is not a file of this user's."""
        with self._arrays() as arrays:
            names, folder = set(arrays.names()), self.addition.folder
            displaced = names.intersection(name.removeprefix(folder) for name in (*self._files, *self._idle(arrays)))
            for name in displaced if self._files else ():
                arrays.require_own_file(name)
        for name in self._files.intersection(self._parent.names()):
            self._parent.require_own_file(name)

    def _idle(self, arrays: Folder) -> list[str]:
        return self.addition.idle(self.addition.folder + name for name in arrays.names())

    def _rename(self) -> None:
        if not self._names:  # nothing is added: a run that was killed in its last breath is cleaned up after
            return
        assert self._out is not None
        self._require_free()
        staged, arrays, addition = Tree(self._out), self._arrays(), self.addition
        with arrays, closing(staged):
            if self._parent.status(addition.switch) is not None:
                if not addition.was_switched:
                    message = "the new form appeared while it was being added"
                    raise OutputError(message, code="E_EXISTS", file=str(self.destination))
                self._parent.remove(addition.switch)  # no tensor had two forms, so none changes
                self._parent.sync()
            for name in self._idle(arrays):
                arrays.remove(name.removeprefix(addition.folder))
            for name in self._names:
                is_array = name.startswith(addition.folder)
                if not is_array:
                    arrays.sync()
                    self._parent.sync()
                with staged.at(name) as (folder, last):
                    move(folder, last, arrays if is_array else self._parent, last)

    def _clean_up(self) -> None:
        self.discard()
