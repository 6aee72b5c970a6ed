# SPDX-License-Identifier: Apache-2.0
"""`rorqual plan`, and `serve` that plans before it loads: verdicts, refusals under limits, placements of later versions."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

import program
from program import ROOT, ProgramTest, run

sys.path.insert(0, str(program.ROOT / "tests" / "api"))
import harness  # noqa: E402

PAGE = ROOT / "docs" / "plan.md"
MINI_TOKENIZER = ROOT / "models" / "mini" / "tokenizer.json"
# A release that is cut to a vocabulary for which a tokenizer is at hand; without Engram layers.
SMALL = "synthetic:v41?layers=1&experts=64&vocab=4096"


def plan(*arguments):
    """The plan as JSON; speeds of this machine are not measured."""
    result = run("plan", *arguments, "--json", "--no-measure")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class Plans(ProgramTest):
    def test_the_release_needs_no_files(self):
        answer = plan("v41", "--machine", "cpu-768")
        self.assertEqual(answer["schema"], "rorqual.plan/1")
        self.assertEqual(answer["checkpoint_bytes"], 510_286_023_000)
        self.assertEqual(answer["checkpoint_tensors"], 96_085)
        self.assertTrue(answer["verdict"]["fits"])
        self.assertEqual(answer["settings"]["kv_bytes_per_token"], 890)

    def test_swap_space_is_a_row_where_it_is_used(self):
        def rows(*arguments):
            parts = plan("v41", "--machine", "cpu-768", *arguments)["this_version"]["parts"]
            return [p["bytes"] for p in parts if p["part"] == "swap space"]

        self.assertEqual(rows("--swap-space", "2"), [])
        self.assertEqual(rows("--preemption-mode", "swap"), [4 << 30])
        self.assertEqual(rows("--preemption-mode", "swap", "--swap-space", "2.5"), [5 << 29])

    def test_text_has_table_verdict_download_and_check(self):
        result = run("plan", "v41", "--machine", "ram=512G,gpu=24G,disk=4T")
        self.assertEqual(result.returncode, 0, result.stderr)
        for part in ("routed experts", "Engram tables", "KV cache", "verdict   fits", "decode", "prefill",
                     "hf download deepseek-ai/DeepSeek-V4.1-Flash --local-dir", "510,286,023,000 bytes",
                     "4.0 TiB free: enough", "rorqual inspect DeepSeek-V4.1-Flash --verify", "Not in this version"):
            self.assertIn(part, result.stdout)

    def test_a_disk_that_is_too_small_for_the_download_is_named(self):
        result = run("plan", "v41", "--machine", "ram=512G,disk=400G")
        self.assertIn("400.0 GiB free: 75.2 GiB short", result.stdout)

    def test_described_speeds_have_error_bars(self):
        decode = plan("v41", "--machine", "cpu-384")["speed"]["decode"]
        self.assertGreater(decode["tokens_per_s"]["value"], 0)
        self.assertGreater(decode["tokens_per_s"]["spread"], 0)
        self.assertFalse(decode["tokens_per_s"]["is_measured"])
        self.assertTrue(decode["limited_by"])

    def test_a_folder_and_the_small_model_inside_are_planned(self):
        for model in ([], [ROOT / "models" / "mini"], [ROOT / "tests" / "models" / "tiny-a"]):
            answer = plan(*model)
            self.assertTrue(answer["verdict"]["fits"])
            self.assertEqual(answer["machine"]["name"], "this machine")
            self.assertNotIn("download", answer)
        self.assert_error(run("plan", "/no/such/model"), 3, "/no/such/model")

    def test_machines_are_listed_and_bad_ones_are_refused(self):
        listed = run("plan", "--machine", "list")
        self.assertEqual(listed.returncode, 0)
        for name in ("8xh20", "2xpro6000", "4090-512", "cpu-128"):
            self.assertIn(name, listed.stdout)
        self.assert_error(run("plan", "v41", "--machine", "ram=lots"), 2, "ram=lots")
        self.assert_error(run("plan", "v41", "--machine", "gpu=24G"), 2, "no ram")

    def test_placements_of_later_versions_exit_with_5(self):
        self.assert_error(run("plan", "v41", "--engram-placement", "gpu"), 5, "--engram-placement gpu")
        self.assert_error(run("plan", "v41", "--cpu-experts", "10"), 5, "--cpu-experts 10")
        self.assert_error(run("serve", "--engram-placement", "gpu", "--port", "0"), 5, "--engram-placement gpu")
        self.assert_error(run("serve", "--cpu-experts", "none", "--port", "0"), 5, "--cpu-experts none")

    def test_planning_forty_layers_is_quick(self):
        began = time.monotonic()
        plan("v41", "--machine", "cpu-128")
        self.assertLess(time.monotonic() - began, 2.0)  # a process under load; the library test has the tight bound

    def test_the_page_shows_what_the_program_says(self):
        """Machine, verdicts and memory of the page's table; speeds change with measurements and are not compared."""
        result = run("plan", "v41", "--machine", "all")
        self.assertEqual(result.returncode, 0, result.stderr)

        def rows(text):
            cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()
                     if re.match(r"\| (8xh20|8xh200|2xpro6000|h200-256|4090-512|cpu-\d+) ", line)]
            return [[row[0], row[1], row[2], row[4], row[5]] for row in cells if len(row) == 7]

        program_rows = rows(result.stdout)
        self.assertEqual(len(program_rows), 8)
        self.assertEqual(rows(PAGE.read_text(encoding="utf-8")), program_rows)


class Refusals(ProgramTest):
    def test_serve_refuses_what_is_too_large_before_loading(self):
        # 510 GB of the real shapes; the vocabulary is cut to the tokenizer at hand, which keeps 500 GB.
        model = "synthetic:v41?vocab=4096&compressed-vocab=3231"
        began = time.monotonic()
        result = run("serve", model, "--tokenizer", MINI_TOKENIZER, "--port", "0", "--engram-placement", "host",
                     "--log-level", "info", timeout=60)
        self.assert_error(result, 6, "of memory", "can be used")
        self.assertIn("more RAM", result.stderr)
        self.assertIn("plan ", result.stderr)
        self.assertIn("does not fit", result.stderr)
        self.assertLess(time.monotonic() - began, 30)

    def test_swap_space_counts_before_loading(self):
        self.assert_error(run("serve", "--port", "0", "--preemption-mode", "swap", "--swap-space", "60000", timeout=60), 6,
                          "can be used")

    def test_a_failure_to_start_is_one_json_object_alone(self):
        model = "synthetic:v41?vocab=4096&compressed-vocab=3231"
        for arguments, code, name in (
                ([model, "--tokenizer", MINI_TOKENIZER, "--engram-placement", "host"], 6, "out_of_memory"),
                (["--engram-placement", "gpu"], 5, "unsupported"), (["/no/such/model"], 3, "not_found")):
            result = run("serve", *arguments, "--port", "0", "--json", timeout=60)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertEqual(result.stdout, "")
            error = json.loads(result.stderr)["error"]
            self.assertEqual((error["code"], error["exit"]), (name, code))

    def test_serve_with_json_logs_once_it_is_loaded(self):
        serving = harness.Program("--max-model-len", "1024", "--json", program=program.PROGRAM)
        self.assertEqual(serving.stop(), 0)
        self.assertIn(" start  ", serving.lines[0])

    def test_serve_prints_the_plan_before_it_loads(self):
        serving = harness.Program("--max-model-len", "1024", program=program.PROGRAM)
        serving.stop()
        text = "".join(serving.lines)
        self.assertIn(" plan   RAM: ", text)
        self.assertIn(" plan   fits: ", text)
        self.assertLess(text.index(" plan   "), text.index(" load   "))

    def test_chat_uses_the_same_check(self):
        result = run("chat", "synthetic:v41?vocab=4096&compressed-vocab=3231", "--tokenizer", MINI_TOKENIZER,
                     "--engram-placement", "host", "--prompt", "x", timeout=60)
        self.assert_error(result, 6, "can be used")


def make_cgroup(limit_bytes):
    """A new memory cgroup (version 2 or 1) with a limit: its folder. OSError or PermissionError if that is not allowed."""
    name = f"rorqual-test-{os.getpid()}"
    for base, limit_file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        if not (pathlib.Path(base) / ("memory.limit_in_bytes" if base.endswith("memory") else "cgroup.controllers")).exists():
            continue
        folder = pathlib.Path(base) / name
        folder.mkdir()
        try:
            (folder / limit_file).write_text(str(limit_bytes))
        except OSError:
            folder.rmdir()
            raise
        return folder
    raise OSError("no memory cgroup is mounted")


class Cgroup(ProgramTest):
    def setUp(self):
        try:
            self.folder = make_cgroup(400 << 20)
        except OSError as reason:
            self.skipTest(f"no cgroup can be made here ({reason}); base.cpu_info_test and plan.machine_test read a fake one")
        self.addCleanup(self.folder.rmdir)

    def run_inside(self, *arguments):
        script = f'echo $$ > {self.folder}/cgroup.procs && exec "$@"'
        return subprocess.run(["sh", "-c", script, "sh", program.PROGRAM, *map(str, arguments)], capture_output=True,
                              text=True, timeout=120)

    def test_a_limit_below_the_need_refuses_with_both_numbers(self):
        result = self.run_inside("serve", SMALL, "--tokenizer", MINI_TOKENIZER, "--port", "0", "--max-num-seqs", "64")
        self.assert_error(result, 6, "of memory", "can be used", "cgroup limit 400.0 MiB")
        self.assertIn("a cgroup limit that is ", result.stderr)
        self.assertIn(" higher: fits", result.stderr)

    def test_plan_sees_the_limit(self):
        answer = json.loads(self.run_inside("plan", "--json", "--no-measure").stdout)
        self.assertEqual(answer["machine"]["cgroup_limit_bytes"], 400 << 20)
        self.assertLess(answer["verdict"]["available_bytes"], 400 << 20)
        self.assertTrue(answer["verdict"]["fits"])


if __name__ == "__main__":
    program.main()
