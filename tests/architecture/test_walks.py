"""The three walks of ARCHITECTURE.md, traced: every call goes down, and nothing is worked out twice for a tensor."""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import flyweight
from flyweight.runtime import open_model
from support.toys import write_toy_llama

ROOT = Path(__file__).parents[2]
SOURCE = str(Path(flyweight.__file__).parent) + "/"
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
HEIGHT = {name: -at for at, names in enumerate(LAYERS) for name in names.split(" | ")}


HANDED_IN = {("foundation/cursor.py:Cursor._ensure", "sources/file.py:FileSource.read")}
"""Calls of what a caller further up handed in."""


class Walk:
    """The calls from function to function of ours, and how often each codec and container was asked for what it decides."""

    def __init__(self) -> None:
        self.calls: set[tuple[str, str]] = set()
        self.asked: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not _is_ours(frame) or frame.f_code.co_name in ("<genexpr>", "<module>"):
            return
        caller = frame.f_back
        while caller is not None and not _is_ours(caller):
            caller = caller.f_back
        if caller is not None:
            self.calls.add((_place(caller), _place(frame)))
        if frame.f_code.co_name in ("layout", "carries"):
            self.asked[_place(frame)] += 1

    def upward(self) -> set[tuple[str, str]]:
        return {call for call in self.calls if _height(call[1]) > _height(call[0])}


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(SOURCE)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename.removeprefix(SOURCE)}:{frame.f_code.co_qualname}"


def _height(place: str) -> int:
    return HEIGHT.get(place.partition(":")[0].partition("/")[0].removesuffix(".py"), 0)


@contextmanager
def walk() -> Iterator[Walk]:
    found = Walk()
    sys.setprofile(found)
    try:
        yield found
    finally:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("walks")
    flyweight.convert(write_toy_llama(root / "hf"), root / "toy.gguf", to="gguf", quant="q4_0")
    return root / "toy.gguf"


def test_open_and_decode_a_tensor(gguf: Path) -> None:
    with walk() as found, flyweight.open(gguf) as checkpoint:
        assert checkpoint["blk.0.attn_q.weight"].size
        tensors = len(checkpoint.manifest.entries)
    assert found.upward() == HANDED_IN
    assert 0 < sum(found.asked.values()) < tensors, "once for each kind of tensor"


def test_convert(gguf: Path, nothing_asked_yet: None, tmp_path: Path) -> None:
    with walk() as found:
        flyweight.convert(gguf, tmp_path / "mlx", to="mlx", quant="int4")
    with flyweight.open(tmp_path / "mlx") as converted:
        matrices = sum(len(entry.spec.shape) == 2 for entry in converted.manifest.entries.values())
    assert found.upward() == HANDED_IN
    assert 0 < found.asked["codecs/affine.py:Affine.layout"] <= matrices, "once for each tensor"
    assert 0 < found.asked["containers/mlx.py:MlxDirectory.carries"] < matrices, "once for each kind"


def test_one_token(gguf: Path) -> None:
    with open_model(gguf) as model:
        cache = model.cache()
        model.decoder.forward([1], cache)
        with walk() as found:
            model.decoder.forward([2], cache)
    assert found.calls
    assert found.upward() == set()
    assert not found.asked
