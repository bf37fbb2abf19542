"""Pre-tokenizers: names in GGUF ↔ components of tokenizer.json.

GGUF has only a name (`tokenizer.ggml.pre`) and programs know the rest; tokenizer.json spells it out. One table
serves both ways: a name gives the components, in its first row, and components that cut alike give the name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flyweight.foundation.errors import UnsupportedError

Component = dict[str, Any] | None


class PreTokenizer(NamedTuple):
    """One way to cut text, for vocabularies over bytes."""

    name: str
    pre_tokenizer: Component
    normalizer: Component = None
    ignore_merges: bool = False
    """Whether a whole word that is a token is taken as it is, without merging."""
    add_bos: bool = False
    """What programs assume when GGUF does not say whether to begin with BOS."""
    aliases: tuple[str, ...] = ()


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, _byte_level(use_regex=False)]}


def _word_pattern(digits: str) -> str:
    """Contractions, words with one leading sign, runs of digits, signs with line ends, line ends, spaces."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _case_pattern(digits: str, contraction: str = "") -> str:
    """Like `_word_pattern`, but a word also ends where lower case turns into upper."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{lead}{_UPPER}*{_LOWER}+{contraction}|{lead}{_UPPER}+{_LOWER}*{contraction}|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


BYTE_LEVEL_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
"""As programs that read GGUF spell it: what ByteLevel cuts, for a last white space that nothing takes stands alone anyway."""
_DIGITS = {"type": "Digits", "individual_digits": True}
_THREE_DIGITS = _split(_word_pattern(r"\p{N}{1,3}"))

PRE_TOKENIZERS = (
    PreTokenizer("gpt-2", _byte_level(use_regex=True), aliases=("default", "phi-2")),
    PreTokenizer("gpt-2", _split(_GPT_2)),
    PreTokenizer("smollm", {"type": "Sequence", "pretokenizers": [_DIGITS, _byte_level(use_regex=True)]}),
    PreTokenizer("llama-bpe", _THREE_DIGITS, ignore_merges=True, add_bos=True, aliases=("llama3", "llama-v3")),
    PreTokenizer("dbrx", _THREE_DIGITS),
    PreTokenizer("qwen2", _split(_word_pattern(r"\p{N}")), normalizer={"type": "NFC"}, aliases=("deepseek-r1-qwen",)),
    PreTokenizer("tekken", _split(_case_pattern(r"\p{N}")), ignore_merges=True, add_bos=True),
    PreTokenizer("gpt-4o", _split(_case_pattern(r"\p{N}{1,3}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"))),
)


class SpaceForm(NamedTuple):
    """How a vocabulary over pieces (SentencePiece) turns spaces into ▁ and where it puts one in front."""

    name: str
    prefix: bool
    normalizer: Component
    pre_tokenizer: Component


_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _REPLACE]}
_SPLIT_ON_SPACE = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def _metaspace(scheme: str) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


# The first form with the wanted prefix is the one GGUF means; the others are remembered by name.
SPACE_FORMS = (
    SpaceForm("prepend", True, _PREPEND, None),
    SpaceForm("replace", False, _REPLACE, None),
    SpaceForm("replace-split", False, _REPLACE, _SPLIT_ON_SPACE),
    SpaceForm("metaspace-first", True, None, _metaspace("first")),
    SpaceForm("metaspace-always", True, None, _metaspace("always")),
    SpaceForm("metaspace-never", False, None, _metaspace("never")),
)

# Settings of a component that change no token, only where its text is said to lie.
_IRRELEVANT = {"trim_offsets"}
_DEFAULTS = {"ByteLevel": {"use_regex": True}, "Split": {"invert": False}, "Metaspace": {"split": True}}


def _canonical(component: Any) -> Any:
    """A component without what does not matter, defaults spelled out, sequences of one unwrapped."""
    if isinstance(component, list):
        return [_canonical(part) for part in component]
    if not isinstance(component, dict):
        return component
    kind = component.get("type")
    inner = component.get("pretokenizers") if kind == "Sequence" else None
    if isinstance(inner, list) and len(inner) == 1:
        return _canonical(inner[0])
    spelled = _DEFAULTS.get(kind, {}) if isinstance(kind, str) else {}
    return {key: _canonical(value) for key, value in (spelled | component).items() if key not in _IRRELEVANT}


def named(name: str) -> PreTokenizer:
    """The pre-tokenizer GGUF calls `name`."""
    for row in PRE_TOKENIZERS:
        if name == row.name or name in row.aliases:
            return row
    raise UnsupportedError(
        f"the pre-tokenizer '{name}' has no known form in tokenizer.json",
        code="E_TOKENIZER",
        hint=f"known: {', '.join(row.name for row in PRE_TOKENIZERS)}",
    )


def recognise(normalizer: Any, pre_tokenizer: Any, *, ignore_merges: bool) -> PreTokenizer | None:
    """The row of the table that cuts text as these components do."""
    wanted = (_canonical(normalizer), _canonical(pre_tokenizer), ignore_merges)
    for row in PRE_TOKENIZERS:
        if (_canonical(row.normalizer), _canonical(row.pre_tokenizer), row.ignore_merges) == wanted:
            return row
    return None


def space_form(normalizer: Any, pre_tokenizer: Any) -> SpaceForm | None:
    """The form of ▁ that these components make."""
    wanted = (_canonical(normalizer), _canonical(pre_tokenizer))
    for row in SPACE_FORMS:
        if (_canonical(row.normalizer), _canonical(row.pre_tokenizer)) == wanted:
            return row
    return None
