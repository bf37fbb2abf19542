"""`flyweight eval`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flyweight.cli.output import json_option, print_json, print_table
from flyweight.cli.paths import LocalPath, delta_option
from flyweight.cli.progress import stages
from flyweight.cli.run import engine_options
from flyweight.tiers.tier_table import ARRAYS, CHOICES

if TYPE_CHECKING:
    from flyweight.evaluate import Evaluation
    from flyweight.runtime import Model

DEFAULT_WINDOW = 1024

FIGURES = {
    "perplexity": ("perplexity", ".4f"),
    "reference_perplexity": ("perplexity of the reference", ".4f"),
    "perplexity_change": ("change of perplexity", "+.4f"),
    "kl_mean": ("KL divergence, mean (nats)", ".6f"),
    "kl_median": ("KL divergence, median", ".6f"),
    "kl_99_9": ("KL divergence, 99.9 %", ".4f"),
    "same_top": ("same likeliest token", ".2%"),
}


@click.command(name="eval", short_help="Measure perplexity, and KL divergence from another model.")
@click.argument("model", type=LocalPath())
@click.option("--text", type=LocalPath(dir_okay=False), required=True, help="UTF-8 text to measure on.")
@click.option("--against", type=LocalPath(), help="Reference model, usually the original.")
@click.option("--context", type=click.IntRange(2), help="Window size in tokens.  [default: the model's context, at most 1024]")
@click.option("--tokens", type=click.IntRange(2), help="Use only the first tokens of the text.")
@click.option("--tier", type=click.Choice(CHOICES), help="Which tier of an npy-dir to measure.  [default: its arrays]")
@delta_option
@engine_options
@json_option
def command(
    model: Path, text: Path, against: Path | None, context: int | None, tokens: int | None, kv: str, threads: int | None,
    exact: bool, max_ram: int | None, tier: str | None, deltas: tuple[Path, ...], as_json: bool,
) -> None:  # fmt: skip
    """Measure the perplexity of MODEL on a text and, with --against, the KL divergence of its predictions from another model's.

    The text is split into windows; every token of a window except the first is predicted. Both models run side by side,
    so memory does not grow with the text. The reference uses f32 activations and an f32 KV cache.

    \b
    Examples:
      flyweight eval model.gguf --text book.txt
      flyweight eval model.q4_k.gguf --text book.txt --against model-hf --tokens 20480
      flyweight eval base-hf --delta tuned.wdelta --text book.txt --against tuned-hf
      flyweight eval model.gguf --text book.txt --kv int8 --against model.gguf --json
    """
    from flyweight.evaluate import common_tokens, evaluate, predictor, read_text, windows_of
    from flyweight.tiers import open_model_from

    written = read_text(text)
    share = max_ram // 2 if max_ram and against else max_ram
    with ExitStack() as opened:

        def load(path: Path, deltas: tuple[Path, ...], kv: str, int8: bool, form: str) -> Model:
            window = context or min(DEFAULT_WINDOW, _longest(path, deltas))
            held, _ = open_model_from(
                path, deltas=deltas, tier=form, build=False, context=window, kv=kv, int8=int8, threads=threads, max_ram=share,
                allow_ungated=True, verify=True,
            )  # fmt: skip
            return opened.enter_context(held)

        ours = load(model, deltas, kv, not exact, tier or ARRAYS)
        theirs = load(against, (), "f32", False, ARRAYS) if against else None
        words = ours.tokenizer
        ids = common_tokens(written, words, theirs.tokenizer) if theirs else words.encode(written, special=False)
        length = min(ours.context, theirs.context) if theirs else ours.context
        windows = windows_of(ids, length, tokens)
        with stages() as shown:
            found = evaluate(windows, predictor(ours), predictor(theirs) if theirs else None, shown.steps("measuring"))
    if as_json:
        print_json({"model": str(model), "text": str(text), "against": against and str(against)} | found.as_json())
    else:
        _print(found)


def _longest(path: Path, deltas: tuple[Path, ...]) -> int:
    from flyweight.checkpoint import open_checkpoint
    from flyweight.models import blueprint

    with open_checkpoint(path, deltas=deltas) as checkpoint:
        return blueprint(checkpoint.manifest, checkpoint.read).config.context


def _print(found: Evaluation) -> None:
    windows, predicted = found.surprise.shape
    rows = []
    for name, estimate in found.figures().items():
        title, form = FIGURES[name]
        interval = f"{estimate.low:{form}} … {estimate.high:{form}}"
        rows.append((title, f"{estimate.value:{form}}", "" if estimate.error is None else f"{estimate.error:.2g}", interval))
    columns = ["", ">", ">std. error", ">95 % interval"]
    print_table("", columns, rows)
    click.echo(f"{windows} windows of {predicted + 1} tokens, {windows * predicted} predicted")
