"""A tokenizer and chat templates as GGUF metadata.

tokenizer.ggml.model        "gpt2" (byte-level BPE) or "llama" (SentencePiece)
tokenizer.ggml.tokens       [str]   one for each row of the embedding; [PADi] fills the rows without one
tokenizer.ggml.token_type   [i32]   normal 1, unknown 2, control 3, user-defined 4, unused 5, byte 6
tokenizer.ggml.merges       [str]   gpt2: "left right", in order
tokenizer.ggml.scores       [f32]   llama: the highest joins first
tokenizer.ggml.pre          str     how text is cut (see `pre_tokenizers`)
tokenizer.ggml.*_token_id   u32     BOS, EOS, unknown, padding …
tokenizer.chat_template     str     and one more key for each other template: tokenizer.chat_template.<name>
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import repeat
from typing import Any

from flyweight.foundation import strict_json
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.manifest import Typed
from flyweight.models.checked_record import Record
from flyweight.models.dialects.contract import Templates, Text
from flyweight.models.tokenizers.pre_tokenizers import named
from flyweight.models.tokenizers.vocabulary import BYTE_LEVEL, PIECES, TokenType, Vocabulary, bad_vocabulary, check

_PREFIX = "tokenizer.ggml."
_TEMPLATE_KEY = "tokenizer.chat_template"
_TEMPLATE_NAME = re.compile("[A-Za-z0-9_]{1,64}")
TOKENIZER_SETTINGS, GENERATION = "flyweight.tokenizer_config", "flyweight.generation_config"

_ROLE_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # sic: the key is spelled so
    "mask_token": "mask_token_id",
}


def read_vocabulary(metadata: Record, vocab: int) -> Vocabulary | None:
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
        raise bad_vocabulary(f"{len(tokens)} tokens for {vocab} rows of the embedding")
    types_key = _PREFIX + "token_type"
    types = metadata.items(types_key, int) if types_key in metadata else [int(TokenType.NORMAL)] * len(tokens)
    special = {role: metadata.integer(_PREFIX + key, least=0) for role, key in _ROLE_KEYS.items() if _PREFIX + key in metadata}
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
        raise bad_vocabulary(f"the merge '{merge}' is not a pair")
    return merge[:1] + left, right


def _read_details(metadata: Record) -> dict[int, Mapping[str, Any]]:
    text = metadata.text("flyweight.added_tokens", "{}")
    table = strict_json.loads(text.encode(), file="flyweight.added_tokens")
    details: dict[int, Mapping[str, Any]] = {}
    for key, value in Record(table, "flyweight.added_tokens").unused().items():
        if not key.isdecimal() or len(key) > 9 or not isinstance(value, dict):
            raise bad_vocabulary(f"'flyweight.added_tokens' has a bad entry '{key}'")
        details[int(key)] = value
    return details


def _vocabulary_metadata(vocabulary: Vocabulary | None) -> dict[str, Typed]:
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
    own |= {_ROLE_KEYS[role]: Typed("u32", index) for role, index in vocabulary.special.items()}
    own["add_bos_token"] = Typed("bool", vocabulary.add_bos)
    own["add_eos_token"] = Typed("bool", vocabulary.add_eos)
    metadata = {_PREFIX + key: typed for key, typed in own.items()}
    if pieces and vocabulary.pre:
        metadata["flyweight.space_form"] = Typed("str", vocabulary.pre)
    if vocabulary.details:
        details = {str(index): dict(flags) for index, flags in vocabulary.details.items()}
        metadata["flyweight.added_tokens"] = Typed("str", strict_json.dumps(details).decode())
    return metadata


def end_tokens(metadata: Record, rows: int) -> list[int]:
    """Tokens that end an answer."""
    given = [metadata.get(f"{_PREFIX}{name}_token_id") for name in ("eos", "eot", "eom")]
    return [index for index in given if type(index) is int and 0 <= index < rows]


def read_remembered(metadata: Record, key: str) -> dict[str, Any]:
    """What a file of an HF directory said, where the GGUF file was metadata from one."""
    return Record(strict_json.loads(metadata.text(key, "{}").encode(), file=key), key).unused()


def read_templates(metadata: Record) -> Templates:
    """The chat templates of a GGUF file."""
    metadata.get("tokenizer.chat_templates")  # the list of names repeats the keys
    keys = [key for key in metadata.everything() if key == _TEMPLATE_KEY or key.startswith(_TEMPLATE_KEY + ".")]
    return {key.removeprefix(_TEMPLATE_KEY)[1:] or "default": metadata.text(key) for key in keys}


def text_metadata(text: Text) -> dict[str, Typed]:
    """All metadata of the tokenizer, the templates and what goes with them."""
    words, templates = _vocabulary_metadata(text.vocabulary), _template_metadata(text.templates)
    metadata = words | templates if text.vocabulary else templates | words
    if text.tokenizer_settings:
        metadata[TOKENIZER_SETTINGS] = Typed("str", strict_json.dumps(text.tokenizer_settings).decode())
    if text.generation is not None:
        metadata[GENERATION] = Typed("str", strict_json.dumps(text.generation).decode())
    return metadata


def _template_metadata(templates: Templates) -> dict[str, Typed]:
    metadata: dict[str, Typed] = {}
    for name, text in templates.items():
        if not _TEMPLATE_NAME.fullmatch(name):
            raise UnsupportedError(f"a chat template named '{name}' has no key in GGUF", code="E_TOKENIZER")
        metadata[_TEMPLATE_KEY if name == "default" else f"{_TEMPLATE_KEY}.{name}"] = Typed("str", text)
    others = sorted(set(templates) - {"default"})
    return metadata | ({"tokenizer.chat_templates": Typed("[str]", others)} if others else {})
