# SPDX-License-Identifier: Apache-2.0
"""IterableDataset and DataLoader in one process, without tensors."""
from typing import Generic, TypeVar

T = TypeVar("T")


class Dataset(Generic[T]):
    """Has __getitem__ or __iter__."""


class IterableDataset(Dataset[T]):
    """Has __iter__."""


class DataLoader(Generic[T]):
    """Lists of `batch_size` items through `collate_fn`, in order. Other processes, whatever `num_workers` says, are not
    started: the items are made by whoever asks for them."""

    def __init__(self, dataset, batch_size=1, shuffle=None, sampler=None, collate_fn=None, **others):
        if shuffle or sampler is not None:
            raise NotImplementedError("the stand-in for torch keeps the order of the data")
        self.dataset, self.batch_size, self.collate_fn = dataset, batch_size, collate_fn or (lambda items: items)
        self.others = others

    def __iter__(self):
        items = []
        for item in self.dataset:
            items.append(item)
            if len(items) == self.batch_size:
                yield self.collate_fn(items)
                items = []
        if items:
            yield self.collate_fn(items)


def get_worker_info():
    """None: the process has no workers."""
    return None
