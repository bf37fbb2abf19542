"""Containers: how a file or directory holds tensors.

A container is one file and one line in CONTAINERS; the order is the order of probing.
"""

from __future__ import annotations

from flyweight.containers.base import Container, Finding, Image, Placement
from flyweight.containers.gguf import Gguf
from flyweight.containers.hf import HfDirectory
from flyweight.containers.mlx import MlxDirectory
from flyweight.containers.npy_dir import NpyDirectory
from flyweight.containers.safetensors import Safetensors
from flyweight.containers.squizd import Squizd
from flyweight.errors import UnknownFormatError
from flyweight.sources import Bundle

__all__ = ["CONTAINERS", "Container", "Finding", "Image", "Placement", "container_named", "recognise"]

CONTAINERS: tuple[Container, ...] = (
    Gguf(),
    Squizd(),
    NpyDirectory(),
    MlxDirectory(),
    HfDirectory(),
    Safetensors(),
)


def container_named(name: str) -> Container:
    for container in CONTAINERS:
        if container.name == name.replace("-", "_"):
            return container
    raise UnknownFormatError(f"no container named '{name}'", hint=f"known: {', '.join(c.name for c in CONTAINERS)}")


def recognise(bundle: Bundle) -> Container:
    """The container whose format the bundle has, decided by content, never by extension."""
    for container in CONTAINERS:
        if container.probe(bundle):
            return container
    raise UnknownFormatError(
        "not a format Flyweight knows", file=bundle.name, hint="`flyweight formats` lists what can be read"
    )
