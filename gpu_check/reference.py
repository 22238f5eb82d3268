# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's own Llama with explicit positions: what every engine is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from specprefill.scoring import ScoringRule
from transformers import AutoModelForCausalLM

from gpu_check.bench import CheckSkippedError

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the reference thinks of a continuation, token by token.

    Attributes:
        log_probs: float [n], of the tokens that were chosen.
        best: float [n], of the tokens that the reference would have chosen.
    """

    log_probs: npt.NDArray[np.float64]
    best: npt.NDArray[np.float64]

    @property
    def regret(self) -> float:
        """Largest log probability given away by a choice; 0 means equal greedy tokens."""
        return float((self.best - self.log_probs).max())


class Reference:
    """A Hugging Face model."""

    def __init__(
        self,
        folder: Path,
        attention: str = "sdpa",
        device: str = "cuda",
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Load the model; skips the check where it does not fit beside what is in memory.

        Args:
            folder: Hugging Face folder.
            attention: `eager` for a model whose attention is looked at.
            device: where it runs.
            dtype: what it computes in.
        """
        self._device = device
        if device != "cpu":
            _check_room(folder)
        version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
        dtype_name = "dtype" if version >= (4, 56) else "torch_dtype"
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            attn_implementation=attention,
            local_files_only=True,
            **{dtype_name: dtype},
        )
        self._model.to(device).eval()

    @torch.inference_mode()
    def judge(self, token_ids: Ids, position_ids: Ids, continuation: Ids, start: int) -> Judgement:
        """Read a prompt and a continuation, and judge the continuation.

        Args:
            token_ids: int32 [K].
            position_ids: int32 [K].
            continuation: int32 [n], tokens behind the prompt.
            start: position of the first of them.
        """
        count = len(continuation)
        ids = np.concatenate((token_ids, continuation[:-1]))
        positions = np.concatenate((position_ids, np.arange(start, start + count - 1)))
        output = self._model(
            input_ids=self._tensor(ids)[None],
            position_ids=self._tensor(positions)[None],
            # Without a cache transformers takes gaps in the positions for packed sequences.
            use_cache=True,
            logits_to_keep=count,
        )
        log_probs = torch.log_softmax(output.logits[0].double(), dim=-1)
        chosen = log_probs.gather(1, self._tensor(continuation)[:, None])[:, 0]
        return Judgement(chosen.cpu().numpy(), log_probs.max(dim=-1).values.cpu().numpy())

    @torch.inference_mode()
    def importance(
        self, prompt_ids: Ids, rule: ScoringRule, score_layers: tuple[int, int] | None
    ) -> npt.NDArray[np.float32]:
        """Compute a scoring rule's importance from attention that Hugging Face gives out.

        Args:
            prompt_ids: int32 [M].
            rule: the scoring rule.
            score_layers: first and last layer that count, unless the rule has its own; None
                counts all.

        Returns:
            float32 [M].
        """
        length = len(prompt_ids)
        ids, rows = self._tensor(prompt_ids)[None], []
        counted = score_layers if rule.layer is None else (rule.layer, rule.layer)
        for step in range(rule.look_ahead):
            output = self._model(
                input_ids=ids, use_cache=True, output_attentions=True, logits_to_keep=1
            )
            queries = min(rule.prompt_queries, length) if step == 0 else 1
            layers = []
            first, last = counted or (0, len(output.attentions) - 1)
            for attention in output.attentions[first : last + 1]:
                seen = attention[0, :, -queries:, :length].float()  # [heads, n, M]
                layers.append(rule.reduce_layer(seen / seen.sum(dim=-1, keepdim=True)))
            rows.append(torch.stack(layers).amax(dim=0))
            ids = torch.cat((ids, output.logits[:, -1].argmax(dim=-1)[:, None]), dim=1)
        importance: npt.NDArray[np.float32] = torch.cat(rows).mean(dim=0).cpu().numpy()
        return importance

    def close(self) -> None:
        """Release the model."""
        self._model = None

    def _tensor(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(self._device)


def _check_room(folder: Path) -> None:
    needed = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    free, _ = torch.cuda.mem_get_info()
    if needed * 1.1 > free:
        raise CheckSkippedError(
            f"the reference needs {needed / 2**30:.0f} GiB of GPU memory and "
            f"{free / 2**30:.0f} are free"
        )
