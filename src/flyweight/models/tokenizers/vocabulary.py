"""A tokenizer, whichever file it came from: tokens with their types, how they join, and which have a role."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from math import isfinite
from typing import Any, NamedTuple

from flyweight.foundation.errors import MalformedError


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_BYTE = int(TokenType.BYTE)  # compared once for each of a quarter of a million tokens
BYTE_LEVEL, PIECES = "gpt2", "llama"

_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "mask_token")
"""The roles of tokens, named as in tokenizer_config.json."""


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


def bad_vocabulary(message: str) -> MalformedError:
    return MalformedError(message, code="E_TOKENIZER")


def check(vocabulary: Vocabulary) -> Vocabulary:
    """The rules every tokenizer obeys, whichever file it came from."""
    tokens, types = vocabulary.tokens, vocabulary.types
    if len(types) != len(tokens):
        raise bad_vocabulary(f"{len(types)} token types for {len(tokens)} tokens")
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise bad_vocabulary(f"the token '{twice}' appears twice")
    unknown = set(types) - set(TokenType)
    for token, type_ in zip(tokens, types, strict=True) if unknown else ():
        if type_ in unknown:
            raise bad_vocabulary(f"the token '{token}' has the unknown type {type_}")
    for token, type_ in zip(tokens, types, strict=True) if _BYTE in types else ():
        if type_ == _BYTE and not is_byte(token):
            raise bad_vocabulary(f"'{token}' is not a byte token; these are <0x00> to <0xFF>")
    for role, index in vocabulary.special.items():
        if not 0 <= index < len(tokens):
            raise bad_vocabulary(f"{role} is {index}, but there are {len(tokens)} tokens")
    if vocabulary.kind == PIECES and len(vocabulary.scores) != len(tokens):
        raise bad_vocabulary(f"{len(vocabulary.scores)} scores for {len(tokens)} tokens")
    if not all(map(isfinite, vocabulary.scores)):
        raise bad_vocabulary("a score is not a finite number")
    return vocabulary._replace(ids=ids)
