"""The inner loops, by name: native where the extension was built, else their definition in NumPy.

A family of kernels is a module or a folder. Of each kernel it has the definition, registered by `@kernel`, and the function
of the same name that checks the arrays and runs the native kernel or the definition (`registry`). The families are these:
"""

from flyweight.kernels.attention import *
from flyweight.kernels.blocks import *
from flyweight.kernels.coding import *
from flyweight.kernels.differences import *
from flyweight.kernels.entropy import *
from flyweight.kernels.feedback import *
from flyweight.kernels.grams import *
from flyweight.kernels.grids import *
from flyweight.kernels.palettes import *
from flyweight.kernels.products import *
from flyweight.kernels.registry import *
from flyweight.kernels.streams import *
from flyweight.kernels.textures import *
from flyweight.kernels.weaving import *
