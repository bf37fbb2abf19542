"""A format is known in its own module: elsewhere code asks what a container can do, and imports point down."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from flyweight.containers import CONTAINERS, OPTIONS, abilities, container_named
from flyweight.containers.container import Container

SOURCE = Path(__file__).parents[2] / "src" / "flyweight"
MODULES = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py"))]
NAMES = {*CONTAINERS.lines, *(name.replace("_", "-") for name in CONTAINERS.lines)}
DYNAMIC = {"table.py"}
"""What looks modules up by name: the lazy tables. So may every `__init__`."""


def tree(module: Path) -> ast.Module:
    return ast.parse((SOURCE / module).read_text("utf-8"))


def strings(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


@pytest.mark.parametrize("module", [m for m in MODULES if m.parts[0] != "containers"], ids=str)
def test_nothing_is_decided_by_the_name_of_a_container(module: Path) -> None:
    """Dialects, which are namings of tensors, share two of the names: they are compared as `dialect`."""
    for node in ast.walk(tree(module)):
        asked = node if isinstance(node, ast.Compare) else node.pattern if isinstance(node, ast.match_case) else None
        if asked is not None and "dialect" not in ast.unparse(asked):
            assert not strings(asked) & NAMES, f"line {asked.lineno}: {ast.unparse(asked)}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.parts[0] == "containers"], ids=str)
def test_a_container_knows_no_other_by_name(module: Path) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Compare) and ("format" in ast.unparse(node) or ".name" in ast.unparse(node)):
            assert not strings(node) & NAMES, f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.name != "__init__.py" and str(m) not in DYNAMIC], ids=str)
def test_no_module_of_ours_is_imported_by_a_string(module: Path) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__", "find_spec")):
            assert not any("flyweight" in text for text in strings(node)), f"line {node.lineno}: {ast.unparse(node)}"


def test_importing_the_pipeline_loads_no_container() -> None:
    modules = [line.partition(":")[0].split(".")[0] for line in CONTAINERS.lines.values()]
    script = f"import sys, flyweight.pipeline; print([m for m in {modules} if 'flyweight.containers.' + m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_contract_is_small() -> None:
    members = {name for name in vars(Container) if not name.startswith("_")} | set(Container.__annotations__)
    assert Container.__abstractmethods__ == {"probe", "parse", "carries", "place"}
    assert members - Container.__abstractmethods__ == {
        "name", "title", "dialect", "is_directory", "suffix", "expert_layout", "dense", "decodes", "codecs", "carried",
    }  # fmt: skip


PROTOCOLS = [
    kind
    for _, kind in inspect.getmembers(abilities, inspect.isclass)
    if kind.__module__ == abilities.__name__ and not issubclass(kind, Container)
]


@pytest.mark.parametrize("ability", PROTOCOLS, ids=lambda kind: kind.__name__)
def test_an_ability_is_small_documented_and_had_by_a_container(ability: type) -> None:
    members = [name for name in (*vars(ability), *get_type_hints(ability)) if not name.startswith("_")]
    assert 1 <= len(set(members)) <= 2
    assert ability.__doc__
    assert any(isinstance(container, ability) for container in CONTAINERS)
    assert not all(isinstance(container, ability) for container in CONTAINERS), "what all can do belongs in the contract"


def test_options_are_declared_under_the_name_of_their_container() -> None:
    for name, group in zip(OPTIONS.lines, OPTIONS, strict=True):
        assert group.title == container_named(name).title
        assert group.extras is None or group.extras.format == name
        flags = [option.flag for option in (*group.options, *([group.add] if group.add else ()))]
        convert = (SOURCE / "cli" / "convert.py").read_text("utf-8")
        code = convert.replace(ast.get_docstring(tree(Path("cli/convert.py"))) or "", "")
        assert not [flag for flag in flags if f'"{flag}"' in code]
