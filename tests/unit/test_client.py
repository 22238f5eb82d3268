# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import numpy as np
import pytest
from specprefill.client import ServerError, make_input, stream
from specprefill.errors import SpecPrefillError

BARE = """
import sys
for name in ("torch", "transformers", "tokenizers", "pytriton", "psutil"):
    sys.modules[name] = None  # importing it raises, as where it is not installed
import specprefill.cli, specprefill.client, specprefill.demo, specprefill.server
print("ok")
"""


def test_a_client_needs_no_torch():
    told = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False)
    assert told.stdout == "ok\n", told.stderr


@pytest.mark.parametrize(
    ("name", "value", "wire", "shape"),
    [
        ("text_input", "grüße", "BYTES", [1, 1]),
        ("max_tokens", 7, "INT32", [1, 1]),
        ("keep_rate", 0.2, "FP32", [1, 1]),
        ("stream", True, "BOOL", [1, 1]),
        ("seed", 2**64 - 1, "UINT64", [1, 1]),
        ("stop_words", ["a", "b"], "BYTES", [1, 2]),
    ],
)
def test_inputs_have_the_declared_type_and_a_batch_of_one(name, value, wire, shape):
    tensor = make_input(name, value)
    assert tensor.datatype() == wire
    assert tensor.shape() == shape


def test_unknown_inputs_are_refused_before_anything_is_sent():
    with pytest.raises(SpecPrefillError, match=r"keeprate: unknown input; allowed: .*keep_rate"):
        make_input("keeprate", np.float32(0.1))


def test_a_server_that_is_not_there_is_an_error_of_ours():
    with pytest.raises(ServerError):
        list(stream("127.0.0.1:1", text_input="Hi"))
