# SPDX-License-Identifier: Apache-2.0
"""Linear layers that are fast on a CPU for the few rows of a decoding step too."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn.functional import linear

# Measured with float32 on AVX2. Narrow layers: up to three products of one row by MKL are faster
# than one of all rows by either, from some twenty rows on MKL is. Wide ones (the output embedding):
# oneDNN is faster from the first row on.
_MOST_ROWS_BY_ROW, _MOST_ROWS = 3, 16
_WIDE, _MOST_ROWS_WIDE = 16384, 64


class FewRowsLinear(torch.nn.Linear):
    """A float32 linear layer of a CPU that takes another way for few rows.

    MKL packs the whole weight for every product of more than one row, which takes longer than the
    product itself while the rows are few. The weight stays as it is and is not copied.
    """

    def __init__(self, layer: torch.nn.Linear) -> None:
        """Take over a layer's weight [out, in] and bias [out]."""
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight = layer.weight
        self.bias = layer.bias
        self._wide = layer.out_features >= _WIDE

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Multiply: [..., in] -> [..., out]."""
        rows = input.numel() // self.in_features
        if not self._wide and 1 < rows <= _MOST_ROWS_BY_ROW:
            parts = input.reshape(rows, self.in_features).split(1)
            out = torch.cat([linear(part, self.weight, self.bias) for part in parts])
            return out.view(*input.shape[:-1], self.out_features)
        if (self._wide or rows > 1) and rows <= (_MOST_ROWS_WIDE if self._wide else _MOST_ROWS):
            out = torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")
            return cast(torch.Tensor, out)
        return linear(input, self.weight, self.bias)


def speed_up_few_rows(model: Any) -> None:
    """Replace every float32 linear layer of a model on a CPU in place; others stay."""
    if not torch.backends.mkldnn.is_available():
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not torch.nn.Linear:
                continue
            if child.weight.device.type == "cpu" and child.weight.dtype == torch.float32:
                setattr(module, name, FewRowsLinear(child))
