"""Four-bit weights added to an int8 npy-dir in place.

The arrays of four bits are files of their own, and beside another form they count only with `.squish_int4_ready`. So that
empty file is the one step that turns the directory, and everything else is in place before it:

    1  four-bit arrays that a stopped run left are removed; they never counted
    2  the new arrays join tensors/, of each tensor the codes last
    3  flyweight.json is replaced by one that names both forms, true of the directory before and after
    4  .squish_int4_ready appears

Whoever stops in between leaves a directory with its old values, and who opens it meanwhile has the old values or the new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from flyweight.containers.abilities import Addition
from flyweight.containers.container import Chunks, Image, Placement, require_carried
from flyweight.containers.npy_dir.forms import FORMS, INT4, PRESETS, arrange
from flyweight.containers.npy_dir.npy_directory import NpyDirectory, digests_of, place_arrays
from flyweight.containers.npy_dir.npy_options import ADDABLE
from flyweight.containers.npy_dir.npy_reading import array_files, labels, read
from flyweight.containers.npy_dir.tier_places import ARRAY, COMPRESSED, FOLDER, INT4_READY, RECORD
from flyweight.foundation.errors import OutputError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent, Manifest
from flyweight.foundation.source_check import KEY as CHECK
from flyweight.foundation.tensor import CodecSpec
from flyweight.sources import Bundle

_SUFFIXES = [suffix for label in INT4 for suffix in FORMS[label].files.values()]


class FourBits(NpyDirectory, Addition):
    """A directory that gets a form of four bits; what it places are the files to be added."""

    folder, switch = FOLDER, INT4_READY

    def __init__(self, bundle: Bundle, form: str) -> None:
        if form not in ADDABLE:
            raise UnsupportedError(f"'{form}' cannot be added", code="E_QUANT", hint=f"known: {', '.join(ADDABLE)}")
        found = read(self.view(bundle))
        self.form, self.codec, self._where = form, PRESETS[form].rules[0].codec, bundle.name
        self._keys, self._record, self._entries = found.keys, found.record, found.entries
        arrays = array_files(bundle)
        forms = {name: set(labels(arrays.get(key, {}))) for name, key in found.keys.items()}
        self.was_switched = INT4_READY in bundle
        self._beside = [name for name in forms if forms[name].difference(INT4)]
        """Tensors that have another form than four bits."""
        self._switched = [name for name in self._beside if self.was_switched and forms[name].intersection(INT4)]
        """Those of them whose four bits count already."""
        self.sources = [e for e in self._entries.values() if e.codec == FORMS["int8"].spec(_group(e.codec))]

    def note(self, added: int) -> str:
        counting = [self._entries[name] for name in self._switched]
        # Codecs may differ: a lone group may be told as 0.
        same = all(arrange(entry.spec, entry.codec) == arrange(entry.spec, self.codec) for entry in counting)
        if counting and same and not added:
            return f"the model already has {self.form} weights"
        if counting:
            message = "the model already has four-bit weights of another form, or of some tensors"
            raise OutputError(message, code="E_EXISTS", file=self._where, hint="convert to a new directory instead")
        if not added:
            message = "the model has no int8 tensor"
            raise UnsupportedError(message, code="E_NOTHING", file=self._where, hint="convert --quant int8 first")
        return ""

    def idle(self, files: Iterable[str]) -> list[str]:
        """Arrays of four bits among these files that do not count, as their tensor has another form."""
        keys = [self._keys[name] for name in self._beside]
        fours = {f"{FOLDER}{key}{suffix}{end}" for key in keys for suffix in _SUFFIXES for end in (ARRAY, COMPRESSED)}
        return sorted(fours.intersection(files))

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        """The new arrays, the record with both forms if there is one, and last the sentinel."""
        require_carried(self, manifest)
        images: dict[str, Image] = {}
        digests: dict[str, Extent] = {}
        entries: dict[str, Entry] = {}
        for tensor, entry in manifest.entries.items():
            arrays, entries[tensor] = place_arrays(entry, self._keys[tensor])
            digests |= {f"{tensor}\0{file}": Extent(file, 0, image.nbytes) for file, image in arrays.items()}
            images |= reversed(arrays.items())  # of each tensor the codes last
        placement = Placement(replace(manifest, entries=entries), images, digests=digests)
        if images:
            images |= {file: Image.of(text) for file, text in self._heads(placement, {}).items()}
        return placement

    def finish(self, placement: Placement, digests: Mapping[str, str], read: Callable[[Extent], bytes]) -> Mapping[str, Chunks]:
        return {file: [(0, text)] for file, text in self._heads(placement, digests).items() if text and placement.digests}

    def _heads(self, placement: Placement, digests: Mapping[str, str]) -> dict[str, bytes]:
        """The files of the directory itself, in the order in which they appear."""
        if self._record is None:
            return {INT4_READY: b""}
        written = digests_of({}, placement.digests, digests)
        idle = {*self.idle(self._record.files), INT4_READY}
        files = {file: digest for file, digest in self._record.files.items() if file not in idle} | written
        added = {name: entry.codec for name, entry in placement.manifest.entries.items()}
        metadata = {key: typed for key, typed in self._record.metadata.items() if key != CHECK}  # of the values before
        record = replace(self._record, metadata=metadata, files=dict(sorted(files.items())), added=added)
        return {RECORD: record.text(), INT4_READY: b""}


def _group(codec: CodecSpec) -> int:
    group = codec.params.get("group")
    return group if type(group) is int else 0
