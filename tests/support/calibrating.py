"""Statistics worked out in plain NumPy from a model run over each window alone, with products that are not the runtime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flyweight.checkpoint import open_checkpoint
from flyweight.runtime.batch import Windows
from flyweight.runtime.decoder import Decoder, Settings
from flyweight.runtime.tensors import Tensors

Array = np.ndarray[Any, Any]


def decoder_of(checkpoint: Any, kind: type[Tensors] = Tensors, *, threads: int = 2) -> Decoder:
    return Decoder(kind(checkpoint), 64, Settings(int8=False, threads=threads))


def tapped(path: Path, windows: Array, *, kind: type[Tensors] = Tensors) -> dict[str, Array]:
    """What every matrix was multiplied with, (windows · length, columns), all windows at once."""
    from flyweight.runtime.decoder import Buffers

    found: dict[str, Array] = {}
    with open_checkpoint(path) as checkpoint:
        decoder = decoder_of(checkpoint, kind)
        x = decoder.embed(windows.reshape(-1))
        cache, buffers = Windows(decoder.config, windows.shape[1]), Buffers(decoder.config, windows.size)

        def tap(names: tuple[str, ...], inputs: Array) -> None:
            for name in names:
                found[name] = inputs.copy()

        with decoder.tensors.turn:
            for layer in decoder.layers:
                layer(x, cache, buffers, tap)
        found[decoder.tensors.output_name.removesuffix(".weight")] = decoder.output_input(x)
    return found
