"""A plan that is ready to be carried out: with what it reads opened, and with a place for every byte it writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

import flyweight
from flyweight.checkpoint import Checkpoint, gated, needs_gate
from flyweight.codecs import Array
from flyweight.containers.abilities import RecordsGate
from flyweight.containers.container import Container, Placement
from flyweight.foundation.accuracy_gate import INT3, Gate
from flyweight.foundation.input_statistics import InputStatistics
from flyweight.foundation.manifest import Entry
from flyweight.pipeline.matrix_inputs import NONE, MatrixInputs
from flyweight.pipeline.plans.plan import Plan, Step


@dataclass(frozen=True, slots=True)
class Job:
    plan: Plan
    checkpoint: Checkpoint
    placement: Placement
    draft: Checkpoint | None = None
    """Where an added draft head comes from."""
    added: Mapping[str, Array] = field(default_factory=dict)
    """The values of tensors that the source holds only as settings."""
    notes: tuple[str, ...] = ()
    inputs: MatrixInputs = NONE
    """What is known of what the source's matrices are multiplied with."""

    @property
    def container(self) -> Container:
        return self.plan.container

    @property
    def nbytes(self) -> int:
        return self.placement.nbytes

    @property
    def gate(self) -> Gate | None:
        """What the output may cost: as the recipe says, else as codecs ask for that lose much."""
        is_model = bool(self.container.dialect)  # else a file of any tensors, which cannot be run
        lossy = is_model and any(step.action == "transcode" and needs_gate(step.codec) for step in self.plan.steps)
        return self.plan.limits or (INT3 if lossy or self.gated else None)

    @property
    def gated(self) -> list[str]:
        """The tensors whose gate the output will record."""
        return gated(self.placement.manifest) if isinstance(self.container, RecordsGate) else []

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All that are read from."""
        return (self.checkpoint,) if self.draft is None else (self.checkpoint, self.draft)

    def origin(self, step: Step) -> Checkpoint:
        """The checkpoint that a step reads from."""
        return self.draft if step.draft and self.draft is not None else self.checkpoint

    def source(self, step: Step) -> Entry | None:
        return None if step.source is None else self.origin(step).manifest.entries[step.source]

    def inputs_of(self, step: Step) -> InputStatistics | None:
        return None if step.source is None or step.draft else self.inputs.inputs_of(step.source)

    def target(self, step: Step) -> Entry:
        return self.placement.manifest.entries[step.name]

    def fingerprint(self) -> str:
        """What must be the same for a resumed run to end in the same bytes."""
        images = {
            name: [image.nbytes, [[offset, blake3(chunk).hexdigest()] for offset, chunk in image.chunks]]
            for name, image in self.placement.images.items()
        }
        said = {"version": flyweight.__version__, "images": images, "plan": self.plan.as_json("/")}
        if self.inputs:
            said["inputs"] = self.inputs.digest
        return blake3(json.dumps(said).encode()).hexdigest()  # ASCII, so that a file may have any name

    def as_json(self) -> dict[str, Any]:
        """What will be done, for people and programs."""
        steps = self.plan.steps
        return {
            "source": self.checkpoint.bundle.name,
            "source_format": self.checkpoint.manifest.format,
            "format": self.container.name,
            "recipe": self.plan.recipe,
            "nbytes": self.nbytes,
            **({"gate": self.gate.as_json()} if self.gate else {}),
            "actions": dict(Counter(step.action for step in steps)),
            "notes": list(self.notes),
            "tensors": [self._step_json(step) for step in steps],
        }

    def _step_json(self, step: Step) -> dict[str, Any]:
        source, target = self.source(step), self.target(step)
        sizes = {"nbytes": target.nbytes, "bits_per_weight": round(target.bits_per_weight, 4)}
        origin = {"origin": self.origin(step).bundle.name} if step.draft else {}
        return step.as_json() | {"from": str(source.codec) if source else None} | sizes | origin
