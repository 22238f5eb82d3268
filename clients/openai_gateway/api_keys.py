# SPDX-License-Identifier: Apache-2.0
"""The API keys that open the endpoint."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from specprefill.errors import ConfigurationError

KEYS_VARIABLE = "SPECPREFILL_API_KEYS"


class ApiKeys:
    """A set of keys; an empty one lets everybody in. It is never printed."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """Keep the keys."""
        self._keys = tuple(key.encode() for key in keys)

    def __bool__(self) -> bool:
        """Tell whether a key is needed."""
        return bool(self._keys)

    def accept(self, authorization: bytes | None) -> bool:
        """Tell whether an Authorization header's value, if there is one, opens the endpoint."""
        if not self._keys:
            return True
        scheme, _, given = (authorization or b"").partition(b" ")
        # All are compared, whichever fits, so that the time tells nothing.
        matches = [hmac.compare_digest(key, given.strip()) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


def load_api_keys(path: str | None, environment: Mapping[str, str] | None = None) -> ApiKeys:
    """Read the keys from a file, one per line, or else from SPECPREFILL_API_KEYS.

    Args:
        path: the file; None takes the variable, a comma-separated list.
        environment: variables to read; None reads the process's.

    Raises:
        ConfigurationError: the file cannot be read, or there is a source of keys but no key in it.
    """
    if path is not None:
        source = f"gateway.api_key_file {path}"
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{source} cannot be read: {error}") from error
    else:
        text = (os.environ if environment is None else environment).get(KEYS_VARIABLE)
        if not text:
            return ApiKeys()
        source, lines = KEYS_VARIABLE, text.split(",")
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ConfigurationError(f"{source} holds no key; the endpoint would be open")
    return ApiKeys(keys)
