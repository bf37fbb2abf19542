"""docs/formats/ane-records.md says what the code does: its tables are compared with it."""

from __future__ import annotations

from flyweight.targets.ane.records.activation_functions import ACTIVATIONS, build, error_of
from flyweight.targets.ane.records.activation_record import Map
from flyweight.targets.ane.records.channel_groups import SLOTS
from flyweight.targets.ane.records.dma_streams import DMA_STREAMS, RELOCATIONS
from flyweight.targets.ane.records.kernel_config import H13, H16, H18G, kernel_config
from flyweight.targets.ane.records.kernel_unit import Descriptor
from support import ROOT

PAGE = (ROOT / "docs" / "formats" / "ane-records.md").read_text("utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this heading, without backquotes."""
    lines = PAGE[PAGE.index(f"\n{heading}") + 1 :].splitlines()[2:]
    rows = lines[: next(at for at, line in enumerate([*lines, ""]) if not line.startswith("|"))]
    return [[cell.strip().replace("`", "") for cell in row.replace("\\|", "¦").strip("|").split("|")] for row in rows]


def test_functions_and_their_errors() -> None:
    rows = table("| function | map")
    assert [row[0] for row in rows] == list(ACTIVATIONS)
    for name, kind, knots, _, max_error, max_ulps, device in rows:
        error, measured = error_of(name), ACTIVATIONS[name].device_error.value
        assert kind == build(name).map.name.lower()
        assert ("fitted here" in knots) == ACTIVATIONS[name].fitted
        assert max_error == f"{error.max_error:.3e}"
        assert max_ulps == f"{error.max_ulps:.1f}"
        assert device == ("" if measured is None else f"{measured:.3e}")


def test_maps() -> None:
    assert [(int(row[0]), row[1]) for row in table("| number (ours)")] == [(kind.value, kind.name.lower()) for kind in Map]


def test_registers() -> None:
    for bits, text, since in table("| bits | field"):
        first, _, last = bits.partition("–")
        name = text.split(":")[0].split(",")[0].split(";")[0]
        for layout in (H13, H16, H18G):
            field = layout.fields.get(name)
            assert (field is not None) == (("H13", "H16", "h18g").index(since) <= (H13, H16, H18G).index(layout))
            assert field is None or (field.first, field.first + field.bits - 1) == (int(first), int(last or first))
    assert len(table("| bits | field")) == len(H18G.fields)
    forms = [("fp16", 0, False), ("fp16", 0, True), ("int8", 0, False), ("fp16", 4, False)]
    for (_, *words), (element, bits, sparse) in zip(table("| weights | h18g"), forms, strict=True):
        for word, layout in zip(words, (H18G, H13), strict=True):
            assert int(word, 16) == kernel_config(element, palette_bits=bits, sparse=sparse, layout=layout).word(layout)


def test_streams() -> None:
    rows = {row[0]: tuple(int(cell, 16) for cell in row[1:]) for row in table("| stream | enable")}
    assert rows == {name: tuple(fact.value for fact in stream.facts()) for name, stream in DMA_STREAMS.items()}
    assert all(f"{name} {fact.value:#x}" in PAGE for name, fact in RELOCATIONS.items())


def test_slots_and_the_descriptor() -> None:
    assert "`input`, `output`, `coefficients_0` to `coefficients_3`, `bias`, `post_scale`, `palette`, `activation`" in PAGE
    assert len(SLOTS) == 10
    text = PAGE[PAGE.index("```\n") + 4 :]
    shown = text[: text.index("```")]
    assert Descriptor.from_text(shown).text() == shown
