# SPDX-License-Identifier: Apache-2.0
"""Generated prompts in the manner of RULER (arXiv 2404.06654); our own texts and questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from specprefill.errors import ConfigurationError
from specprefill.quality.ruler.common_words import common_words
from specprefill.quality.ruler.frequent_words import frequent_words
from specprefill.quality.ruler.haystack import Haystack
from specprefill.quality.ruler.main_topic import main_topic
from specprefill.quality.ruler.niah_multi_key import niah_multi_key
from specprefill.quality.ruler.niah_multi_query import niah_multi_query
from specprefill.quality.ruler.niah_multi_value import niah_multi_value
from specprefill.quality.ruler.niah_single import niah_single
from specprefill.quality.ruler.qa_config import qa_config
from specprefill.quality.ruler.qa_prose import qa_prose
from specprefill.quality.ruler.qa_table import qa_table
from specprefill.quality.ruler.variable_tracking import variable_tracking
from specprefill.quality.sample import Sample

Task = Callable[[Random, Haystack, str], Sample]

TASKS: dict[str, Task] = {
    task.__name__: task
    for task in (
        niah_single,
        niah_multi_key,
        niah_multi_value,
        niah_multi_query,
        qa_prose,
        qa_config,
        qa_table,
        variable_tracking,
        common_words,
        frequent_words,
        main_topic,
    )
}
# Every part of these prompts matters: pruning is expected to cost here.
AGGREGATION = ("common_words", "frequent_words", "main_topic")


def generate_samples(
    tokenizer: Any,
    lengths: Sequence[int],
    per_cell: int,
    tasks: Sequence[str] = tuple(TASKS),
    seed: int = 0,
) -> list[Sample]:
    """Write prompts; the same arguments write the same ones.

    Args:
        tokenizer: fast tokenizer that lengths are measured with.
        lengths: prompt tokens, chat template included; met from below, within one sentence.
        per_cell: samples of each task and length.
        tasks: names in `TASKS`.
        seed: another seed writes other prompts.

    Returns:
        All samples; tasks and lengths take turns, so that a run cut short covers all of them.

    Raises:
        ConfigurationError: unknown task, or a length that is too short for its prompt.
    """
    unknown = [task for task in tasks if task not in TASKS]
    if unknown:
        raise ConfigurationError(f"classes: got {unknown[0]!r}; allowed: {', '.join(TASKS)}")
    haystacks = [Haystack(tokenizer, length) for length in lengths]
    samples = []
    for number in range(per_cell):
        for haystack in haystacks:
            for task in tasks:
                name = f"{task}-{haystack.length}-{seed}-{number}"
                samples.append(TASKS[task](Random(name), haystack, name))
    return samples
