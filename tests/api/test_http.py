# SPDX-License-Identifier: Apache-2.0
"""Routes, keys, origins, the page, metrics: everything around the answers."""

import json
import re
import unittest

from harness import ApiTest, Server

OPEN = {"GET /", "GET /chat.css", "GET /chat.js", "GET /health"}


class Routes(ApiTest):
    options = {"model": "a", "alias": "b", "demonstration": 1}

    def test_lists_models_with_their_context(self):
        body = json.loads(self.server.get("/v1/models"))
        self.assertEqual([m["id"] for m in body["data"]], ["a", "b"])
        for model in body["data"]:
            self.assertEqual(model["object"], "model")
            self.assertEqual(model["max_model_len"], 16384)
            self.assertIs(model["demonstration"], True)
        self.assertEqual(json.loads(self.server.get("/v1/models/b"))["id"], "b")
        error = json.loads(self.server.get("/v1/models/c", 404))["error"]
        self.assertIn("a, b", error["message"])
        self.assertEqual(self.server.post("/v1/chat/completions", self.server.chat(model="b"))["model"], "b")

    def test_small_routes(self):
        self.assertEqual(self.server.get("/health"), "")
        self.assertEqual(self.server.get("/ping"), "")
        self.assertEqual(json.loads(self.server.get("/ready")), {"status": "ready", "progress": 1})
        version = json.loads(self.server.get("/version"))
        self.assertEqual(version["version"], "0.0.0-test")
        self.assertEqual(version["eos_token_id"], 1)
        self.assertEqual(version["max_model_len"], 16384)
        self.assertGreater(version["vocab_size"], 0)
        self.assertLessEqual({"model", "numerics", "kernels", "switches"}, set(version))
        prompt = version["prompt"]
        self.assertEqual((prompt["encoding"], prompt["compat"], prompt["checkpoint_encoder"]), ("1017", "", None))
        self.assertRegex(prompt["tokenizer_sha256"], "^[0-9a-f]{64}$")
        self.assertEqual(json.loads(self.server.get("/load"))["server_load"], 0)

    def test_page_is_self_contained_and_guarded_by_policy(self):
        status, headers, html = self.server.request("GET", "/")
        self.assertEqual(status, 200)
        policy = headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        size = len(html)
        for path in ("/chat.css", "/chat.js"):
            self.assertIn(f'"{path}"', html)
            status, headers, text = self.server.request("GET", path)
            self.assertEqual(status, 200)
            size += len(text)
        self.assertLess(size, 120 * 1024)
        self.assertNotIn("<script>", html)
        self.assertIsNone(re.search(r"\son\w+=|style=", html))
        script = self.server.get("/chat.js")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            self.assertNotIn(word, script)
        for text in (html, script, self.server.get("/chat.css")):
            for url in re.findall(r"https?://[\w.]+", text):
                self.assertEqual(url, "http://www.w3.org")
        # The page waits for several keep-alive comments before it speaks of silence, and never gives up by itself.
        self.assertGreaterEqual(int(re.search(r"kSilenceNotice_ms = (\d+)", script)[1]), 3 * 5000)

    def test_post_from_another_site_is_refused(self):
        body = json.dumps(self.server.chat(model="a"))
        status, _, _ = self.server.request("POST", "/v1/chat/completions", body, {"Origin": "http://evil.example"})
        self.assertEqual(status, 403)
        own = {"Origin": f"http://127.0.0.1:{self.server.port}"}
        status, headers, _ = self.server.request("POST", "/v1/chat/completions", body, own)
        self.assertEqual(status, 200)
        self.assertNotIn("Access-Control-Allow-Origin", headers)

    def test_foreign_host_names_are_refused(self):
        status, _, _ = self.server.request("GET", "/v1/models", headers={"Host": "evil.example"})
        self.assertEqual(status, 403)

    def test_forwarded_headers_are_ignored(self):
        for value in (",", "", ", ,", "x" * 10_000):
            self.assertEqual(self.server.request("GET", "/health", headers={"X-Forwarded-For": value})[0], 200)

    def test_request_ids(self):
        _, headers, text = self.server.request("POST", "/v1/chat/completions", self.server.chat(model="a"),
                                               {"X-Request-Id": "my-id"})
        self.assertEqual(headers["X-Request-Id"], "my-id")
        self.assertEqual(json.loads(text)["id"], "chatcmpl-my-id")
        self.assertIn("id=my-id POST /v1/chat/completions status=200", self.server.log_text())

    def test_logs_hold_no_text(self):
        messages = [{"role": "user", "content": "xyzzy-secret"}]
        self.server.post("/v1/chat/completions", self.server.chat(model="a", messages=messages))
        log = self.server.log_text()
        self.assertNotIn("xyzzy", log)
        self.assertNotIn("Hello there", log)
        self.assertRegex(log, r"prompt=\d+ cached=0 generated=\d+ queue_ms=\d+ ttft_ms=\d+")


class Keys(ApiTest):
    options = {"key": "s3cret-key", "routes": 1}

    def routes(self):
        """(method, path, open) of every route, as the program says it; prefixes get a last part."""
        return [(method, path + "x" if path.endswith("/") and path != "/" else path, bool(rest))
                for method, path, *rest in self.server.routes]

    def test_every_route_but_health_and_page_needs_the_key(self):
        routes = self.routes()
        self.assertGreater(len(routes), 30)
        self.assertEqual({f"{m} {p}" for m, p, is_open in routes if is_open}, OPEN)
        for key in ("", "Bearer wrong", "Bearer s3cret-ke", "Bearer s3cret-keyy", "s3cret-key"):
            for method, path, is_open in [*routes, ("GET", "/unknown", False), ("PUT", "/v1/models", False)]:
                status, headers, text = self.server.request(method, path, "{}" if method == "POST" else None,
                                                            {"Authorization": key})
                self.assertEqual(status, 200 if is_open else 401, path)
                if is_open:
                    continue
                self.assertEqual(json.loads(text)["error"]["type"], "authentication_error")
                self.assertEqual(headers["WWW-Authenticate"], "Bearer")
        for method, path, _ in routes:
            if method == "GET":
                self.assertIn(self.server.request(method, path)[0], (200, 404), path)
        self.assertNotIn("s3cret-key", self.server.log_text())
        self.assertNotIn("s3cret-key", self.server.get("/metrics"))

    def test_the_page_of_the_api_names_every_route(self):
        with open("../../docs/api.md", encoding="utf-8") as file:
            page = file.read()
        for _, path, _ in self.routes():
            stem = path[:-1] if path.endswith("/x") else path
            self.assertTrue(f"`{stem}" in page or path.startswith("/chat."), path)


class Metrics(ApiTest):
    script = [{"text": "one two", "cached_tokens": 2, "disk_tokens": 1, "step_tokens": 1, "drafts": 2,
               "miss": {"reason": "tokens_differ", "position": 2, "common_tokens": 2}}]

    NAMES = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
             "generation_tokens_total", "prompt_tokens_cached_total", "prefix_cache_queries_total",
             "prefix_cache_hits_total", "num_preemptions_total", "request_success_total", "admission_rejections_total",
             "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
             "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
             "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
             "request_generation_tokens", "request_params_max_tokens", "request_params_n",
             "num_requests_waiting_by_reason", "cache_config_info", "engine_sleep_state",
             "prompt_tokens_by_source_total", "prompt_tokens_cached_by_source_total", "iteration_tokens_total",
             "request_max_num_generation_tokens", "request_prefill_kv_computed_tokens", "request_num_preemptions",
             "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total",
             "spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total"]
    OWN = ["engine_steps_total", "engine_alive", "build_info", "http_requests_total", "prefix_cache_lookups_total",
           "prefix_cache_misses_total", "prefix_cache_replayed_tokens_total", "prefix_cache_mismatches_total",
           "prefix_cache_pages", "prefix_cache_evicted_pages_total", "prefix_cache_bytes", "prefix_cache_max_bytes",
           "prefix_disk_pages", "prefix_disk_bytes", "prefix_disk_failing", "prefix_disk_written_bytes_total",
           "prefix_disk_read_bytes_total", "prefix_disk_hit_tokens_total", "prefix_disk_lost_pages_total",
           "swaps_total", "spec_decode_draft_length", "prompt_memo_blocks_total", "prompt_memo_tokens_total",
           "prompt_memo_bytes"]
    PROCESS = ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_virtual_memory_bytes",
               "process_open_fds", "process_max_fds", "process_start_time_seconds"]

    def test_names_are_the_documented_ones(self):
        self.server.post("/v1/chat/completions", self.server.chat())
        text = self.server.get("/metrics")
        families = set(re.findall(r"^# TYPE (\S+) ", text, re.M))
        expected = {f"{p}:{n}" for p in ("rorqual", "vllm") for n in self.NAMES}
        expected |= {f"rorqual:{n}" for n in self.OWN} | set(self.PROCESS)
        self.assertEqual(families, expected)
        self.assertEqual(set(re.findall(r"^# HELP (\S+) \S", text, re.M)), expected)
        for line in text.splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) .*|[a-z0-9_:]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? \S+)$')
        with open("../../docs/metrics.md", encoding="utf-8") as file:
            page = file.read()
        for name in self.NAMES + self.OWN + self.PROCESS:
            self.assertRegex(page, "`" + name + "[`{]")

    def test_counts_tokens_and_times(self):
        answers = [self.server.post("/v1/chat/completions", self.server.chat()) for _ in range(3)]
        usage = [a["usage"] for a in answers]
        for prefix in ("rorqual", "vllm"):
            self.assertEqual(self.server.metric(f"{prefix}:prompt_tokens_total"), sum(u["prompt_tokens"] for u in usage))
            self.assertEqual(self.server.metric(f"{prefix}:generation_tokens_total"),
                             sum(u["completion_tokens"] for u in usage))
            self.assertEqual(self.server.metric(f"{prefix}:prefix_cache_hits_total"), 6)
            self.assertEqual(self.server.metric(f"{prefix}:request_success_total", 'finished_reason="stop"'), 3)
            self.assertEqual(self.server.metric(f"{prefix}:request_success_total"), 3)
            for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_prompt_tokens"):
                self.assertEqual(self.server.metric(f"{prefix}:{name}_count"), 3)
            self.assertEqual(self.server.metric(f"{prefix}:request_prompt_tokens_sum"),
                             sum(u["prompt_tokens"] for u in usage))
        total = self.server.metric("vllm:prompt_tokens_total")
        self.assertEqual(self.server.metric("vllm:prompt_tokens_by_source_total"), total)
        self.assertEqual(self.server.metric("vllm:prompt_tokens_by_source_total", "local_cache_hit"), 6)
        self.assertEqual(self.server.metric("vllm:prompt_tokens_cached_by_source_total"), 6)
        self.assertEqual(self.server.metric("vllm:prompt_tokens_cached_by_source_total", "disk"), 3)
        self.assertEqual(self.server.metric("vllm:request_prefill_kv_computed_tokens_sum"), total - 6)
        self.assertEqual(self.server.metric("vllm:spec_decode_num_draft_tokens_total"),
                         sum(u["rorqual"]["drafts"]["drafted"] for u in usage))
        self.assertEqual(self.server.metric("rorqual:prefix_cache_misses_total", 'reason="tokens_differ"'), 3)
        self.assertEqual(self.server.metric("rorqual:prefix_cache_misses_total"),
                         self.server.metric("rorqual:prefix_cache_lookups_total"))
        self.assertEqual(self.server.metric("rorqual:http_requests_total", 'status="200"') >= 3, True)
        self.server.post("/v1/chat/completions", self.server.chat(max_tokens=1))
        self.assertEqual(self.server.metric("rorqual:request_success_total", 'finished_reason="length"'), 1)


class Loading(unittest.TestCase):
    def test_live_but_not_ready_while_loading(self):
        server = Server([{"text": "a"}], loading=1)
        self.addCleanup(server.stop)
        self.assertEqual(server.get("/health"), "")
        self.assertEqual(json.loads(server.get("/ready", 503)), {"status": "loading", "progress": 0.25})
        status, headers, text = server.request("POST", "/v1/chat/completions", server.chat())
        self.assertEqual(status, 503)
        self.assertIn("Retry-After", headers)
        self.assertEqual(json.loads(text)["error"]["code"], "loading")
        self.assertIn("<title>", server.get("/"))


class BlankLines(unittest.TestCase):
    def ask(self, **options):
        """Raw bytes of an answer in one piece that takes a while."""
        server = Server([{"text": "a", "first_pause_ms": 400, **options.pop("line", {})}], keep_alive_ms=100, **options)
        self.addCleanup(server.stop)
        with server.socket() as line:
            body = json.dumps(server.chat()).encode()
            line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                         b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            return b"".join(iter(lambda: line.recv(65536), b""))

    def test_fill_the_wait_if_wanted(self):
        head, rest = self.ask(keep_alive_lines=1).split(b"\r\n\r\n", 1)
        self.assertIn(b"200 OK", head)
        self.assertIn(b"Transfer-Encoding: chunked", head)
        self.assertGreaterEqual(rest.count(b"1\r\n\n\r\n"), 2)
        server = Server([{"text": "a", "first_pause_ms": 300}], keep_alive_ms=50, keep_alive_lines=1)
        self.addCleanup(server.stop)
        self.assertEqual(server.post("/v1/chat/completions", server.chat())["choices"][0]["message"]["content"], "a")

    def test_a_late_failure_is_in_the_body(self):
        answer = self.ask(keep_alive_lines=1, line={"error": "the kernel failed"})
        self.assertIn(b"200 OK", answer)
        self.assertIn(b"the kernel failed", answer)

    def test_are_not_sent_otherwise(self):
        head, rest = self.ask().split(b"\r\n\r\n", 1)
        self.assertIn(b"Content-Length", head)
        self.assertTrue(rest.startswith(b"{"))


class Cors(unittest.TestCase):
    def test_is_off_unless_an_origin_is_listed(self):
        server = Server([{"text": "a"}])
        self.addCleanup(server.stop)
        asked = {"Origin": "https://ui.example", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "content-type"}
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            status, headers, _ = server.request("OPTIONS", path, headers=asked)
            self.assertEqual(status, 204)
            self.assertEqual([h for h in headers if h.startswith("Access-Control")], [])

    def test_listed_origins_get_headers(self):
        server = Server([{"text": "a"}], origin="https://ui.example", key="k")
        self.addCleanup(server.stop)
        origin = {"Origin": "https://ui.example"}
        asked = {**origin, "Access-Control-Request-Method": "POST", "Authorization": "",
                 "Access-Control-Request-Headers": "authorization,anthropic-version,x-stainless-os"}
        status, headers, _ = server.request("OPTIONS", "/v1/messages", headers=asked)
        self.assertEqual(status, 204, "a preflight carries no key")
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://ui.example")
        self.assertEqual(headers["Access-Control-Allow-Headers"], asked["Access-Control-Request-Headers"])
        self.assertIn("POST", headers["Access-Control-Allow-Methods"])
        self.assertNotIn("Access-Control-Allow-Credentials", headers)
        bad = {**asked, "Access-Control-Request-Headers": "a;b"}
        _, headers, _ = server.request("OPTIONS", "/v1/messages", headers=bad)
        self.assertIn("Authorization", headers["Access-Control-Allow-Headers"])
        status, headers, _ = server.request("POST", "/v1/chat/completions", server.chat(), origin)
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "https://ui.example"))
        other = {"Origin": "https://other.example"}
        status, headers, _ = server.request("POST", "/v1/chat/completions", server.chat(), other)
        self.assertEqual(status, 403)
        self.assertNotIn("Access-Control-Allow-Origin", headers)


if __name__ == "__main__":
    unittest.main()
