"""What a file costs to parse: memory and CPU in proportion to its bytes, whatever it is full of.

Memory is what `tracemalloc` counts. CPU is process time divided by that of a loop in the same process, which makes small lists
as a parse does, so that a slow or busy machine cancels out. The rule is 1 s for 10 MB on a machine where a million turns take
60 ms: 1.7 million turns for a MB, and twice that for a file that is parsed to recognise its format and then once more.
"""

from __future__ import annotations

import gc
import json
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from flyweight.checkpoint import open_checkpoint
from flyweight.foundation import strict_json
from flyweight.foundation.errors import FlyweightError, LimitError
from flyweight.foundation.limits import MAX_PARSE_BYTES
from flyweight.foundation.manifest import NUMBER_CODES
from support.raw_files import safetensors_file

MB = 10**6
TURNS_PER_MB = 3.4e6
FIXED = 2**18  # modules, caches, the bundle

Files = dict[str, bytes]

# --- what files can be full of -----------------------------------------------------------------------


def repeated(item: bytes, nbytes: int) -> bytes:
    return b",".join([item] * (nbytes // (len(item) + 1)))


def numbered(form: bytes, nbytes: int) -> bytes:
    return b",".join(form.replace(b"#", b"%06x" % number) for number in range(nbytes // (len(form) + 6)))


JSON_ITEMS = {
    "empty lists": b"[]", "empty objects": b"{}", "lists of one": b"[0]", "lists of lists": b"[[]]",
    "objects of one": b'{"":0}',
    "deep lists": b"[" * 30 + b"]" * 30, "deep objects": b'{"":' * 30 + b"1" + b"}" * 30, "zeros": b"0", "integers": b"300",
    "long integers": b"9" * 4000, "floats": b"1.5", "minus zeros": b"-0", "truths": b"true", "empty strings": b'""',
    "short strings": b'"ab"', "Latin strings": '"éa"'.encode(), "Chinese strings": '"一a"'.encode(),
    "emoji": '"😀aaaaaa"'.encode(), "escaped quotes": b'"\\"\\""', "escapes": b'"\\ud83d\\ude00aaaaa"',
    "numbered strings": b'"#"', "numbered objects": b'{"#":[]}',
}  # fmt: skip


def json_documents(nbytes: int) -> Iterator[tuple[str, bytes]]:
    for name, item in JSON_ITEMS.items():
        yield name, b'{"a":[' + (numbered(item, nbytes) if b"#" in item else repeated(item, nbytes)) + b"]}"
    yield "keys", b"{" + numbered(b'"#":0', nbytes) + b"}"
    yield "keys and strings", b"{" + numbered(b'"#":"#"', nbytes) + b"}"
    yield "one long string", b'{"a":"' + b"a" * nbytes + b'"}'
    yield "one long wide string", '{"a":"😀'.encode() + b"a" * nbytes + b'"}'
    yield "one long string with an escape", b'{"a":"\\ud83d\\ude00' + b"a" * nbytes + b'"}'
    yield "blanks", b'{"a":1' + b" " * nbytes + b"}"


def model_files(config: bytes) -> Files:
    table = {"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}
    return {"config.json": config, "model.safetensors": safetensors_file(table, bytes(8))}


TYPES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")


def gguf_text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf_array(kind: str, count: int, body: bytes) -> bytes:
    return struct.pack("<IQ", TYPES.index(kind), count) + body


def gguf_file(*values: tuple[str, bytes], tensors: bytes = b"", count: int = 0) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, count, len(values))
    pairs = (gguf_text(b"k%d" % i) + struct.pack("<I", TYPES.index(kind)) + body for i, (kind, body) in enumerate(values))
    raw = head + b"".join(pairs) + tensors
    return raw + bytes(-len(raw) % 32)


def gguf_table(count: int) -> bytes:
    lines = [gguf_text(b"blk.%06d.w" % i) + struct.pack("<IQIQ", 1, 0, 0, 0) for i in range(count)]
    return gguf_file(tensors=b"".join(lines), count=count)


def gguf_bulks(nbytes: int) -> Iterator[tuple[str, bytes]]:
    for kind in NUMBER_CODES:
        count = nbytes // struct.calcsize(NUMBER_CODES[kind])
        yield f"array of {kind}", gguf_file(("array", gguf_array(kind, count, b"\1" * nbytes)))
    empty, one = gguf_array("u8", 0, b""), gguf_array("u8", 1, b"\1")
    for name, item in {
        "empty strings": gguf_text(b""),
        "short strings": gguf_text(b"ab"),
        "strings": gguf_text(b"a" * 300),
    }.items():
        yield name, gguf_file(("array", gguf_array("str", nbytes // len(item), item * (nbytes // len(item)))))
    for name, item in {"empty arrays": empty, "arrays of one": one, "deep arrays": gguf_array("array", 1, empty)}.items():
        yield name, gguf_file(("array", gguf_array("array", nbytes // len(item), item * (nbytes // len(item)))))
    wide = gguf_text("😀".encode() + b"a" * 1000)
    yield "wide strings", gguf_file(*(("str", wide) for _ in range(nbytes // len(wide))))
    yield "keys", gguf_file(*(("u8", b"\1") for _ in range(nbytes // 20)))
    yield "tensors", gguf_table(nbytes // 46)
    lines = [gguf_text(b"blk.%06d.w" % i) + struct.pack("<IQQIQ", 2, 0, i, 0, 0) for i in range(nbytes // 54)]
    yield "shapes", gguf_file(tensors=b"".join(lines), count=len(lines))


LINE = b'"%s":{"dtype":"F32","shape":[%s],"data_offsets":[0,0]}'
MLX_LINE = b'"%s":{"data_offsets":[0,0],"dtype":"F32","shape":[%s]}'
ODD_LINE = b'"%s":{"shape":[%s],"dtype":"F32","data_offsets":[0,0]}'


def table(line: bytes, count: int, shape: Callable[[int], bytes] = lambda _: b"0") -> bytes:
    return b"{" + b",".join(line % (b"model.layers.%d.w" % i, shape(i)) for i in range(count)) + b"}"


def safetensors_bulks(nbytes: int) -> Iterator[tuple[str, bytes]]:
    count = nbytes // 70
    for name, line in {"tensors": LINE, "tensors as MLX writes them": MLX_LINE, "tensors in an odd order": ODD_LINE}.items():
        yield name, safetensors_file(table(line, count), b"")
    yield "shapes", safetensors_file(table(LINE, count, lambda i: b"0,%d" % i), b"")
    yield "metadata", safetensors_file(b'{"__metadata__":{' + numbered(b'"#":""', nbytes) + b"}}", b"")
    for key in ("flyweight.metadata", "flyweight.tensors"):
        inner = b'[["a","[[u8]]",[' + repeated(b"[]", nbytes // 2) + b"]]]"
        yield key, safetensors_file({"__metadata__": {key: inner.decode()}}, b"")


def bulks(nbytes: int) -> Iterator[tuple[str, Files]]:
    for name, raw in json_documents(nbytes):
        yield f"config.json: {name}", model_files(raw)
    for name, raw in gguf_bulks(nbytes):
        yield f"gguf: {name}", {"model.gguf": raw}
    for name, raw in safetensors_bulks(nbytes):
        yield f"safetensors: {name}", {"model.safetensors": raw}
    index = b'{"weight_map":{' + numbered(b'"model.layers.#.w":"model.safetensors"', nbytes) + b"}}"
    yield "index", model_files(b"{}") | {"model.safetensors.index.json": index}
    overrides = numbered(b'"#":{"bits":4,"group_size":64}', nbytes)
    yield "MLX overrides", model_files(b'{"quantization":{"bits":4,"group_size":64,' + overrides + b"}}")


NAMES = [name for name, _ in bulks(1000)]


@cache
def made(nbytes: int) -> dict[str, Files]:
    return dict(bulks(nbytes))


def written(name: str, nbytes: int, root: Path) -> tuple[Path, int]:
    files = made(nbytes)[name]
    for file, raw in files.items():
        (root / file).write_bytes(raw)
    return root / next(iter(files)) if len(files) == 1 else root, sum(map(len, files.values()))


def opened(path: Path) -> str:
    """Open a checkpoint, which may be refused; the code of the refusal."""
    try:
        open_checkpoint(path).close()
    except FlyweightError as error:
        return error.code
    return ""


def peak_of(act: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def turns(act: Callable[[], object], enough: float) -> float:
    """CPU of an act in turns of a loop, the best of some tries: fewer when it is good enough."""
    best = float("inf")
    gc.disable()
    for _ in range(5):
        start = time.process_time()
        act()
        between = time.process_time()
        [[number] for number in range(200_000)]
        best = min(best, 200_000 * (between - start) / (time.process_time() - between))
        if best <= enough:
            break
    gc.enable()
    return best


# --- gates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_memory_stays_within_the_budget(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget and a file of a hundredth: what the file itself takes, as bytes and as text, comes on top."""
    path, nbytes = written(name, MB // 4, tmp_path)
    opened(path)
    budget = 2 * MB
    for module in ("foundation.cursor", "foundation.strict_json"):
        monkeypatch.setattr(f"flyweight.{module}.MAX_PARSE_BYTES", budget, raising=False)
    peak = peak_of(lambda: opened(path))
    assert peak <= budget + 5 * nbytes + FIXED
    assert opened(path) in ("", "E_BUDGET", "E_METADATA", "E_DESCRIPTION", "E_SHARD_MISSING", "E_INDEX_MISMATCH", "E_TRIPLE")


@pytest.mark.parametrize("name", NAMES)
def test_cpu_is_in_proportion(name: str, tmp_path: Path) -> None:
    path, nbytes = written(name, MB // 4, tmp_path)
    opened(path)
    allowed = 0.02 * TURNS_PER_MB + TURNS_PER_MB * nbytes / MB
    assert turns(lambda: opened(path), allowed) <= allowed


@pytest.mark.parametrize("kind", NUMBER_CODES)
def test_arrays_of_numbers_take_what_they_take_in_the_file(kind: str, tmp_path: Path) -> None:
    path, nbytes = written(f"gguf: array of {kind}", MB // 4, tmp_path)
    opened(path)
    assert opened(path) == ""
    assert peak_of(lambda: opened(path)) <= 1.5 * nbytes + FIXED


TABLES: dict[str, Callable[[int], bytes]] = {
    "safetensors": lambda count: safetensors_file(table(LINE, count), b""),
    "safetensors as MLX writes them": lambda count: safetensors_file(table(MLX_LINE, count), b""),
    "gguf": gguf_table,
}


@pytest.mark.parametrize("bulk", TABLES)
def test_a_table_of_tensors(bulk: str, tmp_path: Path) -> None:
    """A million in 3 s and 600 MB: a tenth of them in a tenth, less what the process is without them."""
    count = 100_000
    path = tmp_path / "model"
    path.write_bytes(TABLES[bulk](count))
    assert opened(path) == ""
    with open_checkpoint(path) as checkpoint:
        assert len(checkpoint) == count
    assert peak_of(lambda: opened(path)) <= 50 * MB
    allowed = 5e6 if "safetensors" in bulk else 7.8e6  # 0.3 s; and by the rule for 4.6 MB
    assert turns(lambda: opened(path), allowed) <= allowed


@pytest.mark.parametrize("name", [name for name, _ in json_documents(1000)])
def test_no_document_takes_more_than_is_estimated(name: str) -> None:
    raw = next(raw for found, raw in json_documents(MB // 4) if found == name)
    peak = peak_of(lambda: strict_json.loads(raw, file="x"))
    assert peak <= strict_json.tree_nbytes(raw, raw.decode()) + 4096
    assert peak <= 64 * len(raw)


def test_the_largest_real_tokenizer_is_within_the_budget() -> None:
    """Gemma's: 262,144 tokens and 514,906 merges, indented, in 33 MB. A sixteenth of it, since the estimate is linear."""
    tokens = [f"▁{index:x}日本語"[: index % 9 + 6] + "😀" * (index % 500 == 0) for index in range(262_144 // 16)]
    merges = [[tokens[index % 997], tokens[index % 1009]] for index in range(514_906 // 16)]
    document = {"model": {"type": "BPE", "vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges}}
    raw = json.dumps(document, ensure_ascii=False, indent=2).encode()
    assert 16 * len(raw) > 33 * MB
    assert 16 * strict_json.tree_nbytes(raw, raw.decode()) < MAX_PARSE_BYTES


@pytest.mark.parametrize("item", [b"[]", b"{}", b"300", b'"ab"'])
def test_a_document_beyond_the_budget_is_refused_before_it_is_made(item: bytes) -> None:
    raw = b"[" + repeated(item, 60 * MB) + b"]"
    with pytest.raises(LimitError, match=r"60\d{6} bytes of JSON would take more than 512 MB.*E_BUDGET"):
        strict_json.loads(raw, file="x")
