"""Textures of weights."""

from flyweight.kernels.textures.astc_images import *
