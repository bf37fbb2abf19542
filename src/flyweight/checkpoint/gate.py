"""Whether a checkpoint may be used: run, converted, built from. Looking at it is always allowed.

Tensors of three bits (`Container.gated`) need a verdict that passed and that is about these very arrays: its subject is the
digest of their files, which are read for that. A verdict copied from elsewhere is about other files.
"""

from __future__ import annotations

from flyweight.checkpoint.checkpoint import Checkpoint
from flyweight.errors import GateError
from flyweight.gate import OVERRIDE, subject_of

__all__ = ["require_passed", "subject"]


def require_passed(checkpoint: Checkpoint, *, allow_ungated: bool = False) -> None:
    """GateError if a gate is due and was not passed."""
    gated = checkpoint.container.gated(checkpoint.manifest)
    if allow_ungated or not gated:
        return
    file = checkpoint.bundle.name
    verdict = checkpoint.container.verdict(checkpoint.bundle)
    if verdict is None:
        raise GateError(f"{len(gated)} tensors of three bits, whose accuracy was never measured", file=file, hint=OVERRIDE)
    verdict.require(file=file)
    if verdict.subject != subject(checkpoint):
        for name in gated:
            checkpoint.check_tensor(name)  # damaged arrays are no question of a gate
        raise GateError("the gate it passed is of other arrays than these", file=file, hint=OVERRIDE, gate=verdict.as_json())


def subject(checkpoint: Checkpoint) -> str:
    """What a verdict about this checkpoint is about: the files of its gated tensors."""
    container, entries = checkpoint.container, checkpoint.manifest.entries
    files = {extent.file for name in container.gated(checkpoint.manifest) for extent in entries[name].extents.values()}
    return subject_of({file: checkpoint.source(file).digest() for file in files})
