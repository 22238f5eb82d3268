# SPDX-License-Identifier: Apache-2.0
"""Models that measurements need and nobody publishes: random weights, and grown copies."""
