"""A Hugging Face directory is run by its own settings, also by those that GGUF has no way to say; only translating refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flyweight
from flyweight import models
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.pipeline import convert
from flyweight.runtime import open_model
from support import GOLDEN
from support.plain_decoder import gelu_tanh, plain_logits, silu
from support.tiny_models import TINY, hf_manifest, no_read
from support.toys import safetensors_bytes

DECODERS = GOLDEN / "decoders"

Array = np.ndarray[Any, Any]
SLIDING, FULL = "sliding_attention", "full_attention"


def weights(family: str, layers: int) -> dict[str, Array]:
    """The golden model of a family, its two layers taken in turn as often as it needs."""
    with flyweight.open(DECODERS / family) as checkpoint:
        held = {name: np.array(checkpoint[name], np.float32) for name in checkpoint.manifest.entries}
    made = {name: array for name, array in held.items() if ".layers." not in name}
    for layer in range(layers):
        own = f"model.layers.{layer % 2}."
        made |= {name.replace(own, f"model.layers.{layer}."): array for name, array in held.items() if name.startswith(own)}
    return made


def directory(path: Path, family: str, layers: int = 2, without: tuple[str, ...] = (), **settings: Any) -> Path:
    config = json.loads((DECODERS / family / "config.json").read_text()) | {"num_hidden_layers": layers}
    path.mkdir()
    kept = {key: value for key, value in config.items() if key not in without}
    (path / "config.json").write_text(json.dumps(kept | settings))
    (path / "model.safetensors").write_bytes(safetensors_bytes(weights(family, layers)))
    return path


def tokens(family: str) -> list[int]:
    with np.load(DECODERS / family / "logits.npz") as held:
        return [int(token) for token in held["tokens"]]


def ran(path: Path, family: str) -> Array:
    with open_model(path, int8=False, kv="f32", context=64) as model:
        return model.decoder.forward(tokens(family), model.cache(), every=True)


GEMMA = {"heads": 4, "scalar": 24, "eps": 1e-6, "gemma": True, "activation": gelu_tanh, "caps": (5.0, 3.0)}
QWEN = {"heads": 4, "scalar": 8, "eps": 1e-6}


def plain(family: str, windows: list[int], **changes: Any) -> Array:
    eps = json.loads((DECODERS / family / "config.json").read_text())["rms_norm_eps"]
    settings = (GEMMA if family == "gemma2" else QWEN) | {"eps": eps} | changes
    return plain_logits(weights(family, len(windows)), tokens(family), windows=windows, **settings)


def assert_close(found: Array, wanted: Array, layers: int) -> None:
    """Four products a layer and the output, each a sum of at most 64 terms in f32 (docs/formats/matvec.md)."""
    assert np.abs(found - wanted).max() <= (4 * layers + 1) * 64 * 2.0**-24 * np.abs(wanted).max()


@pytest.mark.parametrize(("family", "windows"), [("gemma2", [8, 0]), ("qwen2", [0, 0])])
def test_the_plain_decoder_gives_what_transformers_gave(family: str, windows: list[int]) -> None:
    with np.load(DECODERS / family / "logits.npz") as held:
        assert_close(held["logits"], plain(family, windows), 2)


@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ({"layer_types": None, "sliding_window_pattern": 3}, [8, 8, 0, 8]),
        ({"layer_types": None, "_sliding_window_pattern": 3}, [8, 8, 0, 8]),
        ({"layer_types": [SLIDING, SLIDING, FULL, SLIDING]}, [8, 8, 0, 8]),
        ({"layer_types": [FULL, SLIDING, SLIDING, FULL]}, [0, 8, 8, 0]),
        ({"layer_types": [FULL] * 4}, [0, 0, 0, 0]),
        ({"layer_types": None}, [8, 0, 8, 0]),
    ],
)
def test_gemma2_runs_with_any_pattern_of_windows(settings: dict[str, Any], windows: list[int], tmp_path: Path) -> None:
    path = directory(tmp_path / "model", "gemma2", 4, **settings)
    wanted = plain("gemma2", windows)
    assert_close(ran(path, "gemma2"), wanted, 4)
    if windows != [8, 0, 8, 0]:
        assert np.abs(wanted - plain("gemma2", [8, 0, 8, 0])).max() > 0.01  # the pattern matters
        with pytest.raises(UnsupportedError, match="'layer_types'") as caught:
            convert(path, tmp_path / "model.gguf")
        assert caught.value.code == "E_CONFIG"
        assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize(
    ("settings", "changes", "refused"),
    [
        ({"query_pre_attn_scalar": 7}, {"scalar": 7}, ""),
        ({"query_pre_attn_scalar": None}, {"scalar": 256}, ""),  # what transformers takes
        ({"attn_logit_softcapping": None}, {"caps": (None, 3.0)}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": None}, {"caps": (5.0, None)}, "final_logit_softcapping"),
        ({"hidden_activation": "silu"}, {"activation": silu}, "hidden_activation"),
    ],
)
def test_settings_of_gemma2_that_gguf_cannot_say(
    settings: dict[str, Any], changes: dict[str, Any], refused: str, tmp_path: Path
) -> None:
    path, wanted = directory(tmp_path / "model", "gemma2", **settings), plain("gemma2", [8, 0], **changes)
    assert_close(ran(path, "gemma2"), wanted, 2)
    assert np.abs(wanted - plain("gemma2", [8, 0])).max() > 0.01
    if refused:
        with pytest.raises(UnsupportedError, match=f"'{refused}'"):
            convert(path, tmp_path / "model.gguf")
    else:  # it has no key, so it is remembered beside the keys and noted
        convert(path, tmp_path / "model.gguf")
        assert_close(ran(tmp_path / "model.gguf", "gemma2"), wanted, 2)


@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}, [0, 5, 5]),
        ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, [5, 5, 5]),
        ({"use_sliding_window": True, "sliding_window": 5}, [0, 0, 0]),  # 28 layers have none, transformers says
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, [0, 0, 0]),
        ({"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0}, [0, 0, 0]),
        ({"use_sliding_window": True, "sliding_window": 5, "layer_types": [SLIDING, FULL, SLIDING]}, [5, 0, 5]),
    ],
)
def test_windows_of_qwen2(settings: dict[str, Any], windows: list[int], tmp_path: Path) -> None:
    path = directory(tmp_path / "model", "qwen2", 3, ("layer_types", "max_window_layers"), **settings)
    wanted = plain("qwen2", windows)
    assert_close(ran(path, "qwen2"), wanted, 3)
    assert windows == [0, 0, 0] or np.abs(wanted - plain("qwen2", [0, 0, 0])).max() > 0.01
    convert(path, tmp_path / "model.gguf")  # remembered there
    assert_close(ran(tmp_path / "model.gguf", "qwen2"), wanted, 3)


def config_of(model_type: str, **settings: Any) -> models.Config:
    return models.blueprint(hf_manifest(model_type, settings), no_read).config


def without(model_type: str, *keys: str) -> models.Config:
    manifest = hf_manifest(model_type)
    config = {key: value for key, value in json.loads(manifest.files["config.json"]).items() if key not in keys}
    files = {"config.json": json.dumps(config).encode()}
    return models.blueprint(type(manifest)("hf", manifest.entries, {}, files, "hf"), no_read).config


def test_an_absent_window_is_that_of_transformers() -> None:
    assert without("mistral", "sliding_window").windows == (4096, 4096)
    assert config_of("mistral", sliding_window=None).windows == (0, 0)
    assert without("gemma2", "sliding_window").windows == (4096, 0)
    assert without("phi3", "sliding_window").windows == (0, 0)
    assert config_of("llama", sliding_window=5).windows == (0, 0)  # it has no such setting


@pytest.mark.parametrize("model_type", [name for name in TINY if name != "phi3"])
@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_every_kind_of_scaling_is_run_and_only_gguf_refuses(model_type: str, kind: str) -> None:
    scaling = {"rope_type": kind, "factor": 2.0}
    assert config_of(model_type, rope_scaling=scaling).scaling["rope_type"] == kind
    manifest = hf_manifest(model_type, {"rope_scaling": scaling})
    (form,) = models.FAMILIES[model_type].forms
    if kind in form.scalings:
        models.translate(manifest, "gguf", no_read)
    else:
        with pytest.raises(UnsupportedError, match=f"'rope_scaling'.*'{kind}'") as caught:
            models.translate(manifest, "gguf", no_read)
        assert caught.value.code == "E_ROPE"


def test_local_layers_are_not_scaled() -> None:
    """Also where their base is that of the global ones."""
    from flyweight.runtime.rotary import Rotary

    config = config_of("gemma3_text", rope_theta=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0})
    whole, local = (Rotary(config, 64, local=local).frequencies for local in (False, True))
    np.testing.assert_allclose(whole * 8, local)
    layered = {FULL: {"rope_type": "default"}, SLIDING: {"rope_type": "linear", "factor": 2.0}}
    with pytest.raises(MalformedError, match="rope_type"):
        config_of("gemma3_text", rope_parameters=layered)


def test_a_family_without_a_form_is_run_and_not_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    family = models.FAMILIES["llama"]._replace(forms=())
    monkeypatch.setitem(models.FAMILIES._made, "llama", family)
    assert config_of("llama").family is family
    with pytest.raises(UnsupportedError, match="GGUF has no architecture for llama") as caught:
        models.translate(hf_manifest("llama"), "gguf", no_read)
    assert caught.value.code == "E_FAMILY"


@pytest.mark.parametrize(("key", "value"), [("layer_types", ["odd", FULL]), ("layer_types", [FULL]), ("sliding_window", 0)])
def test_windows_that_mean_nothing_are_refused(key: str, value: Any) -> None:
    with pytest.raises(MalformedError, match=f"'{key}'"):
        config_of("gemma2", **{key: value})
