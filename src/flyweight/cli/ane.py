"""`flyweight ane`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flyweight.cli import Verbs, ane_records
from flyweight.cli.output import human_bytes, json_option, print_json, print_table, say
from flyweight.cli.paths import LocalPath, delta_option
from flyweight.cli.progress import progress_bar

if TYPE_CHECKING:
    from flyweight.targets.ane.facts.engine import Engine
    from flyweight.targets.ane.facts.fact import Fact
    from flyweight.targets.ane.form_choice import FormChoice
    from flyweight.targets.ane.weight_plan import Plan
    from flyweight.targets.ane.weight_samples import MeasuredForms
    from flyweight.targets.ane.weight_use import WeightUse

PROFILES = ("seed", "disputed")


@click.group(name="ane", cls=Verbs, short_help="Plan what the Apple Neural Engine does with a model's weights.")
def command() -> None:
    """Say what the Apple Neural Engine does with weights: stream them compressed, fold them to dense fp16, or refuse them.

    Apple documents none of this. The answers rest on facts that others measured, traced or wrote down. Each has its source;
    what nobody knows is answered with "cannot tell". Where sources contradict one another, --profile seed follows the guide
    and --profile disputed those who contradict it.

    \b
    Examples:
      flyweight ane plan model.mlpackage --target M1
      flyweight ane plan model-hf --target M2 --form auto
      flyweight ane compare model-hf --form int8
      flyweight ane targets
      flyweight ane facts --target M1
      flyweight ane lut sigmoid
      flyweight ane record model-hf model.embed_tokens.weight --target M1
    """


for each in ane_records.commands:
    command.add_command(each)


_profile = click.option(
    "--profile", type=click.Choice(PROFILES), default="seed", show_default=True, help="Whose reading of disputed facts to take."
)
_form = click.option(
    "--form", metavar="FORM",
    help="Plan as if the weights had this form: auto, fp16, int8, lut4, lut4-g16, int4-b32, sparse …  [default: as stored]",
)  # fmt: skip
_max_error = click.option(
    "--max-error", type=click.FloatRange(0, 1, min_open=True, max_open=True), metavar="ERROR",
    help="For --form auto: the relative RMS error a weight may have.  [default: 0.05]",
)  # fmt: skip
_tokens = click.option(
    "--tokens",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Tokens, or pixels, that a pass over the weights serves.",
)
_all = click.option("--all", "each", is_flag=True, help="A line for every weight; without it, layers that are alike share one.")


@command.command(name="plan", short_help="Say for every weight whether it streams, and what to change.")
@click.argument("model", type=LocalPath())
@click.option(
    "--target", metavar="NAME", required=True, help="A chip or a compiler target: M1, M2 Pro, H17s; see `ane targets`."
)
@_profile
@_form
@_max_error
@_tokens
@_all
@click.option("--facts", is_flag=True, help="List the facts that the plan rests on.")
@click.option("--svg", type=LocalPath(dir_okay=False), metavar="FILE", help="Draw streamed and folded bytes per layer.")
@click.option("--html", type=LocalPath(dir_okay=False), metavar="FILE", help="The same as a page, with the reasons.")
@delta_option
@json_option
def plan(
    model: Path, target: str, profile: str, form: str | None, max_error: float | None, tokens: int, each: bool, facts: bool,
    svg: Path | None, html: Path | None, deltas: tuple[Path, ...], as_json: bool,
) -> None:  # fmt: skip
    """Say what TARGET does with every weight of MODEL: which kernel format it is, whether it streams, and by which gate not.

    MODEL is a Core ML package, whose graph says how each weight is used, or a model of any format, whose matrices are taken for
    linear layers. Weights are read only for --form auto and --form sparse. Times are of the weights and their products alone.

    \b
    Examples:
      flyweight ane plan model.mlpackage --target M1
      flyweight ane plan model-hf --target M1 --form lut4
      flyweight ane plan model-hf --target M2 --form auto --max-error 0.05 --json
      flyweight ane plan model.gguf --target H18 --profile disputed --facts
      flyweight ane plan model-hf --target M1 --form auto --html plan.html
    """
    from flyweight.targets.ane import plan_picture
    from flyweight.writing import write_new

    engine = _engine(target, profile)
    planned, chosen = _planned(model, [engine], form, max_error, tokens, deltas, quiet=as_json)[0]
    for path, draw in ((svg, plan_picture.svg), (html, plan_picture.html)):
        if path is not None:
            write_new(path, [draw(planned, model.name, each=each).encode()])
    if as_json:
        print_json({"model": str(model), **planned.as_json(), **_forms_json(chosen)})
        return
    _print_plan(model, planned, chosen, each=each, facts=facts)


@command.command(name="compare", short_help="Show the plans of several targets side by side.")
@click.argument("model", type=LocalPath())
@click.option("--target", "targets", metavar="NAME", multiple=True, help="May be repeated.  [default: M1 to M5]")
@_profile
@_form
@_max_error
@_tokens
@_all
@delta_option
@json_option
def compare(
    model: Path, targets: tuple[str, ...], profile: str, form: str | None, max_error: float | None, tokens: int, each: bool,
    deltas: tuple[Path, ...], as_json: bool,
) -> None:  # fmt: skip
    """Show side by side what several targets do with the weights of MODEL.

    \b
    Examples:
      flyweight ane compare model-hf --form int8
      flyweight ane compare model.mlpackage --target M1 --target M2 --target H18
      flyweight ane compare model-hf --form auto --json
    """
    from flyweight.targets.ane.facts.engine_targets import M_CHIPS

    names = targets or M_CHIPS
    engines = [_engine(name, profile) for name in names]
    results = _planned(model, engines, form, max_error, tokens, deltas, quiet=as_json)
    if as_json:
        print_json({"model": str(model), "plans": [planned.as_json() | _forms_json(chosen) for planned, chosen in results]})
        return
    _print_comparison(model, names, results, each=each)


@command.command(name="targets", short_help="List the compiler's targets and the chips they are in.")
@json_option
def targets(as_json: bool) -> None:
    """List the targets that the compiler knows, their generation, and the chips that have them.

    A target can be named by itself, by a chip, or by a generation, which stands for its first target. Generations are named by
    the compiler: A13 is the M1's, whatever the chips of phones are called.

    \b
    Examples:
      flyweight ane targets
      flyweight ane targets --json
    """
    from flyweight.targets.ane.facts.engine_targets import DESCRIPTOR_VERSION, ENGINES, TARGETS, products_of

    if as_json:
        rows = [
            {
                "name": target.name,
                "generation": target.generation.value,
                "chips": list(products_of(target)),
                "engines": ENGINES.of(target).as_json(),
                "descriptor_version": DESCRIPTOR_VERSION.of(target).as_json(),
            }
            for target in TARGETS.values()
        ]
        print_json({"targets": rows})
        return
    print_table(
        "",
        ["target", "generation", "chips", ">engines", ">descriptor"],
        [
            (
                target.name,
                target.generation.value,
                ", ".join(products_of(target)),
                _both(ENGINES.of(target)),
                _both(DESCRIPTOR_VERSION.of(target)),
            )
            for target in TARGETS.values()
        ],
    )


@command.command(name="facts", short_help="List what is known of a target, with sources.")
@click.option("--target", metavar="NAME", required=True, help="A chip or a compiler target.")
@_profile
@json_option
def facts(target: str, profile: str, as_json: bool) -> None:
    """List what is known of TARGET: every fact's value, how it is known, who says so, and who says otherwise.

    \b
    Examples:
      flyweight ane facts --target M1
      flyweight ane facts --target H18 --profile disputed --json
    """
    engine = _engine(target, profile)
    found = list(engine.facts())
    if as_json:
        print_json({"target": engine.target.name, "profile": profile, "facts": [fact.as_json() for fact in found]})
        return
    _print_facts(found)


# What is planned ------------------------------------------------------------------------------------


def _engine(target: str, profile: str) -> Engine:
    from flyweight.targets.ane.facts.engine import Engine
    from flyweight.targets.ane.facts.engine_targets import target_named
    from flyweight.targets.ane.facts.fact import Profile

    return Engine(target_named(target), Profile(profile))


def _planned(
    model: Path, engines: Sequence[Engine], form: str | None, max_error: float | None, tokens: int, deltas: tuple[Path, ...],
    *, quiet: bool,
) -> list[tuple[Plan, dict[str, FormChoice]]]:  # fmt: skip
    """The plan of each engine, and the forms chosen for it."""
    from flyweight.checkpoint import open_checkpoint
    from flyweight.targets.ane.form_choice import ERROR_BUDGET, choose_forms, uses_in_form
    from flyweight.targets.ane.model_uses import model_uses
    from flyweight.targets.ane.named_forms import AUTO, codec_of_form
    from flyweight.targets.ane.weight_plan import plan_weights

    if max_error is not None and form != AUTO:
        raise click.UsageError("--max-error goes with --form auto")
    if form not in (None, AUTO):
        codec_of_form(form or "")  # refused before the model is read
    results: list[tuple[Plan, dict[str, FormChoice]]] = []
    measured: dict[str, MeasuredForms] = {}
    with open_checkpoint(model, deltas=deltas) as checkpoint:
        uses: list[WeightUse] = list(model_uses(checkpoint, tokens))
        for engine in engines:
            chosen: dict[str, FormChoice] = {}
            if form == AUTO:
                with progress_bar(f"measuring forms for {engine.target}", quiet=quiet) as advance:
                    limit = max_error or ERROR_BUDGET
                    chosen = choose_forms(checkpoint, engine.target, engine.profile, limit, advance, measured)
            wanted = uses if form is None else list(uses_in_form(checkpoint, uses, form, chosen))
            results.append((plan_weights(wanted, engine), chosen))
    return results


def _forms_json(chosen: dict[str, FormChoice]) -> dict[str, Any]:
    return {"forms": {name: choice.as_json() for name, choice in chosen.items()}} if chosen else {}


# Printing -------------------------------------------------------------------------------------------


def _print_plan(model: Path, planned: Plan, chosen: dict[str, FormChoice], *, each: bool, facts: bool) -> None:
    from flyweight.targets.ane.plan_lines import differences, facts_of, findings, plan_lines

    rows = []
    for line in plan_lines(planned, each=each):
        first = line.first
        number = first.kernel_format.value if first.kernel_format else None
        rows.append(
            (
                line.name + (f" ×{line.count}" if line.count > 1 else ""),
                "×".join(map(str, first.use.spec.shape)),
                str(first.form) if first.form else str(first.use.codec),
                "" if number is None else number,
                first.decision.outcome.value,
                "" if line.moved is None else human_bytes(line.moved),
                "" if line.moved is None else f"{line.moved / max(line.dense, 1):.3f}",
                "?" if line.pieces is None else line.pieces,
                _duration(line.seconds),
                *(
                    [_error([chosen[weight.use.name] for weight in line.weights if weight.use.name in chosen])]
                    if chosen
                    else []
                ),
            )
        )
    columns = [
        "weight",
        ">shape",
        "form",
        ">format",
        "",
        ">moved",
        ">of fp16",
        ">pieces",
        ">time",
        *([">error"] if chosen else []),
    ]
    print_table(f"{model} on {planned.engine}", columns, rows)
    for found in findings(planned):
        gate = (
            f" by {found.gate.about} [{found.gate.provenance.value}: {found.gate.source}]"
            if found.gate and found.gate.known
            else ""
        )
        advice = f". {found.change[0].upper()}{found.change[1:]}" if found.change else ""
        say(f"{found.tensors} × {found.outcome.value}{gate}: {found.reason}{advice}.")
    for note, count in Counter(note.text for weight in planned.weights for note in weight.notes).items():
        say(f"{count} × {note}.")
    other = next(name for name in PROFILES if name != planned.engine.profile.value)
    for difference in differences(planned):
        why = f" ({difference.fact.about})" if difference.fact else ""
        say(f"{difference.tensors} × {difference.outcome.value} here, {difference.other.value} with --profile {other}{why}.")
    _print_totals(planned)
    rests_on = facts_of(planned)
    kinds = Counter(fact.provenance.value for fact in rests_on)
    say(f"rests on {len(rests_on)} facts: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}")
    if facts:
        _print_facts(rests_on)


def _print_totals(planned: Plan) -> None:
    rows = [
        (outcome.value, total.tensors, f"{total.weights:,}", human_bytes(total.dense), human_bytes(total.moved))
        for outcome, total in planned.totals.items()
    ]
    print_table("", ["", ">tensors", ">weights", ">as fp16", ">moved"], rows)
    left_out = f"; {planned.left_out} weights are left out" if planned.left_out else ""
    if not planned.moved:
        say(f"nothing crosses the stream{left_out}")
        return
    time = "cannot tell the time: a rate is unknown" if planned.seconds is None else f"about {_duration(planned.seconds)}"
    share = planned.moved / planned.dense
    say(f"{human_bytes(planned.moved)} cross the stream in a pass, {share:.3f} of fp16; {time}{left_out}")
    if planned.segment_bytes is not None:
        say(f"compiled, the weights take about {human_bytes(planned.segment_bytes)}")
    if (faster := planned.speed_up) and share < 1:
        least = f"{faster.least:.2f} to " if faster.least else "at most "
        say(f"where weights are the limit, {least}{faster.most:.2f} times as fast as fp16")


def _print_comparison(
    model: Path, names: Sequence[str], results: Sequence[tuple[Plan, dict[str, FormChoice]]], *, each: bool
) -> None:
    from flyweight.targets.ane.gates import Outcome
    from flyweight.targets.ane.plan_lines import plan_lines

    plans = [planned for planned, _ in results]
    titles = {weight.use.name: line.name for line in plan_lines(plans[0], each=each) for weight in line.weights}
    shown: dict[tuple[str, ...], None] = {}
    for weights in zip(*(planned.weights for planned in plans), strict=True):
        name = weights[0].use.name
        forms = [f"{chosen[name].form} " if name in chosen else "" for _, chosen in results]
        cells = [f"{form}{weight.decision.outcome.value}" for form, weight in zip(forms, weights, strict=True)]
        shown[(titles[name], *cells)] = None
    print_table(str(model), ["weight", *names], list(shown))
    figures: list[tuple[str, Callable[[Plan], str]]] = [
        ("moved", lambda planned: human_bytes(planned.moved)),
        ("of fp16", lambda planned: f"{planned.moved / max(planned.dense, 1):.3f}"),
        ("time", lambda planned: _duration(planned.seconds) or "cannot tell"),
        *(
            (kind.value, lambda planned, kind=kind: str(planned.totals[kind].tensors) if kind in planned.totals else "")
            for kind in Outcome
            if any(kind in planned.totals for planned in plans)
        ),
    ]
    print_table("", ["", *(f">{name}" for name in names)], [(title, *map(of, plans)) for title, of in figures])


def _print_facts(found: Sequence[Fact[Any]]) -> None:
    rows = [
        (
            fact.about,
            _shown(fact.value),
            fact.provenance.value,
            fact.source,
            "" if fact.counter is None else f"{_shown(fact.counter.value)}: {fact.counter.source}",
            fact.note,
        )
        for fact in found
    ]
    print_table("", ["fact", "value", "provenance", "source", "but", "note"], rows)


def _shown(value: object) -> str:
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _both(fact: Fact[Any]) -> str:
    return "?" if fact.value is None else f"{fact.value}" if fact.counter is None else f"{fact.value} or {fact.counter.value}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _error(chosen: Sequence[FormChoice]) -> str:
    return f"{max(choice.error for choice in chosen):.3f}" if chosen else ""
