# SPDX-License-Identifier: Apache-2.0
from specprefill.triton_models.target import TargetModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
