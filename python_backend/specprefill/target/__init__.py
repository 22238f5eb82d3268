# SPDX-License-Identifier: Apache-2.0
"""Target engines: the model that answers."""
