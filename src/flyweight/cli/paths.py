"""Paths on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class LocalPath(click.Path):
    """A path of this machine; a URL is refused by name, before it becomes one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from flyweight.sources import local_path  # which `--help` does not need

        return super().convert(local_path(value), param, ctx)


delta_option = click.option(
    "--delta", "deltas", type=LocalPath(), multiple=True, metavar="FILE",
    help="A .wdelta file or LoRA adapter to apply to the model; may be repeated, in order.",
)  # fmt: skip
