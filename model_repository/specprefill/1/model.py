# SPDX-License-Identifier: Apache-2.0
from specprefill.triton_models.entry import EntryModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
