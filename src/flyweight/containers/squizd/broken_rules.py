"""The report of broken rules, collected while a file is read, so that one pass finds all.

`parse` raises the first error of a report; `audit` lists all of it.
"""

from __future__ import annotations

from flyweight.containers.container import Finding
from flyweight.foundation.errors import FlyweightError, MalformedError

_MOST = 1000
"""Findings a report holds: nobody reads more, and a short file can break millions of rules."""


class Report(list[Finding]):
    @property
    def full(self) -> bool:
        """Whether looking further is idle."""
        return len(self) >= _MOST

    def error(self, code: str, message: str, offset: int | None = None, tensor: str | None = None) -> None:
        if not self.full or not self.broken:
            self.append(Finding("error", code, message, tensor, offset))

    def warning(self, code: str, message: str, offset: int | None = None, tensor: str | None = None) -> None:
        if not self.full:
            self.append(Finding("warning", code, message, tensor, offset))

    def require(self, holds: bool, code: str, message: str, offset: int | None = None, tensor: str | None = None) -> bool:
        """Whether a rule holds; an error is noted if it does not."""
        if not holds:
            self.error(code, message, offset, tensor)
        return holds

    def caught(self, error: FlyweightError, tensor: str | None = None) -> None:
        self.error(error.code, error.message, error.offset, error.tensor or tensor)

    @property
    def broken(self) -> bool:
        return any(finding.level == "error" for finding in self)

    def raise_first(self, file: str) -> None:
        """MalformedError for the first broken rule, if there is one."""
        for finding in self:
            if finding.level == "error":
                raise MalformedError(
                    finding.message, code=finding.code, file=file, tensor=finding.tensor, offset=finding.offset
                )
