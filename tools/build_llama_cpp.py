"""Build llama.cpp's own tools from the source that llama-cpp-python carries: what quality is compared with.

    python tools/build_llama_cpp.py .llama.cpp        writes llama-quantize, llama-imatrix and llama-perplexity into it

Takes some minutes, and cmake with a C++ compiler. The tools are for this machine's processor.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
TOOLS = ("llama-quantize", "llama-imatrix", "llama-perplexity")
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_C_FLAGS": "-w",
    "CMAKE_CXX_FLAGS": "-w",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "GGML_CCACHE": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
}


def main(into: Path) -> None:
    if all((into / tool).exists() for tool in TOOLS):
        return
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into) as name:
        folder = Path(name)
        download = ["pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", PACKAGE]
        subprocess.run([sys.executable, "-m", *download], check=True, cwd=folder)
        (sdist,) = folder.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (source,) = folder.glob("*/vendor/llama.cpp")
        build = folder / "build"
        options = [f"-D{key}={value}" for key, value in OPTIONS.items()]
        subprocess.run(["cmake", "-S", str(source), "-B", str(build), *options], check=True, stdout=subprocess.DEVNULL)
        jobs = str(os.cpu_count() or 1)
        command = ["cmake", "--build", str(build), "--parallel", jobs, "--target", *TOOLS]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for tool in TOOLS:
            shutil.copy2(build / "bin" / tool, into / tool)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
