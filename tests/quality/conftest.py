# SPDX-License-Identifier: Apache-2.0
"""A deployment of the tiny model, as target and as its own draft."""

import pytest
from specprefill.settings import Settings


@pytest.fixture(scope="session")
def tiny_settings(tiny_llama) -> Settings:
    return Settings.model_validate(
        {
            "draft": {"model": str(tiny_llama), "dtype": "float32"},
            "target": {"model": str(tiny_llama), "dtype": "float32", "prefill_chunk_tokens": 256},
            "selection": {"query_window": 8, "keep_rate": 0.2, "min_prompt_tokens": 0},
        }
    )
