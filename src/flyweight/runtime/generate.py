"""Generating tokens one after the other, with times and speeds."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from flyweight.foundation.errors import ResourceError
from flyweight.runtime.kv import KeyValues
from flyweight.runtime.model import Model
from flyweight.runtime.sample import Sampler
from flyweight.runtime.text.token_text import TextStream


def peak_rss() -> int:
    """The most memory this process ever had, in bytes.

    Linux lets a process inherit `ru_maxrss` from the one that started it, but not VmHWM.
    """
    with suppress(OSError, StopIteration), open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


@dataclass
class Generation:
    """An answer in the making. `pieces` gives its text as it comes; the figures are true afterwards."""

    model: Model
    prompt: Sequence[int]
    sampler: Sampler
    max_tokens: int
    stops: Sequence[str] = ()
    cache: KeyValues | None = None
    """What the model has read already: `prompt` continues it."""
    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    """Why the answer ended: "stop", "length" (of the answer) or "context"."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    first_token_at: float = 0.0
    """On the clock of `perf_counter`."""

    def pieces(self) -> Iterator[str]:
        """The text, in pieces that are whole characters."""
        words = self.model.tokenizer
        text = TextStream(words, prompt=self.prompt, stops=self.stops)
        for token in self._ids():
            piece = text.feed(token)
            if piece:
                yield piece
            if text.stopped:
                self.finish = "stop"
                break
        rest = text.flush()
        if rest:
            yield rest

    def _ids(self) -> Iterator[int]:
        if not self.prompt:
            raise ValueError("a prompt has at least one token")
        cache = self.cache or self.model.cache()
        if len(self.prompt) + cache.length > self.model.context:
            raise ResourceError(
                f"the prompt has {len(self.prompt)} tokens; the context has {self.model.context}",
                code="E_CONTEXT",
                hint="shorten the prompt, or raise --context as far as the model allows",
            )
        forward, stops = self.model.decoder.forward, self.model.tokenizer.stops
        history = list(self.prompt)
        begun = perf_counter()
        logits = forward(self.prompt, cache)
        self.prefill_s = perf_counter() - begun
        while True:
            token = self.sampler(logits[-1], history)
            self.first_token_at = self.first_token_at or perf_counter()
            if token in stops:
                self.finish = "stop"
                return
            self.tokens.append(token)
            history.append(token)
            yield token
            if len(self.tokens) >= self.max_tokens:
                self.finish = "length"
                return
            if cache.length >= self.model.context:
                self.finish = "context"
                return
            begun = perf_counter()
            logits = forward([token], cache, out=logits)
            self.decode_s += perf_counter() - begun

    def as_json(self) -> dict[str, Any]:
        steps = max(len(self.tokens) - 1, 0)
        return {
            "prompt_tokens": len(self.prompt),
            "tokens": len(self.tokens),
            "finish": self.finish,
            "prefill_tokens_per_s": len(self.prompt) / self.prefill_s if self.prefill_s else None,
            "decode_tokens_per_s": steps / self.decode_s if self.decode_s else None,
            "peak_rss": peak_rss(),
        }
