"""`flyweight inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flyweight.cli.output import check_label, codec_label, gate_label, human_bytes, json_option, note, print_json, print_table
from flyweight.cli.paths import LocalPath, delta_option
from flyweight.foundation.errors import FlyweightError, printable
from flyweight.foundation.manifest import Manifest, Numbers
from flyweight.foundation.source_check import SourceCheck

if TYPE_CHECKING:
    from flyweight.checkpoint import Checkpoint
    from flyweight.runtime.feature_dispatch import Augment, Route

_LONG = 64
_MANY = 8
_MOST_KEYS = 1000


@click.command(name="inspect", short_help="Show the format, metadata and tensors of a model.")
@click.argument("path", type=LocalPath())
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--target", metavar="NAME", default="M1", show_default=True, help="Apple chip to plan a Core ML package for.")
@delta_option
@json_option
def command(path: Path, tensors: bool, target: str, deltas: tuple[Path, ...], as_json: bool) -> None:
    """Show the format, metadata and tensors of PATH, a file or a directory. Weights are not read.

    For a SQUIZD file, also its flags, draft head and Core ML package, how it would run on this machine, and what the Neural
    Engine of a chip does with the package.

    \b
    Examples:
      flyweight inspect model.gguf
      flyweight inspect model-hf --tensors
      flyweight inspect model.safetensors --json | jq '.tensors[].name'
      flyweight inspect model.squizd --json | jq '.dispatch[] | select(.chosen)'
    """
    from flyweight.checkpoint import open_checkpoint
    from flyweight.containers.abilities import Summarises, Warns

    with open_checkpoint(path, deltas=deltas) as checkpoint:
        manifest = checkpoint.manifest
        container = checkpoint.container
        summary = container.summary(checkpoint.bundle) if isinstance(container, Summarises) else {}
        found = container.warnings(checkpoint.bundle, manifest) if isinstance(container, Warns) else ()
        warnings = [*_unreadable(manifest), *found]
        check = None if checkpoint.delta_places else SourceCheck.recorded(manifest.metadata)
        summary = {**summary, "check": check.as_json()} if check else summary
        if checkpoint.delta_places:
            summary = {"base": checkpoint.bundle.name, "deltas": list(checkpoint.delta_places), **summary}
        routes, added = _dispatch(checkpoint, summary, target)
    if as_json:
        ways = {"dispatch": [r._asdict() for r in routes], "augments": [a._asdict() for a in added]} if routes else {}
        warned = {"warnings": [{"code": code, "message": message} for code, message in warnings]} if warnings else {}
        print_json(_document(manifest) | ({"facts": dict(summary)} if summary else {}) | ways | warned)
        return
    _print_summary(path, manifest, summary)
    for code, message in warnings:
        note(f"warning: {message} [{code}]")
    if routes:
        ways_to_run = [(("→ " if r.chosen else "  ") + r.path, r.reason) for r in routes]
        ways_to_run += [(f"+ {a.flag}", a.reason) for a in added if a.present]
        print_table("", ["how it runs", ""], ways_to_run)
    if tensors:
        columns = ["tensor", ">shape", "dtype", "codec", ">bytes", ">bits/w"]
        rows = (
            (
                e.name,
                "×".join(map(str, e.spec.shape)) or "scalar",
                e.spec.dtype,
                codec_label(e.codec),
                e.nbytes,
                f"{e.bits_per_weight:.2f}",
            )
            for e in manifest.entries.values()
        )
        print_table("", columns, rows)


def _unreadable(manifest: Manifest) -> list[tuple[str, str]]:
    if (foreign := manifest.foreign) is None:
        return []
    error = foreign.unreadable()
    return [(error.code, error.message)]


def _document(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": manifest.format,
        "dialect": manifest.dialect,
        "weights": manifest.weights,
        "nbytes": manifest.nbytes,
        "metadata": {key: typed.value for key, typed in manifest.metadata.items()},
        "files": list(manifest.files),
        "tensors": (
            {
                "name": entry.name,
                "shape": list(entry.spec.shape),
                "dtype": entry.spec.dtype.label,
                "codec": entry.codec.as_json(),
                "nbytes": entry.nbytes,
                "bits_per_weight": round(entry.bits_per_weight, 4),
            }
            for entry in manifest.entries.values()
        ),
    }


def _dispatch(checkpoint: Checkpoint, summary: Mapping[str, Any], target: str) -> tuple[Sequence[Route], Sequence[Augment]]:
    """How a file with feature flags would run here."""
    if "flags" not in summary:
        return (), ()
    from flyweight.runtime.feature_dispatch import augments, dispatch

    package = None
    if summary.get("appendix"):
        from flyweight.pipeline.embedded_package import embedded_plan

        try:
            package = embedded_plan(checkpoint, target)
        except FlyweightError as error:  # the file is as good as it was: a package may be of another kind, or damaged
            package = f"there is no plan for it: {error.message}"
    return dispatch(summary["flags"], package=package), augments(summary["flags"])


def _print_summary(path: Path, manifest: Manifest, summary: Mapping[str, Any]) -> None:
    bits = 8 * manifest.nbytes / manifest.weights if manifest.weights else 0.0
    rows: list[tuple[str, object]] = [
        ("format", manifest.format),
        ("tensors", len(manifest.entries)),
        ("weights", f"{manifest.weights:,}"),
        ("stored", f"{human_bytes(manifest.nbytes)}, {bits:.3f} bits/weight"),
    ]
    rows += [("side files", ", ".join(manifest.files))] if manifest.files else []
    rows += [(key.replace("_", " "), _shown(value)) for key, value in summary.items()]
    print_table(str(path), ["", ""], rows)
    kinds: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for entry, count in manifest.kinds():
        key = (codec_label(entry.codec), entry.spec.dtype.label)
        kinds[key] += count
        sizes[key] += count * entry.nbytes
    columns = ["codec", "decodes to", ">tensors", ">stored"]
    print_table("", columns, [(*key, count, human_bytes(sizes[key])) for key, count in kinds.most_common()])
    if manifest.metadata:
        rows = [(key, _short(typed.value)) for key, typed in islice(manifest.metadata.items(), _MOST_KEYS)]
        print_table("", ["metadata", "value"], rows)
        if (more := len(manifest.metadata) - _MOST_KEYS) > 0:
            note(f"{more} more keys; --json prints all")


def _shown(value: object) -> str:
    if isinstance(value, Mapping) and "passed" in value:
        return gate_label(value)
    if isinstance(value, Mapping) and "same_model" in value:
        return check_label(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        shown = [printable(_shown(item), _LONG) for item in value[:_MANY]] + ["…"] * (len(value) > _MANY)
        return ("; " if isinstance(value[0] if value else None, Mapping) else ", ").join(shown) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(value: object) -> str:
    if isinstance(value, list | tuple | Numbers):
        head = ", ".join(printable(str(item), 16) for item in value[:3])
        return f"[{head}{', …' if len(value) > 3 else ''}] ({len(value)} items)"
    return printable(str(value), _LONG)
