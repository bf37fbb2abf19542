"""`flyweight completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(name="completion", short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    Examples:
      eval "$(flyweight completion bash)"
      flyweight completion fish > ~/.config/fish/completions/flyweight.fish
    """
    from flyweight.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "flyweight", "_FLYWEIGHT_COMPLETE").source())
