"""The dialect of models that mistral.rs made of GGUF files: that of Hugging Face, but the rows of q and k lie interleaved."""

from __future__ import annotations

from flyweight.models.dialects.hf_dialect import HuggingFace
from flyweight.models.model_config import Config
from flyweight.models.transform import Stored


class Adjacent(HuggingFace):
    name = "hf_adjacent"

    def stored(self, name: str, config: Config) -> Stored:
        module = name.split(".")[-2]
        return Stored(name, {"q_proj": config.dims.heads, "k_proj": config.dims.kv_heads}.get(module, 0))


ADJACENT = Adjacent()
