"""Tokenizers of checkpoints as they are run: both origins alike, stops, limits, streams of text."""

from __future__ import annotations

import builtins
import json
from typing import Any

import pytest
import tokenizers

from flyweight.checkpoint import Checkpoint
from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError, ResourceError, UnsupportedError
from flyweight.foundation.manifest import Manifest, Typed
from flyweight.models import translate
from flyweight.models.checked_record import Record
from flyweight.models.dialects import gguf_tokenizer
from flyweight.models.tokenizers import tokenizer_json
from flyweight.runtime.text import tokenizer as runtime_tokenizer
from flyweight.runtime.text.token_text import TextStream
from flyweight.runtime.text.tokenizer import Tokenizer
from flyweight.runtime.text.tokenizer_build import build
from flyweight.sources import MemoryBundle
from support.tiny_models import as_gguf, hf_manifest, no_read


def checkpoint(manifest: Manifest) -> Checkpoint:
    return Checkpoint(MemoryBundle({}, "toy"), None, manifest)  # type: ignore[arg-type]


BYTES = tokenizers.pre_tokenizers.ByteLevel.alphabet()
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> dict[str, Any]:
    """Every byte is a token, a few merges, chat tokens."""
    words = [*sorted(BYTES), "ab", "Ġab", "Ã©"]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({word: i for i, word in enumerate(words)}, [("a", "b"), ("Ġ", "ab"), ("Ã", "©")])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(SPECIALS)
    return json.loads(made.to_str())  # type: ignore[no-any-return]


def pieces() -> dict[str, Any]:
    """SentencePiece: a space in front, bytes for what has no token."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "ab", "▁ab", "x", "▁x"]
    vocab = {word: i for i, word in enumerate(words)}
    merges = [("a", "b"), ("▁", "ab"), ("▁", "x")]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    made.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return json.loads(made.to_str())  # type: ignore[no-any-return]


def model(table: dict[str, Any] | bytes, roles: dict[str, Any] | None = None, **files: dict[str, Any]) -> Manifest:
    raw = table if isinstance(table, bytes) else json.dumps(table).encode()
    rows = 300
    manifest = hf_manifest("llama", {"vocab_size": rows, **files.pop("config", {})})
    entries = {}
    for name, entry in manifest.entries.items():
        if entry.spec.shape[0] == 20:
            spec = type(entry.spec)((rows, *entry.spec.shape[1:]), entry.spec.dtype)
            entry = type(entry)(name, spec, entry.codec, {"data": spec})
        entries[name] = entry
    held = {
        **manifest.files,
        "tokenizer.json": raw,
        "tokenizer_config.json": json.dumps({"bos_token": "<s>", "eos_token": "</s>"} | (roles or {})).encode(),
    } | {f"{name}.json": json.dumps(content).encode() for name, content in files.items()}
    return Manifest("hf", entries, {}, held, "hf")


def in_gguf(manifest: Manifest) -> Manifest:
    return as_gguf(manifest, translate(manifest, "gguf", no_read))[0]


TEXTS = ("", " ", "ab ab  x", "é ab\n\n你好 👩‍👩‍👧", "<s>ab</s>", "  ab", "ﷺ\t1234")


@pytest.mark.parametrize("make", [byte_level, pieces])
def test_a_gguf_file_and_a_directory_give_the_same_ids_and_texts(make: Any) -> None:
    there = Tokenizer.of(checkpoint(model(make())))
    here = Tokenizer.of(checkpoint(in_gguf(model(make()))))
    theirs = tokenizers.Tokenizer.from_str(json.dumps(make()))
    for text in TEXTS:
        ids = theirs.encode(text).ids
        assert here.encode(text) == there.encode(text) == ids
        assert here.encode(text, special=False) == theirs.encode(text, add_special_tokens=False).ids
        assert here.decode(ids) == there.decode(ids) == theirs.decode(ids)
        assert here.decode(ids, special=True) == theirs.decode(ids, skip_special_tokens=False)
    assert (here.bos, here.eos, here.add_bos, here.special) == (there.bos, there.eos, there.add_bos, there.special)
    assert here.text(there.bos or 0) == "<s>"


def test_the_built_tokenizer_is_the_one_its_json_describes() -> None:
    for make in (byte_level, pieces):
        metadata = in_gguf(model(make())).metadata
        words = gguf_tokenizer.read_vocabulary(Record({key: typed.value for key, typed in metadata.items()}, "x"), 300)
        assert words is not None
        table = tokenizer_json.write(words)
        theirs = tokenizers.Tokenizer.from_str(json.dumps(table))
        post_processor = {"post_processor": None}  # ours to read, not the library's to run
        assert json.loads(build(table)[0].to_str()) == json.loads(theirs.to_str()) | post_processor


@pytest.mark.parametrize("odd", ["a q", "q a", "a a", "a", "ab", "a ", " a b c"])
def test_merges_that_join_no_tokens_are_refused(odd: str) -> None:
    manifest = in_gguf(model(byte_level()))
    merges = manifest.metadata["tokenizer.ggml.merges"].value
    manifest.metadata["tokenizer.ggml.merges"] = Typed("[str]", [*merges, odd])
    assert refused(manifest).code == "E_TOKENIZER"


def test_merges_are_cut_alike_all_at_once_and_one_by_one() -> None:
    usual = ["a b", "Ġ t", "ab c"]
    assert gguf_tokenizer._pairs(usual) == [("a", "b"), ("Ġ", "t"), ("ab", "c")]
    assert gguf_tokenizer._pairs([*usual, "  b", "a b c"]) == [*gguf_tokenizer._pairs(usual), (" ", "b"), ("a", "b c")]
    assert gguf_tokenizer._pairs([]) == []


def ids_of(*texts: str) -> set[int]:
    found = tokenizers.Tokenizer.from_str(json.dumps(byte_level()))
    return {index for text in texts if (index := found.token_to_id(text)) is not None}


def test_every_place_that_names_an_end_counts() -> None:
    (a,), (b,) = ids_of("a"), ids_of("b")
    manifest = model(byte_level(), config={"eos_token_id": a}, generation_config={"eos_token_id": [b, 10**6, "x"]})
    found = Tokenizer.of(checkpoint(manifest))
    assert found.stops == {a, b} | ids_of("</s>", "<|im_end|>")
    assert {found.eos} == ids_of("</s>")
    gguf = in_gguf(manifest)
    (c,) = ids_of("c")
    gguf = Manifest(gguf.format, gguf.entries, {**gguf.metadata, "tokenizer.ggml.eot_token_id": Typed("u32", c)}, {}, "gguf")
    assert Tokenizer.of(checkpoint(gguf)).stops >= {b, c} | ids_of("</s>", "<|im_end|>")


def test_an_ordinary_token_that_reads_like_an_end_is_none() -> None:
    table = byte_level()
    for token in table["added_tokens"]:
        token["special"] = token["content"] != "<|im_end|>"
    assert not Tokenizer.of(checkpoint(model(table))).stops & ids_of("<|im_end|>")


@pytest.mark.parametrize("flag", [True, False])
def test_the_flag_decides_on_bos_where_nothing_else_does(flag: bool) -> None:
    found = Tokenizer.of(checkpoint(model(byte_level(), {"add_bos_token": flag})))
    assert found.add_bos is flag
    assert (found.encode("ab")[0] == found.bos) is flag


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(manifest: Manifest, text: str = "ab") -> FlyweightError:
    with pytest.raises(FlyweightError) as caught:
        Tokenizer.of(checkpoint(manifest)).encode(text)
    return caught.value


def test_whatever_the_library_does_is_one_error(capfd: pytest.CaptureFixture[str]) -> None:
    broken = byte_level()
    broken["model"]["merges"].append(["no", "token"])
    for manifest, text in (
        (model(b"{"), ""),
        (model(b"\xff"), ""),
        (model({"model": {}}), ""),
        (model(byte_level() | {"added_tokens": 5}), ""),
        (model(byte_level() | {"added_tokens": [None]}), ""),
        (model(broken), ""),
    ):
        error = refused(manifest, text)
        assert isinstance(error, MalformedError)
        assert error.code == "E_TOKENIZER"
    lone = refused(model(byte_level()), "ab\ud800")
    assert isinstance(lone, MalformedError)
    assert lone.code == "E_TEXT"
    assert "character 2" in lone.message


def test_ids_beyond_the_embedding_are_refused() -> None:
    table = byte_level()
    table["model"]["vocab"]["ab"] = 5000
    assert "5000" in refused(model(table)).message


def test_a_text_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_tokenizer, "MAX_TEXT", 10)
    assert isinstance(refused(model(byte_level()), "a" * 11), LimitError)


def test_a_prompt_is_measured_against_its_context() -> None:
    found = Tokenizer.of(checkpoint(model(byte_level())))
    longest = found.require_room([], room=4096)
    assert longest == found.require_room(["é" * (longest // 2)], room=4096) == 32 * 4096
    assert len(found.encode("a" * 1000, room=1)) == 1000, "few bytes are encoded, so that their tokens can be counted"
    for text in ("a" * (longest + 1), "é" * (longest // 2 + 1)):
        with pytest.raises(ResourceError, match="limit is 131072") as caught:
            found.encode(text, room=4096)
        assert caught.value.code == "E_CONTEXT"


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("tokens", lambda tokens: ["x" * 5000, *tokens[1:]]),
        ("merges", lambda merges: merges * 1000),
        ("token_type", lambda types: [4] * len(types)),
    ],
)
def test_vocabularies_of_gguf_have_limits_too(key: str, change: Any) -> None:
    manifest = in_gguf(model(byte_level()))
    old = manifest.metadata[f"tokenizer.ggml.{key}"]
    manifest.metadata[f"tokenizer.ggml.{key}"] = Typed(old.type, change(old.value))
    if key == "token_type":
        tokens = manifest.metadata["tokenizer.ggml.tokens"]
        longer = [f"{token}{'y' * 3900}{index}" for index, token in enumerate(tokens.value)]
        manifest.metadata["tokenizer.ggml.tokens"] = Typed(tokens.type, longer)
        manifest.metadata["tokenizer.ggml.merges"] = Typed("[str]", [])
    assert isinstance(refused(manifest), LimitError)


def test_ids_that_are_none() -> None:
    with pytest.raises(ValueError, match="32-bit"):
        Tokenizer.of(checkpoint(model(byte_level()))).decode([-1])


def test_no_tokenizer_and_no_model() -> None:
    bare = hf_manifest("llama")
    assert refused(bare).code == "E_TOKENIZER"
    assert refused(as_gguf(bare, translate(bare, "gguf", no_read))[0]).hint
    assert refused(Manifest("hf", {}, {}, {}, "hf")).code == "E_TENSORS"


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "tokenizers":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name, *args, **kwargs)

    manifests = (model(byte_level()), in_gguf(model(byte_level())))
    monkeypatch.setattr(builtins, "__import__", without)
    for manifest in manifests:
        with pytest.raises(UnsupportedError, match=r"flyweight\[run\]") as caught:
            Tokenizer.of(checkpoint(manifest))
        assert caught.value.code == "E_EXTRA"


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [byte_level, pieces])
@pytest.mark.parametrize("text", [*TEXTS, "a👩‍👩‍👧b", "é" * 9, "\ufffd", "x\ufffdab"])
def test_pieces_make_up_the_text_and_split_no_character(make: Any, text: str) -> None:
    found = Tokenizer.of(checkpoint(model(make())))
    ids, stream = found.encode(text), TextStream(found)
    shown = [stream.feed(index) for index in ids]
    shown.append(stream.flush())
    assert "".join(shown) == found.decode(ids)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in shown)


def test_bytes_that_are_no_text_do_not_wait_for_ever() -> None:
    found = Tokenizer.of(checkpoint(model(pieces())))
    stream = TextStream(found)
    (broken,) = (index for index in range(300) if found.text(index) == "<0xFF>")
    shown = "".join(stream.feed(broken) for _ in range(40))
    assert len(shown) >= 24
    assert set(shown) == {"\ufffd"}


def test_an_answer_continues_its_prompt() -> None:
    found = Tokenizer.of(checkpoint(model(pieces())))
    prompt, answer = found.encode("ab"), found.encode("x", special=False)
    alone, after = TextStream(found), TextStream(found, prompt=prompt)
    assert alone.feed(answer[0]) + alone.flush() == "x"
    assert after.feed(answer[0]) + after.flush() == " x"


def test_spaces_survive_special_tokens_between() -> None:
    found = Tokenizer.of(checkpoint(model(pieces())))
    (word,) = found.encode("ab", special=False)
    stream = TextStream(found)
    assert [stream.feed(index) for index in (word, 2, word)] == ["ab", "", " ab"]
    unused_row = 299
    assert [stream.feed(index) for index in (unused_row, word)] == ["", " ab"]


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("xabab", ["abab"], "x"),
        ("xaba", ["abab"], "xaba"),
        ("one\n\nUser: two", ["\nUser:", "zzz"], "one\n"),
        ("aaab", ["aab"], "a"),
        ("plain", ["."], "plain"),
        ("héé!", ["é!"], "hé"),
    ],
)
def test_a_stop_string_ends_the_text_before_itself(text: str, stops: list[str], shown: str) -> None:
    found = Tokenizer.of(checkpoint(model(byte_level())))
    stream = TextStream(found, stops=stops)
    pieces_shown = []
    for index in found.encode(text + (" and on" if shown != text else "")):
        pieces_shown.append(stream.feed(index))
        if stream.stopped:
            break
    assert stream.stopped is (shown != text)
    pieces_shown.append(stream.flush())
    assert "".join(pieces_shown) == shown
    assert stream.feed(0) == stream.flush() == ""
    with pytest.raises(ValueError, match="empty"):
        TextStream(found, stops=[""])
