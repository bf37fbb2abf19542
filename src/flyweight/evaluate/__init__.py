"""Perplexity of a model on a text, and KL divergence from the model it was made from.

from flyweight.evaluate import evaluate, predictor, windows_of
from flyweight.runtime import open_model

with open_model("model.gguf", context=1024) as model, open_model("model-hf", context=1024, int8=False) as source:
    windows = windows_of(model.tokenizer.encode(text, special=False), 1024)
    print(evaluate(windows, predictor(model), predictor(source)).as_json())
"""

from flyweight.evaluate.evaluation import Evaluation, evaluate
from flyweight.evaluate.predict import Predictor, predictor
from flyweight.evaluate.windows import common_tokens, read_text, windows_of

__all__ = ["Evaluation", "Predictor", "common_tokens", "evaluate", "predictor", "read_text", "windows_of"]
