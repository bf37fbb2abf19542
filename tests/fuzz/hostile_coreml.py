"""Hostile Core ML packages: files around the program, the program itself, and operations that decode weights."""

from __future__ import annotations

from fuzz.coreml_cases import decoding, packages, programs
from support.fuzz_cases import Case

HOSTILE: dict[str, Case] = {**packages.CASES, **programs.CASES, **decoding.CASES}
