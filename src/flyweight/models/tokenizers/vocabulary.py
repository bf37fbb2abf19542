"""A tokenizer, whichever file it came from, and its form in GGUF.

tokenizer.ggml.model        "gpt2" (byte-level BPE) or "llama" (SentencePiece)
tokenizer.ggml.tokens       [str]   one for each row of the embedding; [PADi] fills the rows without one
tokenizer.ggml.token_type   [i32]   normal 1, unknown 2, control 3, user-defined 4, unused 5, byte 6
tokenizer.ggml.merges       [str]   gpt2: "left right", in order
tokenizer.ggml.scores       [f32]   llama: the highest joins first
tokenizer.ggml.pre          str     how text is cut (see `tokenizer_pre`)
tokenizer.ggml.*_token_id   u32     BOS, EOS, unknown, padding …
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import repeat
from math import isfinite
from typing import Any, NamedTuple

from flyweight import strict_json
from flyweight.errors import MalformedError, UnsupportedError
from flyweight.manifest import Typed
from flyweight.models.record import Record
from flyweight.models.tokenizer_pre import named

__all__ = [
    "BYTE_LEVEL",
    "PIECES",
    "SPECIAL_TOKENS",
    "TokenType",
    "Vocabulary",
    "check",
    "is_byte",
    "placeholder",
    "read_gguf",
    "write_gguf",
]


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_BYTE = int(TokenType.BYTE)  # compared once for each of a quarter of a million tokens
BYTE_LEVEL, PIECES = "gpt2", "llama"

_PREFIX = "tokenizer.ggml."
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")

SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # sic: the key is spelled so
    "mask_token": "mask_token_id",
}


class Vocabulary(NamedTuple):
    """Tokens by id with their types, how they join, and which have a role."""

    kind: str
    """`gpt2` for byte-level BPE, `llama` for SentencePiece pieces."""
    tokens: list[str]
    types: list[int]
    pre: str
    """gpt2: the name of the pre-tokenizer. llama: the name of the space form, empty for the usual one."""
    merges: Sequence[tuple[str, str]] = ()
    scores: Sequence[float] = ()
    special: Mapping[str, int] = {}
    """Ids by role, named as in tokenizer_config.json (`bos_token` …)."""
    add_bos: bool = False
    add_eos: bool = False
    space_prefix: bool = False
    details: Mapping[int, Mapping[str, Any]] = {}
    """What tokenizer.json says of an added token beyond its text and whether it is special."""
    ids: Mapping[str, int] = {}
    """The place of each token, found by `check`."""


def placeholder(index: int) -> str:
    """The text of a row of the embedding that no token uses."""
    return f"[PAD{index}]"


def is_byte(token: str) -> bool:
    return _BYTE_TOKEN.fullmatch(token) is not None


def _bad(message: str) -> MalformedError:
    return MalformedError(message, code="E_TOKENIZER")


def check(vocabulary: Vocabulary) -> Vocabulary:
    """The rules every tokenizer obeys, whichever file it came from."""
    tokens, types = vocabulary.tokens, vocabulary.types
    if len(types) != len(tokens):
        raise _bad(f"{len(types)} token types for {len(tokens)} tokens")
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise _bad(f"the token '{twice}' is there twice")
    unknown = set(types) - set(TokenType)
    for token, type_ in zip(tokens, types, strict=True) if unknown else ():
        if type_ in unknown:
            raise _bad(f"the token '{token}' has the unknown type {type_}")
    for token, type_ in zip(tokens, types, strict=True) if _BYTE in types else ():
        if type_ == _BYTE and not is_byte(token):
            raise _bad(f"'{token}' is no byte token; those read <0x00> to <0xFF>")
    for role, index in vocabulary.special.items():
        if not 0 <= index < len(tokens):
            raise _bad(f"{role} is {index}, but there are {len(tokens)} tokens")
    if vocabulary.kind == PIECES and len(vocabulary.scores) != len(tokens):
        raise _bad(f"{len(vocabulary.scores)} scores for {len(tokens)} tokens")
    if not all(map(isfinite, vocabulary.scores)):
        raise _bad("a score is not a finite number")
    return vocabulary._replace(ids=ids)


def read_gguf(metadata: Record, vocab: int) -> Vocabulary | None:
    """The tokenizer of a GGUF file; None when it has none."""
    kind = metadata.text(_PREFIX + "model", "none")
    if kind in ("none", "no_vocab"):
        return None
    if kind not in (BYTE_LEVEL, PIECES):
        raise UnsupportedError(
            f"the tokenizer model '{kind}' cannot be expressed as tokenizer.json", code="E_TOKENIZER", hint="known: gpt2, llama"
        )
    tokens = metadata.items(_PREFIX + "tokens", str)
    if len(tokens) != vocab:
        raise _bad(f"{len(tokens)} tokens for {vocab} rows of the embedding")
    types_key = _PREFIX + "token_type"
    types = metadata.items(types_key, int) if types_key in metadata else [int(TokenType.NORMAL)] * len(tokens)
    special = {
        role: metadata.integer(_PREFIX + key, least=0) for role, key in SPECIAL_TOKENS.items() if _PREFIX + key in metadata
    }
    pieces = kind == PIECES
    row = None if pieces else named(metadata.text(_PREFIX + "pre", "default"))
    words = Vocabulary(
        kind,
        tokens,
        types,
        pre=row.name if row else metadata.text("flyweight.space_form", ""),
        special=special,
        add_bos=metadata.flag(_PREFIX + "add_bos_token", row.add_bos if row else True) and "bos_token" in special,
        add_eos=metadata.flag(_PREFIX + "add_eos_token", False) and "eos_token" in special,
        details=_read_details(metadata),
    )
    if pieces:
        metadata.get(_PREFIX + "pre")
        scores = [float(score) for score in metadata.items(_PREFIX + "scores", (int, float))]
        return check(words._replace(scores=scores, space_prefix=metadata.flag(_PREFIX + "add_space_prefix", True)))
    return check(words._replace(merges=_pairs(metadata.items(_PREFIX + "merges", str))))


def _pairs(merges: list[str]) -> list[tuple[str, str]]:
    """Each merge as its two parts; all at once where each has one space, as nearly all vocabularies do."""
    if set(map(str.count, merges, repeat(" "))) == {1}:
        parts = " ".join(merges).split(" ")
        if all(parts):
            return list(zip(parts[::2], parts[1::2], strict=True))
    return list(map(_pair, merges))


def _pair(merge: str) -> tuple[str, str]:
    """Two parts around the first space that is not at the beginning."""
    left, space, right = merge[1:].partition(" ")
    if not space or not right:
        raise _bad(f"the merge '{merge}' is not a pair")
    return merge[:1] + left, right


def _read_details(metadata: Record) -> dict[int, Mapping[str, Any]]:
    text = metadata.text("flyweight.added_tokens", "{}")
    table = strict_json.loads(text.encode(), file="flyweight.added_tokens")
    details: dict[int, Mapping[str, Any]] = {}
    for key, value in Record(table, "flyweight.added_tokens").unused().items():
        if not key.isdecimal() or len(key) > 9 or not isinstance(value, dict):
            raise _bad(f"'flyweight.added_tokens' has a bad entry '{key}'")
        details[int(key)] = value
    return details


def write_gguf(vocabulary: Vocabulary | None) -> dict[str, Typed]:
    """The metadata of a tokenizer."""
    if vocabulary is None:
        return {_PREFIX + "model": Typed("str", "none")}
    pieces = vocabulary.kind == PIECES
    own: dict[str, Typed] = {
        "model": Typed("str", vocabulary.kind),
        "pre": Typed("str", "default" if pieces else vocabulary.pre),
        "tokens": Typed("[str]", vocabulary.tokens),
        "token_type": Typed("[i32]", [int(type_) for type_ in vocabulary.types]),
    }
    if pieces:
        own["scores"] = Typed("[f32]", vocabulary.scores)
        own["add_space_prefix"] = Typed("bool", vocabulary.space_prefix)
    else:
        own["merges"] = Typed("[str]", [f"{left} {right}" for left, right in vocabulary.merges])
    own |= {SPECIAL_TOKENS[role]: Typed("u32", index) for role, index in vocabulary.special.items()}
    own["add_bos_token"] = Typed("bool", vocabulary.add_bos)
    own["add_eos_token"] = Typed("bool", vocabulary.add_eos)
    made = {_PREFIX + key: typed for key, typed in own.items()}
    if pieces and vocabulary.pre:
        made["flyweight.space_form"] = Typed("str", vocabulary.pre)
    if vocabulary.details:
        details = {str(index): dict(flags) for index, flags in vocabulary.details.items()}
        made["flyweight.added_tokens"] = Typed("str", strict_json.dumps(details).decode())
    return made
