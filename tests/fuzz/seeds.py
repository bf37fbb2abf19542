"""Where fuzzing starts: small valid inputs of every target, and the named hostile files of every container.

A container's seeds are sample files written by hand, one tensor in each codec it carries as the container itself places it,
and tiny models of every family. All are made by code; what fuzzing has found beyond them is in `corpus`.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flyweight import models
from flyweight.checkpoint import read_checkpoint
from flyweight.codecs import codec_for
from flyweight.containers import CONTAINERS
from flyweight.containers.abilities import EmbedsFiles, adapted
from flyweight.containers.container import Container
from flyweight.deltas.recognition import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Entry, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.pipeline.plans.planning import make_job
from flyweight.pipeline.plans.quantization_names import preset
from flyweight.pipeline.plans.recipe import Masks
from flyweight.sources import MemoryBundle
from flyweight.targets.ane.records.activation_functions import build as build_activation
from flyweight.targets.ane.records.channel_groups import channel_table
from flyweight.targets.ane.records.kernel_unit import Descriptor, KernelUnit, Lut, Ocgs, Pal, Vector, Weights
from fuzz.framing import Files, Input
from support import GOLDEN, coreml_files, sample_files, uqff_files, wdelta_files
from support.adapters import CONFIG as ADAPTER_SETTINGS
from support.adapters import PREFIX, adapter_weights, embedding, factor_pair, linear
from support.chat_templates import TEMPLATES
from support.every_codec import INSTANCES, plausible
from support.materialise import Payload, materialise
from support.numbered_layers import as_llama
from support.squizd_files import FLAG, KINDS, NAME, archive, bare, int4, layered, member, npcl, table, written
from support.squizd_files import manifest as squizd_manifest
from support.statistics_files import GOOD, dat, gguf, ours
from support.tiny_models import TINY, as_gguf, hf_manifest, no_read
from support.tokenizers import bpe, pieces
from support.tokenizers import files as tokenizer_files
from support.toys import safetensors_bytes

try:
    from compression import zstd
except ModuleNotFoundError:
    from backports import zstd

__all__ = ["LARGEST", "PLANNED_TENSORS", "SEEDS", "SQUIZD_BARE", "SQUIZD_WHOLE", "codec_inputs", "seeds"]

LARGEST = 12 << 10
"""Larger files are not more interesting, only slower."""
NPY_DIRS = GOLDEN / "npydir"


# Containers -----------------------------------------------------------------------------------


def _zeros(entry: Entry, part: str) -> bytes:
    return bytes(entry.parts[part].nbytes)


def _written(container: Container, entries: list[Entry], payload: Payload, **about: object) -> Input:
    """A checkpoint as its container places it."""
    manifest = Manifest(container.name, {entry.name: entry for entry in entries}, **about)  # type: ignore[arg-type]
    placed = container.place(manifest, f"x{container.suffix}")
    return Input(materialise(placed, payload, container=container), container.is_directory)


def _surroundings(container: Container) -> dict[str, object]:
    metadata = {"format": Typed("str", "mlx" if container.name == "mlx" else "pt")}
    if container.dialect == "gguf":
        metadata = {"general.architecture": Typed("str", "toy")}
    files = {"config.json": b'{"model_type": "toy"}'} if container.is_directory or isinstance(container, EmbedsFiles) else {}
    return {"metadata": metadata, "files": files, "dialect": container.dialect or "hf"}


def _of_every_codec(container: Container) -> Iterator[Input]:
    """A tensor in each codec and element type it carries, alone or beside a plain one."""
    name, plain = "model.layers.0.x.weight", TensorSpec((3, 4), DType.F32)
    tensors = [(TensorSpec((2, 3), dtype), codec_for(RAW)) for dtype in DType]
    tensors += [(TensorSpec((4, 256), codec.decoded_dtype(DType.F32)), codec) for codec in INSTANCES if codec.spec != RAW]
    for spec, codec in tensors:
        with suppress(FlyweightError):
            if codec.spec == RAW:
                fitted, parts = codec, {"data": np.zeros(spec.nbytes, np.uint8)}
            else:
                fitted, parts = plausible(codec_for(adapted(container, codec.spec, name)), spec, 1)
            if not container.carries(spec, fitted.spec):
                continue
            entries = [Entry(name, spec, fitted.spec, fitted.layout(spec))]
            if container.carries(plain, RAW):
                entries.append(Entry("model.norm.weight", plain, RAW, {"data": plain}))

            def payload(entry: Entry, part: str, quantized: Entry = entries[0], parts: dict[str, np.ndarray] = parts) -> bytes:
                is_it = (entry.spec, entry.codec) == (quantized.spec, quantized.codec)
                return parts[part].tobytes() if is_it else _zeros(entry, part)

            about = _surroundings(container)
            if container.name == "uqff_blob":
                entries, about["files"] = _as_llama(entries)
            yield _written(container, entries, payload, **about)


def _as_llama(entries: list[Entry]) -> tuple[list[Entry], dict[str, bytes]]:
    named, config = as_llama({entry.name: entry for entry in entries})
    return list(named.values()), {"config.json": config}


def codec_inputs(container: str) -> Iterator[Input]:
    """A model for each codec and element type that a container carries."""
    return _of_every_codec(CONTAINERS[container])


def _hostile(container: str) -> Iterator[Input]:
    for case in importlib.import_module(f"fuzz.hostile_{container}").HOSTILE.values():
        if not case.special and (case.is_directory or len(case.files) == 1):
            yield Input(dict(case.files), case.is_directory)


def _models(dialect: str) -> Iterator[Input]:
    """Models of every family, whole: configuration, tokenizer, weights."""
    for family in TINY:
        for tokenizer in (bpe(), pieces()):
            manifest = hf_manifest(family, files=tokenizer_files(tokenizer))
            if dialect == "hf":
                yield _written(
                    CONTAINERS["hf"], list(manifest.entries.values()), _zeros, files=manifest.files, dialect="hf",
                    metadata={"format": Typed("str", "pt")},
                )  # fmt: skip
            else:
                there, added = as_gguf(manifest, models.translate(manifest, "gguf", no_read))
                yield _written(
                    CONTAINERS["gguf"], list(there.entries.values()), lambda e, p, added=added: added.get(e.name, _zeros(e, p)),
                    metadata=there.metadata, dialect="gguf",
                )  # fmt: skip


def _golden() -> Iterator[Input]:
    """Directories that the public tool wrote, cut to a tensor or two each."""
    for folder in sorted(path for path in NPY_DIRS.iterdir() if path.is_dir()):
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        names = json.loads(files["manifest.json"])
        for kept in list(names.items())[:3]:
            own = {name: data for name, data in files.items() if not name.startswith("tensors/") or f"/{kept[1]}__" in name}
            yield Input(own | {"manifest.json": json.dumps(dict([kept])).encode()})


_PAIRS = table((7, 0.5, 0.25), (8, 0.5, 0.25))
_ROUNDS = _PAIRS + table(*[(1 << 63 | 7, 0.5, 0.25)] * 4, *[(1 << 63 | 8, 0.5, 0.25)] * 8)
_ASTW = struct.pack("<4sIII", b"ASTW", 8, 8, 4) + bytes(64)
_TCAW = struct.pack("<4sIIIQQQ", b"TCAW", 4, 16, 100, 0, 64, 0) + bytes(24 + 64 + 8)
SQUIZD_BARE = [
    bare((layered(int4(4, 8), int4(4, 16)), _ROUNDS), (layered(npcl([2, 2], bytes(16)), int4(3, 5), int4(1, 1)), _PAIRS)),
    bare((layered(_ASTW, npcl([3], bytes(6), code=1)), table((9, 1.0, 0.0))), flags=FLAG["ASTC"]),
    bare((layered(_TCAW, npcl([2], bytes(4), code=2)), table()), flags=FLAG["TCA_TBE"]),
    bare(
        (int4(4, 8), table((7, 1.0, 0.0)) + bytes(40)), flags=FLAG["INT4"] | FLAG["ANE_COREML"],
        tail=struct.pack("<4sQ", b"ANLX", len(archive(member("a")))) + archive(member("a")),
    ),
]  # fmt: skip
"""Files without a directory."""
SQUIZD_WHOLE = [written(squizd_manifest(**kind, layers=1)) for kind in KINDS.values()]
"""A file of each kind, with a directory and all digests."""


def _squizd() -> Iterator[Input]:
    for raw in (*SQUIZD_WHOLE, *SQUIZD_BARE):
        yield Input({NAME: raw}, False)


def _container(name: str) -> Iterator[Input]:
    yield from _BY_HAND[name]()
    yield from _of_every_codec(CONTAINERS[name])
    yield from _hostile(name)


def _each(*made: Callable[[], Files], is_directory: bool) -> Iterator[Input]:
    for make in made:
        yield Input(make(), is_directory)


def _mlx() -> Iterator[Input]:
    """A triple of each width."""
    mlx, spec = CONTAINERS["mlx"], TensorSpec((2, 64), DType.F32)
    for bits in (2, 3, 4, 6, 8):
        affine = codec_for(adapted(mlx, CodecSpec("affine", {"bits": bits, "group": 32})))
        yield _written(mlx, [Entry("a.weight", spec, affine.spec, affine.layout(spec))], _zeros, **_surroundings(mlx))


def _uqff(directory: Callable[..., Files], layers: Iterable[Any], shards: tuple[Files, Files], whole: bytes) -> Iterator[Input]:
    """All types of layers in a model that has names, each alone, shards, and a file without anything around it."""
    yield Input(directory())
    for layer in layers:
        yield Input(directory(layer))
    first, second = shards
    yield Input(first | {"q-1.uqff": second["q-0.uqff"]})
    report = {"outputs": [{"quant": "q8_0", "shards": ["q-0.uqff"]}]}
    yield Input(directory() | {"uqff_report.json": json.dumps(report).encode(), "tokenizer.json": b"{}"})
    yield Input({"q.uqff": whole}, False)


def _named_layers() -> Iterator[Input]:
    head = uqff_files.version()
    alone = [head | layer("lm_head") for layer in uqff_files.LAYERS.values()]
    shards = uqff_files.named_directory(head | uqff_files.gguf("a")), uqff_files.named_directory(uqff_files.afq("b"))
    yield from _uqff(uqff_files.named_directory, alone, shards, uqff_files.named_file(alone[0]))


def _blobs() -> Iterator[Input]:
    blobs = [*uqff_files.BLOBS.values()]
    second = {"q-0.uqff": uqff_files.blob_file({"1": blobs[1]})}
    shards = uqff_files.blob_directory(blobs[0], config=None), second
    yield from _uqff(uqff_files.blob_directory, blobs, shards, uqff_files.blob_file(blobs))


def _crossing() -> Iterator[Input]:
    """Models whose layers have names in both generations."""
    yield Input(uqff_files.named_directory())
    yield Input(uqff_files.blob_directory())
    yield Input(uqff_files.experts_apart())
    yield Input(uqff_files.experts_stacked())
    yield from codec_inputs("uqff_blob")


def _packages() -> Iterator[Input]:
    """Core ML packages with a weight of each form, and their weight files alone."""
    for files in coreml_files.SOUND.values():
        yield Input(dict(files))
    for name in ("of plain f16", "of lut of 3 bits in groups"):
        yield Input({"weight.bin": coreml_files.SOUND[name][coreml_files.WEIGHTS]}, False)


_BY_HAND: dict[str, Callable[[], Iterator[Input]]] = {
    "safetensors": partial(_each, sample_files.safetensors, sample_files.safetensors_described, is_directory=False),
    "hf": lambda: iter([Input(sample_files.hf_directory()), *_models("hf")]),
    "gguf": lambda: iter([Input(sample_files.gguf(), False), Input(sample_files.gguf_parts()), *_models("gguf")]),
    "mlx": _mlx,
    "squizd": _squizd,
    "coreml": _packages,
    "uqff": _named_layers,
    "uqff_blob": _blobs,
    "npy_dir": lambda: iter([Input(sample_files.npy_dir()), *_golden()]),
}


# Readers below the containers -----------------------------------------------------------------

_RECIPE = b"""name = "mixed"
protect = true
[[rules]]
match = ["*embed*", "*norm*"]
codec = "keep"
[[rules]]
match = "*.mlp.*"
codec = "masked"
params = { inner = "q4_0", block = 32 }
sparsity = 0.5
[[rules]]
match = "*"
codec = "affine"
params = { bits = 4, group = "row" }
quantizer = "nearest"
cosine = 0.9999
otherwise = { group = 64 }
[gate]
max_kl = 0.1
max_perplexity_ratio = 1.2
"""


def _strict_json() -> Iterator[Input]:
    for given in (*_container("hf"), *_container("mlx")):
        for data in given.files.values():
            if data[:1] in (b"{", b"["):
                yield Input({"x.json": data}, False)
    yield Input({"x.json": rb'{"a": [1, -0, 2.5e3, true, null, "\u00e9\ud83d\ude00"], "b": {"c": {}}}'}, False)


def _cursor() -> Iterator[Input]:
    """A program of reads, and the bytes they read."""
    texts = b"".join(struct.pack("<Q", len(text)) + text for text in (b"a", b"", b"gr\xc3\xbc", b"x" * 300, b"\0"))
    yield Input({"program": bytes(range(0, 250, 7)), "data": texts + bytes(range(200))})
    yield Input({"program": b"\x05\x03\x05\x09", "data": texts * 3})


def _templates() -> Iterator[Input]:
    for text in TEMPLATES.values():
        for template in (text, [{"name": "default", "template": text}, {"name": "tool_use", "template": "x"}]):
            yield Input({"tokenizer_config.json": json.dumps({"chat_template": template, "bos_token": "<s>"}).encode()})
        yield Input({"chat_template.jinja": text.encode()})
        yield Input({"chat_template.json": json.dumps({"chat_template": text}).encode()})
    yield from _models("gguf")


def _tokenizers() -> Iterator[Input]:
    for tokenizer in (bpe(), pieces()):
        yield Input(tokenizer_files(tokenizer) | {"special_tokens_map.json": b'{"pad_token": "</s>"}'})
        yield Input(tokenizer_files(tokenizer) | {"generation_config.json": b'{"eos_token_id": [2, 11]}'})


def _zstd() -> Iterator[Input]:
    for data in (bytes(range(256)) * 20, bytes(100_000), b"", b"x"):
        yield Input({"x.zst": zstd.compress(data)}, False)


def _archives() -> Iterator[Input]:
    for made in (
        archive(member("Manifest.json", b"{}"), member("Data/weight.bin", bytes(300), deflated=True), member("Data/x", b"abc")),
        archive(member("a")),
        archive(),
    ):
        yield Input({"x.zip": made}, False)


def _damages() -> Iterator[Input]:
    """Which file, and edits of it: see the target."""
    for number in range(len(SQUIZD_WHOLE)):
        for at in (0, 20, 256, 300, 900):
            yield Input({"edits": struct.pack("<BHBB", number, at, 1, 0x10)}, False)


PLANNED_TENSORS = {
    "a.weight": np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64),
    "b.weight": (np.arange(128, dtype=np.float32) % 7).reshape(2, 64),
    "b.bias": np.ones(4, np.float32),
}
"""Of the model whose conversion is planned."""


def _plans() -> Iterator[Input]:
    bundle = MemoryBundle({"m.safetensors": safetensors_bytes(PLANNED_TENSORS)}, "/plans/m.safetensors", is_directory=False)
    mask = Masks(("a*",), 32, 0.5)
    with read_checkpoint(bundle, CONTAINERS["safetensors"]) as checkpoint:
        for name in ("keep", "int4-g32", "q4_1", "lossless", "sparse", "palette"):
            for recipe in (preset(name), replace(preset(name), masks=mask)):
                with suppress(FlyweightError):
                    job = make_job(checkpoint, CONTAINERS["safetensors"], "x.safetensors", recipe=recipe)
                    yield Input({"plan.json": job.plan.to_json("/plans")}, False)


def _adapters() -> Iterator[Input]:
    a, b = factor_pair(6, 5)
    half, wide = factor_pair(4, 4, 2, np.float16), factor_pair(3, 400, 1, DType.BF16.numpy)
    saved = {f"{PREFIX}lm_head.modules_to_save.default.weight": a, f"{PREFIX}model.norm.weight": b[0]}
    for tensors, settings in (
        (linear(a, b), {}),
        (linear(a, b, "layers.0.self_attn.q_proj") | saved, {"modules_to_save": ["lm_head", "model.norm"], "use_rslora": True}),
        (
            linear(a, b) | linear(*half, "mlp.up_proj", ".default"),
            {"rank_pattern": {"up_proj": 2}, "alpha_pattern": {"^mlp.up_proj": 3}},
        ),
        (embedding(*wide), {"r": 1}),
        (linear(*wide, "h.0.c_attn"), {"fan_in_fan_out": True, "rank_pattern": {"c_attn": 1}}),
    ):
        yield Input(
            {ADAPTER_CONFIG: json.dumps(ADAPTER_SETTINGS | settings).encode(), ADAPTER_WEIGHTS: adapter_weights(tensors)}
        )


def _wdelta() -> Iterator[Input]:
    """Of models that differ in every way, ours and without what is ours; deltas of one tensor; the public tool's."""
    tuned = wdelta_files.TUNED
    made = [wdelta_files.made_of(wdelta_files.BASE, tuned)]
    tensors = wdelta_files.BASE_TENSORS
    for name in ("a.weight", "c.bias", "d.bytes", "g.eight"):
        changed = {name: tensors[name][::-1]}
        made.append(wdelta_files.made_of(wdelta_files.BASE, wdelta_files.BASE | {
            "model.safetensors": wdelta_files.safetensors(tensors | changed)}))  # fmt: skip
    made += [wdelta_files.as_public(raw) for raw in made]
    made.append(wdelta_files.drifted(made[0], [[cell, cell % 7 - 3] for cell in range(7700, 7800)]))
    made += wdelta_files.PUBLIC.values()
    for raw in made:
        yield Input({wdelta_files.NAME: raw}, False)


def _ane_records() -> Iterator[Input]:
    """Activation records of both lengths; a unit with every section, its header, and its descriptor as text."""
    for name in ("sigmoid", "tanh", "exp", "silu"):
        for deltas in (False, True):
            yield Input({"x": build_activation(name).to_bytes(deltas=deltas)}, False)
    groups, nbytes = channel_table([20] * 12, 4, 2)
    descriptor = Descriptor(
        7, Lut(8, 16, 86), Pal(4, 4, 2, 32), Ocgs(4, len(groups)), Vector(5, 12), Vector(6, 12), Weights(9, 4, nbytes)
    )
    arrays = {name: np.arange(size, dtype=np.uint8) for name, size in (("tables", 64), ("scale", 24), ("bias", 48))}
    unit = KernelUnit(descriptor, groups, np.arange(nbytes).astype(np.uint8), build_activation("sigmoid"), **arrays)
    yield Input({"x": b"".join(unit.pieces())}, False)
    yield Input({"x": descriptor.text().encode()}, False)


def _statistics() -> Iterator[Input]:
    for raw in (ours(), dat(), dat(end=struct.pack("<ii", 7, 3) + b"a.b"), gguf(GOOD)):
        yield Input({"x": raw}, False)
    for case in importlib.import_module("fuzz.hostile_statistics").HOSTILE.values():
        yield Input({"x": case.files["x"]}, False)


SEEDS: dict[str, Callable[[], Iterator[Input]]] = {
    "ane_records": _ane_records,
    **{name: partial(_container, name) for name in _BY_HAND},
    "coreml_rewriting": _packages,
    "uqff_bridge": _crossing,
    "wdelta": _wdelta,
    "squizd_audit": partial(_container, "squizd"),
    "squizd_damage": _damages,
    "archive": _archives,
    "zstd": _zstd,
    "strict_json": _strict_json,
    "cursor": _cursor,
    "recipe": lambda: iter([Input({"x.toml": _RECIPE}, False)]),
    "statistics": _statistics,
    "plan": _plans,
    "template": _templates,
    "tokenizer": _tokenizers,
    "tokenizer_library": _tokenizers,
    "model": lambda: iter([*_models("hf"), *_models("gguf")]),
    "adapter": _adapters,
}


def seeds(target: str) -> list[Input]:
    """Every seed of a target that is small enough, smallest first."""
    return sorted((given for given in SEEDS[target]() if given.nbytes <= LARGEST), key=lambda given: given.nbytes)
