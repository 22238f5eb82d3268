# SPDX-License-Identifier: Apache-2.0
"""A server that was told to writes down what it kept, and what it wrote can be replayed."""

import numpy as np
from specprefill.demo import demo_messages
from specprefill.engines import make_prompt_encoder
from specprefill.records import read_record, replay
from specprefill.server import TritonServer

from tests.serving.conftest import generate, settings


def test_records_are_written_and_replayed(tiny_llama, tmp_path):
    model = {"model": str(tiny_llama), "dtype": "float32"}
    chosen = settings(
        target=model,
        draft={**model, "layers": 4, "score_layers": [1, 3]},
        records={"folder": str(tmp_path / "records")},
    )
    messages = demo_messages(40)
    with TritonServer(chosen) as server:
        assert generate(server, "specprefill", text_input="short", max_tokens=1)["active"] is False
        answer = generate(
            server, "specprefill", messages=messages, max_tokens=1, return_kept_spans=True
        )
    (file,) = (tmp_path / "records").glob("*.json")
    record = read_record(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert record.reason == answer["reason"]
    assert "archive room" not in file.read_text()  # hashes alone, unless told otherwise
    ids = make_prompt_encoder(chosen).encode(None, messages).token_ids
    spans = np.reshape(answer["kept_spans"], (-1, 2)).tolist()
    assert [list(span) for span in replay(record, ids).spans()] == spans
