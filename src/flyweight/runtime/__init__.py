"""Running models: a decoder that computes directly from stored weights.

from flyweight.runtime import Generation, Sampler, open_model

with open_model("model.gguf") as model:
    answer = Generation(model, model.prompt([{"role": "user", "content": "Hello"}]), Sampler(), max_tokens=64)
    print("".join(answer.pieces()))

Names are imported when first used, so that the worker of `chat` can start before all else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flyweight.foundation.lazy_table import lazy_exports

if TYPE_CHECKING:
    from flyweight.runtime.digest_check import Checking
    from flyweight.runtime.generate import Generation, peak_rss
    from flyweight.runtime.model import Model, open_model
    from flyweight.runtime.sample import Sampler

__all__ = ["Checking", "Generation", "Model", "Sampler", "open_model", "peak_rss"]

__getattr__ = lazy_exports(
    __name__,
    {
        "Checking": "digest_check:Checking",
        "Generation": "generate:Generation",
        "Model": "model:Model",
        "Sampler": "sample:Sampler",
        "open_model": "model:open_model",
        "peak_rss": "generate:peak_rss",
    },
)
