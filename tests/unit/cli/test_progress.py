"""Progress is on stderr while it is a terminal, a bar for each stage, and leaves stdout alone."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from flyweight.cli.progress import progress_bar, stages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_stages_one_after_another(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with stages() as shown:
        steps, advance = shown.steps("calibrating"), shown.nbytes("converting")
        assert steps is not None
        assert advance is not None
        steps(3, 8)
        print("the answer")
        assert "converting" not in terminal.getvalue()
        steps(8, 8)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: advance("x", 500_000, 4_000_000), range(8)))
    said = terminal.getvalue()
    assert "calibrating" in said
    assert "8/8" in said
    assert "4.0/4.0 MB" in said
    assert "the answer" not in said
    assert capsys.readouterr().out == "the answer\n"


def test_nothing_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with stages(quiet=True) as shown, progress_bar("x", quiet=True) as advance:
        assert (shown.steps("a"), shown.nbytes("b"), advance) == (None, None, None)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with stages() as shown:
        assert shown.steps("a") is None
