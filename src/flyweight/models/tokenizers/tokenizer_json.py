"""A tokenizer as tokenizer.json: vocabulary, merges, added tokens and the components around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.models.checked_record import Record
from flyweight.models.tokenizers.merges import merges_from_scores, scores_from_merges
from flyweight.models.tokenizers.pre_tokenizers import BYTE_LEVEL_DECODER, SPACE_FORMS, SpaceForm, named, recognise, space_form
from flyweight.models.tokenizers.vocabulary import (
    BYTE_LEVEL,
    PIECES,
    SPECIAL_TOKENS,
    TokenType,
    Vocabulary,
    check,
    is_byte,
    placeholder,
)

TOKENIZER_JSON = "tokenizer.json"

_ADDED = frozenset(map(int, (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)))
_UNUSED, _USER_DEFINED = int(TokenType.UNUSED), int(TokenType.USER_DEFINED)
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
_ADDED_SCORE = -1000.0  # what GGUF writers give tokens that take no part in merging
_UNUSED_SCORE = -10000.0


def _bad(message: str) -> MalformedError:
    return MalformedError(message, code="E_TOKENIZER", file=TOKENIZER_JSON)


def _unsupported(message: str) -> UnsupportedError:
    return UnsupportedError(message, code="E_TOKENIZER", file=TOKENIZER_JSON)


# --- writing ---------------------------------------------------------------------------------------------------------


def write(vocabulary: Vocabulary) -> dict[str, Any]:
    """tokenizer.json for a vocabulary."""
    table = describe(vocabulary)
    vocab = table["model"]["vocab"]
    for left, right in table["model"]["merges"]:
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise _bad(f"the merge of '{left}' and '{right}' has parts that are not tokens")
    return table


def describe(vocabulary: Vocabulary) -> dict[str, Any]:
    """What `write` gives, for a reader who will find merges of parts that are no tokens himself."""
    pieces = vocabulary.kind == PIECES
    texts = _hf_texts(vocabulary) if pieces else vocabulary.tokens
    ids = dict(zip(texts, range(len(texts)), strict=True)) if pieces else vocabulary.ids
    if len(ids) != len(texts):
        raise _bad("two tokens differ only in how they write spaces")
    if _UNUSED in vocabulary.types:
        unused = (index for index, type_ in enumerate(vocabulary.types) if type_ == _UNUSED)
        fillers = {index for index in unused if vocabulary.tokens[index] == placeholder(index)}
        ids = {text: index for text, index in ids.items() if index not in fillers}
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": ids,
    }
    if pieces:
        form = _form(vocabulary)
        unknown = vocabulary.special.get("unk_token")
        normalizer, pre_tokenizer, decoder = form.normalizer, form.pre_tokenizer, _pieces_decoder(form)
        model["unk_token"] = None if unknown is None else texts[unknown]
        model["fuse_unk"] = True
        model["byte_fallback"] = TokenType.BYTE in vocabulary.types
        merges: Sequence[tuple[str, str]] = merges_from_scores(texts, vocabulary.types, vocabulary.scores)
    else:
        row = named(vocabulary.pre)
        normalizer, pre_tokenizer, decoder = row.normalizer, row.pre_tokenizer, BYTE_LEVEL_DECODER
        model["ignore_merges"] = row.ignore_merges
        merges = vocabulary.merges
    added = {index for index, type_ in enumerate(vocabulary.types) if type_ in _ADDED} | set(vocabulary.special.values())
    model["merges"] = merges
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(vocabulary, index, texts[index]) for index in sorted(added)],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _template(vocabulary, texts),
        "decoder": decoder,
        "model": model,
    }


def _hf_texts(vocabulary: Vocabulary) -> list[str]:
    """Pieces as tokenizer.json writes them; GGUF writes the spaces of user-defined ones plainly."""
    texts = list(vocabulary.tokens)
    for index, type_ in enumerate(vocabulary.types):
        if type_ == _USER_DEFINED:
            kept = vocabulary.details.get(index, {}).get("content")
            known = isinstance(kept, str) and kept.replace("▁", " ") == texts[index]
            texts[index] = str(kept) if known else texts[index].replace(" ", "▁")
    return texts


def _added_token(vocabulary: Vocabulary, index: int, text: str) -> dict[str, Any]:
    flags = vocabulary.details.get(index, {})
    return (
        {"id": index, "content": text}
        | {flag: flags.get(flag) is True for flag in _FLAGS}
        | {"special": vocabulary.types[index] != TokenType.USER_DEFINED}
    )


def _form(vocabulary: Vocabulary) -> SpaceForm:
    for form in SPACE_FORMS:
        if form.name == vocabulary.pre or (not vocabulary.pre and form.prefix == vocabulary.space_prefix):
            return form
    raise MalformedError(f"unknown space form '{vocabulary.pre}'", code="E_TOKENIZER", file="flyweight.space_form")


def _pieces_decoder(form: SpaceForm) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if form.prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _template(vocabulary: Vocabulary, texts: list[str]) -> dict[str, Any] | None:
    """BOS before and EOS after each text, where the vocabulary wants them."""
    before = ["bos_token"] if vocabulary.add_bos else []
    after = ["eos_token"] if vocabulary.add_eos else []
    if not before and not after:
        return None

    def around(sequence: str, type_id: int) -> list[dict[str, Any]]:
        def special(role: str) -> dict[str, Any]:
            return {"SpecialToken": {"id": texts[vocabulary.special[role]], "type_id": type_id}}

        middle = {"Sequence": {"id": sequence, "type_id": type_id}}
        return [*map(special, before), middle, *map(special, after)]

    used = {texts[index]: index for index in (vocabulary.special[role] for role in before + after)}
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {text: {"id": text, "ids": [index], "tokens": [text]} for text, index in used.items()},
    }


# --- reading ---------------------------------------------------------------------------------------------------------


def read(tokenizer: Record, config: Record, vocab: int) -> Vocabulary:
    """The vocabulary of tokenizer.json, with the roles that tokenizer_config.json gives its tokens."""
    model = tokenizer.table("model")
    if model is None:
        tokenizer.fail("model", "an object")
    if model.text("type", "BPE") != "BPE":
        raise _unsupported(f"a tokenizer of type '{model.text('type')}' cannot be stored in GGUF; only BPE can")
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise _unsupported(f"'{key}' cannot be stored in GGUF")
    ids = _ids(model, vocab)
    merges = _merges(model)
    normalizer, pre_tokenizer = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
    row = recognise(normalizer, pre_tokenizer, ignore_merges=model.flag("ignore_merges", False))
    form = None if row else space_form(normalizer, pre_tokenizer)
    if row is None and form is None:
        raise _unsupported("GGUF has no name for its combination of normalizer and pre-tokenizer")
    tokens = [placeholder(index) for index in range(vocab)]
    types = [int(TokenType.UNUSED)] * vocab
    for token, index in ids.items():
        tokens[index] = token
        types[index] = int(TokenType.BYTE if form and is_byte(token) else TokenType.NORMAL)
    details = _add(tokenizer, ids, tokens, types, pieces=form is not None)
    special = _roles(config, ids)
    if form and model.get("unk_token") is not None:
        special.setdefault("unk_token", ids.get(model.text("unk_token"), vocab))
        if special["unk_token"] < vocab:
            types[special["unk_token"]] = int(TokenType.UNKNOWN)
    add_bos, add_eos = _added_around(tokenizer, config, special, ids)
    words = Vocabulary(
        BYTE_LEVEL, tokens, types, row.name if row else "", special=special, add_bos=add_bos, add_eos=add_eos, details=details
    )
    if form is None:
        return check(words._replace(merges=merges))
    usual = next(other for other in SPACE_FORMS if other.prefix == form.prefix)
    name, scores = "" if form is usual else form.name, _scores(ids, types, merges)
    return check(words._replace(kind=PIECES, pre=name, scores=scores, space_prefix=form.prefix))


def _ids(model: Record, vocab: int) -> dict[str, int]:
    table = model.table("vocab")
    if table is None:
        model.fail("vocab", "an object")
    ids = table.unused()
    for token, index in ids.items():
        if type(index) is not int or not 0 <= index < vocab:
            raise _bad(f"the token '{token}' has the id {index!r}; the embedding has {vocab} rows")
    if len(set(ids.values())) != len(ids):
        raise _bad("two tokens share an id")
    return ids


def _merges(model: Record) -> list[tuple[str, str]]:
    """Pairs, or as older files write them, texts with one space."""
    pairs: list[tuple[str, str]] = []
    for merge in model.items("merges", (str, list)):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
            raise _bad(f"the merge {str(merge)[:80]!r} is not a pair")
        pairs.append((parts[0], parts[1]))
    return pairs


def _add(
    tokenizer: Record, ids: dict[str, int], tokens: list[str], types: list[int], *, pieces: bool
) -> dict[int, dict[str, Any]]:
    """Enter the added tokens; return what GGUF cannot say of them."""
    details: dict[int, dict[str, Any]] = {}
    for item in tokenizer.items("added_tokens", dict) if "added_tokens" in tokenizer else ():
        token = Record(item, TOKENIZER_JSON, what="an added token")
        text, index = token.text("content"), token.integer("id", least=0)
        if index >= len(tokens):
            raise _bad(f"the added token '{text}' has the id {index}; the embedding has {len(tokens)} rows")
        if ids.get(text, index) != index:
            raise _bad(f"the token '{text}' has the ids {ids[text]} and {index}")
        if types[index] != TokenType.UNUSED and text not in ids:
            raise _bad(f"the tokens '{tokens[index]}' and '{text}' share the id {index}")
        ids[text] = index
        user_defined = not token.flag("special", False)
        tokens[index] = text.replace("▁", " ") if pieces and user_defined else text
        types[index] = int(TokenType.USER_DEFINED if user_defined else TokenType.CONTROL)
        kept: dict[str, Any] = {flag: True for flag in _FLAGS if token.flag(flag, False)}
        if pieces and user_defined and " " in text:
            kept["content"] = text
        if kept:
            details[index] = kept
    return details


def _roles(config: Record, ids: dict[str, int]) -> dict[str, int]:
    """bos_token and the like: a text, or an object with a text."""
    roles: dict[str, int] = {}
    for role in SPECIAL_TOKENS:
        token = config.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        if text is None:
            continue
        if not isinstance(text, str):
            config.fail(role, "text")
        if text not in ids:
            raise MalformedError(f"{role} '{text}' is not a token", code="E_TOKENIZER", file=config.file)
        roles[role] = ids[text]
    return roles


def _added_around(tokenizer: Record, config: Record, special: dict[str, int], ids: dict[str, int]) -> tuple[bool, bool]:
    """Whether a text begins with BOS and ends with EOS."""
    processor = tokenizer.get("post_processor")
    parts = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    for part in parts if isinstance(parts, list) else []:
        if not isinstance(part, dict) or part.get("type") != "TemplateProcessing":
            continue
        single = part.get("single")
        steps = [step for step in single if isinstance(step, dict)] if isinstance(single, list) else []
        at = next((i for i, step in enumerate(steps) if "Sequence" in step), None)
        if at is None:
            raise _bad("the template of 'post_processor' does not contain the text")
        before, after = _special_ids(steps[:at], ids), _special_ids(steps[at + 1 :], ids)
        for found, role in ((before, "bos_token"), (after, "eos_token")):
            if found and found != [special.get(role)]:
                raise _unsupported(f"'post_processor' adds tokens other than {role}, which GGUF cannot express")
        return bool(before), bool(after)
    wanted = (config.flag("add_bos_token", False), config.flag("add_eos_token", False))
    return wanted[0] and "bos_token" in special, wanted[1] and "eos_token" in special


def _special_ids(steps: list[dict[str, Any]], ids: dict[str, int]) -> list[int | None]:
    names = [step.get("SpecialToken") for step in steps]
    return [ids.get(str(name.get("id"))) if isinstance(name, dict) else None for name in names]


def _scores(ids: dict[str, int], types: list[int], merges: list[tuple[str, str]]) -> list[float]:
    made = scores_from_merges(ids, types, merges)
    fixed: dict[int, float] = {TokenType.BYTE: 0.0, TokenType.UNUSED: _UNUSED_SCORE, **dict.fromkeys(_ADDED, _ADDED_SCORE)}
    scores: list[float] = []
    alone = len(made)
    for index, type_ in enumerate(types):
        score = fixed.get(type_, made.get(index))
        if score is None:  # single characters: no pair makes them, any low score will do
            score, alone = -float(alone), alone + 1
        scores.append(score)
    return scores
