"""Base and delta as one checkpoint.

Tensors and side files that the delta leaves alone are the base's, where they lie. Every other tensor is a file of its own in
the bundle, whose bytes are rebuilt when they are read (`deltas.rebuilt`): the pipeline, the runtime and whoever indexes the
checkpoint see tensors like any others. The base may be such a checkpoint itself, so a chain needs nothing more.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace

from blake3 import blake3

from flyweight.checkpoint.checkpoint import Checkpoint, check_layouts
from flyweight.checkpoint.tensor_bytes import elements_of, stored_bytes, stored_elements, tensor_digest
from flyweight.deltas.changes import Change, Delta, Patch, result_dtype
from flyweight.deltas.file_patch import apply_patch
from flyweight.deltas.kind import array_spec
from flyweight.deltas.rebuilt import Rebuilt, RebuiltPart
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import DAMAGED, FlyweightError, MalformedError, ParentError
from flyweight.foundation.manifest import Digests, Entry, Extent, Manifest
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.sources import Bundle, Source


class Overlay(Checkpoint):
    """What `delta` makes of `base`. Sums are of the base's type, or f32 if `in_f32`. ParentError if the base is found to be
    another than the delta was made from: by names, shapes and hash when it is opened, by digests when a tensor is read."""

    def __init__(self, base: Checkpoint, delta: Delta, bundle: Bundle, *, in_f32: bool = False, owns_base: bool = True) -> None:
        self.base, self.delta, self.in_f32 = base, delta, in_f32
        self.delta_places = (*base.delta_places, os.path.abspath(delta.name))
        below = base if isinstance(base, Overlay) else None
        self.deltas: tuple[Delta, ...] = (*below.deltas, delta) if below else (delta,)
        """All of the chain, the first one first."""
        self.root: Checkpoint = below.root if below else base
        """What the first of them is on."""
        self._files = bundle
        self._joined = joined = _Joined(base, bundle, len(base.delta_places), owns_base=owns_base)
        if not delta.has_digests and delta.parent.hash is not None:
            self._check_hash()
        entries, digests = self._entries()
        result, before = delta.result, base.manifest
        manifest = Manifest(
            before.format,
            entries,
            before.metadata if result.metadata is None else result.metadata,
            self._side_files(),
            before.dialect if result.dialect is None else result.dialect,
            digests,
        )
        check_layouts(manifest)
        super().__init__(joined, base.container, manifest, checks_digests=base.checks_digests)
        untouched = {name for name in entries if name not in delta.changes}
        check_block = self._check_block
        if check_block is not None:
            self._check_block = lambda bundle, entry: check_block(bundle, entry) if entry.name in untouched else None

    def files(self) -> set[str]:
        """Those of the base and of the deltas: what is rebuilt is as they are."""
        return self.root.files() | self._joined.of_delta.keys()

    # The table ------------------------------------------------------------------------------------

    def _entries(self) -> tuple[dict[str, Entry], Digests]:
        delta, before = self.delta, self.base.manifest
        kept = before.entries.keys() - delta.changes.keys() if delta.kept is None else delta.kept.keys()
        for name in kept:
            if name not in before.entries:
                raise self._wrong_parent(name, "is missing")
        order = [*(name for name in before.entries if name in kept or name in delta.changes)]
        order += [name for name in delta.changes if name not in before.entries]
        entries = {
            name: self._changed(delta.changes[name]) if name in delta.changes else before.entries[name] for name in order
        }
        self._joined.keep({extent.file for entry in entries.values() for extent in entry.extents.values()})
        old = before.digests
        of = dict(old.of)
        tensors = {name: extents for name, extents in old.tensors.items() if name in kept}
        for name, change in delta.changes.items():
            file = _key(self, change.twin or name)
            if (digest := self._digest(change)) is not None and file in self._joined.rebuilt:
                extent = Extent(file, 0, self._joined.rebuilt[file].size)
                of[extent] = digest
                tensors[name] = (extent,)
        return entries, Digests(of, tensors, old.remedy)

    def _digest(self, change: Change) -> str | None:
        """Sums as f32 have none: it is of the type that they have otherwise."""
        return None if change.adds and self.in_f32 else change.digest

    def _changed(self, change: Change) -> Entry:
        if change.twin is not None:
            return replace(self._changed(self.delta.changes[change.twin]), name=change.name)
        before = None if change.parent is None else self.base.manifest.entries.get(change.parent)
        if change.parent is not None and before is None:
            raise self._wrong_parent(change.parent, "is missing")
        if before is not None and change.parent_spec not in (None, before.spec):
            raise self._wrong_parent(before.name, f"is {before.spec}, not {change.parent_spec}")
        if not change.parts:
            assert before is not None  # the delta is one that was parsed
            if (before.spec, before.codec) != (change.spec, change.codec):
                raise self._wrong_parent(before.name, f"is {before.spec}, not {change.spec}")
            return replace(before, name=change.name)
        spec, layout = change.spec, change.layout
        if change.adds:
            assert before is not None
            if before.spec.shape != spec.shape:
                raise self._wrong_parent(before.name, f"has the shape {list(before.spec.shape)}, not {list(spec.shape)}")
            spec = TensorSpec(spec.shape, DType.F32 if self.in_f32 else result_dtype(before.spec.dtype))
            layout = {"data": spec}
        file = _key(self, change.name)
        if file not in self._joined.rebuilt:
            self._joined.add(file, self._rebuilt(change, before, layout))
        extents, at = {}, 0
        for part, part_spec in layout.items():
            extents[part] = Extent(file, at, part_spec.nbytes)
            at += part_spec.nbytes
        return Entry(change.name, spec, change.codec, layout, extents)

    def _rebuilt(self, change: Change, before: Entry | None, layout: Mapping[str, TensorSpec]) -> Rebuilt:
        parts = []
        for part, part_spec in layout.items():
            spec = array_spec(part_spec)
            below = self._below(change, before, part, spec)
            base = elements_of(self.base, before) if change.adds and before else stored_elements(self.base, before, part, spec)
            parts.append(RebuiltPart(change.parts[part], spec, base, below))
        stamp = f"{self._files[next(iter(self._files))].identity.stamp}.{change.name}"
        return Rebuilt(self.delta.name, change.name, parts, stamp, self._digest(change), lambda: self._explained(change))

    def _below(self, change: Change, before: Entry | None, part: str, spec: TensorSpec) -> RebuiltPart | None:
        """The part of the base that a part is made on, if that is rebuilt too, and of elements that this one takes."""
        extent = before.extents.get(part) if before is not None else None
        if before is None or extent is None or extent.file not in self._joined.rebuilt:
            return None
        found = self._joined.rebuilt[extent.file].part_at(extent.offset)
        if found is None or found.spec.nbytes != extent.nbytes or found.spec.dtype.bits != spec.dtype.bits:
            return None
        plain = before.codec == RAW and before.spec.dtype is found.spec.dtype is not DType.BOOL
        return found if plain or not change.adds else None

    def _side_files(self) -> dict[str, Extent | bytes]:
        files: dict[str, Extent | bytes] = {
            name: content for name, content in self.base.manifest.files.items() if name not in self.delta.removed_files
        }
        for name, patch in self.delta.patches.items():
            files[name] = self._patched(name, patch)
        return files

    def _patched(self, name: str, patch: Patch) -> bytes:
        stored = self._files[patch.stored.file].read(patch.stored.offset, patch.stored.nbytes)
        before = self.base.read(self.base.manifest.files.get(name, b""))
        made = apply_patch(before, bytes(stored), patch.nbytes)
        if blake3(made).hexdigest() != patch.digest:
            raise self._another_base(f"whose side file '{name}' differs")
        return made

    # Whether the base is the parent ---------------------------------------------------------------

    @property
    def _base_name(self) -> str:
        return self.base.delta_places[-1] if self.base.delta_places else self.base.bundle.name

    def _another_base(self, how: str) -> ParentError:
        made_from = f"'{self.delta.parent.name}'" if self.delta.parent.name else "another base"
        return ParentError(
            f"the delta was made from {made_from}, not from '{self._base_name}', {how}",
            file=self.delta.name,
            hint="give the base that it was made from; `flyweight delta log` names it",
        )

    def _wrong_parent(self, tensor: str, how: str) -> FlyweightError:
        return self._another_base(f"where tensor '{tensor}' {how}").at(tensor=tensor)

    def _check_hash(self) -> None:
        """The hash of a file that has no digests: of the tensors it names, in the order it has them. Where it was made from
        tensors in memory, it is of all of them, in an order that the file says nothing of."""
        named, every = self.delta.parent.hashed, list(self.base.manifest.entries)
        for name in named:
            if name not in self.base.manifest.entries:
                raise self._wrong_parent(name, "is missing")
        more = [every, sorted(every)] if len(every) > len(named) else []
        if all(self._hash(names) != self.delta.parent.hash for names in (named, *more)):
            raise ParentError(
                f"the base '{self._base_name}' is not the one that the delta was made from: their hashes differ over "
                f"{len(named)} tensors, '{named[0] if named else ''}' first",
                file=self.delta.name, hint="the file does not say which tensor differs, or what its base is called",
            )  # fmt: skip

    def _hash(self, names: Iterable[str]) -> str:
        from hashlib import sha256  # which deltas with digests do without

        digest = sha256()
        for name in names:
            digest.update(name.encode())
            for piece in stored_bytes(self.base, name):
                digest.update(piece)
        return digest.hexdigest()

    def _explained(self, change: Change) -> FlyweightError:
        """Why a tensor is not what it was when the delta was made."""
        if change.stored_digest is not None:
            found = blake3()
            for extent in change.stored:
                found.update(self._files[extent.file].read(extent.offset, extent.nbytes))
            if found.hexdigest() != change.stored_digest:
                return MalformedError("the bytes do not match the recorded digest", code="E_DIGEST", hint=DAMAGED)
        if change.parent is not None and tensor_digest(self.base, change.parent, checked=False) != change.parent_digest:
            return self._wrong_parent(change.parent, "differs")
        return MalformedError("the rebuilt tensor does not match its digest", code="E_DIGEST", hint=DAMAGED)

    def check_tensor(self, name: str) -> None:
        super().check_tensor(name)
        change, taken, wanted = self.delta.changes.get(name), name, (self.delta.kept or {}).get(name)
        if change is not None and change.parent is not None and not change.parts:  # the parent's, by another name
            taken, wanted = change.parent, change.digest
        if wanted is not None and tensor_digest(self.base, taken, checked=False) != wanted:
            raise self._wrong_parent(taken, "differs")

    def check_digests(self) -> None:
        super().check_digests()
        for name in self.manifest.entries:
            self.check_tensor(name)


class _Joined(Bundle):
    """The base's files, and the rebuilt tensors of a chain of deltas."""

    def __init__(self, base: Checkpoint, delta: Bundle, depth: int, *, owns_base: bool) -> None:
        self.name, self.is_directory = base.bundle.name, base.bundle.is_directory
        self._below = base.bundle if isinstance(base.bundle, _Joined) else None
        self._base: Bundle = self._below._base if self._below else base.bundle
        self._delta, self._owns_base = delta, owns_base
        self.of_delta = {f"delta {depth}/{file}": (delta, file) for file in delta}
        self.of_delta |= self._below.of_delta if self._below else {}
        self.own: dict[str, Rebuilt] = {}
        """What this delta changes."""
        self.rebuilt: dict[str, Rebuilt] = dict(self._below.rebuilt) if self._below else {}
        """That, and what those before it change."""

    def add(self, key: str, rebuilt: Rebuilt) -> None:
        self.own[key] = self.rebuilt[key] = rebuilt

    def keep(self, files: Container[str]) -> None:
        """Of what earlier deltas change, these alone: the others were changed again."""
        self.rebuilt = {key: source for key, source in self.rebuilt.items() if key in files}

    def __getitem__(self, key: str) -> Source:
        self.check_open()
        if key in self.of_delta:
            bundle, file = self.of_delta[key]
            return bundle[file]
        return self.rebuilt[key] if key in self.rebuilt else self._base[key]

    def __contains__(self, key: object) -> bool:
        return key in self.rebuilt or key in self.of_delta or key in self._base

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from self.of_delta
        yield from self.rebuilt

    def __len__(self) -> int:
        return len(self._base) + len(self.of_delta) + len(self.rebuilt)

    @property
    def single(self) -> str | None:
        return self._base.single

    def siblings(self) -> Bundle:
        return self._base.siblings()

    def close(self) -> None:
        each: _Joined | None = self
        while each is not None:
            each._closed = True
            each._delta.close()
            for source in each.own.values():
                source.close()
            each.own.clear()  # they refer to the checkpoint that has this bundle: without them nothing waits for the collector
            each.rebuilt.clear()
            if not each._owns_base:
                return
            if each._below is None:
                each._base.close()
            each = each._below


def _key(overlay: Overlay, tensor: str) -> str:
    """The file that a rebuilt tensor is in the bundle: no other of the chain has this name."""
    return f"rebuilt {len(overlay.base.delta_places)}/{tensor}"
