# SPDX-License-Identifier: Apache-2.0
from specprefill.triton_models.preprocessing import PreprocessingModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
