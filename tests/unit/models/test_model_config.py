"""Settings in both dialects: values written down, bad values refused by name, nothing lost on the way."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight import models
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.manifest import Manifest, Typed
from flyweight.models import rope_scaling
from flyweight.models.dialects import gguf_scaling
from support.tiny_models import TINY, as_gguf, hf_manifest, no_read, round_trip


def to_gguf(model_type: str, **config: Any) -> dict[str, Typed]:
    return dict(models.translate(hf_manifest(model_type, config), "gguf", no_read, dense=DType.BF16).metadata)


def back_again(model_type: str, **config: Any) -> dict[str, Any]:
    return dict(json.loads(round_trip(hf_manifest(model_type, config)).files["config.json"]))


def f32(value: float) -> Typed:
    return Typed("f32", float(np.float32(value)))


def test_llama_settings_in_gguf() -> None:
    metadata = to_gguf("llama")
    expected = {
        "general.architecture": Typed("str", "llama"),
        "general.quantization_version": Typed("u32", 2),
        "llama.embedding_length": Typed("u32", 8),
        "llama.feed_forward_length": Typed("u32", 12),
        "llama.block_count": Typed("u32", 2),
        "llama.attention.head_count": Typed("u32", 2),
        "llama.attention.head_count_kv": Typed("u32", 2),
        "llama.context_length": Typed("u32", 64),
        "llama.vocab_size": Typed("u32", 20),
        "llama.rope.dimension_count": Typed("u32", 4),
        "llama.rope.freq_base": f32(10000.0),
        "llama.attention.layer_norm_rms_epsilon": f32(1e-5),
        "flyweight.model_type": Typed("str", "llama"),
    }
    assert {key: metadata[key] for key in expected} == expected
    assert "llama.attention.key_length" not in metadata


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("qwen3", {"qwen3.attention.key_length": Typed("u32", 4), "qwen3.attention.value_length": Typed("u32", 4)}),
        (
            "gemma2",
            {
                "gemma2.attn_logit_softcapping": f32(50),
                "gemma2.final_logit_softcapping": f32(30),
                "gemma2.attention.sliding_window": Typed("u32", 16),
            },
        ),
        (
            "gemma3_text",
            {
                "gemma3.rope.freq_base": f32(1e6),
                "gemma3.rope.freq_base_swa": f32(1e4),
                "gemma3.attention.sliding_window": Typed("u32", 16),
            },
        ),
        (
            "phi3",
            {"phi3.attention.sliding_window": Typed("u32", 32), "phi3.rope.scaling.original_context_length": Typed("u32", 64)},
        ),
    ],
)
def test_what_a_family_has_of_its_own(model_type: str, expected: dict[str, Typed]) -> None:
    metadata = to_gguf(model_type)
    assert {key: metadata.get(key) for key in expected} == expected


@pytest.mark.parametrize("model_type", TINY)
def test_settings_come_back(model_type: str) -> None:
    more = {"attention_dropout": 0.1, "initializer_range": 0.02, "eos_token_id": [1, 2], "pretraining_tp": 1}
    wanted = TINY[model_type] | more | {"model_type": model_type}
    made = back_again(model_type, **more)
    assert {key: made.get(key) for key in wanted} == wanted


@pytest.mark.parametrize("model_type", TINY)
def test_metadata_of_gguf_comes_back(model_type: str) -> None:
    manifest = hf_manifest(model_type)
    gguf, _ = as_gguf(manifest, models.translate(manifest, "gguf", no_read, dense=DType.F16))
    more = {
        "general.name": Typed("str", "Tiny"),
        "general.tags": Typed("[str]", ["a", "b"]),
        "general.sampling.temp": f32(0.7),
        "general.nested": Typed("[[i32]]", [[1], [-2, 3]]),
        "general.beyond": Typed("f32", float("inf")),
    }
    gguf = Manifest("gguf", gguf.entries, {**gguf.metadata, **more}, {}, "gguf")
    hf = models.translate(gguf, "hf", no_read)
    entries = {r.name: gguf.entries[n] for n, r in hf.tensors.items()}
    again = models.translate(Manifest("hf", entries, hf.metadata, hf.files, "hf"), "gguf", no_read, dense=DType.F16)
    assert {key: again.metadata.get(key) for key in gguf.metadata if "flyweight" not in key} == {
        key: typed for key, typed in gguf.metadata.items() if "flyweight" not in key
    }


def test_values_of_another_type_are_noted() -> None:
    manifest = hf_manifest("llama")
    gguf, _ = as_gguf(manifest, models.translate(manifest, "gguf", no_read))
    gguf = Manifest("gguf", gguf.entries, {**gguf.metadata, "general.odd": Typed("u32", float("nan"))}, {}, "gguf")
    assert any("general.odd" in note for note in models.translate(gguf, "hf", no_read).notes)


def test_side_files_without_a_place_are_noted() -> None:
    notes = models.translate(hf_manifest("llama", files={"LICENSE": b"MIT", "merges.txt": b""}), "gguf", no_read).notes
    assert any(note.startswith("LICENSE is not stored") for note in notes)
    assert any("repeats tokenizer.json" in note for note in notes)
    assert any("no tokenizer.json" in note for note in notes)


def test_transformers_5_spelling_is_read() -> None:
    config = {
        "rope_theta": None,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
        "dtype": "float16",
    }
    metadata = to_gguf("llama", **config)
    assert metadata["llama.rope.freq_base"] == f32(5e5)
    assert metadata["llama.rope.scaling.type"] == Typed("str", "linear")
    made = back_again("llama", **config)
    assert made["rope_theta"] == 5e5
    assert made["rope_scaling"]["factor"] == 2.0
    assert "rope_parameters" not in made
    layered = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
        }
    }
    metadata = to_gguf("gemma3_text", **layered)
    assert (metadata["gemma3.rope.freq_base"], metadata["gemma3.rope.freq_base_swa"]) == (f32(2e6), f32(3e4))
    assert metadata["gemma3.rope.scaling.factor"] == f32(8)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama3_manifest(**scaling: Any) -> Manifest:
    return hf_manifest("llama", {"rope_theta": 500000.0, "rope_scaling": LLAMA3 | scaling})


def test_llama3_scaling_becomes_divisors_and_comes_back() -> None:
    there = models.translate(llama3_manifest(), "gguf", no_read)
    # Two pairs: a wavelength of 2π is far below 8192/4, one of 2π·√500000 ≈ 4443 lies between 2048 and 8192.
    smooth = (8192 / (2 * np.pi * 500000**0.5) - 1) / 3
    np.testing.assert_allclose(there.added["rope_freqs.weight"], [1, 1 / ((1 - smooth) / 8 + smooth)], rtol=1e-6)
    assert there.added["rope_freqs.weight"].dtype == np.float32
    assert "llama.rope.scaling.type" not in there.metadata
    made = round_trip(llama3_manifest())
    assert json.loads(made.files["config.json"])["rope_scaling"] | {"type": "llama3"} == LLAMA3 | {"type": "llama3"}
    assert "derived" in made.dropped["rope_freqs.weight"]


def test_llama3_scaling_is_recognised_without_our_metadata() -> None:
    scaling = LLAMA3 | {"factor": 32.0}
    divisors = rope_scaling.divisors(scaling, theta=500000.0, rotary=64)
    assert divisors.max() == 32
    assert gguf_scaling._recognise_llama3(divisors.tolist(), None, 500000.0, 64) == scaling
    other = [1.0, *divisors[1:-3].tolist(), 2.0, 32.0, 32.0]
    assert gguf_scaling._recognise_llama3(other, None, 500000.0, 64) == {"rope_type": "divisors", "divisors": other}


def test_unusual_llama3_scaling_comes_back_through_our_metadata() -> None:
    unusual = {"low_freq_factor": 0.5, "high_freq_factor": 2.0, "original_max_position_embeddings": 4000, "factor": 3.0}
    made = json.loads(round_trip(llama3_manifest(**unusual)).files["config.json"])
    assert unusual.items() <= made["rope_scaling"].items()


def test_divisors_that_contradict_our_metadata_win() -> None:
    manifest = llama3_manifest()
    gguf, _ = as_gguf(manifest, models.translate(manifest, "gguf", no_read))
    other = np.array([1.0, 1.7], "<f4").tobytes()
    with pytest.raises(UnsupportedError, match="frequencies are not a llama3 scaling"):
        models.translate(gguf, "hf", lambda _: other)
    assert models.blueprint(gguf, lambda _: other).config.scaling == {
        "rope_type": "divisors",
        "divisors": [1.0, np.float32(1.7)],
    }


LONGROPE = {"type": "longrope", "long_factor": [1.1, 4.25], "short_factor": [1.0, 1.5]}


def test_longrope_factors_become_tensors_and_come_back() -> None:
    config = {"rope_scaling": LONGROPE, "max_position_embeddings": 256}
    there = models.translate(hf_manifest("phi3", config), "gguf", no_read)
    np.testing.assert_array_equal(there.added["rope_factors_long.weight"], np.float32([1.1, 4.25]))
    np.testing.assert_array_equal(there.added["rope_factors_short.weight"], np.float32([1.0, 1.5]))
    assert there.metadata["phi3.rope.scaling.type"] == Typed("str", "longrope")
    # √(1 + ln(256/64) / ln 64) = √(4/3)
    assert there.metadata["phi3.rope.scaling.attn_factor"].value == pytest.approx((4 / 3) ** 0.5)
    made = back_again("phi3", **config)
    assert made["rope_scaling"] == LONGROPE
    plain = json.loads(round_trip(hf_manifest("phi3", config), without=("flyweight.config",)).files["config.json"])
    assert plain["rope_scaling"] == LONGROPE


def test_yarn_settings_come_back() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0, "mscale": 0.7}
    metadata = to_gguf("qwen2", rope_scaling=yarn)
    assert metadata["qwen2.rope.scaling.type"] == Typed("str", "yarn")
    assert metadata["qwen2.rope.scaling.original_context_length"] == Typed("u32", 16)
    assert metadata["qwen2.rope.scaling.yarn_beta_fast"] == f32(32)
    assert yarn.items() <= back_again("qwen2", rope_scaling=yarn)["rope_scaling"].items()


def test_partial_rotary_of_phi() -> None:
    assert to_gguf("phi3", partial_rotary_factor=0.5)["phi3.rope.dimension_count"] == Typed("u32", 2)
    assert back_again("phi3", partial_rotary_factor=0.5)["partial_rotary_factor"] == 0.5


def test_phi_without_window_says_so() -> None:
    assert to_gguf("phi3", sliding_window=None)["phi3.attention.sliding_window"] == Typed("u32", 0)
    assert back_again("phi3", sliding_window=None)["sliding_window"] is None


def test_gemma_window_pattern() -> None:
    kinds = ["sliding_attention", "full_attention"]
    assert to_gguf("gemma3_text", layer_types=kinds)["gemma3.attention.sliding_window_pattern"] == Typed("u32", 2)
    made = back_again("gemma3_text", layer_types=kinds)
    assert (made["layer_types"], made["sliding_window_pattern"]) == (kinds, 2)
    assert "gemma3.attention.sliding_window_pattern" not in to_gguf("gemma3_text")
    assert back_again("gemma2")["layer_types"] == kinds
    with pytest.raises(UnsupportedError, match="1 layer in 1 is global"):
        to_gguf("gemma2", layer_types=["full_attention", "full_attention"])
    with pytest.raises(UnsupportedError, match=r"layer_types.*not evenly spaced"):
        to_gguf("gemma3_text", layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(MalformedError, match="layer_types"):
        to_gguf("gemma3_text", layer_types=["full_attention"])


def test_gemma_scalar_that_gguf_cannot_say_is_noted_and_comes_back() -> None:
    config = {"query_pre_attn_scalar": 7}
    assert any(
        "query_pre_attn_scalar" in note for note in models.translate(hf_manifest("gemma2", config), "gguf", no_read).notes
    )
    assert back_again("gemma2", **config)["query_pre_attn_scalar"] == 7
    assert not any("scalar" in note for note in models.translate(hf_manifest("gemma2"), "gguf", no_read).notes)


def test_a_window_that_gguf_cannot_say_is_noted_and_comes_back() -> None:
    config = {"sliding_window": 4096}
    assert any("sliding_window" in note for note in models.translate(hf_manifest("mistral", config), "gguf", no_read).notes)
    assert back_again("mistral", **config)["sliding_window"] == 4096
    # A file that does not say has none; transformers would otherwise assume one.
    plain = json.loads(round_trip(hf_manifest("mistral"), without=("flyweight.config",)).files["config.json"])
    assert plain["sliding_window"] is None


def test_quantization_settings_and_remote_code_are_dropped() -> None:
    config = {"quantization_config": {"bits": 4}, "quantization": {"bits": 4}, "auto_map": {"AutoConfig": "evil.py"}}
    made = back_again("llama", **config)
    assert not set(config) & set(made)


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
@pytest.mark.parametrize("value", [0, -1, 2**31, 1.5, "8", True, [8], {}])
def test_bad_integers_are_malformed_by_name(key: str, value: Any) -> None:
    with pytest.raises(MalformedError) as caught:
        to_gguf("llama", **{key: value})
    assert key in str(caught.value)
    assert caught.value.file == "config.json"


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"])
def test_missing_settings_are_malformed_by_name(key: str) -> None:
    with pytest.raises(MalformedError, match=f"'{key}'"):
        to_gguf("llama", **{key: None})
    manifest = hf_manifest("llama")
    gguf, _ = as_gguf(manifest, models.translate(manifest, "gguf", no_read), without=("llama.block_count",))
    with pytest.raises(MalformedError, match=r"llama\.block_count"):
        models.translate(gguf, "hf", no_read)


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        ({"rms_norm_eps": 0}, MalformedError, "rms_norm_eps"),
        ({"rope_theta": "big"}, MalformedError, "rope_theta"),
        ({"num_key_value_heads": 3}, MalformedError, "key-value heads"),
        ({"hidden_size": 9}, MalformedError, "9 dimensions"),
        ({"num_hidden_layers": 1000000}, MalformedError, "too few for 1000000 layers"),
        ({"tie_word_embeddings": "yes"}, MalformedError, "tie_word_embeddings"),
        *(({"rope_theta": value}, MalformedError, "rope_theta") for value in (10**400, -(10**400), 0, 1e39, True)),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act"),
        ({"rope_scaling": []}, MalformedError, "rope_scaling"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, UnsupportedError, "dynamic"),
        ({"rope_scaling": {"type": "linear"}}, MalformedError, "factor"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, MalformedError, "high_freq_factor"),
        ({"gguf_metadata": {"a": ["u8", 256]}}, MalformedError, "bad entry 'a'"),
        ({"gguf_metadata": {"a": ["wat", 1]}}, MalformedError, "bad entry 'a'"),
        ({"gguf_metadata": {"a": ["f32", 1e39]}}, MalformedError, "bad entry 'a'"),
        ({"gguf_metadata": {"a": [["f32"], 1]}}, MalformedError, "bad entry 'a'"),
        ({"gguf_metadata": {"a": 7}}, MalformedError, "bad entry 'a'"),
        ({"gguf_metadata": [1]}, MalformedError, "gguf_metadata"),
    ],
)
def test_bad_settings(config: dict[str, Any], error: type[FlyweightError], text: str) -> None:
    with pytest.raises(error, match=text):
        to_gguf("llama", **config)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("llama.attention.head_count", [2, 2], "head_count"),
        ("llama.attention.value_length", 5, "value_length"),
        ("llama.rope.dimension_count", 2, "dimension_count"),
        ("llama.vocab_size", 21, "20 rows"),
        ("llama.rope.scaling.type", "dynamic", "dynamic"),
        ("flyweight.config", "[]", "must be an object"),
        ("flyweight.config", "{", "not JSON"),
        ("flyweight.generation_config", "[1]", "must be an object"),
        ("flyweight.config", '{"rope_scaling": 3}', "rope_scaling"),
    ],
)
def test_bad_metadata(key: str, value: Any, text: str) -> None:
    manifest = hf_manifest("llama")
    gguf, _ = as_gguf(manifest, models.translate(manifest, "gguf", no_read))
    gguf = Manifest("gguf", gguf.entries, {**gguf.metadata, key: Typed("u32", value)}, {}, "gguf")
    with pytest.raises((MalformedError, UnsupportedError), match=text):
        models.translate(gguf, "hf", no_read)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "factor", "rope_type", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


SETTINGS = [
    *sorted({key for table in TINY.values() for key in table}),
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "gguf_metadata",
    "partial_rotary_factor",
    "eos_token_id",
    "sliding_window_pattern",
]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(model_type=st.sampled_from(sorted(TINY)), changes=st.dictionaries(st.sampled_from(SETTINGS), JUNK, max_size=3))
def test_any_configuration_translates_or_raises_our_errors(model_type: str, changes: dict[str, Any]) -> None:
    manifest = hf_manifest(model_type)
    config = json.loads(manifest.files["config.json"]) | changes
    manifest = Manifest("hf", manifest.entries, {}, {"config.json": json.dumps(config).encode()}, "hf")
    try:
        round_trip(manifest)
    except FlyweightError:
        return


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_metadata_translates_or_raises_our_errors(data: st.DataObject) -> None:
    manifest = hf_manifest(data.draw(st.sampled_from(sorted(TINY))))
    gguf, _ = as_gguf(manifest, models.translate(manifest, "gguf", no_read))
    keys = st.sampled_from(
        [*sorted(gguf.metadata), "tokenizer.ggml.model", "flyweight.tokenizer_config", "llama.rope.scaling.type"]
    )
    changes = data.draw(st.dictionaries(keys, JUNK, max_size=3))
    metadata = {**gguf.metadata, **{key: Typed("str", value) for key, value in changes.items()}}
    try:
        models.translate(Manifest("gguf", gguf.entries, metadata, {}, "gguf"), "hf", no_read)
    except FlyweightError:
        return
