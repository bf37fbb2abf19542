"""`prune`: set the blocks of least energy in each row to zero, for the codec `masked` to drop.

The energy of a block is the sum of its squares, in float64 and in order. Of n blocks the ⌊fraction · n⌋ of least energy go, of
equal ones the first. Rows are judged alone, so that they can be pruned a few at a time.
"""

from __future__ import annotations

import numpy as np

from flyweight.codecs import Array


def prune(values: Array, block: int, fraction: float) -> Array:
    """A copy of `values`, of any float type and shape, with blocks of `block` neighbours along the last axis set to zero."""
    if type(block) is not int or block < 1:
        raise ValueError(f"block must be a count from 1, not {block!r}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be from 0 to 1, not {fraction!r}")
    pruned = np.array(values, order="C")
    rows = pruned.reshape(-1, pruned.shape[-1]) if pruned.size else pruned.reshape(0, 1)
    starts = np.arange(0, rows.shape[1], block)
    dropped = int(fraction * len(starts))
    for row in rows if dropped else ():
        energy = np.add.reduceat(np.square(row.astype(np.float64)), starts)
        for first in starts[np.argsort(energy, kind="stable")[:dropped]]:
            row[first : first + block] = 0
    return pruned
