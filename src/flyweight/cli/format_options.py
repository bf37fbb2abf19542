"""Options of `convert` that belong to one format (`containers.OPTIONS`): parsed here, and shown under the format's title."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from flyweight.cli.paths import LocalPath
from flyweight.containers import OPTIONS
from flyweight.containers.options import Extras, Option


class _Value(click.ParamType[Any]):
    """A value that a format reads from its text."""

    def __init__(self, option: Option) -> None:
        self.option, self.name = option, option.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.option.read(value)
        except ValueError as error:
            return self.fail(str(error), param, ctx)


class _PathOrWord(LocalPath):
    """A path, or what an option has beside paths."""

    def __init__(self, option: Option) -> None:
        super().__init__(exists=True)
        self.option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        is_word = isinstance(value, str) and self.option.words(value)
        return value if is_word else super().convert(value, param, ctx)


def _parameter(option: Option) -> click.Option:
    kind = _PathOrWord(option) if option.read is Path else _Value(option)
    return click.Option([option.flag, option.name], type=kind, metavar=option.metavar, help=option.help)


class FormatOptions(click.Command):
    """A command with the options of every format."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._groups = [(g, [_parameter(o) for o in (*g.options, *([g.add] if g.add else ()))]) for g in OPTIONS]
        self.params += [parameter for _, parameters in self._groups for parameter in parameters]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [parameter for _, parameters in self._groups for parameter in parameters]
        records = [p.get_help_record(ctx) for p in self.get_params(ctx) if isinstance(p, click.Option) and p not in own]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record])
        for group, parameters in self._groups:
            rows = [("--quant NAME", f"Also {', '.join(group.quants)}.")] if group.quants else []
            with formatter.section(f"Options of {group.title}"):
                formatter.write_dl(rows + [record for p in parameters if (record := p.get_help_record(ctx))])


def extras_of(values: Mapping[str, Any]) -> Extras | None:
    """What is asked of one format alone; UsageError if it is asked of two."""
    asked = [
        (group, given)
        for group in OPTIONS
        if group.extras and (given := {o.name: values[o.name] for o in group.options if values[o.name] is not None})
    ]
    if len(asked) > 1:
        raise click.UsageError(f"options of {asked[0][0].title} and of {asked[1][0].title} cannot be used together")
    return next((group.extras(**given) for group, given in asked if group.extras), None)


def added_form(ctx: click.Context, allowed: Collection[str]) -> str | None:
    """The form to add to SOURCE in place, with which only the `allowed` parameters go: the rest is as it is there."""
    option = next((group.add for group in OPTIONS if group.add and ctx.params[group.add.name] is not None), None)
    if option is None:
        return None
    require_only(ctx, option.flag, {*allowed, option.name})
    return str(ctx.params[option.name])


def require_only(ctx: click.Context, flag: str, allowed: Collection[str]) -> None:
    """UsageError if a parameter was given that does not go with a flag."""
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if given and parameter.name not in allowed:
            raise click.UsageError(f"{flag} and {parameter.get_error_hint(ctx)} cannot be used together")
