"""Deltas: a fine-tune as its difference from a base.

A kind of delta is one file in `kinds/` and one line in KINDS, by the name that files have for it; `kind` says what it is.
`changes` is what a delta holds, `wdelta_file` and `lora` read one, and `rebuilt` makes tensors of base and delta.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flyweight.foundation.lazy_table import Table

if TYPE_CHECKING:
    from flyweight.deltas.kind import Kind

KINDS: Table[type[Kind]] = Table(
    __name__,
    {
        "exact": "kinds.exact_delta:ExactDelta",
        "sparse": "kinds.sparse_delta:SparseDelta",
        "quantized": "kinds.sign_delta:SignDelta",
        "int4": "kinds.int4_delta:Int4Delta",
        "lowrank": "kinds.low_rank_delta:LowRankDelta",
    },
)
