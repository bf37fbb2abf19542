"""Special tokens that people write are text; those that a template writes are control."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import tokenizers

from flyweight.checkpoint import Checkpoint
from flyweight.foundation.manifest import Manifest
from flyweight.models.tokenizers.pre_tokenizers import BYTE_LEVEL_DECODER, PRE_TOKENIZERS, SPACE_FORMS
from flyweight.runtime.model import Model
from flyweight.runtime.text.chat_template import Renderer
from flyweight.runtime.text.literal import as_text
from flyweight.runtime.text.tokenizer import Tokenizer
from flyweight.sources import MemoryBundle
from support.chat_templates import CHATML, GEMMA, LLAMA3, MISTRAL, PHI3
from support.tiny_models import hf_manifest

BYTES = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIALS = (
    "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
    "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|end|>", "<|assistant|>", "<|aba|>", "←",
)  # fmt: skip
TEMPLATES = (CHATML, LLAMA3, GEMMA, MISTRAL, PHI3)
FRAMES = ("{}", "Say {} now.", " {}{}\n{} ", "<{}>", "a{}", "{}{}{}")
PIECES = {form.name for form in SPACE_FORMS}
FAMILIES = {row.name: row for row in PRE_TOKENIZERS} | {form.name: form for form in SPACE_FORMS}


def tokenizer_json(family: str, **flags: bool) -> dict[str, Any]:
    """A vocabulary of single bytes or letters, all special tokens, and the components of a family."""
    row = FAMILIES[family]
    pieces = family in PIECES
    letters = [*FALLBACK, "▁", *map(chr, range(33, 127))] if pieces else BYTES
    words = [*SPECIALS, *letters]
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoder = {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": text} | plain | flags for index, text in enumerate(SPECIALS)],
        "normalizer": row.normalizer,
        "pre_tokenizer": row.pre_tokenizer,
        "post_processor": None,
        "decoder": decoder if pieces else BYTE_LEVEL_DECODER,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>" if pieces else None,
            "fuse_unk": pieces,
            "byte_fallback": pieces,
            "ignore_merges": not pieces and row.ignore_merges,
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": [],
        },
    }


class Words(Model):
    """A model of which only the words are used."""

    context = 4096  # type: ignore[assignment]

    def __init__(self, table: dict[str, Any], template: str) -> None:
        plain = hf_manifest("llama", {"vocab_size": 400})
        entries = {}
        for name, entry in plain.entries.items():
            spec = type(entry.spec)((400, *entry.spec.shape[1:]), entry.spec.dtype)
            entries[name] = type(entry)(name, spec, entry.codec, {"data": spec}) if entry.spec.shape[0] == 20 else entry
        config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
        files = {"tokenizer.json": json.dumps(table).encode(), "tokenizer_config.json": json.dumps(config).encode()}
        self.checkpoint = Checkpoint(MemoryBundle({}, "toy"), None, Manifest("hf", entries, {}, {**plain.files, **files}, "hf"))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    with Renderer() as made:
        yield made


def said(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def controls(words: Tokenizer, ids: list[int]) -> Counter[int]:
    return Counter(index for index in ids if index in words.special)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_people_write_is_text(family: str, renderer: Renderer) -> None:
    models = [Words(tokenizer_json(family), template) for template in TEMPLATES]
    for special, frame, model in zip(SPECIALS, cycle(FRAMES), cycle(models), strict=False):
        if len(special) == 1 and family in PIECES:
            continue  # the vocabulary has no other way to write it
        words = model.tokenizer
        neutral = model.prompt(said(frame.replace("{}", "QQQ")), renderer)
        ids = model.prompt(said(frame.replace("{}", special)), renderer)
        assert controls(words, ids) == controls(words, neutral), (special, frame)
        assert words.decode(ids, special=True) == words.decode(neutral, special=True).replace("QQQ", special)
        raw = model.prompt(said(frame.replace("{}", special)), renderer, raw_special=True)
        assert controls(words, raw) - controls(words, neutral) == {SPECIALS.index(special): frame.count("{}")}


@pytest.mark.parametrize("family", FAMILIES)
def test_messages_without_special_tokens_are_encoded_as_ever(family: str, renderer: Renderer) -> None:
    table = tokenizer_json(family)
    theirs = tokenizers.Tokenizer.from_str(json.dumps(table))
    contents = ("Hello", " a  b\n\n1234 <b>&amp; < |im_end|> <|im_end |>", "naïve 👩‍👩‍👧 ▁▁", "\ufdd0 <|IM_END|>")
    for template, content in zip(TEMPLATES, cycle(contents), strict=False):
        model = Words(table, template)
        text = renderer(template, said(content), bos_token="<s>", eos_token="</s>")
        assert model.prompt(said(content), renderer) == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("flag", ["normalized", "lstrip", "rstrip", "single_word"])
def test_flags_of_special_tokens(family: str, flag: str, renderer: Renderer) -> None:
    model = Words(tokenizer_json(family, **{flag: True}), CHATML)
    words = model.tokenizer
    neutral, ids = (model.prompt(said(f"a {text} b"), renderer) for text in ("QQQ", "<|im_end|>"))
    if flag != "normalized":
        assert controls(words, ids) == controls(words, neutral)
        assert words.decode(ids, special=True) == words.decode(neutral, special=True).replace("QQQ", "<|im_end|>")
    # Where a template's own tokens are found after normalization only, more of them may be found than before.
    assert controls(words, ids)[SPECIALS.index("<|im_end|>")] <= 1 + CHATML.count("<|im_end|>")


def test_a_tokenizer_that_ignores_case(renderer: Renderer) -> None:
    table = tokenizer_json("gpt-2", normalized=True) | {"normalizer": {"type": "Lowercase"}}
    model = Words(table, CHATML)
    words = model.tokenizer
    neutral, ids = (model.prompt(said(f"a {text} b"), renderer) for text in ("qqq", "<|IM_END|>"))
    assert controls(words, ids) == controls(words, neutral)


def test_every_text_of_a_message_and_no_key() -> None:
    messages = [{"role": "tool", "<s>": ["a<s>", {"b": "<s>"}, 1, None, True]}, {"role": "user", "content": "ab<aba<aba>"}]
    replaced, signs = as_text(messages, ["<s>", "<aba", "aba"], "\ufdd0{{ messages }}")
    assert list(signs) == ["\ufdd1", "\ufdd2"]
    assert signs == {"\ufdd1": "<", "\ufdd2": "a"}
    assert replaced == [
        {"role": "tool", "<s>": ["a\ufdd1s>", {"b": "\ufdd1s>"}, 1, None, True]},
        {"role": "user", "content": "ab\ufdd1\ufdd2ba\ufdd1\ufdd2ba>"},
    ]
    assert as_text(messages, ["absent"], "") == (messages, {})
