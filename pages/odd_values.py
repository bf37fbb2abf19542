"""How every encoder treats odd tensors: the tables of docs/formats/odd-values.md, found by trying.

`tests/laws/test_odd_values.py` fails while page and behaviour differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flyweight.codecs import CODECS, Codec
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError
from flyweight.foundation.tensor import TensorSpec
from pages import ROOT
from pages.markdown import table
from support.every_codec import ENCODERS, same_bits, weights

PAGE = "docs/formats/odd-values.md"
MARK = "<!-- tables -->\n"
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (257,), (512,), (0, 512), (4, 0), (1, 1), (3, 257), (5, 512), (2, 3, 512))
ODD_VALUES = {
    "NaN": np.nan,
    "+inf": np.inf,
    "−inf": -np.inf,
    "−0.0": -0.0,
    "3.4e38": np.finfo(np.float32).max,
    "1e-40": 1e-40,
}
AT = (1, 7)
"""Where the odd value stands, among ordinary ones."""


def outcome(codec: Codec, values: np.ndarray, judge: Callable[[np.ndarray, np.ndarray], str]) -> str:
    """The code of the refusal, or what `judge` says about values and decoded values. Anything else is a fault."""
    spec = TensorSpec(values.shape, DType.F32)
    try:
        fitted = codec.fit(spec, values)
        decoded = fitted.decode(spec, fitted.encode(spec, values))
    except FlyweightError as error:
        if error.code == "E_EXTRA":  # says nothing about the values
            raise
        return f"`{error.code}`"
    assert decoded.shape == values.shape
    return "bits kept" if same_bits(decoded, values) else judge(values, decoded)


def shaped(codec: Codec, shape: tuple[int, ...]) -> str:
    return outcome(codec, weights(TensorSpec(shape, DType.F32)) if shape else np.float32(0.5).reshape(()), _stored)


def valued(codec: Codec, value: float) -> str:
    values = weights(TensorSpec((5, 512), DType.F32))
    values[AT] = value
    return outcome(codec, values, _beside)


def subnormal(codec: Codec) -> str:
    """A tensor of nothing else: scales leave their range at the small end."""
    return outcome(codec, weights(TensorSpec((5, 512), DType.F32)) * np.float32(1e-40), _small)


def zero(codec: Codec) -> str:
    return outcome(codec, np.zeros((5, 512), np.float32), _small)


def negative_zero(codec: Codec) -> str:
    return outcome(codec, np.full((5, 512), -0.0, np.float32), _small)


def _stored(_: np.ndarray, decoded: np.ndarray) -> str:
    assert np.isfinite(decoded).all()
    return "rounded"


def _beside(values: np.ndarray, decoded: np.ndarray) -> str:
    """A large value may take its neighbours with it, and be far off itself, but all stay finite."""
    assert np.isfinite(decoded).all()
    return "clipped" if abs(decoded[AT]) < abs(values[AT]) / 2 == np.abs(values).max() / 2 else "rounded"


def _small(values: np.ndarray, decoded: np.ndarray) -> str:
    assert (np.abs(decoded) <= 2 * np.abs(values).max()).all()
    return "rounded" if decoded.any() else "zero"


def outcomes(judges: Mapping[str, Callable[[Codec], str]]) -> str:
    """A row for every kind of codec, the outcomes of all its parameters joined."""
    rows = []
    for kind in (kind for kind in CODECS if kind.encodes):
        tried = [codec for codec in ENCODERS if codec.name == kind.name]
        rows.append([kind.name, *(" or ".join(sorted({judge(codec) for codec in tried})) for judge in judges.values())])
    return table(("codec", *judges), rows)


def tables() -> str:
    values = {f"one {label}": lambda codec, value=value: valued(codec, value) for label, value in ODD_VALUES.items()}
    whole = {"all 0": zero, "all −0.0": negative_zero, "all subnormal": subnormal}
    shapes = {str(list(shape)): lambda codec, shape=shape: shaped(codec, shape) for shape in SHAPES}
    return "\n".join(
        [
            "## Values\n",
            outcomes(values | whole),
            "\n## Shapes\n",
            outcomes(shapes),
            "",
        ]
    )


def written() -> dict[str, str]:
    return {PAGE: (ROOT / PAGE).read_text("utf-8").split(MARK)[0] + MARK + "\n" + tables()}
