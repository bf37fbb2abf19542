"""Tokenizers from strangers, made from a grammar: whatever they are built of, encoding ends in time, memory and a typed error.

Each case runs in a process with limited memory and CPU: the library ends the process when an allocation fails, which no
`except` sees.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flyweight.foundation.errors import FlyweightError
from flyweight.models.tokenizers.patterns import read_pattern

DRIVER = Path(__file__).with_name("tokenizer_driver.py")
MEMORY = 1 << 30
"""The driver may take this much more than it has once its modules are loaded."""
SECONDS = 60
"""CPU of one case: its text may become a million characters (`_PROMPT_WORK`), which take some 5 µs each on a slow machine."""

CASES = 160
LETTERS = "ab \n▁1!é👩<>"
CONTENTS = ("", "a", "aa", "b", "▁", "ab" * 8, "a" * 60, "aA " * 300, "b" * 20_000)
RARELY = (9, 9, 9, 9, 9, 3, 3, 1, 1)
PIECES = (
    "a",
    "b",
    " ",
    r"\s",
    r"\S",
    r"\p{L}",
    r"[^\r\n]",
    "[ab]",
    ".",
    "(a|a)",
    "(a|b|ab)",
    "(?:a?)",
    "(?=a)",
    "(?!b)",
    r"\1",
    "$",
)
QUANTIFIERS = ("", "", "", "?", "*", "+", "{1,3}", "{2,}", "*?", "++", "{40}")
TEXTS = ("a" * 9000, " " * 9000 + "x", "ab\n" * 3000, "👩" * 2000, "<t>a" * 2000, "é" * 100 + "a b!1" * 1500)


class Stranger:
    """A maker of tokenizer.json who means no good."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def content(self) -> str:
        return self.random.choices(CONTENTS, RARELY)[0]

    def pattern(self) -> dict[str, Any]:
        if self.random.random() < 0.7:
            return {"String": self.random.choice(("a", " ", "ab", "▁", "é", "a", " ", "ab", "▁", "é", ""))}
        alternatives = [
            "".join(self.random.choice(PIECES) + self.random.choice(QUANTIFIERS) for _ in range(self.random.randint(1, 4)))
            for _ in range(self.random.randint(1, 3))
        ]
        return {"Regex": "|".join(alternatives)}

    def sequence(self, key: str, one: Any, depth: int = 0) -> Any:
        if depth < 7 and self.random.random() < 0.4:
            count = self.random.choice((0, 1, 2, 2, 3, 3, 4, 100)) if depth == 0 else self.random.randint(1, 3)
            return {"type": "Sequence", key: [self.sequence(key, one, depth + 1) for _ in range(count)]}
        return one()

    def normalizer(self) -> Any:
        kind = self.random.choice(("Replace", "Replace", "Replace", "Prepend", "NFC", "Lowercase", "Strip", "Precompiled"))
        return {
            "Replace": lambda: {"type": kind, "pattern": self.pattern(), "content": self.content()},
            "Prepend": lambda: {"type": kind, "prepend": self.content()},
            "Precompiled": lambda: {"type": kind, "precompiled_charsmap": self.charsmap()},
        }.get(kind, lambda: {"type": kind})()

    def charsmap(self) -> str:
        trie = self.random.randbytes(self.random.choice((0, 4, 64, 1024)))
        size = self.random.choice((len(trie), len(trie), 0, 2**32 - 1))
        blob = size.to_bytes(4, "little") + trie + b"a" * self.random.choice((1, 1, 30, 5000)) + b"\0"
        return base64.b64encode(blob).decode()

    def pre_tokenizer(self) -> Any:
        kind = self.random.choice(("Split", "Split", "Metaspace", "ByteLevel", "Digits", "Punctuation"))
        return {
            "Split": lambda: {
                "type": kind, "pattern": self.pattern(), "invert": False,
                "behavior": self.random.choice(("Isolated", "Removed")),
            },
            "Metaspace": lambda: {
                "type": kind, "replacement": "▁", "prepend_scheme": "always", "split": self.random.random() < 0.5
            },
            "ByteLevel": lambda: {"type": kind, "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "Digits": lambda: {"type": kind, "individual_digits": True},
            "Punctuation": lambda: {"type": kind, "behavior": "Isolated"},
        }.get(kind, lambda: {"type": kind})()  # fmt: skip

    def decoder(self) -> Any:
        kind = self.random.choice(("Replace", "Replace", "ByteFallback", "Fuse", "Strip", "ByteLevel", "ByteLevel", "CTC"))
        return {
            "Replace": lambda: {"type": kind, "pattern": self.pattern(), "content": self.content()},
            "Strip": lambda: {"type": kind, "content": "a", "start": self.random.choice((0, 1, 10**9)), "stop": 0},
            "CTC": lambda: {"type": kind, "pad_token": "a", "word_delimiter_token": "|", "cleanup": True},
        }.get(kind, lambda: {"type": kind})()

    def post_processor(self) -> Any:
        if self.random.random() < 0.7:
            return None
        step = {"Sequence": {"id": "A", "type_id": 0}}
        return {"type": "TemplateProcessing", "single": [step] * 3000, "pair": [], "special_tokens": {}}

    def model(self) -> dict[str, Any]:
        kind = self.random.choice(("BPE", "BPE", "BPE", "BPE", "Unigram", "WordPiece", "WordLevel", "Odd"))
        words = {letter: index for index, letter in enumerate(LETTERS)} | {"ab": 11, "<unk>": 12}
        if self.random.random() < 0.1:
            words |= {"a" * self.random.choice((100, 5000, 10**6)): 19}
        if kind == "Unigram":
            return {
                "type": kind,
                "unk_id": 0,
                "vocab": [[word, -1.0] for word in ["<unk>", *words, *("a" * n for n in range(3, 120))]],
            }
        if kind == "WordPiece":
            longest = self.random.choice((100, 10**6))
            return {"type": kind, "unk_token": "<unk>", "continuing_subword_prefix": "##", "max_input_chars_per_word": longest,
                    "vocab": words}  # fmt: skip
        merges = [["a", "b"]] * self.random.choice((1, 1, 1, 1, 10**5))
        return {"type": kind, "unk_token": "<unk>", "byte_fallback": False, "vocab": words, "merges": merges}

    def added(self) -> list[dict[str, Any]]:
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        texts = self.random.choice((["<t>"], ["<t>"], ["<t>", "<t>a"], ["x" * 100_000], [f"<{n}>" for n in range(2000)], [""]))
        return [
            {"id": 13 + index, "content": text} | {flag: self.random.random() < 0.5 for flag in flags}
            for index, text in enumerate(texts)
        ]

    def table(self) -> dict[str, Any]:
        return {
            "version": "1.0",
            "added_tokens": self.added() if self.random.random() < 0.5 else [],
            "normalizer": self.sequence("normalizers", self.normalizer) if self.random.random() < 0.7 else None,
            "pre_tokenizer": self.sequence("pretokenizers", self.pre_tokenizer) if self.random.random() < 0.5 else None,
            "post_processor": self.post_processor(),
            "decoder": self.sequence("decoders", self.decoder) if self.random.random() < 0.5 else None,
            "model": self.model(),
        }


def run(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What becomes of each case; a process that ends early gives fewer answers than it was asked."""
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(MEMORY), str(SECONDS * len(cases))],
        input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True,
        text=True,
        timeout=SECONDS * len(cases),
        env={"PYTHONPATH": str(DRIVER.parents[1]), "PATH": "/usr/bin:/bin"},
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases), f"case {len(answers)} ended the process: {done.returncode}\n{done.stderr[-2000:]}"
    return answers


def case(table: dict[str, Any], text: str) -> dict[str, Any]:
    return {"files": {"tokenizer.json": json.dumps(table)}, "text": text, "room": 4096}


@pytest.mark.parametrize("seed", range(4))
def test_strangers_end_in_time_and_memory(seed: int) -> None:
    stranger = Stranger(seed)
    answers = run([case(stranger.table(), stranger.random.choice(TEXTS)) for _ in range(CASES // 4)])
    assert max(answer["cpu"] for answer in answers) < SECONDS
    outcomes = {answer["outcome"] for answer in answers}
    assert outcomes <= {"ok", "E_TOKENIZER", "E_CONTEXT"}
    assert {"ok", "E_TOKENIZER"} <= outcomes


JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**40,
    1e300,
    "",
    "a" * 5000,
    "Sequence",
    [],
    {},
    [[]],
    {"type": "Sequence"},
    ["a", "b"],
    {"": 0},
)


def sound(pieces: bool) -> dict[str, Any]:
    """A tokenizer that is in order: bytes cut by a pattern, or pieces with a space in front."""
    words = ["<unk>", "<s>", "</s>", "a", "b", "ab", "Ġ", "▁", "▁a", "c", "!", "1"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    pattern = {"Regex": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]+|\s+(?!\S)|\s+"}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": words[index], "special": True} | flags for index in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]}
        if pieces
        else {"type": "NFC"},
        "pre_tokenizer": None if pieces else {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [{**space, "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>" if pieces else None,
            "fuse_unk": pieces,
            "byte_fallback": False,
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": [["a", "b"], ["▁", "a"]],
        },
    }


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a document: what holds it, and its key there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *places(value[key]))]


def mutated(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    table = sound(pieces=seed % 2 == 0)
    for _ in range(chance.randint(0, 3)):
        holder, key = chance.choice(places(table))
        other, source = chance.choice(places(table))
        if chance.random() < 0.2:
            del holder[key]
        else:
            holder[key] = json.loads(json.dumps(other[source])) if chance.random() < 0.5 else chance.choice(JUNK)
    return table


def test_mutants_of_sound_tokenizers() -> None:
    answers = run([case(mutated(seed), TEXTS[seed % len(TEXTS)]) for seed in range(150)])
    outcomes = [answer["outcome"] for answer in answers]
    assert set(outcomes) <= {"ok", "E_TOKENIZER", "E_CONTEXT"}
    assert 30 <= outcomes.count("ok") <= 120


def replacing(*contents: str) -> dict[str, Any]:
    steps = [{"type": "Replace", "pattern": {"String": "a"}, "content": content} for content in contents]
    return {"normalizer": {"type": "Sequence", "normalizers": steps}}


NAMED: dict[str, tuple[dict[str, Any], str, str]] = {
    "two and a half kilobytes that become gigabytes": (replacing(*["aa"] * 40), "a" * 100, "E_TOKENIZER"),
    "a thousand for one": (replacing("a" * 1000), "a" * 60_000, "E_CONTEXT"),
    "all that is allowed": (replacing("b" * 16), "a" * 65_000, "ok"),
    "four bytes of fallback for each": (replacing("👩" * 4), "a" * 65_000, "ok"),
    "the longest prompt": ({}, "a" * 131_072, "ok"),
    "longer than any prompt": ({}, "a" * 131_073, "E_CONTEXT"),
    "a text of megabytes": ({}, "a" * (4 << 20), "E_CONTEXT"),
    "a post-processor that repeats the text": (
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 100_000,
                "pair": [],
                "special_tokens": {},
            }
        },
        "a" * 60_000,
        "ok",
    ),
    "a pattern that backtracks": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"\s*\s*x"}, "behavior": "Isolated", "invert": False}},
        " " * 4000,
        "E_TOKENIZER",
    ),
    "a pattern dear for white space": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"\s+$"}, "behavior": "Isolated", "invert": False}},
        " " * 60_000 + "a",
        "E_TOKENIZER",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_known_bombs(name: str) -> None:
    change, text, outcome = NAMED[name]
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2}, "merges": []}
    if "fallback" in name:
        model |= {"byte_fallback": True, "vocab": {f"<0x{byte:02X}>": byte % 20 for byte in range(256)}}
    (answer,) = run([case({"version": "1.0", "added_tokens": [], "model": model} | change, text)])
    assert answer["outcome"] == outcome
    assert answer["cpu"] < SECONDS


def accepted_patterns(count: int, seed: int) -> list[str]:
    stranger, found = Stranger(seed), []
    while len(found) < count:
        pattern = stranger.pattern().get("Regex", "")
        try:
            read_pattern(pattern)
        except FlyweightError:
            continue
        found.append(pattern)
    return found


def test_accepted_patterns_take_time_in_proportion_to_the_text() -> None:
    """A pattern that takes the square of 40 000 characters takes ten seconds and more; in proportion, a tenth of one."""
    cases = []
    for pattern in accepted_patterns(60, seed=11):
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        model = {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2}, "merges": []}
        text = random.Random(pattern).choice((" " * 40_000 + "x", "a" * 40_000 + "!", "ab" * 20_000, "a " * 20_000))
        cases.append(case({"added_tokens": [], "pre_tokenizer": split, "model": model}, text))
    answers = run(cases)
    assert {answer["outcome"] for answer in answers} == {"ok"}
    assert max(answer["cpu"] for answer in answers) < 5
