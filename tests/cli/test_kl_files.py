#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that the kl commands are given and asked to write: wrong ones are refused before anything is computed."""

import fcntl
import json
import os
import pathlib
import tempfile
import unittest

import program
from program import ProgramTest, run

TEXT = "The committee met on 3 May and agreed. Всё это правда. " * 10
SMALL = ["--context", 16, "--windows", 2, "--top-k", 8, "--threads", 1]


class Files(ProgramTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "text.txt").write_text(TEXT, encoding="utf-8")

    def write(self, name, content):
        (self.root / name).write_bytes(content)
        return self.root / name

    def capture(self, out, *more):
        return run("kl", "capture", "--corpus", self.root / "text.txt", "--out", self.root / out, *SMALL, *more)


class Outputs(Files):
    def test_a_folder_is_no_file(self):
        (self.root / "dump.npz").mkdir()
        self.assert_error(self.capture("dump.npz"), 2, "--out", "dump.npz", "is a folder, expected a file")
        self.assertFalse((self.root / "dump.npz.part").exists())
        self.assert_error(self.capture("ok.npz", "--logits", self.root / "no/l.safetensors"), 7, "--logits", "no folder")
        for command in (["panel"], ["corpus", "code", "--root", "/"]):
            self.assert_error(run("kl", *command, "--out", self.root), 2, "--out", "is a folder, expected a file")
            self.assert_error(run("kl", *command, "--out", self.root / "no/file"), 7, "--out", "no folder")

    def test_a_folder_that_is_missing_is_named_before_anything_is_computed(self):
        self.assert_error(self.capture("no/dump.npz"), 7, "--out", "no folder")
        self.assertFalse((self.root / "no").exists())

    def test_a_capture_without_logits_says_null(self):
        done = self.capture("dump.npz", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIsNone(json.loads(done.stdout)["logits"])

    def test_two_captures_do_not_write_one_dump(self):
        parts = self.root / "dump.npz.part"
        parts.mkdir()
        lock = os.open(parts, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.assert_error(self.capture("dump.npz"), 7, "dump.npz.part", "another capture")
        fcntl.flock(lock, fcntl.LOCK_UN)
        self.assertEqual(self.capture("dump.npz").returncode, 0)


class Inputs(Files):
    def test_texts_are_utf8(self):
        bad = self.write("bad.txt", b"Hello \xff\xfe" + TEXT.encode() * 2)
        done = run("kl", "capture", "--corpus", bad, "--out", self.root / "x.npz", *SMALL)
        self.assert_error(done, 4, "bad.txt", "byte 6", "UTF-8")
        self.assert_error(run("kl", "panel", "--prompts", bad, "--out", self.root / "x.json"), 4, "bad.txt", "byte 6")

    def test_a_broken_list_of_prompts_is_not_a_prompt(self):
        bad = self.write("prompts.json", b'["a"')
        self.assert_error(run("kl", "panel", "--prompts", bad, "--out", self.root / "x.json"), 4, "prompts.json", "JSON")
        number = self.write("number.json", b"[1]")
        self.assert_error(run("kl", "panel", "--prompts", number, "--out", self.root / "x.json"), 4, "entry 0")

    def test_a_context_that_the_model_lacks_is_named_by_the_options_that_ask_for_it(self):
        (self.root / "text.txt").write_text(TEXT * 60, encoding="utf-8")
        done = self.capture("x.npz", "--context", 16384, "--windows", 1)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("hint: a smaller --context", done.stderr)
        done = run("kl", "panel", "--max-tokens", 100000, "--out", self.root / "x.json")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("hint: a smaller --max-tokens", done.stderr)

    def test_a_capture_that_is_not_there_is_not_found(self):
        self.assertEqual(self.capture("a.npz").returncode, 0)
        done = run("kl", "table", "--reference", self.root / "a.npz", f"x={self.root}/nope")
        self.assert_error(done, 3, "nope", "no such file")
        self.assert_error(run("kl", "compare", self.root / "a.npz", self.root / "nope"), 3, "nope", "no such file")

    def test_packages_are_looked_for_in_a_folder(self):
        self.assert_error(run("kl", "corpus", "code", "--root", self.root / "nope"), 3, "--root", "no such folder")
        self.assert_error(run("kl", "corpus", "code", "--root", self.root / "text.txt"), 2, "--root", "expected a folder")

    def test_parser_messages_are_ours(self):
        done = run("kl", "agree", self.root / "text.txt")
        self.assert_error(done, 4, "text.txt", "not JSON")
        self.assertNotIn("json.exception", done.stderr)


class Zeros(Files):
    """A reference against itself: changes relative to a divergence of 0."""

    def test_no_number_is_infinite_or_undefined(self):
        for folder, more in {"ref": [], "old": [], "new": ["--lm-head", "fp8"]}.items():
            (self.root / folder).mkdir()
            self.assertEqual(self.capture(f"{folder}/text.npz", *more).returncode, 0)
        ref, old, new = (self.root / name for name in ("ref", "old", "new"))
        page = self.root / "page.html"
        results = [run("kl", "gate", "--reference", ref, "--old", old, "--new", new),
                   run("kl", "compare", ref / "text.npz", new / "text.npz", old / "text.npz"),
                   run("kl", "report", ref, old, new, "--out", page)]
        self.assertEqual([done.returncode for done in results], [1, 0, 0])
        self.assertIn("from 0", results[0].stdout)
        self.assertIn("not defined: B is 0", results[1].stdout)
        self.assertIn("from 0", page.read_text(encoding="utf-8"))
        for text in (results[0].stdout, results[1].stdout, page.read_text(encoding="utf-8")):
            self.assertNotRegex(text, r"[-+]?\b(nan|inf)\b")

    def test_json_comes_without_warnings(self):
        self.write("other.txt", TEXT.encode())
        for name in ("text", "other"):
            done = run("kl", "capture", "--corpus", self.root / f"{name}.txt", "--out", self.root / f"{name}.npz", *SMALL)
            self.assertEqual(done.returncode, 0, done.stderr)
        done = run("kl", "report", self.root / "text.npz", self.root / "other.npz", "--out", self.root / "p.html", "--json")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(json.loads(done.stderr)["error"]["exit"], 2)


if __name__ == "__main__":
    program.main()
