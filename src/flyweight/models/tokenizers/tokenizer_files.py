"""The tokenizer files of an HF directory ↔ a `Vocabulary`, the chat templates, and other settings.

tokenizer.json            vocabulary, merges, components          (`tokenizer_json`)
tokenizer_config.json     roles of tokens, limits; older files keep the chat template here
special_tokens_map.json   the roles again, for older readers
chat_template.jinja       the chat template
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flyweight.foundation import strict_json
from flyweight.foundation.cursor import utf8
from flyweight.models.checked_record import Record
from flyweight.models.dialects.contract import Templates
from flyweight.models.tokenizers import tokenizer_json
from flyweight.models.tokenizers.tokenizer_json import TOKENIZER_JSON
from flyweight.models.tokenizers.vocabulary import SPECIAL_TOKENS, Vocabulary

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
CHAT_TEMPLATE_JSON = "chat_template.json"
READ_FILES = (TOKENIZER_JSON, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, CHAT_TEMPLATE, CHAT_TEMPLATE_JSON)
REPEATING_FILES = ("tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json")
"""Files that say again what tokenizer.json says."""

# Settings of tokenizer_config.json that are made anew: they repeat tokenizer.json or name a class or file.
_MADE = (
    *SPECIAL_TOKENS, "chat_template", "tokenizer_class", "added_tokens_decoder", "add_bos_token", "add_eos_token",
    "model_max_length", "auto_map", "tokenizer_file", "name_or_path", "vocab_file", "merges_file", "backend",
)  # fmt: skip

Present = Mapping[str, Callable[[], bytes]]
"""The files of a directory by name, each read when it is called."""


def load(present: Present, name: str) -> Record:
    """A file's settings; none when it is absent."""
    return Record(strict_json.loads(present[name](), file=name) if name in present else {}, name)


def tokenizer_settings(present: Present) -> Record:
    """tokenizer_config.json, with the roles that only special_tokens_map.json gives."""
    config, roles = load(present, TOKENIZER_CONFIG), load(present, SPECIAL_TOKENS_MAP)
    return config.extended({role: roles.get(role) for role in SPECIAL_TOKENS if role in roles and role not in config})


def from_files(present: Present, vocab: int) -> tuple[Vocabulary | None, Templates, dict[str, Any]]:
    """The vocabulary, the chat templates, and the settings that neither of them says."""
    config = tokenizer_settings(present)
    templates = read_templates(present, config)
    if TOKENIZER_JSON not in present:
        return None, templates, {}
    words = tokenizer_json.read(load(present, TOKENIZER_JSON), config, vocab)
    for key in _MADE:
        config.get(key)
    return words, templates, config.unused()


def to_files(words: Vocabulary, templates: Templates, settings: Mapping[str, Any], context: int) -> dict[str, bytes]:
    """The tokenizer files of an HF directory."""
    tokenizer = tokenizer_json.write(words)
    texts = {index: text for text, index in tokenizer["model"]["vocab"].items()}
    roles = {role: texts[index] for role, index in words.special.items() if index in texts}
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
    config |= {key: value for key, value in settings.items() if key not in _MADE}
    files = {TOKENIZER_JSON: strict_json.dumps(tokenizer)}
    if set(templates) == {"default"}:
        files[CHAT_TEMPLATE] = templates["default"].encode()
    elif templates:
        config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    files[TOKENIZER_CONFIG] = strict_json.dumps(config, indent=2)
    files[SPECIAL_TOKENS_MAP] = strict_json.dumps(roles, indent=2)
    return files


def read_templates(present: Present, config: Record) -> Templates:
    """chat_template.jinja, chat_template.json, or the older key, which may also list several by name."""
    if CHAT_TEMPLATE in present:
        return {"default": utf8(present[CHAT_TEMPLATE](), "the chat template", file=CHAT_TEMPLATE)}
    if CHAT_TEMPLATE_JSON in present:
        return {"default": load(present, CHAT_TEMPLATE_JSON).text("chat_template")}
    given = config.get("chat_template")
    if given is None or isinstance(given, str):
        return {} if given is None else {"default": given}
    named = [Record(item, config.file, what="a chat template") for item in config.items("chat_template", dict)]
    return {item.text("name"): item.text("template") for item in named}
