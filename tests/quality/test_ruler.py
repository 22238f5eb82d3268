# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from specprefill.errors import ConfigurationError
from specprefill.prompt import PromptEncoder
from specprefill.quality import metrics
from specprefill.quality.evidence import evidence_mask
from specprefill.quality.ruler import AGGREGATION, TASKS, generate_samples
from specprefill.quality.ruler.main_topic import _SUBJECTS
from specprefill.quality.sample import Sample


def tokens_of(sample, tokenizer):
    return PromptEncoder(tokenizer, 16384).encode(sample.text, sample.messages).token_ids


@pytest.mark.parametrize("length", [1024, 4096])
def test_prompts_have_the_wanted_length_from_below(tokenizer, length):
    for sample in generate_samples(tokenizer, [length], 2):
        tokens = len(tokens_of(sample, tokenizer))
        # One piece of filler is at most this long.
        assert length - 90 < tokens <= length, sample.name


def test_the_same_seed_writes_the_same_prompts_and_another_one_others(tokenizer):
    one, again = (generate_samples(tokenizer, [600], 2, seed=3) for _ in range(2))
    other = generate_samples(tokenizer, [600], 2, seed=4)
    assert one == again
    assert not {s.prompt for s in one} & {s.prompt for s in other}
    assert len({s.prompt for s in one}) == len(one) == 2 * len(TASKS)


def test_more_samples_go_on_from_fewer(tokenizer):
    few, more = (generate_samples(tokenizer, [600], n) for n in (1, 2))
    assert more[: len(few)] == few


@pytest.mark.parametrize("task", [task for task in TASKS if task not in AGGREGATION])
def test_the_evidence_and_nothing_else_decides_the_answer(tokenizer, task):
    for sample in generate_samples(tokenizer, [1024], 3, [task]):
        assert metrics.score(sample, " ".join(sample.evidence)) == 1.0
        rest = sample.prompt
        for piece in sample.evidence:
            assert rest.count(piece) == 1
            rest = rest.replace(piece, "")
        assert not any(answer in rest for answer in sample.answers)


def test_the_evidence_stands_at_different_places(tokenizer):
    places = []
    for sample in generate_samples(tokenizer, [1024], 12, ["niah_single"]):
        places.append(sample.prompt.find(sample.evidence[0]) / len(sample.prompt))
    assert min(places) < 0.3
    assert max(places) > 0.6


@pytest.mark.parametrize("task", ["common_words", "frequent_words"])
def test_the_answer_of_a_counting_prompt_is_its_most_frequent_word(tokenizer, task):
    for sample in generate_samples(tokenizer, [1024], 3, [task]):
        body = sample.prompt.split("\n\n")[0].partition(": ")[2]
        words = body.replace(",", "").split()
        counts = sorted(((words.count(word), word) for word in set(words)), reverse=True)
        assert counts[0][1] == sample.answers[0]
        assert counts[0][0] > counts[1][0]


def test_most_notes_are_on_the_main_topic_and_none_names_it(tokenizer):
    for sample in generate_samples(tokenizer, [1024], 3, ["main_topic"]):
        body, question = sample.prompt.split("\n\n")
        asked = [subject for subject in _SUBJECTS if subject in question]
        assert len(asked) == 3
        assert not any(subject in body for subject in asked)
        notes = {
            subject: sum(body.count(thing) for thing in _SUBJECTS[subject][2]) for subject in asked
        }
        (main,) = sample.answers
        assert notes.pop(main) > 2 * max(notes.values())


def test_the_question_comes_last(tokenizer):
    for sample in generate_samples(tokenizer, [600], 1):
        assert len(tokenizer(sample.prompt.rpartition("\n\n")[2]).input_ids) < 40


def test_bad_classes_and_lengths_are_told(tokenizer):
    with pytest.raises(ConfigurationError, match="'poem'; allowed: niah_single"):
        generate_samples(tokenizer, [600], 1, ["poem"])
    with pytest.raises(ConfigurationError, match="allowed: at least"):
        generate_samples(tokenizer, [20], 1)


def test_evidence_is_found_in_the_tokens_of_the_prompt(tokenizer):
    for sample in generate_samples(tokenizer, [600], 1, ["niah_multi_value", "qa_config"]):
        ids = tokens_of(sample, tokenizer)
        mask = evidence_mask(sample, tokenizer, ids)
        starts = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(int)))) == 1)
        ends = np.flatnonzero(np.diff(np.concatenate((mask.astype(int), [0]))) == -1) + 1
        found = [tokenizer.decode(ids[a:b]) for a, b in zip(starts, ends, strict=True)]
        assert len(found) == len(sample.evidence)
        for text, piece in zip(found, sample.evidence, strict=True):
            assert piece.strip() in text
            assert len(text) < len(piece) + 8


def test_evidence_of_raw_text(tokenizer):
    sample = Sample("s", "t", "One two three. Four.", ("x",), "qa_f1", 8, False, ("two three",))
    ids = tokens_of(sample, tokenizer)
    assert tokenizer.decode(ids[evidence_mask(sample, tokenizer, ids)]).strip() == "two three"
