"""A stream of token ids → text, without splitting characters.

A token is not a text: a character may take several (bytes of UTF-8), a leading space depends on what came before
(SentencePiece). So each token is decoded together with the piece before it, and what is new is the difference:

    ids   shown before | pending
                         ^ seen
    piece = decode(ids)[len(decode(ids[:seen])):]

Text that ends in U+FFFD may be half a character and waits for the next token, for at most `_LONGEST` of them. Text that
may be the beginning of a stop string waits too. All pieces together are `decode` of all ids, up to the stop string.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyweight.runtime.text.tokenizer import Tokenizer

_LONGEST = 8  # tokens: two characters of four bytes each; whatever is still broken then stays broken
_CONTEXT = 8  # tokens of the prompt that decide how the answer begins


class TextStream:
    """Feed ids, show the pieces, `flush` at the end.

    With the ids of the `prompt`, pieces continue its text (a SentencePiece answer then begins with its space);
    without, they begin a text of their own.
    """

    def __init__(self, tokenizer: Tokenizer, *, prompt: Sequence[int] = (), stops: Sequence[str] = ()) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._ids = [index for index in prompt if index not in tokenizer.special][-_CONTEXT:]
        self._seen = len(self._ids)
        self._held = ""
        self.stopped = False
        """Whether a stop string was met; nothing comes after it."""

    def feed(self, index: int) -> str:
        """The text that is certain after one more token; often empty."""
        if self.stopped or index in self._tokenizer.special or self._tokenizer.text(index) is None:
            return ""
        self._ids.append(index)
        new = self._new_text()
        if not new or (new.endswith("\ufffd") and len(self._ids) - self._seen < _LONGEST):
            return ""
        del self._ids[: self._seen]  # the piece just shown is the context of the next
        self._seen = len(self._ids)
        return self._up_to_stop(new, final=False)

    def flush(self) -> str:
        """What was held back; the stream is over."""
        if self.stopped:
            return ""
        piece = self._up_to_stop(self._new_text(), final=True)
        self.stopped = True
        return piece

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._ids[: self._seen])
        return self._tokenizer.decode(self._ids)[len(before) :]

    def _up_to_stop(self, new: str, *, final: bool) -> str:
        text, self._held = self._held + new, ""
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            return text[: min(found)]
        held = 0 if final else max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text may begin a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((count for count in range(longest, 0, -1) if stop.startswith(text[-count:])), 0)
