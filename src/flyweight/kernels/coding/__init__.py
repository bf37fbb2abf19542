"""Single codecs' own kernels: exponent coding, masks, floats of eight bits, products of low rank."""

from flyweight.kernels.coding.byte_floats import *
from flyweight.kernels.coding.exponents import *
from flyweight.kernels.coding.low_rank import *
from flyweight.kernels.coding.masks import *
