#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`bench serve` and `bench agent` against the scripted server, a server that breaks its word, and the model inside the
program. Forms, counts and verdicts; how fast anything is, is not tested."""

import csv
import http.server
import json
import pathlib
import sys
import tempfile
import threading

import program
from program import ProgramTest, run

sys.path.insert(0, str(program.ROOT / "tests" / "api"))
import harness  # noqa: E402


class LoadTest(ProgramTest):
    script = [{"text": "Hello there, all of you."}]
    options = {}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.server = None
        if self.script:
            self.server = harness.Server(self.script, **self.options)
            self.addCleanup(self.server.stop)
            self.url = f"http://127.0.0.1:{self.server.port}"

    def serve(self, *arguments, code=0):
        """The report, and the process for what it said on standard error."""
        result = run("bench", "serve", "--url", self.url, "--json", *arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(result.stdout), result

    def failed_gates(self, report):
        return sorted({gate["gate"] for one in report["runs"] for gate in one["gates"] if not gate["met"]})


class Serve(LoadTest):
    def test_tiers_and_runs_have_exact_lengths_counts_and_files(self):
        table, rows = self.folder / "out.csv", self.folder / "requests.jsonl"
        report, _ = self.serve("--streams", "1,3", "--runs", 2, "--requests", 6, "--prompt-tokens", 40, "--output-tokens",
                               8, "--csv", table, "--requests-file", rows, "--label", "scripted")
        self.assertEqual(report["schema"], "rorqual.bench.serve/1")
        self.assertEqual(report["model"], "rorqual-mini")
        self.assertEqual([(one["streams"], one["run"]) for one in report["runs"]], [(1, 1), (3, 1), (1, 2), (3, 2)])
        for one in report["runs"]:
            self.assertEqual(one["requests"], {"success": 6, "refused": 0, "error": 0, "left": 0, "incomplete": 0})
            self.assertEqual(one["requests_in_window"], 6)
            self.assertEqual(one["client"]["generation_tokens"], 48)
            self.assertEqual(one["client"]["prompt_tokens"], 240)
            self.assertEqual(one["output_tokens"]["p50"], 8)
            self.assertLessEqual(one["server"]["generation_tokens"]["delta"], 48)
            self.assertLessEqual(one["ttft_ms"]["p50"], one["latency_ms"]["p50"])
            self.assertEqual([gate["gate"] for gate in one["gates"]],
                             ["errors", "lengths", "counters", "prefix-hits", "preemptions", "drain"])
        self.assertEqual(self.failed_gates(report), [])
        self.assertEqual([tier["streams"] for tier in report["tiers"]], [1, 3])
        self.assertEqual(report["tiers"][0]["generation_tokens_per_second"]["runs"], 2)
        lines = list(csv.DictReader(table.read_text().splitlines()))
        self.assertEqual(len(lines), 4)
        self.assertEqual(list(lines[0]), "profile,config,concurrency,run,window_start,window_end,window_s,tokens,tok_per_s,"
                                         "mean,sample_std,errors,prefix_hits,preemptions,ttft_p50_ms,itl_p50_ms".split(","))
        self.assertEqual((lines[1]["profile"], lines[1]["config"], lines[1]["concurrency"]), ("decode", "scripted", "3"))
        requests = [json.loads(line) for line in rows.read_text().splitlines()]
        self.assertEqual(len(requests), 24)
        for request in requests:
            self.assertEqual((request["prompt_tokens"], request["completion_tokens"]), (40, 8))
            self.assertLessEqual(request["start"], request["first_token"])
            self.assertLessEqual(request["first_token"], request["last_token"])
            self.assertEqual(request["finish_reason"], "length")

    def test_chat_prompts_of_a_file_are_used_in_turn(self):
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text('{"messages": [{"role": "user", "content": "hello"}], "thinking": {"type": "disabled"}}\n'
                           '{"prompt": "one two", "output_tokens_count": 3}\n')
        rows = self.folder / "requests.jsonl"
        self.serve("--prompts", prompts, "--requests", 4, "--max-tokens", 5, "--requests-file", rows, "--unique-prefix")
        requests = [json.loads(line) for line in rows.read_text().splitlines()]
        self.assertEqual([request["completion_tokens"] for request in requests], [5, 3, 5, 3])

    def test_each_stream_asks_four_times_unless_told_otherwise(self):
        report, _ = self.serve("--streams", 2, "--prompt-tokens", 8, "--output-tokens", 4)
        self.assertEqual(report["runs"][0]["requests"]["success"], 8)

    def test_the_table_is_for_people(self):
        result = run("bench", "serve", "--url", self.url, "--requests", 2, "--prompt-tokens", 8, "--output-tokens", 4)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("gen tok/s", result.stdout)
        self.assertIn("met", result.stdout)

    def test_usage_errors_say_what_is_expected(self):
        url = ("--url", self.url)
        self.assert_error(run("bench", "serve", *url, "--streams", "0"), 2, "--streams", "1 to 4096")
        self.assert_error(run("bench", "serve", *url, "--gates", "speed"), 2, "--gates", "speed")
        self.assert_error(run("bench", "serve", *url, "models/mini"), 2, "MODEL")
        self.assert_error(run("bench", "serve", *url, "--body", "[]", "--requests", 1), 2, "--body")
        self.assert_error(run("bench", "serve", *url, "--duration", 1, "--warm-up", 2), 2, "--warm-up")
        self.assert_error(run("bench", "serve", *url, "--prompts", "x", "--prompt-tokens", 4), 2, "--prompts")
        self.assert_error(run("bench", "serve", *url, "--prompts", self.folder / "none.jsonl"), 3, "none.jsonl")
        self.assert_error(run("bench", "serve", "--url", "http://127.0.0.1:1"), 8, "no server")

    def test_a_server_that_cannot_start_is_named(self):
        self.assert_error(run("bench", "serve", self.folder / "none", "--requests", 1), 8, "did not start")


class ServeLeaving(LoadTest):
    script = [{"text": "a b c d e f g h", "pause_ms": 2}]

    def test_clients_that_leave_are_no_errors_and_leave_nothing_behind(self):
        report, _ = self.serve("--streams", 4, "--requests", 40, "--prompt-tokens", 8, "--output-tokens", 30,
                               "--cancel-rate", 0.7, "--seed", 3)
        (one,) = report["runs"]
        self.assertGreater(one["requests"]["left"], 10)
        self.assertGreater(one["requests"]["success"], 1)
        self.assertEqual(one["requests"]["left"] + one["requests"]["success"], 40)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 0)

    def test_a_duration_cuts_requests_off(self):
        report, _ = self.serve("--streams", 2, "--duration", 0.6, "--warm-up", 0.1, "--prompt-tokens", 8,
                               "--output-tokens", 4000, "--gates", "counters,drain")
        (one,) = report["runs"]
        self.assertEqual(one["requests"]["incomplete"], 2)
        self.assertAlmostEqual(one["window"]["seconds"], 0.5, places=6)
        self.assertGreater(one["client"]["generation_tokens"], 0)


class ServeOverflow(LoadTest):
    script = [{"text": "a b c d e f g h", "pause_ms": 20}]
    options = {"max_queued": 1}

    def arguments(self):
        return ("--streams", 4, "--requests", 12, "--prompt-tokens", 8, "--output-tokens", 4, "--refused-wait", 0.01)

    def test_refusals_are_counted_and_timed_apart(self):
        report, _ = self.serve(*self.arguments(), "--allow-refusals")
        (one,) = report["runs"]
        self.assertGreater(one["requests"]["refused"], 0)
        self.assertEqual(one["requests"]["refused"] + one["requests"]["success"], 12)
        self.assertEqual(one["refusal_ms"]["count"], one["requests"]["refused"])
        self.assertEqual(one["latency_ms"]["count"], one["requests"]["success"])

    def test_refusals_are_errors_unless_they_are_allowed(self):
        report, result = self.serve(*self.arguments(), code=1)
        self.assertEqual(self.failed_gates(report), ["errors"])
        self.assertIn("refused", json.loads(result.stderr)["error"]["message"])


class ServeFailing(LoadTest):
    script = [{"text": "a b"}, {"text": "a", "error": "the engine is on fire", "pause_ms": 1}]

    def test_failures_fail_the_gate_with_their_text(self):
        report, result = self.serve("--requests", 4, "--prompt-tokens", 8, "--output-tokens", 4, "--refused-wait", 0,
                                    code=1)
        self.assertIn("errors", self.failed_gates(report))
        error = json.loads(result.stderr)["error"]
        self.assertEqual((error["code"], error["exit"]), ("gate", 1))
        self.assertIn("on fire", error["message"])
        report, _ = self.serve("--requests", 4, "--prompt-tokens", 8, "--output-tokens", 4, "--refused-wait", 0,
                               "--gates", "none")
        self.assertEqual(report["runs"][0]["gates"], [])


class ServeCached(LoadTest):
    script = [{"text": "a b", "cached_tokens": 5}]

    def test_prefix_hits_fail_their_gate_alone(self):
        report, _ = self.serve("--requests", 3, "--prompt-tokens", 8, "--output-tokens", 2, code=1)
        self.assertEqual(self.failed_gates(report), ["prefix-hits"])
        self.assertEqual(report["runs"][0]["client"]["cached_tokens"], 15)
        self.serve("--requests", 3, "--prompt-tokens", 8, "--output-tokens", 2, "--gates", "errors,lengths,counters")


class FakeServer(http.server.BaseHTTPRequestHandler):
    """An OpenAI-style server without metrics; `mode` is one fault."""

    mode = "good"

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        data = json.dumps({"data": [{"id": "other"}]}).encode() if self.path == "/v1/models" else b"no"
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.mode == "bad status":
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "no such thing"}}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        usage = {"prompt_tokens": 3, "completion_tokens": 2 if self.mode == "short" else 4}
        events = [{"choices": [{"index": 0, "text": "x"}]}, {"choices": [{"index": 0, "text": "y"}]},
                  {"choices": [], "usage": usage}]
        for event in events:
            self.wfile.write(f": comment\r\ndata: {json.dumps(event)}\r\n\r\n".encode())
        if self.mode == "bad event":
            self.wfile.write(b"data: {oops\n\n")
        if self.mode != "no end":
            self.wfile.write(b"data: [DONE]\n\n")


class ServeOthers(LoadTest):
    script = []

    def setUp(self):
        super().setUp()
        self.handler = type("Handler", (FakeServer,), {})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}"
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text('{"prompt": "one two three"}\n')
        self.arguments = ("--prompts", prompts, "--requests", 2, "--output-tokens", 4, "--no-counters",
                          "--refused-wait", 0)

    def reason(self, mode):
        self.handler.mode = mode
        _, result = self.serve(*self.arguments, code=1)
        return json.loads(result.stderr)["error"]["message"]

    def test_servers_without_metrics_are_measured_by_the_client(self):
        report, _ = self.serve(*self.arguments)
        (one,) = report["runs"]
        self.assertEqual(one["client"]["generation_tokens"], 8)
        self.assertIsNone(one["server"]["generation_tokens"])
        self.assertGreater(report["tiers"][0]["generation_tokens_per_second"]["mean"], 0)

    def test_counters_that_are_missing_are_an_error_before_the_load(self):
        arguments = [argument for argument in self.arguments if argument != "--no-counters"]
        self.assert_error(run("bench", "serve", "--url", self.url, *arguments), 3)

    def test_answers_that_are_wrong_in_one_way_are_told(self):
        self.assertIn("lengths", self.reason("short"))
        self.assertIn("without [DONE]", self.reason("no end"))
        self.assertIn("no JSON", self.reason("bad event"))
        self.assertIn("no such thing", self.reason("bad status"))

    def test_random_prompts_need_someone_who_counts(self):
        self.handler.mode = "bad status"
        self.assert_error(run("bench", "serve", "--url", self.url, "--requests", 1, "--no-counters"), 5, "/tokenize")


class ServeModel(LoadTest):
    script = []

    def test_a_model_is_served_for_the_run(self):
        result = run("bench", "serve", "--streams", "1,2", "--requests", 3, "--prompt-tokens", 16, "--output-tokens", 4,
                     "--temperature", 0, "--json", "--serve-option", "max-num-seqs=2", "--serve-option", "threads=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual([one["requests"]["success"] for one in report["runs"]], [3, 3])
        for time, size in report["runs"][0]["server"]["resident_bytes"]:
            self.assertGreater(time, 1e9)
            self.assertGreater(size, 1 << 20)


class Agent(LoadTest):
    script = [{"text": "Hello there."}]

    def conversation(self):
        path = self.folder / "conversation.json"
        messages = [{"role": "system", "content": "You are a careful assistant. " * 20},
                    {"role": "user", "content": "First question, please."}]
        for i in range(3):
            messages += [{"role": "assistant", "content": f"Answer number {i}."},
                         {"role": "user", "content": "Another question. " * 40}]
        messages.append({"role": "assistant", "content": "done"})
        path.write_text(json.dumps({"name": "small", "fields": {"thinking": {"type": "disabled"}}, "messages": messages}))
        return path

    def test_turns_know_what_they_have_in_common_with_earlier_ones(self):
        result = run("bench", "agent", self.conversation(), "--url", self.url, "--repeats", 2, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        (server,) = report["servers"]
        turns = server["turns"]
        self.assertEqual([turn["turn"] for turn in turns], [1, 2, 3, 4])
        self.assertEqual(turns[0]["common_tokens"], 0)
        for before, turn in zip(turns, turns[1:]):
            self.assertGreater(turn["prompt_tokens"], before["prompt_tokens"])
            self.assertEqual(turn["common_tokens"] % 64, 0)
            self.assertGreater(turn["common_tokens"] + 64, before["prompt_tokens"])
            self.assertEqual(len(turn["repeats"]), 2)
        self.assertGreater(server["last_to_second_ttft_ratio"], 0)

    def test_a_server_that_reuses_nothing_fails_the_gate(self):
        result = run("bench", "agent", self.conversation(), "--url", self.url, "--repeats", 1, "--min-hit-ratio", 0.98,
                     "--json")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("turn 2: 0 cached of", json.loads(result.stderr)["error"]["message"])

    def test_two_servers_are_asked_in_turn_and_told_apart(self):
        result = run("bench", "agent", self.conversation(), "--url", self.url, "--url", self.url + "/v1", "--repeats", 1,
                     "--turns", 2)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("cached 1", result.stdout)
        self.assertIn("cached 2", result.stdout)

    def test_what_was_asked_before_a_restart_is_remembered(self):
        kept = self.folder / "kept.json"
        arguments = ("bench", "agent", self.conversation(), "--url", self.url, "--repeats", 1, "--retained", kept, "--json")
        first = json.loads(run(*arguments).stdout)["servers"][0]["turns"]
        again = json.loads(run(*arguments).stdout)["servers"][0]["turns"]
        self.assertEqual(len(json.loads(kept.read_text())["retained"]), 8)
        self.assertEqual(first[0]["common_tokens"], 0)
        for turn in again:
            self.assertGreaterEqual(turn["common_tokens"] + 64, turn["prompt_tokens"])

    def test_damaged_conversations_are_refused(self):
        path = self.folder / "bad.json"
        path.write_text('{"messages": []}')
        self.assert_error(run("bench", "agent", path, "--url", self.url), 4, "bad.json")
        self.assert_error(run("bench", "agent", self.conversation()), 2, "--url")


if __name__ == "__main__":
    program.main()
