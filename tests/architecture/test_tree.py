"""Rules of the tree that no other tool checks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "flyweight").rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "torch", "transformers", "gguf", "safetensors", "mlx"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "manager"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_module_keeps_the_rules(path: Path) -> None:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    assert path.stem not in FORBIDDEN_NAMES
    assert len(text.splitlines()) <= 500, "a file this long has more than one subject"
    assert ast.get_docstring(tree), "a module says what it is"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported = {(node.module or "").split(".")[0]}
        else:
            imported = set()
        assert not imported & FORBIDDEN_MODULES, f"line {node.lineno}: the core imports none of these"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, f"line {node.lineno}: nothing from a file is executed"
        if isinstance(node, ast.Attribute) and node.attr.startswith("unpack") and isinstance(node.value, ast.Name):
            assert node.value.id != "struct" or path.name == "cursor.py", "only the cursor unpacks integers from files"


def test_containers_and_codecs_do_not_know_each_other() -> None:
    for package, other in (("containers", "codecs"), ("codecs", "containers")):
        for path in (ROOT / "src" / "flyweight" / package).rglob("*.py"):
            assert f"flyweight.{other}" not in path.read_text("utf-8"), path
