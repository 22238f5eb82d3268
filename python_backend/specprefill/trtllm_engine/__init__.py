# SPDX-License-Identifier: Apache-2.0
"""What the two TensorRT-LLM adapters share: the engine folder and the lazily imported package."""
