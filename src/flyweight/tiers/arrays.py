"""The arrays of one npy-dir, and their entry in the user's index.

    $XDG_CACHE_HOME/flyweight/sources/<BLAKE3 of the real path>.json
    {"path": "/models/llama-npy", "digest": BLAKE3 of the arrays, "stamps": BLAKE3 of their stamps,
     "beside": {"cache": [BLAKE3 of its weights, BLAKE3 of their stamps]}, "begun": ["finalized"]}

`digest` keys the user's cache. It is taken again if a stamp has changed, and believed otherwise: the index is the user's own,
and nothing in the model's directory is asked. `beside` are tiers beside the arrays that were found to hold, `begun` those that
are being built there.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from blake3 import blake3

from flyweight.foundation.errors import MalformedError, OutputError
from flyweight.tiers import store
from flyweight.tiers.digests import Stamps, fingerprint, source_digest, source_stamps
from flyweight.tiers.tier_table import Home
from flyweight.writing import Folder

_SOURCES, _SUFFIX = "sources", ".json"
_MOST_BYTES = 1 << 20


class Arrays:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = os.path.realpath(root)
        self.key = blake3(os.fsencode(self.path)).hexdigest()
        self.index = self._read()
        self._read_now: str | MalformedError = ""
        """The digest as it was just taken, or what that found."""
        self._home: Home | None = None

    def _read(self) -> dict[str, Any]:
        with suppress(OSError, OutputError):
            if (folder := store.own(_SOURCES)) is not None:
                with folder:
                    return _content(folder, self.key + _SUFFIX)
        return {}

    def reread(self) -> None:
        """Another process may have been at work."""
        self.index = self._read()
        self._read_now, self._home = "", None
        for name in ("stamps", "_fingerprint"):
            self.__dict__.pop(name, None)

    @cached_property
    def stamps(self) -> Stamps:
        return source_stamps(self.root)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.stamps)

    @property
    def nbytes(self) -> int:
        return sum(stamp.size for stamp in self.stamps.values())

    @property
    def recorded(self) -> str:
        """The digest that the index has, whether or not the arrays still are what it speaks of; or nothing."""
        said = self.index.get("digest")
        return said if type(said) is str else ""

    @property
    def known(self) -> str:
        """The digest, if no stamp has changed since it was taken; or nothing."""
        return self.recorded if self.index.get("stamps") == self._fingerprint else ""

    def digest(self, *, deep: bool = False) -> str:
        """The digest, taken where the index does not know it, or with `deep`. MalformedError if arrays are damaged."""
        known = self.known
        if known and not deep:
            return known
        if not self._read_now:
            try:
                self._read_now = source_digest(self.root)
            except MalformedError as error:
                self._read_now = error
        if isinstance(self._read_now, MalformedError):
            raise self._read_now
        if self._read_now != known:
            self.remember(self._read_now, self.stamps)
        return self._read_now

    def beside(self, tier: str) -> tuple[str, str]:
        """The digests of the weights and of the stamps of a tier beside the arrays when it was last found to hold."""
        match self.index.get("beside"):
            case dict(tiers):
                match tiers.get(tier):
                    case [str(weights), str(found)]:
                        return weights, found
        return "", ""

    # What is remembered -------------------------------------------------------------------------

    def remember(self, digest: str, stamps: Stamps) -> None:
        """Note the digest of the arrays that had these stamps."""
        self._write(path=self.path, digest=digest, stamps=fingerprint(stamps))

    def remember_beside(self, tier: str, weights: str, stamps: Stamps) -> None:
        """Note that the weights of a tier beside the arrays have this digest."""
        tiers = self.index.get("beside")
        self._write(beside=(tiers if type(tiers) is dict else {}) | {tier: [weights, fingerprint(stamps)]})

    def begin(self, tier: str) -> None:
        """Note, before it is done, that a tier is built beside the arrays: what is left of it if that is stopped is ours."""
        self._write(path=self.path, begun=sorted({*self.begun, tier}), required=True)

    def end(self, tier: str) -> None:
        self._write(begun=[name for name in self.begun if name != tier])

    @property
    def begun(self) -> list[str]:
        said = self.index.get("begun")
        return said if type(said) is list else []

    def _write(self, *, required: bool = False, **news: Any) -> None:
        """Without a cache that can be written a digest is taken again at the next start."""
        self.index |= news
        try:
            folder = store.own(_SOURCES, make=True)
            assert folder is not None
            with folder:
                folder.replace(self.key + _SUFFIX, json.dumps(self.index).encode(), 0o600)
        except (OSError, OutputError):
            if required:
                raise

    # Where its tiers are ------------------------------------------------------------------------

    def home_of(self, digest: str) -> Home | None:
        """The home in the user's cache of arrays with this digest, if there is one."""
        if self._home is None or self._home.path.name != digest:
            self._home = store.home_of(self.root, digest) if digest else None
        return self._home

    def home(self) -> Home | None:
        """Its home in the user's cache, if the digest is known, or worth taking; else there is none of these arrays.

        MalformedError if that finds arrays damaged.
        """
        try:
            digest = self.known or (self.digest() if store.may_hold(self.nbytes) else "")
            return self.home_of(digest)
        except (OSError, OutputError):  # a cache that is not to be read; whoever builds will say so
            return None


def indexed(*, forget: bool = False) -> dict[str, list[str]]:
    """Digest of arrays → the models that had it at their last start and are still there. With `forget` others are forgotten."""
    found: dict[str, list[str]] = {}
    if (folder := store.own(_SOURCES)) is None:
        return found
    with folder:
        for name in sorted(folder.names()):
            said = _content(folder, name)
            path, digest = str(said.get("path")), str(said.get("digest"))
            if os.path.isdir(path):
                found.setdefault(digest, []).append(path)
            elif forget:
                folder.remove(name)
    return found


def _content(folder: Folder, name: str) -> dict[str, Any]:
    """What a file of the index says; nothing if it is torn."""
    with suppress(OSError, ValueError, RecursionError, OutputError):
        with open(folder.reopen(name, os.O_RDONLY), "rb") as file:
            said = json.loads(file.read(_MOST_BYTES))
        if type(said) is dict:
            return said
    return {}
