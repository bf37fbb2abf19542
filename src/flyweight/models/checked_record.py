"""Checked reading of a table of settings that came from a file: config.json, tokenizer.json, or GGUF metadata.

Every number is bounded, every type is checked, and the error names the key. `unused` tells what nobody asked
for, so that nothing is lost without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from flyweight.foundation.errors import MalformedError
from flyweight.foundation.manifest import Numbers

_MAX_INTEGER = 2**31 - 1
# Far from where f32 overflows or rounds to zero, so that products of two of them do not either.
_MIN_NUMBER, _MAX_NUMBER = 1e-18, 1e18


def shown(value: object) -> str:
    """A value in a message; of an integer that Python would not even print, its size."""
    if isinstance(value, int) and abs(value) > 10**80:
        return f"an integer of {value.bit_length()} bits"
    return repr(value if len(str(value)) <= 80 else str(value)[:80])


class Record:
    """A mapping from keys to plain values, and the name of the file to blame."""

    def __init__(self, values: object, file: str, *, what: str = "the top level") -> None:
        if not isinstance(values, Mapping):
            raise MalformedError(f"{what} must be an object", code="E_CONFIG", file=file)
        self._values = values
        self.file = file
        self._used: set[str] = set()

    def fail(self, key: str, wanted: str) -> NoReturn:
        found = self._values.get(key)
        raise MalformedError(
            f"'{key}' must be {wanted}, not {shown(found)}" if key in self._values else f"'{key}' is missing",
            code="E_CONFIG",
            file=self.file,
        )

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def says(self, key: str) -> bool:
        """Whether the key is there at all, be it null."""
        return key in self._values

    def extended(self, more: Mapping[str, Any]) -> Record:
        """The same settings and more; these win."""
        made = Record({**self._values, **more}, self.file)
        made._used = self._used
        return made

    def get(self, key: str) -> Any:
        """The value as it is; None when absent or null."""
        self._used.add(key)
        return self._values.get(key)

    def everything(self) -> dict[str, Any]:
        return dict(self._values)

    def unused(self) -> dict[str, Any]:
        return {key: value for key, value in self._values.items() if key not in self._used}

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        def fits(value: Any) -> bool:
            return type(value) is int and least <= value <= _MAX_INTEGER

        return int(self._value(key, default, fits, f"an integer of {least} to 2^31 − 1"))

    def number(self, key: str, default: float | None = None) -> float:
        def fits(value: Any) -> bool:  # also for integers no float holds
            return type(value) in (int, float) and _MIN_NUMBER <= value <= _MAX_NUMBER

        return float(self._value(key, default, fits, f"a number of {_MIN_NUMBER} to {_MAX_NUMBER}"))

    def flag(self, key: str, default: bool | None = None) -> bool:
        return bool(self._value(key, default, lambda value: type(value) is bool, "true or false"))

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._value(key, default, lambda value: type(value) is str, "text"))

    def _value(self, key: str, default: Any, fits: Callable[[Any], bool], wanted: str) -> Any:
        value = self.get(key)
        if value is None and default is not None:
            return default
        return value if fits(value) else self.fail(key, wanted)

    def items(self, key: str, of: type | tuple[type, ...]) -> list[Any]:
        """A list whose items all have a type of `of` (exactly: true is no integer)."""
        value = self.get(key)
        value = value.tolist() if isinstance(value, Numbers) else value
        kinds = of if isinstance(of, tuple) else (of,)
        if not isinstance(value, list | tuple) or not set(map(type, value)) <= set(kinds):
            self.fail(key, f"a list of {' or '.join(kind.__name__ for kind in kinds)}")
        return value if isinstance(value, list) else list(value)

    def table(self, key: str) -> Record | None:
        """A nested object; None when absent or null."""
        value = self.get(key)
        return None if value is None else Record(value, self.file, what=f"'{key}'")
