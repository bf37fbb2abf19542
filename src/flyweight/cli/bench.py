"""`flyweight bench`."""

from __future__ import annotations

import click

from flyweight.cli.output import json_option, note, print_json, print_table


@click.command(name="bench", short_help="Measure every codec beside the machine's limits.")
@click.argument("codec", default="")
@click.option("--runs", type=click.IntRange(1, 1000), default=9, show_default=True, help="Runs per figure; the median counts.")
@click.option("--megabytes", type=click.IntRange(1, 4096), default=64, show_default=True, help="f32 weights per run.")
@json_option
def command(codec: str, runs: int, megabytes: int, as_json: bool) -> None:
    """Decode and encode speed of every codec whose name contains CODEC, as a share of what memory allows in the same run.

    \b
    Examples:
      flyweight bench
      flyweight bench q4 --json
      FLYWEIGHT_KERNELS=baseline flyweight bench q8_0
    """
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
    columns = [
        ("", "left"),
        ("bits/w", "right"),
        ("MB/s", "right"),
        ("slowest", "right"),
        ("fastest", "right"),
        ("share of", "right"),
        ("", "left"),
    ]
    rows = []
    for result in results:
        figures = result["figures"][result["ours"]]
        speeds = (f"{figures[key]:.0f}" for key in ("median", "min", "max"))
        rows.append((result["name"], result["bits_per_weight"], *speeds, f"{result['share_of_limit']:.2f}", result["limit"]))
    print_table(headline(about), columns, rows)
