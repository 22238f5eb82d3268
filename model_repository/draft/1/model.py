# SPDX-License-Identifier: Apache-2.0
from specprefill.triton_models.draft import DraftModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
