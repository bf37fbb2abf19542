"""tokenizer.json as data → the library's tokenizer, after everything in it has been checked.

The library never sees the file: it gets components that `models.tokenizer_components` accepts, and the tables of the model
as they are. That is safe and quick: writing 49 000 tokens and merges as JSON only to parse them again takes three times as long
as handing them over. The post-processor is not handed over at all, for the library would run it on every text; what it puts
before a text, `tokens_before` reads from its description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from flyweight.foundation import strict_json
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.models.checked_record import Record
from flyweight.models.tokenizers.components import (
    MAX_TOKEN_LENGTH,
    TextCost,
    check_decoder,
    check_sizes,
    text_cost,
)
from flyweight.models.tokenizers.tokenizer_json import TOKENIZER_JSON

if TYPE_CHECKING:
    import tokenizers

_FLAGS = ("single_word", "lstrip", "rstrip")
_EMPTY_MODEL = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
_MAX_UNIGRAM_LENGTH = 128  # every prefix of what is left of a text is looked up, as long as it may be a token
_MAX_WORD = 256  # characters of a WordPiece word: its time is their square


def bad_tokenizer(message: str) -> MalformedError:
    return MalformedError(message, code="E_TOKENIZER", hint="the tokenizer of this model is damaged")


@contextmanager
def typed_errors(what: str) -> Iterator[None]:
    """The library reports with plain Exception, and where it panics, with a BaseException."""
    try:
        yield
    except (FlyweightError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001
        raise bad_tokenizer(f"the tokenizer cannot {what}: {str(error)[:200]}") from None


def build(table: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, TextCost]:
    """The tokenizer that a tokenizer.json describes, and what encoding with it may cost."""
    import tokenizers

    whole = Record(table, TOKENIZER_JSON)
    cost = text_cost(whole.get("normalizer"), whole.get("pre_tokenizer"))
    check_decoder(whole.get("decoder"))
    model = whole.table("model")
    if model is None:
        whole.fail("model", "an object")
    kind = model.text("type", "BPE")
    if kind not in _MODELS:
        raise UnsupportedError(f"a tokenizer of type '{kind}' is not supported", code="E_TOKENIZER", file=TOKENIZER_JSON)
    given = whole.items("added_tokens", dict) if "added_tokens" in whole else []
    added = [Record(token, TOKENIZER_JSON, what="an added token") for token in given]
    texts = [token.text("content") for token in added]
    parts = {place: whole.get(place) for place in ("normalizer", "pre_tokenizer", "decoder")}
    frame = {"version": "1.0", "added_tokens": [], "post_processor": None, **parts, "model": _EMPTY_MODEL}
    with typed_errors("be built"):
        made = tokenizers.Tokenizer.from_str(strict_json.dumps(frame).decode())
        made.model = _MODELS[kind](model, texts)
        made.add_tokens([_added_token(token, text) for token, text in zip(added, texts, strict=True)])
    for token, text in zip(added, texts, strict=True):
        if made.token_to_id(text) != token.get("id"):
            raise bad_tokenizer(f"the added token '{text}' has another id than in the vocabulary")
    return made, cost


def _added_token(token: Record, text: str) -> tokenizers.AddedToken:
    from tokenizers import AddedToken

    special = token.flag("special", False)
    flags = {flag: token.flag(flag, False) for flag in _FLAGS}
    return AddedToken(text, normalized=token.flag("normalized", not special), special=special, **flags)


def _vocab(model: Record) -> dict[str, int]:
    table = model.get("vocab")
    if not isinstance(table, Mapping):
        model.fail("vocab", "an object")
    return table if type(table) is dict else dict(table)


def _bpe(model: Record, added: list[str]) -> tokenizers.models.BPE:
    from tokenizers.models import BPE

    vocab, merges = _vocab(model), _pairs(model)
    check_sizes(vocab, merges, added, longest=MAX_TOKEN_LENGTH)
    if model.get("dropout"):
        raise UnsupportedError("'dropout' is not supported: it makes token ids random", code="E_TOKENIZER", file=TOKENIZER_JSON)
    affixes = {key: model.text(key) for key in ("continuing_subword_prefix", "end_of_word_suffix") if key in model}
    return BPE(
        vocab=vocab,
        merges=merges,
        unk_token=model.get("unk_token"),
        **affixes,
        fuse_unk=model.flag("fuse_unk", False),
        byte_fallback=model.flag("byte_fallback", False),
        ignore_merges=model.flag("ignore_merges", False),
    )


def _pairs(model: Record) -> list[tuple[str, str]]:
    """Merges as pairs; older files write them as texts with one space."""
    merges = model.get("merges")
    kinds = set(map(type, merges)) if isinstance(merges, list) else {type(merges)}
    if kinds <= {tuple}:
        return list(merges)
    if kinds == {str}:
        merges = [merge.split(" ") for merge in merges]
    elif kinds != {list}:
        model.fail("merges", "a list of pairs")
    if set(map(len, merges)) != {2}:
        model.fail("merges", "a list of pairs")
    return list(map(tuple, merges))


def _unigram(model: Record, added: list[str]) -> tokenizers.models.Unigram:
    from tokenizers.models import Unigram

    pieces = [tuple(piece) for piece in model.items("vocab", list)]
    if not all(len(piece) == 2 and isinstance(piece[0], str) for piece in pieces):
        model.fail("vocab", "a list of pieces with scores")
    check_sizes([text for text, _ in pieces], (), added, longest=_MAX_UNIGRAM_LENGTH)
    return Unigram(vocab=pieces, unk_id=model.get("unk_id"), byte_fallback=model.flag("byte_fallback", False))


def _word_piece(model: Record, added: list[str]) -> tokenizers.models.WordPiece:
    from tokenizers.models import WordPiece

    vocab = _vocab(model)
    check_sizes(vocab, (), added, longest=MAX_TOKEN_LENGTH)
    longest = model.integer("max_input_chars_per_word", 100)
    if longest > _MAX_WORD:
        raise UnsupportedError(
            f"words of {longest} characters; the limit is {_MAX_WORD}", code="E_TOKENIZER", file=TOKENIZER_JSON
        )
    return WordPiece(
        vocab=vocab,
        unk_token=model.text("unk_token", "[UNK]"),
        max_input_chars_per_word=longest,
        continuing_subword_prefix=model.text("continuing_subword_prefix", "##"),
    )


def _word_level(model: Record, added: list[str]) -> tokenizers.models.WordLevel:
    from tokenizers.models import WordLevel

    vocab = _vocab(model)
    check_sizes(vocab, (), added, longest=MAX_TOKEN_LENGTH)
    return WordLevel(vocab=vocab, unk_token=model.text("unk_token", "<unk>"))


_MODELS: dict[str, Callable[[Record, list[str]], tokenizers.models.Model]] = {
    "BPE": _bpe,
    "Unigram": _unigram,
    "WordPiece": _word_piece,
    "WordLevel": _word_level,
}


def tokens_before(processor: Any) -> list[int]:
    """The ids a post-processor adds to an empty text; the first of them comes before any text."""
    if processor is None:
        return []
    record = Record(processor, TOKENIZER_JSON, what="'post_processor'")
    kind = record.text("type")
    if kind == "Sequence":
        return list(chain.from_iterable(map(tokens_before, record.items("processors", dict))))
    if kind in ("BertProcessing", "RobertaProcessing"):
        ends = [record.items(key, (str, int)) for key in ("cls", "sep")]
        return [index for end in ends for index in end if type(index) is int]
    if kind == "TemplateProcessing":
        named = record.table("special_tokens") or Record({}, TOKENIZER_JSON)
        return list(chain.from_iterable(_template_ids(step, named) for step in record.items("single", dict)))
    return []


def _template_ids(step: dict[str, Any], named: Record) -> list[int]:
    token = step.get("SpecialToken")
    entry = named.table(str(token.get("id"))) if isinstance(token, dict) else None
    return [] if entry is None else entry.items("ids", int)
