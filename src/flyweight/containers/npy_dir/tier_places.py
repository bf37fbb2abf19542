"""File and folder names of an npy-dir, and of the tiers built from its arrays.

    tier        where                          sentinel                   what
    packed      flyweight_packed.safetensors   .flyweight_packed_ready    the arrays as the products take them
    int4        squish_4bit/                   .squish_4bit_ready         an MLX directory of 4 bits
    int3        squish_3bit/                   .squish_3bit_ready         an MLX directory of 3 bits
    cache       squish_weights.safetensors     .squish_ready              everything decoded, bf16
    finalized   finalized/                     finalized/.ready           everything decoded, f16, a .npy for each tensor

in the order in which they are preferred: Squish's own, and `packed` before all. None of them is part of the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

MANIFEST, RECORD, FOLDER = "manifest.json", "flyweight.json", "tensors/"
READY, INT4_READY = f"{FOLDER}.manifest_ready", ".squish_int4_ready"
ARRAY, COMPRESSED = ".npy", ".npy.zst"
PROGRESS = "_compress_progress.json"
DECIDING = (MANIFEST, RECORD, INT4_READY)
"""Files beside the arrays that say which of them count."""


class Tier(NamedTuple):
    name: str
    place: str
    """A file or folder."""
    sentinel: str
    holds: Literal["file", "arrays", "model"]
    """One safetensors file, a folder of single arrays, or a whole model with a config and a tokenizer of its own."""
    dtype: str
    """What everything is decoded to; empty where weights stay quantized."""
    about: str

    @property
    def is_model(self) -> bool:
        return self.holds == "model"


TIERS = (
    Tier("packed", "flyweight_packed.safetensors", ".flyweight_packed_ready", "file", "", "in a form that runs directly"),
    Tier("int4", "squish_4bit", ".squish_4bit_ready", "model", "", "4-bit MLX directory"),
    Tier("int3", "squish_3bit", ".squish_3bit_ready", "model", "", "3-bit MLX directory"),
    Tier("cache", "squish_weights.safetensors", ".squish_ready", "file", "bf16", "decoded, one bf16 file"),
    Tier("finalized", "finalized", "finalized/.ready", "arrays", "f16", "decoded, one f16 file per tensor"),
)
_LOCK = ".flyweight_tiers.lock"
_OWN = {MANIFEST, RECORD, INT4_READY, PROGRESS, "stats.json", _LOCK, ".flyweight_tiers.new"}
_OWN |= {name for tier in TIERS for name in (tier.place, tier.sentinel)}
_OWN_FOLDERS = (FOLDER, *(f"{tier.place}/" for tier in TIERS if tier.holds != "file"))
OWN_FILES = (
    *DECIDING, "stats.json", PROGRESS, f"{FOLDER}*{ARRAY}", f"{FOLDER}*{COMPRESSED}", READY, _LOCK,
    *(tier.sentinel for tier in TIERS),
    *({"file": tier.place, "arrays": f"{tier.place}/*{ARRAY}", "model": f"{tier.place}/"}[tier.holds] for tier in TIERS),
)  # fmt: skip


def is_own(name: str) -> bool:
    """Whether a file belongs to the format, and is no side file."""
    return name in _OWN or name.startswith(_OWN_FOLDERS)


def looks_like(path: Path) -> bool:
    """Whether a path looks like an npy-dir, whose reader then says whether it is one."""
    return (path / FOLDER).is_dir() and (path / MANIFEST).is_file()
