# SPDX-License-Identifier: Apache-2.0
import pytest
from specprefill.errors import ConfigurationError
from specprefill.quality import metrics
from specprefill.quality.sample import Sample


def sample(metric, *answers, **fields):
    return Sample("s", "t", "prompt", answers, metric, 8, **fields)


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        ("The code is 12345.", ("12345",), 1.0),
        ("The code is 912345.", ("12345",), 0.0),
        ("the code is 123456", ("12345",), 0.0),
        ("12345, 54321", ("12345", "54321", "11111"), 2 / 3),
        ("KOPEBA it is", ("kopeba",), 1.0),
        ("", ("12345",), 0.0),
    ],
)
def test_string_match(text, answers, expected):
    assert metrics.score(sample("string_match", *answers), text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        ("The Eiffel Tower.", ("eiffel tower",), 1.0),
        ("in Paris, France", ("Paris",), 2 * (1 / 3) * 1 / (1 / 3 + 1)),
        ("in Paris, France", ("London", "Paris, France"), 0.8),
        ("no", ("yes",), 0.0),
        ("the the", ("the",), 0.0),  # nothing is left of either
    ],
)
def test_question_answering_f1(text, answers, expected):
    assert metrics.score(sample("qa_f1", *answers), text) == pytest.approx(expected)


def test_f1_counts_repeated_words_once_per_occurrence():
    assert metrics.qa_f1("red red red", "red") == pytest.approx(0.5)


def test_chinese_f1_is_over_characters_without_punctuation():
    # Three of four characters are shared by four: 2 * 3 / 8.
    assert metrics.qa_f1_zh("北京大学。", "北京大雪") == pytest.approx(0.75)


def test_rouge_l_is_the_longest_common_subsequence():
    # "the cat sat" of 3 words in 4 and in 6: F1 = 2 * 3 / (4 + 6).
    assert metrics.rouge_l("the cat sat down", "the black cat sat over there") == pytest.approx(0.6)
    assert metrics.rouge_l("", "words") == 0.0
    assert metrics.rouge_l_zh("天气好", "天气很好") == pytest.approx(6 / 7)


def test_classification_shares_credit_between_the_labels_named():
    labels = ("Food", "Fast food", "Sport", "Weather")
    right = sample("classification", "Fast food", classes=labels)
    assert metrics.score(right, "Fast food") == 1.0
    assert metrics.score(right, "Fast food or Sport") == 0.5
    assert metrics.score(right, "Sport") == 0.0
    # "Food" is named by itself, and is no part of "Fast food".
    assert metrics.score(right, "Food: Fast food") == 0.5


def test_a_label_within_the_right_one_is_not_named_by_it():
    labels = ("food", "fast food")
    assert metrics.score(sample("classification", "fast food", classes=labels), "fast food") == 1.0


def test_code_similarity_takes_the_first_line_of_code():
    assert metrics.code_similarity("\n# a comment\nreturn x\nmore", "return x") == 1.0
    assert metrics.code_similarity("```python\n# only\n", "return x") == 0.0
    assert 0 < metrics.code_similarity("return y", "return x") < 1


@pytest.mark.parametrize(
    ("text", "expected"), [("Paragraph 7", 1.0), ("7 or 8", 0.5), ("none", 0.0), ("17", 0.0)]
)
def test_retrieval(text, expected):
    assert metrics.score(sample("retrieval", "Paragraph 7"), text) == expected
    assert metrics.score(sample("retrieval", "段落7"), text) == expected


def test_count():
    assert metrics.score(sample("count", "12"), "There are 12 of 30.") == 0.5


def test_only_the_first_line_counts_where_a_sample_says_so():
    assert metrics.score(sample("qa_f1", "Paris", first_line=True), "\nParis\nQuestion: x") == 1.0
    assert metrics.score(sample("qa_f1", "Paris"), "\nParis\nQuestion: x") < 1.0


def test_bad_samples_are_told():
    with pytest.raises(ConfigurationError, match="'bleu'; allowed: string_match"):
        metrics.score(sample("bleu", "x"), "x")
    with pytest.raises(ConfigurationError, match="no expected answer"):
        metrics.score(sample("qa_f1"), "x")
