"""Text ↔ token ids, from whatever a checkpoint carries.

Hugging Face and MLX directories hold tokenizer.json; a GGUF file holds a vocabulary, from which `models` makes the same
components. Its model is built from the tables themselves: writing 49 000 tokens and merges as JSON only to parse them
again takes three times as long.

Which tokens end an answer is said in many places, and all of them count:

    generation_config.json      eos_token_id, one or a list
    config.json                 eos_token_id
    tokenizer_config.json       eos_token, a text
    GGUF                        tokenizer.ggml.{eos,eot,eom}_token_id, flyweight.generation_config
    the vocabulary itself       the end of a turn by its usual names (`TURN_ENDS`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flyweight import strict_json
from flyweight.checkpoint import Checkpoint, without_collector
from flyweight.errors import FlyweightError, LimitError, MalformedError, UnsupportedError
from flyweight.limits import MAX_JSON_BYTES
from flyweight.models import tokenizer as tokenizer_files
from flyweight.models import tokenizer_json, vocabulary
from flyweight.models.record import Record
from flyweight.runtime.extra import needs_run_extra

if TYPE_CHECKING:
    import tokenizers

__all__ = ["MAX_TEXT", "TURN_ENDS", "Tokenizer"]

MAX_TEXT = 16 * 2**20
"""The longest text we encode, in characters: some times the longest context of any model."""

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>")
"""Special tokens that end an answer wherever a vocabulary has them."""

_EMBEDDINGS = ("token_embd.weight", "model.embed_tokens.weight")
_CONFIG, _GENERATION, _GENERATION_KEY = "config.json", "generation_config.json", "flyweight.generation_config"


class Tokenizer:
    """The tokenizer of one checkpoint. Every failure is a MalformedError with the code E_TOKENIZER."""

    def __init__(
        self, inner: tokenizers.Tokenizer, *, bos: int | None, eos: int | None, ends: Iterable[int], add_bos: bool, rows: int
    ) -> None:
        self._inner = inner
        self._rows = rows
        self.bos = bos
        self.add_bos = add_bos
        """Whether a text that is no rendered chat begins with BOS."""
        self.special = frozenset(index for index, token in inner.get_added_tokens_decoder().items() if token.special)
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
                return (_from_gguf if checkpoint.manifest.dialect == "gguf" else _from_files)(checkpoint)
        except FlyweightError as error:
            raise error.at(file=checkpoint.bundle.name) from None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text; `special` puts BOS in front where the model wants it.

        Special tokens written out in the text are those tokens: a rendered chat is such a text, and as its template
        writes BOS itself, it is encoded with `special=False`.
        """
        if len(text) > MAX_TEXT:
            raise LimitError(f"a text of {len(text)} characters; the limit is {MAX_TEXT}", code="E_TOKENIZER")
        with _typed("encode this text"):
            ids = self._inner.encode(text, add_special_tokens=False).ids
        if special and self.add_bos and self.bos is not None:
            ids.insert(0, self.bos)
        if ids and max(ids) >= self._rows:
            raise _bad(f"the text has the token {max(ids)}, but the embedding has {self._rows} rows")
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, special tokens written out or left away."""
        if ids and not (min(ids) >= 0 and max(ids) < 2**32):
            raise ValueError("a token id is an unsigned 32-bit number")
        with _typed("decode these ids"):
            return self._inner.decode(list(ids), skip_special_tokens=not special)

    def text(self, index: int) -> str | None:
        """A token as the vocabulary writes it; None for an id it does not have."""
        return self._inner.id_to_token(index)


def _bad(message: str) -> MalformedError:
    return MalformedError(message, code="E_TOKENIZER", hint="the tokenizer of this checkpoint is damaged")


@contextmanager
def _typed(what: str) -> Iterator[None]:
    """The library reports with plain Exception, and where a pattern backtracks without end, with a BaseException."""
    try:
        yield
    except (FlyweightError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001
        raise _bad(f"the tokenizer cannot {what}: {str(error)[:200]}") from None


def _rows(checkpoint: Checkpoint) -> int:
    """The rows of the embedding, beyond which no token may lie."""
    entries = checkpoint.manifest.entries
    for name in _EMBEDDINGS:
        if name in entries and entries[name].spec.shape:
            return entries[name].spec.shape[0]
    raise UnsupportedError(
        "there is no embedding among the tensors",
        code="E_TENSORS",
        hint="a tokenizer belongs to a language model; looked for " + ", ".join(_EMBEDDINGS),
    )


def _absent(where: str) -> UnsupportedError:
    return UnsupportedError(
        f"the checkpoint has no tokenizer ({where})",
        code="E_TOKENIZER",
        hint="put the model's tokenizer.json beside its weights",
    )


@needs_run_extra
def _from_gguf(checkpoint: Checkpoint) -> Tokenizer:
    metadata = checkpoint.manifest.metadata
    record = Record({key: typed.value for key, typed in metadata.items()}, checkpoint.bundle.name)
    rows = _rows(checkpoint)
    words = vocabulary.read_gguf(record, rows)
    if words is None:
        raise _absent("tokenizer.ggml.model is absent")
    ends = _integers(strict_json.loads(record.text(_GENERATION_KEY, "{}").encode(), file=_GENERATION_KEY))
    ends += [record.integer(key, least=0) for key in _end_keys() if key in record]
    return Tokenizer(
        _build(tokenizer_json.describe(words)),
        bos=words.special.get("bos_token"),
        eos=words.special.get("eos_token"),
        ends=[index for index in ends if index < rows],
        add_bos=words.add_bos,
        rows=rows,
    )


def _end_keys() -> tuple[str, ...]:
    return tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


def _build(table: dict[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json we made, without writing its large tables as text."""
    import tokenizers

    model, added = table["model"], table["added_tokens"]
    with _typed("be built"):
        empty = {**model, "vocab": {}, "merges": [], "unk_token": None}
        made = tokenizers.Tokenizer.from_str(strict_json.dumps({**table, "model": empty, "added_tokens": []}).decode())
        made.model = tokenizers.models.BPE(
            vocab=model["vocab"],
            merges=model["merges"],
            unk_token=model["unk_token"],
            fuse_unk=model["fuse_unk"],
            byte_fallback=model["byte_fallback"],
            ignore_merges=model["ignore_merges"],
        )
        flags = [{key: value for key, value in token.items() if key != "id"} for token in added]
        made.add_tokens([tokenizers.AddedToken(**token) for token in flags])
    if any(made.token_to_id(token["content"]) != token["id"] for token in added):
        raise _bad("an added token has another id than the vocabulary gives it")
    return made


@needs_run_extra
def _from_files(checkpoint: Checkpoint) -> Tokenizer:
    import tokenizers

    files, rows = checkpoint.manifest.files, _rows(checkpoint)
    if tokenizer_json.TOKENIZER_JSON not in files:
        raise _absent("no tokenizer.json")
    raw = checkpoint.read(files[tokenizer_json.TOKENIZER_JSON])
    if len(raw) > MAX_JSON_BYTES:
        raise LimitError(f"{len(raw)} bytes of tokenizer.json exceed the limit of {MAX_JSON_BYTES}", code="E_TOKENIZER")
    with _typed("be read from tokenizer.json"):
        inner = tokenizers.Tokenizer.from_buffer(raw)
        inner.no_truncation()
        inner.no_padding()

    def load(name: str) -> dict[str, Any]:
        given = strict_json.loads(checkpoint.read(files[name]), file=name) if name in files else {}
        return Record(given, name).unused()

    config = load(tokenizer_files.SPECIAL_TOKENS_MAP) | load(tokenizer_files.TOKENIZER_CONFIG)
    roles = {role: _role(inner.token_to_id, config.get(role)) for role in ("bos_token", "eos_token")}
    ends = [
        *_integers(load(_GENERATION)),
        *_integers(load(_CONFIG)),
        *([] if roles["eos_token"] is None else [roles["eos_token"]]),
    ]
    with _typed("process an empty text"):
        around = inner.encode("", add_special_tokens=True).ids
    bos = roles["bos_token"]
    return Tokenizer(
        inner,
        bos=bos,
        eos=roles["eos_token"],
        ends=[index for index in ends if index < rows],
        # The post-processor decides where it adds anything at all; the flag is for files without one.
        add_bos=bos is not None and (around[:1] == [bos] if around else config.get("add_bos_token") is True),
        rows=rows,
    )


def _role(find: Callable[[str], int | None], token: Any) -> int | None:
    text = token.get("content") if isinstance(token, dict) else token
    return find(text) if isinstance(text, str) else None


def _integers(config: Any) -> list[int]:
    """eos_token_id of a configuration: absent, one, or a list."""
    given = config.get("eos_token_id") if isinstance(config, dict) else None
    found = given if isinstance(given, list) else [given]
    return [index for index in found if type(index) is int and index >= 0]
