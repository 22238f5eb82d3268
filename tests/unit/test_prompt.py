# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from specprefill.errors import ConfigurationError, InvalidRequestError
from specprefill.messages import ROLES, parse_conversation
from specprefill.prompt import PromptEncoder
from specprefill.tokenizer import check_same_tokenizer, load_tokenizer
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def encoder(tokenizer):
    return PromptEncoder(tokenizer, 400)


def chat(*pairs):
    return json.dumps([{"role": role, "content": content} for role, content in pairs])


def text_of(tokenizer, prompt, protected):
    inside = [False] * len(prompt.token_ids)
    for start, end in prompt.protected:
        inside[start:end] = [True] * (end - start)
    kept = [i for i, p in zip(prompt.token_ids, inside, strict=True) if p == protected]
    return tokenizer.decode(kept)


def test_text_is_tokenised_as_the_tokenizer_does(encoder, tokenizer):
    prompt = encoder.encode("The capital of France is", None)
    assert prompt.token_ids.tolist() == tokenizer("The capital of France is").input_ids
    assert prompt.protected == ()


def test_messages_equal_the_tokenizers_chat_template(encoder, tokenizer):
    messages = chat(("system", "Be brief."), ("user", "Hi 😀"), ("assistant", "Yo"), ("user", "Go"))
    expected = tokenizer.apply_chat_template(json.loads(messages), add_generation_prompt=True)
    assert encoder.encode(None, messages).token_ids.tolist() == list(expected["input_ids"])


def test_control_text_and_system_prompt_are_protected(encoder, tokenizer):
    messages = chat(("system", "Be brief."), ("user", "A long story."), ("assistant", "I see."))
    prompt = encoder.encode(None, messages, protect_last_user_tokens=0)
    assert text_of(tokenizer, prompt, protected=False) == "A long story.I see."
    protected = text_of(tokenizer, prompt, protected=True)
    assert "Be brief." in protected
    assert protected.endswith("<|im_start|>assistant\n")


def test_repeated_contents_are_found_in_their_own_turns(encoder, tokenizer):
    messages = chat(("system", "echo"), ("user", "echo"), ("user", "echo"))
    prompt = encoder.encode(None, messages, protect_last_user_tokens=0)
    assert text_of(tokenizer, prompt, protected=False) == "echoecho"
    first, second, third = prompt.role_spans
    assert [ROLES[role] for _, _, role in prompt.role_spans] == ["system", "user", "user"]
    assert first[1] < second[0] < second[1] < third[0]
    prompt = encoder.encode(None, messages)
    assert prompt.role_spans == (first, second, third)
    assert text_of(tokenizer, prompt, protected=False) == "echo"
    assert prompt.protected[-1][0] == second[1]  # the earlier one of the two can go


def unprotected(encoder, tokenizer, *pairs, **options):
    return text_of(tokenizer, encoder.encode(None, chat(*pairs), **options), protected=False)


def test_a_short_last_user_turn_is_protected(encoder, tokenizer):
    turns = (("user", "A story."), ("assistant", "I see."), ("user", "What was it?"))
    assert unprotected(encoder, tokenizer, *turns) == "A story.I see."
    assert unprotected(encoder, tokenizer, *turns, protect_last_user_tokens=3).endswith("it?")
    assert unprotected(encoder, tokenizer, *turns, protect_last_user_tokens=4) == "A story.I see."


def test_a_long_last_user_turn_keeps_its_end_if_something_follows_it(encoder, tokenizer):
    document = ("user", "word " * 100 + "question?")
    left = unprotected(encoder, tokenizer, document, protect_last_user_tokens=50)
    assert left == document[1]
    turns = document, ("tool", "Found.")
    left = unprotected(encoder, tokenizer, *turns, protect_last_user_tokens=50)
    assert left == "word" + " word" * 51 + "Found."
    prompt = encoder.encode(None, chat(*turns), protect_last_user_tokens=90)
    (_, start), (end, _) = prompt.protected[0], prompt.protected[1]
    assert (start, end) == (prompt.role_spans[0][0], prompt.role_spans[0][1] - 64)


def test_developer_is_another_name_of_system(encoder):
    system, developer = (
        encoder.encode(None, chat((role, "Be brief."), ("user", "Hi"))).token_ids.tolist()
        for role in ("system", "developer")
    )
    assert system == developer


def test_spans_to_keep_become_tokens(encoder, tokenizer):
    text = "One two three four five six"
    prompt = encoder.encode(text, None, keep_spans="[[4, 7], [12, 20]]")
    assert text_of(tokenizer, prompt, protected=True) == " two three four five"
    assert prompt.protected == ((1, 2), (2, 5)) or prompt.protected == ((1, 5),)
    assert encoder.encode(text, None, keep_spans="[]").protected == ()
    # Characters, not bytes; a character of several tokens is kept whole.
    prompt = encoder.encode("日本語 😀 x", None, keep_spans="[[4, 5]]")
    assert text_of(tokenizer, prompt, protected=True) == " 😀"


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ("[", ("keep_spans", "no valid JSON")),
        ("[" * 100_000, ("keep_spans", "no valid JSON")),
        ("3", ("keep_spans", "no list")),
        ("[3]", ("keep_spans[0]", "no pair of integers")),
        ("[[0, 1.0]]", ("keep_spans[0]", "no pair of integers")),
        ("[[false, true]]", ("keep_spans[0]", "no pair of integers")),
        ("[[0, 1, 2]]", ("keep_spans[0]", "no pair of integers")),
        ("[[-1, 2]]", ("keep_spans[0]", "got [-1, 2]", "from 0 up to 11 characters")),
        ("[[2, 2]]", ("keep_spans[0]", "start < end")),
        ("[[2, 12]]", ("keep_spans[0]", "up to 11")),
        ("[[4, 6], [5, 8]]", ("keep_spans[1]", "got [5, 8]", "from 6")),
    ],
)
def test_bad_spans_are_named(encoder, spans, words):
    with pytest.raises(InvalidRequestError) as caught:
        encoder.encode("Hello world", None, keep_spans=spans)
    for word in words:
        assert word in str(caught.value)


def test_spans_belong_to_text(encoder):
    with pytest.raises(InvalidRequestError, match="keep_spans: set together with messages"):
        encoder.encode(None, BOTH, keep_spans="[]")


def test_control_tokens_in_raw_text_are_kept(encoder, tokenizer):
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    prompt = encoder.encode(text, None)
    assert prompt.token_ids.tolist() == tokenizer(text).input_ids
    kept = text_of(tokenizer, prompt, protected=True)
    assert kept == "<|im_start|><|im_end|><|im_start|>"


def test_borders_have_one_value_per_token(encoder, tokenizer):
    prompt = encoder.encode("One. Two.\nThree", None)
    assert prompt.borders.tolist() == [2, 0, 1, 0, 0, 2]
    prompt = encoder.encode(None, chat(("user", "One. Two.")))
    text = tokenizer.convert_ids_to_tokens(prompt.token_ids)
    begins = [token for token, border in zip(text, prompt.borders, strict=True) if border == 1]
    assert begins == ["ĠTwo"]


def test_the_verbatim_guard_is_off_unless_asked_for(encoder):
    ask = "Quote the second paragraph."
    reason = "dense: the prompt asks for a verbatim copy (verbatim_guard)"
    assert encoder.encode(ask, None).dense_reason == ""
    assert encoder.encode(ask, None, verbatim_guard=True).dense_reason == reason
    messages = chat(("user", ask), ("assistant", "x"))
    assert encoder.encode(None, messages, verbatim_guard=True).dense_reason == reason
    messages = chat(("user", ask), ("assistant", "x"), ("user", "Who wrote it?"))
    assert encoder.encode(None, messages, verbatim_guard=True).dense_reason == ""
    late = ask + " It is long." * 60
    assert encoder.encode(late, None, verbatim_guard=True).dense_reason == ""


BOTH = chat(("user", "x"))


@pytest.mark.parametrize(
    ("text", "messages", "words"),
    [
        (None, None, ("text_input", "neither")),
        ("x", BOTH, ("messages", "text_input is set as well")),
        ("", None, ("text_input", "empty")),
        (" \n\t ", None, ("text_input", "empty")),
        (None, "[{", ("messages", "no valid JSON")),
        (None, "{}", ("messages", "no list")),
        (None, "3", ("messages", "no list")),
        (None, "[]", ("messages", "empty")),
        (None, "[3]", ("messages[0]", "no object")),
        (None, "[" * 100_000, ("messages", "no valid JSON")),
        (None, chat(("wizard", "x")), ("messages[0].role", "'wizard'", "system, user")),
        (None, '[{"role": "user"}]', ("messages[0].content", "no text")),
        (None, '[{"role": "user", "content": [{"type": "image"}]}]', ("messages[0].content",)),
        (None, '[{"role": "user", "content": "\\ud800"}]', ("messages[0].content", "surrogate")),
        (None, '[{"role": "user", "content": "x", "n": 1}]', ("messages[0].n", "unknown key")),
        (None, chat(("user", "  ")), ("messages", "every message is empty")),
        (" word" * 500, None, ("text_input", "500 tokens", "400", "at most 399")),
    ],
)
def test_bad_prompts_name_the_field(encoder, text, messages, words):
    with pytest.raises(InvalidRequestError) as caught:
        encoder.encode(text, messages)
    for word in words:
        assert word in str(caught.value)


def test_max_tokens_must_fit_behind_the_prompt(encoder):
    with pytest.raises(
        InvalidRequestError, match=r"max_tokens: 391 after a prompt of 10 .* up to 390"
    ):
        encoder.encode(" word" * 10, None, max_tokens=391)
    encoder.encode(" word" * 10, None, max_tokens=390)


def test_deep_json_is_no_crash():
    with pytest.raises(InvalidRequestError):
        parse_conversation("[" * 50_000 + "]" * 50_000)


def test_a_model_without_template_refuses_messages(tokenizer, smollm2):
    bare = AutoTokenizer.from_pretrained(smollm2)
    bare.chat_template = None
    with pytest.raises(InvalidRequestError, match="no chat template"):
        PromptEncoder(bare, 100).encode(None, BOTH)


def test_a_draft_with_another_tokenizer_is_refused(tokenizer, smollm2):
    check_same_tokenizer(tokenizer, AutoTokenizer.from_pretrained(smollm2))
    other = AutoTokenizer.from_pretrained(smollm2)
    other.add_tokens(["<extra>"])
    with pytest.raises(ConfigurationError, match=r"different tokenizers: 1 tokens differ.*<extra>"):
        check_same_tokenizer(other, tokenizer)


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="no usable tokenizer"):
        load_tokenizer(tmp_path)
