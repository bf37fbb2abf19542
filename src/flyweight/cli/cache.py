"""`flyweight cache`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flyweight.cli.output import human_bytes, json_option, note, print_json, print_table, progress_bar, size_argument
from flyweight.cli.run import ungated_option

NAMES = ("packed", "int4", "int3", "cache", "finalized")


@click.group(name="cache", short_help="Keep the tiers of npy-dirs: built once, mapped at every start.")
def command() -> None:
    """The tiers of npy-dirs: what is built once beside the arrays and mapped at every later start.

    \b
    packed     the arrays as the products take them: the smallest, and what `run` builds by itself
    cache      decoded, one bf16 safetensors file that other programs load too
    finalized  decoded, an f16 .npy file for each tensor
    int4 int3  MLX directories of 4 and 3 bits

    \b
    Examples:
      flyweight cache ls
      flyweight cache build model-npy --tier cache
      flyweight cache verify model-npy
      flyweight cache prune model-npy --unusable
    """


_paths = click.argument("paths", nargs=-1, type=click.Path(path_type=Path))


@command.command(name="ls", short_help="List tiers and whether they may be used.")
@_paths
@json_option
def ls(paths: tuple[Path, ...], as_json: bool) -> None:
    """The tiers of the npy-dirs at PATHS, or in them.  [default: here]

    \b
    Examples:
      flyweight cache ls
      flyweight cache ls models --json
    """
    _report(paths, deep=False, as_json=as_json)


@command.command(name="verify", short_help="Read every byte of tiers and arrays.")
@_paths
@json_option
def verify(paths: tuple[Path, ...], as_json: bool) -> None:
    """Check the tiers of the npy-dirs at PATHS, or in them, to the last byte. Exit 1 if one that was built does not hold.

    \b
    Examples:
      flyweight cache verify model-npy
    """
    if not _report(paths, deep=True, as_json=as_json):
        sys.exit(1)


def _report(paths: tuple[Path, ...], *, deep: bool, as_json: bool) -> bool:
    from flyweight.tiers.upkeep import listing, models_below

    found = [listing(root, deep=deep) for root in models_below(paths or (Path(),))]
    if as_json:
        print_json([entry.as_json() for entry in found])
    else:
        rows = [
            (entry.path, state.tier, state.standing, human_bytes(state.nbytes) if state.nbytes else "", state.reason)
            for entry in found
            for state in entry.states
            if state.standing != "absent"
        ]
        columns = [("model", "left"), ("tier", "left"), ("", "left"), ("size", "right"), ("", "left")]
        print_table("", columns, rows)
        for entry in found:
            if entry.unfinished:
                note(f"{entry.path}: {human_bytes(entry.unfinished)} of builds that were stopped")
        if not rows:
            click.echo(f"{len(found)} npy-dirs, no tiers")
    return not any(state.standing in ("stale", "damaged") for entry in found for state in entry.states)


@command.command(name="build", short_help="Build tiers now instead of at the first start.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--tier", "tiers", multiple=True, type=click.Choice(NAMES), help="Which; may be repeated.  [default: packed]")
@click.option("--force", is_flag=True, help="Also if it is ready, or was not built here.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Workers.  [default: as many as cores]")
@click.option("--max-ram", callback=size_argument, metavar="SIZE", help="Bound memory.")
@ungated_option
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@json_option
def build(
    model: Path, tiers: tuple[str, ...], force: bool, jobs: int | None, max_ram: int | None, allow_ungated: bool, quiet: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Build tiers of the npy-dir MODEL. A build that was stopped goes on where it was.

    \b
    Examples:
      flyweight cache build model-npy
      flyweight cache build model-npy --tier cache --tier finalized
    """
    from flyweight.tiers import build as build_tier

    made = []
    for tier in dict.fromkeys(tiers or ("packed",)):
        with progress_bar(tier, quiet=quiet or as_json) as advance:
            made.append(
                build_tier(
                    model, tier, force=force, jobs=jobs, max_ram=max_ram, allow_ungated=allow_ungated, progress=advance,
                    tell=note,
                )
            )  # fmt: skip
        if not as_json:
            done = "was ready" if made[-1].already else f"built in {made[-1].seconds:.1f} s"
            click.echo(f"{tier}: {done}, {human_bytes(made[-1].nbytes)}")
    if as_json:
        print_json([report.as_json() for report in made])


@command.command(name="prune", short_help="Remove tiers.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--tier", "tiers", multiple=True, type=click.Choice(NAMES), help="Which; may be repeated.  [default: all]")
@click.option("--unusable", is_flag=True, help="Only those that no longer hold, and builds that were stopped.")
@click.option("--foreign", is_flag=True, help="Also those that were not built here.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
def prune(paths: tuple[Path, ...], tiers: tuple[str, ...], unusable: bool, foreign: bool, dry_run: bool, as_json: bool) -> None:
    """Remove tiers of the npy-dirs at PATHS, or in them. Their arrays stay, so every tier can be built again.

    \b
    Examples:
      flyweight cache prune models --unusable
      flyweight cache prune model-npy --tier finalized --dry-run
    """
    from flyweight.tiers.upkeep import models_below, prune

    gone: list[dict[str, object]] = []
    freed = 0
    for root in models_below(paths):
        freed += prune(
            root, tiers=tiers or NAMES, only_unusable=unusable, foreign=foreign, dry_run=dry_run,
            told=lambda path, nbytes: gone.append({"path": path, "nbytes": nbytes}),
        )  # fmt: skip
    if as_json:
        print_json({"freed": freed, "removed": gone, "dry_run": dry_run})
    else:
        for item in gone:
            click.echo(str(item["path"]))
        click.echo(f"{human_bytes(freed)} {'would be' if dry_run else 'are'} free")
