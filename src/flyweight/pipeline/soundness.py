"""`verify`: check the structure, digests and values of a checkpoint.

Opening already proves the structure: every offset, size, shape and name. A container that audits goes
on after the first broken rule and checks the digests it holds. Verification then reads every byte and
looks at the numbers: scales and values that are NaN or infinite (an error: they decode to nonsense),
tensors that are all zero or of a codec nobody here knows (warnings). With `strict`, warnings fail too. A model quantized
by a method that is not read here is an error: nothing can be said of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.codecs import codec_for, known
from flyweight.containers import recognise
from flyweight.containers.abilities import Audits, Warns
from flyweight.containers.container import Finding
from flyweight.deltas.recognition import is_delta
from flyweight.foundation.errors import FlyweightError, MalformedError
from flyweight.foundation.manifest import Entry
from flyweight.foundation.tensor import has_rows
from flyweight.pipeline.rows import read_rows, slabs
from flyweight.sources import open_bundle


@dataclass(frozen=True, slots=True)
class VerifyReport:
    path: str
    format: str
    tensors: int
    nbytes: int
    strict: bool
    findings: tuple[Finding, ...]
    malformed: bool = False
    """Whether the file breaks a rule of its format, and not only holds doubtful values."""

    @property
    def ok(self) -> bool:
        return not any(finding.level == "error" or self.strict for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok}


def verify(
    path: Path | str,
    *,
    deltas: Sequence[Path | str] = (),
    strict: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> VerifyReport:
    """Check a checkpoint, with deltas on it; a readable file with doubtful content is reported.

    A malformed file raises, unless its container audits: then every rule it breaks is in the report.
    """
    form, nbytes, findings = _audit(path)
    flawed = {finding.tensor for finding in findings if finding.level == "error"}
    try:
        opened = open_checkpoint(path, deltas=deltas, checks_digests=bool(deltas) or not form)
    except FlyweightError:
        if not flawed:
            raise
        return VerifyReport(str(path), form, 0, nbytes, strict, tuple(findings), malformed=True)
    with opened as checkpoint:
        container = checkpoint.container
        if isinstance(container, Warns):
            told = container.warnings(checkpoint.bundle, checkpoint.manifest)
            findings += (Finding("warning", code, message) for code, message in told)
        if (foreign := checkpoint.manifest.foreign) is not None:
            error = foreign.unreadable()
            findings.append(Finding("error", error.code, f"values not checked: {error.message}"))
        for entry in checkpoint.manifest.entries.values():
            try:
                findings += _look(checkpoint, entry) if entry.name not in flawed else []
            except FlyweightError as error:
                findings.append(Finding("error", error.code, error.message, entry.name, error.offset))
                flawed |= {entry.name} if isinstance(error, MalformedError) else set()
            if progress is not None:
                progress(entry.name, entry.nbytes, checkpoint.manifest.nbytes)
        manifest = checkpoint.manifest
    return VerifyReport(
        str(path), manifest.format, len(manifest.entries), manifest.nbytes, strict, tuple(findings), malformed=bool(flawed)
    )


def _audit(path: Path | str) -> tuple[str, int, list[Finding]]:
    """Format (none: of a delta), bytes and, where the container does more than parse, every broken rule."""
    with closing(open_bundle(path)) as bundle:
        if is_delta(bundle):
            return "", 0, []
        container = recognise(bundle)
        if not isinstance(container, Audits):
            return container.name, 0, []
        return container.name, sum(source.size for source in bundle.values()), [*container.audit(bundle)]


def _look(checkpoint: Checkpoint, entry: Entry) -> list[Finding]:
    if entry.codec.is_foreign:
        return []  # said once, of all
    if not known(entry.codec):
        return [Finding("warning", "E_UNKNOWN_CODEC", f"unknown codec {entry.codec}: values not checked", entry.name)]
    codec = codec_for(entry.codec)
    nonzero = False
    for start, stop in slabs(entry.spec, has_rows(entry.spec, entry.parts)):
        tensor = read_rows(checkpoint, entry.name, start, stop, None)
        values = codec.decode(tensor.spec, tensor.parts)  # refuses parts that contradict each other
        complaint = codec.check_values(tensor.spec, tensor.parts)
        if complaint is not None:
            return [Finding("error", "E_NONFINITE", complaint, entry.name)]
        nonzero = nonzero or bool(np.any(values))
    if entry.spec.size > 1 and not nonzero:
        return [Finding("warning", "E_ALL_ZERO", "every value is zero", entry.name)]
    return []
