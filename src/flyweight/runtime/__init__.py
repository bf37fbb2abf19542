"""What we compress also runs: a small decoder over packed weights.

from flyweight.runtime import Generation, Sampler, open_model

with open_model("model.gguf") as model:
    answer = Generation(model, model.prompt([{"role": "user", "content": "Hello"}]), Sampler(), max_tokens=64)
    print("".join(answer.pieces()))
"""

from flyweight.runtime.generate import Generation, peak_rss
from flyweight.runtime.model import Model, open_model
from flyweight.runtime.sample import Sampler

__all__ = ["Generation", "Model", "Sampler", "open_model", "peak_rss"]
