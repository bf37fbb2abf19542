"""What `verbs.py` runs on every model: commands with paths left open."""

from __future__ import annotations

from typing import NamedTuple

from flyweight.containers import CONTAINERS

__all__ = ["VERBS", "Verb"]


class Verb(NamedTuple):
    arguments: tuple[str, ...]
    """`{model}`, `{original}`, `{base}`, `{out}` and `{text}` stand for paths."""
    changes_model: bool = False
    stdin: str = ""
    only: str = ""
    """The container it is for, or `wdelta`; others are not asked."""

    @property
    def label(self) -> str:
        return " ".join(argument.replace("{model}", "M").replace("{out}", "out") for argument in self.arguments)


_TWO = ("--max-tokens", "2", "--threads", "1", "--context", "16")
VERBS = (
    Verb(("inspect", "{model}")),
    Verb(("inspect", "{model}", "--json")),
    Verb(("verify", "{model}")),
    Verb(("verify", "{model}", "--strict", "--json")),
    Verb(("diff", "{model}", "{original}")),
    Verb(("diff", "{original}", "{model}", "--json")),
    *(Verb(("convert", "{model}", "{out}/" + name, "--to", name, "--jobs", "1", "-q")) for name in CONTAINERS.lines),
    Verb(("convert", "{model}", "{out}/q.gguf", "--quant", "q8_0", "--jobs", "1", "--json")),
    Verb(("convert", "{model}", "{out}/q.squizd", "--quant", "int4", "--jobs", "1", "--tensors")),
    Verb(("convert", "{model}", "{out}/dry", "--to", "npy-dir", "--quant", "int4", "--dry-run")),
    Verb(("extract", "{model}", "--list", "--json")),
    Verb(("extract", "{model}", "files", "{out}/files")),
    Verb(("extract", "{model}", "config.json", "{out}/config.json")),
    Verb(("extract", "{model}", "draft", "{out}/draft.safetensors"), only="squizd"),
    Verb(("extract", "{model}", "coreml", "{out}/x.mlpackage"), only="squizd"),
    Verb(("run", "{model}", "ab c", "--raw", *_TWO)),
    Verb(("run", "{model}", "ab c", "--json", *_TWO)),
    Verb(("chat", "{model}", *_TWO), stdin="ab c\n/exit\n"),
    Verb(("eval", "{model}", "--text", "{text}", "--context", "8", "--tokens", "16", "--threads", "1", "--json")),
    Verb(("calibrate", "{model}", "-o", "{out}/x.stats", "--gram", "--tokens", "64", "--window", "8", "--threads", "1")),
    Verb(("ane", "plan", "{model}", "--target", "M1", "--all", "--facts")),
    Verb(("ane", "plan", "{model}", "--target", "M2", "--form", "auto", "--html", "{out}/plan.html", "--json")),
    Verb(("ane", "compare", "{model}", "--form", "sparse")),
    Verb(("cache", "ls", "{model}")),
    Verb(("cache", "build", "{model}", "--jobs", "1", "--json"), only="npy_dir"),
    Verb(("cache", "build", "{model}", "--in-place", "--jobs", "1"), changes_model=True, only="npy_dir"),
    Verb(("run", "{model}", "ab c", "--raw", "--tier", "packed", "-v", *_TWO), only="npy_dir"),
    Verb(("cache", "verify", "{model}", "--json"), only="npy_dir"),
    Verb(("cache", "prune", "{model}", "--json"), changes_model=True, only="npy_dir"),
    Verb(("convert", "--add", "int4", "{model}", "--jobs", "1", "-q"), changes_model=True, only="npy_dir"),
    Verb(("delta", "create", "{original}", "{model}", "{out}/x.wdelta", "-q")),
    Verb(("delta", "create", "{base}", "{model}", "{out}/x.wdelta", "--strategy", "int4", "--tensors")),
    Verb(("delta", "apply", "{base}", "{model}", "{out}/applied", "-q"), only="wdelta"),
    Verb(("delta", "apply", "{base}", "{model}", "{model}", "{out}/twice", "--dtype", "f32", "--json"), only="wdelta"),
    Verb(("delta", "inspect", "{model}", "--tensors"), only="wdelta"),
    Verb(("delta", "verify", "{model}"), only="wdelta"),
    Verb(("delta", "verify", "{model}", "--base", "{base}", "--json"), only="wdelta"),
    Verb(("delta", "squash", "{base}", "{model}", "{out}/one.wdelta", "-q"), only="wdelta"),
    Verb(("delta", "log", "{model}"), only="wdelta"),
    Verb(("run", "{base}", "ab c", "--raw", "--delta", "{model}", *_TWO), only="wdelta"),
)
