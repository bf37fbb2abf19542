"""`flyweight chat`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from flyweight.cli.output import note
from flyweight.cli.paths import LocalPath
from flyweight.cli.run import explain, model_options, sampling_options, starting
from flyweight.cli.streams import lines_from_stdin, require_text, say


@click.command(name="chat", short_help="Chat with a model.")
@click.argument("model", type=LocalPath())
@sampling_options
@model_options
def command(
    model: Path, system: str | None, raw_special: bool, max_tokens: int, context: int | None, kv: str, threads: int | None,
    exact: bool, max_ram: int | None, allow_ungated: bool, tier: str, no_build: bool, verbose: bool, verify: bool,
    deltas: tuple[Path, ...], **sampling: Any,
) -> None:  # fmt: skip
    """Chat with MODEL, one line per message.

    \b
    /reset  start a new conversation    /exit or end of input  leave    Ctrl-C  stop an answer

    \b
    Examples:
      flyweight chat model.gguf
      flyweight chat model-hf --system "Answer in rhymes." --temperature 0.7
    """
    require_text("--system", system)
    opening = [{"role": "system", "content": system}] if system else []
    with ExitStack() as held:
        with starting():
            from flyweight.runtime.text.chat_template import Renderer

            renderer = held.enter_context(Renderer())
            from flyweight.measuring import measure
            from flyweight.runtime import Checking, Generation, Sampler
            from flyweight.tiers import open_model_from

            opened, choice = open_model_from(
                model, deltas=deltas, tier=tier, build=not no_build, tell=note, context=context, kv=kv, int8=not exact,
                threads=threads, max_ram=max_ram, allow_ungated=allow_ungated, verify=verify, measure=measure,
            )  # fmt: skip
            held.enter_context(opened)
        if verbose:
            explain(choice)
        sampler, cache, messages = Sampler(**sampling), opened.cache(), list(opening)
        read: list[int] = []  # the tokens in the cache
        checking = Checking(opened, verified=verify)
        for line in lines_from_stdin():
            if line.strip() == "/exit":
                return
            if line.strip() == "/reset":
                messages, read = list(opening), []
                cache.truncate(0)
                continue
            if not line.strip():
                continue
            messages.append({"role": "user", "content": line})
            tokens = opened.prompt(messages, renderer, raw_special=raw_special)
            same = _shared(tokens, read)
            cache.truncate(same)
            answer = Generation(opened, tokens[same:], sampler, max_tokens, cache=cache)
            said = []
            try:
                for piece in answer.pieces():
                    said.append(piece)
                    say(piece)
                    checking.go_on()
            except KeyboardInterrupt:
                note("…")
            sys.stdout.write("\n")
            if answer.finish == "context":
                note(f"the context of {opened.context} tokens is full; /reset starts a new conversation")
            messages.append({"role": "assistant", "content": "".join(said)})
            read = (tokens + answer.tokens)[: cache.length]


def _shared(tokens: list[int], read: list[int]) -> int:
    """How many tokens the cache holds already; the last one is always read again, for its logits."""
    most = min(len(tokens) - 1, len(read))
    return next((at for at in range(most) if tokens[at] != read[at]), most)
