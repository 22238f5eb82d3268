# SPDX-License-Identifier: Apache-2.0
"""The contract of every target engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from specprefill.errors import EngineError, InvalidRequestError
from specprefill.settings import SamplingSettings


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A pruned (or whole) prompt to continue.

    Attributes:
        request_id: unique among the requests in flight.
        token_ids: int32 [K], the kept tokens.
        position_ids: int32 [K], strictly increasing; the last is prompt_length - 1.
        prompt_length: M; the first generated token's position.
        sampling: how tokens are chosen, and how many.
        stop_token_ids: tokens that end the generation; they are not part of it.
        bad_token_sequences: sequences of tokens that are never completed.
    """

    request_id: str
    token_ids: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]
    prompt_length: int
    sampling: SamplingSettings
    stop_token_ids: frozenset[int]
    bad_token_sequences: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """One step of a generation.

    Attributes:
        token_id: the generated token; None if the step ended the generation without one.
        log_prob: log probability of the token under the unmodified logits.
        finish_reason: set on the last step.
        queue_ms: on the first step, time from submission to the start of the prefill.
        prefill_ms: on the first step, time from the prefill's start to the first token.
    """

    token_id: int | None
    log_prob: float = 0.0
    finish_reason: FinishReason | None = None
    queue_ms: float = 0.0
    prefill_ms: float = 0.0


class TargetEngine(ABC):
    """Prefills kept tokens at their original positions and decodes from position M."""

    @property
    @abstractmethod
    def context_length(self) -> int:
        """Largest position + 1 that the model was made for."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Most kept plus generated tokens that one request may hold."""

    @property
    @abstractmethod
    def load(self) -> tuple[int, int, int]:
        """Return running requests, waiting requests and cache tokens in use."""

    @property
    @abstractmethod
    def stop_token_ids(self) -> frozenset[int]:
        """The model's own stop tokens."""

    @property
    def takes_requests(self) -> bool:
        """False in a process that only works for the requests of another one (an MPI rank)."""
        return True

    def submit(self, request: GenerationRequest) -> Iterator[GenerationStep]:
        """Queue a request; iterate over its steps as they happen.

        Closing the iterator early cancels the request.

        Raises:
            EngineError: lengths or positions that no engine may be given.
            InvalidRequestError: the request does not fit into the context or the cache.
            ServerBusyError: the waiting queue is full.
        """
        check_positions(request)
        _check_room(request, self.context_length, self.capacity)
        return self._submit(request)

    @abstractmethod
    def _submit(self, request: GenerationRequest) -> Iterator[GenerationStep]:
        """Queue a request that was checked."""

    @abstractmethod
    def cancel(self, request_id: str) -> bool:
        """Stop a request within one step; return False if none of that id is in flight.

        Its iterator raises RequestCancelledError.
        """

    @abstractmethod
    def close(self) -> None:
        """End everything in flight and release the model."""


def check_positions(request: GenerationRequest) -> None:
    """Refuse ids that would make a runtime read out of bounds or decode at the wrong position.

    Raises:
        EngineError: says which rule is broken.
    """
    tokens, positions = request.token_ids, request.position_ids
    if len(tokens) == 0 or len(tokens) != len(positions):
        raise EngineError(
            f"{len(tokens)} token ids with {len(positions)} position ids; both must have the same "
            "length of at least 1"
        )
    if positions[0] < 0 or bool((np.diff(positions) <= 0).any()):
        raise EngineError("position ids must be non-negative and strictly increasing")
    if positions[-1] != request.prompt_length - 1:
        raise EngineError(
            f"the last position id is {positions[-1]}; it must be that of the last prompt token, "
            f"{request.prompt_length - 1}"
        )


def _check_room(request: GenerationRequest, context_length: int, capacity: int) -> None:
    room = context_length - request.prompt_length
    wanted = request.sampling.max_tokens
    if wanted > room:
        raise InvalidRequestError(
            "max_tokens",
            f"{wanted} after a prompt of {request.prompt_length} tokens exceeds the context of "
            f"{context_length}",
            f"integer from 1 up to {room}",
        )
    held = len(request.token_ids) + wanted
    if held > capacity:
        raise InvalidRequestError(
            "max_tokens",
            f"{len(request.token_ids)} kept prompt tokens and {wanted} to generate exceed the "
            f"key-value cache of {capacity} tokens",
            "a smaller max_tokens or keep_rate",
        )
