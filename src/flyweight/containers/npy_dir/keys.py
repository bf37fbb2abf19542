"""Safe keys: what a tensor is called on disk.

`safe_key` is the name with every dot made two underscores. That is not one to one, so nobody reads it backwards: manifest.json
says which key a name has. A key from a file must be a plain piece of a file name; two keys that a file system may take
for one (by case, by composed letters) are refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping

from blake3 import blake3

from flyweight.foundation.errors import MalformedError

MAX_KEY_BYTES = 200
"""A file name has at most 255, and a key gets a suffix."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_FORBIDDEN = re.compile(r"[/\\\x00-\x1f\x7f]|\.\.")


def _folded(key: str) -> str:
    """What file systems that ignore case and composition make of it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", key).casefold())


def check_keys(keys: Mapping[str, str], file: str) -> None:
    """Refuse keys that lead elsewhere or to each other."""
    owners: dict[str, str] = {}
    for name, key in keys.items():
        if not key or _FORBIDDEN.search(key) or len(key.encode()) > MAX_KEY_BYTES or key == ".":
            raise MalformedError(f"the key '{key}' cannot be part of a file name", code="E_SAFE_KEY", file=file, tensor=name)
        other = owners.setdefault(_folded(key), name)
        if other != name:
            raise MalformedError(
                f"its key '{key}' is also the key of tensor '{other}'", code="E_KEY_COLLISION", file=file, tensor=name
            )


def safe_keys(names: Iterable[str]) -> dict[str, str]:
    """A key for every name: the usual one, or where that is taken or no plain file name, one with a digest of the name."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        key = name.replace(".", "__")
        if not _PLAIN.fullmatch(key) or len(key) > MAX_KEY_BYTES or _folded(key) in taken:
            plain = re.sub(r"[^A-Za-z0-9_-]", "-", key)[: MAX_KEY_BYTES - 33]
            key = f"{plain}-{blake3(name.encode()).hexdigest(16)}"
        taken.add(_folded(key))
        keys[name] = key
    return keys
