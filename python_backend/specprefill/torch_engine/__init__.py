# SPDX-License-Identifier: Apache-2.0
"""What the torch draft and the torch target share: loading, keys and values, attention kernels."""
