# SPDX-License-Identifier: Apache-2.0
"""Where queries come from: a prompt file, a LongBench folder, or generated documents."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specprefill.demo import QUESTION, document
from specprefill.errors import InvalidRequestError, SpecPrefillError
from specprefill.perf_input import read_prompts
from specprefill.quality.longbench import DATA_SETS, load_samples

from load_generator.query import Query

CATEGORIES = tuple(dict.fromkeys(data_set.category for data_set in DATA_SETS.values()))


def read_queries(path: Path, max_tokens: int = 64) -> list[Query]:
    """Read a prompt file; see `specprefill.perf_input.read_prompts` for its form.

    Args:
        path: .jsonl with one request per line, else one prompt.
        max_tokens: for records without their own.
    """
    queries = []
    for number, record in enumerate(read_prompts(path), 1):
        prompt, messages = record.pop("prompt", None), record.pop("messages", ())
        name = str(record.pop("name", f"{path.name}:{number}"))
        tokens = record.pop("max_tokens", max_tokens)
        queries.append(Query(name, tokens, prompt, tuple(messages), record))
    return queries


def documents(
    count: int, sentences: Sequence[int], max_tokens: int = 24, seed: int = 0
) -> list[Query]:
    """Generate chat questions about town chronicles of mixed lengths; no two are the same.

    Args:
        count: number of queries.
        sentences: lengths to draw from, about 21 tokens per sentence.
        max_tokens: length of each answer at most.
        seed: the same seed gives the same queries.
    """
    draw = random.Random(seed)
    queries = []
    for number in range(1, count + 1):
        length = draw.choice(list(sentences))
        text = document(length, seed=draw.getrandbits(32), fact_at=draw.random())
        message = {"role": "user", "content": f"{text}\n\n{QUESTION}"}
        queries.append(Query(f"document {number}", max_tokens, messages=(message,)))
    return queries


def longbench(
    folder: Path,
    categories: Sequence[str] = (),
    per_set: int = 20,
    tokenizer: str | None = None,
    max_prompt_tokens: int | None = None,
    seed: int = 0,
) -> list[Query]:
    """Read LongBench by category, data sets mixed.

    Args:
        folder: holds <data set>.jsonl.
        categories: names from `CATEGORIES`; none means all that the folder holds.
        per_set: records of each data set; the paper took 20.
        tokenizer: Hugging Face folder, needed with max_prompt_tokens.
        max_prompt_tokens: longer prompts lose their middle, as LongBench does it.
        seed: shuffles the queries.

    Raises:
        InvalidRequestError: no such category.
        SpecPrefillError: the folder lacks a data set, or a tokenizer is needed.
    """
    unknown = [category for category in categories if category not in CATEGORIES]
    if unknown:
        raise InvalidRequestError("category", f"got {unknown[0]!r}", ", ".join(CATEGORIES))
    held = {path.stem.removesuffix("_e") for path in folder.glob("*.jsonl")}
    names = tuple(
        name
        for name, data_set in DATA_SETS.items()
        if name in held and data_set.category in (categories or CATEGORIES)
    )
    if categories and not names:
        raise SpecPrefillError(f"{folder} holds no data set of {', '.join(categories)}")
    loaded = None if max_prompt_tokens is None else _tokenizer(tokenizer)
    samples = load_samples(folder, names, per_set, loaded, max_prompt_tokens)
    queries = [
        Query(
            sample.name,
            sample.max_tokens,
            None if sample.chat else sample.prompt,
            ({"role": "user", "content": sample.prompt},) if sample.chat else (),
        )
        for sample in samples
    ]
    random.Random(seed).shuffle(queries)
    return queries


def _tokenizer(folder: str | None) -> Any:
    if folder is None:
        raise SpecPrefillError("max_prompt_tokens needs a tokenizer: name its folder")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise SpecPrefillError("max_prompt_tokens needs transformers installed") from error
    return AutoTokenizer.from_pretrained(folder)
