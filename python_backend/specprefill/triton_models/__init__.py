# SPDX-License-Identifier: Apache-2.0
"""The Triton models: three steps and two entries over them."""
