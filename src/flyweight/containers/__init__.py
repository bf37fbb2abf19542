"""Containers: file formats, which say where tensors are in a file or directory.

A container is one file and one line in CONTAINERS; the order is the order of probing. A line's module is imported when the
lines before it have not recognised a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flyweight.foundation.errors import UnknownFormatError, nearest
from flyweight.foundation.lazy_table import Table

if TYPE_CHECKING:
    from flyweight.containers.container import Container
    from flyweight.containers.options import OptionGroup
    from flyweight.sources import Bundle

__all__ = ["CONTAINERS", "OPTIONS", "container_named", "recognise"]

CONTAINERS: Table[Container] = Table(
    __name__,
    {
        "gguf": "gguf:Gguf",
        "squizd": "squizd.squizd_file:Squizd",
        "coreml": "coreml.coreml_package:CoreML",
        "npy_dir": "npy_dir.npy_directory:NpyDirectory",
        "uqff_blob": "uqff.uqff_blobs:UqffBlobs",
        "uqff": "uqff.uqff_directory:Uqff",
        "mlx": "mlx:MlxDirectory",
        "hf": "hf:HfDirectory",
        "safetensors": "safetensors:Safetensors",
    },
    make=lambda kind: kind(),
)

OPTIONS: Table[OptionGroup] = Table(
    __name__,
    {
        "npy_dir": "npy_dir.npy_options:GROUP",
        "squizd": "squizd.squizd_options:GROUP",
        "uqff": "uqff.uqff_options:GROUP",
        "coreml": "coreml.coreml_options:GROUP",
    },
)
"""The formats that have options of their own, and where these are declared."""


_OTHER_NAMES = {"uqff0": "uqff_blob", "uqff1": "uqff", "mlpackage": "coreml"}


def container_named(name: str) -> Container:
    key = name.replace("-", "_")
    key = _OTHER_NAMES.get(key, key)
    if key not in CONTAINERS:
        known = CONTAINERS.lines
        raise UnknownFormatError(f"no format named '{name}'{nearest(key, known)}", hint=f"known: {', '.join(known)}")
    return CONTAINERS[key]


def recognise(bundle: Bundle) -> Container:
    """The container whose format the bundle has, decided by content, never by extension."""
    for container in CONTAINERS:
        if container.probe(bundle):
            return container
    from flyweight.containers.unknown import unknown

    raise unknown(bundle).at(file=bundle.name)
