"""SQUIZD: one self-describing file of compressed weights."""

from flyweight.containers.squizd.container import Squizd

__all__ = ["Squizd"]
