# SPDX-License-Identifier: Apache-2.0
"""The one exception tree; every error knows its Triton code and its HTTP status."""

from __future__ import annotations

from typing import ClassVar


class SpecPrefillError(Exception):
    """Base of every error that this package raises on purpose.

    Attributes:
        triton_code: name of the `TritonError` code that a Triton response carries.
        http_status: status that an HTTP front end answers with.
    """

    triton_code: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500


class ConfigurationError(SpecPrefillError):
    """The deployment cannot work as configured; raised before anything is served."""


class InvalidRequestError(SpecPrefillError):
    """A request field has a value outside its allowed range."""

    triton_code = "INVALID_ARG"
    http_status = 400

    def __init__(self, field: str, problem: str, allowed: str) -> None:
        """Build the one sentence that a client reads.

        Args:
            field: public name of the field.
            problem: what is wrong with its value.
            allowed: the values that would have been accepted.
        """
        super().__init__(f"{field}: {problem}; allowed: {allowed}")
        self.field = field
        self.problem = problem
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[InvalidRequestError], tuple[str, str, str]]:
        """Keep the three parts when an error crosses a process."""
        return type(self), (self.field, self.problem, self.allowed)


class ServerBusyError(SpecPrefillError):
    """The waiting queue is full; the client may try again later."""

    triton_code = "UNAVAILABLE"
    http_status = 503


class StepUnavailableError(SpecPrefillError):
    """The process of a step is dead; it is started again within seconds."""

    triton_code = "UNAVAILABLE"
    http_status = 503

    def __init__(self, model: str) -> None:
        """Name the step."""
        super().__init__(f"the process of {model!r} died; try again in a few seconds")
        self.model = model

    def __reduce__(self) -> tuple[type[StepUnavailableError], tuple[str]]:
        """Keep the step's name when an error crosses a process."""
        return type(self), (self.model,)


class RequestCancelledError(SpecPrefillError):
    """The client cancelled the request or closed its connection."""

    triton_code = "CANCELLED"
    http_status = 499


class RequestTimeoutError(SpecPrefillError):
    """The request's own deadline passed before its answer was complete."""

    triton_code = "CANCELLED"
    http_status = 504

    def __init__(self, milliseconds: float) -> None:
        """Tell how long the request was given."""
        super().__init__(
            f"timeout_ms: the answer was not complete after {milliseconds:.0f} ms; "
            "allowed: a longer timeout_ms, or none"
        )
        self.milliseconds = milliseconds

    def __reduce__(self) -> tuple[type[RequestTimeoutError], tuple[float]]:
        """Keep the bound when an error crosses a process."""
        return type(self), (self.milliseconds,)


class EngineError(SpecPrefillError):
    """A draft or target engine failed while it served a request."""


class RecordError(SpecPrefillError):
    """A saved selection cannot be read, or belongs to another prompt."""
