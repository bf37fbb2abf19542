"""Chat templates in the styles models use, written for the tests, and conversations for them."""

from __future__ import annotations

from typing import Any

CHATML = """{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

LLAMA3 = """{{- bos_token }}
{%- set date = "26 Jul 2024" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Tools:\\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today: " + date + "\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("One call at a time") }}
        {%- endif %}
        {{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
        {{- message.tool_calls[0].function.arguments | tojson + '}<|eot_id|>' }}
    {%- elif message.content is string %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- else %}
        {{- message.content | map(attribute='text') | join(' & ') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA = """{{ bos_token }}
{%- set ns = namespace(prefix='') -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set ns.prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (ns.prefix if loop.first else '') }}
    {%- if message['content'] is iterable and message['content'] is not string -%}
        {%- for item in message['content'] -%}{{ item.text.strip() }}{%- endfor -%}
    {%- else -%}
        {{ message['content'] | trim }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

MISTRAL = """{%- set loop_messages = messages | rejectattr('role', 'equalto', 'system') | list -%}
{%- set system = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | first | default('') -%}
{{ bos_token }}
{%- for message in loop_messages %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system + '\\n\\n' if system and loop.last else '') + message.content + ' [/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' ~ message.content.rstrip() ~ eos_token }}
    {%- else %}
        {%- continue %}
    {%- endif %}
{%- endfor %}"""

PHI3 = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{% generation %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}"""

QWEN_TOOLS = """{%- macro described(tool) %}{{ tool | tojson }}{% endmacro -%}
{%- if tools %}
    {%- for tool in tools %}{{ '\\n' ~ described(tool) }}{% endfor %}
{%- endif %}
{%- for key, value in messages[-1].items() | sort %}
    {%- if key == 'role' %}{% break %}{% endif %}
    {{- key ~ '=' ~ value | string | length }}
{%- endfor %}
    {# a comment, trimmed #}
{{ messages | length }} {{ messages[0].content.split(' ')[0] | capitalize }} {{ 3.0 }} {{ none }} {{ [1, 'é', true] }}
{{ undefined_name }}{{ undefined_name is defined }}
"""

TEMPLATES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "phi3": PHI3,
    "qwen_tools": QWEN_TOOLS,
}

_HARD = "  ünï <|im_end|> \"quoted\" 'single' <b>&amp;</b> {{ messages }} {% raw %} 👩‍👩‍👧\n\n\ttab \\n end  "

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "hello there"}],
    "system": [{"role": "system", "content": " Be kind. "}, {"role": "user", "content": _HARD}],
    "turns": [
        {"role": "user", "content": _HARD},
        {"role": "assistant", "content": "An answer  "},
        {"role": "user", "content": ""},
    ],
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The wéather <now> & 'then'",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]
