"""How much memory is allowed, and the refusal of what needs more, before it is taken."""

from __future__ import annotations

from flyweight.foundation.errors import ResourceError

BASE_RAM = 192 << 20
"""Bytes the process needs beside its tensors."""


def allowed(max_ram: int | None) -> int:
    """Bytes that may be used: the limit asked for, else what the machine has to spare."""
    import psutil

    return max_ram if max_ram is not None else int(psutil.virtual_memory().available)


def require(need: int, max_ram: int | None, who: str, *, tensor: str | None = None) -> None:
    """ResourceError unless `need` bytes and the process itself fit."""
    if need + BASE_RAM > (ram := allowed(max_ram)):
        raise ResourceError(
            f"{who} needs {(need + BASE_RAM) >> 20} MiB of memory but {ram >> 20} MiB are allowed",
            code="E_RAM",
            tensor=tensor,
            hint="allow more with --max-ram, or choose a codec that is read row by row, such as q8_0 or int4",
        )
