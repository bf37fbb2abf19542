"""The tables of docs/formats/ane.md: what the facts of `targets/ane` are, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from flyweight.targets.ane.facts import codegen, hal, rates
from flyweight.targets.ane.facts.engine import Engine
from flyweight.targets.ane.facts.engine_targets import (
    CLOCK,
    CPU_SUBTYPE,
    DESCRIPTOR_VERSION,
    ENGINES,
    M_CHIPS,
    TARGETS,
    Generation,
    PerTarget,
    Target,
    products_of,
    target_named,
)
from flyweight.targets.ane.facts.fact import SOURCES, Fact, Profile, Provenance
from flyweight.targets.ane.facts.kernel_format import KERNEL_FORMATS
from flyweight.targets.ane.gates import Outcome, decide
from flyweight.targets.ane.named_forms import codec_of_form, counts_zeros
from flyweight.targets.ane.weight_use import WeightUse
from pages import ROOT
from pages.markdown import between, table

PAGE = "docs/formats/ane.md"
LETTERS = {
    Provenance.SEED: "s",
    Provenance.MEASURED: "m",
    Provenance.INFERRED: "i",
    Provenance.DISPUTED: "d",
    Provenance.UNKNOWN: "",
}
FORMS = ("fp16", "int8", "uint8", "int8-b32", "int4", "lut1", "lut2", "lut3", "lut4", "lut6", "lut8", "lut4-g16", "lut4-v2",
         "sparse", "sparse-lut4", "sparse-int8", "fp8")  # fmt: skip
SHOWN = {Outcome.CANNOT_TELL: "?"}


def cell(fact: Fact[Any]) -> str:
    """The value, and a letter for how it is known."""
    if fact.value is None:
        return "?"
    mark = LETTERS[fact.provenance]
    other = "" if fact.counter is None else f" or {value(fact.counter.value)}"
    return f"{value(fact.value)}{other} {mark}"


def value(found: object) -> str:
    if isinstance(found, bool):
        return "yes" if found else "no"
    return f"{found:g}" if isinstance(found, float) else str(found)


def sources() -> str:
    return table(("source", ""), SOURCES.items())


def targets() -> str:
    def row(target: Target) -> list[str]:
        facts = (fact.of(target) for fact in (ENGINES, CPU_SUBTYPE, DESCRIPTOR_VERSION, CLOCK))
        return [target.name, target.generation.value, ", ".join(products_of(target)), *map(cell, facts)]

    heading = ("target", "generation", "chips", "engines (0x238)", "cpusubtype", "descriptor", "GHz")
    return table(heading, map(row, TARGETS.values()))


def kernel_formats() -> str:
    rows = []
    for number, kind in KERNEL_FORMATS.items():
        palette = [cell(kind.palette_format), cell(kind.lut_bytes(1))] if kind.is_palette else ["–", "–"]
        rows.append([str(number), cell(kind.underlying), cell(kind.bit_depth), *palette, cell(kind.typeno)])
    return table(("format", "type", "bit depth", "palette format", "bytes of a codebook", "type number"), rows)


def by_generation(tables: Iterable[PerTarget[Any]]) -> str:
    """A row for each table. Where targets of a generation differ, all of their cells."""

    def cells(facts: PerTarget[Any], generation: Generation) -> str:
        own = [target for target in TARGETS.values() if target.generation is generation]
        found = {target.name: cell(facts.of(target)) for target in own}
        if len(set(found.values())) == 1:
            return next(iter(found.values()))
        return ", ".join(f"{name}: {text}" for name, text in found.items() if text != "?")

    rows = [[facts.title, *(cells(facts, generation) for generation in Generation)] for facts in tables]
    return table(("", *(generation.value for generation in Generation)), rows)


def gates() -> str:
    return by_generation(hal.GATES.values())


def limits() -> str:
    return by_generation([*hal.LIMITS.values(), hal.ACTIVATION_LUT_BYTES, hal.PALETTE_LUT_BYTES])


def encoders() -> str:
    others = (codegen.FP8_ENCODER, codegen.BLOCKWISE_TAKEN, codegen.INT8_MOVES_LESS)
    return by_generation([*codegen.CAPABILITIES.values(), *codegen.PALETTE_WIDTHS.values(), *others])


def speeds() -> str:
    tables: tuple[PerTarget[Any], ...] = (
        rates.COMPUTE,
        rates.FITTED_BANDWIDTH,
        rates.DISPATCH,
        rates.WEIGHT_STREAM,
        rates.DENSE_STREAM,
    )
    chips = [*(target_named(chip) for chip in M_CHIPS), TARGETS["H18"]]
    rows = [[facts.title, *(cell(facts.of(target)) for target in chips)] for facts in tables]
    return table(("", *(target.name for target in chips)), rows)


def outcomes() -> str:
    """What becomes of a matrix in each form."""
    columns = [TARGETS["H11"], *(target_named(chip) for chip in M_CHIPS), TARGETS["H18"]]
    rows = [[form, *(_outcome(form, target) for target in columns)] for form in FORMS]
    return table(("form", *(f"{_chip(target)}" for target in columns)), rows)


def _chip(target: Target) -> str:
    return (products_of(target) or (target.name,))[0]


def _outcome(form: str, target: Target) -> str:
    codec = codec_of_form(form)
    if counts_zeros(codec):
        codec = codec.with_params(stored=1 << 11)
    use = WeightUse("", TensorSpec((64, 64), DType.F16), codec, is_symmetric=False)
    found = [decide(use, use.form, Engine(target, profile)).outcome for profile in Profile]
    texts = [SHOWN.get(outcome, outcome.value) for outcome in found]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]}; disputed: {texts[1]}"


def disputes() -> str:
    """Every disputed fact, targets with the same dispute in one row."""
    shared: dict[tuple[str, str, str, str, str, str], list[str]] = {}
    for target in TARGETS.values():
        for fact in Engine(target).facts():
            if fact.counter is not None:
                about = fact.about.removesuffix(f" of {target.name}")
                reading = (value(fact.value), fact.source, value(fact.counter.value), fact.counter.source, fact.counter.note)
                shared.setdefault((about, *reading), []).append(target.name)
    rows = [
        [about, _names(names), f"{first}: {source}", f"{second}: {other}{f', {note}' if note else ''}"]
        for (about, first, source, second, other, note), names in shared.items()
    ]
    rows += [
        [fact.about, "all", f"{value(fact.value)}: {fact.source}", f"{value(fact.counter.value)}: {fact.counter.source}"]
        for kind in KERNEL_FORMATS.values()
        for fact in (kind.underlying,)
        if fact.counter
    ]
    return table(("about", "targets", "profile `seed`", "profile `disputed`"), rows)


def _names(names: list[str]) -> str:
    return "all" if len(names) == len(TARGETS) else ", ".join(names)


TABLES = {
    "sources": sources,
    "targets": targets,
    "kernel formats": kernel_formats,
    "gates": gates,
    "limits": limits,
    "encoders": encoders,
    "outcomes": outcomes,
    "speeds": speeds,
    "disputes": disputes,
}


def written() -> dict[str, str]:
    text = (ROOT / PAGE).read_text("utf-8")
    for name, made in TABLES.items():
        text = between(text, name, made())
    return {PAGE: text}
