# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible HTTP endpoint in front of Triton; talks gRPC to it and nothing else."""
