"""The folder `finalized/` of an npy-dir: its tensors decoded, each a plain array.

    finalized/<key>.npy      the tensor in its own shape, f16 (or the plain type it has, if that is no float)

Keys are those of the directory's manifest.json, beside which alone the folder means anything; so it is not among the containers
that are probed for. f16 holds no more than 65504: a value beyond is an error where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping

from flyweight.containers.carried import Carried
from flyweight.containers.container import Container, Image, Placement, require_carried
from flyweight.containers.npy_dir.npy_header import DESCRS, build_header, read_header
from flyweight.foundation.errors import FlyweightError, MalformedError
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.foundation.tensor import RAW, CodecSpec, TensorSpec
from flyweight.sources import Bundle


class Finalized(Container):
    name = "finalized"
    title = "Squish finalized folder"
    dialect = "hf"
    is_directory = True
    codecs = (Carried("raw", dtypes=tuple(DESCRS.values())),)

    def __init__(self, keys: Mapping[str, str], folder: str = "") -> None:
        """`keys` is the manifest: tensor → key. `folder` is where the arrays are in the bundles parsed."""
        self.keys, self.folder = keys, folder

    def probe(self, bundle: Bundle) -> bool:
        return False

    def parse(self, bundle: Bundle) -> Manifest:
        entries = {name: self._entry(bundle, name, f"{self.folder}{key}.npy") for name, key in self.keys.items()}
        return Manifest(self.name, entries, dialect=self.dialect)

    def _entry(self, bundle: Bundle, name: str, file: str) -> Entry:
        if file not in bundle:
            raise MalformedError("its array is missing", code="E_PART_MISSING", file=bundle.name, tensor=name)
        try:
            spec, offset = read_header(bundle[file])
        except FlyweightError as error:
            raise error.at(tensor=name) from None
        return Entry(name, spec, RAW, {"data": spec}, {"data": Extent(file, offset, spec.nbytes)})

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        return codec == RAW and spec.dtype in DESCRS.values()

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        """The arrays alone: side files stay with the directory the folder is in."""
        require_carried(self, manifest)
        images: dict[str, Image] = {}
        entries: dict[str, Entry] = {}
        for tensor, entry in manifest.entries.items():
            file, head = f"{self.keys[tensor]}.npy", build_header(entry.spec)
            images[file] = Image(len(head) + entry.nbytes, ((0, head),))
            entries[tensor] = Entry(tensor, entry.spec, RAW, entry.parts, {"data": Extent(file, len(head), entry.nbytes)})
        return Placement(Manifest(self.name, entries, dialect=self.dialect), images)
