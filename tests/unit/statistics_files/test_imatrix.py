"""llama.cpp's importance matrices, both kinds, written by hand, read and written. Hostile ones are in `tests/fuzz`."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from flyweight.calibration import calibrate
from flyweight.calibration.layer_walk import LayerWalk
from flyweight.calibration.sampling import Text
from flyweight.foundation.errors import FlyweightError
from flyweight.pipeline import convert
from flyweight.runtime import open_model
from flyweight.statistics_files.known_files import open_statistics
from support import GOLDEN
from support.statistics_files import GOOD, dat, gguf
from support.toys import toy_llama_files, write_files

WORDS = Text("words.txt", "abc ab a b 12 c! " * 400)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("imatrix") / "toy", toy_llama_files(dtype=np.float32))


@pytest.mark.parametrize("raw", [dat(), dat(end=struct.pack("<ii", 7, 3) + b"a.b"), gguf(GOOD)])
def test_means_are_read(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(raw)
    with open_statistics(tmp_path / "x") as found:
        assert found.matrices == {"blk.0.attn_q.weight": (0, 2)}
        known = found.inputs_of("blk.0.attn_q.weight")
        assert known is not None
        assert known.importance.tolist() == [1.0, 2.0]
        assert known.gram is None
        assert found.inputs_of("blk.1.attn_q.weight") is None


@pytest.mark.parametrize("length", range(0, 67, 6))
def test_no_piece_of_a_file_is_one(length: int, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(dat(values=range(1, 9))[:length])
    with pytest.raises(FlyweightError):
        open_statistics(tmp_path / "x")


@pytest.mark.parametrize("suffix", ["gguf", "dat"])
@pytest.mark.parametrize("source", ["hf", "gguf"])
def test_ours_are_read_back(toy: Path, tmp_path: Path, suffix: str, source: str) -> None:
    model = toy
    if source == "gguf":
        convert(toy, model := tmp_path / "model.gguf")
    out = tmp_path / f"toy.imatrix.{suffix}"
    calibrate(toy, tmp_path / "toy.stats", texts=[WORDS], tokens=1024, window=32)
    calibrate(model, out, texts=[WORDS], tokens=1024, window=32)
    with open_statistics(out) as theirs, open_statistics(tmp_path / "toy.stats") as ours:
        assert len(theirs.matrices) == len(ours.matrices)
        for name, called in {"model.layers.1.self_attn.k_proj": "blk.1.attn_k", "lm_head": "output"}.items():
            one, other = theirs.inputs_of(f"{called}.weight"), ours.inputs_of(f"{name}.weight")
            assert one is not None
            assert other is not None
            # a sum or a mean times a number, in f32, and back: each rounds once. Sources differ in the order of rows alone
            assert np.allclose(one.importance, other.importance, rtol=2.0**-20)
    convert(model, tmp_path / "out.gguf", quant="iq4_nl", statistics=out)


def test_there_is_no_place_for_gram_matrices(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(FlyweightError, match="E_STATISTICS"):
        calibrate(toy, tmp_path / "x.gguf", texts=[WORDS], tokens=1024, window=32, gram=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["gguf", "dat"])
def test_llama_cpp_finds_the_same_on_the_same_tokens(toy: Path, tmp_path: Path, suffix: str) -> None:
    """Its imatrix of the same model and windows. Both compute in f32: what comes before attention differs by rounding alone.
    Its cache holds keys and values in f16, 2^-11 of each and twice that in a square, which is the rest, summed over channels.
    """
    golden = GOLDEN / "imatrix" / f"toy.imatrix.{suffix}"
    with open_statistics(golden) as theirs, open_model(toy, kv="f32", int8=False) as model:
        ids = np.array(model.tokenizer.encode(WORDS.content, special=False))[:512].reshape(16, 32)
        LayerWalk(model, tmp_path / "x.gguf", ids, gram=False).carry_out({}, resume=False, force=False, progress=None)
        with open_statistics(tmp_path / "x.gguf") as ours:
            assert theirs.matrices == ours.matrices
            assert theirs.about["windows"] == 16
            for name in theirs.matrices:
                one, other = theirs.inputs_of(name), ours.inputs_of(name)
                assert one is not None
                assert other is not None
                assert np.abs(one.importance - other.importance).sum() <= 2 * 2.0**-11 * other.importance.sum(), name
                if name == "blk.0.attn_q.weight":
                    assert np.allclose(one.importance, other.importance, rtol=1e-5)
    convert(toy, tmp_path / "out.gguf", quant="iq4_nl", statistics=golden)
