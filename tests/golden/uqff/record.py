"""Has mistral.rs write the files beside this one anew, and records what each version says to them.

python tests/golden/uqff/record.py 0.9.5=PYTHON 0.8.23=PYTHON 0.8.4=PYTHON 0.6.0=PYTHON 0.3.2=PYTHON

Every PYTHON has that version of the wheel `mistralrs`. Everything here but this script is replaced, except PROVENANCE.md.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2])]

import flyweight  # noqa: E402
from support.mistral_rs import MistralRs, ToolError  # noqa: E402
from support.uqff_sources import CONFIGS, PROMPT, write_source  # noqa: E402

# Heads and embeddings are promoted: q5_1 is in the files of q4_0 and q4_1, afq8 in that of afq6.
_TYPES = "q4_0 q4_1 q5_0 q8_0 q8_1 hqq4 hqq8 fp8 afq2 afq3 afq4 afq6 f8q8 mxfp4"
# directory here: version of the tool, model, element type it runs in when it quantizes, types.
WRITTEN: dict[str, tuple[str, str, str, str]] = {
    "1.2/small": ("0.9.5", "small", "F32", _TYPES),
    "1.2/small_bf16": ("0.9.5", "small", "BF16", "afq4"),
    "1.2/wide": ("0.9.5", "wide", "F32", "q2k q3k q4k q5k q6k q8k"),
    "1.2/bias": ("0.9.5", "bias", "F32", "q4_0 hqq4 fp8 afq4 mxfp4"),
    "1.2/tied": ("0.9.5", "tied", "F32", "q4_0 afq4"),
    "1.2/odd": ("0.9.5", "odd", "F32", "q4k afq4"),
    "1.2/experts": ("0.9.5", "experts", "F32", "q4_0 afq4"),
    "1.1/tied": ("0.8.23", "tied", "F32", "q4_0"),
    "1.0/small": ("0.8.4", "small", "F32", "mxfp4"),
    "1.0/tied": ("0.8.4", "tied", "F32", "q4_0"),
    "0.1.3/small": ("0.6.0", "small", "F32", "q4_0 hqq4 fp8 afq4"),
    "0.1.3/wide": ("0.6.0", "wide", "F32", "q4k"),
    "0.1.3/bias": ("0.6.0", "bias", "F32", "q4_0 fp8 afq4"),
    "0.1.3/tied": ("0.6.0", "tied", "F32", "q4_0"),
    "0.1.3/experts": ("0.6.0", "experts", "F32", "q4_0"),
    "0.1.2/small": ("0.3.2", "small", "F32", "q4_0"),
}
ARCHITECTURES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "mixtral": "Mixtral"}


def said(tool: MistralRs, model: Path, **question: Any) -> dict[str, Any]:
    """What the tool answers, as it is recorded."""
    try:
        answer = tool.ask(model, prompts=[PROMPT], **question)["answers"][0]
    except ToolError as error:
        return {"error": str(error).splitlines()[0]}
    return {"text": answer["text"], "logprobs": [round(value, 5) for value in answer["logprobs"]]}


def tensors(file: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Element type, shape and bytes of every tensor of a safetensors file."""
    data = file.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    table, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    table.pop("__metadata__", None)
    return {name: (row["dtype"], row["shape"], body[slice(*row["data_offsets"])]) for name, row in table.items()}


def same(one: Path, other: Path) -> bool:
    """Whether two files say the same; the tool writes small safetensors files in any order."""
    if one.suffix == ".safetensors":
        return tensors(one) == tensors(other)
    return one.read_bytes() == other.read_bytes()


def collect(written: Path, target: Path) -> None:
    """Put a set of shards to those that are there already. Their reports become one, as the tool's command line writes it."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(written.iterdir()):
        place = target / file.name
        if file.name == "uqff_report.json" and place.exists():
            report, added = json.loads(place.read_text()), json.loads(file.read_text())
            report["outputs"] += added["outputs"]
            place.write_text(json.dumps(report, separators=(",", ":")) + "\n")
        elif place.exists():
            assert same(place, file), f"{file.name} differs from one set to the next"
        else:
            shutil.copyfile(file, place)


def split(file: Path, first_of_second: str) -> None:
    """Cut a file into two shards, which the tool does at 10 GiB: by name, the second begins at `first_of_second`."""
    table = tensors(file)
    names = sorted(table)
    at = names.index(first_of_second)
    for number, part in enumerate((names[:at], names[at:])):
        header, body = {}, b""
        for name in part:
            dtype, shape, data = table[name]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        shard = f"{file.stem.removesuffix('-0')}-{number}.uqff"
        file.with_name(shard).write_bytes(struct.pack("<Q", len(text)) + text + body)


def record(tools: dict[str, MistralRs], scratch: Path) -> list[dict[str, Any]]:
    sources = {name: write_source(scratch / "source" / name, config) for name, config in CONFIGS.items()}
    rows = []
    for name, path in sources.items():
        for version in ("0.9.5", "0.6.0"):
            rows.append({"source": name, "tool": version} | said(tools[version], path))
    for target, (version, name, dtype, types) in WRITTEN.items():
        arch = {"arch": ARCHITECTURES[CONFIGS[name]["model_type"]]} if version == "0.3.2" else {}
        for isq in types.split():
            written = scratch / "written" / target / isq
            written.mkdir(parents=True)
            at_writing = said(tools[version], sources[name], isq=isq, write=written / f"{isq}.uqff", dtype=dtype, **arch)
            collect(written, HERE / target)
            file = f"{isq}.uqff" if version == "0.3.2" else f"{isq}-0.uqff"
            row = {"directory": target, "shards": [file], "type": isq, "source": name, "tool": version}
            row |= said(tools[version], HERE / target, uqff=file, **arch)
            if "error" in row and "error" not in at_writing:
                row["at_writing"] = at_writing
            rows.append(row)

    gguf = scratch / "gguf"
    gguf.mkdir()
    flyweight.convert(sources["small"], gguf / "model.gguf", to="gguf", quant="q8_0")
    written = scratch / "from_gguf"
    written.mkdir()
    said(tools["0.9.5"], gguf, gguf="model.gguf", isq="q4_0", write=written / "q4_0.uqff")
    collect(written, HERE / "1.2/from_gguf")
    row = {"directory": "1.2/from_gguf", "shards": ["q4_0-0.uqff"], "type": "q4_0", "source": "small", "tool": "0.9.5"}
    rows.append(row | said(tools["0.9.5"], HERE / "1.2/from_gguf", uqff=["q4_0-0.uqff"]))

    for target, version, key in (("1.2", "0.9.5", "model.layers.0.self_attn.k_proj.weight"), ("0.1.3", "0.6.0", "4")):
        sharded = HERE / target / "shards"
        shutil.copytree(HERE / target / "small", sharded, ignore=lambda _, names: [n for n in names if n.endswith(".uqff")])
        (sharded / "uqff_report.json").unlink(missing_ok=True)
        shutil.copyfile(HERE / target / "small/q4_0-0.uqff", sharded / "q4_0-0.uqff")
        split(sharded / "q4_0-0.uqff", key)
        shards = ["q4_0-0.uqff", "q4_0-1.uqff"]
        row = {"directory": f"{target}/shards", "shards": shards, "type": "q4_0", "source": "small", "tool": version}
        rows.append(row | said(tools[version], sharded, uqff=shards))
    return rows


def main(arguments: list[str]) -> None:
    tools = {version: MistralRs(python) for version, python in (argument.split("=") for argument in arguments)}
    for path in HERE.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    with tempfile.TemporaryDirectory() as scratch:
        rows = record(tools, Path(scratch))
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (HERE / "expected.json").write_text(f"[\n{lines}\n]\n", "utf-8")
    for tool in tools.values():
        tool.close()


if __name__ == "__main__":
    main(sys.argv[1:])
