"""Conversion end to end on a small complete model: what is copied, what is rounded, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flyweight
from flyweight.foundation.errors import MalformedError, OutputError, ResourceError, UnsupportedError
from support.toys import llama_tensors, safetensors_bytes, write_files, write_toy_llama


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy_llama(tmp_path / "toy")


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_hf_to_hf_is_a_remux_that_carries_every_side_file(toy: Path, tmp_path: Path) -> None:
    report = flyweight.convert(toy, tmp_path / "copy")
    assert {tensor.action for tensor in report.tensors} == {"remux"}
    before, after = contents(toy), contents(tmp_path / "copy")
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} <= {"model.safetensors"}
    assert flyweight.diff(toy, tmp_path / "copy").identical


def test_hf_to_gguf_and_back_keeps_every_value_and_the_tokenizer(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "toy.gguf")
    flyweight.convert(tmp_path / "toy.gguf", tmp_path / "back", dtype="bf16")
    assert flyweight.diff(toy, tmp_path / "toy.gguf").identical
    assert flyweight.diff(toy, tmp_path / "back").identical
    with flyweight.open(tmp_path / "back") as back:
        for name, array in llama_tensors().items():
            assert np.array_equal(back[name].view(np.uint16), array.view(np.uint16)), name
    config = json.loads((tmp_path / "back" / "config.json").read_bytes())
    assert config["model_type"] == "llama"
    assert config["num_key_value_heads"] == 2
    vocabulary = json.loads((toy / "tokenizer.json").read_bytes())["model"]["vocab"]
    assert json.loads((tmp_path / "back" / "tokenizer.json").read_bytes())["model"]["vocab"] == vocabulary
    template = json.loads((toy / "tokenizer_config.json").read_bytes())["chat_template"]
    assert (tmp_path / "back" / "chat_template.jinja").read_text() == template


def test_gguf_to_safetensors_to_gguf_is_byte_identical(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "a.gguf", quant="q4_1")
    flyweight.convert(tmp_path / "a.gguf", tmp_path / "a.safetensors")
    flyweight.convert(tmp_path / "a.safetensors", tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_vectors_become_f32_in_gguf_and_then_stay_as_they_are(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "a.gguf", dtype="f16")
    flyweight.convert(tmp_path / "a.gguf", tmp_path / "b.gguf", dtype="bf16")
    for name, matrix in (("a.gguf", "f16"), ("b.gguf", "bf16")):
        with flyweight.open(tmp_path / name) as made:
            dtypes = {n: e.spec.dtype.label for n, e in made.manifest.entries.items()}
        assert {dtypes[n] for n in dtypes if "norm" in n} == {"f32"}
        assert {dtypes[n] for n in dtypes if "norm" not in n} == {matrix}


def only(path: Path, codec: str) -> Path:
    """A recipe of one codec for all but embeddings, head and vectors."""
    path.write_text(f'protect = true\n[[rules]]\nmatch = "*"\ncodec = "{codec}"\n')
    return path


@pytest.mark.parametrize(
    ("target", "quant", "embedding", "head", "layers"),
    [
        ("q.gguf", "q8_0", "q8_0", "q8_0", "q8_0"),
        ("q.gguf", "q4_1", "q4_1", "q8_0", "q4_1"),  # q6_k, but 64 columns are no whole blocks of it
        ("q.safetensors", "q4_1", "q4_1", "q8_0", "q4_1"),
        ("q-hf", "int4", "raw", "raw", "affine"),
        ("q-hf", "nf4", "raw", "raw", "nf4"),
    ],
)
def test_what_becomes_of_embeddings_head_and_norms(
    target: str, quant: str, embedding: str, head: str, layers: str, toy: Path, tmp_path: Path
) -> None:
    report = flyweight.convert(toy, tmp_path / target, quant=quant)
    with flyweight.open(tmp_path / target) as made:
        codecs = {name: entry.codec.name for name, entry in made.manifest.entries.items()}
    first = {name: codec for name, codec in codecs.items() if "emb" in name}
    last = {name: codec for name, codec in codecs.items() if name in ("output.weight", "lm_head.weight")}
    norms = {codec for name, codec in codecs.items() if "norm" in name}
    assert (set(first.values()), set(last.values()), norms) == ({embedding}, {head}, {"raw"})
    assert {codec for name, codec in codecs.items() if "norm" not in name and name not in first | last} == {layers}
    stays = [note for note in report.notes if "stay" in note]
    assert len(stays) == (embedding == "raw")
    assert all(f"2 matrices stay bf16 (24.6 of 60.0 KB): {quant} keeps" in note for note in stays if quant == "int4")


def test_report_measures_the_loss(toy: Path, tmp_path: Path) -> None:
    report = flyweight.convert(toy, tmp_path / "q.gguf", quant="q8_0")
    source = llama_tensors()["model.layers.0.mlp.up_proj.weight"].astype(np.float32)
    with flyweight.open(tmp_path / "q.gguf") as made:
        decoded = made["blk.0.ffn_up.weight"]
    told = {tensor.name: tensor for tensor in report.tensors}["blk.0.ffn_up.weight"]
    assert told.max_error == pytest.approx(np.abs(source - decoded).max())
    assert told.relative_error == pytest.approx(np.linalg.norm(source - decoded) / np.linalg.norm(source), rel=1e-6)
    # q8_0 rounds to a grid of absmax/127 per block of 32, and the scale itself to f16 (2^-11 relative, times 127 steps)
    bound = np.abs(source).max() / 127 * (0.5 + 127 * 2.0**-11)
    assert 0 < told.max_error <= bound


def test_repack_moves_grids_between_gguf_and_mlx_without_loss(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "a.gguf", recipe=only(tmp_path / "r.toml", "q4_1"))
    report = flyweight.convert(tmp_path / "a.gguf", tmp_path / "mlx", to="mlx")
    assert {t.action for t in report.tensors if "proj" in t.name} == {"repack"}
    assert flyweight.diff(tmp_path / "a.gguf", tmp_path / "mlx").identical
    back = flyweight.convert(tmp_path / "mlx", tmp_path / "b.gguf")
    assert {t.action for t in back.tensors if "ffn" in t.name and "norm" not in t.name} == {"repack"}
    assert flyweight.diff(tmp_path / "a.gguf", tmp_path / "b.gguf").identical


@pytest.mark.parametrize(
    ("stored", "to", "quant", "action"),
    [
        ("q4_1", "mlx", "int4-g32", "repack"),
        ("q4_0", "mlx", "int4-g32", "repack"),
        ("q5_1", "mlx", "int5-g32", "repack"),
        ("q8_0", "mlx", "int8-g32", "repack"),
        ("q4_1", "npy_dir", "int4", "repack"),  # its scales are f32, which holds f16
        ("q4_1", "mlx", "int4-g64", "transcode"),
        ("q4_1", "mlx", "int8-g32", "transcode"),
        ("q4_0", "gguf", "q4_1", "repack"),
        ("q4_1", "gguf", "q4_0", "transcode"),  # has no room for an offset
    ],
)
def test_asking_for_the_grid_a_tensor_has_moves_its_codes(
    toy: Path, tmp_path: Path, stored: str, to: str, quant: str, action: str
) -> None:
    flyweight.convert(toy, tmp_path / "a.gguf", recipe=only(tmp_path / "r.toml", stored))
    wish: dict[str, Any] = {"quant": quant}
    if to != "npy_dir":  # where the name means embeddings, too
        wish = {"recipe": only(tmp_path / "w.toml", quant if to == "gguf" else "affine")}
    if to == "mlx":
        bits, group = quant.removeprefix("int").split("-g")
        with (tmp_path / "w.toml").open("a") as recipe:
            recipe.write(f'params = {{ bits = {bits}, group = {group}, scale = "f16" }}\n')
    report = flyweight.convert(tmp_path / "a.gguf", tmp_path / "b", to=to, **wish)
    names = [t.name for t in report.tensors if "proj" in t.name or ("ffn_" in t.name and "norm" not in t.name)]
    assert {t.action for t in report.tensors if t.name in names} == {action}
    assert flyweight.diff(tmp_path / "a.gguf", tmp_path / "b").identical == (action == "repack")


def test_naming_a_quantizer_asks_for_other_codes(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "a.gguf", quant="q4_1")
    rule = 'protect = true\n[[rules]]\nmatch = "*"\ncodec = "affine"\nparams = { bits = 4, group = 32, scale = "f16" }\n'
    for quantizer, action in (("", "repack"), ("nearest", "transcode"), ("clip", "transcode")):
        (tmp_path / "r.toml").write_text(rule + (f'quantizer = "{quantizer}"\n' if quantizer else ""))
        report = flyweight.convert(tmp_path / "a.gguf", tmp_path / "b", to="mlx", recipe=tmp_path / "r.toml", force=True)
        assert {t.action for t in report.tensors if "proj" in t.name} == {action}


def test_unknown_codec_survives_a_remux_and_is_refused_when_decoding(tmp_path: Path) -> None:
    blocks = np.arange(64, dtype=np.uint8).reshape(4, 16)
    description = {
        "w": {"shape": [4, 32], "dtype": "f32", "codec": {"name": "alien", "params": {"k": 3}}, "parts": {"blob": "w"}}
    }
    source = tmp_path / "alien.safetensors"
    source.write_bytes(safetensors_bytes({"w": blocks}, {"flyweight.tensors": json.dumps(description)}))
    flyweight.convert(source, tmp_path / "copy.safetensors")
    with flyweight.open(tmp_path / "copy.safetensors") as copy:
        entry = copy.manifest.entries["w"]
        assert (entry.codec.name, dict(entry.codec.params), entry.spec.shape) == ("alien", {"k": 3}, (4, 32))
        assert np.array_equal(copy.encoded("w").parts["blob"], blocks)
        with pytest.raises(UnsupportedError, match="alien"):
            copy["w"]
    with pytest.raises(UnsupportedError, match="alien"):
        flyweight.convert(source, tmp_path / "dense.safetensors", quant="dense")
    assert not (tmp_path / "dense.safetensors").exists()


def test_worker_count_does_not_change_a_byte(toy: Path, tmp_path: Path) -> None:
    made = []
    for jobs in (1, 2, 8):
        flyweight.convert(toy, tmp_path / f"{jobs}.gguf", quant="q4_0", jobs=jobs)
        made.append((tmp_path / f"{jobs}.gguf").read_bytes())
    assert made[0] == made[1] == made[2]


def test_sharded_output_reads_back(toy: Path, tmp_path: Path) -> None:
    flyweight.convert(toy, tmp_path / "shards", shard_bytes=30_000)
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_bytes())
    assert len(set(index["weight_map"].values())) > 2
    assert flyweight.diff(toy, tmp_path / "shards").identical
    flyweight.convert(toy, tmp_path / "splits", to="gguf", shard_bytes=30_000)
    assert len(list((tmp_path / "splits").glob("*.gguf"))) > 2
    assert flyweight.diff(toy, tmp_path / "splits").identical


def test_existing_destination_is_kept_unless_forced(toy: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.gguf"
    target.write_bytes(b"precious")
    with pytest.raises(OutputError, match="already exists"):
        flyweight.convert(toy, target)
    assert target.read_bytes() == b"precious"
    target.unlink()
    flyweight.convert(toy, target, quant="q8_0")
    flyweight.convert(toy, target, force=True)
    assert flyweight.diff(toy, target).identical
    assert sorted(p.name for p in tmp_path.iterdir()) == ["toy", "x.gguf"]


def test_force_replaces_whatever_kind_is_there(toy: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"  # a directory with the name of the only file in it
    plain = write_files(tmp_path / "plain", {"model.safetensors": safetensors_bytes({"w": np.ones((2, 2), np.float32)})})
    for to, is_directory in (("safetensors", False), ("hf", True), ("hf", True), ("safetensors", False)):
        flyweight.convert(plain, target, to=to, force=True)
        assert target.is_dir() is is_directory
        assert flyweight.diff(plain, target).identical
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "plain", "toy"]


def test_overflow_and_nan_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    big = write_files(
        tmp_path / "big",
        {"config.json": b"{}", "model.safetensors": safetensors_bytes({"w": np.full((2, 32), 1e38, np.float32)})},
    )
    with pytest.raises(MalformedError, match="too large for f16") as overflow:
        flyweight.convert(big, tmp_path / "out", dtype="f16")
    assert overflow.value.tensor == "w"
    nan = write_files(
        tmp_path / "nan",
        {"config.json": b"{}", "model.safetensors": safetensors_bytes({"w": np.full((2, 32), np.nan, np.float32)})},
    )
    with pytest.raises(MalformedError, match="NaN"):
        flyweight.convert(nan, tmp_path / "out.safetensors", quant="q8_0")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["big", "nan"]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_only_a_finite_value_that_would_become_infinite_is_refused(dtype: str, tmp_path: Path) -> None:
    most = {"f32": np.finfo(np.float32).max, "bf16": ml_dtypes.finfo(ml_dtypes.bfloat16).max, "f16": 65504.0}[dtype]
    kept = {"most": [float(most), -float(most)], "infinite": [np.inf, 1.0], "below": [-np.inf, 0.0], "nan": [np.nan, 1e-9]}
    arrays = {name: np.array([values], np.float64) for name, values in kept.items()}
    write_files(tmp_path, {"m.safetensors": safetensors_bytes(arrays)})
    flyweight.convert(tmp_path / "m.safetensors", tmp_path / "n.safetensors", dtype=dtype)
    with flyweight.open(tmp_path / "n.safetensors") as made:
        assert {name: made[name].shape for name in made} == dict.fromkeys(kept, (1, 2))
        assert float(made["most"][0, 0]) == float(most)
    write_files(tmp_path, {"m.safetensors": safetensors_bytes({"beyond": np.array([[1.0, -1.1 * float(most)]], np.float64)})})
    with pytest.raises(MalformedError, match=f"too large for {dtype}"):
        flyweight.convert(tmp_path / "m.safetensors", tmp_path / "o.safetensors", dtype=dtype)


def test_rows_that_do_not_fit_a_block_stay_dense_and_it_is_said(tmp_path: Path) -> None:
    source = write_files(
        tmp_path / "odd", {"config.json": b"{}", "model.safetensors": safetensors_bytes({"w": np.ones((4, 33), np.float32)})}
    )
    report = flyweight.convert(source, tmp_path / "o.safetensors", quant="q8_0")
    assert "1 matrix stays f32 (528 of 528 B): rows of 33 are no whole blocks of q8_0" in report.notes
    assert flyweight.diff(source, tmp_path / "o.safetensors").identical


def test_memory_limit_too_small_is_found_before_starting(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="MiB"):
        flyweight.convert(toy, tmp_path / "x.gguf", max_ram=1 << 20)
    assert not (tmp_path / "x.gguf").exists()


def test_a_tensor_to_fit_a_codec_to_is_not_read_beyond_the_memory_limit(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyweight.pipeline.plans.planning.read_rows", lambda *_: pytest.fail("the tensor was read"))
    with pytest.raises(ResourceError, match="fitting lossless needs") as refusal:
        flyweight.convert(toy, tmp_path / "x.safetensors", quant="lossless", max_ram=192 << 20)
    assert refusal.value.tensor
    assert refusal.value.exit_code == 5
    assert not list(tmp_path.glob("x*"))


def test_recipe_file(toy: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mixed.toml"
    recipe.write_text(
        """
        [[rules]]
        match = ["*norm*", "*embed*", "lm_head*"]
        codec = "keep"
        [[rules]]
        match = "*.self_attn.*"
        codec = "q8_0"
        [[rules]]
        match = "*"
        codec = "q4_0"
        """
    )
    flyweight.convert(toy, tmp_path / "m.gguf", recipe=recipe)
    with flyweight.open(tmp_path / "m.gguf") as made:
        assert made.manifest.entries["blk.0.attn_q.weight"].codec.name == "q8_0"
        assert made.manifest.entries["blk.1.ffn_down.weight"].codec.name == "q4_0"
    recipe.write_text('[[rules]]\nmatch = "*"\ncodek = "q4_0"\n')
    with pytest.raises(UnsupportedError, match="codek"):
        flyweight.convert(toy, tmp_path / "n.gguf", recipe=recipe)


def test_a_codec_sees_the_axes_of_a_tensor(tmp_path: Path) -> None:
    """Tables for every two channels of a convolution, not for every two of its rows."""
    weights = np.random.default_rng(3).standard_normal((6, 4, 3, 3)).astype(np.float32)
    write_files(tmp_path, {"a.safetensors": safetensors_bytes({"conv.weight": weights})})
    rules = '[[rules]]\nmatch = "*"\ncodec = "palette"\nparams = { bits = 2, group = 2, axis = 0 }\n'
    (tmp_path / "recipe.toml").write_text(rules)
    flyweight.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", recipe=tmp_path / "recipe.toml")
    with flyweight.open(tmp_path / "b.safetensors") as back:
        assert [len(np.unique(back["conv.weight"][at : at + 2])) for at in (0, 2, 4)] == [4, 4, 4]
        assert np.abs(back["conv.weight"] - weights).max() < np.ptp(weights) / 2


def test_float_types_survive_bit_for_bit(tmp_path: Path) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    source = tmp_path / "all.safetensors"
    source.write_bytes(safetensors_bytes({"b": bits.view(ml_dtypes.bfloat16), "h": bits.view(np.float16)}))
    flyweight.convert(source, tmp_path / "copy.safetensors")
    with flyweight.open(tmp_path / "copy.safetensors") as copy:
        assert np.array_equal(copy["b"].view(np.uint16), bits)
        assert np.array_equal(copy["h"].view(np.uint16), bits)


def test_what_takes_longest_is_made_first_and_the_rest_in_order(tmp_path: Path) -> None:
    """One worker would be alone with it at the end."""
    sizes = {"b": 1, "output": 64, "a": 2, "d": 3, "embedding": 128, "c": 1}
    source = tmp_path / "model.safetensors"
    source.write_bytes(safetensors_bytes({name: np.ones((rows, 64), np.float32) for name, rows in sizes.items()}))
    made: list[str] = []
    flyweight.convert(source, tmp_path / "made.safetensors", jobs=1, progress=lambda name, nbytes, total: made.append(name))
    assert made == ["embedding", "output", "b", "a", "d", "c"]
    with flyweight.open(tmp_path / "made.safetensors") as checkpoint:
        assert list(checkpoint) == list(sizes)
