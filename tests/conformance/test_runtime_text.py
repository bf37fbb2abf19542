"""Against transformers and tokenizers: the same ids for the same text, the same text for the same conversation.

The real model is named by FLYWEIGHT_DEMO_MODEL; a model over pieces (Gemma as GGUF) by FLYWEIGHT_PIECES_MODEL, if there is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from jinja2.exceptions import TemplateError

import flyweight
from flyweight import models
from flyweight.foundation.errors import MalformedError
from flyweight.runtime.text.chat_template import Renderer, template_for
from flyweight.runtime.text.token_text import TextStream
from flyweight.runtime.text.tokenizer import Tokenizer
from support.chat_templates import CONVERSATIONS, TEMPLATES, TOOLS

MODELS = [path for key in ("FLYWEIGHT_DEMO_MODEL", "FLYWEIGHT_PIECES_MODEL") if (path := os.environ.get(key))]

TEXTS = (
    "",
    " ",
    "   ",
    "\n\n\n",
    " \n \t\r\n  x",
    "Hello world! It's 2024, isn't it?",
    "1234567890 12 345 6.78e-9 ١٢٣ ½ Ⅷ",
    "def f(x):\n    return x ** 2  # comment\n\n\n\tif x:\n        pass",
    "你好世界，こんにちは 안녕하세요 ภาษาไทย हिन्दी עברית العربية",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷 e\u0301 \u200b\u200d\ufeff",
    "naïve café – Ünïcödé ﬁ ǅ İ ß",
    "  leading and trailing  ",
    "camelCaseWords AND UPPER mixedUP I'LL they'Ve",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<bos><start_of_turn>user\nhi<end_of_turn>\n<eos><unused7>",
    "<|im_start|ab<|im_end|><|im_end|> <|im_end|>",
    "a" * 200 + " " * 50 + "!" * 33,
    "\x00\x01\x7f\x85\u2028\ufffd\U0010ffff",
    "▁Ġ▁ Ċ <0x41>",
)


@pytest.fixture(scope="module", params=MODELS, ids=lambda path: Path(path).stem)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Tokenizer]:
    """What transformers makes of the files we translate a model's tokenizer to, and our own tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    with flyweight.open(request.param) as checkpoint:
        files = models.translate(checkpoint.manifest, "hf", checkpoint.read).files
        for name, content in files.items():
            (folder / name).write_bytes(checkpoint.read(content))
        return transformers.AutoTokenizer.from_pretrained(folder), Tokenizer.of(checkpoint)


def test_ids_are_those_of_transformers(both: tuple[Any, Tokenizer]) -> None:
    theirs, ours = both
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, text
        assert ours.encode(text, special=False) == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
        assert ours.decode(ids, special=True) == theirs.decode(ids), text
    assert (ours.bos, ours.eos) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.special >= set(theirs.all_special_ids)


def test_streams_show_what_transformers_decodes(both: tuple[Any, Tokenizer]) -> None:
    theirs, ours = both
    for text in TEXTS:
        ids, stream = ours.encode(text), TextStream(ours)
        shown = [stream.feed(index) for index in ids]
        assert "".join([*shown, stream.flush()]) == theirs.decode(ids, skip_special_tokens=True), text


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    with Renderer() as made:
        yield made


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("prompt", [True, False])
def test_chats_render_as_in_transformers(
    both: tuple[Any, Tokenizer], renderer: Renderer, name: str, conversation: str, tools: Any, prompt: bool
) -> None:
    theirs, _ = both
    messages = CONVERSATIONS[conversation]
    roles = {"bos_token": theirs.bos_token, "eos_token": theirs.eos_token}
    arguments: dict[str, Any] = {"add_generation_prompt": prompt, "tools": tools}
    try:
        expected = theirs.apply_chat_template(messages, chat_template=TEMPLATES[name], tokenize=False, **arguments)
    except TemplateError:
        with pytest.raises(MalformedError):
            renderer(TEMPLATES[name], messages, **arguments, **roles)
        return
    assert renderer(TEMPLATES[name], messages, **arguments, **roles) == expected


def test_the_demo_models_own_template(renderer: Renderer, both: tuple[Any, Tokenizer]) -> None:
    theirs, ours = both
    if not theirs.chat_template:
        pytest.skip("the model has no template")
    with flyweight.open(MODELS[0]) as checkpoint:
        template = template_for(checkpoint)
    roles = {"bos_token": theirs.bos_token, "eos_token": theirs.eos_token}
    for messages in CONVERSATIONS.values():
        text = renderer(template, messages, **roles)
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ours.encode(text, special=False) == expected
