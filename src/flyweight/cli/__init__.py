"""The command line: one file per verb, loaded only when that verb runs.

stdout carries data (a table for people, JSON with `--json`), stderr carries progress and errors.

Exit codes: 0 ok · 1 difference found or verification failed · 2 usage · 3 malformed or hostile input ·
4 unsupported feature · 5 not enough RAM or disk · 6 I/O · 7 interrupted, resumable · 130 SIGINT.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from flyweight import __version__
from flyweight.errors import FlyweightError, printable

__all__ = ["cli", "main"]

VERBS = {
    "inspect": "Show what is in a checkpoint.",
    "convert": "Turn a checkpoint into another format or quantization.",
    "verify": "Check that a checkpoint is sound.",
    "diff": "Compare two checkpoints, across formats.",
    "extract": "Write out what rides along in a model.",
    "run": "Let a model answer a prompt.",
    "chat": "Talk with a model.",
    "eval": "Measure how well a model predicts text.",
    "cache": "Keep the tiers of npy-dirs: built once, mapped at every start.",
    "formats": "List what can be read, written and carried.",
    "bench": "Measure every codec beside the machine's limits.",
    "completion": "Print a shell completion script.",
}


class LazyGroup(click.Group):
    """Knows its verbs by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"flyweight.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """A reader that has read enough is no failure; click would make it exit code 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _hush()
            raise click.exceptions.Exit(0) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="flyweight")
def cli() -> None:
    """The ffmpeg of model weights: inspect, convert, verify, compare and run checkpoints of any format.

    \b
    Examples:
      flyweight inspect model.gguf
      flyweight convert model.gguf model-hf --dtype bf16
      flyweight convert model-hf model.q8_0.gguf --quant q8_0
      flyweight diff model.gguf model-hf
      flyweight run model.gguf "Why is the sky blue?"
    """


def main() -> None:
    """Run, and turn every expected failure into one line on stderr and its exit code."""
    as_json = "--json" in sys.argv[1:]
    try:
        cli.main(standalone_mode=False, prog_name="flyweight")
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except FlyweightError as error:
        _complain(str(error), error.as_json(), as_json)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        text = "interrupted (a conversion continues with --resume)"
        _complain(text, {"code": "E_SIGINT", "message": text}, as_json)
        sys.exit(130)
    except BrokenPipeError:
        _hush()
        sys.exit(0)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _complain(message, {"code": "E_IO", "message": message}, as_json)
        sys.exit(6)


def _hush() -> None:
    """Whatever is still to be written is dropped, so that the final flush stays quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str, document: dict[str, object], as_json: bool) -> None:
    if as_json:
        import json

        sys.stderr.write(json.dumps({"error": document}) + "\n")
    else:
        sys.stderr.write(f"flyweight: {printable(text, 4000)}\n")
