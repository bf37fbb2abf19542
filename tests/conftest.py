"""What holds for all tests."""

import os
import signal
import tempfile
from collections.abc import Generator
from importlib.util import find_spec

import pytest

from flyweight.foundation.errors import UnsupportedError

# A shell starts background jobs deaf to Ctrl-C, and what they start inherits it: the tests of interruption would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing of a test ends up in the home of whoever runs it.
_HOME = tempfile.TemporaryDirectory(prefix="flyweight-home-")
os.environ |= {"XDG_CACHE_HOME": f"{_HOME.name}/cache", "XDG_STATE_HOME": f"{_HOME.name}/state"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """What has to encode textures is skipped, and says so, where the package for it is not installed."""
    try:
        return (yield)
    except UnsupportedError as error:
        if error.code == "E_EXTRA" and find_spec("astc_encoder") is None:
            pytest.skip(str(error))
        raise
