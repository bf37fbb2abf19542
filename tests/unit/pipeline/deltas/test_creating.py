"""What makes a base into a fine-tune: every change of weights, names, types, shapes and side files comes back, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import flyweight
from flyweight.checkpoint.model_opening import read_delta
from flyweight.foundation.errors import ArgumentError, MalformedError, OutputError, ParentError
from flyweight.sources import open_bundle
from tests.support.fine_tunes import Arrays, files_of, tuned, write_model
from tests.support.toys import llama_tensors

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
Q = "model.layers.0.self_attn.q_proj.weight"


def renamed(arrays: Arrays) -> Arrays:
    return {name.removeprefix("model."): array for name, array in tuned(arrays).items()}


def moved_name(arrays: Arrays) -> Arrays:
    """The same bytes under another name."""
    return {name.replace("norm", "rms"): array for name, array in arrays.items()}


def grown(arrays: Arrays) -> Arrays:
    more = np.concatenate([arrays[EMBEDDING], arrays[EMBEDDING][:5] * 2])
    return tuned(arrays) | {EMBEDDING: more.astype(ml_dtypes.bfloat16)}


def shrunk(arrays: Arrays) -> Arrays:
    return tuned(arrays) | {EMBEDDING: arrays[EMBEDDING][:-7].copy()}


def tied(arrays: Arrays) -> Arrays:
    moved = tuned(arrays)
    return moved | {HEAD: moved[EMBEDDING].copy()}


def of_every_type(arrays: Arrays) -> Arrays:
    rng = np.random.default_rng(3)
    types = (np.float32, np.float16, np.float64, ml_dtypes.bfloat16)
    odd = {f"extra.{np.dtype(kind).name}": (rng.standard_normal((7, 3)) * 3).astype(kind) for kind in types}
    odd |= {"extra.int": np.arange(11, dtype=np.int64), "extra.bytes": np.arange(300, dtype=np.uint8)}
    odd |= {"extra.scalar": np.array(2.5, np.float32), "extra.none": np.zeros((0, 4), np.float32)}
    return arrays | odd


CHANGES: dict[str, Callable[[Arrays], Arrays]] = {
    "nothing": dict,
    "weights": tuned,
    "a few weights": lambda arrays: arrays | {Q: np.where(arrays[Q] > 0.1, arrays[Q] * 2, arrays[Q]).astype(arrays[Q].dtype)},
    "names": renamed,
    "names alone": moved_name,
    "types": lambda arrays: {name: array.astype(np.float16) for name, array in tuned(arrays).items()},
    "more rows": grown,
    "fewer rows": shrunk,
    "fewer tensors": lambda arrays: {name: array for name, array in arrays.items() if "layers.1" not in name},
    "more tensors": of_every_type,
    "tied": tied,
    "everything": lambda arrays: tuned(arrays, 1.0),
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_model(tmp_path / "base")


@pytest.mark.parametrize("change", CHANGES)
def test_the_fine_tune_comes_back(tmp_path: Path, base: Path, change: str) -> None:
    fine_tune = write_model(tmp_path / "tuned", CHANGES[change](llama_tensors()))
    flyweight.create_delta(base, fine_tune, tmp_path / "d.wdelta")
    flyweight.apply_delta(base, [tmp_path / "d.wdelta"], tmp_path / "again")
    with flyweight.open(fine_tune) as wanted, flyweight.open(tmp_path / "again") as found:
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert found.manifest.entries[name].spec == wanted.manifest.entries[name].spec
            assert found[name].tobytes() == wanted[name].tobytes()


@pytest.mark.parametrize(
    ("change", "stored"),
    [("nothing", set()), ("names alone", set()), ("a few weights", {Q}), ("fewer tensors", set())],
)
def test_what_did_not_change_takes_nothing(tmp_path: Path, base: Path, change: str, stored: set[str]) -> None:
    fine_tune = write_model(tmp_path / "tuned", CHANGES[change](llama_tensors()))
    report = flyweight.create_delta(base, fine_tune, tmp_path / "d.wdelta")
    assert {tensor.name for tensor in report.tensors if tensor.delta_nbytes} == stored


def test_equal_tensors_are_stored_once(tmp_path: Path, base: Path) -> None:
    report = flyweight.create_delta(base, write_model(tmp_path / "tuned", tied(llama_tensors())), tmp_path / "d.wdelta")
    stored = {tensor.name: tensor.delta_nbytes for tensor in report.tensors}
    assert stored[HEAD]
    assert not stored[EMBEDDING]


def test_side_files_come_back(tmp_path: Path, base: Path) -> None:
    (base / "config.json").write_bytes((base / "config.json").read_bytes().replace(b'"model_type"', b'\n"model_type"'))
    fine_tune = write_model(tmp_path / "tuned", tuned(llama_tensors()), README_md=None, notes_txt=b"new\n" * 100)
    report = flyweight.create_delta(base, fine_tune, tmp_path / "d.wdelta")
    assert set(report.files) == {"config.json", "notes.txt"}
    assert report.removed_files == ("README.md",)
    flyweight.apply_delta(base, [tmp_path / "d.wdelta"], tmp_path / "again")
    again, wanted = files_of(tmp_path / "again"), files_of(fine_tune)
    assert again.pop("model.safetensors")[-1000:] == wanted.pop("model.safetensors")[-1000:]  # headers have other spaces
    assert again == wanted


def test_quantized_models_are_compared_code_by_code(tmp_path: Path, base: Path) -> None:
    fine_tune = write_model(tmp_path / "tuned", CHANGES["a few weights"](llama_tensors()))
    for model in (base, fine_tune):
        flyweight.convert(model, tmp_path / f"{model.name}.gguf", quant="q8_0")
    report = flyweight.create_delta(tmp_path / "base.gguf", tmp_path / "tuned.gguf", tmp_path / "d.wdelta")
    assert [tensor.name for tensor in report.tensors if tensor.delta_nbytes] == ["blk.0.attn_q.weight"]
    flyweight.apply_delta(tmp_path / "base.gguf", [tmp_path / "d.wdelta"], tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "tuned.gguf").read_bytes()


def test_a_fine_tune_in_another_format(tmp_path: Path, base: Path) -> None:
    """Rows lie otherwise in GGUF, so less is alike; what comes back is still what it was."""
    fine_tune = write_model(tmp_path / "tuned", tuned(llama_tensors()))
    flyweight.convert(fine_tune, tmp_path / "tuned.gguf")
    flyweight.create_delta(base, tmp_path / "tuned.gguf", tmp_path / "d.wdelta")
    flyweight.apply_delta(base, [tmp_path / "d.wdelta"], tmp_path / "again.gguf")
    assert flyweight.diff(tmp_path / "again.gguf", tmp_path / "tuned.gguf").identical


def test_deltas_of_deltas(tmp_path: Path, base: Path) -> None:
    """Every step is made on the delta before, which says where its own base is."""
    arrays, below = llama_tensors(), base
    for step in range(4):
        arrays = tuned(arrays, seed=step)
        flyweight.create_delta(below, write_model(tmp_path / f"tuned{step}", arrays), tmp_path / f"{step}.wdelta")
        below = tmp_path / f"{step}.wdelta"
    chain = [tmp_path / f"{step}.wdelta" for step in range(4)]
    flyweight.squash_deltas(base, chain, tmp_path / "all.wdelta")
    flyweight.squash_deltas(None, chain[-1:], tmp_path / "followed.wdelta")
    for deltas in (chain, [tmp_path / "all.wdelta"], [tmp_path / "followed.wdelta"]):
        with flyweight.open(base, deltas=deltas) as found:
            assert all(found[name].tobytes() == array.tobytes() for name, array in arrays.items())
    with pytest.raises(ParentError, match=r"made from '0\.wdelta', not from .*base"):
        flyweight.apply_delta(base, chain[1:2], tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_another_base_is_refused_by_both_names_and_the_tensor(tmp_path: Path, base: Path) -> None:
    fine_tune = write_model(tmp_path / "tuned", tuned(llama_tensors()))
    flyweight.create_delta(base, fine_tune, tmp_path / "d.wdelta")
    other = llama_tensors()
    other[Q] = -other[Q]
    write_model(tmp_path / "other", other)
    with flyweight.open(tmp_path / "other", deltas=[tmp_path / "d.wdelta"]) as opened, pytest.raises(ParentError) as caught:
        opened[Q]
    assert "'base'" in str(caught.value)
    assert "other" in str(caught.value)
    assert caught.value.tensor == Q


def test_damage_names_the_tensor(tmp_path: Path, base: Path) -> None:
    fine_tune = write_model(tmp_path / "tuned", tuned(llama_tensors()))
    flyweight.create_delta(base, fine_tune, tmp_path / "d.wdelta")
    with closing(open_bundle(tmp_path / "d.wdelta")) as bundle:
        places = read_delta(bundle).changes[Q].stored
    for place in places:
        raw = bytearray((tmp_path / "d.wdelta").read_bytes())
        raw[place.end - 1] ^= 1
        (tmp_path / "damaged.wdelta").write_bytes(raw)
        report = flyweight.verify_delta(tmp_path / "damaged.wdelta")
        assert report.malformed
        assert [finding.tensor for finding in report.findings] == [Q]
        with flyweight.open(base, deltas=[tmp_path / "damaged.wdelta"]) as opened, pytest.raises(MalformedError) as caught:
            opened[Q]
        assert caught.value.tensor == Q


def test_a_delta_that_shrinks_while_it_is_open_is_an_error(tmp_path: Path, base: Path) -> None:
    """And no signal, as a mapping of it would give: what was read before is a copy."""
    arrays = llama_tensors() | {"large": np.random.default_rng(5).standard_normal((300, 1000)).astype(np.float32)}
    flyweight.create_delta(base, write_model(tmp_path / "tuned", arrays), tmp_path / "d.wdelta")
    with flyweight.open(base, deltas=[tmp_path / "d.wdelta"]) as opened:
        chunks = opened.delta.changes["large"].parts["data"].arrays["chunks"]  # type: ignore[attr-defined]
        held = chunks[:]
        before = held.tobytes()
        os.truncate(tmp_path / "d.wdelta", 1000)
        assert held.tobytes() == before
        with pytest.raises(MalformedError):
            opened["large"]


@pytest.mark.parametrize(
    "options", [{"strategy": "exakt"}, {"strategy": "auto", "budget": 1.5}, {"rank": 3}, {"strategy": "int4", "budget": 0.1}]
)
def test_arguments(tmp_path: Path, base: Path, options: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        flyweight.create_delta(base, base, tmp_path / "d.wdelta", **options)  # type: ignore[arg-type]


def test_nothing_is_replaced_unasked(tmp_path: Path, base: Path) -> None:
    (tmp_path / "d.wdelta").write_bytes(b"mine")
    with pytest.raises(OutputError):
        flyweight.create_delta(base, base, tmp_path / "d.wdelta")
    with pytest.raises(OutputError):
        flyweight.create_delta(base, base, tmp_path / "d.wdelta", force=True)
    assert (tmp_path / "d.wdelta").read_bytes() == b"mine"
