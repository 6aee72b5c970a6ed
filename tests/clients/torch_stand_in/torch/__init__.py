# SPDX-License-Identifier: Apache-2.0
"""Not PyTorch: what GuideLLM's data loader, and the pickling of its data sets, ask of it (README.md in tests/clients)."""
from torch import nn, utils


class Tensor:
    """No object is one."""


class Generator:
    """A seed that nothing draws from: the data are not shuffled."""

    def manual_seed(self, seed):
        self.seed = seed


__all__ = ["Generator", "Tensor", "nn", "utils"]
