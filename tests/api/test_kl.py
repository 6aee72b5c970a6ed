# SPDX-License-Identifier: Apache-2.0
"""Captures with the program itself: the same file in process and over HTTP, for any streams and threads, after kill -9,
and against servers that are slow, busy or wrong. Standard library only."""

import hashlib
import http.server
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from harness import ROOT, TOKENIZER, Program

KEY = "kl-test-key"
VOCAB = 50
WINDOW = ["--windows", "2", "--context", "256"]


def corpus_text():
    """Prose, code and markup of the chat format: about 3,000 tokens."""
    parts = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("architecture.md", "errors.md")]
    return "\n".join(parts) + "<｜User｜>What is 17 + 25?<｜Assistant｜></think>It is 42."


def safetensors(path):
    """Arrays of a file by name, flat."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    arrays = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        code = {"F32": "f", "I32": "i", "I64": "q"}[entry["dtype"]]
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin:8 + size + end]
        arrays[name] = list(struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))
    return arrays


def f32_bits(value):
    return struct.pack("<f", value)


def run(*arguments, code=0, environment=None):
    """(standard output, standard error) of the program; the exit code is checked."""
    done = subprocess.run([os.environ["RORQUAL"], *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **(environment or {})})
    if done.returncode != code:
        raise AssertionError(f"exit {done.returncode}, expected {code}: {' '.join(map(str, arguments))}\n"
                             f"{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


class KlTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.corpus = self.folder / "story.txt"
        self.corpus.write_text(corpus_text(), encoding="utf-8")

    def capture(self, name, *arguments, **fields):
        out = self.folder / name
        text, _ = run("kl", "capture", "--corpus", fields.get("corpus", self.corpus), "--out", out, "--json",
                      *fields.get("window", WINDOW), *arguments, environment=fields.get("environment"))
        return out.read_bytes(), json.loads(text)


class SameFile(KlTest):
    """The noise floor is zero: not a bit depends on how the numbers were made."""

    @classmethod
    def setUpClass(cls):
        program = Program("--max-logprobs", "512", environment={"RORQUAL_API_KEY": KEY})
        cls.addClassCleanup(program.stop)
        cls.url = program.url
        request = urllib.request.Request(cls.url + "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=60) as response:
            cls.model = json.load(response)["data"][0]["id"]

    def test_for_streams_threads_and_transport(self):
        first, summary = self.capture("a.npz", "--streams", 1, "--threads", 1)
        self.assertEqual(summary["schema"], "rorqual.kl.capture/1")
        self.assertEqual(summary["rows"], 256)
        self.assertEqual(summary["sha256"], hashlib.sha256(first).hexdigest())
        self.assertGreater(summary["perplexity"], 1)
        again, _ = self.capture("b.npz", "--streams", 8, "--threads", 2)
        self.assertEqual(first, again)
        remote = {"environment": {"RORQUAL_API_KEY": KEY}}
        for streams in (1, 8):
            other, summary = self.capture("c.npz", "--url", self.url, "--streams", streams, **remote)
            self.assertEqual(first, other, f"over HTTP at {streams} streams")
            self.assertEqual(summary["numerics"], "reference")
        text, _ = run("kl", "compare", self.folder / "a.npz", self.folder / "c.npz", "--json")
        compared = json.loads(text)
        self.assertEqual((compared["mean_kl"], compared["max"], compared["top1"]), (0, 0, 1))
        other, _ = self.capture("d.npz", "--url", self.url + "/v1", "--tokenizer", TOKENIZER, **remote)
        self.assertEqual(first, other, "tokenised here")

    def test_prompt_logprobs_over_http_are_those_of_the_capture(self):
        """Token ids in, 512 log-probabilities per position out, no prefix cache read: the bits of the capture in process."""
        self.capture("a.safetensors", "--top-k", 512)
        arrays = safetensors(self.folder / "a.safetensors")
        ids, begin, first = (arrays[f"window_{n}"] for n in ("ids", "begin", "first_scored"))
        rows = 0
        for repeat in range(2):  # the second time the prefix cache could have helped
            rows = 0
            for window in range(len(first)):
                prompt = ids[begin[window]:begin[window + 1]]
                answer = self.post("/v1/completions", {"model": self.model, "prompt": prompt, "max_tokens": 1,
                                                       "temperature": 0, "prompt_logprobs": 512})
                self.assertEqual(answer["usage"]["prompt_cache_hit_tokens"], 0)
                self.assertEqual(answer["usage"]["rorqual"]["prefix"]["miss"]["reason"], "bypassed")
                scores = answer["choices"][0]["prompt_logprobs"]
                self.assertEqual((len(scores), scores[0]), (len(prompt), None))
                for position in range(first[window], len(prompt)):
                    self.compare_row(scores[position], prompt[position], arrays, rows)
                    rows += 1
        self.assertEqual(rows, len(arrays["tok_id"]))
        self.assertGreaterEqual(rows, 256)

    def compare_row(self, entries, token, arrays, row):
        self.assertEqual(int(next(iter(entries))), token)
        self.assertEqual(arrays["tok_id"][row], token)
        self.assertEqual(f32_bits(entries[str(token)]["logprob"]), f32_bits(arrays["tok_lp"][row]))
        best = {int(k): v for k, v in entries.items() if v["rank"] <= 512}
        expected = zip(arrays["top_ids"][row * 512:(row + 1) * 512], arrays["top_lps"][row * 512:(row + 1) * 512])
        self.assertEqual({k: f32_bits(v["logprob"]) for k, v in best.items()}, {k: f32_bits(v) for k, v in expected})

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.load(response)

    def test_refusals_of_the_server_say_what_to_do(self):
        def refused(*arguments, key):
            return run("kl", "capture", "--corpus", self.corpus, "--out", self.folder / "x.npz", "--url", self.url, *WINDOW,
                       *arguments, code=2, environment={"RORQUAL_API_KEY": key})[1]

        self.assertIn("hint: give its key by RORQUAL_API_KEY or --api-key", refused(key="wrong"))
        self.assertIn("--max-logprobs", refused("--top-k", 513, key=KEY))
        remote = {"environment": {"RORQUAL_API_KEY": KEY}}
        self.capture("x.npz", "--url", self.url, "--top-k", 8, **remote)  # nothing of the refused one is in the way

    def test_for_our_own_format_and_exact_numerics(self):
        first, summary = self.capture("a.safetensors", "--numerics", "exact", "--streams", 4)
        self.assertEqual(summary["numerics"], "exact")
        self.assertEqual(first, self.capture("b.safetensors", "--numerics", "exact", "--threads", 1)[0])
        self.assertNotEqual(first, self.capture("c.safetensors")[0])

    def test_for_a_panel_and_its_capture(self):
        panels = []
        for index, more in enumerate([["--streams", 1], ["--streams", 8, "--threads", 2],
                                      ["--url", self.url, "--api-key", KEY, "--tokenizer", TOKENIZER]]):
            out = self.folder / f"panel{index}.json"
            run("kl", "panel", "--num-prompts", 6, "--max-tokens", 24, "--out", out, *more)
            panels.append(out.read_bytes())
        self.assertEqual(panels[0], panels[1])
        self.assertEqual(panels[0], panels[2])
        panel = json.loads(panels[0])
        self.assertEqual(panel["schema"], "rorqual.kl.panel/1")
        self.assertEqual(len(panel["cases"]), 6)
        for case in panel["cases"]:
            self.assertLessEqual(len(case["continuation"]), 24)
            self.assertEqual(len(case["logprobs"]), len(case["continuation"]))
        path = self.folder / "panel0.json"
        first, summary = self.capture("p.npz", "--streams", 1, corpus=path, window=[])
        self.assertEqual(summary["corpus"], "panel")
        self.assertEqual(summary["rows"], sum(len(c["continuation"]) for c in panel["cases"]))
        self.assertEqual(first, self.capture("q.npz", "--streams", 8, corpus=path, window=[])[0])
        # The continuation's own log-probabilities are those of the prompt path: their mean is the perplexity.
        every = [x for case in panel["cases"] for x in case["logprobs"]]
        self.assertAlmostEqual(summary["perplexity"], 2.718281828459045 ** (-sum(every) / len(every)), places=9)

    def test_the_run_record_says_how_it_was_made(self):
        self.capture("a.npz", "--streams", 3, "--threads", 2)
        record = json.loads((self.folder / "a.npz.run.json").read_text())
        self.assertEqual((record["engine"], record["streams"], record["threads"]), ("local", 3, 2))
        self.assertEqual((record["speculation"], record["prefix_cache"]), (False, False))
        self.assertEqual(record["max_model_len"], 257)
        self.assertRegex(record["started_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertTrue(record["machine"] and record["model_sha256"] and record["kernels"])
        self.capture("b.npz", "--url", self.url, "--api-key", KEY)
        remote = json.loads((self.folder / "b.npz.run.json").read_text())
        self.assertEqual(remote["engine"], self.url)
        self.assertEqual(remote["numerics"], "reference")
        self.assertNotIn(KEY, json.dumps(remote))
        self.assertEqual(remote["dump_sha256"], record["dump_sha256"])

    def test_after_kill_9_the_capture_goes_on(self):
        first, _ = self.capture("whole.npz", window=["--windows", 8, "--context", 256])
        out = self.folder / "killed.npz"
        arguments = [os.environ["RORQUAL"], "kl", "capture", "--corpus", self.corpus, "--out", out, "--windows", "8",
                     "--context", "256", "--threads", "1"]
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        parts = self.folder / "killed.npz.part"
        end = time.monotonic() + 60
        while not list(parts.glob("window-*.safetensors")) and process.poll() is None and time.monotonic() < end:
            os.sched_yield()
        process.kill()
        process.wait()
        kept = {p: p.stat().st_mtime_ns for p in parts.glob("window-*.safetensors")}
        self.assertTrue(kept, "no window was finished before the kill")
        self.assertFalse(out.exists())
        more = ["--corpus", self.corpus, "--out", out, "--windows", 8, "--context", 256]
        _, error = run("kl", "capture", *more, "--top-k", 100, code=2)
        self.assertIn("--force", error)
        run("kl", "capture", *more)
        self.assertEqual(out.read_bytes(), first)
        self.assertFalse(parts.exists())


class Refusals(KlTest):
    def test_what_cannot_be_captured_is_named_before_loading(self):
        cases = [
            (["--corpus", self.corpus, "--out", "x.txt"], 2, "--out"),
            (["--corpus", self.folder / "none.txt", "--out", "x.npz"], 3, "none.txt"),
            (["--corpus", self.corpus, "--out", "x.npz", "--context", "1M"], 2, "1048575"),
            (["--corpus", self.corpus, "--out", "x.npz", "--logits", "y.npz"], 2, "--logits"),
            (["--corpus", self.corpus, "--out", "x.npz", "--url", "http://127.0.0.1:1", "--logits", "y.safetensors"],
             5, "log-probabilities only"),
            (["--corpus", self.corpus, "--out", "x.npz", "--url", "http://127.0.0.1:1"], 8, "127.0.0.1:1"),
            (["--corpus", self.corpus, "--out", "x.npz", "--url", "http://127.0.0.1:1", "model"], 2, "exclude"),
        ]
        for arguments, code, words in cases:
            _, error = run("kl", "capture", *arguments, code=code)
            self.assertIn(words, error, arguments)

    def test_a_damaged_panel_is_named(self):
        path = self.folder / "panel.json"
        run("kl", "panel", "--num-prompts", 2, "--max-tokens", 4, "--out", path)
        panel = json.loads(path.read_text(encoding="utf-8"))

        def changed(change):
            copy = json.loads(json.dumps(panel))
            change(copy)
            path.write_text(json.dumps(copy), encoding="utf-8")
            return run("kl", "capture", "--corpus", path, "--out", self.folder / "x.npz", code=4)[1]

        self.assertIn("schema", changed(lambda p: p.update(schema="other/1")))
        self.assertIn("sha256", changed(lambda p: p["cases"][0]["prompt"].append(5)))
        self.assertIn("case_001", changed(lambda p: p["cases"][1]["logprobs"].append(-1.0)))
        self.assertIn("token 99999", changed(lambda p: p["cases"][0]["prompt"].append(99999)))
        self.assertIn("twice", changed(lambda p: p["cases"][1].update(id="case_000")))


class FakeServer(http.server.BaseHTTPRequestHandler):
    """Speaks vLLM's dialect: refuses max_tokens 0, names no vocabulary; `mode` is one fault."""

    protocol_version = "HTTP/1.1"
    mode = "good"
    bodies = []
    refusals = 0

    def log_message(self, *arguments):
        pass

    def answer(self, status, body, **headers):
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/v1/models":
            self.answer(200, {"data": [{"id": "other-model", "owned_by": "vllm", "max_model_len": 64}]})
        else:
            self.answer(404, {"error": {"message": "no such route"}})

    def do_POST(self):
        cls = type(self)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            ids = [1] if body["prompt"].startswith("<｜begin") else [i % VOCAB for i in range(3, 103)]
            return self.answer(200, {"tokens": ids, "count": len(ids)})
        cls.bodies.append(body)
        if cls.mode in ("busy", "busy for ever") and (cls.mode == "busy for ever" or len(cls.bodies) <= 2):
            cls.refusals += 1
            return self.answer(429, {"error": {"message": "too many requests"}}, Retry_After="0")
        if cls.mode == "refused" or body["max_tokens"] < 1:
            return self.answer(400, {"error": {"message": "max_tokens must be at least 1"}})
        prompt = body["prompt"]
        if cls.mode == "shifted":
            prompt = prompt[1:] + prompt[:1]
        rows = [None] + [self.row(token, place) for place, token in enumerate(prompt) if place > 0]
        if cls.mode == "cached":
            rows[1:20] = [None] * 19
        if cls.mode == "short":
            del rows[-1]
        choice = {"index": 0, "text": "x", "logprobs": None, "finish_reason": "length", "prompt_logprobs": rows}
        if cls.mode == "not JSON":
            choice["prompt_logprobs"] = "none"
        return self.answer(200, {"choices": [choice], "usage": {"prompt_tokens": len(prompt)}})

    @staticmethod
    def row(token, place):
        """The own token first, outside the top two; -0.1 has no exact float."""
        entries = {str(token): {"logprob": -3.1 - place / 1024, "rank": 9, "decoded_token": "x"}}
        for rank, other in enumerate([(token + 7) % VOCAB, (token + 5) % VOCAB], 1):
            entries[str(other)] = {"logprob": -0.1 * rank, "rank": rank, "decoded_token": "é\"\\"}
        return entries


class OtherServers(KlTest):
    def setUp(self):
        super().setUp()
        handler = type("Handler", (FakeServer,), {"bodies": [], "refusals": 0})
        self.handler = handler
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.arguments = ["--corpus", self.corpus, "--url", f"http://127.0.0.1:{self.server.server_port}", "--context",
                          32, "--windows", 2, "--top-k", 2, "--vocab-size", VOCAB]

    def fails(self, mode, code):
        self.handler.mode = mode
        return run("kl", "capture", *self.arguments, "--out", self.folder / "x.npz", code=code)[1]

    def test_rows_of_the_dialect_become_a_dump(self):
        out = self.folder / "x.safetensors"
        text, _ = run("kl", "capture", *self.arguments, "--out", out, "--streams", 2, "--json")
        summary = json.loads(text)
        self.assertEqual((summary["model"], summary["rows"], summary["top_k"]), ("other-model", 32, 2))
        for body in self.handler.bodies:
            self.assertEqual((body["max_tokens"], body["temperature"], body["prompt_logprobs"]), (1, 0.0, 2))
            self.assertEqual((body["prompt"][0], len(body["prompt"])), (1, 32))
            self.assertNotIn("prompt_logprobs_begin", body)
        mean = sum(-3.1 - place / 1024 for place in range(16, 32)) / 16
        self.assertAlmostEqual(summary["perplexity"], 2.718281828459045 ** -mean, places=5)
        record = json.loads((self.folder / "x.safetensors.run.json").read_text())
        self.assertEqual((record["version"], record["numerics"]), ("", ""))

    def test_busy_servers_are_asked_again_and_not_for_ever(self):
        self.handler.mode = "busy"
        run("kl", "capture", *self.arguments, "--out", self.folder / "x.npz")
        self.assertEqual(self.handler.refusals, 2)
        self.assertEqual(len(self.handler.bodies), 4)
        self.handler.bodies.clear()
        self.assertIn("too many requests", self.fails("busy for ever", 8))
        self.assertEqual(len(self.handler.bodies), 8)

    def test_refusals_are_not_tried_again(self):
        self.assertIn("max_tokens must be at least 1", self.fails("refused", 2))
        self.assertEqual(len(self.handler.bodies), 1)

    def test_missing_and_shifted_positions_are_found(self):
        error = self.fails("cached", 4)
        self.assertIn("no entry for position 16", error)
        self.assertIn("31 entries", self.fails("short", 4))
        self.assertIn("shifted by one position", self.fails("shifted", 4))
        self.assertIn("not the expected JSON", self.fails("not JSON", 4))

    def test_a_window_needs_room_for_the_token_that_such_a_server_generates(self):
        arguments = [*self.arguments, "--out", self.folder / "x.npz"]
        arguments[arguments.index("--context") + 1] = 64
        arguments[arguments.index("--windows") + 1] = 1
        _, error = run("kl", "capture", *arguments, code=2)
        self.assertIn("64", error)
        self.assertEqual(self.handler.bodies, [])


if __name__ == "__main__":
    unittest.main()
