"""The supported components of tokenizer.json, and how much longer each can make a text.

A component is a small program of the file's maker: a few dozen bytes that replace one character by many, one after the other,
fill any memory, and the library that runs them ends the process when an allocation fails. So only components that tokenizers
of language models have are accepted, within these limits, and for a text of n bytes everything a tokenizer does is bounded by
n × `growth`.

    normalizer, pre_tokenizer   what they may make of a character, multiplied along the sequence
    decoder                     the same, for the text of a token
    tokens, merges, added       counts and lengths
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import ceil, prod
from typing import Any, NamedTuple

from flyweight.foundation.errors import LimitError, MalformedError, UnsupportedError
from flyweight.models.checked_record import Record

MAX_TOKENS = 2**20
MAX_TOKEN_LENGTH = 4096
MAX_ADDED_LENGTH = 1024
MAX_ADDED_CHARACTERS = 2**20
MAX_GROWTH = 1024
MAX_TOKEN_GROWTH = 16
_MAX_COMPONENTS = 64
_MAX_NESTING = 4
_MAX_CONTENT = 1024
_MAX_CHARSMAP = 4 * 2**20

_LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
_FILE = "tokenizer.json"
_SPACE = "▁"
"""SentencePiece's sign for a space: a character of three bytes that stands for one, and a token in every such vocabulary."""


class TextCost(NamedTuple):
    """What a tokenizer may do with a text."""

    growth: int = 1
    """The most characters made of a byte of text."""
    squares: bool = False
    """Whether a run of white space takes the square of its length (see `tokenizer_patterns`)."""


def text_cost(normalizer: Any, pre_tokenizer: Any) -> TextCost:
    """What encoding may cost. Components that we do not run are errors, and so are those that make too much of a text."""
    normalizers = _flat(normalizer, "normalizer", 0)
    pre_tokenizers = _flat(pre_tokenizer, "pre_tokenizer", 0)
    cuts = [_read(part, "pre_tokenizer", _PRE_TOKENIZERS) for part in pre_tokenizers]
    growth = prod([*(_read(part, "normalizer", _NORMALIZERS).growth for part in normalizers), *(c.growth for c in cuts)])
    if growth > MAX_GROWTH:
        raise _too_much(f"its normalizer can turn one character into {growth}; the limit is {MAX_GROWTH}")
    squares = any(cut.squares for cut in cuts)
    if squares and normalizers:
        raise _unsupported(r"a normalizer beside the pattern '\s+$'")
    return TextCost(growth, squares)


def check_decoder(decoder: Any) -> None:
    """Refuse what we do not run, and what makes too much of a token."""
    growth = prod(_read(part, "decoder", _DECODERS).growth for part in _flat(decoder, "decoder", 0))
    if growth > MAX_TOKEN_GROWTH:
        raise _too_much(f"its decoder can turn one character into {growth}; the limit is {MAX_TOKEN_GROWTH}")


def check_sizes(tokens: Collection[str], merges: Collection[object], added: Collection[str], *, longest: int) -> None:
    """Counts and lengths of a vocabulary; `longest` is the length of its longest token."""
    lengths = list(map(len, tokens))
    # A merge is a token cut in two, so there are no more of them than places to cut.
    for what, count, most in (
        ("tokens", len(tokens), MAX_TOKENS),
        ("characters in a token", max(lengths, default=0), longest),
        ("merges", len(merges), sum(lengths)),
        ("added tokens", len(added), MAX_TOKENS),
        ("characters in an added token", max(map(len, added), default=0), MAX_ADDED_LENGTH),
        ("characters in all added tokens", sum(map(len, added)), MAX_ADDED_CHARACTERS),
    ):
        if count > most:
            raise LimitError(f"{count} {what}; the limit is {most}", code="E_TOKENIZER")


def _bad(message: str) -> MalformedError:
    return MalformedError(message, code="E_TOKENIZER", file=_FILE)


def _too_much(message: str) -> LimitError:
    return LimitError(message, code="E_TOKENIZER", file=_FILE)


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the tokenizer has {what}, which is not supported",
        code="E_TOKENIZER",
        file=_FILE,
        hint="docs/formats/tokenizers.md lists the supported components",
    )


def _flat(component: Any, place: str, depth: int) -> list[Record]:
    """The components of a place in their order, sequences taken apart."""
    if component is None:
        return []
    record = Record(component, _FILE, what=f"'{place}'")
    if record.text("type") != "Sequence":
        return [record]
    if depth == _MAX_NESTING:
        raise _too_much(f"'{place}' nests deeper than {_MAX_NESTING}")
    parts: list[Record] = []
    for inner in record.items(_LISTS[place], dict):
        parts += _flat(inner, place, depth + 1)
        if len(parts) > _MAX_COMPONENTS:
            raise _too_much(f"'{place}' has more than {_MAX_COMPONENTS} parts")
    return parts


Reader = Callable[[Record], TextCost]


def _read(part: Record, place: str, known: Mapping[str, Reader]) -> TextCost:
    kind = part.text("type")
    if kind not in known:
        raise _unsupported(f"a {place} of type '{kind}'")
    return known[kind](part)


def _by(growth: int) -> Reader:
    return lambda _: TextCost(growth)


def _content(part: Record, key: str) -> str:
    text = part.text(key)
    if len(text) > _MAX_CONTENT:
        raise _too_much(f"'{key}' has {len(text)} characters; the limit is {_MAX_CONTENT}")
    return text


def _size(text: str) -> int:
    return len(text.replace(_SPACE, " ").encode())


def _pattern(part: Record) -> tuple[int, bool]:
    """The fewest bytes a pattern matches, and whether runs of white space are dear."""
    given = part.get("pattern")
    kind, text = next(iter(given.items())) if isinstance(given, dict) and len(given) == 1 else ("", None)
    if kind not in ("String", "Regex") or not isinstance(text, str):
        part.fail("pattern", "a String or a Regex")
    if kind == "Regex":
        from flyweight.models.tokenizers.patterns import read_pattern

        found = read_pattern(text)
        return found.least, found.squares
    if not text or len(text) > _MAX_CONTENT:
        raise _bad(f"a pattern has {len(text)} characters; it may have 1 to {_MAX_CONTENT}")
    return _size(text), False


def _replace(part: Record) -> TextCost:
    least, squares = _pattern(part)
    if squares:
        raise _unsupported("a replacement of trailing white space")
    return TextCost(max(1, ceil(_size(_content(part, "content")) / least)))


def _added_in_front(key: str) -> Reader:
    """Put before each part of a text between added tokens, which may be single characters."""
    return lambda part: TextCost(1 + _size(_content(part, key)))


def _charsmap(part: Record) -> TextCost:
    """SentencePiece's table: a trie of 32-bit words after its size in bytes, then the replacements, each ended by NUL."""
    import base64

    text = part.text("precompiled_charsmap")
    if len(text) > _MAX_CHARSMAP:
        raise _too_much("'precompiled_charsmap' is longer than 4 MiB")
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raise _bad("'precompiled_charsmap' is not base64") from None
    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or size % 4 or not 4 <= size <= len(raw) - 4:
        raise _bad("'precompiled_charsmap' has another size than it says")
    replacements = raw[4 + size :]
    try:
        decoded = replacements.decode()
    except UnicodeDecodeError:
        raise _bad("'precompiled_charsmap' has replacements that are not UTF-8") from None
    return TextCost(max(1, *map(_size, decoded.split("\0"))))


def _split(part: Record) -> TextCost:
    _, squares = _pattern(part)
    return TextCost(1, squares)


def _metaspace(part: Record) -> TextCost:
    if len(part.text("replacement")) != 1:
        part.fail("replacement", "one character")
    return TextCost(2)


def _byte_level(part: Record) -> TextCost:
    return TextCost(2 if part.flag("add_prefix_space", True) else 1)


# A character's longest normal form has 3 (NFC, NFD) or 11 (NFKC, NFKD) times its bytes, its lower case at most twice them.
_NORMALIZERS: dict[str, Reader] = {
    "NFC": _by(3),
    "NFD": _by(3),
    "NFKC": _by(11),
    "NFKD": _by(11),
    "Nmt": _by(1),
    "Lowercase": _by(2),
    "Strip": _by(1),
    "StripAccents": _by(1),
    "BertNormalizer": _by(3 * 3 * 2),
    "Precompiled": _charsmap,
    "Prepend": _added_in_front("prepend"),
    "Replace": _replace,
}
_PRE_TOKENIZERS: dict[str, Reader] = {
    "ByteLevel": _byte_level,
    "Split": _split,
    "Digits": _by(1),
    "Metaspace": _metaspace,
    "Whitespace": _by(1),
    "WhitespaceSplit": _by(1),
    "Punctuation": _by(1),
    "BertPreTokenizer": _by(1),
    "CharDelimiterSplit": _by(1),
}
_DECODERS: dict[str, Reader] = {
    "ByteLevel": _by(1),
    "Replace": _replace,
    "ByteFallback": _by(3),  # a byte that is no text is U+FFFD
    "Fuse": _by(1),
    "Strip": _by(1),
    "Metaspace": _metaspace,
    "WordPiece": _by(2),
    "BPEDecoder": _by(2),
}
