# SPDX-License-Identifier: Apache-2.0
"""One module per figure of docs/benchmarks.md; `python -m benchmarks` runs them."""
