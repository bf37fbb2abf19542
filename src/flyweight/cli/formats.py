"""`flyweight formats`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flyweight.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from flyweight.containers.container import Container


@click.command(name="formats", short_help="List formats, codecs, and which format stores which codec.")
@json_option
def command(as_json: bool) -> None:
    """List container formats and codecs, and which codecs each format can store.

    "in part" means: only with some parameters or element types; --json lists them.

    \b
    Examples:
      flyweight formats
      flyweight formats --json | jq '.codecs[] | select(.carried_by[] == "gguf") | .name'
      flyweight formats --json | jq '.containers[] | select(.name == "mlx") | .carries'
    """
    from flyweight.codecs import CODECS
    from flyweight.containers import CONTAINERS
    from flyweight.kernels import active

    codecs: list[dict[str, Any]] = [
        {
            "name": kind.name,
            "decodes": True,
            "encodes": kind.encodes,
            "exact": kind().exact,
            "carried_by": [container.name for container in CONTAINERS if _carried(container, kind.name) != "-"],
        }
        for kind in CODECS
    ]
    containers = [
        {
            "name": container.name,
            "title": container.title,
            "reads": True,
            "writes": True,
            "carries": [carried.as_json() for carried in container.codecs],
        }
        for container in CONTAINERS
    ]
    if as_json:
        print_json({"containers": containers, "codecs": codecs, "kernels": active()})
        return
    print_table("", ["format", ""], [(c["name"], c["title"]) for c in containers])
    columns = ["codec", "decode", "encode", *(c.name for c in CONTAINERS)]
    rows = [
        (c["name"], "yes", "yes" if c["encodes"] else "-", *(_carried(container, c["name"]) for container in CONTAINERS))
        for c in codecs
    ]
    print_table("", columns, rows)
    click.echo(f"kernels: {active()}")


def _carried(container: Container, codec: str) -> str:
    """Whether a container can store a codec: with any parameters, with some, or not at all."""
    ways = [carried for carried in container.codecs if carried.codec == codec or (carried.codec == "*" and codec != "raw")]
    return "-" if not ways else "in part" if all(way.params or way.dtypes for way in ways) else "yes"
