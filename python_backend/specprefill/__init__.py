# SPDX-License-Identifier: Apache-2.0
"""Speculative Prefill for Triton Inference Server (arXiv 2502.02789)."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("specprefill-triton")
except PackageNotFoundError:  # used from a source tree that was never installed
    __version__ = "0+unknown"
