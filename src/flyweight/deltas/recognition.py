"""Whether something is a delta, by its content. Every model that is opened is asked, so it takes a few bytes and no module."""

from __future__ import annotations

from flyweight.sources import Bundle

MAGIC = b"wdelta\0"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def is_delta(bundle: Bundle) -> bool:
    return is_wdelta(bundle) or is_adapter(bundle)


def is_wdelta(bundle: Bundle) -> bool:
    if bundle.single is None:
        return False
    source = bundle[bundle.single]
    return source.size >= len(MAGIC) and bytes(source.read(0, len(MAGIC))) == MAGIC


def is_adapter(bundle: Bundle) -> bool:
    """A LoRA adapter as PEFT writes it: a directory without a model of its own."""
    return bundle.is_directory and {ADAPTER_CONFIG, ADAPTER_WEIGHTS} <= set(bundle) and "config.json" not in bundle
