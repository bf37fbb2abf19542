"""Blocks of ggml: decoding, nearest encoding, and encoding that searches for scales."""

from flyweight.foundation.ggml_types import GGML_TYPES, ggml_types_with
from flyweight.kernels.blocks.decode import *
from flyweight.kernels.blocks.nearest import *
from flyweight.kernels.blocks.search import *

DECODED, ENCODED, SEARCHED = (ggml_types_with(kind) for kind in ("decode", "nearest", "search"))
BLOCKS = {name: (GGML_TYPES[name].elements, GGML_TYPES[name].nbytes) for name in DECODED}
"""Elements and bytes of a block."""
