#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`bench op` and `bench compare`: the form of their reports, that figures fit each other and the shapes, and their errors.
How fast the machine is, is not tested."""

import json
import pathlib
import tempfile
import unittest

import program
from program import ProgramTest, run

OPS = ["moe", "dense", "attention", "indexer", "mhc", "engram", "head"]
# Sizes of models/mini.
D, WIDTH, EXPERTS, ACTIVE, VOCAB, HEADS, HEAD_DIM = 256, 128, 16, 6, 4096, 4, 512
MXFP4, FP8 = 0.5 + 1 / 32, 1 + 1 / 512  # bytes of a weight; a panel of 16 rows repeats the scale of 32 rows
QUICK = ("--seconds", 0, "--threads", 2)


def bench(*arguments):
    result = run("bench", "op", "--shape", "mini", "--json", *QUICK, *arguments)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)


class BenchOp(ProgramTest):
    def check_row(self, row, report):
        ceilings = report["ceilings"]
        rates = {peak["unit"]: peak["operations_per_second"]["value"] for peak in ceilings["peaks"]}
        seconds = row["us_median"] / 1e6
        self.assertGreater(row["us_best"], 0)
        self.assertGreaterEqual(row["us_median"], row["us_best"])
        self.assertGreaterEqual(row["calls"], 3)
        self.assertAlmostEqual(row["bytes_per_second"] * seconds / row["bytes"], 1)
        self.assertAlmostEqual(row["operations_per_second"] * seconds / row["operations"], 1)
        of_bytes = row["bytes"] / ceilings["read_bytes_per_second"]["value"]
        of_operations = row["operations"] / rates[report["unit"]]
        self.assertAlmostEqual(row["us_of_bytes"] / (of_bytes * 1e6), 1)
        self.assertAlmostEqual(row["us_of_operations"] / (of_operations * 1e6), 1)
        self.assertEqual(row["limit"], "bytes" if of_bytes >= of_operations else "operations")
        self.assertGreater(row["share_of_limit"], 0)  # a median over rounds: not of these medians

    def test_every_operation_has_rows_with_limits(self):
        for op in OPS:
            with self.subTest(op=op):
                report = bench("--op", op, "--tokens", "1,5", "--experts", EXPERTS, "--context", 300)
                self.assertEqual(report["schema"], "rorqual.bench.op/1")
                self.assertEqual((report["op"], report["threads"], report["rounds"]), (op, 2, 3))
                self.assertEqual([row["tokens"] for row in report["rows"]], [1, 5])
                for row in report["rows"]:
                    self.check_row(row, report)
                self.assertGreater(report["forecast_bytes"], report["rows"][0]["bytes"])

    def test_bytes_and_operations_are_those_of_the_shape(self):
        row = bench("--tokens", 1, "--experts", EXPERTS)["rows"][0]
        expert = 3 * D * WIDTH
        self.assertEqual(row["experts"], ACTIVE)
        self.assertEqual(row["bytes"], ACTIVE * expert * MXFP4 + expert * FP8 + 2 * EXPERTS * D + 8 * D)
        self.assertEqual(row["operations"], 2 * ((ACTIVE + 1) * expert + EXPERTS * D))
        row = bench("--op", "head", "--tokens", 3)["rows"][0]
        self.assertEqual(row["bytes"], 2 * VOCAB * D + 3 * 4 * (D + VOCAB))
        self.assertEqual(row["operations"], 3 * 2 * VOCAB * D)
        row = bench("--op", "attention", "--tokens", 1, "--context", 300)["rows"][0]
        window, selected = 64, 64
        self.assertEqual(row["operations"], 4 * (window + selected) * HEADS * HEAD_DIM)
        self.assertEqual(row["bytes"], window * (HEAD_DIM + HEAD_DIM // 32) + selected * (HEAD_DIM // 2 + HEAD_DIM // 16)
                         + 8 * HEADS * HEAD_DIM)

    def test_more_rows_reach_more_experts(self):
        report = bench("--tokens", "1,64", "--experts", 64)
        few, many = (row["experts"] for row in report["rows"])
        self.assertEqual(few, ACTIVE)
        self.assertGreater(many, 40)
        self.assertLessEqual(many, 64)

    def test_tiers_numerics_and_shared_expert_can_be_chosen(self):
        report = bench("--tokens", 2, "--experts", EXPERTS, "--tier", "ref", "--activations", "exact", "--routed-only")
        self.assertEqual((report["tier"], report["activations"], report["shared_expert"]), ("ref", "exact", False))
        self.assertEqual(report["unit"], "f32_fma")

    def test_a_competing_process_gives_a_second_figure(self):
        report = bench("--op", "dense", "--tokens", "1,2", "--compete", 1)
        self.assertEqual(report["compete"], 1)
        for row in report["rows"]:
            beside = row["competing"]
            self.assertGreater(beside["us_median"], 0)
            self.assertAlmostEqual(beside["slowdown"], beside["us_median"] / row["us_median"])

    def test_the_table_has_a_line_for_each_row(self):
        result = run("bench", "op", "--shape", "mini", "--op", "mhc", "--tokens", "1,3", "--compete", 1, *QUICK)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertTrue(lines[0].startswith("op        mhc mini"))
        self.assertTrue(lines[1].startswith("ceilings  read "))
        self.assertIn("f32_fma", lines[1])
        self.assertEqual([line.split()[0] for line in lines[-2:]], ["1", "3"])

    def test_errors_come_before_the_work(self):
        bench_op = ("bench", "op", *QUICK)
        self.assert_error(run(*bench_op, "--op", "sort"), 2, "sort")
        self.assert_error(run(*bench_op, "--tokens", "1,x"), 2, "--tokens", "1,x")
        self.assert_error(run(*bench_op, "--tokens", ""), 2, "--tokens")
        self.assert_error(run(*bench_op, "--tier", "none"), 5, "none")
        self.assert_error(run(*bench_op, "--op", "indexer", "--context", 16 << 20, "--tokens", 65536,
                              "--activations", "exact"), 6, "available")


HEADER = "peer,op,M,rows,experts,us_median,us_min,GBps,TFLOPs,rel_err,note\n"


class BenchCompare(ProgramTest):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)

    def ours(self, name, times, **changes):
        report = {"schema": "rorqual.bench.op/1", "op": "moe", "shape": "v41", "tier": "avx2", "activations": "reference",
                  "threads": 2, "experts": 48, "shared_expert": False,
                  "rows": [{"tokens": tokens, "us_median": us} for tokens, us in times.items()], **changes}
        path = self.folder / name
        path.write_text(json.dumps(report), encoding="utf-8")
        return path

    def peers(self, name, *rows):
        path = self.folder / name
        path.write_text(HEADER + "".join(row + "\n" for row in rows), encoding="utf-8")
        return path

    def compare(self, *files):
        result = run("bench", "compare", *files, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_ratios_are_of_medians_over_the_files(self):
        first = self.ours("a.json", {1: 90.0, 4: 400.0})
        second = self.ours("b.json", {1: 110.0, 4: 400.0})
        peers = self.peers("p.csv", "x,moe_mxfp4_t2,1,6,6,150,1,,,,threads=2;E=48", "x,moe_mxfp4_t2,1,6,6,250,1,,,,threads=2;E=48",
                           "y,moe_mxfp4_t2,1,6,6,300,1,,,,threads=2;E=384", "y,moe_mxfp4_t2,4,6,6,800,1,,,,threads=2;E=384",
                           'x,moe_mxfp4_t2,4,6,6,,,,,,"skipped: predicted 9 s"', "x,moe_mxfp4_t1,1,6,6,50,1,,,,threads=1;E=48",
                           "cpu-micro,dram_read_t2,0,0,,281.4,1,,,,zmm loads")
        report = self.compare(first, second, peers)
        self.assertEqual(report["schema"], "rorqual.bench.compare/1")
        self.assertEqual(report["ours"], [{"tokens": 1, "us_median": 100.0}, {"tokens": 4, "us_median": 400.0}])
        by_name = {peer["peer"]: peer for peer in report["peers"]}
        self.assertEqual(by_name["x moe_mxfp4_t2"]["rows"], [{"tokens": 1, "us_median": 200.0, "ratio": 2.0}])
        self.assertEqual([row["ratio"] for row in by_name["y moe_mxfp4_t2"]["rows"]], [3.0, 2.0])
        self.assertEqual([(row["tokens"], row["peer"], row["ratio"]) for row in report["best_peer"]],
                         [(1, "x moe_mxfp4_t2", 2.0), (4, "y moe_mxfp4_t2", 2.0)])

    def test_the_table_names_peers_and_other_numbers_of_experts(self):
        peers = self.peers("p.csv", "y,moe_mxfp4_t2,1,6,6,300,1,,,,threads=2;E=384")
        result = run("bench", "compare", self.ours("a.json", {1: 100.0, 8: 900.0}), peers)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("y moe_mxfp4_t2 (experts [384])", result.stdout)
        self.assertRegex(result.stdout, r"over ours +3\.00x +-")

    def test_a_report_of_this_program_can_be_read(self):
        result = run("bench", "op", "--shape", "mini", "--tokens", 1, "--experts", EXPERTS, "--json", *QUICK)
        path = self.folder / "ours.json"
        path.write_text(result.stdout, encoding="utf-8")
        peers = self.peers("p.csv", "y,moe_mxfp4_t2,1,6,6,300,1,,,,threads=2;E=16")
        self.assertEqual(len(self.compare(path, peers)["best_peer"]), 1)

    def test_errors_name_file_and_line(self):
        ours = self.ours("a.json", {1: 100.0})
        peers = self.peers("p.csv", "y,moe_mxfp4_t2,1,6,6,300,1,,,,threads=2;E=384")
        self.assert_error(run("bench", "compare", ours), 2, "no rows")
        self.assert_error(run("bench", "compare", ours, self.folder / "none.csv"), 3, "none.csv")
        self.assert_error(run("bench", "compare", ours, self.peers("bad.csv", "y,moe,1,6")), 4, "bad.csv", "line 2")
        self.assert_error(run("bench", "compare", ours, self.peers("number.csv", "y,moe,x,6,6,3,1,,,,n")), 4, "line 2")
        other = self.folder / "head.csv"
        other.write_text("a,b\n1,2\n", encoding="utf-8")
        self.assert_error(run("bench", "compare", ours, other), 4, "line 1", "peer")
        self.assert_error(run("bench", "compare", self.ours("b.json", {1: 1.0}, schema="x"), peers), 4, "b.json")
        self.assert_error(run("bench", "compare", ours, self.ours("c.json", {1: 1.0}, threads=4), peers), 2, "c.json")
        self.assert_error(run("bench", "compare", self.ours("d.json", {1: 1.0}, threads=3), peers), 2, "3 threads")


if __name__ == "__main__":
    program.main()
