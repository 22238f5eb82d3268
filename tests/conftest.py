# SPDX-License-Identifier: Apache-2.0
"""Models shared by all tests, the embedded one and a tiny one, and one real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Draft and target share few cores with the tests; spinning threads would starve each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from specprefill.demo import demo_messages
from specprefill.embedded_model import resolve_model
from specprefill.server import TritonServer
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.serving.conftest import settings


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of the embedded model."""
    return resolve_model("smollm2")


@pytest.fixture(scope="session")
def server(smollm2: Path) -> Iterator[TritonServer]:
    """One real tritonserver for all tests; it prunes from 256 tokens on so that they stay short."""
    chosen = settings(
        selection={"min_prompt_tokens": 256},
        target={"max_running": 4, "max_queue": 4, "prefill_chunk_tokens": 256},
    )
    with TritonServer(chosen) as server:
        yield server


@pytest.fixture(scope="session")
def messages() -> str:
    """A document of about 800 tokens with a question, as chat messages."""
    return demo_messages(40)


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path):
    return AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    """Folder of a 4-layer Llama with grouped keys and random weights, float32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.4,  # sharp attention, so that rankings are no accident of rounding
    )
    folder = tmp_path_factory.mktemp("tiny-llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
