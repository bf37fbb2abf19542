"""A client of mistral_rs_worker.py: one process of the real tool answers many questions."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from pathlib import Path

WORKER = Path(__file__).with_name("mistral_rs_worker.py")
PROJECT = Path(__file__).parents[2]
# As `make conformance` and `make bench` install them.
CURRENT = PROJECT / ".venv-mistralrs/bin/python"
OLD = PROJECT / ".venv-mistralrs-old/bin/python"
OFFLINE = {"HF_HUB_OFFLINE": "1", "RUST_LOG": "error"}
# 0.9.5 would round keys and values to f16, as no other version does.
EXACT_CACHE = {"MISTRALRS_CPU_KV_F32": "1"}


class ToolError(Exception):
    """The tool refused, died or hung."""


class MistralRs:
    """mistral.rs as the interpreter `python` has it."""

    def __init__(self, python: str | Path, *, timeout: float = 120.0, exact_cache: bool = True) -> None:
        self._command = [str(python), str(WORKER)]
        self._timeout = timeout
        self._environ = os.environ | OFFLINE | (EXACT_CACHE if exact_cache else {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MistralRs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process; the next question starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def ask(self, model: str | Path, **question: object) -> dict:
        """What the tool answers about `model`; the words of a question are in mistral_rs_worker.py."""
        if self._process is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._process = subprocess.Popen(self._command, env=self._environ, **pipes)
        reply = self._exchange(self._process, json.dumps({"model": str(model), **question}, default=str))
        # An error may have ended threads the tool needs.
        if reply["last"] or "error" in reply:
            self.close()
        if "error" in reply:
            raise ToolError(reply["error"])
        return reply

    def _exchange(self, process: subprocess.Popen[bytes], question: str) -> dict:
        process.stdin.write(question.encode() + b"\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            if not ready.select(self._timeout):
                return {"error": f"no answer in {self._timeout} s", "last": True}
        line = process.stdout.readline()
        return json.loads(line) if line else {"error": f"died with {process.wait()}", "last": True}
