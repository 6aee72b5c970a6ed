# SPDX-License-Identifier: Apache-2.0
"""Name under which GuideLLM imports IterableDataset."""
from torch.utils.data import Dataset, IterableDataset

__all__ = ["Dataset", "IterableDataset"]
