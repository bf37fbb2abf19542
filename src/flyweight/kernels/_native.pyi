"""The compiled kernels: a function for each of `registry.KERNELS`, of the same name and with the same arguments."""

from collections.abc import Callable

import numpy as np

def available() -> tuple[str, ...]: ...
def active() -> str: ...
def use(name: str) -> None: ...
def __getattr__(kernel: str) -> Callable[..., None]: ...

class _Matrix:
    def __init__(
        self,
        form: str,
        codes: np.ndarray,
        second: np.ndarray | None = None,
        third: np.ndarray | None = None,
        *,
        scale: str = "",
        length: int = 0,
        block: int = 0,
    ) -> None: ...
