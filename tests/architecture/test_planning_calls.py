"""What ARCHITECTURE.md says of planning, counted: on the way to the workers nothing is asked twice for a kind of tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import flyweight
from flyweight.codecs import CODECS
from flyweight.containers import CONTAINERS
from flyweight.pipeline.plans import planning
from support.toys import write_toy_llama

Calls = Counter[tuple[str, ...]]


@pytest.fixture
def calls(nothing_asked_yet: None, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """How often `layout` and `carries` are called, by what they are asked."""
    counted: Calls = Counter()

    def count(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def counting(self: Any, *asked: object) -> Any:
            counted[method.__name__, str(getattr(self, "spec", self.name)), *map(str, asked)] += 1
            return method(self, *asked)

        return counting

    owners = {(kind, name) for table, name in ((CODECS, "layout"), (map(type, CONTAINERS), "carries")) for kind in table}
    for owner, name in {(base, name) for kind, name in owners for base in kind.__mro__ if name in vars(base)}:
        monkeypatch.setattr(owner, name, count(vars(owner)[name]))
    return counted


def test_a_plan_asks_once_for_each_kind_of_tensor(calls: Calls, tmp_path: Path) -> None:
    toy = write_toy_llama(tmp_path / "toy")
    flyweight.convert(toy, tmp_path / "m.gguf", quant="q8_0")
    planning.layout_of.cache_clear()
    calls.clear()
    plan = flyweight.plan(tmp_path / "m.gguf", tmp_path / "out", to="mlx", quant="int4")
    assert {call[0] for call in calls} == {"layout", "carries"}
    assert len(plan.steps) > len(calls)
    assert calls.most_common(1)[0][1] == 1, calls.most_common(3)


def test_a_conversion_asks_once_more_for_each_tensor_it_encodes(calls: Calls, tmp_path: Path) -> None:
    toy = write_toy_llama(tmp_path / "toy")
    flyweight.plan(toy, tmp_path / "out", to="mlx", quant="int4")
    kinds = len(calls)
    report = flyweight.convert(toy, tmp_path / "out", to="mlx", quant="int4")
    encoded = sum(tensor.codec.startswith("affine") for tensor in report.tensors)
    opened = sum(call[0] == "layout" and call[1] == "raw" for call in calls)
    assert encoded == 14
    assert calls.total() == kinds + opened + encoded, calls.most_common(5)  # planned, opened again, encoded
