"""A plan: everything a conversion has decided, as plain data that can be written to a file and carried out later.

    {"flyweight_plan": 1,                                                       the version of this form
     "format": "mlx", "name": "model-4bit",                                     the target, and what it is called
     "inputs": {"source": {"path": "model-hf", "files": {"model.safetensors": {"size": 9, "stamp": "…"}, …}}},
     "recipe": {"name": "int4", …}, "dtype": null, "shard_bytes": null,
     "steps": [{"name": "…", "source": "…", "action": "transcode", "codec": {…}, "dtype": "f32", "shape": [64, 64]}, …]}

It holds names and identities, no open files, and nothing that follows from the rest: offsets, headers, side files and settings
are worked out again from the same source by the same functions (`planning`). `docs/formats/plan.md` has every field.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from flyweight.containers import OPTIONS, container_named
from flyweight.containers.container import Container
from flyweight.containers.options import Extras
from flyweight.foundation import strict_json
from flyweight.foundation.accuracy_gate import Gate
from flyweight.foundation.cursor import check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_SIZE
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.models import Transform
from flyweight.pipeline.plans.inputs import SOURCE, STATISTICS, Input
from flyweight.sources import FileSource, Identity, local_path
from flyweight.writing import write_new

VERSION = 1
Action = Literal["remux", "repack", "transcode", "add"]
_CODE = "E_PLAN"


@dataclass(frozen=True, slots=True)
class Step:
    """One tensor's way: what it becomes, from what, and how."""

    name: str
    spec: TensorSpec
    codec: CodecSpec
    action: Action
    source: str | None
    """Its name in the source; None for one that the source holds only as settings."""
    transform: Transform | None = None
    quantizer: str = "nearest"
    sparsity: float = 0.0
    """The share of blocks set to zero before the target's codec, which drops such blocks, gets the values."""
    note: str = ""
    draft: bool = False
    """Whether the source tensor is in the checkpoint of an added draft head."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": self.source,
            "action": self.action,
            "codec": self.codec.as_json(),
            "dtype": self.spec.dtype.label,
            "shape": list(self.spec.shape),
            **({"transform": self.transform._asdict()} if self.transform else {}),
            **({"quantizer": self.quantizer} if self.quantizer != "nearest" else {}),
            **({"sparsity": self.sparsity} if self.sparsity else {}),
            **({"note": self.note} if self.note else {}),
            **({"draft": True} if self.draft else {}),
        }

    @classmethod
    def read(cls, document: Any) -> Step:
        match document:
            case {
                "name": str(name), "source": str() | None as source, "action": action, "codec": codec, "dtype": str(dtype),
                "shape": shape, **rest,
            } if action in get_args(Action):  # fmt: skip
                spec = TensorSpec(check_shape(shape, tensor=name), DType.parse(dtype))
                step = cls(name, spec, CodecSpec.read(codec, code=_CODE), action, source, **_optional(rest))
                if step.as_json() == document:  # and so no default is spelt out
                    return step
        raise _malformed("a step has a field that it should not have, or lacks one")


def _optional(said: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields of a step that have a default."""
    types = {"quantizer": str, "sparsity": float, "note": str, "draft": bool, "transform": dict}
    if not all(key in types and type(value) is types[key] for key, value in said.items()):
        raise _malformed("a step has a field that is unknown or of another type")
    if "transform" not in said:
        return dict(said)
    match said["transform"]:
        case {"heads": int(heads), "inverse": bool(inverse), "add": float(add), **rest} if not rest:
            return {**said, "transform": Transform(heads, inverse, add)}
    raise _malformed("a transform is heads, inverse and add")


@dataclass(frozen=True, slots=True)
class Plan:
    container: Container
    name: str
    """What the output is called where the plan is carried out."""
    inputs: Mapping[str, Input]
    recipe: Mapping[str, Any]
    """How codecs were chosen, for people; carrying out takes its `name` and the limits of its `gate`."""
    steps: tuple[Step, ...]
    dtype: DType | None = None
    """Of matrices stored dense, if one was asked for."""
    shard_bytes: int | None = None
    made: Mapping[str, str] = field(default_factory=dict)
    """What is made of the source besides, by the option of the format that asks for it."""

    def __post_init__(self) -> None:
        _ = self.limits, self.extras  # what they refuse is refused now

    @property
    def limits(self) -> Gate | None:
        """The accuracy gate of the recipe, if it has one."""
        return Gate.of(self.recipe["gate"]) if "gate" in self.recipe else None

    @property
    def extras(self) -> Extras | None:
        """What is read or made beside the source, as the options that name it."""
        asked: dict[str, Any] = {
            name: Path(given.path) for name, given in self.inputs.items() if name not in (SOURCE, STATISTICS)
        }
        if not asked and not self.made:
            return None
        group = OPTIONS[self.container.name] if self.container.name in OPTIONS else None  # noqa: SIM401 (it has no `get`)
        options = {option.name: option for option in group.options if option.read is Path} if group else {}
        asked |= {name: said for name, said in self.made.items() if name in options and options[name].words(said)}
        if group is None or group.extras is None or not asked.keys() | self.made.keys() <= options.keys() & asked.keys():
            called = ", ".join(map(repr, {**asked, **self.made}))
            raise _malformed(f"{self.container.name} takes no input called {called}")
        return group.extras(**asked)

    def as_json(self, folder: Path | str) -> dict[str, Any]:
        """As it is written to a file in `folder`: what lies below that is named as seen from there."""
        return {
            "flyweight_plan": VERSION,
            "format": self.container.name,
            "name": self.name,
            "inputs": {
                name: {
                    "path": _seen_from(os.path.abspath(folder), given.path),
                    "files": {file: identity._asdict() for file, identity in given.files.items()},
                    **(
                        {"deltas": [_seen_from(os.path.abspath(folder), each) for each in given.deltas]} if given.deltas else {}
                    ),
                }
                for name, given in self.inputs.items()
            },
            "recipe": self.recipe,
            "dtype": self.dtype.label if self.dtype else None,
            "shard_bytes": self.shard_bytes,
            **({"made": dict(self.made)} if self.made else {}),
            "steps": [step.as_json() for step in self.steps],
        }

    def to_json(self, folder: Path | str) -> bytes:
        """The text of `as_json`, a line for each step."""
        document = self.as_json(folder)
        steps = [strict_json.dumps(step) for step in document["steps"]]
        head = strict_json.dumps(document | {"steps": []}, indent=2).removesuffix(b"[]\n}")
        return head + b"[\n    " + b",\n    ".join(steps) + b"\n  ]\n}\n"

    @classmethod
    def from_json(cls, raw: bytes | memoryview, folder: Path | str, *, file: str = "<plan>") -> Plan:
        """The plan that was written to a file in `folder`. MalformedError or UnsupportedError for what is none."""
        try:
            return _read(strict_json.loads(raw, file=file), os.path.abspath(folder))
        except FlyweightError as error:
            raise error.at(file=file) from None

    def save(self, path: Path | str) -> None:
        """Write it to a file that is not there yet."""
        path = Path(os.path.abspath(local_path(path)))
        write_new(path, [self.to_json(path.parent)])

    @classmethod
    def load(cls, path: Path | str) -> Plan:
        path = local_path(path)
        with closing(FileSource(path)) as source:
            return cls.from_json(source.read(0, source.size), path.parent, file=str(path))


def _seen_from(folder: str, path: str) -> str:
    return os.path.relpath(path, folder) if path.startswith(os.path.join(folder, "")) else path


def _malformed(message: str) -> MalformedError:
    return MalformedError(f"not a plan: {message}", code=_CODE)


def _read(document: Any, folder: str) -> Plan:
    if not isinstance(document, dict) or type(version := document.get("flyweight_plan")) is not int:
        raise _malformed("it does not begin with the number of a version, 'flyweight_plan'")
    if version != VERSION:
        raise UnsupportedError(f"a plan of version {version}; this Flyweight reads version {VERSION}", code="E_PLAN_VERSION")
    match document:
        case {
            "format": str(form), "name": str(name), "inputs": {"source": _} as inputs, "recipe": {"name": str()} as recipe,
            "dtype": str() | None as dtype, "shard_bytes": int() | None as shard_bytes, "steps": list(steps), **rest,
        } if rest.keys() <= {"flyweight_plan", "made"} and isinstance(recipe.get("gate", {}), dict):  # fmt: skip
            if name in ("", ".", "..") or "/" in name or "\0" in name:
                raise _malformed(f"{name!r} is not the name of a file")
            read = {key: _read_input(value, folder) for key, value in inputs.items()}
            if shard_bytes is not None and (shard_bytes is True or not 0 < shard_bytes <= MAX_SIZE):
                raise _malformed(f"{shard_bytes} is not a number of bytes")
            element = None if dtype is None else DType.parse(dtype)
            made = _read_made(rest.get("made", {}))
            return Plan(container_named(form), name, read, recipe, tuple(map(Step.read, steps)), element, shard_bytes, made)
    raise _malformed("a field is missing, unknown or of another type")


def _read_made(document: Any) -> Mapping[str, str]:
    if not isinstance(document, dict) or not all(type(said) is str for said in document.values()):
        raise _malformed("what is made besides is an object of texts")
    return document


def _read_input(document: Any, folder: str) -> Input:
    match document:
        case {"path": path, "files": dict(files), **rest} if rest.keys() <= {"deltas"}:
            deltas = rest.get("deltas", [])
            if isinstance(deltas, list):
                identities = {name: _identity(said) for name, said in files.items()}
                return Input(_place(path, folder), identities, tuple(_place(each, folder) for each in deltas))
    raise _malformed("an input is a path, files, and deltas if there are any")


def _place(path: object, folder: str) -> str:
    if type(path) is not str or not path or "\0" in path:
        raise _malformed("the path of an input is a text")
    return os.path.normpath(os.path.join(folder, local_path(path)))


def _identity(document: Any) -> Identity:
    match document:
        case {"size": int(size), "stamp": str(stamp), **rest} if not rest and type(size) is int:
            return Identity(size, stamp)
    raise _malformed("a file of an input is a size and a stamp")
