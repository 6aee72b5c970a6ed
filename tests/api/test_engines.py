# SPDX-License-Identifier: Apache-2.0
"""serve --engine: a script, and another server, behind the whole program."""

import json
import os
import subprocess
import tempfile
import unittest

from harness import ROOT, Program, Server

MINI = ROOT / "models" / "mini"


class Proxy(Program):
    """`rorqual serve MINI` with options; stops at the end of the test."""

    def __init__(self, test, *options):
        super().__init__(MINI, "--served-model-name", "m", *options)
        test.addCleanup(self.stop)


def texts(stream):
    events = [json.loads(p[6:]) for p in stream.split("\n\n") if p.startswith("data: {")]
    return ["".join(c["text"] for c in e["choices"]) for e in events if e["choices"]], events


class Engines(unittest.TestCase):
    def script(self, *lines):
        file = tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8")
        file.write("".join(json.dumps(line) + "\n" for line in lines))
        file.flush()
        self.addCleanup(file.close)
        return f"script:{file.name}"

    def test_a_script_answers_under_the_programs_own_api(self):
        program = Proxy(self, "--engine", self.script({"text": "one two", "cached_tokens": 3}))
        answer = json.loads(program.ask("/v1/completions", {"model": "m", "prompt": "a b c", "max_tokens": 10}))
        self.assertEqual(answer["choices"][0]["text"], "one two")
        self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 3)
        self.assertEqual(program.metric("vllm:prompt_tokens_total"), answer["usage"]["prompt_tokens"])

    def test_another_server_is_passed_on_token_by_token(self):
        upstream = Server([{"text": "one two three four", "step_tokens": 1, "pause_ms": 30, "cached_tokens": 2,
                            "logprobs": [-0.25, -0.5, -0.75, -1.5]}])
        self.addCleanup(upstream.stop)
        program = Proxy(self, "--engine", f"http://127.0.0.1:{upstream.port}")
        body = {"model": "m", "prompt": [70, 71, 72], "max_tokens": 3, "logprobs": 1, "stream": True,
                "stream_options": {"include_usage": True}}
        stream = program.ask("/v1/completions", body)
        direct = upstream.events("/v1/completions", {**body, "model": "rorqual-mini"})
        pieces, events = texts(stream)
        self.assertGreater(len([p for p in pieces if p]), 1, "tokens came in one piece")
        self.assertEqual("".join(pieces), "".join(c["text"] for e in direct for c in e["choices"]))
        logprobs = [x for e in events for c in e["choices"] for x in c["logprobs"]["token_logprobs"]]
        self.assertEqual(logprobs, [-0.25, -0.5, -0.75])
        usage = events[-1]["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]), (3, 3))
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 2)
        self.assertEqual(program.metric("rorqual:generation_tokens_total"), 3)
        self.assertEqual(program.metric("rorqual:prompt_tokens_total"), 3)

    def test_a_client_that_leaves_ends_the_request_upstream(self):
        upstream = Server([{"text": " the", "pause_ms": 20}])
        self.addCleanup(upstream.stop)
        program = Proxy(self, "--engine", f"http://127.0.0.1:{upstream.port}")
        connection = program.send("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 10000,
                                                      "ignore_eos": True, "stream": True})
        response = connection.getresponse()
        self.assertIn(b"data: ", response.read(200))
        self.assertTrue(upstream.wait_metric("vllm:num_requests_running", 1))
        response.close()
        connection.close()
        self.assertTrue(upstream.wait_metric("vllm:num_requests_running", 0))
        self.assertTrue(upstream.wait_metric("vllm:request_success_total", 1, 'finished_reason="abort"'))

    def test_an_upstream_that_fails_is_an_error_here(self):
        upstream = Server([{"text": "one", "error": "the model fell over"}])
        self.addCleanup(upstream.stop)
        program = Proxy(self, "--engine", f"http://127.0.0.1:{upstream.port}")
        text = program.ask("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 5}, 500)
        self.assertIn("the model fell over", json.loads(text)["error"]["message"])

    def test_other_words_are_refused(self):
        run = subprocess.run([os.environ["RORQUAL"], "serve", str(MINI), "--port", "0", "--engine", "remote"],
                             capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIn("--engine 'remote'", run.stderr)


class RealModel(unittest.TestCase):
    def test_a_second_turn_reuses_the_first_one_and_a_restart_reads_it_from_disk(self):
        with tempfile.TemporaryDirectory() as directory:
            options = ["--prefix-cache-dir", directory, "--prefix-cache-disk", "64M", "--max-num-seqs", "2"]
            prompt = [70 + i % 200 for i in range(300)]
            body = {"model": "m", "prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 1}
            program = Proxy(self, *options)
            answers = [json.loads(program.ask("/v1/completions", body)) for _ in range(2)]
            program.stop()
            program = Proxy(self, *options)
            answers.append(json.loads(program.ask("/v1/completions", body)))
            reuse = [a["usage"]["rorqual"]["prefix"] for a in answers]
            self.assertEqual([r["cached"] for r in reuse], [0, 256, 256])
            self.assertEqual([r["disk"] for r in reuse], [0, 0, 256])
            self.assertEqual(reuse[0]["miss"]["reason"], "first_seen")
            self.assertEqual(program.metric("rorqual:prefix_disk_hit_tokens_total"), 256)
            self.assertEqual(len({json.dumps(a["choices"]) for a in answers}), 1)


if __name__ == "__main__":
    unittest.main()
