"""Has coremltools write the packages beside this script anew, and records what it decodes their weights to.

PYTHON tests/golden/coreml/record.py

PYTHON has coremltools (`.venv-peers`). Everything here but this script and PROVENANCE.md is replaced.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from support.coremltools_forms import FORMS  # noqa: E402
from support.coremltools_packages import COMPRESSED, PACKAGES, decoded  # noqa: E402

KEPT = {"ios16_int8", "ios18_lut4_scaled", "ios18_pruned_int8", "ios18_int8_lut4"}
"""Of the models that its passes compress; the others have forms that are in FORMS."""


def main() -> None:
    for old in HERE.iterdir():
        if old.suffix in (".mlpackage", ".mlmodel", ".npz"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    left_out = {f"{name}.mlpackage" for name in COMPRESSED if name not in KEPT}
    values = {}
    for name, write in PACKAGES.items():
        if name in left_out:
            continue
        write(HERE / name)
        if name.endswith(".mlpackage"):
            values |= {f"{Path(name).stem}/{weight}": value for weight, value in decoded(HERE / name).items() if value.ndim}
    np.savez_compressed(HERE / "values.npz", **values)
    print(f"{len(FORMS)} sets of forms, {len(values)} constants")


if __name__ == "__main__":
    main()
