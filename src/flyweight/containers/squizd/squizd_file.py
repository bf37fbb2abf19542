"""SQUIZD (.squizd): a whole model in one file: compressed weights, their scales, config, tokenizer, draft head, appendix.

    header · layer index · directory · weight blocks · tables of scales · files · draft head · appendix

The parts have a module each: `squizd_header`, `directory`, `blocks`. `arrangement` lays a file out, `walk` reads
one that has no directory, `audit` finds everything that is wrong with one. docs/formats/squizd.md is the format, normatively.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from blake3 import blake3

from flyweight.containers import mlpackage
from flyweight.containers.container import Chunks, Container, Finding, Image, Placement, require_carried
from flyweight.containers.named_quantizations import Preset
from flyweight.containers.squizd import blocks
from flyweight.containers.squizd.arrangement import APPENDIX, Arrangement, layer_of
from flyweight.containers.squizd.audit import audit
from flyweight.containers.squizd.broken_rules import Report
from flyweight.containers.squizd.squizd_header import ARCHITECTURES, FLAGS, MAGIC, read_header
from flyweight.containers.squizd.squizd_options import QUANTS, Extras
from flyweight.containers.squizd.squizd_presets import preset
from flyweight.containers.squizd.squizd_reading import Reading, head_problem, read
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_ARCHIVE_BYTES
from flyweight.foundation.manifest import Digests, Entry, Extent, Manifest
from flyweight.foundation.tensor import CodecSpec, TensorSpec
from flyweight.sources import Bundle


@dataclass(frozen=True)
class Squizd(Container):
    """`directory`: whether files are written with one. Without it only tensors called `layers.<layer>.<k>` keep their names."""

    directory: bool = True

    name = "squizd"
    title = "SQUIZD"
    dialect = "hf"
    is_directory = False
    suffix = ".squizd"
    codecs = blocks.CARRIED
    embeds = {APPENDIX: MAX_ARCHIVE_BYTES}
    quants = QUANTS

    def probe(self, bundle: Bundle) -> bool:
        """Also true for a file that merely claims the suffix: the parser then says what is wrong with it."""
        if bundle.single is None:
            return False
        source = bundle[bundle.single]
        return (source.size >= 4 and bytes(source.read(0, 4)) == MAGIC) or bundle.single.endswith(self.suffix)

    def parse(self, bundle: Bundle) -> Manifest:
        reading = self._read(bundle)
        reading.report.raise_first(reading.source.name)
        digests = reading.directory.digests() if reading.directory else Digests()
        return Manifest(self.name, reading.entries, reading.metadata, reading.files, self.dialect, digests)

    def _read(self, bundle: Bundle) -> Reading:
        file = bundle.single or next(iter(bundle))
        return read(bundle[file], file)

    def check_block(self, bundle: Bundle, entry: Entry) -> None:
        """A block's head says what the directory says of its tensor."""
        extent = next(iter(entry.extents.values()))
        problem = head_problem(bundle[extent.file], entry)
        if problem:
            raise MalformedError(problem, code="E_BLOCK_HEAD", file=bundle.name, tensor=entry.name, offset=extent.offset)

    def audit(self, bundle: Bundle) -> Iterator[Finding]:
        return audit(self._read(bundle))

    def summary(self, bundle: Bundle) -> Mapping[str, Any]:
        """What the header says, for people."""
        report = Report()
        file = bundle.single or next(iter(bundle))
        header = read_header(bundle[file], report)
        report.raise_first(bundle[file].name)
        assert header is not None
        found: dict[str, Any] = {
            "version": 1,
            "flags": [flag for flag in FLAGS if flag in header.flags],
            "layers": header.layer_count,
            "architecture": ARCHITECTURES[header.arch_id] if header.arch_id < len(ARCHITECTURES) else "generic",
        }
        if "SPARSE" in header.flags:
            found["sparsity"] = header.sparsity._asdict()
        if "EAGLE" in header.flags:
            found["draft_head"] = header.draft._asdict()
        if isinstance(extent := self._read(bundle).files.get(APPENDIX), Extent):
            found["appendix"] = [member.filename for member in mlpackage.members(bundle[file], extent)]
        return found

    # Writing ----------------------------------------------------------------------------------------

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        return blocks.carried(spec, codec)

    def adapt(self, codec: CodecSpec, name: str = "") -> CodecSpec:
        """A tensor's scales carry its id."""
        inner, block = blocks.unmasked(codec)
        if "id" not in inner.params:
            return codec
        own = CodecSpec(inner.name, {**inner.params, "id": blocks.tensor_id(layer_of(name), name)})
        return blocks.masked(own, block) if block else own

    def preset(self, quant: str, wanted: Extras | None) -> Preset:
        return preset(quant, wanted or Extras())

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        """One file whatever `shard_bytes` says: that is the point of it."""
        require_carried(self, manifest)
        if not self.directory and (manifest.files or manifest.metadata or any(layer_of(n) is None for n in manifest.entries)):
            raise UnsupportedError("without a directory a file cannot have side files, metadata or tensors outside the layers")
        arrangement = Arrangement(manifest, name, self.directory)
        chunks = [(0, arrangement.front({}, {}, ())), *arrangement.chunks]
        entries = {
            key: replace(entry, extents={part: arrangement.extents[key][part] for part in entry.parts})
            for key, entry in manifest.entries.items()
        }
        placed = Manifest(self.name, entries, manifest.metadata, arrangement.files, self.dialect)
        notes = () if shard_bytes is None else ("SQUIZD is always one file and is not split",)
        return Placement(placed, {name: Image(arrangement.end, chunks)}, digests=arrangement.blocks, notes=notes)

    def finish(self, placement: Placement, digests: Mapping[str, str], read: Callable[[Extent], bytes]) -> Mapping[str, Chunks]:
        """The front with the digests of blocks and tables, and with the sparsity the masks have."""
        name = next(iter(placement.images))
        contents: dict[str, Extent | bytes] = {
            file: read(extent) if isinstance(extent, Extent) else extent for file, extent in placement.manifest.files.items()
        }
        arrangement = Arrangement(replace(placement.manifest, files=contents), name, self.directory)
        dropped = {
            tensor: blocks.dropped(spec, block, read(extent)) for tensor, (extent, spec, block) in arrangement.masks().items()
        }
        tables = [blake3(read(Extent(name, t.offset, t.nbytes))).hexdigest() for t in arrangement.tables]
        return {name: [(0, arrangement.front(digests, dropped, tables))]}
