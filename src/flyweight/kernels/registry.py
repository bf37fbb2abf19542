"""The registry of kernels, and which instruction set runs.

    @kernel                                        the definition, in NumPy, of the native function of the same name
    def _softcap(x: Array, cap: float) -> None: …

    def softcap(x: Array, cap: float) -> None:     what callers use: it checks the arrays, then
        _softcap.run(x, cap)                       runs the native function, or the definition where that is asked for

A native kernel equals its definition bit for bit on every instruction set; products and attention are held to a bound. The best
set the processor runs is chosen at import. `FLYWEIGHT_KERNELS` forces one of reference, baseline, avx2, avx512, avx512vnni,
avx512bf16; asking for one that is not there is an error, never a fallback.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, ParamSpec

import numpy as np

from flyweight.foundation.errors import ArgumentError

try:
    import flyweight.kernels._native as _native
except ModuleNotFoundError:  # built without a compiler: the definitions serve
    _native = None  # type: ignore[assignment]

__all__ = ["KERNELS", "VARIABLE", "Kernel", "_native", "active", "available", "definition", "kernel", "use"]

P = ParamSpec("P")

VARIABLE = "FLYWEIGHT_KERNELS"


class Kernel(Generic[P]):
    """A kernel: its definition, and what runs."""

    __slots__ = ("definition", "name", "run")

    def __init__(self, name: str, definition: Callable[P, None]) -> None:
        self.name, self.definition = name, definition
        self.run: Callable[P, None] = definition
        self.choose()

    def choose(self) -> None:
        """Run what belongs to the active set."""
        quiet = np.errstate(all="ignore")  # NaN and infinity are results, not news
        self.run = quiet(self.definition) if _set == "reference" else getattr(_native, self.name)


KERNELS: dict[str, Kernel[...]] = {}
"""Every kernel by its name: the modules of this package that define one add it as they are imported."""


def kernel(definition: Callable[P, None], name: str = "") -> Kernel[P]:
    """Register a definition, under the name of the function without its underscore."""
    made = Kernel(name or definition.__name__.removeprefix("_"), definition)
    KERNELS[made.name] = made
    return made


def definition(name: str) -> Callable[..., None]:
    """A kernel's definition in NumPy, whatever runs."""
    return KERNELS[name].definition


def available() -> tuple[str, ...]:
    """The kernel sets this build holds and this processor runs, slowest first."""
    return ("reference", *(_native.available() if _native else ()))


def active() -> str:
    """The set that runs, as the running code itself reports it."""
    return _native.active() if _native and _set != "reference" else "reference"


def use(name: str) -> None:
    """Switch every kernel of the process to the named set."""
    global _set
    if name not in available():
        raise ArgumentError(
            f"no kernel set '{name}' in this build on this processor", hint=f"choose one of {', '.join(available())}"
        )
    if name != "reference":
        _native.use(name)
    _set = name
    for each in KERNELS.values():
        each.choose()


_set = "reference"
_wanted = os.environ.get(VARIABLE)
try:
    use(_wanted or available()[-1])
except ArgumentError as error:
    raise ArgumentError(f"{VARIABLE}={_wanted}: {error.message}", hint=error.hint) from None
