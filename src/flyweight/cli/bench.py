"""`flyweight bench`."""

from __future__ import annotations

from pathlib import Path

import click

from flyweight.cli.output import json_option, note, print_json, print_table
from flyweight.cli.paths import LocalPath


@click.command(name="bench", short_help="Measure the speed of codecs or of a model.")
@click.argument("codec", default="")
@click.argument("model", required=False, type=LocalPath(exists=True))
@click.option(
    "--runs", type=click.IntRange(1, 1000), default=9, show_default=True, help="Runs per figure; the median is reported."
)
@click.option(
    "--megabytes", type=click.IntRange(1, 4096), default=64, show_default=True, help="Megabytes of f32 weights per run."
)
@json_option
def command(codec: str, model: Path | None, runs: int, megabytes: int, as_json: bool) -> None:
    """Measure the decode and encode speed of every codec whose name contains CODEC, also as a share of the memory's speed.

    `bench run MODEL` measures a model instead: time to load, time to the first token, private memory, tokens per second.

    \b
    Examples:
      flyweight bench
      flyweight bench q4 --json
      FLYWEIGHT_KERNELS=baseline flyweight bench q8_0
      flyweight bench run model.gguf --runs 3
    """
    if (codec == "run") != (model is not None):
        raise click.UsageError("use `bench run MODEL` to measure a model, or `bench [CODEC]` to measure codecs")
    if model is not None:
        _running(model, runs, as_json)
        return
    from flyweight.bench import codec_cases, headline, machine, run

    about = machine(megabytes=megabytes)
    results = []
    for result in run(codec_cases(codec, megabytes), about["limits"], runs):
        results.append(result)
        if not as_json:
            note(f"{result['name']} …")
    if as_json:
        print_json({**about, "runs": runs, "megabytes": megabytes, "results": results})
        return
    columns = ["", ">bits/w", ">MB/s", ">slowest", ">fastest", ">share of", ""]
    rows = []
    for result in results:
        figures = result["figures"][result["ours"]]
        speeds = (f"{figures[key]:.0f}" for key in ("median", "min", "max"))
        rows.append((result["name"], result["bits_per_weight"], *speeds, f"{result['share_of_limit']:.2f}", result["limit"]))
    print_table(headline(about), columns, rows)


def _running(model: Path, runs: int, as_json: bool) -> None:
    from flyweight.bench.running import FIGURES, PREFILL, Contender, compare, row
    from flyweight.foundation.errors import UnsupportedError
    from flyweight.runtime import open_model
    from flyweight.runtime.model import usable_cores

    with open_model(model, allow_ungated=True) as opened:  # what cannot be run is refused here, not in a process of its own
        opened.tokenizer.encode("")
        if opened.context < PREFILL:
            raise UnsupportedError(f"the context is {opened.context} tokens; measuring needs {PREFILL}", code="E_CONTEXT")
    threads = usable_cores()
    found = compare({model.name: Contender(model)}, runs, threads)
    if as_json:
        results = [row(name, FIGURES[name], model.name, figures) for name, figures in found.items() if figures]
        print_json({"model": str(model), "threads": threads, "runs": runs, "results": results})
        return
    columns = ["", ">median", ">min", ">max", ""]
    rows = [
        (name, *(f"{held[key]:.0f}" for key in ("median", "min", "max")), FIGURES[name])
        for name, figures in found.items()
        for held in figures.values()
    ]
    print_table(f"{model.name}, {threads} threads, {runs} processes", columns, rows)
