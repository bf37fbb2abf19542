"""Products with stored weights."""

from flyweight.kernels.products.matrix import *
from flyweight.kernels.products.multiplying import *
