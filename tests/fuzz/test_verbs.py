"""What `verbs.py` calls a finding is found: a command line with one fault of each kind is caught at each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAULTY = r"""
import json, os, signal, sys
from pathlib import Path
from fuzz import verbs
from fuzz.verbs import Place, Verb, executed

root = Path(sys.argv[1])
place = Place(root)
for folder in (place.out, place.home, root / "mutant", root / "elsewhere"):
    folder.mkdir()
(root / "mutant" / "config.json").write_text("{}")
(root / "elsewhere" / "precious").write_text("x")

def relative(name, flags):
    folder = os.open(root / "elsewhere", os.O_RDONLY | os.O_DIRECTORY)
    os.close(os.open(name, flags, dir_fd=folder))
    os.close(folder)

def linked():
    (place.out / "link").symlink_to(root / "elsewhere" / "precious")
    (place.out / "link").write_text("gone")

FAULTS = {
    "fine": lambda: (place.out / "x").write_text("x"),
    "own": lambda: (place.home / "x").write_text("x"),
    "usage": lambda: sys.exit(2),
    "code": lambda: sys.exit(70),
    "untyped": lambda: {}["x"],
    "printed": lambda: sys.stderr.write("Traceback (most recent call last):\n  ...\n"),
    "model": lambda: (root / "mutant" / "config.json").write_text("[]"),
    "hidden": lambda: (root / "mutant" / ".lock").touch(),
    "outside": lambda: (root / "elsewhere" / "new").mkdir(),
    "relative": lambda: relative("new file", os.O_WRONLY | os.O_CREAT),
    "removed": lambda: (root / "elsewhere" / "new file").unlink(),
    "linked": linked,
    "slow": lambda: [None for _ in iter(int, 1)],
    "killed": lambda: os.kill(os.getpid(), signal.SIGSEGV),
}
verbs.MAX_CPU_SECONDS = 0.2
verbs.cli.main = lambda: FAULTS[sys.argv[1]]()
found = {}
for name in FAULTS:
    verbs.VERBS = (Verb((name,)),)
    outcome = executed("hf", root / "mutant" / "config.json", root / "mutant", place)
    assert outcome.executions == 1, (name, outcome)
    found[name] = [wrong.splitlines()[0] for _, wrong in outcome.findings]
print(json.dumps(found))
"""


def test_every_kind_of_fault_is_a_finding(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{FAULTY}", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [found.pop(name) for name in ("fine", "own", "usage")] == [[], [], []]
    assert all(len(findings) == 1 for findings in found.values()), found
    said = {name: finding for name, (finding,) in found.items()}
    assert said["code"] == "exit code 70"
    assert said["untyped"].startswith("KeyError at ")
    assert said["printed"].startswith("a traceback on stderr")
    for name in ("model", "hidden", "outside", "relative", "removed", "linked"):
        assert said[name].startswith("changed "), said[name]
    assert "elsewhere/precious" in said["linked"]
    assert said["slow"] == "the process ended: SIGPROF"
    assert said["killed"] == "the process ended: SIGSEGV"
