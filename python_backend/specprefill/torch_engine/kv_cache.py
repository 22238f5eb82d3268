# SPDX-License-Identifier: Apache-2.0
"""Keys and values of one sequence, in buffers that never move."""

from __future__ import annotations

import torch


class KVCache:
    """Per-layer key and value buffers of a fixed capacity; filled front to back.

    Attributes:
        length: tokens whose keys and values are complete in every layer.
    """

    def __init__(self, capacity: int) -> None:
        """Reserve room for `capacity` tokens; memory is taken when a layer is first written."""
        self.capacity = capacity
        self.length = 0
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def append(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new tokens behind the complete ones.

        Args:
            layer: layer index.
            keys: [kv_heads, n, d] after rotary embedding.
            values: [kv_heads, n, d].

        Returns:
            Views of all keys and values so far: [kv_heads, length + n, d] each.
        """
        if layer not in self._layers:
            kv_heads, _, head_dim = keys.shape
            shape = (kv_heads, self.capacity, head_dim)
            self._layers[layer] = (keys.new_empty(shape), values.new_empty(shape))
        all_keys, all_values = self._layers[layer]
        end = self.length + keys.shape[1]
        all_keys[:, self.length : end] = keys
        all_values[:, self.length : end] = values
        return all_keys[:, :end], all_values[:, :end]

    def advance(self, n: int) -> None:
        """Declare n more tokens complete, after every layer has appended them."""
        self.length += n
