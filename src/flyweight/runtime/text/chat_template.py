"""Messages → prompt, by the model's chat template, rendered in a worker.

A template is a program from an untrusted file. It runs in jinja2's sandbox, as in transformers, and that in a worker process
(`chat_worker`) with limited memory which is killed when it takes too long: see docs/decisions/0070.

    chat_template.jinja  >  chat_template.json  >  tokenizer_config.json  >  GGUF tokenizer.chat_template
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError, UnsupportedError
from flyweight.runtime.extra import missing_extra

if TYPE_CHECKING:
    from flyweight.checkpoint import Checkpoint
    from flyweight.models.dialects.contract import Templates

MAX_TEMPLATE = 256 * 2**10
MAX_REQUEST = 16 * 2**20
MAX_OUTPUT = 4 * 2**20
"""The longest text, in characters, unless a caller has room for less."""
SECONDS = 1.5
"""How long a template may take; the largest real ones take thousandths."""

_START_SECONDS = 30.0  # for Python and jinja2 to start, on a machine that is busy; no template has been read yet
_KEPT_VARIABLES = ("TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # the hour, and what Python itself may need

Message = Mapping[str, Any]
"""`{"role": …, "content": …}`, and whatever else a template understands."""


def templates_of(checkpoint: Checkpoint) -> Templates:
    """The chat templates of a checkpoint by name; none is no error."""
    # Imported here, so that a worker starts before, and then beside, whatever reads checkpoints.
    from flyweight.models import dialect_of

    try:
        return dialect_of(checkpoint.manifest).read_templates(checkpoint.manifest, checkpoint.read)
    except FlyweightError as error:
        raise error.at(file=checkpoint.bundle.name) from None


def template_for(checkpoint: Checkpoint, *, tools: bool = False) -> str:
    """The template to use: the default one, or the one for tools where there are tools and there is one."""
    templates = templates_of(checkpoint)
    for name in ("tool_use", "default") if tools else ("default",):
        if name in templates:
            return templates[name]
    raise UnsupportedError(
        "the model has no chat template",
        code="E_TEMPLATE",
        file=checkpoint.bundle.name,
        hint="it is not a chat model; use --raw to continue plain text",
    )


def _failed(message: str, *, hint: str = "give the prompt as plain text with --raw") -> MalformedError:
    return MalformedError(f"the chat template fails: {message}", code="E_TEMPLATE", hint=hint)


class Renderer:
    """A worker that renders. It starts with the object, beside whatever else is being loaded."""

    def __init__(self) -> None:
        directories = [_directory(package) for package in ("jinja2", "markupsafe")]
        worker = Path(__file__).with_name("chat_worker.py")
        # -I -S: nothing of the user's environment is imported, and the start is quick.
        self._command = [sys.executable, "-I", "-S", str(worker), *dict.fromkeys(directories)]
        self._process: subprocess.Popen[bytes] | None = self._start()
        self._ready = False

    def __call__(
        self,
        template: str,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        bos_token: str | None = None,
        eos_token: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        limit: int = MAX_OUTPUT,
    ) -> str:
        """The rendered text, of at most `limit` characters.

        Whatever the template does wrong is a MalformedError with the code E_TEMPLATE.
        """
        if len(template) > MAX_TEMPLATE:
            raise LimitError(
                f"the chat template has {len(template)} characters; the limit is {MAX_TEMPLATE}", code="E_TEMPLATE"
            )
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        context = {
            "messages": list(messages),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **{role: text for role, text in tokens.items() if text is not None},
        }
        request = json.dumps({"template": template, "context": context, "limit": limit}).encode() + b"\n"
        if len(request) > MAX_REQUEST:
            raise LimitError(f"the messages have {len(request)} bytes; the limit is {MAX_REQUEST}", code="E_TEMPLATE")
        answer = json.loads(self._exchange(request, limit))
        if "text" in answer:
            return str(answer["text"])
        line = f" (line {answer['line']})" if answer.get("line") else ""
        raise _failed(f"{answer['error']}{line}")

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        process, self._process, self._ready = self._process, None, False
        if process is not None:
            process.kill()
            with suppress(BrokenPipeError):
                process.communicate()

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        return subprocess.Popen(  # noqa: S603  our own file, run by the running Python
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept,
            bufsize=0,
            process_group=0,  # the terminal's Ctrl-C stops an answer, not the worker of the next one
        )

    def _exchange(self, request: bytes, limit: int) -> bytes:
        """One line for one line. A worker that fails to answer is ended; the next request starts another."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        done = False
        try:
            if not self._ready:
                self._ready = _line(process, _START_SECONDS, limit) == b"ready"
                if not self._ready:
                    raise _failed("its worker does not start", hint="check the installation of flyweight[run]")
            view = memoryview(request)
            while view:
                view = view[process.stdin.write(view) or 0 :]
            answer = _line(process, SECONDS, limit)
            done = True
        except BrokenPipeError:
            raise _failed("its worker ended") from None
        finally:
            if not done:
                self.close()
        return answer


def _directory(package: str) -> str:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise missing_extra(package)
    return str(Path(spec.submodule_search_locations[0]).parent)


def _line(process: subprocess.Popen[bytes], seconds: float, limit: int) -> bytes:
    """The next line of a worker's output, within a time and a length of so many characters."""
    assert process.stdout is not None
    end = monotonic() + seconds
    received = bytearray()
    while not received.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - monotonic()))
        if not ready:
            raise _failed(f"it takes longer than {seconds:g} seconds")
        piece = process.stdout.read(2**20)
        if not piece:
            raise _failed("its worker ended, probably for lack of memory")
        received += piece
        if len(received) > 12 * limit + 2**16:  # JSON writes a character in at most twelve bytes
            raise _failed("its worker returns too much text")
    return bytes(received[:-1])
