"""Headers of .npy files are those that NumPy writes, in every version."""

from __future__ import annotations

import io

import numpy as np
import pytest

from flyweight.containers.npy_dir.npy_header import DESCRS, build_header, read_header
from flyweight.foundation.dtypes import DType
from flyweight.foundation.tensor import TensorSpec
from flyweight.sources import MemorySource


@pytest.mark.parametrize("shape", [(), (1,), (0,), (7,), (4, 8), (2, 3, 4), (10**6, 1), (1,) * 8], ids=str)
@pytest.mark.parametrize("descr", DESCRS)
def test_headers_are_those_of_numpy(descr: str, shape: tuple[int, ...]) -> None:
    values = np.zeros(shape, descr)
    file = io.BytesIO()
    np.save(file, values)
    spec = TensorSpec(shape, DESCRS[descr])
    assert build_header(spec) + values.tobytes() == file.getvalue()
    assert read_header(MemorySource(file.getvalue())) == (spec, len(file.getvalue()) - values.nbytes)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_is_read(version: tuple[int, int]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.arange(6.0).reshape(2, 3), version=version)
    assert read_header(MemorySource(file.getvalue())).spec == TensorSpec((2, 3), DType.F64)
