# SPDX-License-Identifier: Apache-2.0
"""Where in the prompt's tokens the answer stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specprefill.errors import SpecPrefillError
from specprefill.quality.sample import Sample


def evidence_mask(
    sample: Sample, tokenizer: Any, token_ids: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Mark the prompt tokens that hold the answer.

    Args:
        sample: with its evidence.
        tokenizer: the target's fast tokenizer.
        token_ids: int32 [M], the prompt as it was encoded.

    Returns:
        bool [M]; none is True if the sample names no evidence.

    Raises:
        SpecPrefillError: the prompt cannot be traced back to its text.
    """
    rendered = sample.prompt
    if sample.chat:
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": sample.prompt}],
            tokenize=False,
            add_generation_prompt=True,
        )
    encoded = tokenizer(
        rendered,
        add_special_tokens=not sample.chat,
        return_offsets_mapping=True,
        verbose=False,
    )
    if not np.array_equal(encoded["input_ids"], token_ids):
        raise SpecPrefillError(f"sample {sample.name}: its tokens are not those of its text")
    offsets = np.asarray(encoded["offset_mapping"]).reshape(-1, 2)  # [M, 2]
    mask = np.zeros(len(token_ids), dtype=np.bool_)
    for piece in sample.evidence:
        start = rendered.find(piece)
        if start < 0:
            raise SpecPrefillError(f"sample {sample.name}: evidence {piece!r} is not in its prompt")
        mask |= (offsets[:, 0] < start + len(piece)) & (offsets[:, 1] > start)
    return mask
