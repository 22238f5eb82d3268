# SPDX-License-Identifier: Apache-2.0
"""The kept spans come on request and add up."""

import numpy as np
import pytest
from specprefill.client import stream

from tests.serving.conftest import generate


@pytest.mark.parametrize("model", ["specprefill", "ensemble"])
def test_spans_add_up_to_the_kept_tokens(server, messages, model):
    fields = {"messages": messages, "max_tokens": 2}
    answer = generate(server, model, **fields, return_kept_spans=True)
    spans = np.reshape(answer["kept_spans"], (-1, 2))
    assert (spans[:, 1] - spans[:, 0]).sum() == answer["kept_tokens"] < answer["prompt_tokens"]
    assert spans[0, 0] == 0
    assert spans[-1, 1] == answer["prompt_tokens"]
    assert (spans[1:, 0] > spans[:-1, 1]).all()
    assert "kept_spans" not in generate(server, model, **fields)


def test_spans_come_with_the_first_and_the_last_response(server):
    pieces = list(stream(server.grpc_url, text_input="Hi", max_tokens=4, return_kept_spans=True))
    assert pieces[0].outputs["kept_spans"] == [0, 1]
    assert pieces[-1].outputs["kept_spans"] == [0, 1]
