"""A model opened to be run: weights, tokenizer and chat template.

Opening decides about memory before any is taken: weights stay in their files unless `max_ram` is too little to hold them, and
then come layer by layer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flyweight.checkpoint import Checkpoint, open_checkpoint, require_passed
from flyweight.foundation.errors import FlyweightError, MalformedError, ResourceError
from flyweight.foundation.limits import parse_size
from flyweight.models import Config
from flyweight.runtime.decoder import Decoder, Settings
from flyweight.runtime.kv import KeyValues, cache_nbytes
from flyweight.runtime.tensors import Streamed, Tensors
from flyweight.runtime.text.tokenizer import Tokenizer
from flyweight.sources import Uncopied

if TYPE_CHECKING:
    from flyweight.runtime.text.chat_template import Renderer

DEFAULT_CONTEXT = 4096
_BASE_RAM = 96 << 20
"""The interpreter, NumPy, the tokenizer and a block of activations, as measured, rounded up."""


def usable_cores() -> int:
    """The processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Model(Uncopied):
    """Use as a context manager, or let it be collected. After `close` it does not run any more: ClosedError, a ValueError."""

    def __init__(self, checkpoint: Checkpoint, tensors: Tensors, context: int, settings: Settings, kv: str) -> None:
        self.checkpoint, self.kv = checkpoint, kv
        self.decoder = Decoder(tensors, context, settings)

    @property
    def streamed(self) -> bool:
        """Whether layers are read when they are needed and dropped again."""
        return isinstance(self.decoder.tensors, Streamed)

    @property
    def context(self) -> int:
        return self.decoder.context

    @cached_property
    def tokenizer(self) -> Tokenizer:
        self.checkpoint.check_open()
        return Tokenizer.of(self.checkpoint)

    def cache(self) -> KeyValues:
        self.checkpoint.check_open()
        return self.decoder.cache(self.kv)

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], renderer: Renderer | None = None, *, raw_special: bool = False
    ) -> list[int]:
        """A conversation as tokens, in the model's own template, up to where its answer begins.

        Special tokens written in a message are text; with `raw_special` they are those tokens.
        """
        from flyweight.runtime.text.chat_template import Renderer, template_for
        from flyweight.runtime.text.literal import as_text, strings_of

        self.checkpoint.check_open()
        words, template = self.tokenizer, template_for(self.checkpoint)
        longest = words.require_room(strings_of(messages), self.context)
        messages, stands_for = as_text(messages, () if raw_special else words.special_texts, template)
        rendering = renderer or Renderer()
        try:
            text = rendering(
                template,
                list(messages),
                add_generation_prompt=True,
                bos_token=words.text(words.bos) if words.bos is not None else None,
                eos_token=words.text(words.eos) if words.eos is not None else None,
                limit=2 * longest,  # what is little too long is refused as a prompt, and says so
            )
        finally:
            if renderer is None:
                rendering.close()
        literal = bool(stands_for) or (not raw_special and words.reads_special(strings_of(messages)))
        tokens = words.encode(text, special=False, room=self.context, stands_for=stands_for if literal else None)
        return _some(
            tokens,
            "the chat template and tokenizer give no tokens for these messages",
            "give the prompt as plain text with --raw",
        )

    def raw_prompt(self, text: str) -> list[int]:
        """A text as tokens, to be continued as it is: special tokens written in it are those tokens."""
        tokens = self.tokenizer.encode(text, room=self.context)
        return _some(tokens, "the tokenizer gives no tokens for this prompt", "use another prompt")

    def close(self) -> None:
        self.checkpoint.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _some(tokens: list[int], message: str, hint: str) -> list[int]:
    if not tokens:
        raise MalformedError(message, code="E_PROMPT", hint=hint)
    return tokens


def open_model(
    path: Path | str | Checkpoint,
    *,
    context: int | None = None,
    kv: str = "f16",
    int8: bool = True,
    threads: int | None = None,
    max_ram: int | str | None = None,
    allow_ungated: bool = False,
    verify: bool = False,
) -> Model:
    """Open anything that can be run, or run what is open. Nothing is read but headers and settings, and weights of three bits,
    for their digest; with `verify` everything that a digest is recorded of is read, and held against it.

    `context` is at most what the model was made for, by default also at most 4096. `max_ram` bounds the memory of the process.
    Where weights need an accuracy gate and have not passed it, GateError unless `allow_ungated`.
    """
    checkpoint = path if isinstance(path, Checkpoint) else open_checkpoint(path)
    try:
        if verify:
            checkpoint.check_digests()
        require_passed(checkpoint, allow_ungated=allow_ungated)
        tensors = Tensors(checkpoint)
        longest = tensors.blueprint.config.context
        if context is not None and context > longest:
            raise ResourceError(
                f"a context of {context} tokens exceeds the model's {longest}",
                code="E_CONTEXT",
                hint=f"use at most {longest}",
            )
        length = context or min(longest, DEFAULT_CONTEXT)
        if max_ram is not None:
            tensors = _within(parse_size(max_ram, "max_ram"), checkpoint, tensors, length, kv)
        return Model(checkpoint, tensors, length, Settings(int8, threads or usable_cores()), kv)
    except FlyweightError as error:
        checkpoint.close()
        raise error.at(file=checkpoint.bundle.name) from None


def beside_weights(config: Config, context: int | None = None, kv: str = "f16") -> int:
    """Bytes that running a model takes besides its weights: the program, and a context, by default that of `open_model`."""
    dims, length = config.dims, context or min(config.context, DEFAULT_CONTEXT)
    return _BASE_RAM + cache_nbytes(dims.layers, dims.kv_heads, dims.head, length, kv)


def _within(max_ram: int, checkpoint: Checkpoint, tensors: Tensors, context: int, kv: str) -> Tensors:
    """The tensors in a way that fits, or a refusal that says what would."""
    fixed = beside_weights(tensors.blueprint.config, context, kv)
    if fixed + checkpoint.manifest.nbytes <= max_ram:
        return tensors
    streamed = Streamed(checkpoint)
    needed = fixed + 2 * streamed.buffer_nbytes
    if needed > max_ram:
        raise ResourceError(
            f"running layer by layer needs {needed} bytes, of which {2 * streamed.buffer_nbytes} are for two layers",
            code="E_RAM",
            hint="raise --max-ram, shorten --context, or choose --kv int8",
        )
    return streamed
