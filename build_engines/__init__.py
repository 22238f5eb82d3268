# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders -> a draft engine and a target engine for TensorRT-LLM 1.2.1.

Planning and `--dry-run` need neither a GPU nor TensorRT; only `engines` and `network` import it.
"""
