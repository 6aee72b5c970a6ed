# SPDX-License-Identifier: Apache-2.0
"""/v1/completions: prompts of all kinds, log-probabilities, echo, scoring."""

import struct
import unittest

from harness import ApiTest


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


class Completions(ApiTest):
    script = [{"text": " two three four", "logprobs": [-0.1, -12.3456789, -1e-7, -0.5], "cached_tokens": 1}]
    options = {"max_logprobs": 512}

    def complete(self, **fields):
        return self.server.post("/v1/completions", {"model": "rorqual-mini", "prompt": "one", **fields})

    def tokens(self, text):
        return self.server.post("/tokenize", {"prompt": text})["tokens"]

    def test_answers_in_the_usual_form(self):
        body = self.complete()
        self.assertRegex(body["id"], r"^cmpl-[0-9a-f]{24}$")
        self.assertEqual(body["object"], "text_completion")
        self.assertEqual(body["choices"], [{"index": 0, "text": " two three four", "logprobs": None,
                                            "finish_reason": "stop", "stop_reason": None, "prompt_logprobs": None}])
        self.assertEqual(body["usage"]["prompt_tokens"], len(self.tokens("one")))

    def test_takes_text_ids_and_lists_of_both(self):
        ids = self.tokens("one")
        self.assertEqual(len(self.complete(prompt=["a", "b"])["choices"]), 2)
        self.assertEqual(self.complete(prompt=ids)["usage"]["prompt_tokens"], len(ids))
        body = self.complete(prompt=[ids, ids + ids], n=2)
        self.assertEqual([c["index"] for c in body["choices"]], [0, 1, 2, 3])
        self.assertEqual(body["usage"]["prompt_tokens"], 3 * len(ids))
        self.assertEqual(body["usage"]["prompt_cache_hit_tokens"], 2)

    def test_default_is_sixteen_tokens(self):
        body = self.complete(ignore_eos=True)
        self.assertEqual(body["usage"]["completion_tokens"], 16)
        self.assertEqual(body["choices"][0]["finish_reason"], "length")

    def test_streams_text_and_usage(self):
        for options in (None, {"include_usage": True}):
            fields = {"model": "rorqual-mini", "prompt": ["one", "uno"], **({"stream_options": options} if options else {})}
            events = self.server.events("/v1/completions", fields)
            for index in (0, 1):
                text = "".join(c["text"] for e in events for c in e["choices"] if c["index"] == index)
                self.assertEqual(text, " two three four")
            self.assertTrue(all(len(e["choices"]) == 1 for e in events))
            self.assertEqual(sum(bool(e.get("usage")) for e in events), 1)
            self.assertTrue(events[-1]["usage"])

    def test_logprob_lists_match_the_text(self):
        body = self.complete(logprobs=3)
        lists = body["choices"][0]["logprobs"]
        self.assertEqual("".join(lists["tokens"]), " two three four")
        self.assertEqual({len(v) for v in lists.values()}, {len(lists["tokens"])})
        offset = 0
        for token, start in zip(lists["tokens"], lists["text_offset"]):
            self.assertEqual(start, offset)
            offset += len(token)
        for token, logprob, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"]):
            self.assertEqual(top[token], logprob)
            self.assertIn(len(top), (3, 4))
        streamed = self.server.events("/v1/completions", {"model": "rorqual-mini", "prompt": "one", "logprobs": 3})
        for name in lists:
            got = [x for e in streamed for c in e["choices"] if c["logprobs"] for x in c["logprobs"][name]]
            self.assertEqual(got, lists[name])

    def test_logprobs_round_trip_as_float32(self):
        got = self.complete(logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
        want = [f32(x) for x in self.script[0]["logprobs"]][:len(got)]
        self.assertEqual([f32(x) for x in got], want)

    def test_prompt_logprobs_hold_the_own_token_first(self):
        ids = self.tokens("one two three")
        body = self.complete(prompt=ids, prompt_logprobs=300, max_tokens=1)
        rows = body["choices"][0]["prompt_logprobs"]
        self.assertEqual(len(rows), len(ids))
        self.assertIsNone(rows[0])
        for token, row in zip(ids[1:], rows[1:]):
            self.assertEqual(next(iter(row)), str(token))
            self.assertIn(len(row), (300, 301))
            entry = row[str(token)]
            self.assertEqual(list(entry), ["logprob", "rank", "decoded_token"])
            self.assertEqual(entry["rank"], 1)
        rows = self.complete(prompt=ids, prompt_logprobs=0)["choices"][0]["prompt_logprobs"]
        self.assertTrue(all(len(r) == 1 for r in rows[1:]))

    def test_prompt_logprobs_begin_where_asked(self):
        prompt = {"prompt": list(range(10, 20)), "prompt_logprobs": 2, "max_tokens": 0}
        every = self.complete(**prompt)["choices"][0]["prompt_logprobs"]
        rows = self.complete(**prompt, prompt_logprobs_begin=6)["choices"][0]["prompt_logprobs"]
        self.assertEqual(rows[:6], [None] * 6)
        self.assertEqual(rows[6:], every[6:])
        self.error("/v1/completions", {**prompt, "prompt_logprobs_begin": 0})

    def test_prompt_logprobs_limits(self):
        prompt = {"model": "rorqual-mini", "prompt": "one two"}
        self.assertIn("512", self.error("/v1/completions", {**prompt, "prompt_logprobs": 513})["message"])
        self.error("/v1/completions", {**prompt, "prompt_logprobs": -2})
        self.error("/v1/completions", {**prompt, "prompt_logprobs": -1})
        self.error("/v1/completions", {**prompt, "prompt_logprobs": 1.5})
        self.error("/v1/completions", {**prompt, "prompt_logprobs": 1, "stream": True})

    def test_echo_scores_a_prompt(self):
        body = self.complete(prompt="one two", echo=True, max_tokens=0, logprobs=1)
        choice = body["choices"][0]
        self.assertEqual(choice["text"], "one two")
        self.assertEqual("".join(choice["logprobs"]["tokens"]), "one two")
        self.assertIsNone(choice["logprobs"]["token_logprobs"][0])
        self.assertIsNone(choice["logprobs"]["top_logprobs"][0])
        self.assertEqual(body["usage"]["completion_tokens"], 0)
        both = self.complete(prompt="one", echo=True, logprobs=1)["choices"][0]
        self.assertEqual(both["text"], "one two three four")
        self.assertEqual("".join(both["logprobs"]["tokens"]), "one two three four")
        events = self.server.events("/v1/completions", {"model": "rorqual-mini", "prompt": "one", "echo": True})
        self.assertEqual("".join(c["text"] for e in events for c in e["choices"]), "one two three four")

    def test_returns_token_ids_when_asked(self):
        choice = self.complete(return_token_ids=True)["choices"][0]
        self.assertEqual(choice["prompt_token_ids"], self.tokens("one"))
        self.assertEqual(choice["token_ids"], self.tokens(" two three four"))

    def test_fills_in_the_middle(self):
        plain = len(self.tokens("one")) + len(self.tokens("ten"))
        self.assertEqual(self.complete(suffix="ten")["usage"]["prompt_tokens"], plain + 3)

    def test_stop_strings(self):
        choice = self.complete(stop=["three"])["choices"][0]
        self.assertEqual(choice["text"], " two ")
        self.assertEqual(choice["stop_reason"], "three")

    def test_refuses_bad_prompts(self):
        for prompt in ("", [], [[]], [-1], [10**6], [2**31], [1.5], [None], {}, 5, None, [["a"]], [1, "a"]):
            self.error("/v1/completions", {"model": "rorqual-mini", "prompt": prompt})
        self.error("/v1/completions", {"model": "rorqual-mini"})
        self.error("/v1/completions", {"model": "rorqual-mini", "prompt": ["a"] * 2000})
        error = self.error("/v1/completions", {"model": "rorqual-mini", "prompt": "one", "max_tokens": 16384})
        self.assertIn("16384", error["message"])
        self.assertTrue(self.server.is_alive())


if __name__ == "__main__":
    unittest.main()
