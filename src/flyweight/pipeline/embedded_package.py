"""The Core ML package that a file embeds: made of a model's linear layers, in memory, and what a target does with it."""

from __future__ import annotations

from flyweight.checkpoint import Checkpoint, read_checkpoint
from flyweight.checkpoint.selected_tensors import SelectedTensors
from flyweight.containers import container_named, mlpackage
from flyweight.containers.coreml.coreml_options import CoremlExtras
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.manifest import Extent
from flyweight.pipeline.plans.planning import make_job
from flyweight.pipeline.plans.target_forms import linear_layers, recipe_for_target, target_notes
from flyweight.pipeline.transcode import carry_out


def package_for_target(checkpoint: Checkpoint, target: str) -> bytes:
    """Every linear layer in the form that the target streams, as `convert --to coreml --target` has it."""
    names = linear_layers(checkpoint)
    if not names:
        raise UnsupportedError("the model has no linear layers to make a Core ML package of", code="E_PACKAGE")
    layers = SelectedTensors(checkpoint, names)
    recipe = recipe_for_target(layers, CoremlExtras(target=target))
    job = make_job(layers, container_named("coreml"), "model.mlpackage", recipe=recipe)
    mlpackage.require_size(job.placement.nbytes)
    files = {name: bytearray(image.nbytes) for name, image in job.placement.images.items()}
    for name, image in job.placement.images.items():
        for offset, chunk in image.chunks:
            files[name][offset : offset + len(chunk)] = chunk

    def write(file: str, offset: int, piece: memoryview) -> None:
        files[file][offset : offset + len(piece)] = piece

    for step in job.plan.steps:
        carry_out(job, step, write, measured=False)
    return mlpackage.archive(files)


def embedded_plan(checkpoint: Checkpoint, target: str) -> str | None:
    """What a target does with the weights of the package in a file; None where there is no package that it could be said of."""
    extent = checkpoint.manifest.files.get(mlpackage.NAME)
    if not isinstance(extent, Extent):
        return None
    bundle = mlpackage.PackageBundle(checkpoint.source(extent.file), extent)
    package = read_checkpoint(bundle, container_named("coreml"))
    return "; ".join(target_notes(package, package.manifest.entries, CoremlExtras(target=target)))
