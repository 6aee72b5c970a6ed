# SPDX-License-Identifier: Apache-2.0
"""rorqual kl compare against a re-computation in numpy, on random captures that numpy wrote; and captures of
rorqual read by numpy. RORQUAL names the program. Bounds: 1e-12 relative (1e-14 absolute below 0.01) for sums, every
bit for intervals of the printed window means."""

import json
import math
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

import numpy as np

RORQUAL = os.environ["RORQUAL"]
RELATIVE = 1e-12


def log_softmax(logits):
    wide = logits.astype(np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def make_capture(logits, tokens, top_k, windows, corpus="neutral"):
    """The arrays of the public layout: top K by (log-probability, id) descending."""
    lps = log_softmax(logits).astype(np.float32)
    ids = np.broadcast_to(np.arange(logits.shape[1]), lps.shape)
    order = np.lexsort((ids, lps), axis=-1)[:, ::-1][:, :top_k]
    rows = len(tokens)
    meta = {"model": "random", "corpus": corpus, "ctx": 2 * rows // windows, "chunks": windows, "topk": top_k,
            "first_scored": rows // windows, "vocab": logits.shape[1], "scored_positions": rows}
    return {"top_ids": order.astype(np.int32), "top_lps": np.take_along_axis(lps, order, -1),
            "tok_id": tokens.astype(np.int32), "tok_lp": lps[np.arange(rows), tokens], "meta": np.array(json.dumps(meta))}


def divergence(reference, candidate, also=()):
    """Per row KL over the ids in every top K and one rest bucket, and the mass of those ids."""
    kl, mass = [], []
    for row in range(len(reference["tok_id"])):
        p = dict(zip(reference["top_ids"][row].tolist(), reference["top_lps"][row].astype(np.float64).tolist()))
        q = dict(zip(candidate["top_ids"][row].tolist(), candidate["top_lps"][row].astype(np.float64).tolist()))
        common = set(p) & set(q)
        for other in also:
            common &= set(other["top_ids"][row].tolist())
        common = sorted(common)
        lp, lq = np.array([p[i] for i in common]), np.array([q[i] for i in common])
        rest_p = min(max(1 - np.exp(lp).sum(), 1e-12), 1.0)
        rest_q = min(max(1 - np.exp(lq).sum(), 1e-12), 1.0)
        kl.append((np.exp(lp) * (lp - lq)).sum() + rest_p * (math.log(rest_p) - math.log(rest_q)))
        mass.append(np.exp(lp).sum())
    return np.array(kl), np.array(mass)


def pick(values, fraction):
    ordered = np.sort(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


def resampled(values):
    values = np.asarray(values)
    draws = np.random.default_rng(0).integers(0, len(values), (20000, len(values)))
    return values[draws].mean(axis=1)


class NumpyAgrees(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.seed = random.SystemRandom().randrange(2**32)
        print("seed", self.seed)
        self.rng = np.random.default_rng(self.seed)

    def path(self, name):
        return str(pathlib.Path(self.folder.name) / name)

    def run_json(self, *arguments):
        done = subprocess.run([RORQUAL, *arguments, "--json"], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def captures(self, top_k, windows, rows, vocab, noises):
        base = self.rng.normal(size=(rows, vocab)).astype(np.float32) * 3
        tokens = self.rng.integers(0, vocab, rows)
        made = []
        for index, noise in enumerate(noises):
            logits = base + np.float32(noise) * self.rng.normal(size=base.shape).astype(np.float32)
            capture = make_capture(logits, tokens, top_k, windows)
            save = np.savez_compressed if index % 2 else np.savez
            save(self.path(f"{index}.npz"), **capture)
            made.append(capture)
        return made

    def close(self, got, expected, name):
        bound = RELATIVE * max(abs(expected), 1e-2)  # terms of size 0.1 cancel in small divergences
        self.assertLessEqual(abs(got - expected), bound, f"{name}: {got!r}, numpy has {expected!r}; seed {self.seed}")

    def check_summary(self, got, reference, candidate, kl, mass, windows):
        means = kl.reshape(windows, -1).mean(axis=1)
        for name, expected in {
            "mean_kl": means.mean(), "position_mean_kl": kl.mean(), "median": pick(kl, 0.5), "p90": pick(kl, 0.9),
            "p95": pick(kl, 0.95), "p99": pick(kl, 0.99), "max": kl.max(),
            "top1": (reference["top_ids"][:, 0] == candidate["top_ids"][:, 0]).mean(),
            "reference_perplexity": math.exp(-reference["tok_lp"].astype(np.float64).mean()),
            "candidate_perplexity": math.exp(-candidate["tok_lp"].astype(np.float64).mean()),
            "mean_abs_token_delta":
                np.abs(reference["tok_lp"].astype(np.float64) - candidate["tok_lp"].astype(np.float64)).mean(),
            "common_mass_median": pick(mass, 0.5), "common_mass_p1": pick(mass, 0.01), "common_mass_min": mass.min(),
        }.items():
            self.close(got[name], expected, name)
        for mine, theirs in zip(got["window_means"], means, strict=True):
            self.close(mine, theirs, "window_means")
        # The bootstrap adds nothing of its own: from the same window means, the same bits.
        low, high = np.percentile(resampled(got["window_means"]), [2.5, 97.5])
        self.assertEqual(got["mean_kl_ci95"], [low, high], f"seed {self.seed}")

    def test_comparisons_of_random_captures(self):
        for top_k, windows, rows, vocab in [(1, 1, 7, 5), (6, 3, 60, 6), (16, 24, 480, 400), (32, 130, 260, 90)]:
            with self.subTest(top_k=top_k, windows=windows):
                reference, candidate = self.captures(top_k, windows, rows, vocab, [0, 0.4])
                got = self.run_json("kl", "compare", self.path("0.npz"), self.path("1.npz"))
                kl, mass = divergence(reference, candidate)
                self.check_summary(got, reference, candidate, kl, mass, windows)

    def test_paired_comparisons(self):
        windows = 12
        reference, a, b = self.captures(10, windows, 120, 80, [0, 0.6, 0.5])
        got = self.run_json("kl", "compare", self.path("0.npz"), self.path("1.npz"), self.path("2.npz"))
        kl_a, mass_a = divergence(reference, a, [b])
        kl_b, mass_b = divergence(reference, b, [a])
        self.check_summary(got, reference, a, kl_a, mass_a, windows)
        self.check_summary(got["second"], reference, b, kl_b, mass_b, windows)
        means_a, means_b = np.array(got["window_means"]), np.array(got["second"]["window_means"])
        difference = resampled(means_a - means_b)
        paired = got["paired"]
        self.assertEqual(paired["mean_difference"], (means_a - means_b).mean())
        self.assertEqual(paired["difference_ci95"], np.percentile(difference, [2.5, 97.5]).tolist())
        self.assertEqual(paired["probability_a_greater"], (difference > 0).mean())
        self.close(paired["relative_change"], means_a.mean() / means_b.mean() - 1, "relative_change")
        drawn_a, drawn_b = resampled(means_a), resampled(means_b)
        ratio = np.percentile((drawn_a - drawn_b) / drawn_b, [2.5, 97.5])
        for mine, theirs in zip(paired["relative_ci95"], ratio, strict=True):
            self.close(mine, theirs, "relative_ci95")

    def test_exact_divergence_from_full_logits(self):
        vocab, ids = 50, [list(range(9)), [3, 1, 4, 1, 5]]
        sides = []
        for side, noise in (("p", 0.0), ("q", 0.5)):
            arrays = {}
            for case, tokens in enumerate(ids):
                if side == "p":
                    logits = self.rng.normal(size=(len(tokens) - 2, vocab)).astype(np.float32) * 3
                else:
                    logits = sides[0][f"{case}/logits"] + np.float32(noise) * self.rng.normal(
                        size=(len(tokens) - 2, vocab)).astype(np.float32)
                arrays |= {f"{case}/ids": np.array(tokens), f"{case}/first_scored": np.array(2), f"{case}/logits": logits}
            sides.append(arrays)
            # Both files have one name, which is the panel's.
            os.makedirs(self.path(side))
            np.savez(self.path(f"{side}/panel.npz"), **arrays)
        got = self.run_json("kl", "compare", self.path("p/panel.npz"), self.path("q/panel.npz"), "--id-set", "full")
        means, everything = [], []
        for case in range(2):
            lp, lq = log_softmax(sides[0][f"{case}/logits"]), log_softmax(sides[1][f"{case}/logits"])
            kl = (np.exp(lp) * (lp - lq)).sum(axis=1)
            means.append(kl.mean())
            everything.append(kl)
        for name, expected in {"mean_kl": np.mean(means), "position_mean_kl": np.concatenate(everything).mean()}.items():
            # Terms of both signs cancel: the bound is relative to their size, about 1.
            self.assertLessEqual(abs(got[name] - expected), 1e-12, f"{name}; seed {self.seed}")

    def test_numpy_reads_our_captures(self):
        text = pathlib.Path(self.path("words.txt"))
        text.write_text("The quick brown fox jumps over the lazy dog. " * 40, encoding="utf-8")
        for name in ("ours.npz", "again.npz"):
            done = subprocess.run([RORQUAL, "kl", "capture", "--corpus", str(text), "--context", "32", "--windows", "3",
                                   "--top-k", "20", "--out", self.path(name), "--json"],
                                  capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
        with np.load(self.path("ours.npz"), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        self.assertEqual(set(arrays), {"top_ids", "top_lps", "tok_id", "tok_lp", "meta"})
        meta = json.loads(str(arrays["meta"]))
        self.assertEqual((meta["ctx"], meta["chunks"], meta["topk"], meta["first_scored"]), (32, 3, 20, 16))
        self.assertEqual(arrays["top_ids"].shape, (48, 20))
        self.assertEqual(arrays["top_ids"].dtype, np.int32)
        self.assertEqual(arrays["top_lps"].dtype, np.float32)
        self.assertTrue((np.diff(arrays["top_lps"], axis=1) <= 0).all())
        self.assertEqual(pathlib.Path(self.path("ours.npz")).read_bytes(), pathlib.Path(self.path("again.npz")).read_bytes())
        got = self.run_json("kl", "compare", self.path("ours.npz"), self.path("again.npz"))
        self.assertEqual((got["mean_kl"], got["max"], got["top1"]), (0, 0, 1))


if __name__ == "__main__":
    unittest.main()
