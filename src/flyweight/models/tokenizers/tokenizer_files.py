"""The tokenizer files of an HF directory ↔ a `Vocabulary` and the chat templates.

tokenizer.json            vocabulary, merges, components          (`tokenizer_json`)
tokenizer_config.json     roles of tokens, limits; older files keep the chat template here
special_tokens_map.json   the roles again, for older readers
chat_template.jinja       the chat template
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from flyweight import strict_json
from flyweight.cursor import utf8
from flyweight.errors import UnsupportedError
from flyweight.manifest import Typed
from flyweight.models import tokenizer_json, vocabulary
from flyweight.models.record import Record
from flyweight.models.tokenizer_json import TOKENIZER_JSON
from flyweight.models.vocabulary import SPECIAL_TOKENS, Vocabulary

__all__ = [
    "CHAT_TEMPLATE",
    "READ_FILES",
    "SPECIAL_TOKENS_MAP",
    "TOKENIZER_CONFIG",
    "Templates",
    "from_files",
    "hf_templates",
    "read_templates",
    "template_metadata",
    "to_files",
]

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
CHAT_TEMPLATE_JSON = "chat_template.json"
READ_FILES = (TOKENIZER_JSON, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, CHAT_TEMPLATE, CHAT_TEMPLATE_JSON)

_TEMPLATE_KEY = "tokenizer.chat_template"
_TEMPLATE_NAME = re.compile("[A-Za-z0-9_]{1,64}")
_OWN_KEY = "flyweight.tokenizer_config"

# Settings of tokenizer_config.json that are made anew: they repeat tokenizer.json or name a class or file.
_MADE = (
    *SPECIAL_TOKENS, "chat_template", "tokenizer_class", "added_tokens_decoder", "add_bos_token", "add_eos_token",
    "model_max_length", "auto_map", "tokenizer_file", "name_or_path", "vocab_file", "merges_file", "backend",
)  # fmt: skip

Templates = dict[str, str]
"""Chat templates by name; the one used unless asked otherwise is named "default"."""


def to_files(words: Vocabulary, templates: Templates, metadata: Record, context: int) -> dict[str, bytes]:
    """The tokenizer files of an HF directory."""
    tokenizer = tokenizer_json.write(words)
    texts = {index: text for text, index in tokenizer["model"]["vocab"].items()}
    roles = {role: texts[index] for role, index in words.special.items() if index in texts}
    kept = strict_json.loads(metadata.text(_OWN_KEY, "{}").encode(), file=_OWN_KEY)
    config: dict[str, Any] = {
        # The class that takes tokenizer.json as it is; the others rebuild parts of it by rules of their own.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "add_bos_token": words.add_bos,
        "add_eos_token": words.add_eos,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    config |= {key: value for key, value in Record(kept, _OWN_KEY).unused().items() if key not in _MADE}
    files = {TOKENIZER_JSON: strict_json.dumps(tokenizer)}
    if set(templates) == {"default"}:
        files[CHAT_TEMPLATE] = templates["default"].encode()
    elif templates:
        config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    files[TOKENIZER_CONFIG] = strict_json.dumps(config, indent=2)
    files[SPECIAL_TOKENS_MAP] = strict_json.dumps(roles, indent=2)
    return files


def read_templates(metadata: Record, names: list[str]) -> Templates:
    """The chat templates of a GGUF file; `names` are all its keys."""
    metadata.get("tokenizer.chat_templates")  # the list of names repeats the keys
    templates = {}
    for key in names:
        if key == _TEMPLATE_KEY:
            templates["default"] = metadata.text(key)
        elif key.startswith(_TEMPLATE_KEY + "."):
            templates[key.removeprefix(_TEMPLATE_KEY + ".")] = metadata.text(key)
    return templates


def template_metadata(templates: Templates) -> dict[str, Typed]:
    """Chat templates as GGUF metadata."""
    made: dict[str, Typed] = {}
    for name, text in templates.items():
        if not _TEMPLATE_NAME.fullmatch(name):
            raise UnsupportedError(
                f"a chat template named '{name}' has no key in GGUF", code="E_TOKENIZER", file=TOKENIZER_CONFIG
            )
        made[_TEMPLATE_KEY if name == "default" else f"{_TEMPLATE_KEY}.{name}"] = Typed("str", text)
    others = sorted(set(templates) - {"default"})
    return made | ({"tokenizer.chat_templates": Typed("[str]", others)} if others else {})


def from_files(
    present: Mapping[str, Callable[[], bytes]], vocab: int
) -> tuple[Vocabulary | None, dict[str, Typed], tuple[str, ...]]:
    """The tokenizer of an HF directory: its vocabulary, its metadata in GGUF, and notes."""

    def load(name: str) -> Record:
        return Record(strict_json.loads(present[name](), file=name) if name in present else {}, name)

    config, roles = load(TOKENIZER_CONFIG), load(SPECIAL_TOKENS_MAP)
    config = config.extended({role: roles.get(role) for role in SPECIAL_TOKENS if role in roles and role not in config})
    made = template_metadata(hf_templates(config, present))
    if TOKENIZER_JSON not in present:
        note = f"no {TOKENIZER_JSON}: the GGUF file has no tokenizer, and programs need one beside it"
        return None, made | vocabulary.write_gguf(None), (note,)
    words = tokenizer_json.read(load(TOKENIZER_JSON), config, vocab)
    for key in _MADE:
        config.get(key)
    rest = config.unused()
    if rest:
        made[_OWN_KEY] = Typed("str", strict_json.dumps(rest).decode())
    return words, vocabulary.write_gguf(words) | made, ()


def hf_templates(config: Record, present: Mapping[str, Callable[[], bytes]]) -> Templates:
    """chat_template.jinja, chat_template.json, or the older key, which may also list several by name."""
    if CHAT_TEMPLATE in present:
        return {"default": utf8(present[CHAT_TEMPLATE](), "the chat template", file=CHAT_TEMPLATE)}
    if CHAT_TEMPLATE_JSON in present:
        table = Record(strict_json.loads(present[CHAT_TEMPLATE_JSON](), file=CHAT_TEMPLATE_JSON), CHAT_TEMPLATE_JSON)
        return {"default": table.text("chat_template")}
    given = config.get("chat_template")
    if given is None or isinstance(given, str):
        return {} if given is None else {"default": given}
    named = [Record(item, config.file, what="a chat template") for item in config.items("chat_template", dict)]
    return {item.text("name"): item.text("template") for item in named}
