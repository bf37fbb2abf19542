"""Which kernels run: the four places that name them agree, and the choice of a set is obeyed or refused."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from flyweight import kernels

ALL = ("reference", "baseline", "avx2", "avx512", "avx512vnni", "avx512bf16")


def signatures(path: Path) -> dict[str, list[str]]:
    """Public functions of a file and the names of their arguments."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = (node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"))
    return {node.name: [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)] for node in defined}


PACKAGE = Path(kernels.__file__).parent


def test_table_reference_stub_and_dispatch_agree() -> None:
    defined: dict[str, list[str]] = {}
    for module in kernels.DEFINITIONS:
        defined |= {n: names for n, names in signatures(PACKAGE / f"{module}.py").items() if n in kernels.KERNELS}
    stub = signatures(PACKAGE / "_native.pyi")
    assert set(defined) == set(kernels.KERNELS)
    assert set(stub) == {*kernels.KERNELS, "active", "available", "use"}
    for name in kernels.KERNELS:
        assert defined[name] == stub[name] == list(inspect.signature(getattr(kernels, name)).parameters), name
        assert getattr(kernels, name).__name__ == name


def test_kernels_that_take_threads_are_those_held_to_the_law_of_threads() -> None:
    """test_matvec.py and test_attention.py run these with 1, 2 and 8: a kernel of another kind needs such a test first."""
    takers = {name for name in kernels.KERNELS if "threads" in inspect.signature(getattr(kernels, name)).parameters}
    assert takers == {*kernels.PRODUCTS, "attend", "attend_int8"}


@pytest.mark.skipif(kernels._native is None, reason="the native kernels were not built")
def test_the_extension_holds_what_the_stub_says() -> None:
    stub = signatures(PACKAGE / "_native.pyi")
    assert {name for name in dir(kernels._native) if not name.startswith("_")} == set(stub)
    for name in kernels.KERNELS:
        declared = kernels._native.__dict__[name].__doc__ or ""
        assert declared.startswith(f"{name}({stub[name][0]}: "), declared


def started_with(value: str | None) -> subprocess.CompletedProcess[str]:
    environment = {key: text for key, text in os.environ.items() if key != kernels.VARIABLE}
    if value is not None:
        environment[kernels.VARIABLE] = value
    program = "from flyweight import kernels as k; print(k.active(), k.dispatch.running['decode_q4_0'].__module__)"
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ALL)
def test_the_variable_selects_or_refuses(name: str) -> None:
    done = started_with(name)
    if name in kernels.available():
        home = "flyweight.kernels.reference" if name == "reference" else "flyweight.kernels._native"
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
        kernels.decode_q4_k(blocks, out)
        ran_meanwhile = bool(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert ran_meanwhile
