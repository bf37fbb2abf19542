"""The sentinel of a tier: which arrays it was built from, and a signature.

    {"format": "flyweight tier", "version": 2, "tier": "packed", "by": "flyweight 0.1.0",
     "source": BLAKE3, "weights": BLAKE3, "ungated": "",
     "stamps": BLAKE3                            in the user's cache
     "signature": keyed BLAKE3}                  beside the arrays

Two digests say what it was built from and what it is. In the user's cache, which nobody else can write, `stamps` says when the
weights were last found to have their digest. Beside the arrays anyone may have put a sentinel: what this user built there
carries a signature that nobody else can make, and its stamps are in the user's index (`arrays`).

`ungated` is what the accuracy gate says against weights of three bits that were built from or into all the same; it is empty
where there is nothing to say.

Squish's own sentinels are empty. What they stand beside was made from who knows what, and is not used.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from flyweight import __version__
from flyweight.foundation import strict_json
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.manifest import is_digest
from flyweight.sources import FileSource
from flyweight.tiers.tier_table import Home, Tier
from flyweight.writing import Folder, Tree, signature

_FORMAT, _VERSION = "flyweight tier", 2
_MOST_BYTES = 1 << 16


class Sentinel(NamedTuple):
    tier: str
    source: str
    """The digest of the arrays it was built from."""
    weights: str
    ungated: str = ""
    stamps: str = ""
    signature: str = ""

    def signed(self) -> Sentinel:
        return self._replace(stamps="", signature=self._own_signature())

    @property
    def is_own(self) -> bool:
        """Whether this user has signed it."""
        return bool(self.signature) and self.signature == self._own_signature()

    def _own_signature(self) -> str:
        return signature(strict_json.dumps([_FORMAT, _VERSION, self.tier, self.source, self.weights, self.ungated]))

    def text(self) -> bytes:
        document = {"format": _FORMAT, "version": _VERSION, "tier": self.tier, "by": f"flyweight {__version__}"}
        said = {"source": self.source, "weights": self.weights, "ungated": self.ungated}
        known = {name: value for name, value in (("stamps", self.stamps), ("signature", self.signature)) if value}
        return strict_json.dumps(document | said | known, indent=1) + b"\n"


def read_sentinel(home: Path, tier: Tier) -> Sentinel | None:
    """What a sentinel says, or None if there is none or it is not of ours: empty, torn, of another version, not a file."""
    with suppress(FlyweightError, OSError):
        with closing(FileSource(home / tier.sentinel, follow=False)) as file:
            if file.size > _MOST_BYTES:
                return None
            raw = bytes(file.read(0, file.size))
        match strict_json.loads(raw, file=tier.sentinel):
            case {
                "format": str(form), "version": int(version), "tier": str(name), "source": str(source), "weights": str(weights),
                "ungated": str(ungated), **rest,
            } if (form, version, name) == (_FORMAT, _VERSION, tier.name):  # fmt: skip
                stamps, signed = rest.get("stamps", ""), rest.get("signature", "")
                if is_digest(source) and is_digest(weights) and isinstance(stamps, str) and isinstance(signed, str):
                    return Sentinel(name, source, weights, ungated, stamps, signed)
    return None


def write_sentinel(home: Home, tier: Tier, sentinel: Sentinel) -> None:
    """Put the sentinel there in one step, after everything it vouches for is on disk."""
    with Folder(home.path) as top, closing(Tree(top)) as tree, tree.at(tier.sentinel) as (folder, name):
        folder.replace(name, sentinel.text())
