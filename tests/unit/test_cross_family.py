# SPDX-License-Identifier: Apache-2.0
"""Scores go from a draft's tokens to a target's through whole characters."""

import json
from functools import lru_cache

import numpy as np
import pytest
import regex
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from specprefill.cross_family import (
    SharedText,
    carry_importance,
    overlapping_draft_tokens,
    whole_characters,
)
from specprefill.engines import make_prompt_encoder, make_speculator
from specprefill.errors import ConfigurationError
from specprefill.prompt import PromptEncoder
from specprefill.settings import load_settings
from specprefill.tokenizer import tokenise, tokenise_with_literals
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

LINES = [
    "The quick brown fox jumps over the lazy dog. Überraschung! naïve café",
    "A question: what is the code? The code is 48213, said the clerk.",
    "日本語のテキストです。今日は良い天気です。",
    "مرحبا بالعالم",
]
TEMPLATE = (
    "{% for m in messages %}### {{ m.role }}\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant\n{% endif %}"
)


@lru_cache
def byte_level_bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(LINES * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE)


@lru_cache
def byte_fallback_bpe():
    """As Llama 2's: a space before the text, bytes for characters outside the vocabulary."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    letters = sorted({c for line in LINES[:2] for c in line.replace(" ", "▁")})
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "c"), ("o", "d"), ("od", "e")]
    pieces += [*letters, *("".join(pair) for pair in merges)]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@lru_cache
def unigram():
    """As T5's: normalises, so that a token stands for characters it does not spell."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(LINES * 5, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", chat_template=TEMPLATE
    )


MAKERS = {"bytes": byte_level_bpe, "fallback": byte_fallback_bpe, "unigram": unigram}
ODD = {
    "family emoji": "a 👩‍👩‍👧‍👦 family",
    "skin tone": "ok 👍🏽👍🏽 ok",
    "flags": "in 🇩🇪 and 🇯🇵!",
    "combining": "cafe\u0301 and n\u0303\u0323o",
    "ligature": "eﬃcient ﬁne",
    "chinese": "今日は良い天気です。𠮷野家",
    "hebrew": "שָׁלוֹם עולם",
    "arabic": "مرحبًا بالعالم",
    "devanagari": "नमस्ते क्षत्रिय",
    "thai": "สวัสดีครับ",
    "hangul jamo": "\u1112\u1161\u11ab\u1100\u116e\u11a8",
    "keycap": "press 1️⃣ now",
    "zero width": "a\u200bb \ufeff c\u200d",
    "spaces": "  two   spaces\t\n\n end ",
    "control": "nul\x00 bell\x07",
}


def brute_force(offsets, draft_offsets, group_of):
    """Per target token the draft tokens of its characters, over the tokens that share them."""
    ranges = []
    for start, end in offsets:
        group = set(range(start, end))
        grown = True
        while grown:
            grown = False
            for other in [set(range(*o)) for o in offsets] + group_of:
                if group & other and not other <= group:
                    group |= other
                    grown = True
        ranges.append({d for d, o in enumerate(draft_offsets) if group & set(range(*o))})
    return ranges


@pytest.mark.parametrize("draft", MAKERS)
@pytest.mark.parametrize("target", MAKERS)
@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_exactly_the_tokens_of_the_same_characters(text, target, draft):
    _, offsets = tokenise(MAKERS[target](), text, True)
    _, draft_offsets = tokenise(MAKERS[draft](), text, True)
    ranges = overlapping_draft_tokens(text, offsets, draft_offsets, [SharedText(0, len(text), 0)])
    # Characters as a reader sees them, by another implementation; a row of flags is one here.
    clusters = [
        set(range(*m.span()))
        for m in regex.finditer(r"[\U0001F1E6-\U0001F1FF]+|\X", text)
        if not m[0].isascii() and not regex.fullmatch(r"[\u1100-\u11ff]+", m[0])
    ]
    expected = brute_force(offsets.tolist(), draft_offsets.tolist(), clusters)
    assert [set(range(*r)) for r in ranges] == expected
    assert ranges.dtype == np.int32


@pytest.mark.parametrize("target", MAKERS)
@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_no_character_gets_two_scores(text, target):
    ids, offsets = tokenise(MAKERS[target](), text, True)
    _, draft_offsets = tokenise(byte_level_bpe(), text, True)
    ranges = overlapping_draft_tokens(text, offsets, draft_offsets, [SharedText(0, len(text), 0)])
    draft_importance = np.random.default_rng(0).random(len(draft_offsets)).astype(np.float32)
    importance = carry_importance(draft_importance, ranges)
    assert importance.shape == ids.shape
    for match in regex.finditer(r"\X", text):
        touching = (offsets[:, 0] < match.end()) & (offsets[:, 1] > match.start())
        if not regex.fullmatch(r"[\u1100-\u11ff]+", match[0]):
            assert len(set(importance[touching].tolist())) <= 1


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=30))
def test_spans_of_any_text_ascend_and_cover_it(name, text):
    text = text.encode("utf-8", "ignore").decode()
    ids, offsets = tokenise(MAKERS[name](), text, True)
    assert offsets.shape == (len(ids), 2)
    assert (np.diff(offsets, axis=0) >= 0).all()
    assert (offsets[:, 0] <= offsets[:, 1]).all()
    assert not len(offsets) or offsets[0, 0] == 0
    assert not len(offsets) or offsets.max() <= len(text)
    gaps = offsets[1:, 0] > offsets[:-1, 1]
    assert not gaps.any()
    whole = whole_characters(text, offsets)
    assert (whole[:, 0] <= offsets[:, 0]).all()
    assert (whole[:, 1] >= offsets[:, 1]).all()


@st.composite
def importance_and_ranges(draw):
    size = draw(st.integers(1, 20))
    numbers = st.floats(-5, 5, width=32)
    importance = draw(hnp.arrays(np.float32, size, elements=numbers))
    edge = st.integers(0, size)
    pairs = draw(st.lists(st.tuples(edge, edge), max_size=30))
    return importance, np.array(pairs, dtype=np.int32).reshape(-1, 2)


@given(importance_and_ranges())
def test_the_best_draft_token_counts(case):
    importance, ranges = case
    expected = [
        importance[start:end].max() if start < end else importance.min() for start, end in ranges
    ]
    carried = carry_importance(importance, ranges)
    assert carried.tolist() == [float(value) for value in expected]
    assert carried.dtype == np.float32


def test_ranges_outside_the_draft_are_refused():
    importance = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="beyond the draft's 3 tokens"):
        carry_importance(importance, np.array([[0, 4]]))
    with pytest.raises(ValueError, match="beyond"):
        carry_importance(importance, np.array([[-1, 2]]))
    with pytest.raises(ValueError, match="no tokens"):
        carry_importance(np.empty(0, np.float32), np.array([[0, 0]]))


def encode(draft, messages=None, text=None):
    target = AutoTokenizer.from_pretrained(SMOLLM2["folder"])
    encoder = PromptEncoder(target, 10_000, draft)
    return target, encoder.encode(text, messages and json.dumps(messages))


SMOLLM2 = {}


@pytest.fixture(autouse=True)
def _folder(smollm2):
    SMOLLM2["folder"] = smollm2


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " The code is 48213. 日本語 😀 "},
    {"role": "assistant", "content": "The code is 48213."},
    {"role": "user", "content": "What is the code?"},
]


def texts_of(tokenizer, ids, draft, prompt, span):
    start, end = span
    ranges = prompt.draft_ranges[start:end]
    target_text = tokenizer.decode(prompt.token_ids[start:end])
    draft_text = draft.decode(prompt.draft_ids[ranges[:, 0].min() : ranges[:, 1].max()])
    return target_text.strip(), draft_text.strip()


@pytest.mark.parametrize("name", ["bytes", "unigram"])
def test_contents_are_found_in_the_drafts_own_template(name):
    draft = MAKERS[name]()
    target, prompt = encode(draft, MESSAGES)
    rendered = draft.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert prompt.draft_ids.tolist() == draft(rendered, add_special_tokens=False).input_ids
    assert len(prompt.role_spans) == 4
    for start, end, _ in prompt.role_spans:
        ours, theirs = texts_of(target, prompt.token_ids, draft, prompt, (start, end))
        if name == "bytes":
            assert theirs == ours
    inside = np.zeros(len(prompt.token_ids), bool)
    for start, end, _ in prompt.role_spans:
        inside[start:end] = True
    lengths = np.diff(prompt.draft_ranges, axis=1)[:, 0]
    assert (lengths[inside] > 0).all()
    assert prompt.draft_ranges.shape == (len(prompt.token_ids), 2)


def test_a_draft_without_template_reads_the_targets_text():
    draft = byte_fallback_bpe()
    target, prompt = encode(draft, MESSAGES)
    rendered = target.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert prompt.draft_ids.tolist() == draft(rendered, add_special_tokens=False).input_ids
    assert (np.diff(prompt.draft_ranges, axis=1) > 0).all()


def test_a_content_that_the_drafts_template_changes_is_protected():
    draft = MAKERS["bytes"]()
    changing = PreTrainedTokenizerFast(
        tokenizer_object=draft.backend_tokenizer,
        chat_template=TEMPLATE.replace("m.content", "m.content | replace('48213', 'X')"),
    )
    _, prompt = encode(changing, MESSAGES)
    protected = np.zeros(len(prompt.token_ids), bool)
    for start, end in prompt.protected:
        protected[start:end] = True
    assert protected.all()  # of the user's and the assistant's, both changed
    _, prompt = encode(draft, MESSAGES)
    assert sum(end - start for start, end in prompt.protected) < len(prompt.token_ids)


def test_raw_text():
    draft = byte_fallback_bpe()
    target, prompt = encode(draft, text="The code is 48213. 日本語 😀")
    assert prompt.draft_ids.tolist() == draft("The code is 48213. 日本語 😀").input_ids
    word = target.convert_ids_to_tokens(prompt.token_ids).index("Ġcode")
    start, end = prompt.draft_ranges[word]
    assert draft.decode(prompt.draft_ids[start:end]) == " code"


def test_the_same_tokenizer_needs_no_second_prompt():
    _, prompt = encode(None, MESSAGES)
    assert prompt.draft_ids is None
    assert prompt.draft_ranges is None


@pytest.mark.parametrize("name", MAKERS)
def test_literals_change_nothing_else(name):
    """Cutting a text at a literal gives the tokens of the text round it."""
    tokenizer = MAKERS[name]()
    text = "The code <s> is </s> 48213"
    places = [(text.index(t), text.index(t) + len(t)) for t in ("<s>", "</s>")]
    ids, offsets = tokenise_with_literals(tokenizer, text, places)
    special = {tokenizer.convert_tokens_to_ids(t) for t in ("<s>", "</s>")} - {None}
    assert not special & set(ids.tolist()) or name == "unigram"
    assert offsets[0, 0] == 0
    assert offsets[-1, 1] == len(text)
    whole, whole_offsets = tokenise_with_literals(tokenizer, text.replace("<", "("), ())
    expected = tokenise(tokenizer, text.replace("<", "("), False)
    assert whole.tolist() == expected[0].tolist()
    assert whole_offsets.tolist() == expected[1].tolist()


def test_another_tokenizer_needs_the_setting(tmp_path, smollm2, tiny_llama):
    draft = tmp_path / "draft"
    byte_level_bpe().save_pretrained(draft)
    (draft / "config.json").write_text((tiny_llama / "config.json").read_text())
    values = {"draft": {"model": str(draft)}, "target": {"model": str(smollm2)}}
    with pytest.raises(ConfigurationError, match=r"different tokenizers.*draft.cross_family"):
        make_prompt_encoder(load_settings(overrides=values, environment={}))
    values["draft"]["cross_family"] = True
    encoder = make_prompt_encoder(load_settings(overrides=values, environment={}))
    assert encoder.encode("The code", None).draft_ids is not None
    values["draft"]["model"] = str(tiny_llama)  # another folder, the same tokenizer
    encoder = make_prompt_encoder(load_settings(overrides=values, environment={}))
    assert encoder.encode("The code", None).draft_ids is None


def test_a_prompt_is_pruned_by_a_draft_with_another_tokenizer(tmp_path, smollm2):
    torch.manual_seed(0)
    folder = tmp_path / "draft"
    byte_level_bpe().save_pretrained(folder)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=400,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=4096,
            initializer_range=0.4,
        )
    ).save_pretrained(folder)
    chosen = load_settings(
        overrides={
            "draft": {"model": str(folder), "cross_family": True, "dtype": "float32"},
            "target": {"model": str(smollm2)},
            "selection": {"min_prompt_tokens": 64, "keep_rate": 0.3},
        },
        environment={},
    )
    document = " ".join(f"Line {i}: the code is {i * 7919 % 10007}. 日本語 😀" for i in range(60))
    messages = json.dumps([*MESSAGES[:1], {"role": "user", "content": document}])
    prompt = make_prompt_encoder(chosen).encode(None, messages)
    speculation = make_speculator(chosen).speculate(prompt, chosen.selection)
    assert not speculation.draft_failed
    selection = speculation.selection
    assert selection.active
    assert selection.prompt_length == len(prompt.token_ids)
    assert selection.kept.size < 0.6 * len(prompt.token_ids)
