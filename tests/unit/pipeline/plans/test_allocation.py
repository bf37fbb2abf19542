"""The best forms in a budget: beside every combination there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from flyweight.pipeline.plans.allocation import Allocation, Option, hull


def drawn(seed: int, tensors: int = 4, each: int = 5) -> dict[str, list[Option[str]]]:
    """Larger options with less loss, as types of more bits have, some of them no good."""
    rng = np.random.default_rng(seed)
    found = {}
    for tensor in range(tensors):
        nbytes = np.sort(rng.choice(np.arange(10, 400), each, replace=False))
        losses = np.exp(-nbytes / rng.uniform(30, 120)) * rng.uniform(0.1, 10) * rng.uniform(0.7, 1.4, each)
        found[f"t{tensor}"] = [
            Option(f"o{at}", int(n), float(loss)) for at, (n, loss) in enumerate(zip(nbytes, losses, strict=True))
        ]
    return found


def test_a_hull_is_what_is_worth_taking() -> None:
    options = [Option("a", 10, 8.0), Option("b", 20, 7.9), Option("c", 30, 2.0), Option("d", 35, 2.5), Option("e", 50, 1.0)]
    assert [option.what for option in hull(options)] == ["a", "c", "e"]
    assert [option.what for option in hull([Option("x", 5, 1.0), Option("y", 5, 0.5)])] == ["y"]


@pytest.mark.parametrize("seed", range(20))
def test_no_combination_of_a_frontier_size_is_better(seed: int) -> None:
    options = drawn(seed)
    allocation = Allocation(options)
    every = [(sum(o.nbytes for o in chosen), sum(o.loss for o in chosen)) for chosen in product(*options.values())]
    for point in allocation.frontier():
        best = min(loss for nbytes, loss in every if nbytes <= point.nbytes)
        assert point.loss == pytest.approx(best)


@pytest.mark.parametrize("seed", range(20))
def test_a_budget_is_kept_and_used(seed: int) -> None:
    options = drawn(seed, 12)
    allocation = Allocation(options)
    frontier = allocation.frontier()
    assert frontier == sorted(frontier)
    for budget in np.linspace(allocation.smallest.nbytes, allocation.largest.nbytes, 9).astype(int):
        chosen = allocation.within(int(budget)).values()
        nbytes, loss = sum(o.nbytes for o in chosen), sum(o.loss for o in chosen)
        assert nbytes <= budget
        assert loss <= max(point for point in frontier if point.nbytes <= budget).loss + 1e-12
    assert sum(o.nbytes for o in allocation.within(10**9).values()) == allocation.largest.nbytes
