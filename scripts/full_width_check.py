#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden run of a full-width slice by the independent Python reference, for `rorqual check forward MODEL_DIR FIXTURE`.

The slice is a folder written by `rorqual convert --synthesize` with --tokenizer (docs/synthetic.md says which slices
cover which shapes). Experts are dequantised when they are used, so that slices of tens of gigabytes run in a few.
Exact numerics: dequantised weights, float32, no rounding of activations or caches. The schema is the one of
tests/golden/forward. Needs torch, numpy, safetensors and tokenizers.

usage: full_width_check.py MODEL_DIR OUT.safetensors [--length 129] [--seeds 1] [--greedy 4] [--rows 12]
"""

import argparse
import pathlib
import resource
import sys
import time

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python" / "reference"))
from checkpoint import load_model  # noqa: E402
from oracle import NEG, Trace  # noqa: E402

TEXT_IDS = 128000  # ids from here on are added tokens


class ChoiceTrace(Trace):
    """Keeps only what the distances of discrete choices need."""

    def put(self, name, x):
        if name.endswith(("router_sel", "index_score")):
            super().put(name, x)


def sequence(length: int, vocab: int, seed: int) -> torch.Tensor:
    """BOS and uniform text ids; the second half begins with a copy of the first quarter, so that n-grams recur and
    something far back is worth attending to."""
    g = torch.Generator().manual_seed(1000 + length + 100000 * seed)
    ids = torch.randint(3, min(vocab, TEXT_IDS), (length,), generator=g)
    if length > 1:
        ids[0] = 0
        half = length // 2
        ids[half : half + half // 2] = ids[1 : 1 + half // 2]
    return ids


def positions(length: int, window: int) -> torch.Tensor:
    wanted = {0, 1, 2, window - 1, window, length // 2, length - 2, length - 1}
    return torch.tensor(sorted(p for p in wanted if 0 <= p < length))


def logit_rows(length: int, count: int) -> torch.Tensor:
    """`count` rows spread over the sequence, the last two among them."""
    spread = torch.linspace(0, length - 1, max(count - 1, 1)).long().tolist()
    return torch.tensor(sorted({*spread, max(length - 2, 0), length - 1}))


def router_gap(sel, k: int):
    top = sel.topk(min(k + 1, sel.shape[-1]), -1).values
    if top.shape[-1] <= k:  # every expert is chosen
        return torch.full(sel.shape[:-1], float("inf"))
    return top[..., k - 1] - top[..., k]


def topk_gap(score, k: int):
    """Distance between the last selected and the first rejected score; inf = nothing rejected, 0 = a tie."""
    s = torch.nn.functional.pad(score.sort(-1, descending=True).values, (0, k + 1), value=NEG)
    return (s[..., k - 1] - s[..., k]).nan_to_num(nan=float("inf"))


def smallest_gaps(model, batch: torch.Tensor) -> list[float]:
    """Per sequence, the smallest non-zero distance to another discrete choice anywhere in its prefill."""
    trace = ChoiceTrace()
    model(batch, trace=trace, impl="dense", want_logits=False)
    worst = [float("inf")] * batch.shape[0]
    for name, value in trace.items():
        fn, k = (router_gap, model.cfg.num_experts_per_tok) if name.endswith("sel") else (topk_gap, model.cfg.index_topk)
        for b, gaps in enumerate(fn(value, k)):
            gaps = gaps[gaps > 0]
            worst[b] = min(worst[b], float(gaps.min()) if gaps.numel() else worst[b])
    return worst


def layer_tensors(cfg, trace, cache, layer: int, pos) -> dict:
    tag, out = f"layers.{layer}.", {}
    for key in ("resid_in", "pre_mix_in", "attn_out", "hc_pre", "hc_post", "hc_comb", "ffn_out", "resid_out"):
        is_next_input = layer + 1 < cfg.num_hidden_layers and layer + 1 not in cfg.engram_layer_ids
        if key != "resid_out" or not is_next_input:
            out[key] = trace[tag + key][0, pos]
    if tag + "engram_gate" in trace:
        out["engram_gate"] = trace[tag + "engram_gate"][0, pos]
    picks = trace[tag + "router_idx"][0]
    out["router_idx"] = picks.sort(-1).values.short()
    out["router_w"] = trace[tag + "router_w"][0].gather(-1, picks.argsort(-1))[pos]
    out["router_gap"] = router_gap(trace[tag + "router_sel"][0], cfg.num_experts_per_tok)
    if tag + "topk" in trace:
        out["topk"] = trace[tag + "topk"][0, pos].int()
        out["topk_gap"] = topk_gap(trace[tag + "index_score"][0], cfg.index_topk)
    state = cache.layers[layer]
    out["window_kv"] = state.window[0, pos]
    if state.comp is not None:
        rows = (pos // cfg.ratio(layer)).clamp_max(state.comp.shape[1] - 1).unique()
        out["comp_rows"] = rows.int()
        out["comp_kv"], out["index_k"] = state.comp[0, rows], state.index_k[0, rows]
    return {tag + key: value for key, value in out.items()}


def golden_run(model, ids, rows, num_greedy: int) -> dict:
    cfg, pos, trace = model.cfg, positions(len(ids), model.cfg.sliding_window), Trace()
    run = model(ids[None], trace=trace, impl="dense", want_logits=False)
    hidden = run.hidden[:, rows]
    out = {"ids": ids.int(), "pos": pos.int(), "logit_rows": rows.int(), "final_hidden": run.hidden[0, pos],
           "logits": model.head(model.norm(hidden, lambda _, x: x), lambda _, x: x)[0]}
    if "hash_ids" in trace:
        out["hash_ids"] = trace["hash_ids"][0, pos].int()
    for layer in range(cfg.num_hidden_layers):
        out |= layer_tensors(cfg, trace, run.cache, layer, pos)
    if cfg.n_stages:
        out["taps"] = run.cache.taps[0, pos]
    trace.clear()
    out |= greedy_run(model, run.cache, out["logits"][-1], num_greedy)
    return {k: v.contiguous().clone() for k, v in out.items()}


def greedy_run(model, cache, logits, count: int) -> dict:
    tokens, margins, drafts = [], [], []
    for _ in range(count):
        top = logits.topk(2)
        tokens.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        if model.cfg.n_stages:
            drafts.append(model.draft(cache.taps[0], cache.taps_base, torch.tensor([cache.length]),
                                      torch.tensor(tokens[-1:])))
        logits = model(torch.tensor([tokens[-1:]]), cache).logits[0, -1]
    out = {"greedy": torch.tensor(tokens).int(), "greedy_margin": torch.tensor(margins)}
    if drafts:
        top = torch.cat([d.logits for d in drafts]).topk(2, -1).values
        out |= {"draft_tokens": torch.cat([d.tokens for d in drafts]).int(), "draft_margin": top[..., 0] - top[..., 1],
                "draft_confidence": torch.cat([d.confidence for d in drafts]), "draft_logits_first": drafts[0].logits[0]}
    return out


def expert_spread(out: dict, cfg) -> str:
    """How evenly the routers choose: experts in use and the largest share, per layer."""
    parts = []
    for layer in range(cfg.num_hidden_layers):
        counts = torch.bincount(out[f"layers.{layer}.router_idx"].flatten().long(), minlength=cfg.n_routed_experts)
        parts.append(f"{int((counts > 0).sum())}/{cfg.n_routed_experts} max {float(counts.max() / counts.sum()):.3f}")
    return ", ".join(parts)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_dir", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--length", type=int, default=129)
    parser.add_argument("--seeds", type=int, default=1, help="sequences to choose the one with the clearest choices from")
    parser.add_argument("--greedy", type=int, default=4)
    parser.add_argument("--rows", type=int, default=12, help="rows of logits to store")
    args = parser.parse_args()
    start = time.time()
    model = load_model(args.model_dir, lazy_experts=True)
    cfg = model.cfg
    loaded = time.time()
    batch = torch.stack([sequence(args.length, cfg.vocab_size, seed) for seed in range(args.seeds)])
    gaps = smallest_gaps(model, batch) if args.seeds > 1 else [0.0]
    seed = max(range(args.seeds), key=gaps.__getitem__)
    out = golden_run(model, batch[seed], logit_rows(args.length, args.rows), args.greedy)
    gaps[seed] = min(float(g[g > 0].min()) for key, g in out.items() if key.endswith(("router_gap", "topk_gap")))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(out, str(args.out), metadata={
        "mode": "exact", "length": str(args.length), "seed": str(seed), "smallest_gap": f"{gaps[seed]:.3e}",
        "model": args.model_dir.resolve().name})
    size = sum(v.numel() * v.element_size() for v in out.values())
    print(f"{args.out}: {len(out)} tensors, {size / 1e6:.1f} MB, seed {seed}, smallest gap {gaps[seed]:.1e} of "
          f"{', '.join(f'{g:.1e}' for g in gaps)}")
    print(f"logits std {float(out['logits'].std()):.2f}, greedy {out['greedy'].tolist()} "
          f"margins {[round(m, 3) for m in out['greedy_margin'].tolist()]}")
    print(f"experts in use {expert_spread(out, cfg)}")
    print(f"load {loaded - start:.1f} s, runs {time.time() - loaded:.1f} s, peak memory "
          f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()
