"""Mutations of whole models: of one of their files, or of which files there are."""

from __future__ import annotations

import random

from fuzz.framing import Input
from fuzz.mutators import files

__all__ = ["mutate", "spliced"]

_NAMES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
    "model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "manifest.json",
    "special_tokens_map.json", "tensors/a__q.npy", "tensors/a__q.npy.zst", "tensors/.manifest_ready", ".squish_int4_ready",
    "q-0.uqff", "q-1.uqff", "q.uqff", "residual.safetensors", "uqff_report.json",
    "Manifest.json", "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin", "Data/x",
    "flyweight.json", "x.gguf", "m-00001-of-00002.gguf", "a/b", "é", "x" * 255,
)  # fmt: skip


def mutate(rng: random.Random, given: Input, donor: Input | None = None) -> Input:
    """Mostly the content of a file; where there may be several, now and then their names."""
    names = list(given.files)
    if not names:
        return Input({rng.choice(_NAMES): b"{}"}, True)
    if given.is_directory and rng.randrange(8) == 0:
        return _listed(rng, given, names)
    name = rng.choice(names)
    other = rng.choice(list(donor.files.values())) if donor and donor.files else rng.choice(list(given.files.values()))
    return Input({**given.files, name: files.mutate(rng, given.files[name], other)}, given.is_directory)


def _listed(rng: random.Random, given: Input, names: list[str]) -> Input:
    """A file gone, renamed, added, empty, or with the content of another."""
    left = dict(given.files)
    name = rng.choice(names)
    match rng.randrange(5):
        case 0 if len(left) > 1:
            del left[name]
        case 1:
            left[rng.choice((*_NAMES, *names))] = left.pop(name)
        case 2:
            left[rng.choice(_NAMES)] = rng.choice(list(left.values()))
        case 3:
            left[name] = b""
        case _:
            left[name] = left[rng.choice(names)]
    return Input(left, True)


def spliced(rng: random.Random, one: Input, other: Input) -> Input:
    """Some files of each."""
    taken = {name: data for name, data in other.files.items() if rng.randrange(2)}
    if one.is_directory and other.is_directory:
        return Input(one.files | taken, True)
    return mutate(rng, one, other)
