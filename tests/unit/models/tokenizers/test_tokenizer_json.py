"""Tokenizers in both dialects: the exact keys and components, and every rule that a bad one breaks."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight import models
from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError, UnsupportedError
from flyweight.foundation.manifest import Manifest, Typed
from flyweight.models.tokenizers.merges import merges_from_scores, scores_from_merges
from flyweight.models.tokenizers.pre_tokenizers import PRE_TOKENIZERS, SPACE_FORMS, named, recognise, space_form
from support.tiny_models import as_gguf, hf_manifest, no_read, round_trip
from support.tokenizers import LLAMA3_SPLIT, added, bpe, files, pieces


def gguf_of(tokenizer: dict[str, Any], **config: Any) -> dict[str, Any]:
    there = models.translate(hf_manifest("llama", files=files(tokenizer, **config)), "gguf", no_read)
    return {key.removeprefix("tokenizer.ggml."): typed.value for key, typed in there.metadata.items()}


def json_of(tokenizer: dict[str, Any], without: tuple[str, ...] = (), **config: Any) -> dict[str, Any]:
    made = round_trip(hf_manifest("llama", files=files(tokenizer, **config)), without).files
    return {name: json.loads(made[name]) for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")}


def test_byte_level_keys_in_gguf() -> None:
    made = gguf_of(bpe())
    assert (made["model"], made["pre"]) == ("gpt2", "llama-bpe")
    assert made["tokens"] == [
        "a", "b", "c", "Ġ", "ab", "abc", "Ġa", "1", "2", "!", "<s>", "</s>", "<tool>",
        "[PAD13]", "[PAD14]", "[PAD15]", "[PAD16]", "[PAD17]", "<|x|>", "[PAD19]",
    ]  # fmt: skip
    assert made["token_type"] == [1] * 10 + [3, 3, 4] + [5] * 5 + [3, 5]
    assert made["merges"] == ["a b", "ab c", "Ġ a"]
    assert (made["bos_token_id"], made["eos_token_id"], made["add_bos_token"], made["add_eos_token"]) == (10, 11, True, False)
    assert made["tokenizer.chat_template"] == "{{ messages }}"


def test_byte_level_comes_back() -> None:
    made = json_of(bpe())
    tokenizer = made["tokenizer.json"]
    source = bpe()
    names = {token["content"]: token["id"] for token in source["added_tokens"]}
    assert tokenizer["model"]["vocab"] == source["model"]["vocab"] | names
    assert tokenizer["model"]["merges"] == [["a", "b"], ["ab", "c"], ["Ġ", "a"]]
    assert tokenizer["model"]["ignore_merges"] is True
    assert tokenizer["added_tokens"] == source["added_tokens"]
    assert tokenizer["post_processor"]["single"] == source["post_processor"]["processors"][1]["single"]
    assert tokenizer["post_processor"]["special_tokens"] == {"<s>": {"id": "<s>", "ids": [10], "tokens": ["<s>"]}}
    split = tokenizer["pre_tokenizer"]["pretokenizers"][0]
    assert split["pattern"] == {"Regex": LLAMA3_SPLIT}
    config = made["tokenizer_config.json"]
    assert (config["bos_token"], config["eos_token"], config["add_bos_token"]) == ("<s>", "</s>", True)
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["padding_side"] == "left"
    assert config["model_input_names"] == ["input_ids", "attention_mask"]
    assert "chat_template" not in config
    assert made["special_tokens_map.json"] == {"bos_token": "<s>", "eos_token": "</s>"}


def test_pieces_keys_in_gguf() -> None:
    made = gguf_of(pieces())
    assert (made["model"], made["pre"], made["add_space_prefix"]) == ("llama", "default", True)
    assert made["tokens"][6] == "  "  # GGUF writes the spaces of user-defined tokens plainly
    assert made["tokens"][17] == "[tool x]"
    assert made["token_type"] == [2, 3, 3, 6, 6, 6, 4] + [1] * 9 + [5, 4, 5, 5]
    # In the order of the merges; then characters and pieces that no merge makes; then the others by their kind.
    assert made["scores"] == [
        -1000, -1000, -1000, 0, 0, 0, -1000, 0, -1, -2, -4, -5, -6, -7, -3, -8, -10000, -1000, -10000, -10000,
    ]  # fmt: skip
    assert (made["unknown_token_id"], made["bos_token_id"]) == (0, 1)
    assert made["add_bos_token"] is False


def test_pieces_come_back() -> None:
    tokenizer = json_of(pieces())["tokenizer.json"]
    source = pieces()
    assert tokenizer["normalizer"] == source["normalizer"]
    assert tokenizer["pre_tokenizer"] is None
    assert tokenizer["model"]["vocab"] == source["model"]["vocab"] | {"[tool x]": 17}
    assert tokenizer["added_tokens"] == source["added_tokens"]
    # Every cut into two tokens, in the order of what they make; runs of the user first, longer left parts first.
    assert tokenizer["model"]["merges"] == [["▁", "▁"], ["▁", "a"], ["a", "b"], ["▁a", "b"], ["▁", "ab"], ["b", "c"]]
    assert (tokenizer["model"]["unk_token"], tokenizer["model"]["byte_fallback"]) == ("<unk>", True)
    assert tokenizer["decoder"]["decoders"][-1] == {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def test_gemma_has_no_space_in_front() -> None:
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    source = pieces(normalizer=replace, pre_tokenizer=split)
    assert gguf_of(source)["add_space_prefix"] is False
    tokenizer = json_of(source)["tokenizer.json"]
    assert (tokenizer["normalizer"], tokenizer["pre_tokenizer"]) == (replace, split)
    assert [step["type"] for step in tokenizer["decoder"]["decoders"]] == ["Replace", "ByteFallback", "Fuse"]
    plain = json_of(source, without=("flyweight.space_form",))["tokenizer.json"]
    assert (plain["normalizer"], plain["pre_tokenizer"]) == (replace, None)


def test_merges_follow_the_scores() -> None:
    tokens, types = ["a", "b", "ab", "ba", "aba"], [1] * 5
    assert merges_from_scores(tokens, types, [-9, -9, -2, -1, -3]) == [("b", "a"), ("a", "b"), ("ab", "a"), ("a", "ba")]
    ids = {token: index for index, token in enumerate(tokens)}
    assert scores_from_merges(ids, types, [("b", "a"), ("a", "b"), ("ab", "a"), ("a", "ba")]) == {3: 0.0, 2: -1.0, 4: -2.0}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.text("aé▁😀", max_size=6), st.sampled_from([1, 1, 1, 3, 4, 6]), st.sampled_from([0.0, -1.0, -2.0])),
        max_size=40,
        unique_by=lambda row: row[0],
    )
)
def test_merges_are_all_cuts_into_two_tokens(rows: list[tuple[str, int, float]]) -> None:
    pieces = {token for token, type_, _ in rows if type_ in (1, 4)}
    cuts = [
        (-score if type_ == 1 else -inf, -cut, cut - len(token), (token[:cut], token[cut:]))
        for token, type_, score in rows
        for cut in range(1, len(token))
        if {token, token[:cut], token[cut:]} <= pieces
    ]
    wanted = [pair for *_, pair in sorted(cuts, key=lambda row: row[:3])]
    tokens, types, scores = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
    assert merges_from_scores(tokens, types, scores) == wanted


def test_tokens_too_long_to_cut_are_refused() -> None:
    with pytest.raises(LimitError):
        merges_from_scores(["a" * 40_000], [1], [0.0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.permutations(["ab", "bc", "abc", "ca", "cab", "aa"]))
def test_order_survives_merges_and_scores(order: list[str]) -> None:
    tokens = ["a", "b", "c", *order]
    ids = {token: index for index, token in enumerate(tokens)}
    merges = merges_from_scores(tokens, [1] * len(tokens), [-100.0] * 3 + [-float(i) for i in range(len(order))])
    scores = scores_from_merges(ids, [1] * len(tokens), merges)
    assert sorted(order, key=lambda token: -scores[ids[token]]) == order


@pytest.mark.parametrize("row", PRE_TOKENIZERS, ids=lambda row: row.name)
def test_every_pre_tokenizer_is_recognised_as_itself(row: Any) -> None:
    assert recognise(row.normalizer, row.pre_tokenizer, ignore_merges=row.ignore_merges) is row
    for name in (row.name, *row.aliases):
        assert named(name) is next(first for first in PRE_TOKENIZERS if name in (first.name, *first.aliases))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(st.sampled_from("ab1 \n\t.'sé\u3000"), max_size=12))
def test_rows_of_one_name_cut_alike(text: str) -> None:
    by_name: dict[str, set[tuple[str, ...]]] = {}
    for row in PRE_TOKENIZERS:
        empty = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
        cutter = tokenizers.Tokenizer.from_str(json.dumps(empty | {"pre_tokenizer": row.pre_tokenizer}))
        by_name.setdefault(row.name, set()).add(tuple(piece for piece, _ in cutter.pre_tokenizer.pre_tokenize_str(text)))
    assert len(by_name) < len(PRE_TOKENIZERS)
    assert all(len(ways) == 1 for ways in by_name.values())


@pytest.mark.parametrize("form", SPACE_FORMS, ids=lambda form: form.name)
def test_every_space_form_is_recognised_as_itself(form: Any) -> None:
    assert space_form(form.normalizer, form.pre_tokenizer) is form


def test_a_pre_tokenizer_that_is_not_named_is_noted() -> None:
    manifest = hf_manifest(
        "llama", files=files(bpe(pre_tokenizer=named("gpt-2").pre_tokenizer, model=bpe()["model"] | {"ignore_merges": False}))
    )
    assert not any("GPT-2" in note for note in round_trip(manifest).notes)
    assert any("GPT-2" in note for note in round_trip(manifest, without=("tokenizer.ggml.pre",)).notes)


def test_chat_templates_by_name() -> None:
    several = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    made = gguf_of(bpe(), chat_template=several)
    assert made["tokenizer.chat_template"] == "D"
    assert made["tokenizer.chat_template.tool_use"] == "T"
    assert made["tokenizer.chat_templates"] == ["tool_use"]
    assert json_of(bpe(), chat_template=several)["tokenizer_config.json"]["chat_template"] == several


def test_chat_template_file_wins_and_is_written() -> None:
    side = files(bpe()) | {"chat_template.jinja": "é{{ x }}".encode()}
    made = round_trip(hf_manifest("llama", files=side))
    assert made.files["chat_template.jinja"] == "é{{ x }}".encode()


def test_roles_may_stand_in_the_older_map() -> None:
    side = files(bpe(), bos_token=None) | {
        "special_tokens_map.json": b'{"bos_token": "<s>", "pad_token": {"content": "<|x|>"}}'
    }
    metadata = models.translate(hf_manifest("llama", files=side), "gguf", no_read).metadata
    assert metadata["tokenizer.ggml.bos_token_id"] == Typed("u32", 10)
    assert metadata["tokenizer.ggml.padding_token_id"] == Typed("u32", 18)


def test_generation_settings_come_back_or_are_made() -> None:
    side = files(bpe()) | {"generation_config.json": b'{"temperature": 0.6, "eos_token_id": [11, 18]}'}
    manifest = hf_manifest("llama", {"bos_token_id": 10, "eos_token_id": 11}, side)
    assert json.loads(round_trip(manifest).files["generation_config.json"]) == {"temperature": 0.6, "eos_token_id": [11, 18]}
    gguf, _ = as_gguf(manifest, models.translate(manifest, "gguf", no_read), without=("flyweight.generation_config",))
    gguf = Manifest("gguf", gguf.entries, {**gguf.metadata, "tokenizer.ggml.eot_token_id": Typed("u32", 18)}, {}, "gguf")
    made = json.loads(models.translate(gguf, "hf", no_read).files["generation_config.json"])
    assert (made["bos_token_id"], made["eos_token_id"]) == (10, [11, 18])


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"model": None}, MalformedError, "'model'"),
        ({"model": {"type": "Unigram"}}, UnsupportedError, "Unigram"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, UnsupportedError, "no name for its combination"),
        ({"model": bpe()["model"] | {"vocab": {"a": 20}}}, MalformedError, "20 rows"),
        ({"model": bpe()["model"] | {"vocab": {"a": -1}}}, MalformedError, "the id -1"),
        ({"model": bpe()["model"] | {"vocab": {"a": 1, "b": 1}}}, MalformedError, "share an id"),
        ({"model": bpe()["model"] | {"merges": ["a b c"]}}, MalformedError, "not a pair"),
        ({"model": bpe()["model"] | {"merges": [["a"]]}}, MalformedError, "not a pair"),
        ({"model": bpe()["model"] | {"end_of_word_suffix": "</w>"}}, UnsupportedError, "end_of_word_suffix"),
        ({"added_tokens": [added(20, "<s>")]}, MalformedError, "20 rows"),
        ({"added_tokens": [added(3, "<s>")]}, MalformedError, "share the id 3"),
        ({"added_tokens": [added(3, "a")]}, MalformedError, "the ids 0 and 3"),
        ({"added_tokens": []}, MalformedError, "bos_token '<s>' is not a token"),
        ({"post_processor": {"type": "TemplateProcessing", "single": []}}, MalformedError, "does not contain the text"),
        (
            {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|x|>"}}, {"Sequence": {}}]}},
            UnsupportedError,
            "other than bos_token",
        ),
    ],
)
def test_bad_tokenizer_json(change: dict[str, Any], error: type[FlyweightError], text: str) -> None:
    with pytest.raises(error, match=text):
        gguf_of(bpe(**change))


@pytest.mark.parametrize(
    ("kind", "key", "value", "error", "text"),
    [
        ("bpe", "model", "rwkv", UnsupportedError, "rwkv"),
        ("bpe", "pre", "unheard-of", UnsupportedError, "unheard-of"),
        ("bpe", "tokens", ["a"] * 20, MalformedError, "'a' appears twice"),
        ("bpe", "tokens", ["a"], MalformedError, "1 tokens for 20 rows"),
        ("bpe", "tokens", [1] * 20, MalformedError, "list of str"),
        ("bpe", "token_type", [1] * 19, MalformedError, "19 token types"),
        ("bpe", "token_type", [9] * 20, MalformedError, "unknown type 9"),
        ("bpe", "token_type", [6] * 20, MalformedError, "not a byte token"),
        ("bpe", "bos_token_id", 20, MalformedError, "bos_token is 20"),
        ("bpe", "eos_token_id", -1, MalformedError, "eos_token_id"),
        ("bpe", "merges", ["ab"], MalformedError, "not a pair"),
        ("bpe", "merges", ["a q"], MalformedError, "not tokens"),
        ("bpe", "add_bos_token", 1, MalformedError, "add_bos_token"),
        ("pieces", "scores", [0.0] * 19, MalformedError, "19 scores"),
        ("pieces", "scores", [float("nan")] * 20, MalformedError, "not a finite"),
        ("pieces", "scores", None, MalformedError, "scores"),
    ],
)
def test_bad_gguf_tokenizer(kind: str, key: str, value: Any, error: type[FlyweightError], text: str) -> None:
    manifest = hf_manifest("llama", files=files(bpe() if kind == "bpe" else pieces()))
    gguf, _ = as_gguf(manifest, models.translate(manifest, "gguf", no_read))
    metadata = {**gguf.metadata, f"tokenizer.ggml.{key}": Typed("[str]", value)}
    with pytest.raises(error, match=text):
        models.translate(Manifest("gguf", gguf.entries, metadata, {}, "gguf"), "hf", no_read)


ITEMS = st.integers(0, 4) | st.text(max_size=2)
JUNK = st.none() | st.booleans() | st.integers(-5, 30) | st.text(max_size=4) | st.lists(ITEMS, max_size=20)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_tokenizer_translates_or_raises_our_errors(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([bpe(), pieces()]))
    place = data.draw(st.sampled_from([source, source["model"], source["added_tokens"][0]]))
    for key in data.draw(st.lists(st.sampled_from(sorted(place)), max_size=2)):
        place[key] = data.draw(JUNK | st.dictionaries(st.sampled_from(["type", "a", "single", "processors"]), JUNK, max_size=3))
    manifest = hf_manifest("llama", files=files(source))
    try:
        gguf, _ = as_gguf(manifest, models.translate(manifest, "gguf", no_read))
        keys = sorted(key for key in gguf.metadata if key.startswith(("tokenizer.", "flyweight.")))
        changes = data.draw(st.dictionaries(st.sampled_from(keys), JUNK, max_size=2))
        metadata = {**gguf.metadata, **{key: Typed("str", value) for key, value in changes.items()}}
        models.translate(Manifest("gguf", gguf.entries, metadata, {}, "gguf"), "hf", no_read)
    except FlyweightError:
        return
