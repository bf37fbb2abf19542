"""Tables of values: look-up, nearest entry, and the sums and cuts that optimal tables need."""

from flyweight.kernels.palettes.clusters import *
from flyweight.kernels.palettes.kmeans_1d import *
from flyweight.kernels.palettes.tables import *
