"""What the two generations of UQFF have in common: everything but how layers lie in their files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from flyweight.containers.carried import Carried
from flyweight.containers.container import Arrangement, Container, Finding, Image, Placement, require_carried
from flyweight.containers.hf import CONFIG, place_files, place_side_files
from flyweight.containers.named_quantizations import Preset
from flyweight.containers.safetensors import build_image, header_metadata
from flyweight.containers.uqff import layer_fields, uqff_findings, uqff_presets
from flyweight.containers.uqff.layer_order import EMBEDDING, HEAD
from flyweight.containers.uqff.uqff_files import (
    BIAS,
    RESIDUAL,
    ROPE_NOTE,
    SHARD_BYTES,
    SUFFIX,
    TIED,
    WEIGHT,
    Reading,
    in_order,
    side_files,
)
from flyweight.containers.uqff.uqff_options import QUANTS
from flyweight.foundation import strict_json
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import Bundle

ADJACENT = "hf_adjacent"
_OF_THE_WEIGHTS = frozenset({"quantization", "quantization_config", ROPE_NOTE})
_PLAIN = ("nothing is quantized; use --quant q4k to quantize",)

Layers = Mapping[str, list[str]]
"""Module → its tensors that are stored as a layer: a weight, and its bias if it has one."""
Extents = dict[tuple[str, str], Extent]
"""(tensor, part) → where it lies."""


class UqffContainer(Container):
    dialect = "hf"
    is_directory = True
    codecs = (Carried("raw", dtypes=layer_fields.STANDARD_TYPES), *layer_fields.CARRIED)
    quants = QUANTS
    promotes: ClassVar[bool]
    """Whether embedding and output head get a better type than the others."""

    @abstractmethod
    def read(self, bundle: Bundle) -> Reading:
        """All that the files say."""

    @abstractmethod
    def layers_of(self, manifest: Manifest) -> Layers:
        """What is to be stored as layers."""

    @abstractmethod
    def place_layers(
        self, entries: Mapping[str, Entry], layers: Layers, stem: str, shard_bytes: int
    ) -> tuple[dict[str, Image], Extents]:
        """The shards."""

    def parse(self, bundle: Bundle) -> Manifest:
        reading = self.read(bundle)
        files = side_files(reading.found)
        if _is_untied(reading) and reading.config:
            files[CONFIG] = strict_json.dumps({**reading.config, TIED: False}, indent=2) + b"\n"
        entries, metadata = {**reading.layers, **reading.residual.entries}, reading.residual.metadata
        return in_order(Manifest(self.name, entries, metadata, files, _dialect(reading)))

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        return layer_fields.holds(spec, codec)

    def adapt(self, codec: CodecSpec, name: str = "") -> CodecSpec:
        return layer_fields.adapted(codec)

    def preset(self, quant: str, extras: Any) -> Preset | None:
        return uqff_presets.preset(quant, promotes=self.promotes)

    def summary(self, bundle: Bundle) -> Mapping[str, Any]:
        return uqff_findings.summary(self.read(bundle), promotes=self.promotes)

    def warnings(self, bundle: Bundle, manifest: Manifest) -> Iterable[tuple[str, str]]:
        return uqff_findings.warnings(self.read(bundle))

    def audit(self, bundle: Bundle) -> Iterator[Finding]:
        try:
            reading = self.read(bundle)
        except FlyweightError:
            return  # opening it says what is wrong, and in which file
        yield from uqff_findings.audit(reading)

    def restated(self, bundle: Bundle) -> Iterator[str]:
        reading = self.read(bundle)
        if _is_untied(reading):
            yield (
                f"{HEAD} has weights of its own beside the plain embedding, so the model is not tied: "
                f"{TIED} in config.json is now false"
            )
        if not reading.residual.entries:
            yield f"there is no {RESIDUAL}, so norms and all that is not quantized is missing from the result"
        plain = [module for module, kind in reading.types.items() if reading.layers[module + WEIGHT].codec == RAW]
        if plain:
            yield f"layers that are not quantized: {len(plain)}, such as {', '.join(plain[:4])}"

    def arrange(self, names: Collection[str], config: Mapping[str, Any]) -> Arrangement:
        """Biases are f32: the type in which mistral.rs computes on a CPU, and it adds no others."""
        return Arrangement(dtypes=dict.fromkeys((name for name in names if name.endswith(BIAS)), DType.F32))

    def config(self, config: Mapping[str, Any], entries: Mapping[str, Entry]) -> Mapping[str, Any]:
        """Without what it says of other weights, at any depth."""
        wanted: Mapping[str, Any] = _without_statement(config)
        return config if wanted == config else wanted

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        require_carried(self, manifest)
        if name.endswith(SUFFIX):
            raise UnsupportedError(
                "a UQFF is a directory, whose files have names of their own", code="E_NAME", file=name,
                hint=f"give the name of a directory, such as {name.removesuffix(SUFFIX)}",
            )  # fmt: skip
        manifest = in_order(replace(manifest, files=place_files(self, manifest)))
        layers, entries = self.layers_of(manifest), manifest.entries
        quantized = {module: entries[module + WEIGHT] for module in layers if entries[module + WEIGHT].codec != RAW}
        stem = uqff_presets.name_of(quantized, promotes=self.promotes)
        shards, extents = self.place_layers(entries, layers, stem, shard_bytes or SHARD_BYTES)
        stored = {name for names in layers.values() for name in names}
        plain = {name: entry.parts["data"] for name, entry in entries.items() if name not in stored}
        residual, placed = build_image(RESIDUAL, plain, header_metadata(manifest))
        extents |= {(name, "data"): extent for name, extent in placed.items()}
        images = {**shards, RESIDUAL: residual, **self.beside(quantized, stem, list(shards))}
        new_files, copies = place_side_files(manifest.files)
        placed_entries = {
            name: replace(entry, extents={part: extents[name, part] for part in entry.parts}) for name, entry in entries.items()
        }
        return Placement(
            replace(manifest, format=self.name, entries=placed_entries), images | new_files, copies,
            notes=tuple(uqff_findings.notes(quantized)) if quantized else _PLAIN,
        )  # fmt: skip

    def beside(self, quantized: Mapping[str, Entry], stem: str, shards: list[str]) -> Mapping[str, Image]:
        """Files of the format that hold no tensors."""
        return {}


def _is_untied(reading: Reading) -> bool:
    """Whether the output head has its own weights, though config.json may say that it has those of the embedding."""
    has_both = HEAD + WEIGHT in reading.layers and EMBEDDING + WEIGHT in reading.residual.entries
    return reading.named and has_both and reading.config.get(TIED) is not False


def _dialect(reading: Reading) -> str:
    if not reading.named:
        return ""
    adjacent = reading.version[0] > 0 and reading.config.get(ROPE_NOTE) == "adjacent"
    return ADJACENT if adjacent else reading.residual.dialect


def _without_statement(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_statement(item) for key, item in value.items() if key not in _OF_THE_WEIGHTS}


def with_bias(entries: Mapping[str, Entry], module: str) -> list[str]:
    """The tensors of a layer."""
    bias = entries.get(module + BIAS)
    return [module + WEIGHT, module + BIAS] if bias is not None and bias.codec == RAW else [module + WEIGHT]
