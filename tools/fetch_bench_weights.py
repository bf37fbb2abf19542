"""Fetch weights to measure lossless coding on: a fine-tuned all-MiniLM-L6-v2 (Apache-2.0), f32, inside `sre-embedding-model`.

Where the package cannot be reached, says so and succeeds: the bench then measures drawn weights alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fetch_demo_model import fetch

PACKAGE = "sre-embedding-model==1.0.0"
MEMBER = "sre_embedding_model/model_weights/model.safetensors"
SHA256 = "0229e9720c49a360254842661fac174bd403f6fd4a2b30d23195d205d5d6cbfb"

if __name__ == "__main__":
    destination = Path(sys.argv[1])
    try:
        if not destination.exists():
            fetch(PACKAGE, MEMBER, SHA256, destination)
    except subprocess.CalledProcessError:
        print(f"{PACKAGE} cannot be reached: measuring without real weights")
