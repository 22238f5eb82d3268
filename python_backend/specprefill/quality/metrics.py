# SPDX-License-Identifier: Apache-2.0
"""How answers are scored: RULER's string match and the metrics that LongBench publishes.

Definitions: RULER, arXiv 2404.06654; LongBench, arXiv 2308.14508. Every score is in [0, 1].
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specprefill.errors import ConfigurationError

if TYPE_CHECKING:
    from specprefill.quality.sample import Sample

_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def string_match(text: str, expected: Sequence[str]) -> float:
    """Share of the expected strings that appear in the answer, in whatever case (RULER)."""
    lowered = text.lower()
    return sum(_appears(answer.lower(), lowered) for answer in expected) / len(expected)


def _appears(answer: str, text: str) -> bool:
    # 1234 is no answer if the text says 51234.
    start = r"(?<!\w)" if answer[:1].isalnum() else ""
    end = r"(?!\w)" if answer[-1:].isalnum() else ""
    return re.search(f"{start}{re.escape(answer)}{end}", text) is not None


def normalise(text: str) -> str:
    """Lower-case, without punctuation and English articles, single spaces (SQuAD)."""
    bare = "".join(c for c in text.lower() if c not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def token_f1(prediction: Sequence[str], expected: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over the tokens that both share."""
    shared = sum((Counter(prediction) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    return 2 * shared / (len(prediction) + len(expected))


def qa_f1(text: str, expected: str) -> float:
    """F1 over the words of the normalised texts."""
    return token_f1(normalise(text).split(), normalise(expected).split())


def qa_f1_zh(text: str, expected: str) -> float:
    """F1 over characters: LongBench splits words with jieba, so its figures differ a little."""
    return token_f1(_characters(text), _characters(expected))


def rouge_l(text: str, expected: str) -> float:
    """ROUGE-L F1, without stemming."""
    return _rouge_l(text.split(), expected.split())


def rouge_l_zh(text: str, expected: str) -> float:
    """ROUGE-L F1 over characters (LongBench: over jieba's words)."""
    return _rouge_l(_characters(text), _characters(expected))


def classification(text: str, expected: str, classes: Sequence[str]) -> float:
    """1 over the number of labels named, if the right one is among them.

    A label that is part of the right one does not count as named.
    """
    named = [label for label in classes if label in text]
    named = [label for label in named if label == expected or label not in expected]
    return 1 / len(named) if expected in named else 0.0


def code_similarity(text: str, expected: str) -> float:
    """Edit similarity of the first line of code of the answer."""
    from rapidfuzz import fuzz

    lines = text.lstrip("\n").split("\n")
    code = [line for line in lines if not any(mark in line for mark in ("`", "#", "//"))]
    return fuzz.ratio(code[0] if code else "", expected) / 100


def retrieval(text: str, expected: str) -> float:
    """Share of the numbers in the answer that are the right paragraph's."""
    wanted = re.search(r"(?:Paragraph |段落)(\d+)", expected)
    return _share_of_numbers(text, wanted.group(1) if wanted else expected.strip())


def count(text: str, expected: str) -> float:
    """Share of the numbers in the answer that are the right one."""
    return _share_of_numbers(text, expected.strip())


def _share_of_numbers(text: str, wanted: str) -> float:
    numbers = re.findall(r"\d+", text)
    return sum(number == wanted for number in numbers) / len(numbers) if numbers else 0.0


def _characters(text: str) -> list[str]:
    # Punctuation, symbols and separators of every script.
    return [c for c in text.lower() if unicodedata.category(c)[0] not in "PSZC"]


class _Ready:
    """A tokenizer for rouge-score that takes texts which are tokens already."""

    def tokenize(self, text: list[str]) -> list[str]:
        return text


def _rouge_l(prediction: list[str], expected: list[str]) -> float:
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

    scorer = RougeScorer(["rougeL"], tokenizer=_Ready())
    return float(scorer.score(expected, prediction)["rougeL"].fmeasure)


# Metrics that compare an answer with one expected text; the best of several counts.
_PAIRWISE: dict[str, Callable[[str, str], float]] = {
    "qa_f1": qa_f1,
    "qa_f1_zh": qa_f1_zh,
    "rouge_l": rouge_l,
    "rouge_l_zh": rouge_l_zh,
    "code_similarity": code_similarity,
    "retrieval": retrieval,
    "count": count,
}
METRICS = ("string_match", "classification", *_PAIRWISE)


def score(sample: Sample, text: str) -> float:
    """Score one answer by its sample's metric.

    Raises:
        ConfigurationError: the sample names no known metric, or expects nothing.
    """
    if not sample.answers:
        raise ConfigurationError(f"sample {sample.name} has no expected answer")
    if sample.first_line:
        text = text.lstrip("\n").split("\n")[0]
    if sample.metric == "string_match":
        return string_match(text, sample.answers)
    if sample.metric == "classification":
        return max(classification(text, answer, sample.classes) for answer in sample.answers)
    if sample.metric not in _PAIRWISE:
        raise ConfigurationError(f"metric {sample.metric!r}; allowed: {', '.join(METRICS)}")
    compare = _PAIRWISE[sample.metric]
    return max(compare(text, answer) for answer in sample.answers)
