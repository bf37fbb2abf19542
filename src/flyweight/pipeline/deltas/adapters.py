"""`delta lora`: a LoRA adapter of PEFT as a .wdelta file, and a .wdelta file as a LoRA adapter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.checkpoint.overlay import Overlay
from flyweight.checkpoint.tensor_bytes import stored_bytes
from flyweight.containers.container import Image
from flyweight.deltas.kinds.low_rank_delta import LowRankDelta
from flyweight.deltas.lora_export import Adapter, AdapterModel, plan_adapter
from flyweight.deltas.recognition import ADAPTER_CONFIG, ADAPTER_WEIGHTS, is_adapter
from flyweight.foundation import strict_json
from flyweight.foundation.errors import UnsupportedError
from flyweight.pipeline.deltas.creating import create_delta
from flyweight.pipeline.deltas.delta_report import CreateReport
from flyweight.pipeline.deltas.tensor_making import LOW_RANK
from flyweight.pipeline.execution import Progress
from flyweight.pipeline.output.replacing import require_apart
from flyweight.pipeline.output.staging import Staging, published
from flyweight.pipeline.plans.arguments import as_path
from flyweight.sources import open_bundle

Place = Path | str
_CONFIG = "config.json"
_TRANSPOSED = ("gpt2",)
"""Values of model_type whose linear layers are stored as (in, out)."""


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """An adapter that was written."""

    base: str
    delta: str
    destination: str
    nbytes: int
    ranks: dict[str, int]
    """The modules that have factors, and their rank."""
    saved: tuple[str, ...]
    """The tensors that are stored whole."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def import_adapter(base: Place, adapter: Place, destination: Place, **options: Any) -> CreateReport:
    """Write a LoRA adapter as a delta on its base: its factors bit for bit, the modules that it replaces exactly.

    `options` are `force` and `progress`, as for `create_delta`.
    """
    with closing(open_bundle(adapter)) as bundle:
        if not is_adapter(bundle):
            raise UnsupportedError(
                "is not a LoRA adapter", code="E_ADAPTER", file=bundle.name,
                hint=f"PEFT saves one as a directory with {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}",
            )  # fmt: skip
    with open_checkpoint(base, checks_digests=True) as below, open_checkpoint(below, deltas=[adapter]) as tuned:
        assert isinstance(tuned, Overlay)
        kinds = {name: change.parts.get("data") for name, change in tuned.delta.changes.items()}
        products = {name: kind for name, kind in kinds.items() if isinstance(kind, LowRankDelta)}
        return create_delta(below, tuned, destination, strategy=LOW_RANK, products=products, **options)


def export_adapter(
    base: Place | None,
    delta: Place,
    destination: Place,
    *,
    base_name: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> AdapterReport:
    """Write a delta of low rank as a LoRA adapter that PEFT loads on `base`; without a base, the delta says where it is.

    `base_name` is what the adapter calls its base: a path, or a name of the Hub; else the path. UnsupportedError, with a list,
    for what an adapter cannot hold.
    """
    destination = Path(os.path.abspath(as_path("destination", destination)))
    if force:
        require_apart(destination, [place for place in (base, delta) if place is not None])
    with open_checkpoint(delta) if base is None else open_checkpoint(base, deltas=[delta]) as tuned:
        if not isinstance(tuned, Overlay) or isinstance(tuned.base, Overlay):
            raise UnsupportedError(
                "a LoRA adapter is made of one delta on a model", code="E_ADAPTER", file=str(delta),
                hint="make a delta of low rank from the model and the fine-tune",
            )  # fmt: skip
        if tuned.base.manifest.dialect != "hf":
            raise UnsupportedError(
                f"the base is {tuned.base.manifest.format}; PEFT loads adapters on Hugging Face directories", code="E_ADAPTER",
                file=tuned.base.bundle.name, hint="convert the base and the fine-tune with --to hf first",
            )  # fmt: skip
        model = _model(tuned, base_name or os.path.abspath(tuned.base.bundle.name))
        adapter = plan_adapter(tuned.delta, tuned.base.manifest.entries, tuned.manifest.entries, model)
        nbytes = _write(adapter, tuned, destination, force, progress)
    saved = tuple(entry.name for entry in adapter.whole.values())
    return AdapterReport(tuned.base.bundle.name, str(delta), str(destination), nbytes, adapter.ranks, saved)


def _model(checkpoint: Checkpoint, base_name: str) -> AdapterModel:
    """What config.json says. A model that writes text has an output layer; if none is stored, it is the embedding."""
    config = _config(checkpoint)
    architectures = config.get("architectures")
    writes = isinstance(architectures, list) and any("CausalLM" in str(name) or "LMHead" in str(name) for name in architectures)
    return AdapterModel(
        base_name,
        "CAUSAL_LM" if writes else None,
        is_tied=writes and "lm_head.weight" not in checkpoint.manifest.entries,
        fan_in_fan_out=config.get("model_type") in _TRANSPOSED,
    )


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    file = checkpoint.manifest.files.get(_CONFIG)
    config = {} if file is None else strict_json.loads(checkpoint.read(file), file=_CONFIG)
    return config if isinstance(config, dict) else {}


def _write(adapter: Adapter, tuned: Checkpoint, destination: Path, force: bool, progress: Progress | None) -> int:
    image, extents = adapter.place()
    images = {ADAPTER_CONFIG: Image.of(adapter.config), ADAPTER_WEIGHTS: image}
    staging = Staging(destination, images, is_directory=True, fingerprint="", resume=False, force=force)
    with published(staging):
        staging.allocate(images)
        for key, extent in extents.items():
            at = extent.offset
            for piece in _pieces(adapter, tuned, key):
                staging.write(ADAPTER_WEIGHTS, at, piece)
                at += len(piece)
            if progress is not None:
                progress(key, extent.nbytes, image.nbytes)
    return sum(each.nbytes for each in images.values())


def _pieces(adapter: Adapter, tuned: Checkpoint, key: str) -> Iterator[memoryview]:
    if key in adapter.factors:
        return (memoryview(piece.tobytes()) for piece in adapter.factors[key].pieces())
    return stored_bytes(tuned, adapter.whole[key].name)
