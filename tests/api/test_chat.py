# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions: bodies and streams in the official form."""

import json
import re
import unittest

from harness import ApiTest, THINK_END, tool_block

USAGE_KEYS = ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details",
              "completion_tokens_details", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "rorqual"]
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather of a place.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}, "required": ["place"]}}}


def joined(events, field, index=0):
    """All text of one delta field."""
    return "".join(c["delta"].get(field) or "" for e in events for c in e["choices"] if c["index"] == index)


class Plain(ApiTest):
    script = [{"text": "Hello there.", "cached_tokens": 3}]

    def test_answers_in_the_official_form(self):
        body = self.server.post("/v1/chat/completions", self.server.chat())
        self.assertEqual(list(body), ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"])
        self.assertRegex(body["id"], r"^chatcmpl-[0-9a-f]{24}$")
        self.assertEqual(body["object"], "chat.completion")
        self.assertEqual(body["model"], "rorqual-mini")
        self.assertEqual(body["choices"], [{
            "index": 0, "message": {"role": "assistant", "content": "Hello there.", "reasoning_content": None},
            "logprobs": None, "finish_reason": "stop"}])
        usage = body["usage"]
        self.assertEqual(list(usage), USAGE_KEYS)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertEqual(usage["prompt_tokens_details"], {"cached_tokens": 3})
        self.assertEqual(usage["prompt_cache_hit_tokens"], 3)
        self.assertEqual(usage["prompt_cache_miss_tokens"], usage["prompt_tokens"] - 3)
        self.assertEqual(usage["completion_tokens_details"], {"reasoning_tokens": 0})

    def test_streams_the_official_pieces_with_usage_on_the_last(self):
        events = self.server.events("/v1/chat/completions", self.server.chat())
        self.assertEqual(events[0]["choices"][0]["delta"],
                         {"role": "assistant", "content": "", "reasoning_content": None})
        for event in events:
            self.assertEqual(event["object"], "chat.completion.chunk")
            self.assertEqual(len(event["choices"]), 1)
            self.assertEqual(event["id"], events[0]["id"])
        self.assertEqual(joined(events, "content"), "Hello there.")
        self.assertTrue(all("usage" not in e for e in events[:-1]))
        last = events[-1]
        self.assertEqual(last["choices"][0]["delta"], {"content": "", "reasoning_content": None})
        self.assertEqual(last["choices"][0]["finish_reason"], "stop")
        self.assertEqual(list(last["usage"]), USAGE_KEYS)

    def test_usage_that_was_asked_for_is_null_until_the_last_piece(self):
        events = self.server.events("/v1/chat/completions",
                                    self.server.chat(stream_options={"include_usage": True}))
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "stop")
        self.assertEqual(list(events[-1]["usage"]), USAGE_KEYS)
        self.assertTrue(all(e["usage"] is None for e in events[:-1]))

    def test_sends_usage_with_every_piece_when_asked(self):
        options = {"include_usage": True, "continuous_usage_stats": True}
        events = self.server.events("/v1/chat/completions", self.server.chat(stream_options=options))
        counts = [e["usage"]["completion_tokens"] for e in events]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[0], 0)
        self.assertGreater(counts[-1], 1)

    def test_same_text_streamed_and_whole_on_all_paths(self):
        for path in ("/v1/chat/completions", "/chat/completions", "/beta/chat/completions"):
            whole = self.server.post(path, self.server.chat())
            self.assertEqual(whole["choices"][0]["message"]["content"], "Hello there.")

    def test_cuts_at_max_tokens(self):
        for field in ("max_tokens", "max_completion_tokens"):
            body = self.server.post("/v1/chat/completions", self.server.chat(**{field: 2}))
            self.assertEqual(body["choices"][0]["finish_reason"], "length")
            self.assertEqual(body["usage"]["completion_tokens"], 2)

    def test_gives_several_choices(self):
        body = self.server.post("/v1/chat/completions", self.server.chat(n=3))
        self.assertEqual([c["index"] for c in body["choices"]], [0, 1, 2])
        self.assertTrue(all(c["message"]["content"] == "Hello there." for c in body["choices"]))
        one = self.server.post("/v1/chat/completions", self.server.chat())
        self.assertEqual(body["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"])
        self.assertEqual(body["usage"]["completion_tokens"], 3 * one["usage"]["completion_tokens"])
        events = self.server.events("/v1/chat/completions", self.server.chat(n=2))
        for index in (0, 1):
            self.assertEqual(joined(events, "content", index), "Hello there.")
        self.assertEqual(sum("usage" in e for e in events), 1)
        self.assertIn("usage", events[-1])

    def test_ignore_eos_and_min_tokens_give_exact_lengths(self):
        for path, body in (("/v1/chat/completions", self.server.chat()),
                           ("/v1/completions", {"model": "rorqual-mini", "prompt": "a"})):
            answer = self.server.post(path, {**body, "ignore_eos": True, "min_tokens": 64, "max_tokens": 64})
            self.assertEqual(answer["usage"]["completion_tokens"], 64)
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")

    def test_unknown_model_lists_the_served_names(self):
        error = self.error("/v1/chat/completions", self.server.chat(model="gpt-0"), 404)
        self.assertIn("rorqual-mini", error["message"])
        self.assertIn("gpt-0", error["message"])

    def test_context_overflow_gives_both_numbers(self):
        error = self.error("/v1/chat/completions", self.server.chat(max_tokens=100000))
        self.assertIn("maximum context length is 16384 tokens", error["message"])
        self.assertRegex(error["message"], r"\d+ in the messages, 100000 in the completion")
        long = [{"role": "user", "content": "word " * 2_000_000}]
        error = self.error("/v1/chat/completions", self.server.chat(messages=long))
        self.assertIn("16384", error["message"])


class OpenAiForms(ApiTest):
    script = [{"text": "Let me think." + THINK_END + "The answer is 4."}]
    options = {"usage_chunk": "openai", "reasoning_alias": 1}

    def test_usage_comes_in_a_piece_of_its_own_if_asked_for(self):
        for path, body in (("/v1/chat/completions", self.server.chat()),
                           ("/v1/completions", {"model": "rorqual-mini", "prompt": "a"})):
            events = self.server.events(path, {**body, "stream_options": {"include_usage": True}})
            self.assertEqual(events[-1]["choices"], [])
            self.assertEqual(list(events[-1]["usage"]), USAGE_KEYS)
            self.assertTrue(all(e["usage"] is None for e in events[:-1]))
            self.assertEqual(events[-2]["choices"][0]["finish_reason"], "stop")
            self.assertTrue(all("usage" not in e for e in self.server.events(path, body)))

    def test_reasoning_has_both_names(self):
        fields = self.server.chat(thinking={"type": "enabled"})
        message = self.server.post("/v1/chat/completions", fields)["choices"][0]["message"]
        self.assertEqual(message["reasoning"], "Let me think.")
        self.assertEqual(message["reasoning"], message["reasoning_content"])
        events = self.server.events("/v1/chat/completions", fields)
        self.assertEqual(joined(events, "reasoning"), "Let me think.")
        self.assertEqual(joined(events, "reasoning_content"), "Let me think.")
        turn = {"role": "assistant", "content": "4", "reasoning": "Let me think."}
        with_tools = {"tools": [WEATHER], "thinking": {"type": "enabled"}}
        counts = [self.server.post("/tokenize", {**with_tools, "messages": [
            {"role": "user", "content": "a"}, t, {"role": "user", "content": "b"}]})["count"]
            for t in (turn, {"role": "assistant", "content": "4", "reasoning_content": "Let me think."},
                      {"role": "assistant", "content": "4"})]
        self.assertEqual(counts[0], counts[1])
        self.assertGreater(counts[0], counts[2])


class Reasoning(ApiTest):
    script = [{"text": "Let me think." + THINK_END + "The answer is 4."}]

    def test_splits_reasoning_and_content(self):
        body = self.server.post("/v1/chat/completions", self.server.chat(thinking={"type": "enabled"}))
        message = body["choices"][0]["message"]
        self.assertEqual(message["reasoning_content"], "Let me think.")
        self.assertEqual(message["content"], "The answer is 4.")
        thought = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
        self.assertGreater(thought, 0)
        self.assertLess(thought, body["usage"]["completion_tokens"])

    def test_streams_both_with_the_other_key_null(self):
        events = self.server.events("/v1/chat/completions", self.server.chat(thinking={"type": "enabled"}))
        self.assertEqual(events[0]["choices"][0]["delta"],
                         {"role": "assistant", "content": None, "reasoning_content": ""})
        self.assertEqual(joined(events, "reasoning_content"), "Let me think.")
        self.assertEqual(joined(events, "content"), "The answer is 4.")
        for event in events[1:-1]:
            delta = event["choices"][0]["delta"]
            self.assertEqual(set(delta), {"content", "reasoning_content"})
            self.assertEqual(sum(v is None for v in delta.values()), 1)

    def test_logprobs_list_reasoning_apart_and_markers_nowhere(self):
        fields = {"thinking": {"type": "enabled"}, "logprobs": True, "top_logprobs": 2}
        whole = self.server.post("/v1/chat/completions", self.server.chat(**fields))
        events = self.server.events("/v1/chat/completions", self.server.chat(**fields))
        logprobs = whole["choices"][0]["logprobs"]
        self.assertEqual("".join(t["token"] for t in logprobs["content"]), "The answer is 4.")
        self.assertEqual("".join(t["token"] for t in logprobs["reasoning_content"]), "Let me think.")
        for entry in logprobs["content"]:
            self.assertEqual(list(entry), ["token", "logprob", "bytes", "top_logprobs"])
            self.assertEqual(bytes(entry["bytes"]).decode(), entry["token"])
            self.assertEqual(len(entry["top_logprobs"]), 2)
            self.assertEqual(list(entry["top_logprobs"][0]), ["token", "logprob", "bytes"])
        for name in ("content", "reasoning_content"):
            streamed = [t for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"][name] or []]
            self.assertEqual(streamed, logprobs[name])

    def test_leaves_reasoning_out_when_asked(self):
        fields = {"thinking": {"type": "enabled"}, "include_reasoning": False}
        body = self.server.post("/v1/chat/completions", self.server.chat(**fields))
        self.assertIsNone(body["choices"][0]["message"]["reasoning_content"])
        self.assertEqual(body["choices"][0]["message"]["content"], "The answer is 4.")


class UnclosedReasoning(ApiTest):
    script = [{"text": "Good morning"}]

    def test_all_is_reasoning_and_no_end_marker_is_shown(self):
        body = self.server.post("/v1/chat/completions", self.server.chat(thinking={"type": "enabled"}))
        message = body["choices"][0]["message"]
        self.assertEqual(message["reasoning_content"], "Good morning")
        self.assertEqual(message["content"], "")


class Tools(ApiTest):
    script = [{"text": "Look." + THINK_END + "I call it." +
               tool_block("weather", [("place", True, "Oslo"), ("days", False, "2")])}]

    def test_returns_calls_whole(self):
        body = self.server.post("/v1/chat/completions",
                                self.server.chat(thinking={"type": "enabled"}, tools=[WEATHER]))
        choice = body["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertEqual(choice["message"]["content"], "I call it.")
        call, = choice["message"]["tool_calls"]
        self.assertEqual(list(call), ["index", "id", "type", "function"])
        self.assertRegex(call["id"], r"^call_00_[0-9A-Za-z]{24}$")
        self.assertEqual(call["function"]["name"], "weather")
        self.assertEqual(json.loads(call["function"]["arguments"]), {"place": "Oslo", "days": 2})

    def test_streams_calls_as_deltas(self):
        events = self.server.events("/v1/chat/completions",
                                    self.server.chat(thinking={"type": "enabled"}, tools=[WEATHER]))
        deltas = [e["choices"][0]["delta"] for e in events]
        calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
        self.assertEqual(set(calls[0]), {"index", "id", "type", "function"})
        self.assertEqual(calls[0]["function"], {"name": "weather", "arguments": ""})
        self.assertTrue(all(set(c) == {"index", "function"} for c in calls[1:]))
        arguments = "".join(c["function"]["arguments"] for c in calls)
        self.assertEqual(json.loads(arguments), {"place": "Oslo", "days": 2})
        self.assertEqual(joined(events, "content"), "I call it.")
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")

    def test_block_is_text_without_tools(self):
        body = self.server.post("/v1/chat/completions", self.server.chat(thinking={"type": "enabled"}))
        self.assertNotIn("tool_calls", body["choices"][0]["message"])
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")

    def test_auto_choice_is_the_default(self):
        plain = self.server.chat(tools=[WEATHER])
        one = self.server.post("/tokenize", {"messages": plain["messages"], "tools": [WEATHER]})
        body = self.server.post("/v1/chat/completions", {**plain, "tool_choice": "auto"})
        self.assertGreater(one["count"], 20)
        self.assertEqual(body["usage"]["prompt_tokens"],
                         self.server.post("/v1/chat/completions", plain)["usage"]["prompt_tokens"])


class TwoCalls(ApiTest):
    script = [{"text": tool_block("weather", [("place", True, "A")]).replace(
        "</｜DSML｜ calls>", '<｜DSML｜ invoke name="weather">\n<｜DSML｜ parameter name="place" string="true">B'
        "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>")}]

    def test_parallel_calls_and_only_the_first_when_refused(self):
        both = self.server.post("/v1/chat/completions", self.server.chat(tools=[WEATHER]))
        calls = both["choices"][0]["message"]["tool_calls"]
        self.assertEqual([json.loads(c["function"]["arguments"])["place"] for c in calls], ["A", "B"])
        self.assertRegex(calls[1]["id"], r"^call_01_")
        for stream in (False, True):
            fields = self.server.chat(tools=[WEATHER], parallel_tool_calls=False)
            if stream:
                events = self.server.events("/v1/chat/completions", fields)
                indices = {c["index"] for e in events for c in e["choices"][0]["delta"].get("tool_calls", [])}
                self.assertEqual(indices, {0})
                self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")
            else:
                body = self.server.post("/v1/chat/completions", fields)
                self.assertEqual(len(body["choices"][0]["message"]["tool_calls"]), 1)
                self.assertEqual(body["choices"][0]["finish_reason"], "tool_calls")


class Stops(ApiTest):
    script = [{"text": "alpha beta gamma delta"}]

    def test_stop_strings_are_never_sent(self):
        fields = {"stop": ["beta gamma"]}
        body = self.server.post("/v1/chat/completions", self.server.chat(**fields))
        self.assertEqual(body["choices"][0]["message"]["content"], "alpha ")
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")
        self.assertEqual(body["choices"][0]["stop_reason"], "beta gamma")
        events = self.server.events("/v1/chat/completions", self.server.chat(**fields))
        self.assertEqual(joined(events, "content"), "alpha ")
        included = self.server.chat(include_stop_str_in_output=True, **fields)
        body = self.server.post("/v1/chat/completions", included)
        self.assertEqual(body["choices"][0]["message"]["content"], "alpha beta gamma")

    def test_stop_token_ids_end_the_answer(self):
        gamma = self.server.post("/tokenize", {"prompt": " gamma"})["tokens"]
        body = self.server.post("/v1/chat/completions", self.server.chat(stop_token_ids=[gamma[0]]))
        self.assertEqual(body["choices"][0]["stop_reason"], gamma[0])
        self.assertTrue("alpha beta gamma".startswith(body["choices"][0]["message"]["content"]))

    def test_text_routes_round_trip(self):
        tokens = self.server.post("/tokenize", {"prompt": "alpha β 😀", "return_token_strs": True})
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        self.assertEqual(len(tokens["token_strs"]), tokens["count"])
        self.assertEqual(tokens["max_model_len"], 16384)
        self.assertEqual(self.server.post("/detokenize", {"tokens": tokens["tokens"]}), {"prompt": "alpha β 😀"})
        self.assertIsNone(self.server.post("/tokenize", {"prompt": "a"})["token_strs"])
        self.error("/detokenize", {"tokens": [10**6]})


class EngineFailure(ApiTest):
    script = [{"text": "Some words", "error": "the kernel failed"}]

    def test_failure_is_a_500_or_an_error_event(self):
        error = self.error("/v1/chat/completions", self.server.chat(), 500)
        self.assertIn("the kernel failed", error["message"])
        events = self.server.events("/v1/chat/completions", self.server.chat())
        self.assertIn("the kernel failed", events[-1]["error"]["message"])
        self.assertIsNotNone(re.match("Some words", joined(events[:-1], "content")))


if __name__ == "__main__":
    unittest.main()
