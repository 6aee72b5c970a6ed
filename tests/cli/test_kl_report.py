#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kl report` from captures of the embedded model to a checked page, and its errors."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import program
from program import ROOT, ProgramTest, run

CHECK = ROOT / "tests/report/check_page.py"


class KlReport(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="rorqual-kl-report-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.text = cls.folder / "words.txt"
        cls.text.write_text("".join(f"Row {i}: <b>the {i * i}th</b> & 'next' line.\n" for i in range(60)))
        for name, options in (("ref", ["--numerics", "exact"]), ("plain", []), ("fp8", ["--lm-head", "fp8"])):
            (cls.folder / name).mkdir()
            cls.capture(f"{name}/words.safetensors", *options)

    @classmethod
    def capture(cls, out, *options):
        result = run("kl", "capture", "--corpus", cls.text, "--context", "128", "--windows", "2", "--top-k", "64",
                     "--out", cls.folder / out, *options)
        assert result.returncode == 0, result.stderr

    def check(self, page, *expectations):
        result = subprocess.run([sys.executable, CHECK, page, *expectations], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_folders_become_a_page(self):
        page = self.folder / "a.html"
        result = run("kl", "report", self.folder / "ref", self.folder / "plain", self.folder / "fp8", "--floor",
                     self.folder / "ref", "--out", page)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("wrote ", result.stdout)
        self.check(page, "--sections", "Overview,words", "--worst", "100", "--figures", "6")
        text = page.read_text()
        for part in ("lm-head=fp8", "Paired comparison", "noise floor", "By class of token", "numerics exact"):
            self.assertIn(part, text)

    def test_json_has_the_numbers_of_the_page(self):
        page = self.folder / "b.html"
        result = run("kl", "report", self.folder / "ref/words.safetensors", self.folder / "fp8/words.safetensors",
                     "--label", "head in FP8", "--worst", "3", "--tokenizer", "none", "--out", page, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.check(page, "--sections", "Overview,words", "--worst", "3", "--figures", "5")
        printed = json.loads(result.stdout)["corpora"][0]["candidates"][0]
        text = page.read_text()
        data = json.loads(text.split('id="data">')[1].split("</script>")[0])
        candidate = data["corpora"][0]["candidates"][0]
        self.assertEqual(candidate["name"], "head in FP8")
        self.assertEqual(candidate["summary"]["mean_kl"], printed["mean_kl"])
        self.assertGreater(printed["mean_kl"], 0)
        self.assertEqual(len(candidate["worst"]), 3)
        kl = [position["kl"] for position in candidate["worst"]]
        self.assertEqual(kl, sorted(kl, reverse=True))
        counted = sum(candidate["histogram"]["counts"]) + candidate["histogram"]["below"]
        self.assertEqual(counted, candidate["summary"]["positions"])

    def test_archives_get_their_context_from_the_text(self):
        self.capture("words.npz", "--numerics", "exact")
        page = self.folder / "f.html"
        pair = [self.folder / "words.npz", self.folder / "plain/words.safetensors", "--out", page]
        result = run("kl", "report", *pair, "--corpus", self.text)
        self.assertEqual(result.returncode, 0, result.stderr)
        with_text = page.read_text()
        result = run("kl", "report", self.folder / "ref/words.safetensors", *pair[1:])
        self.assertEqual(result.returncode, 0, result.stderr)
        worst = '<article class="worst">'
        self.assertEqual(with_text.split(worst)[1:], page.read_text().split(worst)[1:])
        other = self.folder / "other"
        other.mkdir()
        (other / "words.txt").write_text(self.text.read_text()[5:])
        self.assert_error(run("kl", "report", *pair, "--corpus", other / "words.txt"), 4, "first difference is in row")
        self.assert_error(run("kl", "report", *pair, "--corpus", CHECK), 2, "no capture of corpus 'check_page'")

    def test_captures_of_different_windows_are_refused(self):
        other = self.folder / "other.safetensors"
        self.text.write_text(self.text.read_text().replace("Row", "Line"))
        try:
            self.capture("other.safetensors")
        finally:
            self.text.write_text(self.text.read_text().replace("Line", "Row"))
        result = run("kl", "report", self.folder / "ref", other, "--out", self.folder / "c.html")
        self.assert_error(result, 4, "corpus 'words'")
        self.assertFalse((self.folder / "c.html").exists())

    def test_missing_and_unfit_inputs_are_named(self):
        empty = self.folder / "empty"
        empty.mkdir()
        out = ["--out", self.folder / "d.html"]
        self.assert_error(run("kl", "report", self.folder / "ref", empty, *out), 3, "has no captures")
        self.assert_error(run("kl", "report", self.folder / "ref", self.folder / "no.npz", *out), 3, "no.npz")
        self.assert_error(run("kl", "report", self.folder / "ref", self.folder / "fp8", "--label", "a", "--label", "b",
                              *out), 2, "2 labels for 1 candidates")
        self.assert_error(run("kl", "report", self.folder / "ref", self.folder / "fp8", "--id-set", "full", *out), 5,
                          "full logits")
        self.assert_error(run("kl", "report", self.folder / "ref", self.folder / "fp8", "--out",
                              self.folder / "none/x.html"), 7, "none/x.html")

    def test_two_captures_of_one_corpus_in_a_folder_are_refused(self):
        double = self.folder / "double"
        shutil.copytree(self.folder / "fp8", double)
        shutil.copy(double / "words.safetensors", double / "again.safetensors")
        result = run("kl", "report", self.folder / "ref", double, "--out", self.folder / "e.html")
        self.assert_error(result, 2, "corpus 'words'", "again.safetensors")


if __name__ == "__main__":
    program.main()
