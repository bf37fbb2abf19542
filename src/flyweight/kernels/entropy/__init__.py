"""An entropy coder, and differences of floats made for it."""

from flyweight.kernels.entropy.rans import *
from flyweight.kernels.entropy.word_deltas import *
