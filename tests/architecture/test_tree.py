"""Rules of the tree that no other tool checks."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from flyweight.codecs import CODECS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "flyweight"
SOURCES = sorted(PACKAGE.rglob("*.py"))
UNIT_TESTS = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))
WRITTEN_BY_HAND = sorted(
    path
    for folder in ("src", "native", "tests", "bench", "pages", "tools")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".pyi", ".c", ".cpp", ".hpp"}
)
CROSS_PACKAGES = {"failures", "resources"}
"""Subjects that have a folder of unit tests and are no package."""
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "torch", "transformers", "gguf", "safetensors", "mlx"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "manager"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_module_keeps_the_rules(path: Path) -> None:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
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


@pytest.mark.parametrize("path", WRITTEN_BY_HAND, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_has_one_subject_and_says_which(path: Path) -> None:
    text = path.read_text("utf-8")
    assert path.stem not in FORBIDDEN_NAMES
    assert len(text.splitlines()) <= 500, "a file this long has more than one subject"
    assert path.suffix != ".py" or ast.get_docstring(ast.parse(text)), "a module says what it is"


@pytest.mark.parametrize("paths", [SOURCES, UNIT_TESTS], ids=["modules", "unit tests"])
def test_no_two_have_one_name(paths: list[Path]) -> None:
    names = Counter(path.stem for path in paths if path.stem != "__init__")
    assert [name for name, count in names.items() if count > 1] == []


def test_unit_tests_mirror_the_packages() -> None:
    folders = {path.parent.relative_to(ROOT / "tests" / "unit") for path in UNIT_TESTS}
    assert [str(folder) for folder in folders if folder.name not in CROSS_PACKAGES and not (PACKAGE / folder).is_dir()] == []
    assert Path() not in folders, "a test stands in the folder of what it tests"


TAKE_PRIVATE_NAMES = {
    "kernels/products/matrix.py": "whether the native kernels are there",
    "kernels/streams/affine_codes.py": "the definitions of kernels without their dispatch",
}
"""Files that import a name with an underscore from another module, and why."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_no_module_takes_what_another_keeps_to_itself(path: Path) -> None:
    imports = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("flyweight.")]
    private = [alias.name for node in ours for alias in node.names if re.match("_[^_]", alias.name)]
    assert bool(private) == (str(path.relative_to(ROOT / "src" / "flyweight")) in TAKE_PRIVATE_NAMES), private


KNOW_CODECS_BY_NAME = {
    "containers/carried.py": "matches a codec with what a container declares",
    "containers/mlx.py": "what MLX stores is one codec",
    "containers/npy_dir/npy_directory.py": "stores affine its own way",
    "containers/squizd/blocks.py": "the table of block encodings, a class each",
    "containers/squizd/walk.py": "reads blocks that no directory describes",
}
"""Files that still compare a codec's name, and why. What a codec does differently belongs on its class."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_no_module_asks_a_codec_for_its_name(path: Path) -> None:
    file = str(path.relative_to(PACKAGE))
    if file.startswith("codecs/"):
        return
    found = [ast.unparse(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))) if _asks_for_a_name(node)]
    if file in KNOW_CODECS_BY_NAME:
        assert found, "no longer: take the file out of the list"
    else:
        assert not found


def _asks_for_a_name(node: ast.AST) -> bool:
    """Whether a name of CODECS is compared with a `.name`, or the name of some `codec` with anything but the table."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    texts = [ast.unparse(side) for side in sides]
    if any(re.search(r"codec\w*\.name\b|\bcodec_name\b", text) for text in texts):
        return not set(texts) & {"CODECS", "CODECS.lines"}
    names = {each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)}
    return any(text.endswith(".name") for text in texts) and not names.isdisjoint(CODECS.lines)


def test_containers_and_codecs_do_not_know_each_other() -> None:
    for package, other in (("containers", "codecs"), ("codecs", "containers")):
        for path in (PACKAGE / package).rglob("*.py"):
            assert f"flyweight.{other}" not in path.read_text("utf-8"), path
