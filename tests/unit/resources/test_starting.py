"""What a start imports. Time is not measured here: a module that nobody asked for is the same on every machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight import kernels
from flyweight.codecs import CODECS
from flyweight.containers import CONTAINERS
from flyweight.foundation.lazy_table import Table
from flyweight.foundation.limits import MAX_RANK
from flyweight.models import FAMILIES
from flyweight.models.dialects import DIALECTS
from support.toys import write_toy_llama

NEEDLESS = {
    "blake3", "hashlib", "jinja2", "ml_dtypes", "numpy.random", "psutil", "rich", "subprocess", "zipfile",
    "flyweight.bench", "flyweight.evaluate", "flyweight.pipeline", "flyweight.quantizers",
    "flyweight.containers.npy_dir.forms", "flyweight.containers.npy_dir.npy_header", "flyweight.runtime.text.chat_template",
}  # fmt: skip
"""What running a quantised GGUF file without its template has no use for."""

FORMATS = {
    f"flyweight.{package}.{line.partition(':')[0]}"
    for package, table in (("containers", CONTAINERS.lines), ("codecs", CODECS.lines))
    for line in table.values()
}

MODELS = {f"{table._package}.{line.partition(':')[0]}" for table in (FAMILIES, DIALECTS) for line in table.lines.values()}


def imported_by(program: str) -> set[str]:
    probe = f"{program}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starting")
    flyweight.convert(write_toy_llama(folder / "toy", dtype=np.float32), folder / "toy.gguf", quant="q8_0")
    return folder / "toy.gguf"


def test_running_a_gguf_file_imports_what_it_needs(gguf: Path) -> None:
    arguments = ["run", str(gguf), "abc", "--raw", "--max-tokens", "2"]
    found = imported_by(f"from flyweight.cli import cli\ncli({arguments}, standalone_mode=False)")
    twins = (
        set()
        if kernels.active() == "reference"
        else {"flyweight.kernels.blocks.scale_search", "flyweight.kernels.textures.texels"}
    )
    assert found & FORMATS == {"flyweight.containers.gguf", "flyweight.codecs.raw", "flyweight.codecs.ggml"}
    assert found & (NEEDLESS | twins) == set()
    assert found & MODELS == {"flyweight.models.families.llama", "flyweight.models.dialects.gguf_dialect"}


@pytest.mark.parametrize("verb", ["convert", "run", "cache", "eval"])
def test_help_imports_names_and_texts_alone(verb: str) -> None:
    """Of the packages below the command line only what declares options, and errors and limits."""
    found = imported_by(f"from flyweight.cli import cli\ncli(['{verb}', '--help'], standalone_mode=False)")
    declarations = {
        "options", "npy_dir.npy_options", "npy_dir.tier_places", "squizd.squizd_options", "uqff.uqff_options",
        "coreml.coreml_options",
    }  # fmt: skip
    packages = ("npy_dir", "squizd", "uqff", "coreml")
    assert {name for name in found if name.startswith("flyweight.containers.")} <= {
        f"flyweight.containers.{name}" for name in (*packages, *declarations)
    }
    assert {name for name in found if name.startswith("flyweight.foundation.")} <= {
        f"flyweight.foundation.{name}" for name in ("errors", "lazy_table", "limits")
    }
    assert found.isdisjoint(
        {"numpy", "rich", "flyweight.codecs", "flyweight.models", "flyweight.pipeline", "flyweight.sources"}
    )


def test_the_worker_of_templates_starts_before_numpy_is_imported() -> None:
    assert "numpy" not in imported_by("import flyweight.runtime.text.chat_template")


@pytest.mark.parametrize("package", ["containers", "codecs", "models", "quantizers", "pipeline"])
def test_importing_a_package_imports_no_line_of_the_tables(package: str) -> None:
    assert imported_by(f"import flyweight.{package}") & (FORMATS | MODELS) == set()


@pytest.mark.parametrize("table", [CONTAINERS, CODECS, DIALECTS], ids=["containers", "codecs", "dialects"])
def test_each_line_is_called_what_its_thing_is_called(table: Table[Any]) -> None:
    assert [thing.name for thing in table] == list(table.lines)


def test_a_table_imports_a_line_once_and_knows_what_it_has_not() -> None:
    made: list[int] = []
    table = Table("flyweight.foundation", {"limits": "limits:MAX_RANK"}, make=made.append)
    assert "limits" in table
    assert "other" not in table
    assert len(table) == 1
    assert made == []
    assert table["limits"] is table["limits"]
    assert made == [MAX_RANK]
    with pytest.raises(KeyError):
        table["other"]
