"""The texts that come with Flyweight: what a model is calibrated on unless somebody gives better ones.

`texts/README.md` says what they are and where they come from. Those in `held_back` are of the same kinds and are never
calibrated on: what a quantization costs can be measured on them.
"""

from __future__ import annotations

from importlib.resources import files

from flyweight.calibration.sampling import Text


def shipped_texts(*, held_back: bool = False) -> list[Text]:
    """By name, in the order of names."""
    folder = files(__package__) / "texts"
    if held_back:
        folder = folder / "held_back"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".txt")), key=lambda file: file.name)
    return [Text(file.name, file.read_text("utf-8")) for file in found]
