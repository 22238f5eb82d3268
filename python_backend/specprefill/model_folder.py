# SPDX-License-Identifier: Apache-2.0
"""Reads a Hugging Face model folder's configuration without loading the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from specprefill.errors import ConfigurationError


def read_config(folder: str | Path, trust_remote_code: bool) -> Any:
    """Return the configuration of the language model in a folder.

    Raises:
        ConfigurationError: no such folder, or no readable configuration in it.
    """
    if not Path(folder).is_dir():
        raise ConfigurationError(f"model folder {folder} does not exist")
    try:
        config = AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"model folder {folder}: {error}") from error
    return config.get_text_config()
