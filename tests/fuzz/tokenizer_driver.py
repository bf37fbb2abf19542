"""Encodes and decodes with tokenizers from strangers, within limits of memory and time that would end it.

arguments   bytes of address space, seconds of CPU
input       {"files": {name: content}, "text": text, "room": tokens} a line
output      {"outcome": "ok" or an error code, "cpu": seconds} a line
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from flyweight.checkpoint import Checkpoint
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import Manifest
from flyweight.runtime.text.tokenizer import Tokenizer
from flyweight.sources import MemoryBundle
from support.tiny_models import hf_manifest


def use(files: dict[str, str], text: str, room: int) -> str:
    plain = hf_manifest("llama")
    manifest = Manifest("hf", plain.entries, {}, {**plain.files, **{name: held.encode() for name, held in files.items()}}, "hf")
    try:
        found = Tokenizer.of(Checkpoint(MemoryBundle({}, "stranger"), None, manifest))  # type: ignore[arg-type]
        found.encode(text, room=room)
        found.decode(list(range(20)) * 50)
    except FlyweightError as error:
        return error.code
    return "ok"


def main(memory: int, seconds: int) -> None:
    # NumPy and the library are there already: what is limited is what a tokenizer takes.
    import tokenizers  # noqa: F401

    taken = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    for line in sys.stdin:
        case = json.loads(line)
        began = time.process_time()
        outcome = use(case["files"], case["text"], case["room"])
        print(json.dumps({"outcome": outcome, "cpu": time.process_time() - began}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
