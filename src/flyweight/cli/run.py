"""`flyweight run`."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flyweight.cli.output import json_option, note, print_json, size_argument, ungated_option
from flyweight.cli.paths import LocalPath, delta_option
from flyweight.cli.streams import require_text, say, text_from_stdin
from flyweight.tiers.tier_table import AUTO, CHOICES

if TYPE_CHECKING:
    from flyweight.tiers import Choice

C = TypeVar("C", bound=Callable[..., Any])


def _all(*options: Callable[[Any], Any]) -> Callable[[C], C]:
    def decorate(function: C) -> C:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


engine_options = _all(
    click.option(
        "--kv", type=click.Choice(["f16", "f32", "int8"]), default="f16", show_default=True, help="Type of the KV cache."
    ),
    click.option("--threads", type=click.IntRange(1, 256), help="CPU threads.  [default: all cores]"),
    click.option("--exact", is_flag=True, help="Use f32 activations instead of int8: slower, more accurate."),
    click.option("--max-ram", callback=size_argument, metavar="SIZE", help="Memory limit; layers are streamed if necessary."),
)
tier_options = _all(
    click.option(
        "--tier",
        type=click.Choice(CHOICES),
        default=AUTO,
        show_default=True,
        help="Which tier of an npy-dir to run; it is built in your cache if necessary.",
    ),
    click.option("--no-build", is_flag=True, help="Build no tier; run what is there."),
    click.option("--verbose", "-v", is_flag=True, help="Print which tier is run and why, and how many digests were checked."),
)
model_options = _all(
    delta_option,
    click.option("--context", type=click.IntRange(1), help="Context size in tokens.  [default: the model's, at most 4096]"),
    engine_options,
    tier_options,
    ungated_option,
    click.option("--verify", is_flag=True, help="Check all digests before the first token, not in the background."),
)
sampling_options = _all(
    click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Most tokens to generate."),
    click.option(
        "--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="Sampling temperature; 0 is greedy."
    ),
    click.option("--top-k", type=click.IntRange(0), default=0, help="Sample from the K most likely tokens; 0 for all."),
    click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Nucleus sampling threshold."),
    click.option("--min-p", type=click.FloatRange(0, 1), default=0.0, help="Minimum probability, as a share of the best."),
    click.option("--repetition-penalty", type=click.FloatRange(0, min_open=True), default=1.0, help="Above 1: repeat less."),
    click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Random seed."),
    click.option("--system", metavar="TEXT", help="System message."),
    click.option("--raw-special", is_flag=True, help="Parse special tokens in messages, instead of reading them as text."),
)


@contextmanager
def starting() -> Iterator[None]:
    """The time in which modules, a vocabulary and weights are loaded, to stay until the end.

    Looking for garbage among them takes a seventh of it, then and whenever they are looked through again. NumPy's BLAS
    would start threads of its own, which sit beside those of our kernels.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _process_began() -> float:
    """When this process was started, in the time of `time.time`, before the interpreter's own start.

    Counted from the clock that processes are started by: the wall clock may have been set since the machine was.
    """
    try:
        began = int(Path("/proc/self/stat").read_text("ascii").rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, AttributeError):  # not Linux
        import psutil

        return float(psutil.Process().create_time())


@cache  # one thread is enough for who runs several commands in a process
def leave_promptly(seconds: float = 0.05) -> None:
    """End the program on Ctrl-C even in the middle of a long product.

    Python handles a signal between two of its own steps, and a product of a large model is one step. What is notified at once
    is this thread; it gives Python the time to end in its own way, and then ends everything.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)

    def wait() -> None:
        while os.read(reader, 1) != bytes([signal.SIGINT]):
            pass
        time.sleep(seconds)
        os._exit(130)

    threading.Thread(target=wait, daemon=True).start()


def _stop_texts(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    if not all(texts):
        raise click.BadParameter("the text is empty; leave the option out")
    return texts


@click.command(name="run", short_help="Generate text from a prompt.")
@click.argument("model", type=LocalPath())
@click.argument("prompt", required=False)
@click.option("--raw", is_flag=True, help="Continue the prompt without the chat template.")
@click.option("--stop", multiple=True, metavar="TEXT", callback=_stop_texts, help="Stop before this text; may be repeated.")
@sampling_options
@model_options
@json_option
def command(
    model: Path, prompt: str | None, raw: bool, stop: tuple[str, ...], system: str | None, raw_special: bool, max_tokens: int,
    context: int | None, kv: str, threads: int | None, exact: bool, max_ram: int | None, allow_ungated: bool, tier: str,
    no_build: bool, verbose: bool, verify: bool, deltas: tuple[Path, ...], as_json: bool, **sampling: Any,
) -> None:  # fmt: skip
    """Generate text from PROMPT, or from standard input, with MODEL in any format.

    \b
    Examples:
      flyweight run model.gguf "Why is the sky blue?"
      flyweight run model-hf "Once upon a time" --raw --temperature 0.8 --seed 7
      flyweight run big-model-hf "Hello" --max-ram 4G --json
      flyweight run model-npy "Hello" --tier cache -v
      flyweight run base-hf "Hello" --delta tuned.wdelta
      cat question.txt | flyweight run model.gguf
    """
    require_text("PROMPT", prompt)
    require_text("--system", system)
    text = prompt if prompt is not None else text_from_stdin()
    if not text:
        raise click.UsageError("no prompt: give PROMPT, or text on standard input")
    if raw and system:
        raise click.UsageError("--system and --raw cannot be used together: --system needs the chat template")
    leave_promptly()
    with ExitStack() as held:
        with starting():
            renderer = None
            if not raw:  # before anything else: Python and jinja2 take as long to start there as NumPy does here
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
            loaded_at = time.time()
            if renderer:
                tokens = opened.prompt(_messages(system, text), renderer, raw_special=raw_special)
            else:
                tokens = opened.raw_prompt(text)
        if renderer:
            renderer.close()
        if verbose:
            explain(choice)
        answer, checking = Generation(opened, tokens, Sampler(**sampling), max_tokens, stop), Checking(opened, verified=verify)
        begun, clock = time.time(), time.perf_counter()
        said = []
        for piece in answer.pieces():
            said.append(piece)
            if not as_json:
                say(piece)
            checking.go_on()
        checking.go_on()
        if verbose:
            note(checking.summary)
        if not as_json:
            sys.stdout.write("\n")
            if answer.finish == "context":
                note(f"the context of {opened.context} tokens is full")
            return
        started = _process_began()
        first_at = begun + answer.first_token_at - clock
        figures = {"load_ms": 1e3 * (loaded_at - started), "first_token_ms": 1e3 * (first_at - started)} | answer.as_json()
        print_json(
            {"text": "".join(said)}
            | figures
            | {"streamed": opened.streamed, "context": opened.context, "tier": choice.as_json(), "digests": checking.as_json()}
        )


def explain(choice: Choice) -> None:
    """Which tier a model is run from, on stderr."""
    for state in choice.considered:
        if state.tier != choice.tier:
            note(f"{state.tier}: {state.standing}, {state.reason}")
    note(f"{choice.tier}: {choice.why}")


def _messages(system: str | None, text: str) -> list[dict[str, str]]:
    told = [{"role": "system", "content": system}] if system else []
    return [*told, {"role": "user", "content": text}]
