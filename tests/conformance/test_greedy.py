"""The real model says the same in transformers, in llama.cpp and here: five prompts, 64 tokens each, the likeliest every time.

Ours runs from the packed Q4_1 file with f32 activations; the others from the same weights decoded to f32. llama.cpp is asked
where FLYWEIGHT_LLAMA_PYTHON names a Python with llama-cpp-python, or this one has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers

import flyweight
from flyweight.runtime import Model, open_model

MODEL = Path(os.environ["FLYWEIGHT_DEMO_MODEL"])
PROMPTS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain how a bicycle stays upright.",
    "List three uses of copper.",
    "def fibonacci(n):",
)
TOKENS = 64
LLAMA = """
import json, sys, llama_cpp
path, prompts, count = sys.argv[1], json.load(sys.stdin), int(sys.argv[2])
model = llama_cpp.Llama(path, n_ctx=512, n_threads=2, verbose=False, type_k=0, type_v=0, logits_all=True)
said = []
for prompt in prompts:
    model.reset()
    model.eval(prompt)
    tokens = []
    while len(tokens) < count:
        tokens.append(int(model.scores[model.n_tokens - 1].argmax()))
        model.eval(tokens[-1:])
    said.append(tokens)
print(json.dumps(said))
"""


def greedy(model: Model, prompt: list[int]) -> list[int]:
    cache = model.cache()
    logits, tokens = model.decoder.forward(prompt, cache), list[int]()
    while len(tokens) < TOKENS:
        tokens.append(int(logits[-1].argmax()))
        logits = model.decoder.forward(tokens[-1:], cache)
    return tokens


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    with open_model(MODEL) as model:
        return [model.prompt([{"role": "user", "content": text}]) for text in PROMPTS]


@pytest.fixture(scope="module")
def ours(prompts: list[list[int]]) -> list[list[int]]:
    with open_model(MODEL, int8=False, kv="f32") as model:
        return [greedy(model, prompt) for prompt in prompts]


@pytest.mark.timeout(1500)  # it says some tokens a second in f32
def test_transformers(prompts: list[list[int]], ours: list[list[int]], tmp_path: Path) -> None:
    flyweight.convert(MODEL, tmp_path / "hf", dtype="f32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    for text, prompt, said in zip(PROMPTS, prompts, ours, strict=True):
        with torch.no_grad():
            made = model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
        theirs = made[0, len(prompt) :].tolist()
        # transformers may not say the end of a text within min_new_tokens; up to there both must agree
        end = next((at for at, token in enumerate(said) if token == model.generation_config.eos_token_id), TOKENS)
        assert said[:end] == theirs[:end], text


def test_llama_cpp(prompts: list[list[int]], ours: list[list[int]], tmp_path: Path) -> None:
    python = os.environ.get("FLYWEIGHT_LLAMA_PYTHON") or (sys.executable if find_spec("llama_cpp") else None)
    if python is None:
        pytest.skip("no llama-cpp-python: set FLYWEIGHT_LLAMA_PYTHON")
    path = tmp_path / "f32.gguf"
    flyweight.convert(MODEL, path, quant="dense", dtype="f32")
    command = [python, "-c", LLAMA, str(path), str(TOKENS)]
    run = subprocess.run(command, input=json.dumps(prompts), capture_output=True, text=True, check=True)
    for text, theirs, said in zip(PROMPTS, json.loads(run.stdout), ours, strict=True):
        assert said == theirs, text
