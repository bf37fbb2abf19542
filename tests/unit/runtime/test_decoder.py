"""The decoder gives the logits transformers gives, from any form of the weights, and refuses what it cannot run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight import kernels
from flyweight.checkpoint import open_checkpoint
from flyweight.foundation.errors import FlyweightError
from flyweight.pipeline import convert
from flyweight.runtime import open_model
from flyweight.runtime.decoder import Decoder, Settings
from flyweight.runtime.tensors import Streamed, Tensors
from support import GOLDEN

DECODERS = GOLDEN / "decoders"
FAMILIES = sorted(path.name for path in DECODERS.iterdir())

Array = np.ndarray[Any, Any]


@pytest.fixture(params=kernels.available())
def kernel_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernels.active()
    kernels.use(request.param)
    yield request.param
    kernels.use(before)


def golden(family: str) -> tuple[Array, Array]:
    with np.load(DECODERS / family / "logits.npz") as held:
        return held["tokens"], held["logits"]


def logits(path: Path, tokens: Array, *, kind: type[Tensors] = Tensors, first: int = 25) -> Array:
    """A block of tokens at once, then the others one by one."""
    with open_checkpoint(path) as checkpoint:
        decoder = Decoder(kind(checkpoint), 64, Settings(int8=False, threads=2))
        cache = decoder.cache("f32")
        made = [decoder.forward(tokens[:first], cache, every=True)]
        made += [decoder.forward([token], cache) for token in tokens[first:]]
        return np.concatenate(made)


def rounding_of_f32(wanted: Array, layers: int) -> float:
    """Four products a layer and the output, each a sum of at most 64 terms: what f32 may lose, docs/formats/matvec.md."""
    return float((4 * layers + 1) * 64 * 2.0**-24 * np.abs(wanted).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers(family: str, kernel_set: str) -> None:
    tokens, wanted = golden(family)
    assert np.abs(logits(DECODERS / family, tokens) - wanted).max() <= rounding_of_f32(wanted, 6)


@pytest.mark.parametrize("family", ["llama", "gemma2", "phi3"])
def test_layers_that_are_streamed_give_the_same_bits(family: str) -> None:
    tokens, _ = golden(family)
    assert np.array_equal(logits(DECODERS / family, tokens), logits(DECODERS / family, tokens, kind=Streamed))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3_text", "phi3"])
def test_gguf_runs_as_it_is_stored(family: str, tmp_path: Path) -> None:
    """Interleaved heads are rotated in pairs, norms hold 1 + w: nothing is turned back."""
    tokens, wanted = golden(family)
    convert(DECODERS / family, tmp_path / "model.gguf")
    assert np.abs(logits(tmp_path / "model.gguf", tokens) - wanted).max() <= rounding_of_f32(wanted, 6)


@pytest.mark.parametrize("quant", ["q8_0", "q5_1", "int8-g32", "int4-g32", "palette", "lossless", "fp8", "int3", "hqq"])
def test_packed_weights_run_as_their_decoded_values(quant: str, tmp_path: Path) -> None:
    """The codecs with a product of their own, and those that are decoded on the way."""
    tokens, _ = golden("llama")
    convert(DECODERS / "llama", tmp_path / "model.gguf")
    convert(tmp_path / "model.gguf", tmp_path / "packed.safetensors", quant=quant)
    convert(tmp_path / "packed.safetensors", tmp_path / "plain.gguf", quant="dense", dtype="f32")
    packed, plain = logits(tmp_path / "packed.safetensors", tokens), logits(tmp_path / "plain.gguf", tokens)
    assert np.abs(packed - plain).max() <= rounding_of_f32(plain, 2)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_blocks_and_single_tokens_agree(family: str) -> None:
    tokens, wanted = golden(family)
    one, many = logits(DECODERS / family, tokens, first=1), logits(DECODERS / family, tokens, first=40)
    assert np.abs(one - many).max() <= 2 * rounding_of_f32(wanted, 2)


def test_a_prompt_longer_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into blocks of 32, a prompt of 100 gives what it gives at once, for every token and for the last."""
    tokens = np.random.default_rng(0).integers(0, 64, 100)
    with open_model(DECODERS / "qwen2", int8=False, kv="f32", context=128) as model:
        whole = model.decoder.forward(tokens, model.cache(), every=True)
        monkeypatch.setattr("flyweight.runtime.decoder.BLOCK", 32)
        cut = model.decoder.forward(tokens, model.cache(), every=True)
        last = model.decoder.forward(tokens, model.cache())
    assert cut.shape == whole.shape == (100, 64)
    assert last.shape == (1, 64)
    allowed = 2 * rounding_of_f32(whole, 2)
    assert np.abs(cut - whole).max() <= allowed
    assert np.abs(last - whole[-1:]).max() <= allowed


# What cannot be run is refused with a reason ----------------------------------------------------


def broken(tmp_path: Path, **settings: object) -> Path:
    path = tmp_path / "broken"
    shutil.copytree(DECODERS / "llama", path)
    config = json.loads((path / "config.json").read_text()) | settings
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("settings", "code", "exit_code"),
    [
        ({"model_type": "gpt_wonder"}, "E_FAMILY", 4),
        ({"num_hidden_layers": 3}, "E_TENSORS", 3),
        ({"hidden_size": 48}, "E_SHAPE", 3),
        ({"num_key_value_heads": 3}, "E_CONFIG", 3),
        ({"hidden_act": "relu"}, "E_CONFIG", 4),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "E_ROPE", 4),
    ],
)
def test_refusals(settings: dict[str, object], code: str, exit_code: int, tmp_path: Path) -> None:
    with pytest.raises(FlyweightError) as caught:
        open_model(broken(tmp_path, **settings))
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)


def test_a_context_is_no_longer_than_the_models(tmp_path: Path) -> None:
    with pytest.raises(FlyweightError, match="exceeds the model") as caught:
        open_model(DECODERS / "llama", context=4096)
    assert caught.value.code == "E_CONTEXT"
    with open_model(DECODERS / "llama", context=16) as model, pytest.raises(FlyweightError, match="16") as caught:
        model.decoder.forward(np.arange(17), model.cache())
    assert caught.value.code == "E_CONTEXT"


def test_memory_decides_how_layers_come() -> None:
    path = DECODERS / "llama"
    with open_model(path, max_ram=1 << 30) as model:
        assert not model.streamed
    with pytest.raises(FlyweightError, match="--max-ram") as caught:
        open_model(path, max_ram=1 << 20)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("tokens", [[], [-1], [64], [[1, 2]]])
def test_tokens_outside_the_vocabulary_are_a_mistake_of_the_caller(tokens: list[int]) -> None:
    with open_model(DECODERS / "llama") as model, pytest.raises(ValueError, match="tokens"):
        model.decoder.forward(tokens, model.cache())
