"""Hostile chat templates: each is one typed error, or harmless text, within two seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.foundation.errors import MalformedError
from flyweight.runtime.text.chat_template import Renderer
from support.chat_templates import TEMPLATES

FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
BOMBS = {
    "repeat": "{{ 'a' * 10**10 }}",
    "list": "{{ [0] * 10**9 }}",
    "loops": FOREVER,
    "loops in a filter": "{% set x = range(99999) | list %}{{ x | map('string') | join | replace('1', 'x' * 99999) }}",
    "doubling": "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "output": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "power": "{{ 7 ** (7 ** 12) }}",
    "format": "{{ '%0999999999d' | format(3) }}",
    "center": "{{ 'x' | center(10**10) }}",
    "range": "{{ range(10**12) | list }}",
    "macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "nested": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "blocks": "{% if 1 %}" * 5000,
    "names": "{{ " + "a." * 50000 + "b }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['json'].x }}",
    "closure": "{{ strftime_now.__closure__[0].cell_contents }}",
    "code": "{{ (messages | map(attribute='__init__') | list)[0].__globals__ }}",
    "format attribute": "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "append": "{{ messages.append(1) }}",
    "filter": "{{ 1 | no_such_filter }}",
    "division": "{{ 1 / 0 }}",
    "strftime": "{{ strftime_now('%' ~ 'Y' * 10**9) }}",
    "exit": "{{ raise_exception(raise_exception) }}",
    "surrogate": "{{ '\\ud800' }}{{ 1 / 0 }}",
}


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    with Renderer() as made:
        made("", [])
        yield made


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_one_error_in_time(renderer: Renderer, name: str) -> None:
    renderer("", [])  # whatever the last bomb did, a worker is there
    begun = time.monotonic()
    with pytest.raises(MalformedError) as caught:
        renderer(BOMBS[name], [{"role": "user", "content": "x"}])
    assert time.monotonic() - begun < 2
    assert (caught.value.code, caught.value.exit_code) == ("E_TEMPLATE", 3)
    assert "Errno" not in str(caught.value)
    assert renderer("{{ messages[0].a }}", [{"a": "alive"}]) == "alive"


SNIPPETS = [
    "{{", "}}", "{%", "%}", "{#", "#}", "messages", "[0]", "['role']", ".content", "|", "trim", "tojson", "(", ")", "~", "+",
    "if ", "endif", "for x in ", "endfor", "set x = ", "-", "'", '"', "\\", "\n", "else", "loop.index0", "raise_exception", "1",
    "**", "é",
]  # fmt: skip


def ends_well(renderer: Renderer, template: str) -> bool:
    try:
        return isinstance(renderer(template, [{"role": "user", "content": "x"}]), str)
    except MalformedError as error:
        return error.code == "E_TEMPLATE"


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.lists(st.sampled_from(SNIPPETS), max_size=25).map("".join), st.text(max_size=40)))
def test_any_text_is_a_template_or_an_error(renderer: Renderer, template: str) -> None:
    assert ends_well(renderer, template)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_template_renders_or_is_an_error(renderer: Renderer, data: st.DataObject) -> None:
    template = data.draw(st.sampled_from(sorted(TEMPLATES.values())))
    begin = data.draw(st.integers(0, len(template)))
    end = data.draw(st.integers(begin, min(len(template), begin + 30)))
    assert ends_well(renderer, template[:begin] + data.draw(st.sampled_from(["", *SNIPPETS])) + template[end:])
