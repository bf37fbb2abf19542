"""The extra `run`: what running needs beyond converting. Without it, one error that says what to install."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from flyweight.foundation.errors import UnsupportedError

__all__ = ["missing_extra", "needs_run_extra"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_PACKAGES = ("tokenizers", "jinja2")


def missing_extra(package: str) -> UnsupportedError:
    return UnsupportedError(
        f"running a model needs the package '{package}'", code="E_EXTRA", hint="pip install 'flyweight[run]'"
    )


def needs_run_extra(work: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Turn the absence of one of the extra's packages into that error; other failing imports are bugs and stay so."""

    @wraps(work)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return work(*args, **kwargs)
        except ModuleNotFoundError as error:
            if error.name in _PACKAGES:
                raise missing_extra(error.name) from None
            raise

    return checked
