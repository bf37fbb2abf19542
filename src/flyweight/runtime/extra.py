"""The extra `run`: what running needs beyond converting."""

from __future__ import annotations

from flyweight.foundation.errors import UnsupportedError

PACKAGES = ("tokenizers", "jinja2")


def missing_extra(package: str) -> UnsupportedError:
    return UnsupportedError(
        f"running a model needs the package '{package}'", code="E_EXTRA", hint="pip install 'flyweight[run]'"
    )
