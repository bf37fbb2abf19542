"""Whole Core ML models written by coremltools, and what coremltools itself reads in a package.

The models of `PACKAGES` cover every form of weight (`coremltools_forms`), layers compressed by its own passes, and what a
package may have besides: several functions, states, nested blocks, several programs.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from support.coremltools_forms import FORMS, Array, converted, ct, forms_model, mb, types

logging.disable(logging.CRITICAL)
import coremltools.optimize.coreml as cto  # noqa: E402
from coremltools.converters.mil.frontend.milproto.load import load as load_program  # noqa: E402
from coremltools.models.utils import load_spec  # noqa: E402
from coremltools.optimize.coreml._quantization_passes import WeightDecompressor  # noqa: E402

logging.disable(logging.NOTSET)

Model = Any
IOS16, IOS18 = ct.target.iOS16, ct.target.iOS18


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


# Models -------------------------------------------------------------------------------------------


def layers(target: Any) -> Model:
    """An embedding, linear layers that share a weight, convolutions of rank 4 and 5, a product; converted to f16."""

    @mb.program(input_specs=[mb.TensorSpec((4,), types.int32)], opset_version=target)
    def build(ids: Any) -> Any:
        embedded = mb.gather(x=drawn(20, 8), indices=ids, axis=0, name="embedded")
        hidden = mb.linear(x=embedded, weight=drawn(12, 8), bias=drawn(12), name="hidden")
        shared = mb.const(val=drawn(12, 12), name="shared")
        first = mb.linear(x=hidden, weight=shared, name="first")
        second = mb.linear(x=mb.relu(x=first), weight=shared, name="second")
        product = mb.matmul(x=second, y=drawn(12, 10), name="product")
        image = mb.reshape(x=embedded, shape=[1, 8, 2, 2])
        convolved = mb.conv(x=image, weight=drawn(6, 8, 3, 3), pad_type="same", name="convolved")
        turned = mb.conv_transpose(x=convolved, weight=drawn(6, 4, 2, 2), name="turned")
        deep = mb.expand_dims(x=convolved, axes=[2])
        return product, turned, mb.conv(x=deep, weight=drawn(4, 6, 1, 3, 3), pad_type="same", name="deep")

    return ct.convert(build, convert_to="mlprogram", minimum_deployment_target=target, skip_model_load=True)


def element_types() -> Model:
    """A constant of every type that goes into weight.bin, and of those that never do."""

    @mb.program(
        input_specs=[mb.TensorSpec((1,), types.fp16), mb.TensorSpec((1,), types.fp32), mb.TensorSpec((1,), types.int32)],
        opset_version=IOS18,
    )
    def build(half: Any, single: Any, place: Any) -> Any:
        rng = np.random.default_rng(5)

        def picked(name: str) -> Any:
            values = rng.integers(0, 100, 12).astype(name)
            return mb.cast(x=mb.gather(x=mb.const(val=values, name=f"some_{name}"), indices=place, axis=0), dtype="int32")

        return (
            mb.mul(x=half, y=mb.const(val=drawn(3, 5).astype(np.float16), name="f16")),
            mb.mul(x=single, y=mb.const(val=drawn(3, 5), name="f32")),
            mb.mul(x=half, y=mb.const(val=drawn(3, 3).astype(np.float16), name="few_f16")),
            mb.mul(x=single, y=mb.const(val=drawn(2, 2), name="few_f32")),
            *(picked(name) for name in ("int8", "uint8", "int16", "uint16", "int32")),
            mb.cast(x=mb.logical_not(x=mb.const(val=rng.random(12) < 0.5, name="some_bool")), dtype="int32"),
        )

    return converted(build, IOS18)


def nested() -> Model:
    """A weight in a block of a condition."""

    @mb.program(input_specs=[mb.TensorSpec((1, 12)), mb.TensorSpec((1,))], opset_version=IOS18)
    def build(x: Any, switch: Any) -> Any:
        return mb.cond(
            pred=mb.squeeze(x=mb.greater(x=switch, y=0.0)),
            _true_fn=lambda: mb.linear(x=x, weight=drawn(12, 12), name="inside"),
            _false_fn=lambda: mb.relu(x=x),
            name="y",
        )

    return quantized(converted(build, IOS18), mode="linear_symmetric")


def with_state() -> Model:
    @mb.program(input_specs=[mb.TensorSpec((1, 16), types.fp16), mb.StateTensorSpec((1, 16), types.fp16)], opset_version=IOS18)
    def build(x: Any, memory: Any) -> Any:
        kept = mb.coreml_update_state(state=memory, value=mb.add(x=mb.read_state(input=memory), y=x))
        return mb.linear(x=kept, weight=drawn(16, 16).astype(np.float16), name="y")

    return quantized(converted(build, IOS18), mode="linear_symmetric")


def adapted(seed: int) -> Model:
    """The first layer is the same whatever the seed."""

    @mb.program(input_specs=[mb.TensorSpec((1, 16), types.fp16)], opset_version=IOS18)
    def build(x: Any) -> Any:
        base = mb.linear(x=x, weight=drawn(16, 16).astype(np.float16), name="base")
        return mb.linear(x=base, weight=drawn(16, 16, seed=seed).astype(np.float16), name="head")

    return quantized(converted(build, IOS18), mode="linear_symmetric")


# Compression by its passes ------------------------------------------------------------------------


def _configured(configuration: Any, kinds: tuple[str, ...] = ()) -> Any:
    """For weights of all operations, or of some kinds."""
    if kinds:
        return cto.OptimizationConfig(op_type_configs=dict.fromkeys(kinds, configuration))
    return cto.OptimizationConfig(global_config=configuration)


def quantized(model: Model, joint: bool = False, **options: Any) -> Model:
    configuration = cto.OpLinearQuantizerConfig(weight_threshold=0, **options)
    return cto.linear_quantize_weights(model, config=_configured(configuration), joint_compression=joint)


def palettized(model: Model, joint: bool = False, kinds: tuple[str, ...] = (), **options: Any) -> Model:
    """k-means needs another package; a uniform table has the same form."""
    configuration = cto.OpPalettizerConfig(weight_threshold=0, mode="uniform", **options)
    return cto.palettize_weights(model, config=_configured(configuration, kinds), joint_compression=joint)


def pruned(model: Model, share: float = 0.5, joint: bool = False) -> Model:
    configuration = cto.OpMagnitudePrunerConfig(target_sparsity=share, weight_threshold=0)
    return cto.prune_weights(model, config=_configured(configuration), joint_compression=joint)


COMPRESSED: dict[str, Callable[[], Model]] = {
    "ios16_int8": lambda: quantized(layers(IOS16), mode="linear"),
    "ios16_lut4": lambda: palettized(layers(IOS16), nbits=4),
    "ios16_pruned": lambda: pruned(layers(IOS16)),
    "ios18_int8": lambda: quantized(layers(IOS18), mode="linear_symmetric"),
    "ios18_int4_blocks": lambda: quantized(layers(IOS18), mode="linear", dtype="int4", granularity="per_block", block_size=4),
    "ios18_lut3": lambda: palettized(layers(IOS18), nbits=3),
    "ios18_lut4_groups": lambda: palettized(layers(IOS18), nbits=4, granularity="per_grouped_channel", group_size=2),
    "ios18_lut4_scaled": lambda: palettized(layers(IOS18), kinds=("linear",), nbits=4, enable_per_channel_scale=True),
    "ios18_lut4_scaled_conv": lambda: palettized(layers(IOS18), kinds=("conv",), nbits=4, enable_per_channel_scale=True),
    "ios18_pruned": lambda: pruned(layers(IOS18)),
    "ios18_pruned_int8": lambda: quantized(pruned(layers(IOS18)), joint=True, mode="linear_symmetric"),
    "ios18_pruned_lut4": lambda: palettized(pruned(layers(IOS18)), joint=True, nbits=4),
    "ios18_int8_lut4": lambda: palettized(quantized(layers(IOS18), mode="linear"), joint=True, nbits=4),
    "ios18_lut4_int8": lambda: quantized(
        palettized(layers(IOS18), nbits=4), joint=True, mode="linear_symmetric", granularity="per_tensor"
    ),
}
"""`layers` as its passes compress them: each kind of pass and each joint form."""


# Packages -----------------------------------------------------------------------------------------


def save(model: Model, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    model.save(str(path))


def save_functions(path: Path) -> None:
    """Two functions that share a layer: their weights of it are the same bytes of the file."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = ct.utils.MultiFunctionDescriptor()
        for seed, name in ((1, "first"), (2, "second")):
            save(adapted(seed), Path(folder, f"{name}.mlpackage"))
            wanted.add_function(str(Path(folder, f"{name}.mlpackage")), "main", name)
        wanted.default_function_name = "first"
        shutil.rmtree(path, ignore_errors=True)
        ct.utils.save_multifunction(wanted, str(path))


def save_pipeline(path: Path) -> None:
    """Two programs in one package, with a weight file each."""
    models = []
    for seed, (x, y) in ((1, ("x", "middle")), (2, ("middle", "y"))):
        model = adapted(seed)
        spec = model.get_spec()
        ct.utils.rename_feature(spec, "x", x)
        ct.utils.rename_feature(spec, "head", y)
        models.append(ct.models.MLModel(spec, weights_dir=model.weights_dir, skip_model_load=True))
    save(ct.utils.make_pipeline(*models), path)


def save_neural_network(path: Path) -> None:
    """The kind of model before mlprogram: its weights lie in the protobuf."""

    @mb.program(input_specs=[mb.TensorSpec((1, 16))])
    def build(x: Any) -> Any:
        return mb.linear(x=x, weight=drawn(8, 16), bias=drawn(8), name="y")

    ct.convert(build, convert_to="neuralnetwork").save(str(path))


def saved(make: Callable[[], Model]) -> Callable[[Path], None]:
    return lambda path: save(make(), path)


PACKAGES: dict[str, Callable[[Path], None]] = {
    **{f"{name}.mlpackage": saved(lambda name=name: forms_model(name)) for name in FORMS},
    **{f"{name}.mlpackage": saved(make) for name, make in COMPRESSED.items()},
    "layers.mlpackage": saved(lambda: layers(IOS18)),
    "element_types.mlpackage": saved(element_types),
    "nested.mlpackage": saved(nested),
    "state.mlpackage": saved(with_state),
    "functions.mlpackage": save_functions,
    "pipeline.mlpackage": save_pipeline,
    "neural_network.mlmodel": save_neural_network,
}


# What coremltools reads ---------------------------------------------------------------------------


@contextmanager
def _quietly() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def specifications(path: Path) -> list[Any]:
    """The protobuf messages of a package's models: those of a pipeline, or the one there is."""
    whole = load_spec(str(path))
    return list(whole.pipeline.models) if whole.WhichOneof("Type") == "pipeline" else [whole]


def programs(path: Path) -> list[Any]:
    folder = str(path / "Data" / "com.apple.CoreML" / "weights")
    with _quietly():
        return [load_program(model, model.specificationVersion, folder) for model in specifications(path)]


def operations(block: Any) -> Iterator[Any]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from operations(inner)


def _weights(block: Any) -> Iterator[Any]:
    """The operators of constants, as stored: parts of a constexpr operator are not among them."""
    for operation in block.operations:
        if operation.type == "const" or operation.type.startswith("constexpr_"):
            yield operation
        for inner in operation.blocks:
            yield from _weights(inner)


def decoded(path: Path) -> dict[str, Array]:
    """What each constant and each compressed weight comes to: `<function>/<name>`, in a pipeline `<index>/<function>/<name>`.

    The pass behind `decompress_weights`, which itself refuses several functions and several programs.
    """
    models = specifications(path)
    values = {}
    for index, (specification, read) in enumerate(zip(models, programs(path), strict=True)):
        with _quietly():
            WeightDecompressor(op_selector=lambda _: True).apply(read)
        for function, block in read.functions.items():
            stored = specification.mlProgram.functions[function]
            names = {
                output.name
                for operation in _weights(stored.block_specializations[stored.opset])
                for output in operation.outputs
            }
            for operation in operations(block):
                value, name = (
                    operation.outputs[0].val if operation.outputs else None,
                    operation.outputs and operation.outputs[0].name,
                )
                if operation.op_type == "const" and name in names and not isinstance(value, str):
                    values["/".join(([str(index)] if len(models) > 1 else []) + [function, name])] = np.asarray(value)
    return values
