"""Mutants of every format through every verb of the command line, `run` included.

    python tests/fuzz/verbs.py --executions 100000 --seed 1 --jobs 2 --record
    python tests/fuzz/verbs.py --case tests/fuzz/findings/verbs-1-17

A model is broken as in `fuzz.py`, or is one of the named hostile files, and is written to a scratch directory; a process forked
for it runs all verbs on it, one after the other, through `flyweight.cli.main`. An execution is one verb. It is a finding when

    it ends in anything but an exit code that the command line documents, 70 excepted: that is a bug that was caught
    it prints a traceback
    it takes more than 2 s of CPU time, hangs, or takes more than 768 MB
    it changes anything outside its output and the user's own directories; a verb that reads changes nothing in the model
    it ends the process

Findings are kept as a directory with the model and a text that says which verb did what.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.pop(0)
    sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads do not survive a fork
os.environ["RUST_BACKTRACE"] = "0"

import flyweight
from flyweight import cli
from flyweight.checkpoint import read_checkpoint
from flyweight.checkpoint.model_opening import read_delta
from flyweight.containers import CONTAINERS, recognise
from flyweight.containers.abilities import Inflates
from flyweight.deltas.recognition import is_delta
from flyweight.foundation.errors import FlyweightError
from flyweight.sources import MemoryBundle
from fuzz import ledger
from fuzz.framing import Input
from fuzz.mutators import bundles
from fuzz.oracle import limited
from fuzz.verb_models import originals
from fuzz.verb_table import VERBS, Verb
from fuzz.watching import Watch, snapshot
from support.fuzz_cases import Case

FINDINGS = Path(__file__).parent / "findings"
CODES = frozenset({0, 1, 2, 3, 4, 5, 6})
MAX_CPU_SECONDS, MAX_WALL_SECONDS = 2.0, 120
MAX_BYTES, MAX_ADDRESSES = 768 << 20, 3 << 30
MOST_FINDINGS = 200
TEXT = "ab abc a b c abc ab a c b " * 4


class Place(NamedTuple):
    """Where a job works: everything it may change is in `out` and `home`."""

    root: Path

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def models(self) -> Path:
        return self.root / "models"

    def filled(self, verb: Verb, model: Path, original: Path) -> list[str]:
        """The arguments of a verb with paths in their places."""
        base = self.models / "made" / "source"
        marks = {
            "{model}": model, "{original}": original, "{base}": base, "{out}": self.out, "{text}": self.root / "text.txt",
        }  # fmt: skip
        return [re.sub(r"\{\w+\}", lambda found: str(marks[found[0]]), argument) for argument in verb.arguments]


# One process for one model ---------------------------------------------------------------------


def attempt(verb: Verb, model: Path, original: Path, place: Place, watch: Watch) -> tuple[object, str]:
    """Run one verb here and now. Returns its exit code, and what is wrong, if anything is."""
    shutil.rmtree(place.out, ignore_errors=True)
    place.out.mkdir()
    before = {} if verb.changes_model else snapshot(model.parent)
    _rewind(1), _rewind(2)
    begun = _cpu_seconds()
    signal.setitimer(signal.ITIMER_PROF, 3 * MAX_CPU_SECONDS)
    signal.alarm(MAX_WALL_SECONDS)
    watch.begin()
    code, wrong = _called(place.filled(verb, model, original), verb.stdin)
    watch.end()
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    spent = _cpu_seconds() - begun
    allowed = [place.out, place.home, *([model.parent] if verb.changes_model else [])]
    if not wrong and code not in CODES:
        wrong = f"exit code {code}"
    if not wrong and spent > MAX_CPU_SECONDS:
        wrong = f"{spent:.1f} s of CPU time"
    if not wrong and (outside := watch.outside(allowed)):
        wrong = f"changed {outside[0]}"
    if not wrong and not verb.changes_model and (after := snapshot(model.parent)) != before:
        wrong = f"changed the model: {sorted(path for path, _ in before.items() ^ after.items())[:3]}"
    if not wrong and "Traceback (most recent call last)" in (said := _said(2)):
        wrong = f"a traceback on stderr: {said[-300:]}"
    return code, wrong


def _called(arguments: list[str], stdin: str) -> tuple[object, str]:
    sys.argv = ["flyweight", *arguments]
    reader, writer = os.pipe()
    os.write(writer, stdin.encode())
    os.close(writer)
    os.dup2(reader, 0)
    os.close(reader)
    sys.stdin = os.fdopen(0, closefd=False)
    try:
        cli.main()
        code: object = 0
    except SystemExit as stop:
        code = 0 if stop.code is None else stop.code
    except BaseException as error:  # noqa: BLE001  whatever it is, it should not be here
        last = traceback.extract_tb(error.__traceback__)[-1]
        return None, f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}\n" + "".join(
            traceback.format_exception(error)
        )
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code, ""


def _cpu_seconds() -> float:
    """Of this process with all its threads; template workers are limited by themselves."""
    return time.process_time()


def _rewind(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)


def _said(descriptor: int) -> str:
    return os.pread(descriptor, 1 << 16, 0).decode("utf-8", "replace")


def _all_verbs(container: str, model: Path, original: Path, place: Place, pipe: int) -> None:
    """What the child does: every verb, each announced before and reported after."""
    for descriptor in (1, 2):
        memory = os.memfd_create("said")
        os.dup2(memory, descriptor)
        os.close(memory)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESSES, MAX_ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    watch = Watch()

    def tell(kind: str, *values: object) -> None:
        os.write(pipe, json.dumps([kind, *values]).encode() + b"\n")

    for number, verb in enumerate(VERBS):
        if verb.only in ("", container):
            tell("begin", number)
            code, wrong = attempt(verb, model, original, place, watch)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            if not wrong and peak > MAX_BYTES:
                wrong = f"{peak >> 20} MB"
            tell("end", number, code, wrong[:4000])


class Outcome(NamedTuple):
    executions: int
    codes: Counter[str]
    findings: list[tuple[str, str]]
    """Verb, and what is wrong."""


def executed(container: str, model: Path, original: Path, place: Place) -> Outcome:
    """All verbs on one model, in a process of its own; goes on behind a verb that ended the process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.setpgid(0, 0)
            _all_verbs(container, model, original, place, writer)
        except BaseException:  # noqa: BLE001  a fault of the harness, told as such
            os.write(writer, json.dumps(["broken", traceback.format_exc()[-3000:]]).encode() + b"\n")
        os._exit(0)
    os.close(writer)
    told = list(_lines(reader, len(VERBS) * MAX_WALL_SECONDS))
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and whatever it started
    _, status = os.waitpid(child, 0)
    codes, findings, executions, running = Counter[str](), list[tuple[str, str]](), 0, None
    for kind, *values in told:
        if kind == "begin":
            running, executions = values[0], executions + 1
        elif kind == "end":
            running = None
            codes[f"{VERBS[values[0]].arguments[0]}: {values[1]}"] += 1
            if values[2]:
                findings.append((VERBS[values[0]].label, values[2]))
        else:
            findings.append(("the harness", values[0]))
    if running is not None:
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        findings.append((VERBS[running].label, f"the process ended: {how}"))
    return Outcome(executions, codes, findings)


def _lines(reader: int, seconds: float) -> Iterator[list[Any]]:
    """What the child tells, until it ends."""
    received, ends = b"", time.monotonic() + seconds
    with os.fdopen(reader, "rb", 0) as stream:
        while select.select([stream], [], [], max(0.0, ends - time.monotonic()))[0]:
            piece = stream.read(1 << 16)
            if not piece:
                break
            *whole, received = (received + piece).split(b"\n")
            yield from map(json.loads, whole)


# Many models -----------------------------------------------------------------------------------


def written(given: Input, root: Path) -> Path:
    """A mutant on disk; names that no file can have are left out."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    model = root / "model" if given.is_directory else root
    for name, data in given.files.items():
        path = model / name
        if name.startswith("/") or ".." in name.split("/"):
            continue
        with suppress(OSError, ValueError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    if given.is_directory:
        model.mkdir(exist_ok=True)
        return model
    return model / next(iter(given.files))


def hostile() -> Iterator[tuple[str, Case]]:
    """The named hostile files that are no larger than a mutant."""
    for name in (*CONTAINERS.lines, "wdelta"):
        for case in importlib.import_module(f"fuzz.hostile_{name}").HOSTILE.values():
            if case.nbytes <= 100_000:
                yield name, case


def cases(
    seed: int, models: dict[str, Input], named: list[tuple[str, Case]]
) -> Iterator[tuple[str, str, Callable[[Path], Path]]]:
    """Without end: (container, original, how it is put on disk). Every fifth is a named file, while there are some left."""
    rng, names, donors = random.Random(seed), sorted(models), list(models.values())
    rng.shuffle(named)
    while True:
        if named and rng.randrange(5) == 0:
            container, case = named.pop()
            yield container, next(name for name in names if name.split()[0] == container), partial(_put, case)
            continue
        original, any_at_all = rng.choice(names), rng.randrange(2)
        given = models[original]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            given = bundles.mutate(rng, given, rng.choice(donors))
        if any_at_all or opens(given):
            yield original.split()[0], original, partial(written, given)


def opens(given: Input) -> bool:
    """Half of the mutants can at least be opened: the others are refused by every verb in the same few lines."""
    bundle = MemoryBundle(given.files, is_directory=given.is_directory)
    try:
        with limited(given.nbytes):
            if is_delta(bundle):
                read_delta(bundle)
                return True
            container = recognise(bundle)
            read_checkpoint(container.view(bundle) if isinstance(container, Inflates) else bundle, container)
    except FlyweightError:
        return False
    except Exception:  # noqa: BLE001  a finding: let the verbs have it
        return True
    return True


def _put(case: Case, root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    return case.write(root)


def imported() -> None:
    """Every module of the package, so that no execution pays for an import."""
    for module in pkgutil.walk_packages(flyweight.__path__, "flyweight."):
        if not module.name.endswith(("__main__", "chat_worker")):
            importlib.import_module(module.name)
    for name in ("tokenizers", "jinja2", "rich.console", "rich.table", "rich.progress", "compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            importlib.import_module(name)
    list(CONTAINERS)


def worked(job: int, seed: int, executions: int, seconds: float | None, only: list[str], place: Place, pipe: int) -> None:
    """One job: models, each through all verbs. Reports in one line at its end."""
    begun, cpu = time.monotonic(), time.process_time()
    for folder in (place.out, place.home, place.models, place.root / "cwd"):
        folder.mkdir(parents=True)
    os.environ |= {
        "HOME": str(place.home), "XDG_CACHE_HOME": str(place.home / "cache"), "XDG_STATE_HOME": str(place.home / "state"),
        "TMPDIR": str(place.home),
    }  # fmt: skip
    tempfile.tempdir = None
    (place.root / "text.txt").write_text(TEXT)
    models = {name: given for name, given in originals(place.models / "made").items() if name.split()[0] in only}
    for name, given in models.items():
        written(given, place.models / "whole" / name.replace(" ", "-"))
    os.chdir(place.root / "cwd")
    imported()
    named = [case for case in hostile() if case[0] in only] if job == 0 else []
    done, total, codes, findings = 0, 0, Counter[str](), dict[str, str]()
    for container, original, put in cases(seed, models, named):
        if total >= executions or (seconds and time.monotonic() - begun > seconds) or len(findings) >= MOST_FINDINGS:
            break
        model = put(place.root / "mutant")
        whole = place.models / "whole" / original.replace(" ", "-")
        beside = whole / ("model" if models[original].is_directory else next(iter(models[original].files)))
        outcome = executed(container, model, beside, place)
        total, done = total + outcome.executions, done + 1
        codes += outcome.codes
        for verb, wrong in outcome.findings:
            wrong = wrong.replace(str(place.root), "")
            kind = f"{verb.split()[0]}: {wrong.splitlines()[0][:120]}"
            if kind not in findings:
                kept = FINDINGS / f"verbs-{seed}-{done}-{len(findings)}"
                shutil.rmtree(kept, ignore_errors=True)
                model = put(place.root / "mutant")  # as it was before the verbs
                shutil.copytree(place.root / "mutant", kept / "case", symlinks=True, ignore=_pipes)
                (kept / "what.txt").write_text(f"{verb}\n{original}\n{model.relative_to(place.root / 'mutant')}\n\n{wrong}\n")
                findings[kind] = kept.name
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = time.process_time() - cpu + children.ru_utime + children.ru_stime
    report = {"executions": total, "models": done, "cpu_seconds": spent, "codes": codes, "findings": findings,
              "peak_bytes": children.ru_maxrss << 10}  # fmt: skip
    os.write(pipe, json.dumps(report).encode())


def _pipes(folder: str, names: list[str]) -> list[str]:
    return [
        name for name in names if not (os.path.isfile(p := os.path.join(folder, name)) or os.path.isdir(p) or os.path.islink(p))
    ]


def fuzzed(given: argparse.Namespace) -> dict[str, Any]:
    FINDINGS.mkdir(exist_ok=True)
    share, seconds, begun = -(-given.executions // given.jobs), 60 * given.minutes if given.minutes else None, time.monotonic()
    reports = []
    with tempfile.TemporaryDirectory(
        prefix="flyweight-verbs-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ) as root:
        running = []
        for job in range(given.jobs):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    worked(job, given.seed + job, share, seconds, given.only, Place(Path(root) / str(job)), writer)
                except BaseException:  # noqa: BLE001
                    traceback.print_exc()
                os._exit(0)
            os.close(writer)
            running.append((child, reader))
        for child, reader in running:
            with os.fdopen(reader, "rb") as stream:
                reports.append(json.loads(stream.read()))
            os.waitpid(child, 0)
    executions, cpu = sum(one["executions"] for one in reports), sum(one["cpu_seconds"] for one in reports)
    codes: Counter[str] = sum((Counter(one["codes"]) for one in reports), Counter())
    findings = {kind: name for one in reports for kind, name in one["findings"].items()}
    wall, peak, models = (
        time.monotonic() - begun,
        max(one["peak_bytes"] for one in reports),
        sum(one["models"] for one in reports),
    )
    print(f"{executions:,} executions on {models:,} models, {executions / wall:,.0f}/s, {executions / cpu:,.0f}/s of CPU, "
          f"peak {peak >> 20} MB, {len(findings)} findings")  # fmt: skip
    for verb in dict.fromkeys(verb.arguments[0] for verb in VERBS):
        ended = sorted((code.rpartition(" ")[2], count) for code, count in codes.items() if code.startswith(f"{verb}:"))
        print(f"    {verb:<8} " + ", ".join(f"{count:,} exit {code}" for code, count in ended))
    for kind, name in findings.items():
        print(f"    {kind}: {FINDINGS / name}")
    return {
        "target": "verbs", "engine": "mutants", "executions": executions, "seed": given.seed, "jobs": given.jobs,
        "cpu_seconds": round(cpu), "models": models, "verbs": len(VERBS), "peak_mb": peak >> 20, "findings": len(findings),
    }  # fmt: skip


def repeated(kept: Path) -> None:
    """The verb of a finding again, in this process, with everything it prints."""
    label, original, model, _, wrong, *_ = (kept / "what.txt").read_text().splitlines()
    verb = next(verb for verb in VERBS if verb.label == label)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        shutil.copytree(kept / "case", place.root / "mutant", symlinks=True)
        whole = written(originals(place.models / "made")[original], place.root / "whole")
        place.out.mkdir()
        (place.root / "text.txt").write_text(TEXT)
        print(f"{label}\nfound: {wrong}", flush=True)
        sys.argv = ["flyweight", *place.filled(verb, place.root / "mutant" / model, whole)]
        cli.main()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=10**9, help="of all jobs together; default: until the time is over")
    parser.add_argument("--minutes", type=float, help="default 1, unless there are --executions")
    parser.add_argument("--seed", type=int, default=1, help="jobs take this one and those that follow")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    kinds = [*CONTAINERS.lines, "wdelta"]
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="models of these formats", metavar="FORMAT")
    parser.add_argument("--record", action="store_true", help="add the run to executions.json")
    parser.add_argument("--case", type=Path, help="repeat the verb of one finding")
    given = parser.parse_args()
    if given.case:
        repeated(given.case)
        return
    if given.minutes is None and given.executions == 10**9:
        given.minutes = 1.0
    row = fuzzed(given)
    if given.record:
        ledger.append([row])
    sys.exit(1 if row["findings"] else 0)


if __name__ == "__main__":
    main()
