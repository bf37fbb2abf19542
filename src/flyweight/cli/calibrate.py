"""`flyweight calibrate`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click

from flyweight.cli.output import human_bytes, json_option, note, print_json, print_table, size_argument
from flyweight.cli.paths import LocalPath, delta_option
from flyweight.cli.progress import stages
from flyweight.foundation.errors import InterruptedRunError


@click.command(name="calibrate", short_help="Gather statistics that make a quantization of a model better.")
@click.argument("model", type=LocalPath())
@click.option(
    "-o", "--output", type=LocalPath(), required=True,
    help="The file to write. `x.gguf` and `x.dat` are imatrix files of llama.cpp; any other name has Flyweight's own form.",
)  # fmt: skip
@click.option(
    "--text", "texts", type=LocalPath(exists=True, dir_okay=False), multiple=True,
    help="UTF-8 text to run, several times for several. Default: a text of many kinds that comes with Flyweight.",
)  # fmt: skip
@click.option("--gram", is_flag=True, help="Gather whole Gram matrices, which `gptq` needs: a hundred times as many bytes.")
@click.option("--tokens", type=click.IntRange(8), default=24576, show_default=True, help="Tokens of the texts, at most.")
@click.option("--window", type=click.IntRange(2), default=128, show_default=True, help="Tokens of each window.")
@click.option("--samples", type=click.IntRange(0), default=0, help="Add so many windows that the model itself generates.")
@click.option("--bos", is_flag=True, help="Begin each window with the BOS token.")
@click.option(
    "--exact", is_flag=True, help="Compute with f32 activations: up to twice the time, and nothing that a mean shows."
)
@delta_option
@click.option("--threads", type=click.IntRange(1, 256), help="CPU threads.  [default: all cores]")
@click.option("--max-ram", callback=size_argument, metavar="SIZE", help="Memory limit; layers are streamed if necessary.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run with the same arguments.")
@click.option("--force", is_flag=True, help="Replace a file of statistics at the output.")
@click.option("--quiet", "-q", is_flag=True, help="Print no progress and no notes.")
@json_option
def command(
    model: Path, output: Path, texts: tuple[Path, ...], gram: bool, tokens: int, window: int, samples: int, bos: bool,
    exact: bool, deltas: tuple[Path, ...], threads: int | None, max_ram: int | None, resume: bool, force: bool, quiet: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run text through MODEL and write what its matrices are multiplied with: statistics for `convert --stats`.

    The text should be of every kind that the model will see. Many short windows of it go through the model, a layer at a time,
    so memory does not grow with the text or the model. The output appears complete or not at all.

    \b
    Examples:
      flyweight calibrate model-hf -o model.stats
      flyweight calibrate model-hf -o model.stats --text prose.txt --text code.py --gram
      flyweight convert model-hf model.gguf --quant q4_k --stats model.stats
      flyweight calibrate model.gguf -o model.imatrix.gguf        # for llama-quantize --imatrix
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # our own threads call it, each for a matrix of its own
    from flyweight.calibration import calibrate, shipped_texts

    signal.signal(signal.SIGTERM, _terminated)
    with stages(quiet=quiet) as shown:
        done = calibrate(
            model, output, texts=texts or shipped_texts(), deltas=deltas, gram=gram, tokens=tokens, window=window,
            samples=samples, bos=bos, exact=exact, threads=threads, max_ram=max_ram, resume=resume, force=force,
            progress=shown.steps("calibrating"),
        )  # fmt: skip
    if as_json:
        print_json(done.as_json())
        return
    if not quiet:
        for text in done.notes:
            note(f"note: {text}")
    summary = [
        ("size", human_bytes(done.nbytes)),
        ("tokens", f"{done.tokens} in {done.windows} windows of {done.window}"),
        ("inputs", f"{done.inputs} of {done.matrices} matrices" + (", with Gram matrices" if done.gram else "")),
        ("seconds", f"{done.seconds:.1f}"),
    ]
    print_table(f"{model} → {output}", ["", ""], summary)


def _terminated(_signal: int, _frame: object) -> None:
    raise InterruptedRunError("terminated", hint="run the same command with --resume to continue")
