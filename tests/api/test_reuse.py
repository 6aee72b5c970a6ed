# SPDX-License-Identifier: Apache-2.0
"""What answers, log and refusals tell of the prefix cache, of drafts and of the queue."""

import json
import threading
import time
import unittest

from harness import ApiTest, Server, TOKENIZER

MISS = {"reason": "tokens_differ", "position": 200, "common_tokens": 200, "token": 70, "kept_token": 71}
LINE = {"text": "one two three four", "cached_tokens": 128, "disk_tokens": 64, "replayed_tokens": 32, "step_tokens": 2,
        "drafts": 3, "preemptions": 1, "replay_trim": 0, "miss": MISS}


def token_text(token):
    vocabulary = json.loads(TOKENIZER.read_text(encoding="utf-8"))["model"]["vocab"]
    return next(text for text, number in vocabulary.items() if number == token)


class Usage(ApiTest):
    script = [LINE]
    options = {"log_level": "debug"}

    def test_tells_why_the_prefix_was_not_reused_further(self):
        usage = self.server.post("/v1/chat/completions", self.server.chat())["usage"]
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 128)
        own = usage["rorqual"]
        self.assertEqual(own["prefix"], {
            "cached": 128, "disk": 64, "replayed": 32,
            "miss": {"reason": "tokens_differ", "position": 200, "common_tokens": 200,
                     "token_text": token_text(70), "kept_token_text": token_text(71)}})
        self.assertEqual(own["preemptions"], 1)
        self.assertEqual(own["replay_trim"], 0)
        self.assertGreater(own["drafts"]["drafted"], 0)
        self.assertLess(own["drafts"]["accepted"], own["drafts"]["drafted"])

    def test_comes_once_with_the_last_usage_of_a_stream(self):
        for options in ({}, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}):
            events = self.server.events("/v1/completions", {
                "model": "rorqual-mini", "prompt": "a", "max_tokens": 20, **options})
            with_usage = [e["usage"] for e in events if e.get("usage")]
            self.assertEqual(["rorqual" in u for u in with_usage], [False] * (len(with_usage) - 1) + [True])

    def test_adds_the_choices_up(self):
        one = self.server.post("/v1/chat/completions", self.server.chat())["usage"]["rorqual"]
        three = self.server.post("/v1/chat/completions", self.server.chat(n=3))["usage"]["rorqual"]
        self.assertEqual(three["prefix"]["cached"], 128)
        self.assertEqual(three["preemptions"], 3)
        self.assertEqual(three["drafts"]["drafted"], 3 * one["drafts"]["drafted"])

    def test_a_long_common_beginning_that_was_lost_is_logged_once_a_second(self):
        for _ in range(20):
            self.server.post("/v1/chat/completions", self.server.chat())
        lines = [line for line in self.server.log_text().splitlines() if "prefix miss=tokens_differ" in line]
        self.assertTrue(1 <= len(lines) <= 10, lines)
        self.assertIn("cached=128 common=200 position=200", lines[0])
        self.assertIn(f"token={json.dumps(token_text(70))} kept={json.dumps(token_text(71))}", lines[0])

    def test_ranges_of_the_fields(self):
        self.server.post("/v1/chat/completions", self.server.chat(
            cache_salt="a", skip_reading_prefix_cache=True, speculative_tokens=0, replay_trim=128, priority=3))
        for field, value in (("speculative_tokens", 8), ("speculative_tokens", -1), ("replay_trim", -1),
                             ("cache_salt", "x" * 2000), ("cache_salt", 5), ("skip_reading_prefix_cache", "yes")):
            self.error("/v1/chat/completions", self.server.chat(**{field: value}))
            self.error("/v1/completions", {"model": "rorqual-mini", "prompt": "a", field: value})


class OptOut(ApiTest):
    script = [LINE]
    options = {"usage_extension": 0}

    def test_leaves_our_own_object_out(self):
        usage = self.server.post("/v1/chat/completions", self.server.chat())["usage"]
        self.assertNotIn("rorqual", usage)
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 128)


class TwoKeys(ApiTest):
    script = [LINE]
    options = {"key": "first", "key2": "second"}

    def test_the_text_of_another_clients_prompt_is_not_told(self):
        miss = self.server.post("/v1/chat/completions", self.server.chat())["usage"]["rorqual"]["prefix"]["miss"]
        self.assertEqual(miss["token_text"], token_text(70))
        self.assertIsNone(miss["kept_token_text"])


class Overflow(unittest.TestCase):
    def test_a_full_queue_refuses_at_once_and_counts_choices(self):
        server = Server([{"text": " the", "first_pause_ms": 60000}], max_queued=4)
        self.addCleanup(server.stop)
        sockets = []
        body = json.dumps(server.chat(n=2)).encode()
        for _ in range(2):
            connection = server.connect()
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            sockets.append(connection)
        self.assertTrue(server.wait_metric("vllm:num_requests_running", 4))
        refused, times = [], []

        def ask():
            begin = time.monotonic()
            status, headers, text = server.request("POST", "/v1/chat/completions", body)
            times.append(time.monotonic() - begin)
            refused.append((status, headers.get("Retry-After"), json.loads(text)["error"]["code"]))

        threads = [threading.Thread(target=ask) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(refused, [(429, "1", "queue_full")] * 50)
        self.assertEqual(server.metric("vllm:admission_rejections_total", "max_num_queued_reqs"), 50)
        self.assertEqual(server.metric("vllm:admission_rejections_total", "max_num_queued_tokens"), 0)
        for connection in sockets:
            connection.close()
        self.assertTrue(server.wait_metric("vllm:num_requests_running", 0))


class GoneInPrefill(unittest.TestCase):
    def test_a_client_that_leaves_before_its_first_token_frees_its_place(self):
        server = Server([{"text": " the", "first_pause_ms": 60000}])
        self.addCleanup(server.stop)
        for is_stream in (False, True):
            connection = server.connect()
            connection.request("POST", "/v1/chat/completions", json.dumps(server.chat(stream=is_stream)).encode(),
                               {"Content-Type": "application/json"})
            self.assertTrue(server.wait_metric("vllm:num_requests_running", 1))
            connection.close() if not is_stream else connection.sock.close()
            self.assertTrue(server.wait_metric("vllm:num_requests_running", 0))
        self.assertTrue(server.wait_metric("vllm:request_success_total", 2, 'finished_reason="abort"'))
        self.assertEqual(server.metric("vllm:prompt_tokens_total"), 0)


if __name__ == "__main__":
    unittest.main()
