#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`bench latency` and the measures of `doctor`: the form of their reports, and that figures fit each other. How fast the
machine is, is not tested."""

import json
import tempfile
import unittest

import program
from program import ProgramTest, run


class BenchLatency(ProgramTest):
    def check_phase(self, phase, tokens_per_repeat):
        self.assertGreater(phase["tokens_per_second"], 0)
        self.assertEqual(len(phase["samples"]), 2)
        self.assertAlmostEqual(sum(phase["samples"]) / 2, phase["tokens_per_second"], delta=1e-6 * phase["tokens_per_second"])
        planned = phase["planned"]
        self.assertEqual(planned["unknown"], "")
        self.assertLess(planned["low"], planned["tokens_per_second"])
        self.assertGreater(planned["high"], planned["tokens_per_second"])
        self.assertAlmostEqual(phase["planned_to_measured_ratio"], planned["tokens_per_second"] / phase["tokens_per_second"])
        seconds = sum(stage["seconds"] for stage in planned["stages"])
        self.assertAlmostEqual(seconds * planned["tokens_per_second"], tokens_per_repeat, delta=1e-6 * tokens_per_repeat)
        self.assertTrue(planned["limit"].startswith(planned["stages"][0]["stage"]))

    def test_the_report_holds_measurement_and_prediction(self):
        result = run("bench", "latency", "--prompt", 24, "--generate", 5, "--batch", 3, "--repeat", 2, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["schema"], "rorqual.bench.latency/1")
        self.assertEqual((report["prompt_tokens"], report["generate_tokens"], report["batch"]), (24, 5, 3))
        self.check_phase(report["prefill"], 3 * 24)
        self.check_phase(report["decode"], 3 * 4)
        memory = report["memory"]
        self.assertGreaterEqual(memory["rss_peak_bytes"], memory["rss_loaded_bytes"])
        self.assertGreater(memory["planned_bytes"], 0)
        weights = {row["weights"] for row in report["machine"]["kernels"]}
        self.assertEqual(weights, {"mxfp4", "fp8", "bf16", "f32", "attention output"})

    def test_engram_slices_without_a_tokenizer_run(self):
        model = ("synthetic:v41?layers=0,1&experts=8&hidden=256&heads=8&vocab=1000&compressed-vocab=500"
                 "&engram-rows=100&seed=3")
        result = run("bench", "latency", model, "--prompt", 8, "--generate", 2, "--repeat", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("prefill", result.stdout)
        self.assertIn("decode", result.stdout)

    def test_a_context_that_is_too_short_is_an_error(self):
        self.assert_error(run("bench", "latency", "--prompt", 100, "--generate", 10, "--max-model-len", 64), 2,
                          "--max-model-len 64", "110 tokens")
        self.assert_error(run("bench", "latency", "--generate", 1), 2, "--generate")

    def test_a_model_that_is_too_large_is_refused_before_loading(self):
        self.assert_error(run("bench", "latency", "synthetic:v41?engram-rows=20000"), 6)


class DoctorMeasures(ProgramTest):
    def test_every_measure_has_a_value_or_a_reason(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(8 << 20))
            file.flush()
            result = run("doctor", "--json", "--threads", 1, "--disk", file.name)
        self.assertEqual(result.returncode, 0, result.stderr)
        measure = json.loads(result.stdout)["measure"]
        self.assertEqual(measure["threads"], 1)
        self.assertGreater(measure["read_bytes_per_second"]["value"], 0)
        peaks = {row["unit"]: row["operations_per_second"]["value"] for row in measure["peaks"]}
        self.assertEqual(list(peaks), ["f32_fma", "int8_dot", "int8_tile", "bf16_tile"])
        self.assertGreater(peaks["f32_fma"], 0)
        self.assertGreater(peaks["int8_dot"], 0)
        for row in measure["kernels"]:
            for key in ("one_row_bytes_per_second", "four_rows_madds_per_second", "many_rows_madds_per_second"):
                self.assertGreater(row[key]["value"], 0, row["weights"])
        self.assertEqual([row["stage"] for row in measure["stages"]],
                         ["boundary", "attend", "attend_slot", "index_key", "layer_row", "region"])
        self.assertGreater(measure["disk"]["read_bytes_per_second"]["value"], 0)
        self.assertGreater(measure["disk"]["random_4k_reads_per_second"]["value"], 0)
        self.assertTrue(measure["gpus"]["note"])

    def test_a_disk_that_cannot_be_read_is_told_and_no_failure(self):
        result = run("doctor", "--json", "--threads", 1, "--disk", "/nonexistent/model")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("/nonexistent/model", json.loads(result.stdout)["measure"]["disk"]["error"])


if __name__ == "__main__":
    program.main()
