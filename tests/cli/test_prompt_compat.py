# SPDX-License-Identifier: Apache-2.0
"""Prompt switches from the command line: what they render, and that panels, captures and comparisons know of them."""

import hashlib
import json
import pathlib
import shutil
import tempfile
import unittest

import program
from program import ProgramTest, run

TOOL = {"type": "function", "function": {"parameters": {"type": "object"}, "extra": 1, "name": "f"}}
BODY = {"messages": [{"role": "user", "content": "json <think>"}, {"role": "developer", "content": "D"},
                     {"role": "system", "content": "S"}],
        "tools": [TOOL], "response_format": {"type": "json_object"}, "thinking": {"type": "disabled"}}


def render(names="", **changes):
    done = run("render", json.dumps({**BODY, **changes}), "--json", *(["--prompt-compat", names] if names else []))
    return json.loads(done.stdout)


class Render(ProgramTest):
    def test_each_switch_changes_what_it_names(self):
        plain = render()
        self.assertIn("<｜System｜>D<｜System｜>S<｜Assistant｜>", plain["prompt"])
        self.assertIn("<｜User｜>D<｜System｜>S<｜Assistant｜>", render("developer")["prompt"])
        self.assertNotIn("## Response Format:", render("response_format")["prompt"])
        self.assertIn('"extra": 1', render("tool_fields")["prompt"])
        self.assertNotIn("## Tools", render(tool_choice="none")["prompt"])
        self.assertEqual(render("tool_choice_none", tool_choice="none"), plain)
        self.assertIn("<｜System｜>D\n\n## Tools", render("leading_system")["prompt"])
        spelled = render("plain_text")
        self.assertEqual(spelled["prompt"], plain["prompt"])
        self.assertLess(spelled["count"], plain["count"])

    def test_several_switches_hold_together(self):
        prompt = render("developer,leading_system")["prompt"]
        self.assertIn("<｜User｜>D<｜System｜>S\n\n## Tools", prompt)

    def test_an_unknown_name_is_refused_with_the_known_ones(self):
        self.assert_error(run("render", "[]", "--prompt-compat", "plain"), 2, "'plain'")
        self.assert_error(run("chat", "--url", "http://127.0.0.1:1", "--prompt-compat", "plain_text", "-p", "x"), 2,
                          "--prompt-compat", "--url")


class Records(ProgramTest):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="prompt_compat_"))
        self.addCleanup(shutil.rmtree, self.root)

    def capture(self, names):
        panel, dump = self.root / f"panel-{names}.json", self.root / f"dump-{names}.npz"
        prompts = self.root / "prompts.json"
        prompts.write_text(json.dumps(["Say <｜User｜> twice."]))
        switches = ["--prompt-compat", names] if names else []
        done = run("kl", "panel", "--prompts", prompts, "--max-tokens", 4, "--out", panel, *switches)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run("kl", "capture", "--corpus", panel, "--out", dump, "--top-k", 8)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(panel.read_text()), json.loads(pathlib.Path(f"{dump}.run.json").read_text()), dump

    def test_panels_captures_and_comparisons_know_the_switches(self):
        panel, record, plain = self.capture("")
        self.assertNotIn("prompt_compat", panel)
        self.assertEqual(record["prompt_compat"], "")
        digest = hashlib.sha256((program.ROOT / "models/mini/tokenizer.json").read_bytes()).hexdigest()
        self.assertEqual(record["tokenizer_sha256"], digest)
        spelled_panel, spelled_record, spelled = self.capture("plain_text")
        self.assertEqual(spelled_panel["prompt_compat"], "plain_text")
        self.assertEqual(spelled_record["prompt_compat"], "plain_text")
        self.assertNotEqual(panel["cases"][0]["prompt"], spelled_panel["cases"][0]["prompt"])
        self.assert_error(run("kl", "compare", plain, spelled), 2, "prompt switches", "plain_text")
        self.assertEqual(run("kl", "compare", spelled, spelled).returncode, 0)

    def test_records_of_earlier_versions_are_read(self):
        _, record, dump = self.capture("")
        for field in ("prompt_compat", "tokenizer_sha256", "checkpoint_encoder"):
            del record[field]
        pathlib.Path(f"{dump}.run.json").write_text(json.dumps(record))
        self.assertEqual(run("kl", "compare", dump, dump).returncode, 0)


class Inspect(ProgramTest):
    def test_the_encoder_of_a_checkpoint_is_shown_by_its_digest(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="inspect_encoder_"))
        self.addCleanup(shutil.rmtree, folder)
        model = folder / "model"
        shutil.copytree(program.ROOT / "models/mini", model)
        self.assertIsNone(json.loads(run("inspect", model, "--json").stdout)["checkpoint_encoder"])
        (model / "encoding").mkdir()
        (model / "encoding" / "encoding.py").write_text("# an encoder\n")
        (model / "encoding" / "encoding_test.py").write_text("# not it\n")
        expected = "encoding/encoding.py sha256:" + hashlib.sha256(b"# an encoder\n").hexdigest()
        shown = json.loads(run("inspect", model, "--json").stdout)
        self.assertEqual(shown["checkpoint_encoder"], expected)
        self.assertEqual(shown["prompt_encoding"], "1017")
        self.assertIn(expected, run("inspect", model).stdout)
        self.assertIn(shown["tokenizer_sha256"], run("inspect", model).stdout)


if __name__ == "__main__":
    program.main()
