"""Chat templates: where they come from, what they render to, and how those that misbehave end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from flyweight.checkpoint import Checkpoint
from flyweight.foundation.errors import LimitError, MalformedError, UnsupportedError
from flyweight.foundation.manifest import Manifest, Typed
from flyweight.runtime.text import chat_template
from flyweight.runtime.text.chat_template import Renderer, template_for, templates_of
from flyweight.sources import MemoryBundle
from support.chat_templates import CHATML, GEMMA, LLAMA3, MISTRAL, PHI3

LLAMA3_TURNS = (("system", "Today: 26 Jul 2024\n<|eot_id|>"), ("user", "Hello <b>&<|eot_id|>"), ("assistant", ""))
HELLO = [{"role": "user", "content": "Hello <b>&"}]


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    with Renderer() as made:
        yield made


def holding(metadata: dict[str, Typed] | None = None, **files: Any) -> Checkpoint:
    names = {"jinja": "chat_template.jinja", "older": "chat_template.json", "config": "tokenizer_config.json"}
    held = {names[key]: value if isinstance(value, bytes) else json.dumps(value).encode() for key, value in files.items()}
    dialect = "hf" if metadata is None else "gguf"
    return Checkpoint(MemoryBundle({}, "toy"), None, Manifest(dialect, {}, metadata or {}, held, dialect))  # type: ignore[arg-type]


def test_where_templates_come_from() -> None:
    config = {"chat_template": "C"}
    named = {"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}
    gguf = {"tokenizer.chat_template": Typed("str", "G"), "tokenizer.chat_template.tool_use": Typed("str", "H")}
    assert template_for(holding(jinja=b"J", older={"chat_template": "O"}, config=config)) == "J"
    assert template_for(holding(older={"chat_template": "O"}, config=config)) == "O"
    assert template_for(holding(config=config)) == "C"
    assert template_for(holding(config=config), tools=True) == "C"
    assert template_for(holding(config=named)) == "D"
    assert template_for(holding(config=named), tools=True) == "T"
    assert template_for(holding(gguf)) == "G"
    assert templates_of(holding(gguf)) == {"default": "G", "tool_use": "H"}


@pytest.mark.parametrize("bare", [holding(), holding(config={}), holding({}), holding(config={"chat_template": []})])
def test_no_template_is_an_error_with_a_way_out(bare: Checkpoint) -> None:
    with pytest.raises(UnsupportedError, match="--raw") as caught:
        template_for(bare)
    assert caught.value.code == "E_TEMPLATE"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello <b>&<|im_end|>\n<|im_start|>assistant\n"),
        (
            LLAMA3,
            "<s>" + "".join(f"<|start_header_id|>{role}<|end_header_id|>\n\n{said}" for role, said in LLAMA3_TURNS),
        ),
        (GEMMA, "<s><start_of_turn>user\nHello <b>&<end_of_turn>\n<start_of_turn>model\n"),
        (MISTRAL, "<s>[INST] Hello <b>& [/INST]"),
        (PHI3, "<|user|>\nHello <b>&<|end|>\n<|assistant|>\n"),
    ],
)
def test_known_templates(renderer: Renderer, template: str, expected: str) -> None:
    assert renderer(template, HELLO, bos_token="<s>", eos_token="</s>") == expected


def test_what_a_template_is_given(renderer: Renderer) -> None:
    assert renderer("{{ messages[0].content }}|{{ tools }}|{{ add_generation_prompt }}", HELLO) == "Hello <b>&|None|True"
    assert renderer(PHI3, [], add_generation_prompt=False, eos_token="</s>") == "</s>"


def test_what_transformers_gives_templates(renderer: Renderer) -> None:
    assert renderer("{{ {'b': '<é>', 'a': 1} | tojson }}", []) == '{"b": "<é>", "a": 1}'
    assert renderer("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", []) == "012"
    assert len(renderer("{{ strftime_now('%Y-%m-%d') }}", [])) == 10
    assert renderer("{{ bos_token is defined }}", []) == "False"
    assert renderer("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", []) == "21"
    assert renderer("a\n  {% if true %}\nb\n  {% endif %}\nc", []) == "a\nb\nc"


def test_a_template_may_refuse(renderer: Renderer) -> None:
    with pytest.raises(MalformedError, match="must alternate") as caught:
        renderer(GEMMA, [{"role": "assistant", "content": ""}], bos_token="")
    assert (caught.value.code, caught.value.exit_code) == ("E_TEMPLATE", 3)
    with pytest.raises(MalformedError, match="line 2"):
        renderer("fine\n{{ broken", [])


def test_the_next_request_after_a_killed_worker_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with Renderer() as renderer:
        assert renderer("1", []) == "1"
        monkeypatch.setattr(chat_template, "SECONDS", 0.2)
        with pytest.raises(MalformedError, match="longer than"):
            renderer("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", [])
        monkeypatch.undo()
        assert renderer("2", []) == "2"
        assert renderer._process is not None
        renderer._process.kill()
        renderer._process.wait()
        with pytest.raises(MalformedError, match="ended"):
            renderer("3", [])
        assert renderer("4", []) == "4"


def test_sizes_have_limits(renderer: Renderer) -> None:
    for template, messages in (
        ("x" * (chat_template.MAX_TEMPLATE + 1), []),
        ("", [{"content": "x" * chat_template.MAX_REQUEST}]),
    ):
        with pytest.raises(LimitError) as caught:
            renderer(template, messages)
        assert caught.value.code == "E_TEMPLATE"
    assert renderer("{{ 'é👩' * 50 }}", [], limit=100) == "é👩" * 50
    with pytest.raises(MalformedError, match="more than 100 characters"):
        renderer("{{ 'é👩' * 50 }}.", [], limit=100)
    text = "x" * (chat_template.MAX_OUTPUT // 2)
    assert renderer("{{ messages[0].content }}", [{"content": text}]) == text


def test_the_worker_sees_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_TEST", "1")
    with Renderer() as renderer:
        assert renderer("ready", []) == "ready"
        assert renderer._process is not None
        if os.path.exists(environ := f"/proc/{renderer._process.pid}/environ"):
            with open(environ, "rb") as file:
                assert b"SECRET_OF_THE_TEST" not in file.read()


def test_an_interrupt_of_the_terminal_does_not_reach_the_worker(renderer: Renderer) -> None:
    assert renderer("1", []) == "1"
    assert renderer._process is not None
    assert os.getpgid(renderer._process.pid) != os.getpgid(0)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"flyweight\[run\]") as caught:
        Renderer()
    assert caught.value.code == "E_EXTRA"


def test_a_worker_that_cannot_start_is_one_error() -> None:
    renderer = Renderer()
    renderer.close()
    renderer._command = [sys.executable, "-c", "pass"]
    with pytest.raises(MalformedError) as caught:
        renderer("", [])
    assert caught.value.code == "E_TEMPLATE"


def test_neither_the_library_nor_jinja2_is_imported_before_it_is_needed() -> None:
    script = (
        "import sys; from flyweight.runtime.text import chat_template, token_text, tokenizer; "
        "print({'jinja2', 'tokenizers'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"
