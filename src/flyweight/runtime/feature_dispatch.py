"""How a file with feature flags runs on this machine, and why the earlier paths do not.

    ANE_COREML > ASTC > TCA_TBE > INT2 > INT4 > NumPy

is the order of the SQUIZD specification: the first whose flag is set and whose condition holds. SPARSE and EAGLE only add
to the way that is chosen. A condition asks for what really runs: where nothing here drives some hardware, the way is not
taken, and the weights, which every file has, are decoded in software.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import NamedTuple

from flyweight import kernels
from flyweight.codecs import CODECS, Codec


class Machine(NamedTuple):
    system: str
    processor: str
    has_coremltools: bool
    kernels: str
    """The set that is active: reference, or an instruction set."""


def this_machine() -> Machine:
    return Machine(platform.system(), platform.machine(), find_spec("coremltools") is not None, kernels.active())


class Route(NamedTuple):
    path: str
    chosen: bool
    reason: str


class Augment(NamedTuple):
    flag: str
    present: bool
    reason: str


def _core_ml(machine: Machine) -> str | None:
    if (machine.system, machine.processor) != ("Darwin", "arm64"):
        return f"needs macOS on Apple silicon; this is {machine.system} on {machine.processor}"
    if not machine.has_coremltools:
        return "needs coremltools, which is not installed"
    return "Flyweight does not run Core ML: `flyweight extract` writes the package for coremltools"


def _textures(machine: Machine) -> str | None:
    return f"Flyweight does not use texture hardware: blocks are decoded in software ({machine.kernels})"


def _native(machine: Machine) -> str | None:
    return "the native kernels are not built or not selected" if machine.kernels == "reference" else None


class _Way(NamedTuple):
    name: str
    codec: str
    obstacle: Callable[[Machine], str | None]
    """Why the way cannot be taken on a machine, or None."""


_WAYS = (
    _Way("ANE_COREML", "", _core_ml),
    _Way("ASTC", "astc", _textures),
    _Way("TCA_TBE", "lossless", _native),
    _Way("INT2", "tabled", _native),
    _Way("INT4", "tabled", _native),
)
_FALLBACK = "NumPy"


def dispatch(flags: Collection[str], machine: Machine | None = None, package: str | None = None) -> list[Route]:
    """Every way in order of priority, exactly one of them chosen. `package` says what becomes of the Core ML package."""
    machine = machine or this_machine()
    routes: list[Route] = []
    taken = ""
    for way in _WAYS:
        if way.name not in flags:
            routes.append(Route(way.name, False, "the file does not have it"))
        elif (obstacle := way.obstacle(machine)) is not None:
            told = f"{obstacle}; {package}" if package and not way.codec else obstacle
            routes.append(Route(way.name, False, told))
        elif taken:
            routes.append(Route(way.name, False, f"{taken} comes first"))
        else:
            taken = way.name
            multiplied = CODECS[way.codec].product is not Codec.product
            how = "multiplied as stored" if multiplied else "decoded a few rows at a time"
            routes.append(Route(way.name, True, f"{how} with the {machine.kernels} kernels"))
    reason = f"{taken} comes first" if taken else f"works for every file, with the {machine.kernels} kernels"
    return [*routes, Route(_FALLBACK, not taken, reason)]


def augments(flags: Collection[str]) -> list[Augment]:
    """What adds to the way chosen."""
    said = {
        "SPARSE": "dropped blocks are stored as zeros, so every path may ignore the masks",
        "EAGLE": "there is a draft head; answers are those of the model alone",
    }
    return [Augment(flag, flag in flags, text if flag in flags else "the file does not have it") for flag, text in said.items()]
