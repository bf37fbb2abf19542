"""`flyweight cache`."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import click

from flyweight.cli import Verbs
from flyweight.cli.output import (
    human_bytes,
    json_option,
    note,
    print_json,
    print_table,
    say,
    size_argument,
    ungated_option,
)
from flyweight.cli.paths import LocalPath
from flyweight.cli.progress import progress_bar
from flyweight.tiers.tier_table import TIERS

NAMES = tuple(tier.name for tier in TIERS)
_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}


@click.group(name="cache", cls=Verbs, short_help="Build, list and remove cached tiers, which make npy-dirs start faster.")
def command() -> None:
    """Build, list and remove tiers. A tier is a copy of an npy-dir that is prepared once and makes every later start faster.

    Tiers are stored in your cache, $XDG_CACHE_HOME/flyweight/tiers, and identified by the content of the arrays, so a model
    that is moved or copied keeps them. Together they take at most FLYWEIGHT_CACHE_SIZE (such as 40G; by default 32 GiB, or a
    quarter of the file system if that is less); the least recently used are removed first. Nothing is written into a model's
    directory, except with `build --in-place`.

    \b
    packed     the arrays in a form that runs directly: the smallest, and what `run` builds by itself
    cache      decoded, one bf16 safetensors file that other programs can load too
    finalized  decoded, one f16 .npy file per tensor
    int4 int3  MLX directories of 4 and 3 bits

    \b
    Examples:
      flyweight cache ls
      flyweight cache build model-npy --tier cache --in-place
      flyweight cache verify model-npy
      flyweight cache prune --older-than 30d
    """


_paths = click.argument("paths", nargs=-1, type=LocalPath())


@command.command(name="ls", short_help="List tiers and whether they are usable.")
@_paths
@json_option
def ls(paths: tuple[Path, ...], as_json: bool) -> None:
    """List the tiers in your cache or, with PATHS, all tiers of the npy-dirs at or below PATHS.

    \b
    Examples:
      flyweight cache ls
      flyweight cache ls models --json
    """
    _report(paths, deep=False, as_json=as_json)


@command.command(name="verify", short_help="Check the digests of tiers and arrays.")
@_paths
@json_option
def verify(paths: tuple[Path, ...], as_json: bool) -> None:
    """Read every byte of the tiers in your cache or, with PATHS, of the npy-dirs at or below PATHS, and check the digests.

    Exit 1 if a tier that you built is stale or damaged.

    \b
    Examples:
      flyweight cache verify
      flyweight cache verify model-npy
    """
    if not _report(paths, deep=True, as_json=as_json):
        sys.exit(1)


def _report(paths: tuple[Path, ...], *, deep: bool, as_json: bool) -> bool:
    return _report_models(paths, deep, as_json) if paths else _report_cache(deep, as_json)


def _report_models(paths: tuple[Path, ...], deep: bool, as_json: bool) -> bool:
    from flyweight.tiers.upkeep import listing, models_below

    found = [listing(root, deep=deep) for root in models_below(paths)]
    if as_json:
        print_json([entry.as_json() for entry in found])
    else:
        rows = [
            (entry.path, state.tier, "beside the arrays" if state.in_place else "cache", state.standing,
             human_bytes(state.nbytes) if state.nbytes else "", state.reason)
            for entry in found
            for state in entry.states
            if state.standing != "absent"
        ]  # fmt: skip
        columns = ["model", "tier", "where", "", ">size", ""]
        if rows:
            print_table("", columns, rows)
        for entry in found:
            if entry.unfinished:
                note(f"{entry.path}: {human_bytes(entry.unfinished)} of interrupted builds")
        if not rows:
            click.echo(f"{len(found)} npy-dirs, no tiers")
    return not any(state.standing in ("stale", "damaged") for entry in found for state in entry.states)


def _report_cache(deep: bool, as_json: bool) -> bool:
    from flyweight.tiers.keeping import cache_limit
    from flyweight.tiers.upkeep import entries

    found = entries(deep=deep)
    total, limit = sum(entry.item.nbytes for entry in found), cache_limit()
    if as_json:
        print_json({"entries": [entry.as_json() for entry in found], "nbytes": total, "limit": limit})
    else:
        columns = ["model", "tier", "", ">size", "last used", ""]
        when = [time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.item.used)) for entry in found]
        rows = [
            (entry.path, entry.tier, entry.standing, human_bytes(entry.item.nbytes), used, entry.reason)
            for entry, used in zip(found, when, strict=True)
        ]
        if rows:
            print_table("", columns, rows)
        click.echo(f"{human_bytes(total)} of at most {human_bytes(limit)}" if rows else "no tiers in your cache")
    return not any(entry.standing in ("stale", "damaged") for entry in found)


@command.command(name="build", short_help="Build tiers now instead of at the first start.")
@click.argument("model", type=LocalPath())
@click.option(
    "--tier", "tiers", multiple=True, type=click.Choice(NAMES), help="Which tier; may be repeated.  [default: packed]"
)
@click.option(
    "--in-place", is_flag=True, help="Build beside the arrays, where other programs find it, instead of in your cache."
)
@click.option("--force", is_flag=True, help="Build again even if the tier is ready.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Worker threads.  [default: one per core]")
@click.option("--max-ram", callback=size_argument, metavar="SIZE", help="Upper bound on memory.")
@ungated_option
@click.option("--quiet", "-q", is_flag=True, help="Print no progress.")
@json_option
def build(
    model: Path, tiers: tuple[str, ...], in_place: bool, force: bool, jobs: int | None, max_ram: int | None,
    allow_ungated: bool, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Build tiers of the npy-dir MODEL. An interrupted build continues where it stopped.

    \b
    Examples:
      flyweight cache build model-npy
      flyweight cache build model-npy --tier cache --tier finalized --in-place
    """
    from flyweight.measuring import measure
    from flyweight.tiers import build as build_tier

    made = []
    for tier in dict.fromkeys(tiers or NAMES[:1]):
        with progress_bar(tier, quiet=quiet or as_json) as advance:
            made.append(
                build_tier(
                    model, tier, in_place=in_place, force=force, jobs=jobs, max_ram=max_ram, allow_ungated=allow_ungated,
                    progress=advance, tell=note, measure=measure,
                )
            )  # fmt: skip
        if not as_json:
            done = "was ready" if made[-1].already else f"built in {made[-1].seconds:.1f} s"
            click.echo(f"{tier}: {done}, {human_bytes(made[-1].nbytes)}: {made[-1].path}")
    if as_json:
        print_json([report._asdict() for report in made])


def _age(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float:
    """Seconds from `12h`, `30d` or `2w`."""
    if value is None:
        return 0.0
    said = re.fullmatch(r"(\d{1,6})([hdw])", value.strip().lower())
    if said is None or not int(said[1]):
        raise click.BadParameter(f"{value!r} is not an age; write 12h, 30d or 2w")
    return float(int(said[1]) * _SECONDS[said[2]])


@command.command(name="prune", short_help="Remove tiers.")
@_paths
@click.option("--tier", "tiers", multiple=True, type=click.Choice(NAMES), help="Which tier; may be repeated.  [default: all]")
@click.option("--all", "everything", is_flag=True, help="Remove everything in your cache.")
@click.option(
    "--unusable", is_flag=True, help="Remove only stale and damaged tiers, tiers whose model is gone, and interrupted builds."
)
@click.option(
    "--older-than", callback=_age, metavar="AGE", help="Remove only tiers that were not used for this long: 12h, 30d, 2w."
)
@click.option("--foreign", is_flag=True, help="With PATHS: also remove tiers beside the arrays that you did not build.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed; remove nothing.")
@json_option
def prune(
    paths: tuple[Path, ...], tiers: tuple[str, ...], everything: bool, unusable: bool, older_than: float, foreign: bool,
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Remove tiers from your cache or, with PATHS, all tiers of the npy-dirs at or below PATHS.

    Arrays are never removed, so every tier can be built again. Tiers in use by a process stay.

    \b
    Examples:
      flyweight cache prune --unusable
      flyweight cache prune --older-than 30d --dry-run
      flyweight cache prune model-npy --tier finalized
      flyweight cache prune downloaded-npy --foreign
    """
    from flyweight.tiers.upkeep import models_below, prune, prune_cache

    gone: list[dict[str, object]] = []
    freed = 0

    def told(path: str, nbytes: int) -> None:
        gone.append({"path": path, "nbytes": nbytes})

    if paths and (everything or older_than):
        raise click.UsageError("--all and --older-than are for your cache and cannot be used with PATHS")
    if not paths and foreign:
        raise click.UsageError("--foreign needs PATHS: it removes tiers beside the arrays of these models")
    if not paths and not (everything or unusable or older_than):
        raise click.UsageError("nothing to remove is given: use PATHS, --unusable, --older-than or --all")
    for root in models_below(paths):
        freed += prune(root, tiers=tiers or NAMES, only_unusable=unusable, foreign=foreign, dry_run=dry_run, told=told)
    if not paths:
        freed = prune_cache(tiers=tiers or NAMES, only_unusable=unusable, unused_for=older_than, dry_run=dry_run, told=told)
    if as_json:
        print_json({"freed": freed, "removed": gone, "dry_run": dry_run})
    else:
        for item in gone:
            say(str(item["path"]))
        click.echo(f"{human_bytes(freed)} {'would be ' if dry_run else ''}freed")
