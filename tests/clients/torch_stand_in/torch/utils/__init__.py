# SPDX-License-Identifier: Apache-2.0
"""Parent of torch.utils.data."""
from torch.utils import data

__all__ = ["data"]
