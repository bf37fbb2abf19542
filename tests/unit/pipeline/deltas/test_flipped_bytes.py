"""Any byte of a delta flipped: `verify` finds it and names the tensor, with a base and without; nothing wrong is made of it."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from flyweight import cli
from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.foundation.errors import FlyweightError
from flyweight.pipeline.deltas.delta_check import verify_delta
from support.toys import write_files
from support.wdelta_files import BASE, BASE_TENSORS, NAME, PUBLIC, made_of, owners, safetensors

_SOME = {name: BASE_TENSORS[name] for name in ("a.weight", "d.bytes", "j.kept")}
_CHANGED = _SOME | {"a.weight": _SOME["a.weight"] * 2, "d.bytes": _SOME["d.bytes"][::-1], "x": np.ones(2, np.float32)}
_README = {"README.md": b"# tuned, word by word\n"}


def _model(tensors: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {"config.json": b"{}", "README.md": b"# base\n", "model.safetensors": safetensors(tensors)}


_BASE, _TUNED = _model(_SOME), _model(_CHANGED) | _README
_TUNED["model.safetensors"] = _TUNED["model.safetensors"].replace(b'"pt"', b'"np"')
DELTAS = {
    "exact": (_BASE, made_of(_BASE, _TUNED)),
    "int4": (_BASE, made_of(_BASE, _model(_SOME | {"a.weight": _SOME["a.weight"] * 2}), strategy="int4")),
    "public": (BASE, PUBLIC["sparse"]),
}


def flipped(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Every byte, one of its bits."""
    rng = random.Random(0)
    for at in range(len(raw)):
        yield at, raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]


def content(checkpoint: Checkpoint) -> dict[str, object]:
    tensors = {name: (str(entry.spec), checkpoint[name].tobytes()) for name, entry in checkpoint.manifest.entries.items()}
    files = {name: checkpoint.read(extent) for name, extent in checkpoint.manifest.files.items()}
    return {"tensors": tensors, "files": files, "metadata": dict(checkpoint.manifest.metadata)}


@pytest.mark.parametrize("kind", DELTAS)
def test_every_flipped_byte_is_found(kind: str, tmp_path: Path) -> None:
    files, raw = DELTAS[kind]
    base, path = write_files(tmp_path / "base", files), tmp_path / "elsewhere" / NAME
    path.parent.mkdir()
    path.write_bytes(raw)
    owner = owners(raw) if "public" not in kind else {}
    with open_checkpoint(base) as opened:
        wanted = content(open_checkpoint(opened, deltas=[path], checks_digests=True))
        for at, damaged in flipped(raw):
            path.write_bytes(damaged)
            named = set[str | None]()
            try:
                report = verify_delta(path)
                named = {finding.tensor for finding in report.findings if finding.level == "error"}
                assert not report.ok, f"byte {at}"
                with suppress(FlyweightError), open_checkpoint(opened, deltas=[path], checks_digests=True) as result:
                    assert content(result) == wanted, f"byte {at}"
            except FlyweightError as error:  # it cannot even be read
                named = {error.tensor}
            assert at not in owner or owner[at] in named, (at, owner[at], named)


def test_verify_with_the_base_and_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same through the command line, at some of the places, of each kind of them some."""
    files, raw = DELTAS["exact"]
    base, path, out = write_files(tmp_path / "base", files), tmp_path / NAME, tmp_path / "out"
    every, owner = list(flipped(raw)), owners(raw)
    for at, damaged in [*every[:16:3], *every[200 : len(raw) : 97], *every[-33::8]]:
        path.write_bytes(damaged)
        monkeypatch.setattr(sys, "argv", ["flyweight", "delta", "verify", str(path), "--base", str(base)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = capsys.readouterr()
        assert stop.value.code in (3, 4), at
        assert at not in owner or owner[at] in said.out + said.err
        monkeypatch.setattr(sys, "argv", ["flyweight", "delta", "apply", str(base), str(path), str(out), "-q"])
        try:
            cli.main()
            code: object = 0
        except SystemExit as stopped:
            code = stopped.code
        if code in (0, None):  # what was flipped is not needed: the result is what it was
            with open_checkpoint(out) as made, open_checkpoint(base) as before:
                path.write_bytes(raw)
                assert content(made) == content(open_checkpoint(before, deltas=[path])), at
            shutil.rmtree(out)
        else:
            assert code in (1, 3, 4), at
            assert not out.exists()
