"""Every target of the last runs in one table: what was reached, its spread over the runs, and whether that meets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flyweight.bench.harness import rate

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    for file in sorted(RESULTS.glob("*.json")):
        report = json.loads(file.read_text(encoding="utf-8"))
        sys.stdout.write(f"{file.stem}, {report['date']}, {report['processor']}, kernels {report['kernels']}\n")
        for result in (result for result in report["results"] if result["target"]):
            beside = ", ".join(f"{ratio:.2f}× {who}" for who, ratio in result["ratios"].items())
            share = f"{result['share_of_limit']:5.2f} of {result['limit']:7}" if "limit" in result else f"{result['unit']:16}"
            reached = f"{rate(result['figures'][result['ours']]):26}{share}"
            sys.stdout.write(f"  {result['verdict']:13}{result['name']:28}{reached}{beside}  ({result['target']})\n")


if __name__ == "__main__":
    main()
