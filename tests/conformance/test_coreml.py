"""coremltools writes what we read and reads what we write: packages, weight files, and packages compressed again.

Equal means bit for bit. What coremltools makes of a package is what its own loader and `decompress_weights` give.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import flyweight
from flyweight.containers.coreml.coreml_options import CoremlExtras
from flyweight.containers.coreml.coreml_package import CoreML
from flyweight.containers.coreml.element_types import OF_BLOB, TYPES
from flyweight.containers.coreml.weight_file import WeightFile, WeightFileLayout
from flyweight.foundation.errors import UnsupportedError
from flyweight.sources import MemorySource
from support.coremltools_forms import FORMS, Array, codes, converted, ct, drawn_form, floats, mb, program
from support.coremltools_packages import PACKAGES, cto, decoded, operations, programs, quantized, save, specifications

logging.disable(logging.CRITICAL)
from coremltools.libmilstoragepython import _BlobStorageReader as BlobReader  # noqa: E402
from coremltools.libmilstoragepython import _BlobStorageWriter as BlobWriter  # noqa: E402

logging.disable(logging.NOTSET)

# coremltools leaves the directories it works in to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

REFUSED = {
    "unusual.mlpackage": "E_CONSTEXPR",
    "pipeline.mlpackage": "E_COREML_KIND",
    "neural_network.mlmodel": "E_UNKNOWN_FORMAT",
}
WRITTEN = [name for name in PACKAGES if name not in REFUSED]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    for name, write in PACKAGES.items():
        write(folder / name)
    return folder


def same(ours: Array, theirs: Array) -> bool:
    """Ours are f32 where a codec stores them, theirs of the type that the program has."""
    return ours.shape == theirs.shape and np.asarray(ours).astype(theirs.dtype).tobytes() == theirs.tobytes()


# Reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITTEN)
def test_every_weight_decodes_to_its_values(name: str, packages: Path) -> None:
    """A weight is called by its function only where two functions have different ones of a name."""
    theirs, used = decoded(packages / name), used_as_weights(packages / name)
    with flyweight.open(packages / name) as checkpoint:
        ours = {weight: checkpoint[weight] for weight in checkpoint}
    wrong = [
        weight
        for weight, values in ours.items()
        if not any(same(values, value) for key, value in theirs.items() if key == weight or key.endswith(f"/{weight}"))
    ]
    missing = [key for key, value in theirs.items() if key in used and not any(same(mine, value) for mine in ours.values())]
    assert (wrong, missing) == ([], [])
    assert used


def drawn_package(seed: int, path: Path) -> Path:
    rng = np.random.default_rng(seed)
    forms = {f"weight_{index}": drawn_form(rng) for index in range(30)}
    save(converted(program(ct.target.iOS18, forms, seed), ct.target.iOS18), path)
    return path


@pytest.mark.parametrize("seed", range(10))
def test_drawn_forms_decode_to_their_values(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    forms = {f"weight_{index}": drawn_form(rng) for index in range(30)}
    save(converted(program(ct.target.iOS26, forms, seed), ct.target.iOS26), tmp_path / "drawn.mlpackage")
    theirs = decoded(tmp_path / "drawn.mlpackage")
    with flyweight.open(tmp_path / "drawn.mlpackage") as checkpoint:
        assert sorted(checkpoint) == sorted(forms)
        wrong = {
            name: checkpoint.manifest.entries[name] for name in forms if not same(checkpoint[name], theirs[f"main/{name}"])
        }
    assert wrong == {}


def used_as_weights(path: Path) -> set[str]:
    """What operations other than constexpr ones take from constants that lie in a weight file or are compressed."""
    names = set()
    for specification in specifications(path):
        for scope, function in specification.mlProgram.functions.items():
            listed = list(flattened(function.block_specializations[function.opset]))
            large = {
                output.name
                for operation in listed
                for output in operation.outputs
                if operation.type.startswith("constexpr_") or operation.attributes["val"].HasField("blobFileValue")
            }
            for operation in listed:
                if operation.type != "const" and not operation.type.startswith("constexpr_"):
                    bound = {binding.name for argument in operation.inputs.values() for binding in argument.arguments}
                    names |= {f"{scope}/{name}" for name in bound & large}
    return names


def flattened(block: Any) -> Iterator[Any]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from flattened(inner)


@pytest.mark.parametrize(("name", "code"), REFUSED.items())
def test_other_kinds_of_models_are_refused(name: str, code: str, packages: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        flyweight.open(packages / name)
    assert caught.value.code == code


@pytest.mark.parametrize("name", FORMS["unusual"][1])
def test_each_unusual_form_is_refused(name: str, tmp_path: Path) -> None:
    target, forms = FORMS["unusual"]
    save(converted(program(target, {name: forms[name]}, 0), target), tmp_path / "one.mlpackage")
    with pytest.raises(UnsupportedError) as caught:
        flyweight.open(tmp_path / "one.mlpackage")
    assert caught.value.code == "E_CONSTEXPR"


# Weight files -------------------------------------------------------------------------------------

_CALLS = {"f16": "fp16", "f32": "float"}
STORABLE = [kind for kind in OF_BLOB.values() if not kind.label.startswith(("bf", "f8"))]
"""The wheel has no functions for the others."""


def sample(label: str, count: int) -> Array:
    rng = np.random.default_rng(count)
    if label[0] == "f":
        return floats(rng, f"fp{label[1:]}", count)
    name = ("u" if label[0] == "u" else "") + f"int{label[1:]}"
    return codes(rng, name, count) if int(label[1:]) <= 8 else rng.integers(0, 1000, count).astype(name)


def called(label: str) -> str:
    return _CALLS.get(label, ("u" if label[0] == "u" else "") + f"int{label[1:]}")


@pytest.mark.parametrize("count", [1, 7, 8, 65])
def test_we_read_its_blobs(count: int, tmp_path: Path) -> None:
    path = tmp_path / "weight.bin"
    writer, offsets = BlobWriter(str(path)), {}
    for kind in STORABLE:
        values = sample(kind.label, count)
        given = values.view(np.uint16) if kind.label == "f16" else values
        offsets[kind.label] = getattr(writer, f"write_{called(kind.label)}_data")(np.ascontiguousarray(given))
    del writer
    file = WeightFile(MemorySource(path.read_bytes(), "weight.bin"), "weight.bin")
    assert [offset for offset, _ in file.all()] == list(offsets.values())
    for label, offset in offsets.items():
        blob, kind = file.blob(offset), TYPES[label]
        assert blob.kind == kind
        assert blob.extent.nbytes == -(-count * kind.bits // 8)
        assert blob.spare_bits == (-count * kind.bits % 8 if kind.bits < 8 else 0)
        assert path.read_bytes()[blob.extent.offset : blob.extent.end] == stream(sample(label, count), kind.bits)


def stream(values: Array, bits: int) -> bytes:
    if bits >= 8:
        return values.tobytes()
    wide = np.unpackbits(values.view(np.uint8)[:, None], axis=1, bitorder="little")[:, :bits]
    return np.packbits(wide, bitorder="little").tobytes()


@pytest.mark.parametrize("count", [1, 7, 8, 65])
def test_it_reads_our_blobs(count: int, tmp_path: Path) -> None:
    layout = WeightFileLayout("weight.bin")
    placed = {kind.label: layout.add(kind, count) for kind in STORABLE}
    data = bytearray(layout.nbytes)
    for offset, chunk in layout.chunks:
        data[offset : offset + len(chunk)] = chunk
    for label, (_, extent) in placed.items():
        data[extent.offset : extent.end] = stream(sample(label, count), TYPES[label].bits)
    (tmp_path / "weight.bin").write_bytes(data)
    reader = BlobReader(str(tmp_path / "weight.bin"))
    for label, (offset, _) in placed.items():
        values = np.asarray(getattr(reader, f"read_{called(label)}_data")(offset))
        assert values.tobytes() == sample(label, count).tobytes(), label


# Writing ------------------------------------------------------------------------------------------

QUANTS = [
    *(name for name in CoreML().quants if name.isprintable() and " " not in name),
    "uint4-tensor", "uint4-b16", "lut2-v2", "lut4-g2", "lut4-g4-v2", "sparse-lut4-g2", "sparse-int4-b4", "sparse-uint4",
]  # fmt: skip
"""The names that are listed, and others of the same grammar; groups and blocks that divide what is compressed here."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices in both types, many of one being zeros, a convolution, vectors; names that no program can have."""
    rng = np.random.default_rng(0)
    thinned = floats(rng, "fp16", 64, 96)
    thinned[rng.random(thinned.shape) < 0.6] = 0
    tensors = {
        "model.layers.0.mlp.up_proj.weight": floats(rng, "fp16", 64, 96),
        "model.layers.0.mlp.up_proj.bias": floats(rng, "fp16", 64),
        "model.layers.0.mlp.down_proj.weight": floats(rng, "fp32", 32, 64),
        "pruned/weight": thinned,
        "conv.weight": floats(rng, "fp16", 32, 8, 3, 3),
        "state": floats(rng, "fp16", 64, 32),
        "x_96_f16": floats(rng, "fp16", 3),
        "7.norm": floats(rng, "fp32", 5),
    }
    path = tmp_path_factory.mktemp("source") / "model.safetensors"
    save_file(tensors, path)
    return path


def decompressed(path: Path) -> dict[str, Array]:
    """By `decompress_weights` itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.root.manager, "disable", logging.CRITICAL)
        model = cto.decompress_weights(ct.models.MLModel(str(path), skip_model_load=True))
    block = model._mil_program.functions["main"]
    return {
        operation.outputs[0].name: np.asarray(operation.outputs[0].val)
        for operation in operations(block)
        if operation.op_type == "const"
    }


@pytest.mark.parametrize("quant", ["dense", *QUANTS])
def test_it_decompresses_what_we_write(quant: str, source: Path, tmp_path: Path) -> None:
    """`decompress_weights` drops constants that no operation uses, as those of higher rank here; its loader does not."""
    out = tmp_path / "out.mlpackage"
    flyweight.convert(source, out, quant=quant, allow_ungated=True)
    theirs, loaded = decompressed(out), decoded(out)
    called_other = json.loads(specifications(out)[0].description.metadata.userDefined["flyweight.names"])
    names = {name: called for called, name in called_other.items()}
    with flyweight.open(out) as checkpoint:
        assert len(checkpoint) == 8
        for name in checkpoint:
            called = names.get(name, name)
            assert same(checkpoint[name], loaded[f"main/{called}"]), name
            if checkpoint[name].ndim == 2:
                assert same(checkpoint[name], theirs[called]), name
        codecs = {entry.codec.name for entry in checkpoint.manifest.entries.values()}
    assert len(codecs) == (1 if quant == "dense" else 2)


@pytest.mark.parametrize("seed", range(4))
def test_forms_survive_another_container(seed: int, tmp_path: Path) -> None:
    """From coremltools to safetensors, which stores the same parts, and back into a program of our own."""
    theirs = drawn_package(seed, tmp_path / "theirs.mlpackage")
    flyweight.convert(theirs, tmp_path / "between.safetensors")
    flyweight.convert(tmp_path / "between.safetensors", tmp_path / "ours.mlpackage")
    before, after = decoded(theirs), decoded(tmp_path / "ours.mlpackage")
    weights = [name for name in before if re.fullmatch(r"main/weight_\d+", name)]
    assert len(weights) == 30
    assert [name for name in weights if not same(after[name], before[name])] == []


@pytest.mark.parametrize("target", ["M1", "M2", "M5"])
def test_it_decompresses_forms_that_were_chosen_for_a_chip(target: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.mlpackage"
    flyweight.convert(source, out, extras=CoremlExtras(target=target))
    theirs = decoded(out)
    called_other = json.loads(specifications(out)[0].description.metadata.userDefined["flyweight.names"])
    names = {name: called for called, name in called_other.items()}
    with flyweight.open(out) as checkpoint:
        wrong = [name for name in checkpoint if not same(checkpoint[name], theirs[f"main/{names.get(name, name)}"])]
        assert wrong == []
        assert any(entry.codec.name != "raw" for entry in checkpoint.manifest.entries.values())


# Compressing again --------------------------------------------------------------------------------


def graph(path: Path) -> list[Any]:
    """Operations, types and bindings of every function; weights are what they are called, however they are made."""
    listed = []
    for specification in specifications(path):
        for function, block in sorted(specification.mlProgram.functions.items()):
            listed.append((function, [(given.name, str(given.type)) for given in block.inputs], block.opset))
            for operation in flattened(block.block_specializations[block.opset]):
                if operation.type == "const" or operation.type.startswith("constexpr_"):
                    continue
                bound = {
                    key: [binding.name for binding in argument.arguments] for key, argument in sorted(operation.inputs.items())
                }
                listed.append((operation.type, bound, [(made.name, str(made.type)) for made in operation.outputs]))
    return listed


def wide_layers(target: Any = ct.target.iOS18) -> Any:
    """Layers wide enough for blocks of 32 and groups of 16, two thirds of their weights zero."""

    def thinned(*shape: int) -> Array:
        rng = np.random.default_rng(shape)
        return np.where(rng.random(shape) < 1 / 3, rng.standard_normal(shape), 0).astype(np.float32)

    @mb.program(input_specs=[mb.TensorSpec((1, 64, 8, 8))], opset_version=target)
    def build(image: Any) -> Any:
        convolved = mb.conv(x=image, weight=thinned(32, 64, 3, 3), name="convolved")
        pooled = mb.reduce_mean(x=convolved, axes=[2, 3], keep_dims=False)
        shared = mb.const(val=thinned(32, 32), name="shared")
        first = mb.linear(x=pooled, weight=shared, bias=thinned(32), name="first")
        second = mb.linear(x=mb.relu(x=first), weight=shared, name="second")
        return mb.matmul(x=second, y=thinned(32, 64), name="product")

    return ct.convert(build, convert_to="mlprogram", minimum_deployment_target=target, skip_model_load=True)


@pytest.mark.parametrize("quant", QUANTS)
def test_a_program_is_kept_when_its_weights_are_compressed(quant: str, tmp_path: Path) -> None:
    before, after = tmp_path / "before.mlpackage", tmp_path / "after.mlpackage"
    save(wide_layers(), before)
    flyweight.convert(before, after, quant=quant, allow_ungated=True)
    assert graph(after) == graph(before)
    was, now = specifications(before)[0], specifications(after)[0]
    assert now.description == was.description
    assert now.specificationVersion == was.specificationVersion
    theirs = decompressed(after)
    with flyweight.open(after) as checkpoint:
        assert all(same(checkpoint[name], theirs[name]) for name in checkpoint)
        assert any(entry.codec.name != "raw" for entry in checkpoint.manifest.entries.values())
    assert programs(after)


@pytest.mark.parametrize("quant", ["int8", "uint8", "int8-tensor", "lut1", "lut2", "lut4", "lut6", "lut8", "sparse"])
def test_programs_of_ios16_get_its_operators(quant: str, tmp_path: Path) -> None:
    before, after = tmp_path / "before.mlpackage", tmp_path / "after.mlpackage"
    save(wide_layers(ct.target.iOS16), before)
    flyweight.convert(before, after, quant=quant)
    assert graph(after) == graph(before)
    assert specifications(after)[0].specificationVersion == 7
    theirs = decompressed(after)
    with flyweight.open(after) as checkpoint:
        assert [name for name in checkpoint if not same(checkpoint[name], theirs[name])] == []
        assert any(entry.codec.name != "raw" for entry in checkpoint.manifest.entries.values())


@pytest.mark.parametrize("quant", ["int4", "int8-b32", "lut3", "lut4-g16", "lut4-v2", "sparse-lut4"])
def test_programs_of_ios16_are_refused_what_they_cannot_hold(quant: str, tmp_path: Path) -> None:
    save(wide_layers(ct.target.iOS16), tmp_path / "before.mlpackage")
    with pytest.raises(UnsupportedError) as caught:
        flyweight.convert(tmp_path / "before.mlpackage", tmp_path / "after.mlpackage", quant=quant)
    assert caught.value.code == "E_OPSET"
    assert not (tmp_path / "after.mlpackage").exists()


PASSES = {
    "int8": {"mode": "linear_symmetric", "dtype": "int8"},
    "uint8": {"mode": "linear", "dtype": "uint8"},
    "int4": {"mode": "linear_symmetric", "dtype": "int4"},
    "uint4": {"mode": "linear", "dtype": "uint4"},
    "int8-tensor": {"mode": "linear_symmetric", "dtype": "int8", "granularity": "per_tensor"},
    "uint4-tensor": {"mode": "linear", "dtype": "uint4", "granularity": "per_tensor"},
    "int4-b32": {"mode": "linear_symmetric", "dtype": "int4", "granularity": "per_block", "block_size": 32},
    "uint4-b16": {"mode": "linear", "dtype": "uint4", "granularity": "per_block", "block_size": 16},
}
"""How coremltools is asked for what a named quantization is."""


@pytest.mark.parametrize("quant", PASSES)
def test_linear_codes_are_those_of_its_passes(quant: str, tmp_path: Path) -> None:
    """Of linear layers and convolutions, whose output channels are the first axis; for a matmul it takes the last."""
    save(wide_layers(), tmp_path / "before.mlpackage")
    save(quantized(wide_layers(), **PASSES[quant]), tmp_path / "theirs.mlpackage")
    flyweight.convert(tmp_path / "before.mlpackage", tmp_path / "ours.mlpackage", quant=quant)
    with flyweight.open(tmp_path / "ours.mlpackage") as ours, flyweight.open(tmp_path / "theirs.mlpackage") as theirs:
        for name in ("convolved_weight_0_to_fp16", "shared_to_fp16"):
            mine, other = ours.encoded(name), theirs.encoded(f"{name}_quantized")
            assert mine.codec == other.codec
            assert {part: array.tobytes() for part, array in mine.parts.items()} == {
                part: array.tobytes() for part, array in other.parts.items()
            }


def test_names_of_new_operations_are_not_taken_already(tmp_path: Path) -> None:
    """A weight `w` beside inputs that are called as what it is made of would be."""
    taken = ("w_mask", "w_nonzero_data", "w_lut", "w_unscaled", "w_sparse")

    @mb.program(input_specs=[mb.TensorSpec((1, 64)) for _ in taken], opset_version=ct.target.iOS18)
    def build(w_mask: Any, w_nonzero_data: Any, w_lut: Any, w_unscaled: Any, w_sparse: Any) -> Any:
        weight = mb.const(val=np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32), name="w")
        given = mb.concat(values=[w_mask, w_nonzero_data, w_lut, w_unscaled, w_sparse], axis=0)
        return mb.linear(x=given, weight=weight, name="y")

    before, after = tmp_path / "before.mlpackage", tmp_path / "after.mlpackage"
    save(converted(build, ct.target.iOS18), before)
    flyweight.convert(before, after, quant="sparse-lut4", allow_ungated=True)
    assert graph(after) == graph(before)
    assert programs(after)
    outputs = [output.name for block in blocks(after) for operation in flattened(block) for output in operation.outputs]
    assert len(set(outputs)) == len(outputs)
    assert not set(outputs) & set(taken)


def blocks(path: Path) -> Iterator[Any]:
    for specification in specifications(path):
        for function in specification.mlProgram.functions.values():
            yield function.block_specializations[function.opset]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_package_that_is_kept_comes_to_the_same(name: str, packages: Path, tmp_path: Path) -> None:
    """Every weight is written anew, with the codes it had."""
    out = tmp_path / "out.mlpackage"
    flyweight.convert(packages / name, out)
    assert graph(out) == graph(packages / name)
    before, after, used = decoded(packages / name), decoded(out), used_as_weights(packages / name)
    assert used_as_weights(out) == used
    assert [key for key in used if not same(after[key], before[key])] == []


@pytest.mark.parametrize("quant", ["lut2", "dense"])
@pytest.mark.parametrize("name", ["functions", "state", "nested", "ios16_int8", "ios18_pruned_lut4", "ios18_int4_blocks"])
def test_compressed_packages_are_compressed_again(name: str, quant: str, packages: Path, tmp_path: Path) -> None:
    """Functions that share a weight, weights in blocks, a state: codes become those of another form, or plain numbers."""
    source, out = packages / f"{name}.mlpackage", tmp_path / "out.mlpackage"
    flyweight.convert(source, out, quant=quant)
    assert graph(out) == graph(source)
    before, after = decoded(source), decoded(out)
    with flyweight.open(source) as old, flyweight.open(out) as new:
        assert set(new) == set(old)
        for weight in new:
            theirs = [value for key, value in after.items() if key == weight or key.endswith(f"/{weight}")]
            assert any(same(new[weight], value) for value in theirs), weight
    if quant == "dense":
        assert [key for key in used_as_weights(source) if not same(after[key], before[key])] == []
        assert not any(operation.type.startswith("constexpr_") for block in blocks(out) for operation in flattened(block))
    else:
        assert any(operation.type == "constexpr_lut_to_dense" for block in blocks(out) for operation in flattened(block))
