# SPDX-License-Identifier: Apache-2.0
"""Draft engines: the small model that reads the whole prompt."""
