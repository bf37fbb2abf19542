"""Kernel sets to test, and memory that faults one byte past its end."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from flyweight import kernels

NATIVE = ("baseline", "avx2", "avx512")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of kernels that are compiled for more sets name them: SETS."""
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", getattr(metafunc.module, "SETS", NATIVE), indirect=True)


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every native set in turn, active for the test; those that cannot run here are skipped by name."""
    if request.param not in kernels.available():
        pytest.skip(f"{request.param} kernels: not on this processor, or not built (have {', '.join(kernels.available())})")
    before = kernels.active()
    kernels.use(request.param)
    yield request.param
    kernels.use(before)


def _fenced(nbytes: int, from_start: bool) -> np.ndarray:
    """Bytes that begin just after a forbidden page (from_start) or end just before one."""
    page = mmap.PAGESIZE
    body = -(-max(nbytes, 1) // page) * page
    memory = mmap.mmap(-1, body + 2 * page)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    for start in (0, page + body):
        if libc.mprotect(ctypes.c_void_p(whole.ctypes.data + start), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    first = page if from_start else page + body - nbytes
    return whole[first : first + nbytes]


@pytest.fixture(params=["starts at a fence", "ends at a fence"])
def fenced(request: pytest.FixtureRequest) -> Callable[..., np.ndarray]:
    """A maker of arrays next to a page that may not be touched: reading or writing outside them kills the process."""

    def make(shape: tuple[int, ...], dtype: type, source: np.ndarray | None = None) -> np.ndarray:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        array = _fenced(nbytes, request.param.startswith("starts")).view(dtype).reshape(shape)
        if source is not None:
            array[...] = source
        return array

    return make
