# SPDX-License-Identifier: Apache-2.0
"""Few rows give what plain linear layers give, and layers of other kinds are left alone."""

import pytest
import torch
from specprefill.torch_engine.few_rows_linear import FewRowsLinear, speed_up_few_rows


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 16, 17, 64, 65, 200])
@pytest.mark.parametrize(("outputs", "bias"), [(48, True), (48, False), (16400, False)])
def test_every_number_of_rows_gives_the_same_product(rows, outputs, bias):
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, outputs, bias=bias)
    inputs = torch.randn(1, rows, 32)
    with torch.inference_mode():
        torch.testing.assert_close(FewRowsLinear(layer)(inputs), layer(inputs))


def test_a_weight_is_shared_and_not_copied():
    layer = torch.nn.Linear(8, 4)
    assert FewRowsLinear(layer).weight is layer.weight


def test_only_float32_layers_are_replaced():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 4), torch.nn.Linear(4, 4, dtype=torch.bfloat16), torch.nn.ReLU()
    )
    speed_up_few_rows(model)
    assert [type(part) for part in model] == [FewRowsLinear, torch.nn.Linear, torch.nn.ReLU]
