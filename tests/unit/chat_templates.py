# SPDX-License-Identifier: Apache-2.0
"""Small chat templates in the styles that public models use, and tokenizers that know them."""

from __future__ import annotations

import json
from typing import Any

from transformers import AutoTokenizer

CHATML = """
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif -%}
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != 'system' %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LLAMA3 = """
{%- macro header(role) %}<|start_header_id|>{{ role }}<|end_header_id|>

{% endmacro -%}
<|begin_of_text|>
{%- for message in messages %}
{%- if message.role == 'system' %}{{ header('system') }}Cutting Knowledge Date: December 2023

{{ message.content | trim }}<|eot_id|>
{%- elif message.role == 'tool' %}{{ header('ipython') }}{{ message.content | tojson }}<|eot_id|>
{%- elif message.tool_calls %}{{ header('assistant') }}
{%- for call in message.tool_calls %}<|python_tag|>{"name": "{{ call.function.name -}}
", "parameters": {{ call.function.arguments | tojson }}}{% endfor %}<|eom_id|>
{%- elif message.role == 'user' and tools and loop.index0 < 2 %}{{ header('user') -}}
Given these functions, answer with a call.
{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}

{{ message.content | trim }}<|eot_id|>
{%- else %}{{ header(message.role) }}{{ message.content | trim }}<|eot_id|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ header('assistant') }}{% endif %}"""

# The system prompt and the tools stand in the last user turn, as in Mistral's templates.
MISTRAL = """<s>
{%- set last = (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if message == last and tools %}[AVAILABLE_TOOLS] {{ tools | tojson -}}
[/AVAILABLE_TOOLS]{% endif -%}
[INST] {% if message == last and messages[0].role == 'system' -%}
{{ messages[0].content + '\n\n' }}{% endif %}{{ message.content }}[/INST]
{%- elif message.tool_calls %}[TOOL_CALLS] {{ message.tool_calls | tojson }}</s>
{%- elif message.role == 'assistant' %} {{ message.content | trim }}</s>
{%- elif message.role == 'tool' -%}
[TOOL_RESULTS] {"content": {{ message.content | tojson }}}[/TOOL_RESULTS]
{%- endif %}
{%- endfor %}"""

# Reasoning of earlier answers is cut off, tool calls are XML, and turns react to their contents.
XML = """
{%- for tool in tools or [] %}{% if loop.first %}<|system|>
<tools>
{% endif %}<function name="{{ tool.function.name }}">
{{- tool.function.parameters | tojson }}</function>
{% if loop.last %}</tools>
{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|assistant|>
{{ message.content.split('</think>')[-1].lstrip('\n') }}
{%- for call in message.tool_calls or [] %}
<tool_call name="{{ call.function.name }}">
{%- for key, value in call.function.arguments.items() %}
<parameter name="{{ key }}">{{ value }}</parameter>
{%- endfor %}
</tool_call>
{%- endfor %}
{% elif message.role == 'tool' %}<|observation|>
<result>{{ message.content }}</result>
{% elif message.content.startswith('<result>') %}<|observation|>
{{ message.content }}
{% else %}<|{{ message.role }}|>
{{ message.content }}
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}"""

# style -> template, special tokens, added tokens that are not special
STYLES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "chatml": (
        CHATML,
        ("<|im_start|>", "<|im_end|>"),
        ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    ),
    "llama3": (
        LLAMA3,
        (
            *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
            *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
        ),
        (),
    ),
    "mistral": (
        MISTRAL,
        (
            *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
            *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        (),
    ),
    "xml": (
        XML,
        ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        ("<tools>", "</tools>", "<result>", "</result>", "</tool_call>"),
    ),
}


def styled_tokenizer(folder: Any, style: str) -> Any:
    """The embedded model's tokenizer with another template and its control tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template, special, added = STYLES[style]
    tokenizer.add_tokens(list(special), special_tokens=True)
    tokenizer.add_tokens(list(added))
    tokenizer.chat_template = template
    return tokenizer


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the web.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }
]


def call(query: str) -> dict[str, Any]:
    function = {"name": "search", "arguments": json.dumps({"query": query})}
    return {"id": "call00001", "type": "function", "function": function}
