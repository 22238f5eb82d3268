# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001 - Chinese prompts
"""LongBench (arXiv 2308.14508) from a local folder in its public JSONL form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specprefill.errors import ConfigurationError
from specprefill.quality.sample import Sample

FIELDS = ("input", "context", "answers", "length", "dataset", "language", "all_classes", "_id")


@dataclass(frozen=True, slots=True)
class DataSet:
    """How the records of one data set become prompts.

    Attributes:
        category: the category that LongBench reports it under.
        metric: name in `metrics.METRICS`.
        max_tokens: longest answer, as published.
        template: prompt with {context} and {input}. The wording is ours; the benchmark's own is
            used where its dataset2prompt.json lies in the data folder.
        chat: False for few-shot and code prompts, which go without a chat template, as published.
        first_line: only the answer's first line counts.
    """

    category: str
    metric: str
    max_tokens: int
    template: str
    chat: bool = True
    first_line: bool = False


_ARTICLE = (
    "Below is {what}. Answer the question about it as briefly as you can; if it does not hold the "
    "answer, say so. Give the answer alone.\n\n{{context}}\n\nQuestion about {what}: {{input}}\n"
    "Short answer:"
)
_PASSAGES = (
    "Answer the question from the passages below. Give the answer alone.\n\n{context}\n\n"
    "Question about these passages: {input}\nAnswer:"
)
_EXAMPLES = "{lead}\n\n{{context}}\n{{input}}"

DATA_SETS: dict[str, DataSet] = {
    "narrativeqa": DataSet(
        "single-doc QA", "qa_f1", 128, _ARTICLE.format(what="a story, a book or a film script")
    ),
    "qasper": DataSet(
        "single-doc QA",
        "qa_f1",
        128,
        "Below is a scientific article. Answer the question about it with a short phrase, with "
        '"yes", "no", or with "unanswerable" if the article does not tell.\n\n{context}\n\n'
        "Question about the article: {input}\nShort answer:",
    ),
    "multifieldqa_en": DataSet(
        "single-doc QA", "qa_f1", 64, _ARTICLE.format(what="a document of several pages")
    ),
    "multifieldqa_zh": DataSet(
        "single-doc QA",
        "qa_f1_zh",
        64,
        "请先阅读下面的文章，然后简短地回答问题。\n\n{context}\n\n问题：{input}\n只写答案：",
    ),
    "hotpotqa": DataSet("multi-doc QA", "qa_f1", 32, _PASSAGES),
    "2wikimqa": DataSet("multi-doc QA", "qa_f1", 32, _PASSAGES),
    "musique": DataSet("multi-doc QA", "qa_f1", 32, _PASSAGES),
    "dureader": DataSet(
        "multi-doc QA",
        "rouge_l_zh",
        128,
        "请根据下面的几篇文章回答问题。\n\n{context}\n\n问题：{input}\n回答：",
    ),
    "gov_report": DataSet(
        "summarisation",
        "rouge_l",
        512,
        "Below is a report of a government agency. Summarise it on one page.\n\n{context}\n\n"
        "Summary on one page:",
    ),
    "qmsum": DataSet(
        "summarisation",
        "rouge_l",
        512,
        "Below is the transcript of a meeting, then a question or an instruction about it. Reply "
        "in one or more sentences.\n\n{context}\n\nAbout the meeting: {input}\nReply:",
    ),
    "multi_news": DataSet(
        "summarisation",
        "rouge_l",
        512,
        "Below are several news articles. Summarise them together on one page.\n\n{context}\n\n"
        "Summary on one page:",
    ),
    "vcsum": DataSet(
        "summarisation",
        "rouge_l_zh",
        512,
        "下面是一份会议记录，请写出它的摘要。\n\n{context}\n\n摘要：",
    ),
    "trec": DataSet(
        "few-shot",
        "classification",
        64,
        _EXAMPLES.format(lead="Name the type of the last question, as in these examples."),
        chat=False,
        first_line=True,
    ),
    "triviaqa": DataSet(
        "few-shot",
        "qa_f1",
        32,
        _EXAMPLES.format(
            lead="Answer the last question from its passage, with the answer alone, as in these "
            "examples."
        ),
        chat=False,
        first_line=True,
    ),
    "samsum": DataSet(
        "few-shot",
        "rouge_l",
        128,
        _EXAMPLES.format(lead="Sum up the last dialogue in a few sentences, as in these examples."),
        chat=False,
        first_line=True,
    ),
    "lsht": DataSet(
        "few-shot",
        "classification",
        64,
        _EXAMPLES.format(lead="请仿照下面的例子，写出最后一条新闻的类别。"),
        chat=False,
        first_line=True,
    ),
    "passage_count": DataSet(
        "synthetic",
        "count",
        32,
        "Some of the paragraphs below are repeated. Count how many different ones there are.\n\n"
        "{context}\n\nReply with one number.\nNumber of different paragraphs:",
    ),
    "passage_retrieval_en": DataSet(
        "synthetic",
        "retrieval",
        32,
        "Below are 30 numbered paragraphs, then a summary of one of them.\n\n{context}\n\n"
        "Summary: {input}\n\nReply with the paragraph that it belongs to, in the form "
        "Paragraph 1.\nThe summary belongs to:",
    ),
    "passage_retrieval_zh": DataSet(
        "synthetic",
        "retrieval",
        32,
        "下面有若干带编号的段落，最后是其中一段的摘要。\n\n{context}\n\n摘要：{input}\n\n"
        "请用“段落1”这样的形式写出摘要属于哪一段。\n摘要属于：",
    ),
    "lcc": DataSet(
        "code",
        "code_similarity",
        64,
        "Write the line of code that follows.\n{context}Next line:\n",
        chat=False,
    ),
    "repobench-p": DataSet(
        "code",
        "code_similarity",
        64,
        "Write the line of code that follows.\n{context}{input}Next line:\n",
        chat=False,
    ),
}


def load_samples(
    folder: Path,
    names: tuple[str, ...] = (),
    per_set: int | None = None,
    tokenizer: Any = None,
    max_prompt_tokens: int | None = None,
) -> list[Sample]:
    """Read LongBench records as samples.

    Args:
        folder: holds <data set>.jsonl or <data set>_e.jsonl; dataset2prompt.json in it or in its
            config folder replaces our wording of the prompts.
        names: data sets to read; none means every one that the folder holds.
        per_set: first records of each to take; None takes all.
        tokenizer: needed with max_prompt_tokens.
        max_prompt_tokens: longer prompts lose their middle, as published.

    Raises:
        ConfigurationError: folder or data set missing, or a record that lacks a field.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"LongBench folder {folder} does not exist")
    files = {path.stem.removesuffix("_e"): path for path in sorted(folder.glob("*.jsonl"))}
    known = [name for name in files if name in DATA_SETS]
    missing = [name for name in names if name not in known]
    if missing or not known:
        raise ConfigurationError(
            f"LongBench folder {folder} holds no {missing[0] if missing else 'data set'}; "
            f"found: {', '.join(known) or 'nothing'}; allowed: {', '.join(DATA_SETS)}"
        )
    templates = _templates(folder)
    samples = []
    for name in names or known:
        for number, record in enumerate(_records(files[name])):
            if number == per_set:
                break
            samples.append(_sample(name, number, record, templates))
    if max_prompt_tokens is None:
        return samples
    return [_truncate(sample, tokenizer, max_prompt_tokens) for sample in samples]


def render(name: str, context: str, question: str, template: str | None = None) -> str:
    """Fill one data set's template (ours unless another is given)."""
    template = DATA_SETS[name].template if template is None else template
    # Not str.format: contexts hold braces.
    head, _, tail = template.partition("{context}")
    return head.replace("{input}", question) + context + tail.replace("{input}", question)


def truncate_middle(text: str, tokenizer: Any, max_tokens: int) -> str:
    """Drop the middle of a text that is longer than max_tokens: its two ends stay."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    if len(ids) <= max_tokens:
        return text
    half = max_tokens // 2
    ends = (ids[:half], ids[len(ids) - half :])
    return "".join(tokenizer.decode(end, skip_special_tokens=True) for end in ends)


def _templates(folder: Path) -> Mapping[str, str]:
    for path in (folder / "dataset2prompt.json", folder / "config" / "dataset2prompt.json"):
        if path.is_file():
            try:
                templates = json.loads(path.read_text())
            except ValueError as error:
                raise ConfigurationError(f"{path} is no JSON: {error}") from error
            if not isinstance(templates, dict):
                raise ConfigurationError(f"{path} must map data sets to prompt templates")
            return templates
    return {}


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ConfigurationError(f"{path}:{number}: no JSON: {error}") from error
            missing = [field for field in FIELDS if field not in record]
            if missing:
                raise ConfigurationError(f"{path}:{number}: the record lacks {missing[0]!r}")
            yield record


def _sample(
    name: str, number: int, record: Mapping[str, Any], templates: Mapping[str, str]
) -> Sample:
    data_set = DATA_SETS[name]
    return Sample(
        name=f"{name}-{record['_id'] or number}",
        task=name,
        prompt=render(name, record["context"], record["input"], templates.get(name)),
        answers=tuple(record["answers"]),
        metric=data_set.metric,
        max_tokens=data_set.max_tokens,
        chat=data_set.chat,
        classes=tuple(record["all_classes"] or ()),
        first_line=data_set.first_line,
        length=int(record["length"]),
    )


def _truncate(sample: Sample, tokenizer: Any, max_prompt_tokens: int) -> Sample:
    prompt = truncate_middle(sample.prompt, tokenizer, max_prompt_tokens)
    return replace(sample, prompt=prompt)
