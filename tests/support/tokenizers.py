"""Tokenizers for the rows of the tiny models: byte-level and SentencePiece, as tokenizer.json has them, with changes."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["LLAMA3_SPLIT", "added", "bpe", "files", "pieces"]

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def added(index: int, content: str, special: bool = True, **flags: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": content} | plain | flags | {"special": special}


def bpe(**changes: Any) -> dict[str, Any]:
    """A byte-level tokenizer for the 20 rows of the tiny models; ids 13 to 17 have no token."""
    words = ["a", "b", "c", "Ġ", "ab", "abc", "Ġa", "1", "2", "!"]
    return {
        "version": "1.0",
        "added_tokens": [
            added(10, "<s>"),
            added(11, "</s>"),
            added(12, "<tool>", special=False, rstrip=True),
            added(18, "<|x|>"),
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": LLAMA3_SPLIT}, "behavior": "Isolated", "invert": False},
                BYTE_LEVEL,
            ],
        },
        "post_processor": {
            "type": "Sequence",
            "processors": [
                BYTE_LEVEL,
                {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [],
                    "special_tokens": {},
                },
            ],
        },
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": ["a b", "ab c", "Ġ a"],
        },
    } | changes


def pieces(**changes: Any) -> dict[str, Any]:
    """A SentencePiece tokenizer for 20 rows, as converted files hold it; ids 18 and 19 have no token."""
    words = ["<unk>", "<s>", "</s>", "<0x00>", "<0x0A>", "<0xFF>", "▁▁", "▁a", "ab", "▁ab", "▁", "a", "b", "c", "bc", "▁x▁"]
    return {
        "version": "1.0",
        "added_tokens": [
            added(0, "<unk>"),
            added(1, "<s>"),
            added(2, "</s>"),
            added(6, "▁▁", False),
            added(17, "[tool x]", False),
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": [["▁", "▁"], ["▁", "a"], ["a", "b"], ["▁", "ab"], ["▁a", "b"], ["b", "c"]],
        },
    } | changes


CONFIG = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "lstrip": False},
    "padding_side": "left",
    "tokenizer_class": "LlamaTokenizerFast",
    "chat_template": "{{ messages }}",
}


def files(tokenizer: dict[str, Any], **config: Any) -> dict[str, bytes]:
    return {
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "tokenizer_config.json": json.dumps(CONFIG | config).encode(),
    }
