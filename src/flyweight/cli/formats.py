"""`flyweight formats`."""

from __future__ import annotations

from typing import Any

import click

from flyweight.cli.output import json_option, print_json, print_table


@click.command(name="formats", short_help="List what can be read, written and carried.")
@json_option
def command(as_json: bool) -> None:
    """List containers and codecs, and which codec each container carries without decoding.

    \b
    Examples:
      flyweight formats
      flyweight formats --json | jq '.codecs[] | select(.carried_by[] == "gguf") | .name'
    """
    from flyweight.codecs import CODECS
    from flyweight.containers import CONTAINERS
    from flyweight.dtypes import DType
    from flyweight.kernels import active
    from flyweight.tensor import TensorSpec

    probe = TensorSpec((256, 256), DType.F32)  # divisible by every block and group there is
    codecs: list[dict[str, Any]] = []
    for kind in CODECS:
        codec = kind()
        carried = [c.name for c in CONTAINERS if c.carries(probe, c.adapt(codec.spec))]
        codecs.append(
            {"name": kind.name, "decodes": True, "encodes": kind.encodes, "exact": codec.exact, "carried_by": carried}
        )
    containers = [{"name": c.name, "title": c.title, "reads": True, "writes": True} for c in CONTAINERS]
    if as_json:
        print_json({"containers": containers, "codecs": codecs, "kernels": active()})
        return
    print_table("", [("container", "left"), ("", "left")], [(c["name"], c["title"]) for c in containers])
    columns = [("codec", "left"), ("decode", "left"), ("encode", "left"), *((c.name, "left") for c in CONTAINERS)]
    rows = [
        (
            c["name"],
            "yes",
            "yes" if c["encodes"] else "-",
            *("carried" if k.name in c["carried_by"] else "-" for k in CONTAINERS),
        )
        for c in codecs
    ]
    print_table("", columns, rows)
    click.echo(f"kernels: {active()}")
