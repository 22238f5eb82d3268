# SPDX-License-Identifier: Apache-2.0
"""What `specprefill explain` does: read the prompt, explain it, write the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprefill.errors import SpecPrefillError
from specprefill.explain.explainer import Explainer
from specprefill.explain.explanation import Explanation
from specprefill.explain.html_page import render_page
from specprefill.explain.png_plot import save_plot
from specprefill.records import read_record
from specprefill.settings import Settings

DEFAULT_PAGE = Path("explain.html")


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """What to explain.

    Attributes:
        prompt: file with the raw prompt, UTF-8.
        messages: file with chat messages as JSON.
        record: selection record to show instead of asking the draft.
        selection: overrides of the selection settings.
        answers: let the target answer from all tokens and from the kept ones.
        replay: let the target answer from the record's selection.
        max_tokens: length of the answers at most; None takes the deployment's.
    """

    prompt: Path | None = None
    messages: Path | None = None
    record: Path | None = None
    selection: Mapping[str, Any] | None = None
    answers: bool = False
    replay: bool = False
    max_tokens: int | None = None

    def check(self) -> None:
        """Refuse what makes no sense together; raises SpecPrefillError."""
        if self.prompt is not None and self.messages is not None:
            raise SpecPrefillError("give either a prompt file or --messages, not both")
        if self.prompt is None and self.messages is None and self.record is None:
            raise SpecPrefillError("give a prompt file, --messages or --record")
        if self.record is not None and self.selection:
            raise SpecPrefillError("--set changes nothing about a selection that is on --record")
        if self.replay and self.record is None:
            raise SpecPrefillError("--replay needs the selection to replay: --record FILE")
        if self.max_tokens is not None and not (self.answers or self.replay):
            raise SpecPrefillError("--max-tokens needs an answer: --answers or --replay")


def explain(
    settings: Settings, request: ExplainRequest, progress: Callable[[str], Any]
) -> Explanation:
    """Explain one prompt.

    Args:
        settings: the deployment.
        request: what to explain.
        progress: told what is being done.

    Raises:
        SpecPrefillError: bad input, or a deployment that cannot work.
    """
    request.check()
    source = request.prompt or request.messages or request.record
    record = None if request.record is None else read_record(request.record)
    text = None if request.prompt is None else _read(request.prompt)
    messages = None if request.messages is None else _read(request.messages)
    explainer = Explainer(settings, progress)
    title = "" if source is None else source.name
    if record is None:
        explanation = explainer.explain(title, text, messages, request.selection)
    else:
        explanation = explainer.explain_record(title, record, text, messages)
    if request.answers or request.replay:
        explanation = explainer.answer(explanation, request.answers, request.max_tokens)
    return explanation


def write_files(
    explanation: Explanation, page: Path | None, png: Path | None, json_file: Path | None
) -> list[Path]:
    """Write what was asked for; the page if nothing was.

    Returns:
        The files.

    Raises:
        SpecPrefillError: a file cannot be written, or a package is missing.
    """
    if page is None and png is None and json_file is None:
        page = DEFAULT_PAGE
    if json_file is not None:
        _write(json_file, json.dumps(explanation.to_json(), separators=(",", ":")))
    if page is not None:
        _write(page, render_page(explanation))
    if png is not None:
        save_plot(explanation, png)
    return [path for path in (page, png, json_file) if path is not None]


def _read(path: Path) -> str:
    try:
        # Not as text: that would change line ends, and with them the prompt's tokens.
        return path.read_bytes().decode()
    except OSError as error:
        raise SpecPrefillError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecPrefillError(f"{path} is no UTF-8 text: {error}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_bytes(text.encode())
    except OSError as error:
        raise SpecPrefillError(f"{path} cannot be written: {error.strerror}") from error
