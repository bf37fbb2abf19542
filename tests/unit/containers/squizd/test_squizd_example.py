"""The worked example of docs/formats/squizd.md: its bytes are those that are written, and say what the page says."""

from __future__ import annotations

import re
import struct

import numpy as np

from flyweight.codecs import codec_for
from flyweight.containers.squizd.squizd_file import Squizd
from flyweight.foundation.dtypes import DType
from flyweight.foundation.manifest import Entry, Manifest
from flyweight.foundation.tensor import CodecSpec, EncodedTensor, TensorSpec
from flyweight.sources import MemoryBundle
from support import ROOT
from support.materialise import materialise

PAGE = ROOT / "docs" / "formats" / "squizd.md"
SPEC = TensorSpec((2, 4), DType.F32)
CODES = {0: [[-8, -1, 0, 7], [1, 2, 3, 4]], 1: [[0, 0, 0, 0], [7, 6, 5, 4]]}
PAIRS = {0: [(0.5, 0.0), (0.25, 1.0)], 1: [(0.0, 2.0), (2.0, -8.0)]}


def example() -> bytes:
    container, entries = Squizd(), dict[str, Entry]()
    for layer in CODES:
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        codec = codec_for(container.adapt(CodecSpec("tabled", {"bits": 4, "length": 4, "id": 0}), name))
        entries[name] = Entry(name, SPEC, codec.spec, codec.layout(SPEC))
    placement = container.place(Manifest("squizd", entries, {}, {"config.json": b'{"model_type": "llama"}'}, "hf"), "example")

    def payload(entry: Entry, part: str) -> bytes:
        layer = int(entry.name.split(".")[2])
        if part == "codes":
            flat = [code & 15 for row in CODES[layer] for code in row]
            return bytes(low | high << 4 for low, high in zip(flat[::2], flat[1::2], strict=True))
        return b"".join(struct.pack("<Qff", int(entry.codec.params["id"]) | 1 << 63, *pair) for pair in PAIRS[layer])

    return materialise(placement, payload, container=container)["example"]


def dump(raw: bytes) -> str:
    """Sixteen bytes a line, lines of zeros left out, text beside it."""
    lines = []
    for at in range(0, len(raw), 16):
        line = raw[at : at + 16]
        if any(line):
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
            lines.append(f"{at:4d}  {line.hex(' '):47}  {text}")
    return "\n".join(lines)


def test_the_page_shows_the_bytes_that_are_written() -> None:
    shown = re.search(r"## 11.*?```\n(.*?)\n```", PAGE.read_text("utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1] == dump(example())


def test_the_example_is_sound_and_decodes() -> None:
    container, bundle = Squizd(), MemoryBundle({"example": example()}, is_directory=False)
    assert list(container.audit(bundle)) == []
    for layer, entry in enumerate(container.parse(bundle).entries.values()):
        parts = {}
        for part, extent in entry.extents.items():
            raw = np.frombuffer(bundle["example"].read(extent.offset, extent.nbytes), entry.parts[part].dtype.numpy)
            parts[part] = raw.reshape(entry.parts[part].shape)
        tensor = EncodedTensor(entry.spec, entry.codec, parts)
        wanted = [[s * q + z for q in row] for row, (s, z) in zip(CODES[layer], PAIRS[layer], strict=True)]
        assert codec_for(tensor.codec).decode(tensor.spec, tensor.parts).tolist() == wanted
