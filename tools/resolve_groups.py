"""Whether every dependency group of pyproject.toml can be installed beside what the package itself needs; nothing is installed.

python tools/resolve_groups.py [GROUP ...]
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def resolves(group: str, requirements: list[str]) -> bool:
    """Ask pip for a plan. What is installed here already must not help it."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", *requirements]
    answer = subprocess.run([*command, "--group", f"{PROJECT}:{group}"], capture_output=True, text=True, check=False)
    print(f"{group}: {'can be installed' if answer.returncode == 0 else 'CANNOT be installed'}", flush=True)
    if answer.returncode:
        print("".join(line for line in answer.stderr.splitlines(keepends=True) if not line.startswith("WARNING")))
    return answer.returncode == 0


def main(named: list[str]) -> int:
    document = tomllib.loads(PROJECT.read_text("utf-8"))
    failed = [g for g in named or document["dependency-groups"] if not resolves(g, document["project"]["dependencies"])]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
