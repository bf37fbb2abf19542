"""`flyweight recipes`."""

from __future__ import annotations

import click

from flyweight.cli import Verbs
from flyweight.cli.output import json_option, print_json, print_table

_to = click.option("--to", metavar="FORMAT", help="As the name is meant in this format, see `flyweight formats`.")


@click.group(name="recipes", cls=Verbs, short_help="List named quantizations, and print one as a recipe to change.")
def command() -> None:
    """Named quantizations: what `--quant` takes, and the rules behind a name.

    \b
    Examples:
      flyweight recipes ls
      flyweight recipes ls --to mlx
      flyweight recipes show q4_k_m
      flyweight recipes show mixed_4_6 --to mlx > mine.toml
      flyweight convert model-hf model.gguf --recipe mine.toml
    """


@command.command(name="ls", short_help="List the names.")
@_to
@json_option
def list_names(to: str | None, as_json: bool) -> None:
    """List the names of `--quant`, with bits per weight on a model of 8 B weights in the shapes of Llama 3.

    \b
    Examples:
      flyweight recipes ls
      flyweight recipes ls --to gguf
      flyweight recipes ls --json | jq '.recipes[] | select(.bits_per_weight < 5).name'
    """
    from flyweight.containers import container_named
    from flyweight.pipeline.plans.recipe_list import listed

    found = list(listed(container_named(to) if to else None))
    if as_json:
        recipes = [{"name": r.name, "bits_per_weight": _rounded(r.bits), "formats": r.formats, "words": r.words} for r in found]
        print_json({"recipes": recipes})
        return
    rows = [(r.name, f"{r.bits:.2f}" if r.bits else "", r.words, *(() if to else (", ".join(r.formats),))) for r in found]
    print_table("", ["name", ">bits/weight", "what", *(() if to else ("formats",))], rows)


@command.command(name="show", short_help="Print a recipe as TOML.")
@click.argument("name")
@_to
@json_option
def show(name: str, to: str | None, as_json: bool) -> None:
    """Print the recipe NAME as TOML, which --recipe takes as it is: copy it, change it, and change its name.

    Without --to it is the recipe that the name means everywhere; some formats mean something of their own by it.

    \b
    Examples:
      flyweight recipes show q4_k_m
      flyweight recipes show int4 --to squizd
      flyweight recipes show 4bit --to mlx > mine.toml && flyweight convert model-hf out --to mlx --recipe mine.toml
    """
    from flyweight.containers import container_named
    from flyweight.pipeline.plans.quantization_names import preset, recipe_for
    from flyweight.pipeline.plans.recipe_file import recipe_text

    container = container_named(to) if to else None
    recipe = recipe_for(container, name) if container else preset(name)
    if as_json:
        print_json(recipe.as_json())
        return
    target = f" --to {container.name}" if container else ""
    comments = (
        f"{name}{f' for a {container.title}' if container else ''}, as `flyweight recipes show {name}{target}` prints it.",
    )
    click.echo(recipe_text(recipe, "\n".join((*comments, *recipe.notes))), nl=False)


def _rounded(bits: float | None) -> float | None:
    return None if bits is None else round(bits, 4)
