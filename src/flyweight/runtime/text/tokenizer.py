"""Text ↔ token ids, with the tokenizer of a checkpoint.

Hugging Face and MLX directories hold tokenizer.json; a GGUF file holds a vocabulary, from which `models` makes the same table.
Either is checked and built by `tokenizer_build`.

A text is measured before it is encoded: at most `MAX_TEXT` characters, and for a prompt no more than its context can hold.

Which tokens end an answer is said in many places, and all of them count:

    generation_config.json      eos_token_id, one or a list
    config.json                 eos_token_id
    tokenizer_config.json       eos_token, a text
    GGUF                        tokenizer.ggml.{eos,eot,eom}_token_id, flyweight.generation_config
    the vocabulary itself       the end of a turn by its usual names (`TURN_ENDS`)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from flyweight.checkpoint import Checkpoint, without_collector
from flyweight.foundation.errors import FlyweightError, LimitError, MalformedError, ResourceError, UnsupportedError
from flyweight.models import dialect_of
from flyweight.models.tokenizers.components import TextCost
from flyweight.runtime.extra import PACKAGES, missing_extra
from flyweight.runtime.text.tokenizer_build import bad_tokenizer, build, tokens_before, typed_errors

if TYPE_CHECKING:
    import tokenizers

MAX_TEXT = 16 * 2**20
"""The longest text we encode, in characters: some times the longest context of any model."""

_MAX_WORK = 256 * 2**20  # characters a text may be turned into on the way
_PROMPT_BYTES = 32  # of text for each token of a context: real text has four
_SHORT_PROMPT = 64 * 2**10  # bytes that any context may be asked to hold: the answer then says how many tokens they are
_PROMPT_WORK = 2**20
_MAX_SQUARES = 2**26

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>")
"""Special tokens that end an answer wherever a vocabulary has them."""


class Tokenizer:
    """The tokenizer of one checkpoint. Every failure is a MalformedError with the code E_TOKENIZER."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        cost: TextCost,
        *,
        bos: int | None,
        eos: int | None,
        ends: Iterable[int],
        add_bos: bool,
        rows: int,
    ) -> None:
        self._inner = inner
        self._cost = cost
        self._rows = rows
        self.bos = bos
        self.add_bos = add_bos
        """Whether a text that is no rendered chat begins with BOS."""
        self._added = inner.get_added_tokens_decoder()
        self.special = frozenset(index for index, token in self._added.items() if token.special)
        """Tokens that are no text."""
        self.eos = eos
        """The end of a text, as templates write it."""
        self.stops = frozenset(ends) | {
            # An ordinary token that reads so ends nothing.
            index
            for index in map(inner.token_to_id, TURN_ENDS)
            if index is not None and index in self.special
        }
        """Every token that ends an answer."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Tokenizer:
        """The tokenizer a checkpoint carries; UnsupportedError when it carries none."""
        try:
            with without_collector():
                return _tokenizer_of(checkpoint)
        except ModuleNotFoundError as error:
            if error.name not in PACKAGES:  # another failing import is a bug
                raise
            raise missing_extra(error.name).at(file=checkpoint.bundle.name) from None
        except FlyweightError as error:
            raise error.at(file=checkpoint.bundle.name) from None

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """How special tokens are written."""
        return tuple(token.content for token in self._added.values() if token.special)

    def require_room(self, texts: Iterable[str], room: int) -> int:
        """How many bytes of UTF-8 are encoded for a context of `room` tokens; ResourceError when texts have more."""
        length = max(_PROMPT_BYTES * room, _SHORT_PROMPT)
        most = min(length, max(length, _PROMPT_WORK) // self._cost.growth)
        size = sum(map(_size, texts))
        if size > most:
            raise ResourceError(
                f"the prompt has {size} bytes; with a context of {room} tokens the limit is {most}",
                code="E_CONTEXT",
                hint="shorten the prompt, or raise --context as far as the model allows",
            )
        return most

    def encode(
        self, text: str, *, special: bool = True, room: int | None = None, stands_for: Mapping[str, str] | None = None
    ) -> list[int]:
        """The ids of a text; `special` puts BOS in front where the model wants it.

        Special tokens written out in the text are those tokens: a rendered chat is such a text, and as its template
        writes BOS itself, it is encoded with `special=False`. `stands_for` are characters that stand for others, so that
        what they begin is read as text (see `literal`). ResourceError when the text is too long for `room` tokens.
        """
        self._measure(text, room)
        with typed_errors("encode this text"):
            inner = self._inner if stands_for is None else self._reading(stands_for)
            ids = inner.encode(text, add_special_tokens=False).ids
        if special and self.add_bos and self.bos is not None:
            ids.insert(0, self.bos)
        if ids and max(ids) >= self._rows:
            raise bad_tokenizer(f"the text has the token {max(ids)}, but the embedding has {self._rows} rows")
        return ids

    def _measure(self, text: str, room: int | None) -> None:
        """Refuse a text before it costs anything."""
        if len(text) > MAX_TEXT:
            raise LimitError(f"the text has {len(text)} characters; the limit is {MAX_TEXT}", code="E_TOKENIZER")
        size = _size(text)
        if room is not None:
            self.require_room([text], room)
        if size * self._cost.growth > _MAX_WORK:
            raise LimitError(
                f"the text has {size} bytes, and this tokenizer can turn each into {self._cost.growth} characters",
                code="E_TOKENIZER",
                hint=f"use at most {_MAX_WORK // self._cost.growth} bytes",
            )
        if self._cost.squares and sum(len(run) ** 2 for run in re.findall(r"\s{2,}", text)) > _MAX_SQUARES:
            raise LimitError(
                "the text has runs of white space too long for this tokenizer", code="E_TOKENIZER", hint="shorten them"
            )

    def reads_special(self, texts: Iterable[str]) -> bool:
        """Whether it finds special tokens in texts where none is written as it is, as one that ignores case may."""
        if self._inner.normalizer is None or not any(token.special and token.normalized for token in self._added.values()):
            return False
        return any(self.special.intersection(self.encode(text, special=False)) for text in texts)

    def _reading(self, stands_for: Mapping[str, str]) -> tokenizers.Tokenizer:
        """The same tokenizer, with each of these characters read as the one it stands for, once added tokens are found."""
        from tokenizers import AddedToken, Tokenizer, normalizers

        made = Tokenizer(self._inner.model)
        steps = [normalizers.Replace(sign, character) for sign, character in stands_for.items()]
        own = self._inner.normalizer
        made.normalizer = normalizers.Sequence([*steps, *([] if own is None else [own])])
        if self._inner.pre_tokenizer is not None:
            made.pre_tokenizer = self._inner.pre_tokenizer
        added = sorted(self._added.items())
        # A special token is found in the text as it is, where a character stands for its first.
        made.add_tokens(
            [
                AddedToken(
                    token.content,
                    single_word=token.single_word,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=token.normalized and not token.special,
                    special=token.special,
                )
                for _, token in added
            ]
        )
        if any(made.token_to_id(token.content) != index for index, token in added):
            raise bad_tokenizer("an added token has another id than in the vocabulary")
        return made

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, special tokens written out or left away."""
        if ids and not (min(ids) >= 0 and max(ids) < 2**32):
            raise ValueError("a token id must be an unsigned 32-bit integer")
        with typed_errors("decode these ids"):
            return self._inner.decode(list(ids), skip_special_tokens=not special)

    def text(self, index: int) -> str | None:
        """A token as the vocabulary writes it; None for an id it does not have."""
        return self._inner.id_to_token(index)


def _size(text: str) -> int:
    """Bytes of UTF-8."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise MalformedError(f"the text has a lone surrogate at character {error.start}", code="E_TEXT") from None


def _tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    manifest = checkpoint.manifest
    dialect = dialect_of(manifest)
    embedding = manifest.entries.get(dialect.embedding)
    if embedding is None or not embedding.spec.shape:
        raise UnsupportedError(
            "the model has no embedding",
            code="E_TENSORS",
            hint=f"only language models have a tokenizer; expected the tensor {dialect.embedding}",
        )
    rows = embedding.spec.shape[0]
    described = dialect.read_tokenizer(manifest, checkpoint.read, rows)
    if described is None:
        raise UnsupportedError(
            "the model has no tokenizer", code="E_TOKENIZER", hint="put the model's tokenizer.json beside its weights"
        )
    try:
        inner, cost = build(described.table)
        around = tokens_before(described.table.get("post_processor"))
    except MalformedError as error:
        error.code = "E_TOKENIZER"
        raise
    bos, eos = (inner.token_to_id(token) if isinstance(token, str) else token for token in (described.bos, described.eos))
    return Tokenizer(
        inner,
        cost,
        bos=bos,
        eos=eos,
        ends=[index for index in (*described.ends, eos) if type(index) is int and 0 <= index < rows],
        # The post-processor decides where it adds anything at all; the flag is for files without one.
        add_bos=bos is not None and (around[:1] == [bos] if around else described.add_bos),
        rows=rows,
    )
