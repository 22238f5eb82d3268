# SPDX-License-Identifier: Apache-2.0
"""`python -m openai_gateway`: serve as the settings say, until SIGTERM."""

from __future__ import annotations

import logging
import sys

from specprefill.errors import SpecPrefillError
from specprefill.settings import load_settings

from openai_gateway.serve import serve


def main() -> int:
    """Serve; return the exit status."""
    logging.basicConfig(format="%(name)s: %(message)s")
    try:
        serve(load_settings())
    except SpecPrefillError as error:
        logging.getLogger("openai_gateway").error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
