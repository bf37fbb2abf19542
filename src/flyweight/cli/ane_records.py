"""`flyweight ane lut` and `flyweight ane record`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flyweight.cli.output import json_option, print_json, print_table, say
from flyweight.cli.paths import LocalPath

if TYPE_CHECKING:
    from flyweight.targets.ane.facts.engine_targets import Target
    from flyweight.targets.ane.facts.fact import Fact
    from flyweight.targets.ane.records.activation_functions import Activation
    from flyweight.targets.ane.records.activation_record import Reading
    from flyweight.targets.ane.records.channel_groups import ChannelTable

_SHOWN = 16
_KNOTS_PER_ROW = 11
_profile = click.option(
    "--profile",
    type=click.Choice(["seed", "disputed"]),
    default="seed",
    show_default=True,
    help="Whose reading of disputed facts to take.",
)


@click.command(name="lut", short_help="Build the lookup record of an activation function, and measure its error.")
@click.argument("function", required=False)
@click.option("--all", "every", is_flag=True, help="The errors of all functions that have a record.")
@_profile
@click.option("--deltas", is_flag=True, help="The record of 150 bytes from before generation A13 (inferred).")
@click.option("-o", "--out", type=LocalPath(dir_okay=False), metavar="FILE", help="Write the record.")
@json_option
def lut(function: str | None, every: bool, profile: Reading, deltas: bool, out: Path | None, as_json: bool) -> None:
    """Build the record from which the engine computes FUNCTION: 33 knots, clamps and tails.

    The error is that of the record evaluated as the engine does, over every f16 of the range that was measured on a device. The
    knots of gelu, silu and softplus are not published; these are fitted here. --profile disputed has the outputs at the clamps
    where the guide has mode and scale.

    \b
    Examples:
      flyweight ane lut sigmoid
      flyweight ane lut gelu --json
      flyweight ane lut tanh -o tanh.bin
      flyweight ane lut --all
    """
    from flyweight.targets.ane.records.activation_functions import ACTIVATIONS, activation_named, build

    if every == (function is not None) or (every and out is not None):
        raise click.UsageError("give FUNCTION, or --all without --out")
    if every:
        documents = [_function(activation) for activation in ACTIVATIONS.values()]
        if as_json:
            print_json({"functions": documents})
        else:
            _print_errors(documents)
        return
    activation = activation_named(str(function))
    record = build(activation.name)
    data = record.to_bytes(reading=profile, deltas=deltas)
    if out is not None:
        from flyweight.writing import write_new

        write_new(out, [data])
    document = _function(activation) | {
        "map": record.map.name.lower(),
        "scale": record.scale,
        "clamps": [record.low, record.high],
        "tails": [record.tails.low_slope, record.tails.low_intercept, record.tails.high_slope, record.tails.high_intercept],
        "values": list(record.knots),
        "record": data.hex(),
    }
    if as_json:
        print_json(document)
        return
    say(f"{activation.name}: {len(data)} bytes, map {document['map']}, {record.scale:g} knots per unit")
    say(f"inputs are clamped to {record.low:g} … {record.high:g}")
    low, high = record.tails.low_intercept, record.tails.high_intercept
    say(f"below the knots {record.tails.low_slope:g} · x + {low:g}, above {record.tails.high_slope:g} · x + {high:g}")
    print_table("", [">knot", *[">"] * _KNOTS_PER_ROW], [
        (first, *(f"{value:.5g}" for value in record.knots[first : first + _KNOTS_PER_ROW]))
        for first in range(0, len(record.knots), _KNOTS_PER_ROW)
    ])  # fmt: skip
    _print_errors([document])
    if out is not None:
        say(f"wrote {out}")


def _function(activation: Activation) -> dict[str, Any]:
    from flyweight.targets.ane.records.activation_functions import error_of

    return {
        "function": activation.name,
        "knots": activation.knots.as_json(),
        "fitted_here": activation.fitted,
        "compared": list(activation.compared),
        "error": error_of(activation.name).as_json(),
        "device_error": activation.device_error.as_json(),
    }


def _print_errors(documents: list[dict[str, Any]]) -> None:
    columns = ["function", "knots", "compared over", ">max error", ">at", ">ulps", ">at", ">device", ""]
    rows = [
        (
            document["function"],
            "fitted here" if document["fitted_here"] else "sampled",
            "{:g} … {:g}".format(*document["compared"]),
            f"{document['error']['max_error']:.3e}",
            f"{document['error']['max_error_at']:.5g}",
            f"{document['error']['max_ulps']:.1f}",
            f"{document['error']['max_ulps_at']:.5g}",
            "" if document["device_error"]["value"] is None else f"{document['device_error']['value']:.3e}",
            document["device_error"].get("note", ""),
        )
        for document in documents
    ]
    print_table("", columns, rows)


@click.command(name="record", short_help="Show the descriptor and the channel groups of one tensor.")
@click.argument("model", type=LocalPath())
@click.argument("tensor")
@click.option(
    "--target", metavar="NAME", required=True, help="A chip or a compiler target: M1, M2 Pro, H17s; see `ane targets`."
)
@_profile
@click.option("--activation", metavar="FUNCTION", help="Include the lookup record of this function; see `ane lut --all`.")
@click.option("--all", "every", is_flag=True, help=f"All channel groups, not the first {_SHOWN}.")
@click.option("-o", "--out", type=LocalPath(dir_okay=False), metavar="FILE", help="Write the kernel unit, weights included.")
@json_option
def record(
    model: Path, tensor: str, target: str, profile: str, activation: str | None, every: bool, out: Path | None, as_json: bool
) -> None:
    """Show what TENSOR of MODEL is compiled to for TARGET: the six sections, the channel groups, and the kernel register.

    The tensor is described as it is stored; `ane plan` says whether the target folds it to dense f16 first. Layouts that no
    source gives are ours, and marked so in docs/formats/ane-records.md: the files are not Apple's.

    \b
    Examples:
      flyweight ane record model.mlpackage linear_0_weight --target M1
      flyweight ane record model-hf model.layers.0.mlp.up_proj.weight --target M2 --all
      flyweight ane record model-hf model.layers.0.mlp.up_proj.weight --target M1 --activation silu -o up.unit
    """
    from flyweight.checkpoint import open_checkpoint
    from flyweight.foundation.errors import ArgumentError, FlyweightError, UnsupportedError, nearest
    from flyweight.targets.ane.facts.engine_targets import ENGINES, target_named
    from flyweight.targets.ane.facts.fact import Profile
    from flyweight.targets.ane.records.activation_functions import build
    from flyweight.targets.ane.records.unit_building import describe, stored_weights, unit_pieces

    aim = target_named(target)
    engines = ENGINES.of(aim).under(Profile(profile))
    if engines.value is None:
        raise UnsupportedError(f"{engines.about} are not known: {engines.note}", code="E_UNKNOWN_FACT")
    lookup = None if activation is None else build(activation)
    with open_checkpoint(model) as checkpoint:
        if tensor not in checkpoint:
            known = nearest(tensor, checkpoint)
            hint = "`flyweight inspect --tensors` lists them"
            raise ArgumentError(f"there is no tensor '{tensor}'{known}", code="E_TENSOR", file=str(model), hint=hint)
        encoded = checkpoint.encoded(tensor)
        try:
            stored = stored_weights(encoded)
            descriptor, groups = describe(stored, engines.value, activation=lookup is not None)
            if out is not None:
                from flyweight.writing import write_new

                write_new(out, unit_pieces(stored, engines.value, activation=lookup))
        except FlyweightError as error:
            raise error.at(file=str(model), tensor=tensor) from None
        word = _kernel_word(aim, stored.element, stored.bits if stored.tables is not None else 0, stored.sparse)
        shown = list(_groups(groups, None if every or as_json else _SHOWN))
        if as_json:
            sections = {name: section and section._asdict() for name, section in descriptor.sections()}
            print_json({
                "model": str(model), "tensor": tensor, "codec": encoded.codec.as_json(), "target": aim.name,
                "engines": engines.as_json(), "bytes": descriptor.nbytes, "sections": sections, "text": descriptor.text(),
                "kernel_config": word and word.as_json(),
                "channel_groups": [dict(zip(_GROUP, row, strict=True)) for row in shown],
            })  # fmt: skip
            return
        known_as = engines.provenance.value
        say(f"{tensor}: {encoded.spec} as {encoded.codec}, for {aim.name} with {engines.value} engines ({known_as})")
    click.echo(descriptor.text(), nl=False)
    if word is None:
        say(f"kernel register: no source has its layout for {aim.name}")
    else:
        say(f"{word.about}: {word.value:#x} ({word.provenance.value})")
    print_table("", [">engine", ">offset", ">channels", ">first channel"], shown)
    if len(shown) < len(groups):
        say(f"… {len(groups) - len(shown)} more channel groups; --all shows them")
    if out is not None:
        say(f"wrote {out}")


_GROUP = ("engine", "offset", "channels", "first_channel")


def _groups(groups: ChannelTable, most: int | None) -> Any:
    rows = (
        (engine, group.offset, group.channels, channels[0])
        for engine, own in enumerate(groups.engines)
        for group, channels in zip(own, groups.channels_of(engine), strict=True)
    )
    return islice(rows, most)


def _kernel_word(target: Target, element: str, palette_bits: int, sparse: bool) -> Fact[int] | None:
    """The word of KernelCfg, where the layout of the target's register is known."""
    from flyweight.targets.ane.facts.engine_targets import Generation
    from flyweight.targets.ane.records.kernel_config import H13, H16, kernel_config, word_fact

    layout = {Generation.A13: H13, Generation.A14: H13, Generation.A15: H13, Generation.A16: H16}.get(target.generation)
    if layout is None:
        return None
    return word_fact(kernel_config(element, palette_bits=palette_bits, sparse=sparse, layout=layout), layout)


commands = [lut, record]
