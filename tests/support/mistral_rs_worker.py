"""mistral.rs in a process of its own: reads questions as lines of JSON, answers each with one.

Needs nothing but the wheel, of any version from 0.3.2 on, so that the environment it runs in holds nothing else.
A question names a model and what to do with it:

    {"model": DIR, "uqff": NAME | [NAME…], "gguf": FILE, "isq": TYPE, "write": FILE, "dtype": "F32", "arch": NAME,
     "prompts": [TEXT…], "tokens": 8, "top": 4}

All but `model` may be left out. The answer, with logarithms to the base e, is

    {"seconds": S, "peak_rss": BYTES, "answers": [{"text": TEXT, "tokens": […], "logprobs": […], "top": […]}…], "last": false}

or {"error": MESSAGE, "last": false}. Where "last" is true, this process can answer no other question.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import time
from importlib.metadata import version

import mistralrs

VERSION = tuple(int(part) for part in version("mistralrs").split("."))
# Versions before 0.9 report logarithms to the base 10.
NATURAL = 1.0 if VERSION >= (0, 9) else math.log(10)
# 0.6.0 panics at the second model of a process.
ONE_MODEL = VERSION < (0, 8)


def which(question: dict) -> object:
    """What is to be loaded, in the tool's words."""
    options = {key: question[given] for key, given in (("from_uqff", "uqff"), ("write_uqff", "write")) if given in question}
    options["dtype"] = getattr(mistralrs.ModelDType, question.get("dtype", "F32"))
    if "gguf" in question:
        return mistralrs.Which.GGUF(quantized_model_id=question["model"], quantized_filename=question["gguf"], **options)
    if "arch" in question:
        options["arch"] = getattr(mistralrs.Architecture, question["arch"])
    return mistralrs.Which.Plain(model_id=question["model"], **options)


def respond(runner: object, prompt: str, tokens: int, top: int | None) -> dict:
    """The most likely continuation, and how likely each token of it was."""
    # At temperature 0, versions before 0.9 report logits.
    asked = {"temperature": 1.0, "top_k": 1, "max_tokens": tokens, "logprobs": True, "top_logprobs": top}
    request = mistralrs.ChatCompletionRequest(model="default", messages=[{"role": "user", "content": prompt}], **asked)
    choice = runner.send_chat_completion_request(request).choices[0]
    steps = choice.logprobs.content
    return {
        "text": choice.message.content,
        "tokens": [step.token for step in steps],
        "logprobs": [step.logprob * NATURAL for step in steps],
        "top": [[(other.token, other.logprob * NATURAL) for other in step.top_logprobs or []] for step in steps],
    }


def answer(question: dict) -> dict:
    """Load, and continue every prompt."""
    options = {"no_paged_attn": True, "token_source": "none"}
    if "isq" in question:
        options["in_situ_quant"] = question["isq"]
    start = time.perf_counter()
    runner = mistralrs.Runner(which=which(question), **options)
    seconds = time.perf_counter() - start
    answers = [respond(runner, p, question.get("tokens", 8), question.get("top")) for p in question.get("prompts", [])]
    return {"seconds": seconds, "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "answers": answers}


def main() -> None:
    # The tool logs on standard output: what is written there goes to standard error, and answers to where it led.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            try:
                reply = answer(json.loads(line))
            except KeyboardInterrupt:
                return
            except BaseException as error:  # noqa: BLE001 — a panic of Rust is no Exception
                reply = {"error": str(error)}
            answers.write(json.dumps({**reply, "last": ONE_MODEL}) + "\n")


if __name__ == "__main__":
    main()
