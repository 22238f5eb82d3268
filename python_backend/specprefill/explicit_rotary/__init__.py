# SPDX-License-Identifier: Apache-2.0
"""The ExplicitRotary TensorRT plugin: its loader, its cos/sin table and its host reference."""
