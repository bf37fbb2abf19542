"""The engines that running is measured beside, as programs for `flyweight.bench.running`."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

__all__ = ["LLAMA", "MLX", "TRANSFORMERS", "llama_python"]

LLAMA = """
def load(model, threads):
    import os, numpy
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it writes about itself
    import llama_cpp

    class Engine:
        def __init__(self):
            self.llama = llama_cpp.Llama(
                model, n_ctx=1024, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
            )

        def encode(self, text):
            return self.llama.tokenize(text.encode(), add_bos=False)

        def feed(self, ids):
            self.llama.eval(ids)

        def best(self):
            row = llama_cpp.llama_get_logits_ith(self.llama.ctx, -1)
            return int(numpy.ctypeslib.as_array(row, (self.llama.n_vocab(),)).argmax())

        def reset(self):
            self.llama.reset()

    return Engine()
"""

TRANSFORMERS = """
def load(model, threads):
    import torch, transformers
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()

    class Engine:
        def __init__(self):
            self.model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
            self.past = None

        def encode(self, text):
            return transformers.AutoTokenizer.from_pretrained(model).encode(text)

        def feed(self, ids):
            with torch.inference_mode():
                made = self.model(torch.tensor([ids]), past_key_values=self.past, use_cache=True, logits_to_keep=1)
            self.past, self.logits = made.past_key_values, made.logits

        def best(self):
            return int(self.logits[0, -1].argmax())

        def reset(self):
            self.past = None

    return Engine()
"""

MLX = """
def load(model, threads):
    import pathlib
    import mlx.core as mx
    from mlx_lm.utils import load_model

    class Engine:
        def __init__(self):
            self.model, _ = load_model(pathlib.Path(model))

        def feed(self, ids):
            self.logits = self.model(mx.array([ids]))

        def best(self):
            return int(self.logits[0, -1].argmax())

    return Engine()
"""


def llama_python(named: str | None) -> str | None:
    """A Python that can import llama_cpp."""
    for python in filter(None, (named, os.environ.get("FLYWEIGHT_LLAMA_PYTHON"))):
        if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode == 0:
            return python
        sys.exit(f"{python} has no llama-cpp-python")
    if find_spec("llama_cpp"):
        return sys.executable
    print("llama-cpp-python is not here: measuring without it")
    return None
