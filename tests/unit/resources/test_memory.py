"""Peak memory does not grow with the model: measured, and enforced by the kernel with RLIMIT_AS."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flyweight.pipeline.rows import SLAB_BYTES
from support.toys import write_sparse_model

TENSOR = (1024, 2048)  # bf16: 4 MiB
WORKERS = 2
LIMIT = 2 * (TENSOR[0] * TENSOR[1] * 2) * WORKERS + (256 << 20)

CHILD = """
import json, re, resource, sys
import flyweight, flyweight.pipeline
source, target, limit, quant = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
flyweight.convert(source, target, quant=quant, jobs=2)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())  # ru_maxrss would count the parent before exec
print(json.dumps(int(peak[1]) * 1024))
"""


def peak(tmp_path: Path, layers: int) -> int:
    return peak_of(write_sparse_model(tmp_path / f"{layers}.safetensors", layers, *TENSOR), "q8_0", LIMIT)


def peak_of(source: Path, quant: str, limit: int) -> int:
    """The most memory that a conversion had at any time."""
    target = source.with_suffix(f".{quant}.safetensors")
    environment = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, "-c", CHILD, str(source), str(target), str(limit), quant]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    target.unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout))


def test_peak_memory_is_bounded_and_flat(tmp_path: Path) -> None:
    peaks = {scale: peak(tmp_path, 4 * scale) for scale in (1, 4, 16)}
    assert max(peaks.values()) <= LIMIT
    # 60 more tensors of 4 MiB: nothing of them stays. What may differ is whether two workers peak at the same moment.
    assert peaks[16] - peaks[1] < 6 * SLAB_BYTES < 60 * 4 << 20, peaks


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_a_palette_is_made_without_a_wide_copy(tmp_path: Path, dtype: str) -> None:
    """A tensor of 32 Mi weights: mapped, and its codes; the same in f32 would be 128 MiB more."""
    small, large = (
        peak_of(write_sparse_model(tmp_path / f"{rows}.safetensors", 1, rows, 8192, dtype), "palette", 1 << 31)
        for rows in (64, 4096)
    )
    stored, codes = 4096 * 8192 * 2, 4096 * 8192 // 2
    assert large - small < stored + codes + 4 * SLAB_BYTES < stored + codes + 4 * 4096 * 8192


def test_disk_holds_no_second_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import flyweight
    from flyweight.pipeline.output import staging

    source = write_sparse_model(tmp_path / "m.safetensors", 4, *TENSOR)
    allocated: list[int] = []
    publish = staging.Staging.publish

    def watched(self: staging.Staging) -> None:
        allocated.append(sum(f.stat().st_blocks * 512 for f in self.root.path.rglob("*") if f.is_file()))
        publish(self)

    monkeypatch.setattr(staging.Staging, "publish", watched)
    report = flyweight.convert(source, tmp_path / "out.safetensors", quant="q8_0")
    assert allocated[0] <= report.nbytes * 1.01 + (1 << 16)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.safetensors", "out.safetensors"]
