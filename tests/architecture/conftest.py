"""What tests of the walks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flyweight.containers import CONTAINERS
from flyweight.pipeline.plans import planning


@pytest.fixture
def nothing_asked_yet() -> Iterator[None]:
    """No layout and no `carries` is remembered from another test, nor for the next."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    planning.layout_of.cache_clear()
    for container in CONTAINERS:
        vars(container).pop("carried", None)
