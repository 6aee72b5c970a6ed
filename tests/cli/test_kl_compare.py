#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kl compare, kl gate and kl table on small captures of the embedded model: exit codes, what is refused, JSON."""

import array
import json
import pathlib
import shutil
import tempfile
import unittest
import zipfile

import program
from program import ProgramTest, run

TEXT = "The committee met on 3 May and agreed: def f(x): return x + 1. Всё это правда. 漢字とかな. " * 30


class Captures(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        (cls.root / "code.txt").write_text(TEXT, encoding="utf-8")
        for name, options in {
            "exact": ["--numerics", "exact"], "again": ["--numerics", "exact"], "served": [],
            "head": ["--lm-head", "fp8"], "short": ["--windows", "2"],
        }.items():
            (cls.root / name).mkdir()
            done = run("kl", "capture", "--corpus", cls.root / "code.txt", "--context", 32, "--windows", 4, "--top-k", 24,
                       "--out", cls.root / name / "code.npz", *options)
            assert done.returncode == 0, done.stderr

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def capture(self, name):
        return self.root / name / "code.npz"

    def gate(self, old, new, *more):
        return run("kl", "gate", "--reference", self.root / "exact", "--old", self.root / old, "--new", self.root / new,
                   *more)

    def test_equal_captures_compare_to_zero(self):
        done = run("kl", "compare", self.capture("exact"), self.capture("again"), "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(result["schema"], "rorqual.kl.compare/1")
        self.assertEqual((result["mean_kl"], result["max"], result["top1"]), (0, 0, 1))
        self.assertEqual(result["corpus"], "code")
        self.assertEqual(result["reference"]["run"]["numerics"], "exact")
        self.assertEqual(self.capture("exact").read_bytes(), self.capture("again").read_bytes())

    def test_a_rounded_run_differs_and_splits_by_class(self):
        done = run("kl", "compare", self.capture("exact"), self.capture("served"), "--by-class", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertGreater(result["mean_kl"], 0)
        classes = result["classes"]
        self.assertEqual(sum(row["positions"] for row in classes), result["positions"])
        self.assertAlmostEqual(sum(row["kl_share"] for row in classes), 1, places=9)
        total = sum(row["positions"] * row["mean_kl"] for row in classes)
        self.assertAlmostEqual(total / result["positions"], result["mean_kl"], places=12)
        self.assertIn("latin", {row["class"].lower() for row in classes})

    def test_windows_of_a_capture_and_of_another_programs_panel_are_scored_again(self):
        full, again, served = (self.root / f"{name}.safetensors" for name in ("full", "full-again", "full-served"))
        logits = [self.root / f"{name}.safetensors" for name in ("logits", "logits-served")]
        options = ["--context", 32, "--windows", 4, "--top-k", 24]
        exact = ["--numerics", "exact"]
        for done in (run("kl", "capture", "--corpus", self.root / "code.txt", "--out", full, "--logits", logits[0], *options, *exact),
                     run("kl", "capture", "--corpus", full, "--out", again, "--top-k", 24, *exact)):
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(full.read_bytes(), again.read_bytes())

        # The same rows as a panel of another program: one array file per case and a manifest.
        header_size = int.from_bytes(logits[0].read_bytes()[:8], "little")
        data = logits[0].read_bytes()[8:]
        header, data = json.loads(data[:header_size]), data[header_size:]
        first, last = header["logits"]["data_offsets"]
        rows, vocab = header["logits"]["shape"]
        ids_begin, ids_end = header["window_ids"]["data_offsets"]
        ids = [int.from_bytes(data[i:i + 4], "little") for i in range(ids_begin, ids_end, 4)]
        cases, per_case = [], rows // 4
        for case in range(4):
            head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({per_case}, {vocab}), }}".ljust(117) + "\n"
            size = per_case * vocab * 4
            (self.root / f"case{case}.npy").write_bytes(
                b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()
                + data[first + case * size:first + (case + 1) * size])
            cases.append({"ids": ids[case * 32:(case + 1) * 32], "first_scored": 16, "logits": f"case{case}.npy"})
        panel = self.root / "short4.json"
        panel.write_text(json.dumps({"model": "reference code", "corpus": "short4", "cases": cases}))
        done = run("kl", "capture", "--corpus", panel, "--out", served, "--logits", logits[1], "--top-k", 24, *exact)
        self.assertEqual(done.returncode, 0, done.stderr)
        for id_set in ("both", "candidate", "full"):
            done = run("kl", "compare", panel, logits[1], "--id-set", id_set, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(done.stdout)
            self.assertEqual((result["positions"], result["top1"]), (rows, 1))
            self.assertLess(abs(result["mean_kl"]), 1e-9)

    def test_captures_of_different_settings_are_refused(self):
        done = run("kl", "compare", self.capture("exact"), self.capture("short"))
        self.assert_error(done, 4, "captures cannot be compared", "number of windows is 4 in the reference, 2 in the")

    def test_a_capture_that_changed_after_its_record_is_refused(self):
        changed = self.root / "changed"
        shutil.copytree(self.root / "served", changed)
        (changed / "code.npz").write_bytes(self.capture("head").read_bytes())
        self.addCleanup(shutil.rmtree, changed)
        self.assert_error(run("kl", "compare", self.capture("exact"), changed / "code.npz"), 4, "run record has")

    def test_captures_made_with_a_cache_need_force(self):
        cached = self.root / "cached"
        shutil.copytree(self.root / "served", cached)
        self.addCleanup(shutil.rmtree, cached)
        record = cached / "code.npz.run.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"prefix_cache": True}))
        arguments = ["kl", "compare", self.capture("exact"), cached / "code.npz"]
        self.assert_error(run(*arguments), 2, "captured with the prefix cache on")
        self.assertEqual(run(*arguments, "--force").returncode, 0)

    def test_the_gate_passes_an_equal_change(self):
        done = self.gate("exact", "again", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual((result["schema"], result["verdict"]), ("rorqual.kl.gate/1", "passed"))
        self.assertEqual(result["corpora"][0]["new_kl"], 0)

    def test_the_gate_fails_with_exit_1_and_one_line(self):
        done = self.gate("exact", "served")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: gate failed: code KL ", done.stderr)
        self.assertIn("change: numerics exact -> reference", done.stdout)

    def test_the_gate_is_undecided_on_a_noisy_pair(self):
        done = self.gate("exact", "again", "--old-again", self.root / "served", "--json")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(json.loads(done.stdout)["verdict"], "undecided")
        self.assertIn("gate undecided: code two runs of the old side differ", json.loads(done.stderr)["error"]["message"])

    def test_a_second_old_run_has_the_corpora_of_the_first(self):
        (self.root / "other.txt").write_text(TEXT, encoding="utf-8")
        (self.root / "second").mkdir()
        self.addCleanup(shutil.rmtree, self.root / "second")
        done = run("kl", "capture", "--corpus", self.root / "other.txt", "--context", 32, "--windows", 4, "--top-k", 24,
                   "--out", self.root / "second" / "other.npz", "--numerics", "exact")
        self.assertEqual(done.returncode, 0, done.stderr)
        more = ("--old-again", self.root / "second")
        self.assert_error(self.gate("exact", "again", *more), 2, "--old has no capture of corpus 'other'")
        three = ("kl", "gate", "--reference", self.root / "both", "--old", self.root / "both", "--new", self.root / "both")
        shutil.copytree(self.root / "exact", self.root / "both")
        self.addCleanup(shutil.rmtree, self.root / "both")
        for file in (self.root / "second").iterdir():
            shutil.copy(file, self.root / "both")
        self.assertEqual(run(*three).returncode, 0)
        self.assert_error(run(*three, *more), 2, "--old-again has no capture of corpus 'code'")

    def test_a_pair_without_records_needs_force(self):
        bare = self.root / "bare"
        bare.mkdir()
        self.addCleanup(shutil.rmtree, bare)
        shutil.copy(self.capture("again"), bare)
        self.assert_error(self.gate("exact", "bare"), 2, "has no run record")
        forced = self.gate("exact", "bare", "--force-pair")
        self.assertEqual(forced.returncode, 0, forced.stderr)
        self.assertIn("taken on trust", forced.stdout)

    def test_a_pair_of_two_builds_is_refused(self):
        other = self.root / "other"
        shutil.copytree(self.root / "again", other)
        self.addCleanup(shutil.rmtree, other)
        record = other / "code.npz.run.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"commit": "0123456"}))
        self.assert_error(self.gate("exact", "other"), 2, "not a pair: the commit is")

    def test_gate_without_sides_says_what_it_needs(self):
        self.assert_error(run("kl", "gate"), 2, "needs --reference, --old and --new, or --numbers")
        self.assert_error(run("kl", "gate", "--numbers", self.root / "none.json"), 3, "none.json")

    def test_gate_numbers_that_contradict_themselves_are_refused(self):
        for corpora, reason in (
            ([{"corpus": "code", "old": 1, "new": 1}] * 2, "corpus 'code' is there twice"),
            ([{"corpus": "code", "old": 1, "change": -1.5}], "change is -1.5"),
        ):
            numbers = self.root / "numbers.json"
            numbers.write_text(json.dumps({"corpora": corpora}))
            self.assert_error(run("kl", "gate", "--numbers", numbers), 4, reason)

    def test_a_panel_of_full_logits_compares_with_the_capture_of_its_windows(self):
        """Where scoring starts at one place in windows of several lengths, too."""
        cases = {"a": [0, 5, 6, 7, 8], "b": [0, 9, 10, 11]}
        arrays = []
        for case, ids in cases.items():
            rows = array.array("f", [0.0]) * ((len(ids) - 1) * 4096)
            arrays += [(f"{case}/logits", "<f4", (len(ids) - 1, 4096), rows.tobytes()),
                       (f"{case}/ids", "<i4", (len(ids),), array.array("i", ids).tobytes()),
                       (f"{case}/first_scored", "<i8", (1,), array.array("q", [1]).tobytes())]
        panel, out = self.root / "outside.npz", self.root / "outside-capture.npz"
        with zipfile.ZipFile(panel, "w") as archive:
            for name, dtype, shape, data in arrays:
                header = str({"descr": dtype, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
                archive.writestr(f"{name}.npy", b"\x93NUMPY\1\0\x76\0" + header.encode() + data)
        done = run("kl", "capture", "--corpus", panel, "--out", out, "--top-k", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run("kl", "compare", panel, out, "--id-set", "candidate", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["first_scored"], 1)

    def test_the_table_has_rows_and_columns(self):
        done = run("kl", "table", "--reference", self.root / "exact", "--noise-floor", self.root / "again",
                   f"Served={self.root / 'served'}", f"Both={self.capture('served')},{self.capture('head')}")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual([cell.strip() for cell in lines[0].split("|")[1:-1]], ["Model", "Code"])
        self.assertIn("| 0.0000 · 100.0% |", lines[2])
        self.assertIn("Both, mean of 2 runs", done.stdout)
        table = json.loads(run("kl", "table", "--reference", self.root / "exact", f"S={self.root / 'served'}",
                               "--json").stdout)
        self.assertEqual(table["schema"], "rorqual.kl.table/1")
        self.assertGreater(table["rows"][0]["cells"]["code"]["mean_kl"], 0)
        self.assert_error(run("kl", "table", "--reference", self.root / "exact", "no-equals"), 2, "expected NAME=PATH")


if __name__ == "__main__":
    program.main()
