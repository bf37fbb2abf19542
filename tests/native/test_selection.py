"""Which kernels run: the places that name them agree, and the choice of a set is obeyed or refused."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

from flyweight import kernels

ALL = ("reference", "baseline", "avx2", "avx512", "avx512vnni", "avx512bf16")


def test_the_kernel_its_definition_and_its_checked_function_have_the_same_arguments() -> None:
    for name, kernel in kernels.KERNELS.items():
        checked = getattr(kernels, name)
        assert checked.__name__ == name
        assert list(inspect.signature(checked).parameters) == list(inspect.signature(kernel.definition).parameters), name


def test_kernels_that_take_threads_are_those_held_to_the_law_of_threads() -> None:
    """test_matvec.py, test_attention.py and test_palette_kernels.py run these with 1, 2 and 8: a kernel of another kind needs
    such a test first."""
    takers = {name for name in kernels.KERNELS if "threads" in inspect.signature(getattr(kernels, name)).parameters}
    assert takers == {*kernels.PRODUCTS, "attend", "palette_nearest_vector", "palette_cluster_sums"}


@pytest.mark.skipif(kernels._native is None, reason="the native kernels were not built")
def test_the_extension_holds_the_kernels_of_the_registry() -> None:
    """The stub says that every kernel is there: the names and the arguments are compared here."""
    assert {name for name in dir(kernels._native) if not name.startswith("_")} == {
        *kernels.KERNELS,
        "active",
        "available",
        "use",
    }
    for name, kernel in kernels.KERNELS.items():
        parameters = list(inspect.signature(kernel.definition).parameters)
        for declared in getattr(kernels._native, name).__doc__.splitlines():
            assert declared.startswith(f"{name}(")
            assert re.findall(r"(\w+): ", declared) == parameters


def started_with(value: str | None) -> subprocess.CompletedProcess[str]:
    environment = {key: text for key, text in os.environ.items() if key != kernels.VARIABLE}
    if value is not None:
        environment[kernels.VARIABLE] = value
    program = "from flyweight import kernels as k; print(k.active(), k.KERNELS['decode_q4_0'].run.__module__)"
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ALL)
def test_the_variable_selects_or_refuses(name: str) -> None:
    done = started_with(name)
    if name in kernels.available():
        home = "flyweight.kernels.blocks.decode" if name == "reference" else "flyweight.kernels._native"
        assert done.stdout.split() == [name, home]
    else:
        assert done.returncode
        assert f"FLYWEIGHT_KERNELS={name}: no kernel set '{name}'" in done.stderr


@pytest.mark.parametrize("value", ["AVX2", "fast", "avx2 ", "0"])
def test_an_unknown_value_is_refused(value: str) -> None:
    done = started_with(value)
    assert done.returncode
    assert "choose one of reference" in done.stderr


def test_the_best_set_is_the_default() -> None:
    assert started_with(None).stdout.split()[0] == kernels.available()[-1]


def test_use_switches_what_runs() -> None:
    before = kernels.active()
    try:
        for name in kernels.available():
            kernels.use(name)
            assert kernels.active() == name
    finally:
        kernels.use(before)
    with pytest.raises(ValueError, match="no kernel set 'sse9'"):
        kernels.use("sse9")
    assert kernels.active() == before


def test_the_gil_is_released(isa: str) -> None:
    """A thread that waits for the GIL gets it while a kernel runs, though nobody is ever asked to give it up."""
    blocks = np.zeros((50_000, 144), np.uint8)
    out = np.zeros((50_000, 256), np.float32)
    gate = threading.Lock()
    gate.acquire()
    ran: list[bool] = []

    def wait_then_run() -> None:
        with gate:
            ran.append(True)

    thread = threading.Thread(target=wait_then_run)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        gate.release()
        for _ in range(200):  # a busy machine may not run the thread while one call lasts
            kernels.decode_q4_k(blocks, out)
            if ran:
                break
        ran_meanwhile = bool(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert ran_meanwhile
