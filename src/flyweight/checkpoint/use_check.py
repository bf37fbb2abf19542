"""Whether a checkpoint may be run, converted or built from, by its accuracy gate. Inspecting it is always allowed.

Some codecs lose so much that a model needs its accuracy measured (`needs_gate`). A conversion to one of them is measured in
every format. A format that records what was measured (`RecordsGate`) is held to it: its tensors need a verdict that passed and
that is about these very arrays. A verdict's subject is the digest of their files, which are read for that; a verdict copied
from elsewhere is about other files.
"""

from __future__ import annotations

from flyweight.checkpoint.checkpoint import Checkpoint
from flyweight.codecs import codec_for, known
from flyweight.containers.abilities import RecordsGate
from flyweight.foundation.accuracy_gate import OVERRIDE, Verdict, subject_of
from flyweight.foundation.errors import GateError
from flyweight.foundation.manifest import Manifest
from flyweight.foundation.tensor import CodecSpec


def needs_gate(codec: CodecSpec) -> bool:
    """Whether a tensor in this codec loses so much that the model is to be measured."""
    return known(codec) and codec_for(codec).needs_gate


def gated(manifest: Manifest) -> list[str]:
    """The tensors that need a gate."""
    return [name for name, entry in manifest.entries.items() if needs_gate(entry.codec)]


def recorded(checkpoint: Checkpoint) -> Verdict | None:
    """The verdict that a checkpoint records, if its format does that."""
    return checkpoint.container.verdict(checkpoint.bundle) if isinstance(checkpoint.container, RecordsGate) else None


def require_passed(checkpoint: Checkpoint, *, allow_ungated: bool = False) -> None:
    """GateError if the checkpoint's format records gates, and one is due and was not passed."""
    file = checkpoint.bundle.name
    if allow_ungated or not isinstance(checkpoint.container, RecordsGate) or not (names := gated(checkpoint.manifest)):
        return
    verdict = recorded(checkpoint)
    if verdict is None:
        raise GateError(f"{len(names)} three-bit tensors have no accuracy record", file=file, hint=OVERRIDE)
    verdict.require(file=file)
    if verdict.subject != subject(checkpoint):
        for name in names:
            checkpoint.check_tensor(name)  # damaged arrays are no question of a gate
        raise GateError(
            "the recorded accuracy gate was passed by other arrays than these", file=file, hint=OVERRIDE, gate=verdict.as_json()
        )


def subject(checkpoint: Checkpoint) -> str:
    """What a verdict about this checkpoint is about: the files of its gated tensors."""
    entries = checkpoint.manifest.entries
    files = {extent.file for name in gated(checkpoint.manifest) for extent in entries[name].extents.values()}
    return subject_of({file: checkpoint.source(file).digest() for file in files})
