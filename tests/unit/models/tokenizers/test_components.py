"""Which components and patterns of tokenizer.json are run: all that real tokenizers have, and none that can run away."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import tokenizers

from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError, UnsupportedError
from flyweight.models.tokenizers.components import check_decoder, check_sizes, text_cost
from flyweight.models.tokenizers.patterns import read_pattern
from flyweight.models.tokenizers.pre_tokenizers import PRE_TOKENIZERS, SPACE_FORMS
from flyweight.runtime.text.tokenizer_build import build, tokens_before

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
REAL = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt-2, by mistral.rs": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    "llama 3": WORDS,
    "qwen 3.5": WORDS.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace("{1,3}", ""),
    "by case, without Han": rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek 3": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    "deepseek, letters": r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+",
    "deepseek, signs": r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "deepseek, line ends": "[\r\n]",
    "falcon, digits": "[0-9][0-9][0-9]",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "spaces": " {2,}",
    "possessive": r"[^\r\n\p{L}\p{N}]?+\p{L}++|\s*[\r\n]|\s+(?!\S)|\s+",
}  # fmt: skip
ENDLESS = (
    "(a|a)*$", "(a+)+", "a*a*b", "a+b", r"\s+x", r"(\w)\1", "a*?", "(a{1,3}){1,3}a*b", "a{1,3}+", r"\s+(?!\S)|x",
    r"\s*[\r\n]+|x|\s+", "a*b+", "a*b+|x|a+b*", "(?=a*)b", "((((((a))))))", "(a|b){30}", "(?~a)", r"(?<n>a)\g<n>", "(?i)a",
    "a+(?!b)", r"\s++$|a", "[a", "(a", "a)", "a|*", "a{2}{3}", "", "a||b", "(?!x)", "a*", "x?" * 9 + "x", "a" * 600, "a{999}b",
)  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_patterns_of_real_tokenizers(name: str) -> None:
    assert read_pattern(REAL[name]).least >= 1
    tokenizers.pre_tokenizers.Split(tokenizers.Regex(REAL[name]), "isolated").pre_tokenize_str("a b's  \n\n x 123 ABc!")


@pytest.mark.parametrize("pattern", ENDLESS)
def test_patterns_whose_form_bounds_nothing(pattern: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_pattern(pattern)
    assert caught.value.code == "E_TOKENIZER"


def test_a_pattern_has_a_longest_length() -> None:
    with pytest.raises(LimitError):
        read_pattern("[" + "a" * 5000 + "]")


@pytest.mark.parametrize("row", [*PRE_TOKENIZERS, *SPACE_FORMS], ids=lambda row: row.name)
def test_every_form_that_we_write_is_run(row: Any) -> None:
    assert 1 <= text_cost(row.normalizer, row.pre_tokenizer).growth <= 6


def charsmap(longest: int) -> str:
    return base64.b64encode((2048).to_bytes(4, "little") + b"\0" * 2048 + b"a\0" + b"b" * longest + b"\0").decode()


def unigram() -> dict[str, Any]:
    """As T5, XLM-R and other SentencePiece models are converted."""
    replace = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap(33)}, strip, replace],
        },
        "pre_tokenizer": metaspace,
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0], ["a", -2], ["▁", -3.0]]},
    }


def bert() -> dict[str, Any]:
    cls, sep = ({"id": text, "ids": [index], "tokens": [text]} for index, text in ((1, "[CLS]"), (2, "[SEP]")))
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*single, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": cls, "[SEP]": sep},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "##b": 4},
        },
    }  # fmt: skip


def word_level() -> dict[str, Any]:
    vocab = {"<unk>": 0, "a": 1, "b": 2}
    return {"pre_tokenizer": {"type": "Whitespace"}, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}}


def old_merges() -> dict[str, Any]:
    vocab = {"a": 0, "b": 1, "ab</w>": 2, "b</w>": 3}
    return {"model": {"type": "BPE", "vocab": vocab, "merges": ["a b</w>"], "end_of_word_suffix": "</w>"}}


@pytest.mark.parametrize("make", [unigram, bert, word_level, old_merges])
def test_other_kinds_of_tokenizers_are_the_librarys(make: Any) -> None:
    absent = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    table = {"version": "1.0", "added_tokens": [], **dict.fromkeys(absent)} | make()
    theirs, (ours, _) = tokenizers.Tokenizer.from_str(json.dumps(table)), build(table)
    for text in ("", "a", "ab a  b", "A é\n", "aaa ▁a"):
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text).ids == ids
        assert ours.decode(ids) == theirs.decode(ids)
    assert tokens_before(table["post_processor"]) == theirs.encode("").ids


def replace(content: str, pattern: str = "a") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        inner = {"type": "Sequence", "normalizers": [inner]}
    return inner


@pytest.mark.parametrize(
    ("normalizer", "error"),
    [
        ({"type": "Sequence", "normalizers": [replace("aa")] * 11}, LimitError),
        ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a" * 40}] * 2}, LimitError),
        ({"type": "Sequence", "normalizers": [{"type": "NFC"}] * 65}, LimitError),
        (nested(5), LimitError),
        (replace("a" * 1025), LimitError),
        (replace("a", pattern=""), MalformedError),
        ({"type": "Replace", "pattern": {"Regex": "(a*)*"}, "content": ""}, UnsupportedError),
        ({"type": "Precompiled", "precompiled_charsmap": charsmap(2000)}, LimitError),
        ({"type": "Precompiled", "precompiled_charsmap": "AAAA"}, MalformedError),
        ({"type": "Precompiled", "precompiled_charsmap": "!"}, MalformedError),
        ({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff\xff\xff\xff" * 4).decode()}, MalformedError),
        ({"type": "Wonder"}, UnsupportedError),
        ({"type": ["NFC"]}, MalformedError),
        ([], MalformedError),
        ({"type": "Sequence", "normalizers": [None]}, MalformedError),
    ],
)
def test_normalizers_that_are_refused(normalizer: Any, error: type[FlyweightError]) -> None:
    with pytest.raises(error):
        text_cost(normalizer, None)


def test_decoders_that_are_refused() -> None:
    for decoder in (replace("a" * 17), {"type": "Sequence", "decoders": [replace("aa")] * 5}, {"type": "CTC"}):
        with pytest.raises(FlyweightError):
            check_decoder(decoder)


@pytest.mark.parametrize(
    ("tokens", "merges", "added"),
    [(["a" * 11], 0, []), (["a", "b"], 3, []), (["a"], 0, ["x" * 1025]), (["a"], 0, ["x" * 1000] * 1100)],
)
def test_sizes_that_are_refused(tokens: list[str], merges: int, added: list[str]) -> None:
    with pytest.raises(LimitError):
        check_sizes(tokens, [("a", "b")] * merges, added, longest=10)
