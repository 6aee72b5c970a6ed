# SPDX-License-Identifier: Apache-2.0
"""Full-width models in little memory: what is large and rarely used as a whole stays in its storage format.

FP4 and FP8 weights read from the file and dequantised at every use (the last few are kept); wo_a is float32
embed, head, markov bf16 in memory; rows are widened at lookup, products run over slices of rows
Engram tables       FP8 bytes and scales in memory, rows dequantised at lookup
everything else     float32 parameters, as in a model that is loaded whole

The arithmetic is the oracle's: only the moment of dequantisation differs, and the slicing of the head's product, which can
move its last bit.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

import formats
from config import Config
from engram_hash import NgramHasher
from oracle import Attention, Embedding, Linear, Model, Rounding, rope_inv_freq

HEAD_ROWS = 8192  # rows of a bf16 matrix that are widened at once
_FP4_PAIRS = formats.fp4_unpack(torch.arange(256, dtype=torch.uint8).unsqueeze(-1))  # [256, 2]


def dequantise_fp4(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """formats.mxfp4_dequant with one table look-up per byte; codes uint8 [O, K/2], scales uint8 [O, K/32]."""
    o, half = codes.shape
    w = _FP4_PAIRS.index_select(0, codes.reshape(-1).int()).view(o, half // 16, 32)
    return w.mul_(formats.e8m0_decode(scales).unsqueeze(-1)).view(o, 2 * half)


def dequantise_fp8(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """formats.fp8_block_dequant for sizes that are multiples of 32; codes uint8 [O, K], scales uint8 [O/32, K/32]."""
    o, k = codes.shape
    w = codes.view(torch.float8_e4m3fn).float().view(o // 32, 32, k // 32, 32)  # formats.py tests this cast
    return w.mul_(formats.e8m0_decode(scales)[:, None, :, None]).view(o, k)


class QuantisedStore:
    """Dequantised matrices by name, the least recently used ones dropped."""

    def __init__(self, checkpoint, keep: int):
        self.checkpoint, self.keep, self.kept = checkpoint, keep, OrderedDict()

    def get(self, name: str) -> torch.Tensor:
        if name in self.kept:
            self.kept.move_to_end(name)
            return self.kept[name]
        codes, scales = self.checkpoint.get(name + ".weight"), self.checkpoint.get(name + ".scale").view(torch.uint8)
        dequantise = dequantise_fp4 if codes.dtype == torch.int8 else dequantise_fp8
        w = dequantise(codes.view(torch.uint8), scales)
        self.kept[name] = w
        while len(self.kept) > self.keep:
            self.kept.popitem(last=False)
        return w


class _Stored(nn.Module):
    """Follows model.double() although it has no parameters."""

    def follow_dtype(self):
        self.register_buffer("like", torch.zeros(()), persistent=False)


class LazyQuantised(_Stored):
    """Stands for oracle.Linear of kind 'quant'."""

    def __init__(self, name: str, store: QuantisedStore):
        super().__init__()
        self.follow_dtype()
        self.name, self.store = name, store

    def forward(self, x, rnd: Rounding):
        x = rnd("act_fp8", x, formats.qdq_fp8)
        return rnd("linear_out", F.linear(x, self.store.get(self.name).to(x.dtype)))


class LazyHead(_Stored):
    """Stands for oracle.Linear of kind 'f32' with a bf16 weight."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.follow_dtype()
        self.stored = weight

    def forward(self, x, rnd: Rounding):
        return torch.cat([F.linear(x, self.stored[i : i + HEAD_ROWS].to(x.dtype))
                          for i in range(0, self.stored.shape[0], HEAD_ROWS)], -1)


class LazyEmbedding(_Stored):
    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.follow_dtype()
        self.stored = weight

    def forward(self, ids):
        return F.embedding(ids, self.stored).to(self.like.dtype)


class LazyTable(_Stored):
    """Engram table: codes uint8 [rows, dim], scales uint8 [rows, dim / 32]."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor):
        super().__init__()
        self.follow_dtype()
        self.codes, self.scales = codes, scales

    def forward(self, ids):
        return formats.row_fp8_dequant(self.codes[ids], self.scales[ids]).to(self.like.dtype)


def _stand_in(name: str, module: nn.Module, store: QuantisedStore):
    """What keeps `module` in storage format, or None if it becomes float32."""
    get = store.checkpoint.get
    if isinstance(module, Linear) and module.kind == "quant" and module.weight.shape[0] % 32 == 0:
        return LazyQuantised(name, store)
    if isinstance(module, Linear) and (name == "head" or name.endswith("markov_head.head")):
        return LazyHead(get(name + ".weight"))
    if isinstance(module, Embedding) and name.endswith("engram.embed"):
        return LazyTable(get(name + ".weight").view(torch.uint8), get(name + ".scale").view(torch.uint8))
    if isinstance(module, Embedding):
        return LazyEmbedding(get(name + ".weight"))
    return None


@torch.no_grad()
def build_lazy_model(cfg: Config, token_map, checkpoint, keep_matrices: int = 12) -> Model:
    """`keep_matrices`: how many dequantised matrices stay in memory (47 MB for one of an expert at full width)."""
    from checkpoint import decode

    with torch.device("meta"):  # shapes only; nothing is allocated
        model = Model(cfg, token_map)
    model.hasher = NgramHasher(cfg, token_map) if cfg.engram_layer_ids else None
    store = QuantisedStore(checkpoint, keep_matrices)
    for name, module in list(model.named_modules()):
        new = _stand_in(name, module, store)
        if new is not None:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, new)
        elif isinstance(module, Attention):
            module.register_buffer("inv_freq", rope_inv_freq(cfg, module.ratio > 0), persistent=False)
    for name, p in list(model.named_parameters()):
        value = decode(name, checkpoint.get)
        assert value.shape == p.shape, (name, value.shape, p.shape)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, nn.Parameter(value, requires_grad=False))
    return model
