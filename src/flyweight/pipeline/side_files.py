"""Side files: which are copied, and how config.json is updated to describe the new weights.

A directory takes every side file as it is. A file that is a whole model (`EmbedsFiles`) embeds those that running the model
needs, by name; a file of weights alone takes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from flyweight.checkpoint import Checkpoint
from flyweight.containers.abilities import EmbedsFiles, ReadsFiles, WritesConfig
from flyweight.containers.container import Container
from flyweight.containers.quantization import without_statement
from flyweight.foundation import strict_json
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import LimitError, MalformedError
from flyweight.foundation.limits import MAX_JSON_BYTES
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import RAW

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
RUN_FILES = (
    CONFIG, "generation_config.json", TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "chat_template.json",
)  # fmt: skip
"""What running a model needs beside its weights."""
WITHOUT_TOKENIZER = ("vocab.json", "merges.txt", "added_tokens.json", "tokenizer.model")
"""What takes the place of tokenizer.json in models that have none."""

_LABELS = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16", DType.F64: "float64"}


def side_files(
    checkpoint: Checkpoint,
    container: Container,
    files: Mapping[str, Extent | bytes],
    targets: Iterable[Entry],
    notes: list[str],
) -> dict[str, Extent | bytes]:
    """Of `files`, what the target holds; for each that it does not, a note."""
    embeds: dict[str, int] = {}
    if isinstance(container, EmbedsFiles):
        needed = RUN_FILES if TOKENIZER in files else RUN_FILES + WITHOUT_TOKENIZER
        embeds = {**dict.fromkeys(needed, MAX_JSON_BYTES), **container.embeds}
    kept = {name: content for name, content in files.items() if container.is_directory or name in embeds}
    notes += [f"side file {name} is not copied" for name in files if name not in kept]
    for name in container.reads if isinstance(container, ReadsFiles) else ():
        if name in kept:
            kept[name] = _read(checkpoint, name, kept[name], MAX_JSON_BYTES)
    if CONFIG in kept:
        kept[CONFIG] = _config(checkpoint, container, kept[CONFIG], targets)
    return {name: _read(checkpoint, name, content, embeds[name]) for name, content in kept.items()} if embeds else kept


def _read(checkpoint: Checkpoint, name: str, content: Extent | bytes, limit: int) -> bytes:
    nbytes = len(content) if isinstance(content, bytes) else content.nbytes
    if nbytes > limit:
        raise LimitError(f"{name} has {nbytes} bytes; the limit is {limit}", file=checkpoint.bundle.name)
    return checkpoint.read(content)


def _config(checkpoint: Checkpoint, container: Container, config: Extent | bytes, targets: Iterable[Entry]) -> bytes:
    """config.json, unchanged unless what it says of the weights is no longer true."""
    raw = _read(checkpoint, CONFIG, config, MAX_JSON_BYTES)
    document = strict_json.loads(raw, file=CONFIG)
    if not isinstance(document, dict):
        raise MalformedError("config.json is not an object", file=checkpoint.bundle.name)
    wanted = dict(document)
    if checkpoint.manifest.foreign is None and not isinstance(container, WritesConfig):
        wanted = dict(without_statement(document))
    dense = Counter[DType]()
    for target in targets:
        if target.codec == RAW and target.spec.dtype.is_float:
            dense[target.spec.dtype] += target.spec.size
    if dense and (main := dense.most_common(1)[0][0]) in _LABELS:
        for key in ("dtype", "torch_dtype"):
            if isinstance(wanted.get(key), str):
                wanted[key] = _LABELS[main]
    return raw if wanted == document else strict_json.dumps(wanted, indent=2) + b"\n"
