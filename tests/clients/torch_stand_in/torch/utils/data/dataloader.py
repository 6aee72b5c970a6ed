# SPDX-License-Identifier: Apache-2.0
"""Name under which GuideLLM imports DataLoader."""
from torch.utils.data import DataLoader

__all__ = ["DataLoader"]
