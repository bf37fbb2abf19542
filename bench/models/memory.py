"""Peak memory of `convert` on models of 1×, 4× and 16× the size: same tensors, more layers.

The bound is 2 × largest tensor × workers + 256 MB; the slope must be zero. The sources are sparse files, so that
only the output needs disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import resource, sys, time
import flyweight
started = time.perf_counter()
flyweight.convert(sys.argv[1], sys.argv[2], quant="q8_0", jobs=int(sys.argv[3]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, time.perf_counter() - started)
"""


def write_sparse_model(path: Path, layers: int, rows: int, columns: int) -> None:
    size = rows * columns * 2
    entry = {"dtype": "BF16", "shape": [rows, columns]}
    header = {f"layer.{i}.weight": {**entry, "data_offsets": [i * size, (i + 1) * size]} for i in range(layers)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + layers * size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    largest = options.rows * options.columns * 2
    bound = 2 * largest * options.jobs + (256 << 20)
    print(f"convert bf16 → q8_0, tensors of {largest / 1e6:.0f} MB, {options.jobs} workers, bound {bound / 1e6:.0f} MB")
    print(f"{'model MB':>10}{'peak MB':>10}{'of bound':>10}{'seconds':>10}")
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for scale in (1, 4, 16):
            source, target = Path(folder) / "in.safetensors", Path(folder) / "out.safetensors"
            write_sparse_model(source, options.layers * scale, options.rows, options.columns)
            command = [sys.executable, "-c", CHILD, str(source), str(target), str(options.jobs)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            peak, seconds = map(float, output.split())
            peaks.append(peak)
            print(f"{source.stat().st_size / 1e6:10.0f}{peak / 1e6:10.0f}{peak / bound:10.2f}{seconds:10.2f}", flush=True)
            target.unlink()
    print(f"slope: {(peaks[2] - peaks[0]) / (15 * options.layers * largest):.4f} bytes of memory per byte of model")


if __name__ == "__main__":
    main()
