# SPDX-License-Identifier: Apache-2.0
"""Selection records: what was kept of one prompt, written down for `explain` and for replay."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from specprefill.errors import RecordError
from specprefill.selection import Selection, protected_mask
from specprefill.settings import RecordSettings, SelectionSettings

if TYPE_CHECKING:  # at run time they would bring torch to those who only compare records
    from specprefill.prompt import Prompt
    from specprefill.speculator import Speculation

VERSION: Literal[1] = 1

_log = logging.getLogger(__name__)

_PREFIX = "selection-"
_Index = Annotated[int, Field(ge=0, lt=2**31)]
_IndexSpan = tuple[_Index, _Index]


@dataclass(frozen=True, slots=True)
class Record:
    """The selection of one prompt, without the prompt's text.

    Attributes:
        version: of this layout.
        id: the request's id, or a random one.
        time: when it was written, ISO 8601 in UTC.
        draft_model: `draft.model` of the settings.
        settings: the selection settings that were used, by name.
        prompt_tokens: M.
        prompt_sha256: see `prompt_digest`.
        active: True if at least one token was dropped.
        reason: why the prompt was or was not pruned.
        draft_ms: time of draft, scoring and selection.
        kept: half-open token spans that the target prefills, ascending.
        protected: half-open token spans that had to be kept, ascending.
        chunk_starts: first token of each chunk; empty if the prompt was not cut into chunks.
        chunk_scores: score of each chunk to six digits; None if nothing was scored.
        prompt_ids: the prompt's M token ids; None unless `records.content` is `ids`.
    """

    version: Literal[1]
    id: str
    time: str
    draft_model: str
    settings: dict[str, JsonValue]
    prompt_tokens: Annotated[int, Field(ge=1, lt=2**31)]
    prompt_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    active: bool
    reason: str
    draft_ms: Annotated[float, Field(ge=0)]
    kept: list[_IndexSpan]
    protected: list[_IndexSpan]
    chunk_starts: list[_Index]
    chunk_scores: list[float] | None = None
    prompt_ids: list[_Index] | None = None

    @property
    def kept_tokens(self) -> int:
        """K, the number of kept tokens."""
        return sum(end - start for start, end in self.kept)


def prompt_digest(prompt_ids: npt.NDArray[np.int32]) -> str:
    """Return the SHA-256 of the token ids as little-endian 32-bit integers, in hexadecimal."""
    return hashlib.sha256(np.asarray(prompt_ids).astype("<i4").tobytes()).hexdigest()


def make_record(
    prompt: Prompt,
    speculation: Speculation,
    settings: SelectionSettings,
    draft_model: str,
    record_id: str = "",
    with_ids: bool = False,
) -> Record:
    """Describe one prompt's selection.

    Args:
        prompt: the prompt.
        speculation: its selection.
        settings: the selection settings that led to it.
        draft_model: `draft.model` of the settings.
        record_id: the request's id; empty draws a random one.
        with_ids: put the prompt's token ids into the record.
    """
    from specprefill.prompt import mask_to_spans

    selection = speculation.selection
    protected = protected_mask(
        selection.prompt_length, settings.protect_first, settings.protect_last, prompt.protected
    )
    scores = selection.chunk_scores
    return Record(
        version=VERSION,
        id=record_id or secrets.token_hex(8),
        time=datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        draft_model=draft_model,
        settings=settings.model_dump(mode="json"),
        prompt_tokens=selection.prompt_length,
        prompt_sha256=prompt_digest(prompt.token_ids),
        active=selection.active,
        reason=selection.reason,
        draft_ms=round(speculation.draft_ms, 3),
        kept=selection.spans(),
        protected=mask_to_spans(protected),
        chunk_starts=selection.chunk_starts.tolist(),
        chunk_scores=None if scores is None else [float(f"{score:.6g}") for score in scores],
        prompt_ids=prompt.token_ids.tolist() if with_ids else None,
    )


def replay(record: Record, prompt_ids: npt.NDArray[np.int32]) -> Selection:
    """Return exactly the saved selection, for the prompt that it was made for.

    Args:
        record: the saved selection.
        prompt_ids: int32 [M].

    Raises:
        RecordError: the record belongs to another prompt.
    """
    if len(prompt_ids) != record.prompt_tokens:
        raise RecordError(
            f"prompt_tokens: the record is of a prompt of {record.prompt_tokens} tokens, but this "
            f"one has {len(prompt_ids)}; allowed: the very prompt that was recorded"
        )
    if prompt_digest(prompt_ids) != record.prompt_sha256:
        raise RecordError(
            "prompt_sha256: the record is of another prompt of the same length; "
            "allowed: the very prompt that was recorded"
        )
    kept = np.concatenate([np.arange(start, end, dtype=np.int32) for start, end in record.kept])
    scores = record.chunk_scores
    return Selection(
        kept,
        record.prompt_tokens,
        record.active,
        record.reason,
        np.asarray(record.chunk_starts, dtype=np.int32),
        None if scores is None else np.asarray(scores, dtype=np.float32),
    )


class RecordWriter:
    """Writes one JSON file per prompt that was cut into chunks.

    A full disk is logged, and never costs anybody an answer.
    """

    def __init__(self, settings: RecordSettings, draft_model: str) -> None:
        """Write into the folder that the settings name, if they do.

        Args:
            settings: section `records`.
            draft_model: `draft.model`, which the records name.
        """
        self._settings = settings
        self._draft_model = draft_model

    def write(
        self,
        prompt: Prompt,
        speculation: Speculation,
        settings: SelectionSettings,
        request_id: str = "",
    ) -> Path | None:
        """Write the record of one prompt, readable by its owner alone, whole or not at all.

        Args:
            prompt: the prompt.
            speculation: its selection.
            settings: the selection settings that led to it.
            request_id: the client's id; empty draws a random one.

        Returns:
            The file; None if records are off, the prompt was dense without being cut into chunks,
            or writing failed (logged).
        """
        if self._settings.folder is None or speculation.selection.chunk_starts.size == 0:
            return None
        folder = Path(self._settings.folder).expanduser()
        try:
            with_ids = self._settings.content == "ids"
            record = make_record(
                prompt, speculation, settings, self._draft_model, request_id, with_ids
            )
            path = folder / _file_name(record)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_privately(path, json.dumps(asdict(record), separators=(",", ":")))
            self._prune(folder)
        except Exception:  # whatever happens here, the request goes on
            _log.warning("the selection record could not be written to %s", folder, exc_info=True)
            return None
        return path

    def _prune(self, folder: Path) -> None:
        # The names begin with the time, so their order is the order of writing.
        names = sorted(name for name in os.listdir(folder) if _FILE_NAME.fullmatch(name))
        for name in names[: -self._settings.max_files]:
            (folder / name).unlink(missing_ok=True)


def write_privately(path: Path, text: str) -> None:
    """Write a file of mode 0600 that appears whole or not at all; raises OSError."""
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


def read_record(path: Path) -> Record:
    """Read and check a record.

    Raises:
        RecordError: the file cannot be read, or a field has no sensible value; names it.
    """
    try:
        return parse_record(path.read_bytes())
    except OSError as error:
        raise RecordError(f"record {path}: {error.strerror}") from error
    except RecordError as error:
        raise RecordError(f"record {path}: {error}") from error


def parse_record(text: bytes) -> Record:
    """Check a record's JSON; raises RecordError, which names the field."""
    try:
        record = _RECORD.validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in problem["loc"]) or "JSON"
        raise RecordError(f"{field}: {problem['msg']}") from error
    check_record(record)
    return record


def check_record(record: Record) -> None:
    """Check what the types cannot say; raises RecordError, which names the field."""
    length = record.prompt_tokens
    for name, spans in (("kept", record.kept), ("protected", record.protected)):
        end_before = 0
        for start, end in spans:
            if not end_before <= start < end <= length:
                raise RecordError(
                    f"{name}: span [{start}, {end}); allowed: ascending spans within the prompt's "
                    f"{length} tokens"
                )
            end_before = end
    if not record.kept or record.kept[-1][1] != length:
        raise RecordError("kept: lacks the last token; allowed: spans up to prompt_tokens")
    if record.active != (record.kept_tokens < length):
        raise RecordError(
            f"active: {record.active} with {record.kept_tokens} of {length} tokens kept; "
            "allowed: true if and only if some were dropped"
        )
    starts = np.asarray(record.chunk_starts, dtype=np.int64)
    if starts.size and (starts[0] != 0 or starts[-1] >= length or (np.diff(starts) <= 0).any()):
        raise RecordError(
            f"chunk_starts: allowed: ascending token indices from 0 up to {length - 1}"
        )
    scores = record.chunk_scores
    if scores is not None and (len(scores) != starts.size or not np.isfinite(scores).all()):
        raise RecordError("chunk_scores: allowed: one finite number per chunk_starts")
    if record.prompt_ids is not None:
        ids = np.asarray(record.prompt_ids, dtype=np.int32)
        if ids.size != length or prompt_digest(ids) != record.prompt_sha256:
            raise RecordError("prompt_ids: they do not belong to prompt_sha256")


_RECORD = TypeAdapter(Record)
_FILE_NAME = re.compile(rf"{_PREFIX}\d{{8}}T\d{{12}}-[\w.-]*\.json", re.ASCII)


def _file_name(record: Record) -> str:
    time = re.sub(r"[^\dT]", "", record.time.partition("+")[0])
    # Ids come from clients: nothing of them may name another folder or a hidden file.
    name = re.sub(r"[^A-Za-z0-9_-]", "_", record.id)[:64]
    return f"{_PREFIX}{time}-{name}-{secrets.token_hex(2)}.json"
