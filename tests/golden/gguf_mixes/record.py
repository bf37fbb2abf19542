"""Asks llama-quantize which type it gives each matrix of models in the shapes of every family, and records that here.

python tests/golden/gguf_mixes/record.py LLAMA_QUANTIZE

`--dry-run` needs names and shapes alone, so the models are holes. With an importance matrix some mixes choose otherwise; the
one that is given is of one entry, for only that there is one counts.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1])]

from flyweight.containers.gguf_mixes import MIXES  # noqa: E402
from support.mix_models import MIX_MODELS, write_model  # noqa: E402

_TENSOR = re.compile(r"\]\s+(\S+)\s+- \[[^\]]*\], type = +\w+, size = [^\n]*-> [^\n]*\((\w+)\)")


def types_of(tool: str, model: Path, mix: str, *options: str) -> dict[str, str]:
    run = subprocess.run([tool, "--dry-run", *options, str(model), mix.upper()], capture_output=True, text=True, check=True)
    return {name: kind.lower() for name, kind in _TENSOR.findall(run.stdout + run.stderr)}


def by_kind(types: dict[str, str]) -> dict[str, str]:
    """`attn_v.weight`: `q6_k*3 q4_k*2 …`, layer by layer."""
    layers: dict[str, dict[int, str]] = {}
    for name, kind in types.items():
        found = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        layers.setdefault(found[2] if found else name, {})[int(found[1]) if found else 0] = kind
    runs = {
        name: [(kind, len(list(run))) for kind, run in groupby(kinds[i] for i in sorted(kinds))]
        for name, kinds in layers.items()
    }
    return {name: " ".join(f"{kind}*{count}" for kind, count in run) for name, run in runs.items()}


def main(tool: str) -> None:
    recorded: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        statistics = Path(folder, "imatrix.dat")
        entry = b"blk.0.attn_q.weight"
        statistics.write_bytes(struct.pack(f"<ii{len(entry)}sii32f", 1, len(entry), entry, 1, 32, *[1.0] * 32))
        for name, model in MIX_MODELS.items():
            path = write_model(Path(folder, f"{name}.gguf"), model)
            for mix in sorted(MIXES.keys() - {"mxfp4"}):  # which is no name of llama-quantize
                plain = by_kind(types_of(tool, path, mix))
                informed = by_kind(types_of(tool, path, mix, "--imatrix", str(statistics)))
                recorded.setdefault(name, {})[mix] = plain
                if informed != plain:
                    recorded[name][f"{mix} with statistics"] = informed
    text = json.dumps(recorded, indent=1)
    (HERE / "types.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
