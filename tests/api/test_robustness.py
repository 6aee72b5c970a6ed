# SPDX-License-Identifier: Apache-2.0
"""Hostile and broken requests: refused with a proper error, and the server goes on."""

import json
import os
import threading
import unittest

from body_mutations import WORDS
from harness import ApiTest

INTEGER_FIELDS = ["max_tokens", "n", "seed", "top_k", "min_tokens", "top_logprobs", "prompt_logprobs"]
HUGE = [2**31, 2**63, 10**30]


class Robustness(ApiTest):
    def chat_raw(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        status, _, answer = self.server.request("POST", "/v1/chat/completions", data)
        return status, answer

    def tearDown(self):
        self.assertTrue(self.server.is_alive())
        self.assertIsNone(self.server.process.poll())

    def test_deep_nesting(self):
        for depth in (10_000, 1_000_000):
            for opening, closing in (("[", "]"), ('{"a":', "}")):
                text = '{"x":' + opening * depth + "0" + closing * depth + "}"
                self.assertEqual(self.chat_raw(text)[0], 400)
        body = json.dumps(self.server.chat())[:-1]
        self.assertEqual(self.chat_raw(body + ',"x":' + "[" * 100 + "]" * 100 + "}")[0], 200)

    def test_broken_json(self):
        good = json.dumps(self.server.chat())
        field = good[:-1] + ',"temperature":%s}'
        for value in ("NaN", "Infinity", "-Infinity", "+1", "01", "1e400", ".5", "0x1", "'1'", "1.", "--1", "nul", ""):
            self.assertEqual(self.chat_raw(field % value)[0], 400, value)
        for text in (good + "x", good + good, "", " ", "null", "[]", "5", '"a"', "{", good[:-1], "\ufeff" + good,
                     good.replace("hello", "a\x01b"), good.replace("hello", "\\ud800"), good.replace("hello", "\\u12"),
                     good.replace('"hello"', "'hello'"), "{,}", '{"a":1,}'):
            self.assertEqual(self.chat_raw(text)[0], 400, text[:80])
        self.assertEqual(self.chat_raw(good.encode().replace(b"hello", b"\xff\xfe"))[0], 400)
        self.assertEqual(self.chat_raw(good.encode().replace(b"hello", b"\xed\xa0\x80"))[0], 400)

    def test_last_of_repeated_keys_counts(self):
        text = json.dumps(self.server.chat())[:-1] + ',"max_tokens":0.5,"max_tokens":1}'
        status, answer = self.chat_raw(text)
        self.assertEqual(status, 200, answer)
        self.assertEqual(json.loads(answer)["usage"]["completion_tokens"], 1)

    def test_integer_fields_out_of_range(self):
        for name in INTEGER_FIELDS:
            values = [-5, 1.5, "1", True, [], {}, *HUGE]
            if name == "seed":
                values.remove(2**31)
            for value in values:
                fields = {name: value}
                if name == "top_logprobs":
                    fields["logprobs"] = True
                error = self.error("/v1/chat/completions", self.server.chat(**fields))
                self.assertLess(len(error["message"]), 2000)
        for value in (17, 10**6):
            self.assertIn("n", self.error("/v1/chat/completions", self.server.chat(n=value))["message"])
        self.error("/v1/chat/completions", self.server.chat(logprobs=True, top_logprobs=21))
        self.error("/v1/completions", {"model": "rorqual-mini", "prompt": "a", "logprobs": 21})

    def test_every_field_takes_or_refuses_every_value(self):
        """Each field alone with each odd value: an answer or a reason, on all routes that take a prompt."""
        bases = {"/v1/chat/completions": self.server.chat(), "/v1/completions": {"model": "rorqual-mini", "prompt": "a"},
                 "/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [5]}}
        values = [-1, 0, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, -2**63, 1.5, 1e308, -1e-320, "1", "", True, None,
                  [], {}, [None], [-1], [2**31], [[]], {"a": 1}, [{}], ["", "a"]]
        for path, base in bases.items():
            for name in WORDS:
                for value in values:
                    status, _, text = self.server.request("POST", path, {**base, name: value})
                    self.assertIn(status, (200, 400, 404), (path, name, value, text[:300]))
                    if status == 400:
                        self.assertTrue(json.loads(text)["error"]["message"])

    def test_sampling_fields_out_of_range(self):
        for fields in ({"temperature": -1}, {"temperature": 1e30}, {"top_p": 2}, {"top_p": -0.1},
                       {"min_p": 2}, {"min_p": -1}, {"presence_penalty": 1e30}, {"frequency_penalty": -3},
                       {"repetition_penalty": 0}, {"repetition_penalty": -1}):
            self.error("/v1/chat/completions", self.server.chat(**fields))
        for fields in ({"temperature": 0}, {"temperature": 1e-30}, {"top_p": 1}, {"min_p": 0}):
            self.server.post("/v1/chat/completions", self.server.chat(**fields))

    def test_bad_token_ids_and_stops(self):
        for fields in ({"logit_bias": {"-1": 1}}, {"logit_bias": {str(2**31): 1}}, {"logit_bias": {"x": 1}},
                       {"logit_bias": {str(i): 1 for i in range(100_000)}}, {"stop_token_ids": [-1]},
                       {"stop_token_ids": [2**31]}, {"allowed_token_ids": [10**6]}, {"stop": ""}, {"stop": [""]},
                       {"stop": ["a"] * 100_000}, {"stop": 5}):
            self.error("/v1/chat/completions", self.server.chat(**fields))

    def test_messages_of_all_wrong_kinds(self):
        for messages in ([], None, "hello", {}, [5], [{}], [{"role": "user"}], [{"role": "king", "content": "a"}],
                         [{"role": "user", "content": 5}], [{"role": "user", "content": [{"type": "video"}]}],
                         [{"role": "tool", "content": "a", "tool_call_id": "x"}]):
            self.error("/v1/chat/completions", self.server.chat(messages=messages))

    def test_tool_names(self):
        for name in ("", 'a"b', "a\nb", "a b", "<｜User｜>", "</｜DSML｜ invoke>", "f" * 10_000, "é", "a\0", None, 5):
            tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
            self.error("/v1/chat/completions", self.server.chat(tools=[tool]))

    def test_empty_texts(self):
        for content in ("", [], [{"type": "text", "text": ""}]):
            for path, body in (("/v1/chat/completions", self.server.chat(messages=[{"role": "user", "content": content}])),
                               ("/tokenize", {"messages": [{"role": "user", "content": content}]})):
                status, _, text = self.server.request("POST", path, body)
                self.assertIn(status, (200, 400), text)
        self.assertEqual(self.server.post("/tokenize", {"prompt": ""})["tokens"], [])
        self.assertEqual(self.server.post("/detokenize", {"tokens": []})["prompt"], "")

    def test_prompts_just_beyond_the_context(self):
        limit = 16384
        for count, status in ((limit - 1, 200), (limit, 400), (limit + 1, 400), (limit + 1_000_000, 400)):
            body = {"model": "rorqual-mini", "prompt": [5] * count, "max_tokens": 1}
            got, _, text = self.server.request("POST", "/v1/completions", body)
            self.assertEqual(got, status, text[:300])
            if status == 400:
                self.assertIn(str(limit), text)
                self.assertIn(str(count), text)
        one = self.server.chat(messages=[{"role": "user", "content": "a " * 20_000}])
        self.assertIn(str(limit), self.error("/v1/chat/completions", one)["message"])

    def test_fields_that_would_run_or_load_something(self):
        tokens = self.server.post("/v1/chat/completions", self.server.chat())["usage"]["prompt_tokens"]
        for fields in ({"chat_template": "{{ 7 * 7 }}{% for x in range(10**9) %}{% endfor %}"},
                       {"chat_template_kwargs": {"chat_template": "{{ 7 * 7 }}", "__class__": "x"}},
                       {"prompt_embeds": "gASVAAAAAAAAAA=="}, {"kv_transfer_params": {"remote_host": "127.0.0.1"}},
                       {"mm_processor_kwargs": {"path": "/etc/passwd"}}, {"documents": ["file:///etc/passwd"]}):
            status, _, text = self.server.request("POST", "/v1/chat/completions", self.server.chat(**fields))
            self.assertIn(status, (200, 400), text)  # ignored or refused, never followed
            if status == 200:
                self.assertEqual(json.loads(text)["usage"]["prompt_tokens"], tokens, fields)
        self.error("/v1/completions", {"model": "rorqual-mini", "prompt_embeds": "gASVAAAAAAAAAA=="})

    def test_what_is_not_there_yet_is_said(self):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        messages = [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}]
        self.assertIn("mages", self.error("/v1/chat/completions", self.server.chat(messages=messages))["message"])
        error = self.error("/v1/chat/completions", self.server.chat(structured_outputs={"regex": "a(?=b)"}))
        self.assertIn("look-ahead", error["message"])

    def test_long_texts_are_cut_into_tokens_quickly(self):
        for text in ("a" * 3_000_000, "\u0301" * 500_000, "\n" * 1_000_000, "1" * 1_000_000, " " * 1_000_000):
            status, _, answer = self.server.request("POST", "/tokenize", {"prompt": text})
            self.assertEqual(status, 200)
            self.assertGreater(json.loads(answer)["count"], 0)

    def test_others_are_served_beside_long_texts(self):
        """More long texts than there are threads; short ones that come later are done before all but the first."""
        body = json.dumps({"prompt": "1a\u0301" * 3_000_000}).encode()
        ended = []

        def ask(name, data):
            status, _, _ = self.server.request("POST", "/tokenize", data)
            ended.append((name, status))

        long = [threading.Thread(target=ask, args=(f"long {i}", body)) for i in range(4)]
        for thread in long:
            thread.start()
        while self.server.metric("process_resident_memory_bytes") < 4 * len(body):  # they have arrived
            pass
        for _ in range(3):
            ask("short", {"prompt": "a"})
        for thread in long:
            thread.join()
        self.assertEqual({status for _, status in ended}, {200})
        order = [name for name, _ in ended]
        self.assertLessEqual(sum(name != "short" for name in order[:order.index("short")]), 1, order)

    def test_control_spellings_in_messages_are_text(self):
        def count(text):
            body = {"messages": [{"role": "user", "content": text}]}
            return self.server.post("/tokenize", body)["tokens"]

        neutral = count("plain")
        for spelling in ("<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "</think>", "<think>", "｜DSML｜"):
            marker = self.server.post("/tokenize", {"prompt": spelling})["tokens"]
            if len(marker) == 1:
                self.assertEqual(count(spelling).count(marker[0]), neutral.count(marker[0]), spelling)

    def test_memory_stays_flat(self):
        def resident():
            with open(f"/proc/{self.server.process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

        def round_of_requests():
            for fields in ({"n": 1_000_000}, {"top_logprobs": 10**6, "logprobs": True}, {"stop": ["a"] * 100_000}):
                self.server.request("POST", "/v1/chat/completions", self.server.chat(**fields))
            self.chat_raw('{"x":' + "[" * 1_000_000)
            self.chat_raw('{"x": [' + "{}," * 2_000_000 + "0]}")
            self.chat_raw('{"x": [' + "[]," * 10_000_000 + "0]}")

        def highest(rounds):
            found = 0
            for _ in range(rounds):
                round_of_requests()
                found = max(found, resident())
            return found

        # The allocator keeps the largest body that there was (up to 64 MB), and no more the second time.
        self.assertLess(highest(5), (96 << 20))
        before = highest(5)
        self.assertLess(highest(5), before * 1.05 + (8 << 20))


if __name__ == "__main__":
    unittest.main()
