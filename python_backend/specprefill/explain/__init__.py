# SPDX-License-Identifier: Apache-2.0
"""Shows what was dropped from a prompt, and compares two selections."""

EXPLANATION_FORMAT = "specprefill-explanation"
EXPLANATION_VERSION = 1
