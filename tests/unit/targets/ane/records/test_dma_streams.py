"""The registers of the kernel DMA, as the guide's table has them."""

from __future__ import annotations

from flyweight.targets.ane.facts.fact import Provenance
from flyweight.targets.ane.records.dma_streams import DMA_STREAMS, RELOCATIONS

TABLE = {
    "bias": (0x5548, 0x554C, 0x1554, 0x55E0),
    "post_scale": (0x5558, 0x555C, 0x1558, 0x55F0),
    "palette": (0x5568, 0x556C, 0x155C, 0x5600),
    "activation": (0x5578, 0x557C, 0x1560, 0x5610),
}


def test_registers_are_those_of_the_table() -> None:
    assert {name: tuple(fact.value for fact in stream.facts()) for name, stream in DMA_STREAMS.items()} == TABLE
    assert {name: fact.value for name, fact in RELOCATIONS.items()} == {
        "input": 0x1344,
        "second input": 0x134A,
        "output": 0x1442,
    }


def test_every_register_says_how_it_is_known() -> None:
    for stream in DMA_STREAMS.values():
        assert [fact.provenance for fact in stream.facts()] == [Provenance.SEED] * 3 + [Provenance.MEASURED]
    facts = [*RELOCATIONS.values(), *(fact for stream in DMA_STREAMS.values() for fact in stream.facts())]
    assert all(fact.about and fact.source for fact in facts)
    assert len({fact.value for fact in facts}) == len(facts)
