# SPDX-License-Identifier: Apache-2.0
"""Contents are found exactly, and what a template writes survives every selection."""

import copy
import json
import re
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from specprefill.chat_template import ChatTemplate
from specprefill.embedded_model import resolve_model
from specprefill.errors import InvalidRequestError
from specprefill.messages import Conversation, parse_conversation
from specprefill.prompt import PromptEncoder
from transformers import AutoTokenizer

from tests.unit.chat_templates import STYLES, TOOLS, call, styled_tokenizer

ALL = (*STYLES, "smollm2")
FAST = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@lru_cache
def model(style):
    folder = resolve_model("smollm2")
    if style == "smollm2":
        tokenizer = AutoTokenizer.from_pretrained(folder)
    else:
        tokenizer = styled_tokenizer(folder, style)
    return tokenizer, PromptEncoder(tokenizer, 10**6)


def user(content):
    return {"role": "user", "content": content}


def conversation(style, texts):
    """All roles, with tools and a tool call where the template knows them."""
    first, answer, result, summary, last = texts
    turns = [
        {"role": "system", "content": "Be brief."},
        user(first),
        {"role": "assistant", "content": answer},
        user("δδδ ωωω"),
        {"role": "assistant", "content": None, "tool_calls": [call("seven wonders")]},
        {"role": "tool", "tool_call_id": "call00001", "name": "search", "content": result},
        {"role": "assistant", "content": summary},
        user(last),
    ]
    if style == "smollm2":
        return {"messages": [m for m in turns if "tool_calls" not in m]}
    return {"messages": turns, "tools": TOOLS}


def render(tokenizer, value):
    parsed = parse_conversation(json.dumps(value))
    return tokenizer.apply_chat_template(
        list(parsed.messages),
        tools=list(parsed.tools) or None,
        tokenize=False,
        add_generation_prompt=True,
    )


def kept_ids(prompt, chosen):
    keep = chosen.copy()
    for start, end in prompt.protected:
        keep[start:end] = True
    return prompt.token_ids[keep]


# Letters that no template writes, so that contents can be told from what the template wrote.
greek = st.text("αβγδ ω", min_size=20, max_size=60).filter(
    lambda text: len(text.replace(" ", "")) > 10
)


@pytest.mark.parametrize("style", ALL)
@FAST
@given(
    texts=st.tuples(*[greek] * 5),
    seed=st.integers(0, 2**32 - 1),
    rate=st.sampled_from((0, 0.5)),
)
def test_all_that_the_template_writes_survives_any_selection(style, texts, seed, rate):
    tokenizer, encoder = model(style)
    value = conversation(style, texts)
    prompt = encoder.encode(None, json.dumps(value), protect_last_user_tokens=0)
    chosen = np.random.default_rng(seed).random(len(prompt.token_ids)) < rate
    kept = kept_ids(prompt, chosen)

    def skeleton(text):
        return re.sub("[αβγδω�]|(?<=[αβγδω�]) +| +(?=[αβγδω�])", "", text)

    full = render(tokenizer, value)
    whole = tokenizer.decode(prompt.token_ids, clean_up_tokenization_spaces=False)
    assert whole == full
    left = tokenizer.decode(kept, clean_up_tokenization_spaces=False)
    # A chosen space may stand alone where letters round it went.
    assert re.sub(r"\s", "", skeleton(left)) == re.sub(r"\s", "", skeleton(full))
    control = set(tokenizer.added_tokens_decoder)
    assert [i for i in kept if i in control] == [i for i in prompt.token_ids if i in control]
    if not rate:  # a letter may share its token with a space that the template wrote
        assert len(re.findall("[αβγδω]", left)) <= 6 < len(re.findall("[αβγδω]", whole))


WORDS = ("first", "reply", "outcome", "summary", "last")


@pytest.mark.parametrize("style", ALL)
def test_tool_results_answers_and_earlier_turns_can_go(style):
    tokenizer, encoder = model(style)
    value = conversation(style, [f"the {word} one" for word in WORDS])
    prompt = encoder.encode(None, json.dumps(value))
    left = tokenizer.decode(kept_ids(prompt, np.zeros(len(prompt.token_ids), bool)))
    for gone in ("first", "reply", "outcome", "summary", "δδ"):
        assert gone not in left
    for held in ("Be brief.", "the last one"):
        assert held in left
    if style != "smollm2":
        for held in ('"query"', "seven wonders", "search"):
            assert held in left


# Pieces that occur in templates, in each other, or look like control tokens.
FRAGMENTS = (
    *("<|im_start|>user\n", "<|im_end|>", "<|im_", "end|>", "user", "assistant\n", "\n", " ", "a"),
    *("aa", "(", "0)", "[INST]", "</s>", "{{ messages }}", "{%", "\U000f0000", "\\n", '"', "é"),
)
hostile = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)


@FAST
@given(contents=st.lists(hostile, min_size=1, max_size=5))
def test_contents_are_where_a_template_written_by_hand_puts_them(contents):
    tokenizer, _ = model("smollm2")
    messages = [user(content) for content in contents]
    chat = ChatTemplate(tokenizer).render(Conversation(tuple(messages)))
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n"
    )
    expected = []
    for i, content in enumerate(contents):
        text += "<|im_start|>user\n"
        body = content.strip()
        if body:
            start = len(text) + content.index(body)
            expected.append((i, start, start + len(body)))
        text += content + "<|im_end|>\n"
    text += "<|im_start|>assistant\n"
    assert chat.text == text
    assert [(c.message, c.start, c.end) for c in chat.contents] == expected


@pytest.mark.parametrize("style", ALL)
@FAST
@given(contents=st.tuples(*[hostile.map(lambda text: text + "x")] * 5))
def test_hostile_contents_add_no_control_token(style, contents):
    tokenizer, encoder = model(style)
    # Some templates compare messages: equal ones must be equal in both.
    names = {content: f"x{i}" for i, content in enumerate(dict.fromkeys(contents))}
    value, plain = conversation(style, contents), conversation(style, map(names.get, contents))
    prompt = encoder.encode(None, json.dumps(value))
    special = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    expected = encoder.encode(None, json.dumps(plain)).token_ids
    assert [i for i in prompt.token_ids if i in special] == [i for i in expected if i in special]
    assert tokenizer.decode(prompt.token_ids, clean_up_tokenization_spaces=False) == render(
        tokenizer, value
    )


def test_control_tokens_in_tools_and_arguments_stay_text():
    tokenizer, encoder = model("chatml")
    value = {
        "messages": [
            user("go"),
            {"role": "assistant", "content": "", "tool_calls": [call("<|im_end|>")]},
            {"role": "tool", "content": "done"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "<|im_start|>"}}],
    }
    ids = encoder.encode(None, json.dumps(value)).token_ids.tolist()
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 5
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 4


def with_template(template):
    tokenizer = copy.copy(model("smollm2")[0])
    tokenizer.chat_template = template
    return tokenizer


def located(template, *contents):
    chat = ChatTemplate(with_template(template)).render(Conversation(tuple(map(user, contents))))
    return [(c.message, chat.text[c.start : c.end]) for c in chat.contents]


@pytest.mark.parametrize(
    ("expression", "seen"),
    [
        ("m.content", "a  b"),
        ("m.content | trim", "a  b"),
        ("m.content | upper", "A  B"),
        ("m.content | replace('  ', ' ')", "a b"),
        ("m.content | tojson", "a  b"),
        ("m.content.strip('\n').rstrip()", "a  b"),
    ],
)
def test_templates_that_change_a_content(expression, seen):
    template = "{% for m in messages %}<{{ " + expression + " }}>{% endfor %}"
    contents = ("\n a  b \n", "a  b")
    assert located(template, *contents) == [(0, seen), (1, seen)]


def test_a_template_that_reorders_and_repeats():
    template = (
        "{% for m in messages | reverse %}{{ m.content }} {% endfor %}{{ messages[0].content }}"
    )
    assert located(template, "a", "ab") == [(1, "ab"), (0, "a"), (0, "a")]


def test_a_content_that_a_template_cuts_is_protected_alone():
    template = "{% for m in messages %}[{{ m.content.split('CUT')[-1] }}]{% endfor %}"
    assert located(template, "one", "half CUT rest", "two") == [(0, "one"), (2, "two")]


def test_a_content_that_a_template_reacts_to_is_protected_alone():
    template = (
        "{% for m in messages %}{% if m.content.startswith('<r>') %}X{% endif %}[{{ m.content }}]"
        "{% endfor %}"
    )
    contents = [f"text {i}" for i in range(9)]
    contents[4] = "<r>4"
    assert [i for i, _ in located(template, *contents)] == [0, 1, 2, 3, 5, 6, 7, 8]


def test_a_template_that_counts_characters_locates_nothing():
    template = "{% for m in messages %}{{ m.content | length }}:{{ m.content }};{% endfor %}"
    assert located(template, "one", "two") == []
    prompt = PromptEncoder(with_template(template), 100).encode(None, json.dumps([user("one")]))
    assert prompt.protected == ((0, len(prompt.token_ids)),)


def test_renderings_are_limited(monkeypatch):
    tokenizer = with_template(
        "{% for m in messages %}{% if m.content[0] == 'a' %}X{% endif %}[{{ m.content }}]"
        "{% endfor %}"
    )
    count = 0
    original = tokenizer.apply_chat_template

    def counting(*arguments, **options):
        nonlocal count
        count += 1
        return original(*arguments, **options)

    monkeypatch.setattr(tokenizer, "apply_chat_template", counting)
    ChatTemplate(tokenizer).render(Conversation(tuple(user(f"a{i}") for i in range(500))))
    assert count < 40


def test_tools_and_calls_that_a_template_ignores_are_refused():
    _, encoder = model("smollm2")
    with pytest.raises(InvalidRequestError, match="tools: the model's chat template ignores them"):
        encoder.encode(None, json.dumps({"messages": [user("go")], "tools": TOOLS}))
    turns = [user("go"), {"role": "assistant", "content": "", "tool_calls": [call("x")]}]
    with pytest.raises(InvalidRequestError, match=r"messages\[1\].tool_calls: .* ignores them"):
        encoder.encode(None, json.dumps(turns))


def test_a_template_that_refuses_says_why():
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InvalidRequestError, match="refuses them: roles must alternate"):
        PromptEncoder(with_template(template), 100).encode(None, json.dumps([user("x")]))


@pytest.mark.parametrize("style", ["chatml", "llama3", "xml"])
def test_the_protected_prefix_stays_the_same_over_the_turns(style):
    _, encoder = model(style)
    system = {"role": "system", "content": "You answer in one word. " * 5}
    turns, prefixes = [], []
    for i in range(4):
        turns += [user(f"Question {i}?")]
        value = {"messages": [system, *turns], "tools": TOOLS}
        prompt = encoder.encode(None, json.dumps(value))
        first = next(start for start, _, role in prompt.role_spans if role == 1)
        prefixes.append(prompt.token_ids[:first].tolist())
        assert prompt.protected[0][0] == 0
        assert prompt.protected[0][1] >= first
        turns += [{"role": "assistant", "content": f"Answer {i}."}]
    assert len(prefixes[0]) > 40
    assert prefixes.count(prefixes[0]) == 4
