# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from specprefill.errors import ConfigurationError, InvalidRequestError
from specprefill.prompt import PromptEncoder, check_same_tokenizer, load_tokenizer, parse_messages
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
    prompt = encoder.encode(None, messages)
    assert text_of(tokenizer, prompt, protected=False) == "A long story.I see."
    protected = text_of(tokenizer, prompt, protected=True)
    assert "Be brief." in protected
    assert protected.endswith("<|im_start|>assistant\n")


def test_repeated_contents_are_found_in_their_own_turns(encoder, tokenizer):
    prompt = encoder.encode(None, chat(("system", "echo"), ("user", "echo"), ("user", "echo")))
    assert text_of(tokenizer, prompt, protected=False) == "echoecho"


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
        parse_messages("[" * 50_000 + "]" * 50_000)


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
