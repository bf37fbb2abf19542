"""Renders chat templates in a separate process that may be killed. Run as a script; imports nothing of Flyweight.

    arguments   directories with jinja2 and markupsafe
    output      "ready", then for each line of input one line
    input       {"template": text, "context": {…}, "limit": characters}
    output      {"text": …} or {"error": …, "line": …}

The environment is the one transformers gives templates: blocks trimmed, loop controls, `raise_exception`, `strftime_now`,
`tojson` that neither sorts nor escapes, and `{% generation %}`, which marks the answer for training and renders its body.
Templates see only what the sandbox shows; memory, processes and files are limited before the first is read.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.nodes import Node
    from jinja2.parser import Parser

MEMORY = 256 * 2**20
SECONDS = 60  # of all renderings together: the caller stops one long before, unless the caller is gone
_LIMITS = {"RLIMIT_AS": MEMORY, "RLIMIT_CPU": SECONDS, "RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": 0, "RLIMIT_CORE": 0}

# Python and jinja2 import some of themselves late, for text with escapes, for dates, when a template fails: these templates
# make them do so while files may still be opened.
_WARMING = (r"{{ '\n' ~ strftime_now('%d %b %Y') ~ (messages | tojson | trim) }}", "{{ raise_exception('') }}", "{{")


def _restrict() -> None:
    for name, most in _LIMITS.items():
        try:
            resource.setrlimit(getattr(resource, name), (most, most))
        except (ValueError, OSError):  # macOS refuses some of them; the caller's clock still holds
            continue


def _environment() -> Environment:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Parser) -> Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return made


def _pieces(environment: Environment, request: dict[str, Any]) -> Iterator[str]:
    left = request["limit"]
    for piece in environment.from_string(request["template"]).generate(request["context"]):
        left -= len(piece)
        if left < 0:
            raise OverflowError(f"it gives more than {request['limit']} characters")
        yield piece


def _answer(environment: Environment, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"text": "".join(_pieces(environment, request))}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY >> 20} MiB of memory"}
    except RecursionError:
        return {"error": "it nests too deeply"}
    except Exception as error:  # noqa: BLE001  a template may fail in any way Python can
        return {"error": str(error)[:1000] or type(error).__name__, "line": getattr(error, "lineno", None)}


def main(directories: list[str]) -> None:
    sys.path += directories
    environment = _environment()
    for template in _WARMING:
        _answer(environment, {"template": template, "context": {"messages": []}, "limit": 100})
    _restrict()
    out = sys.stdout.buffer
    out.write(b"ready\n")
    out.flush()
    for line in sys.stdin.buffer:
        out.write(json.dumps(_answer(environment, json.loads(line))).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
