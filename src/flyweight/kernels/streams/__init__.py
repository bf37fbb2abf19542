"""Bit streams, casts between float types, and affine codes packed in rows."""

from flyweight.kernels.streams.affine_codes import *
from flyweight.kernels.streams.bit_streams import *
from flyweight.kernels.streams.float_casts import *
