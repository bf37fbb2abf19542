"""From one generation to the other and back: every byte of a layer is copied, and the file comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import flyweight
from support import ROOT
from support.toys import write_toy_llama

FILES = ROOT / "tests" / "golden" / "uqff"
ROUND_TRIPS = [
    "small/q4_0",
    "small/afq4",
    "small/hqq4",
    "small/fp8",
    "bias/q4_0",
    "bias/afq4",
    "tied/q4_0",
    "wide/q4k",
    "experts/q4_0",
]


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_an_old_file_comes_back(name: str, tmp_path: Path) -> None:
    old = FILES / "0.1.3" / f"{name}-0.uqff"
    flyweight.convert(old, tmp_path / "new", to="uqff")
    flyweight.convert(tmp_path / "new", tmp_path / "back", to="uqff0")
    (shard,) = (tmp_path / "back").glob("*.uqff")
    assert shard.read_bytes() == old.read_bytes()


def test_numbers_are_in_the_order_of_text(tmp_path: Path) -> None:
    """As mistral.rs sorts them; the files above have too few layers to tell."""
    source = write_toy_llama(tmp_path / "source")
    flyweight.convert(source, tmp_path / "old", to="uqff0", quant="q8_0")
    (shard,) = (tmp_path / "old").glob("*.uqff")
    raw = shard.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert len(header) > 10
    assert list(header) == sorted(header)
    assert [header[key]["data_offsets"][0] for key in header] == sorted(about["data_offsets"][0] for about in header.values())
