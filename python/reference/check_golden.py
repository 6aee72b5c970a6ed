# SPDX-License-Identifier: Apache-2.0
"""Does this folder still reproduce the exact golden runs of the repository, whole and lazy?

usage: check_golden.py [mini ...]      (default tiny-a tiny-b tiny-c); exit 1 on a difference above 1e-4
"""

import sys
from pathlib import Path

import torch
from safetensors import safe_open

from checkpoint import load_model

ROOT = Path(__file__).resolve().parents[2] / "tests"
TOLERANCE = 1e-4


@torch.no_grad()
def check(name: str) -> bool:
    whole, lazy = load_model(ROOT / "models" / name), load_model(ROOT / "models" / name, lazy_experts=True)
    good = True
    for path in sorted((ROOT / "golden" / "forward" / name).glob("exact_L*.safetensors")):
        with safe_open(path, "pt") as f:
            gold = {key: f.get_tensor(key) for key in f.keys() if key in ("ids", "logit_rows", "logits", "greedy", "draft_tokens")}
        ids, rows = gold["ids"].long()[None], gold["logit_rows"].long()
        a, b = whole(ids).logits[0, rows], lazy(ids).logits[0, rows]
        tokens, _, drafts = lazy.greedy(ids, 4, drafts=True)
        diff = float((b - gold["logits"]).abs().max())
        same = tokens == gold["greedy"][:4].tolist()
        if drafts:
            same &= torch.equal(torch.cat([d.tokens for d in drafts]).int(), gold["draft_tokens"][:4])
        apart = float((a - b).abs().max())
        ok = max(diff, apart) <= TOLERANCE and same
        good &= ok
        print(f"{'ok  ' if ok else 'FAIL'} {name} {path.stem}: max |logit difference| {diff:.1e}, "
              f"lazy against whole {apart:.1e}, greedy and drafts {'equal' if same else 'differ'}")
    return good


if __name__ == "__main__":
    sys.exit(not all([check(name) for name in sys.argv[1:] or ("tiny-a", "tiny-b", "tiny-c")]))
