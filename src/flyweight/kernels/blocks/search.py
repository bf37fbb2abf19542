"""Values to blocks of the K types, iq4_xs, iq4_nl and q8_k: a search for scales, which can weigh columns.

The definition, `scale_search`, is long and imported when it runs.
"""

from __future__ import annotations

from collections.abc import Callable

from flyweight.foundation.ggml_types import GGML_TYPES, ggml_types_with
from flyweight.kernels.checks import F32, U8, Array, check
from flyweight.kernels.registry import kernel


def _searcher(name: str) -> Callable[[Array, Array, Array], None]:
    own = GGML_TYPES[name]

    def definition(values: Array, weights: Array, blocks: Array) -> None:
        from flyweight.kernels.blocks import scale_search

        getattr(scale_search, f"encode_{name}")(values, weights, blocks)

    registered = kernel(definition, f"encode_{name}")

    def encode(values: Array, weights: Array, blocks: Array) -> None:
        check("values", values, F32, (None, own.elements))
        check("weights", weights, F32, (None, own.elements))
        check("blocks", blocks, U8, (len(values), own.nbytes), written=True)
        if not len(weights):
            raise ValueError("weights must have a row")
        registered.run(values, weights, blocks)

    encode.__name__ = encode.__qualname__ = f"encode_{name}"
    encode.__doc__ = (
        f"Blocks of {name} of least weighted error that a search finds. values: f32 (n, {own.elements}), "
        f"weights: f32 (m, {own.elements}), row i mod m for block i, positive and finite, blocks: u8 (n, {own.nbytes})."
    )
    return encode


globals().update({f"encode_{name}": _searcher(name) for name in ggml_types_with("search")})
