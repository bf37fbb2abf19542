"""`convert` to and from SQUIZD: presets, masks, draft heads, packages, and what other formats get of them."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight import Extras
from flyweight.containers import mlpackage
from flyweight.containers.squizd.squizd_options import INT2_SUB_BLOCK, INT4_SUB_BLOCK
from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError, ResourceError, UnsupportedError
from flyweight.foundation.manifest import Manifest
from flyweight.pipeline.plans.recipe_file import load_recipe
from support.toys import draft_head, llama_tensors, safetensors_bytes, write_files, write_package, write_toy_llama

MATRICES = [name for name, array in llama_tensors().items() if array.ndim == 2]
LAYER_MATRICES = [name for name in MATRICES if ".layers." in name]
FFN = [name for name in MATRICES if ".mlp." in name]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("squizd")
    (folder / "head.safetensors").write_bytes(safetensors_bytes(draft_head()))
    write_package(folder / "m.mlpackage")
    return write_toy_llama(folder / "toy")


@pytest.fixture(scope="module")
def full(toy: Path) -> Path:
    """A file with everything in it."""
    target = toy.parent / "full.squizd"
    extras = Extras(32, 0.5, None, toy.parent / "head.safetensors", toy.parent / "m.mlpackage")
    flyweight.convert(toy, target, quant="int4", extras=extras)
    return target


def manifest_of(path: Path) -> Manifest:
    with flyweight.open(path) as checkpoint:
        return checkpoint.manifest


def codecs(path: Path) -> dict[str, tuple[Any, ...]]:
    """Codec and the parameters that matter, by tensor."""
    found = {}
    for name, entry in manifest_of(path).entries.items():
        params = entry.codec.params
        found[name] = (entry.codec.name, *(params[key] for key in ("bits", "length") if key in params))
    return found


def test_int4_is_every_matrix_of_the_layers(toy: Path, tmp_path: Path) -> None:
    report = flyweight.convert(toy, tmp_path / "a.squizd", quant="int4")
    assert {n: c for n, c in codecs(tmp_path / "a.squizd").items() if c != ("raw",)} == dict.fromkeys(
        LAYER_MATRICES, ("tabled", 4, INT4_SUB_BLOCK)
    )
    assert report.relative_error < 0.12
    assert flyweight.verify(tmp_path / "a.squizd", strict=True).ok


def test_int2_is_a_hybrid(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "a.squizd", quant="int2")
    found = codecs(tmp_path / "a.squizd")
    wide = {name for name in LAYER_MATRICES if any(part in name for part in ("v_proj", "o_proj", "down_proj"))}
    assert all(found[name] == ("tabled", 4, INT4_SUB_BLOCK) for name in wide)
    assert all(found[name] == ("tabled", 2, INT2_SUB_BLOCK) for name in set(LAYER_MATRICES) - wide)
    assert found["model.embed_tokens.weight"] == found["model.norm.weight"] == ("raw",)


def test_tca_is_every_matrix_and_no_bit_changes(toy: Path, tmp_path: Path) -> None:
    report = flyweight.convert(toy, tmp_path / "a.squizd", quant="tca")
    assert {n for n, c in codecs(tmp_path / "a.squizd").items() if c == ("lossless",)} == set(MATRICES)
    assert not [note for note in report.notes if "not quantized" in note]
    assert report.bits_per_weight < 12
    assert flyweight.diff(toy, tmp_path / "a.squizd").identical


@pytest.mark.parametrize("quant", ["tca", "int4"])
def test_heads_are_reordered_on_the_way_to_gguf(toy: Path, tmp_path: Path, quant: str) -> None:
    """Also where rows do not stand alone: then as plain numbers."""
    flyweight.convert(toy, tmp_path / "a.squizd", quant=quant)
    flyweight.convert(tmp_path / "a.squizd", tmp_path / "a.gguf")
    assert flyweight.diff(tmp_path / "a.squizd", tmp_path / "a.gguf").identical
    flyweight.convert(tmp_path / "a.gguf", tmp_path / "back.squizd")
    assert flyweight.diff(tmp_path / "a.squizd", tmp_path / "back.squizd").identical


def test_astc_is_every_matrix_of_the_layers(toy: Path, tmp_path: Path) -> None:
    pytest.importorskip("astc_encoder")
    for quant, footprint in (("astc", (4, 4)), ("astc-6x6", (6, 6)), ("astc-8x5", (8, 5))):
        target = tmp_path / f"{quant}.squizd"
        flyweight.convert(toy, target, quant=quant)
        codecs = {e.codec.params.get("width"): e.codec.params.get("height") for e in manifest_of(target).entries.values()}
        assert codecs == {None: None, footprint[0]: footprint[1]}
        assert flyweight.verify(target, strict=True).ok
    flyweight.convert(tmp_path / "astc.squizd", tmp_path / "a.gguf")
    assert flyweight.diff(tmp_path / "astc.squizd", tmp_path / "a.gguf").identical
    with pytest.raises(UnsupportedError, match="astc-7x7"):
        flyweight.convert(toy, tmp_path / "no.squizd", quant="astc-7x7")


def test_none_is_plain_numbers_and_a_second_way_changes_nothing(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "a.squizd", quant="none")
    assert set(codecs(tmp_path / "a.squizd").values()) == {("raw",)}
    flyweight.convert(tmp_path / "a.squizd", tmp_path / "back", to="hf")
    flyweight.convert(toy, tmp_path / "direct", to="hf")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "direct" / name).read_bytes()


def test_a_sub_block_of_0_is_a_whole_row(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "a.squizd", quant="int4", extras=Extras(sub_block=0))
    found = codecs(tmp_path / "a.squizd")
    for name, entry in manifest_of(tmp_path / "a.squizd").entries.items():
        assert name not in LAYER_MATRICES or found[name] == ("tabled", 4, entry.spec.columns)


@pytest.mark.parametrize("quant", [None, "none", "tca", "int4", "int2"])
def test_sparsity_is_in_the_feed_forward_alone(toy: Path, tmp_path: Path, quant: str | None) -> None:
    extras = Extras(sub_block=16 if quant in ("int4", "int2") else None, sparse=0.5, sparse_block=16)
    flyweight.convert(toy, tmp_path / "a.squizd", quant=quant, extras=extras)
    with flyweight.open(tmp_path / "a.squizd") as made:
        masked = {name for name, entry in made.manifest.entries.items() if entry.codec.name == "masked"}
        assert masked == set(FFN)
        for name in FFN:
            blocks = made[name].astype(np.float32).reshape(made[name].shape[0], -1, 16)
            dropped = ~blocks.any(axis=2)
            assert (dropped.sum(axis=1) == blocks.shape[1] // 2).all()
        facts = made.container.summary(made.bundle)
    assert facts["sparsity"]["mean_sparsity"] == 0.5
    assert facts["sparsity"]["n_sparse_layers"] == 2
    assert flyweight.verify(tmp_path / "a.squizd", strict=True).ok


def test_auto_masks_what_is_zero_and_changes_nothing(tmp_path: Path) -> None:
    toy = write_toy_llama(tmp_path / "toy")
    tensors = llama_tensors()
    tensors[FFN[0]][:, :64] = 0
    (toy / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    flyweight.convert(toy, tmp_path / "a.squizd", extras=Extras(sparse="auto"))
    assert flyweight.diff(toy, tmp_path / "a.squizd").identical
    with flyweight.open(tmp_path / "a.squizd") as made:
        assert not made.encoded(FFN[0]).parts["mask"].any()
        assert made.encoded(FFN[1]).parts["mask"].all()


def test_a_recipe_names_the_codecs_itself(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("""
        protect = true
        [[rules]]
        match = "*.mlp.*"
        codec = "masked"
        params = { inner = { name = "tabled", params = { bits = 4, length = 32 } }, block = 32 }
        sparsity = 0.5
        [[rules]]
        match = "*"
        codec = "tabled"
        params = { bits = 4, length = "row" }
    """)
    flyweight.convert(toy, tmp_path / "a.squizd", recipe=tmp_path / "r.toml")
    found = codecs(tmp_path / "a.squizd")
    assert found[FFN[0]] == ("masked",)
    assert found["model.layers.0.self_attn.q_proj.weight"] == ("tabled", 4, 64)
    for wrong in ('codec = "tabled"\nsparsity = 0.5', 'codec = "masked"\nsparsity = 1.5', 'codec = "masked"\nsparsity = "all"'):
        (tmp_path / "w.toml").write_text(f'[[rules]]\nmatch = "*"\n{wrong}\n')
        with pytest.raises(UnsupportedError, match="sparsity"):
            load_recipe(tmp_path / "w.toml")


def test_a_draft_head_rides_along_as_it_is(toy: Path, full: Path) -> None:
    assert flyweight.verify(full).ok
    with flyweight.open(full) as made:
        for name, array in draft_head().items():
            entry = made.manifest.entries[f"draft.{name}"]
            assert entry.codec.name == "raw"
            assert np.array_equal(made[f"draft.{name}"].view(np.uint8), array.view(np.uint8))
        facts = made.container.summary(made.bundle)
    assert {"INT4", "SPARSE", "EAGLE", "ANE_COREML"} == set(facts["flags"])
    assert facts["draft_head"]["vocabulary"] == 32


def test_a_draft_head_disturbs_nobody(toy: Path, full: Path, tmp_path: Path) -> None:
    compared = flyweight.diff(toy, full)
    assert {t.status for t in compared.tensors} == {"identical", "close"}
    assert len(compared.tensors) == len(llama_tensors())
    both = flyweight.diff(full, full)
    assert both.identical
    assert len(both.tensors) == len(llama_tensors()) + len(draft_head())
    for target, to in (("a.gguf", "gguf"), ("hf", "hf"), ("mlx", "mlx")):
        report = flyweight.convert(full, tmp_path / target, to=to)
        assert [note for note in report.notes if "draft head of 5 tensors is not stored" in note]
        assert not [name for name in manifest_of(tmp_path / target).entries if name.startswith("draft.")]
        assert flyweight.diff(full, tmp_path / target).identical
    flyweight.convert(full, tmp_path / "a.safetensors")
    assert flyweight.diff(full, tmp_path / "a.safetensors").identical
    flyweight.convert(full, tmp_path / "again.squizd")
    assert (tmp_path / "again.squizd").read_bytes() == full.read_bytes()


def test_a_new_draft_head_takes_the_place_of_the_old(full: Path, tmp_path: Path) -> None:
    (tmp_path / "new.safetensors").write_bytes(safetensors_bytes({"fc.weight": np.ones((4, 4), np.float32)}))
    report = flyweight.convert(full, tmp_path / "a.squizd", extras=Extras(eagle=tmp_path / "new.safetensors"))
    assert [name for name in manifest_of(tmp_path / "a.squizd").entries if name.startswith("draft.")] == ["draft.fc.weight"]
    assert any("replaces the one" in note for note in report.notes)


def test_an_interrupted_run_with_two_sources_resumes(toy: Path, full: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def stop(name: str, nbytes: int, total: int) -> None:
        seen.append(name)
        if len(seen) == 23:  # inside the draft head
            raise KeyboardInterrupt

    extras = Extras(32, 0.5, None, toy.parent / "head.safetensors", toy.parent / "m.mlpackage")
    arguments: dict[str, Any] = {"quant": "int4", "extras": extras, "jobs": 1}
    with pytest.raises(KeyboardInterrupt):
        flyweight.convert(toy, tmp_path / "full.squizd", **arguments, progress=stop)
    report = flyweight.convert(toy, tmp_path / "full.squizd", **arguments, resume=True)
    assert report.resumed >= 22
    assert (tmp_path / "full.squizd").read_bytes() == full.read_bytes()


@pytest.mark.parametrize(
    ("target", "quant", "extras"),
    [
        ("a.gguf", None, Extras(sparse=0.5)),
        ("a.gguf", None, Extras(eagle=Path("x"))),
        ("hf", None, Extras(coreml=Path("x"))),
        ("a.squizd", "tca", Extras(sub_block=32)),
        ("a.squizd", "int4", Extras(sub_block=0, sparse=0.5)),
        ("a.squizd", "astc", Extras(sparse=0.5)),
        ("a.squizd", "int4", Extras(sub_block=32, sparse=0.5, sparse_block=48)),
        ("a.squizd", "int4", Extras(sparse_block=64)),
    ],
)
def test_wishes_that_do_not_go_together(toy: Path, tmp_path: Path, target: str, quant: str | None, extras: Extras) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        flyweight.convert(toy, tmp_path / target, quant=quant, extras=extras)
    assert not isinstance(caught.value, FlyweightError)
    assert list(tmp_path.iterdir()) == []


def test_a_package_is_the_same_archive_whenever_it_is_made(toy: Path, tmp_path: Path) -> None:
    package = write_package(tmp_path / "later.mlpackage")
    archive = mlpackage.read_package(package)
    assert archive == mlpackage.read_package(toy.parent / "m.mlpackage")
    with zipfile.ZipFile(io.BytesIO(archive)) as made:
        assert made.namelist() == sorted(made.namelist())
        assert {info.compress_type for info in made.infolist()} == {zipfile.ZIP_STORED}
        assert made.read("Manifest.json") == (package / "Manifest.json").read_bytes()
    (tmp_path / "a.zip").write_bytes(archive)
    assert mlpackage.read_package(tmp_path / "a.zip") == archive


def test_what_is_no_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("no archive at all, and long enough to be one")
    with pytest.raises(MalformedError):
        mlpackage.read_package(tmp_path / "text")
    with pytest.raises(UnsupportedError, match=r"Manifest\.json"):
        mlpackage.read_package(write_files(tmp_path / "other", {"a": b"b"}))
    package = write_package(tmp_path / "m.mlpackage")
    (package / "link").symlink_to("/etc/hostname")
    with pytest.raises(UnsupportedError, match="neither a file nor a directory"):
        mlpackage.read_package(package)
    (package / "link").unlink()
    monkeypatch.setattr(mlpackage, "MAX_ARCHIVE_BYTES", 100)
    with pytest.raises(LimitError, match="the limit is"):
        mlpackage.read_package(package)


def test_a_package_that_memory_does_not_hold_is_refused_before_it_is_written(toy: Path, tmp_path: Path) -> None:
    package = write_files(write_package(tmp_path / "m.mlpackage"), {"Data/large.bin": bytes(64 << 20)})
    wish: dict[str, Any] = {"extras": Extras(coreml=package)}
    with pytest.raises(ResourceError, match="memory"):
        flyweight.convert(toy, tmp_path / "out" / "a.squizd", **wish, max_ram=400 << 20)


def test_one_file_is_not_split(toy: Path, tmp_path: Path) -> None:
    report = flyweight.convert(toy, tmp_path / "a.squizd", shard_bytes=30_000)
    assert (tmp_path / "a.squizd").is_file()
    assert any("not split" in note for note in report.notes)


def test_a_dry_run_says_all_of_it(toy: Path) -> None:
    from flyweight.pipeline import plan_conversion

    with flyweight.open(toy) as checkpoint:
        extras = Extras(sparse=0.5, eagle=toy.parent / "head.safetensors")
        plan = plan_conversion(checkpoint, toy.parent / "x.squizd", quant="int4", extras=extras).as_json()
    assert json.loads(json.dumps(plan)) == plan
    steps = {step["name"]: step for step in plan["tensors"]}
    assert steps[FFN[0]]["sparsity"] == 0.5
    assert steps["draft.fc.weight"]["origin"].endswith("head.safetensors")
    assert plan["recipe"]["masks"]["sparsity"] == 0.5
