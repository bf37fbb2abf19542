"""The command line: one file per command, imported only when that command runs.

Results go to stdout (a table, or JSON with `--json`); progress, notes and errors go to stderr.

Exit codes: 0 ok · 1 difference found or verification failed · 2 usage · 3 malformed or hostile input ·
4 unsupported feature · 5 not enough RAM or disk · 6 I/O · 7 interrupted, resumable · 70 a bug in Flyweight, with the path of
a report · 130 SIGINT.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module

import click

from flyweight import __version__
from flyweight.foundation.errors import ResourceError, nearest

__all__ = ["cli", "main"]

_OUT_OF_MEMORY = b"flyweight: not enough memory [E_RAM]\n"

VERBS = {
    "inspect": "Show the format, metadata and tensors of a model.",
    "convert": "Convert or quantize a model.",
    "calibrate": "Gather statistics that make a quantization of a model better.",
    "verify": "Check a model for damage and errors.",
    "diff": "Compare the weights of two models, in any formats.",
    "delta": "Store a fine-tune as its difference from a base.",
    "extract": "Extract files, a draft head or single tensors from a model.",
    "run": "Generate text from a prompt.",
    "chat": "Chat with a model.",
    "eval": "Measure perplexity, and KL divergence from another model.",
    "ane": "Plan what the Apple Neural Engine does with a model's weights.",
    "cache": "Build, list and remove cached tiers, which make npy-dirs start faster.",
    "recipes": "List named quantizations, and print one as a recipe to change.",
    "formats": "List formats, codecs, and which format stores which codec.",
    "bench": "Measure the speed of codecs or of a model.",
    "completion": "Print a shell completion script.",
}


class Verbs(click.Group):
    """Commands by name; for a misspelt one the nearest is suggested."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in (known := self.list_commands(ctx)) and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{nearest(args[0], known)}")
        return super().resolve_command(ctx, args)


class LazyVerbs(Verbs):
    """Knows its commands by name and imports one when it is called."""

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
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=LazyVerbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="flyweight")
def cli() -> None:
    """The ffmpeg of model weights: inspect, convert, quantize, verify, compare and run models of any format.

    \b
    Examples:
      flyweight inspect model.gguf
      flyweight convert model.gguf model-hf --dtype bf16
      flyweight convert model-hf model.q8_0.gguf --quant q8_0
      flyweight diff model.gguf model-hf
      flyweight run model.gguf "Why is the sky blue?"
    """


def main() -> None:
    """Run, and turn every failure into a line on stderr and its exit code."""
    try:
        _open_streams()
        try:
            cli.main(standalone_mode=False, prog_name="flyweight")
        finally:
            sys.stdout.flush()
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except BrokenPipeError:
        _hush()
        sys.exit(0)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the last place where anything can be told
        sys.exit(_told(error))


def _open_streams() -> None:
    """Standard streams that can be written to whatever they are: a closed one is as good as /dev/null.

    A file opened later would otherwise take the place of the closed one, and what is printed would end up in it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    sys.stdin = sys.stdin or io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")
    sys.stdout = sys.stdout or io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8")
    sys.stderr = sys.stderr or io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr has it: no encoding makes printing fail


def _hush() -> None:
    """Whatever is still to be written is dropped, so that the final flush stays quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: BaseException) -> int:
    """Tell of a failure; without memory for that, in the words that are there already."""
    try:
        sys.stdout.flush()
    except OSError:  # the disk is full, say; it would be tried once more at the end
        _hush()
    try:
        if isinstance(error, MemoryError):
            error.__traceback__ = error.__context__ = error.__cause__ = None  # with the frames goes what they hold
        from flyweight.cli.failure import tell

        return tell(error, sys.argv[1:])
    except MemoryError:
        os.write(2, _OUT_OF_MEMORY)
        return ResourceError.exit_code
