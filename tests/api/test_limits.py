# SPDX-License-Identifier: Apache-2.0
"""Each row of docs/limits.md, as the program prints it, tried from outside: at the limit and one beyond it."""

import json
import os
import subprocess
import unittest

from harness import ROOT, Server, TIMEOUT_S

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def printed(*options):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RORQUAL_")}
    result = subprocess.run([os.environ["RORQUAL"], "serve", "--limits", *options], capture_output=True, text=True,
                            env=clean, timeout=TIMEOUT_S, check=True)
    return result.stdout


class Limits(unittest.TestCase):
    """A row is tried by the method try_ROW; a row that only another test can try names it in ELSEWHERE."""

    ELSEWHERE = {"connections": "exposure Crowds", "chunk_line_bytes": "exposure Limits",
                 "total_body_bytes": "exposure Limits", "small_body_bytes": "server.http_server_test",
                 "unsent_bytes": "exposure SlowReader", "header_ms": "exposure Slowness", "body_ms": "exposure Slowness",
                 "idle_ms": "server.http_server_test", "write_ms": "exposure SlowReader",
                 "queued_requests": "lifecycle FullQueue"}

    def setUp(self):
        self.limits = json.loads(printed("--json"))
        self.server = Server([{"text": "a"}], max_model_len=500_000)
        self.addCleanup(self.server.stop)

    def test_every_row_is_tried(self):
        for name, value in self.limits.items():
            with self.subTest(limit=name):
                if name in self.ELSEWHERE:
                    self.assertFalse(hasattr(self, f"try_{name}"))
                else:
                    getattr(self, f"try_{name}")(value)
        self.assertLessEqual(set(self.ELSEWHERE), set(self.limits))
        self.assertTrue(self.server.is_alive())

    def test_the_page_is_what_the_program_prints(self):
        self.assertEqual((ROOT / "docs" / "limits.md").read_text(encoding="utf-8"), printed())
        self.assertEqual(json.loads(printed("--json", "--max-logprobs", "77"))["logprobs"], 77)

    def check(self, path, at_limit, beyond, status=400):
        """`at_limit` is taken, `beyond` refused."""
        got, _, text = self.server.request("POST", path, at_limit)
        self.assertEqual(got, 200, text[:300])
        got, _, text = self.server.request("POST", path, beyond)
        self.assertEqual(got, status, text[:300])

    def check_chat(self, make, limit):
        self.check("/v1/chat/completions", self.server.chat(**make(limit)), self.server.chat(**make(limit + 1)))

    def check_completion(self, make, limit):
        base = {"model": "rorqual-mini", "prompt": "a"}
        self.check("/v1/completions", {**base, **make(limit)}, {**base, **make(limit + 1)})

    def raw_status(self, data):
        with self.server.socket() as client:
            client.sendall(data)
            return int(client.recv(65536)[9:12])

    def try_header_bytes(self, limit):
        head, tail = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"\r\n\r\n"
        room = limit - len(head) - len(tail)
        self.assertEqual(self.raw_status(head + b"a" * room + tail), 200)
        self.assertEqual(self.raw_status(head + b"a" * (room + 1) + tail), 431)
        self.assertEqual(self.raw_status(b"GET /" + b"a" * limit), 414)

    def try_header_fields(self, limit):
        head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        self.assertEqual(self.raw_status(head + b"A: b\r\n" * (limit - 1) + b"\r\n"), 200)
        self.assertEqual(self.raw_status(head + b"A: b\r\n" * limit + b"\r\n"), 431)

    def try_body_bytes(self, limit):
        for size, status in ((limit, 200), (limit + 1, 413)):
            body = b'{"tokens": [5]}'
            got, _, text = self.server.request("POST", "/detokenize", body + b" " * (size - len(body)))
            self.assertEqual(got, status, text[:300])

    def try_json_depth(self, limit):
        def body(depth):  # the body itself is the first level
            return '{"tokens": [5], "x": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"
        self.check("/detokenize", body(limit), body(limit + 1))

    def try_json_values(self, limit):
        def body(count):  # the body, its two values and the list's items
            return '{"tokens": [5], "x": [' + ",".join(["0"] * (count - 4)) + "]}"
        self.check("/detokenize", body(limit), body(limit + 2))

    def try_n(self, limit):
        self.check_chat(lambda n: {"n": n}, limit)
        self.check_completion(lambda n: {"n": n}, limit)

    def try_prompts(self, limit):
        self.check_completion(lambda n: {"prompt": ["a"] * n}, limit)

    def try_prompts_times_n(self, limit):
        base = {"model": "rorqual-mini", "prompt": ["a"] * (limit // 16)}
        self.check("/v1/completions", {**base, "n": 16}, {**base, "prompt": ["a"] * (limit // 16 + 1), "n": 16})

    def try_max_tokens(self, limit):
        self.check_chat(lambda n: {"max_tokens": n}, limit)
        self.check_completion(lambda n: {"max_tokens": n}, limit)

    def try_logprobs(self, limit):
        self.check_chat(lambda n: {"logprobs": True, "top_logprobs": n}, limit)
        self.check_completion(lambda n: {"logprobs": n}, limit)
        self.check_completion(lambda n: {"prompt_logprobs": n}, limit)

    def try_stop_strings(self, limit):
        self.check_chat(lambda n: {"stop": [f"s{i}" for i in range(n)]}, limit)
        self.check_completion(lambda n: {"stop": [f"s{i}" for i in range(n)]}, limit)

    def try_stop_token_ids(self, limit):
        self.check_chat(lambda n: {"stop_token_ids": [7] * n}, limit)
        self.check_completion(lambda n: {"stop_token_ids": [7] * n}, limit)

    def try_bad_words(self, limit):
        self.check_chat(lambda n: {"bad_words": ["w"] * n}, limit)

    def try_logit_bias(self, limit):
        self.check_chat(lambda n: {"logit_bias": {str(i): 1 for i in range(n)}}, limit)

    def try_tool_name_bytes(self, limit):
        self.check_chat(lambda n: {"tools": [{**TOOL, "function": {**TOOL["function"], "name": "f" * n}}]}, limit)

    def try_image_url_bytes(self, limit):
        def message(n):  # both are refused as long as images are: the reason tells them apart
            url = "https://a.example/" + "a" * (n - 18)
            content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]
            return self.server.post("/v1/chat/completions",
                                    self.server.chat(messages=[{"role": "user", "content": content}]), 400)["error"]["message"]
        self.assertNotEqual(message(limit), message(limit + 1))

    def try_cache_salt_bytes(self, limit):
        self.check_chat(lambda n: {"cache_salt": "s" * n}, limit)

    def try_speculative_tokens(self, limit):
        self.check_chat(lambda n: {"speculative_tokens": n}, limit)


if __name__ == "__main__":
    unittest.main()
