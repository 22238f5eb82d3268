# SPDX-License-Identifier: Apache-2.0
"""Explanations: of a tiny model with random weights, and made up without any model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from specprefill.explain.explainer import Explainer
from specprefill.explain.explanation import Explanation
from specprefill.explain.prompt_text import find_text
from specprefill.prompt import ROLES, Prompt
from specprefill.records import make_record
from specprefill.selection import protected_mask, select
from specprefill.settings import SelectionSettings, load_settings
from specprefill.speculator import Speculation

WORDS = "\n".join(f"Line {i}: word{i % 97} has number {i * 37 % 1000}." for i in range(60))
CHAT = json.dumps(
    [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "Which number has word12?"},
        {"role": "tool", "content": WORDS},
    ]
)


@pytest.fixture(scope="session")
def tiny_settings(tiny_llama):
    return load_settings(
        overrides={
            "target": {"model": str(tiny_llama), "dtype": "float32"},
            "draft": {"model": str(tiny_llama), "dtype": "float32", "layers": 3},
            "selection": {"min_prompt_tokens": 64, "keep_rate": 0.3, "chunk_size": 16},
            "sampling": {"max_tokens": 8},
        },
        environment={},
    )


@pytest.fixture(scope="session")
def explainer(tiny_settings):
    return Explainer(tiny_settings)


@pytest.fixture(scope="session")
def explained_chat(explainer):
    return explainer.explain("chat.json", messages=CHAT)


@pytest.fixture(scope="session")
def make_explanation(tokenizer):
    """Explain a text with random importance: (text, seed, selection settings) -> Explanation."""

    def make(text, seed=0, title="made-up.txt", role_spans=None, repeat_ids=None, **selection):
        settings = SelectionSettings(min_prompt_tokens=0, **selection)
        ids = np.asarray(tokenizer(text).input_ids, dtype=np.int32)
        found = find_text(tokenizer, ids, text)
        if repeat_ids:  # a long prompt without the time to tokenise one
            ids = np.tile(ids, repeat_ids)
            steps = np.tile(np.diff(found.cuts), repeat_ids)
            found = replace(
                found, text=found.text * repeat_ids, cuts=np.append(0, np.cumsum(steps))
            )
        rng = np.random.default_rng(seed)
        importance = rng.gamma(1.0, 2.0, len(ids)).astype(np.float32)
        spans = tuple((s, e) for s, e, role in role_spans or () if role == ROLES.index("system"))
        prompt = Prompt(ids, spans)
        protected = protected_mask(
            len(ids), settings.protect_first, settings.protect_last, prompt.protected
        )
        speculation = Speculation(select(importance, settings, protected), 40.0)
        record = make_record(prompt, speculation, settings, "made-up", with_ids=True)
        n = len(record.chunk_starts)
        by_layer = {layer: rng.random(n).astype(np.float32) * layer for layer in range(3, 9)}
        return Explanation(title, record, found, role_spans, importance, by_layer)

    return make
