# SPDX-License-Identifier: Apache-2.0
"""/v1/messages: content blocks, events and errors in Anthropic's form, the same at every cut of the output."""

import json
import unittest

from harness import ApiTest, DSML, Server, THINK_END, named_events, tool_block

WEATHER = {"name": "weather", "description": "Weather of a place.", "input_schema": {
    "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}, "required": ["place"]}}
PATHS = ("/v1/messages", "/anthropic/v1/messages")
FULL = ("Look." + THINK_END + "I call it." + tool_block("weather", [("place", True, "Oslo"), ("days", False, "2")]))
CALL = {"place": "Oslo", "days": 2}


def ask(**fields):
    return {"model": "rorqual-mini", "max_tokens": 200, "messages": [{"role": "user", "content": "hello"}], **fields}


def collect(events):
    """Content blocks as a client of the protocol puts them together, with the checks of their order."""
    blocks, open_index = [], None
    for name, event in events:
        assert name == event["type"], (name, event)
        if name == "content_block_start":
            assert open_index is None and event["index"] == len(blocks)
            open_index = event["index"]
            blocks.append({**event["content_block"], "json": ""})
        elif name == "content_block_delta":
            assert event["index"] == open_index
            delta, block = event["delta"], blocks[-1]
            kind = delta["type"]
            expected = {"thinking_delta": "thinking", "signature_delta": "thinking", "text_delta": "text",
                        "input_json_delta": "tool_use"}[kind]
            assert block["type"] == expected, (kind, block)
            for key, into in (("thinking", "thinking"), ("signature", "signature"), ("text", "text"), ("partial_json", "json")):
                if key in delta:
                    block[into] += delta[key]
        elif name == "content_block_stop":
            assert event["index"] == open_index
            open_index = None
    assert open_index is None
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = json.loads(text)
    return blocks


class Whole(ApiTest):
    script = [{"text": FULL, "cached_tokens": 3}]

    def test_has_the_blocks_of_thinking_text_and_call(self):
        for path in PATHS:
            body = self.server.post(path, ask(tools=[WEATHER]))
            self.assertEqual(list(body), ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"])
            self.assertRegex(body["id"], r"^msg_[0-9a-f]{24}$")
            self.assertEqual((body["type"], body["role"], body["model"]), ("message", "assistant", "rorqual-mini"))
            thinking, text, call = body["content"]
            self.assertEqual(thinking, {"type": "thinking", "thinking": "Look.", "signature": body["id"]})
            self.assertEqual(text, {"type": "text", "text": "I call it."})
            self.assertRegex(call.pop("id"), r"^call_00_[0-9A-Za-z]{24}$")
            self.assertEqual(call, {"type": "tool_use", "name": "weather", "input": CALL})
            self.assertEqual((body["stop_reason"], body["stop_sequence"]), ("tool_use", None))

    def test_usage_tells_cached_tokens_apart(self):
        counted = self.server.post("/v1/messages/count_tokens", ask(tools=[WEATHER]))
        self.assertEqual(list(counted), ["input_tokens"])
        usage = self.server.post("/v1/messages", ask(tools=[WEATHER]))["usage"]
        self.assertEqual(list(usage), ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
                                       "output_tokens", "rorqual"])
        self.assertEqual(usage["cache_read_input_tokens"], 3)
        self.assertEqual(usage["cache_creation_input_tokens"], 0)
        self.assertEqual(usage["input_tokens"] + 3, counted["input_tokens"])
        self.assertGreater(usage["output_tokens"], 10)
        # The prompt is that of the chat API.
        chat = self.server.chat(thinking={"type": "enabled"}, tools=[{"type": "function", "function": {
            "name": WEATHER["name"], "description": WEATHER["description"], "parameters": WEATHER["input_schema"]}}])
        prompt = self.server.post("/v1/chat/completions", chat)["usage"]["prompt_tokens"]
        self.assertEqual(prompt, counted["input_tokens"])

    def test_stops_at_max_tokens_and_keeps_what_a_cut_call_had(self):
        body = self.server.post("/v1/messages", ask(max_tokens=4))
        self.assertEqual(body["stop_reason"], "max_tokens")
        self.assertEqual(body["usage"]["output_tokens"], 4)
        length = self.server.post("/v1/messages", ask(tools=[WEATHER]))["usage"]["output_tokens"]
        cut = self.server.post("/v1/messages", ask(tools=[WEATHER], max_tokens=length - 20))
        self.assertEqual(cut["stop_reason"], "max_tokens")
        call = cut["content"][-1]
        self.assertEqual(call["type"], "tool_use")
        self.assertEqual(list(call["input"]), ["raw_arguments"])
        self.assertTrue(call["input"]["raw_arguments"].startswith('{"place"'))

    def test_limits_beyond_the_context_are_lowered_or_refused(self):
        for max_tokens in (8000, 16384, 32000, 10 ** 6):
            body = self.server.post("/v1/messages", ask(tools=[WEATHER], max_tokens=max_tokens))
            self.assertEqual(body["stop_reason"], "tool_use")
        long = [{"role": "user", "content": "word " * 30000}]
        error = self.server.post("/v1/messages", ask(messages=long), 400)["error"]
        self.assertIn("maximum context length is 16384 tokens", error["message"])
        body = ask()
        del body["max_tokens"]
        self.assertEqual(self.server.post("/v1/messages", body)["type"], "message")


class EveryCut(unittest.TestCase):
    def test_blocks_are_the_same_for_every_number_of_tokens_per_step(self):
        steps = list(range(1, 40)) + [1000]
        server = Server([{"text": FULL, "step_tokens": n, "cached_tokens": 3} for n in steps])
        self.addCleanup(server.stop)
        for step in steps:
            events = named_events(server, "/v1/messages", ask(tools=[WEATHER]))
            names = [name for name, _ in events]
            self.assertEqual(names[0], "message_start")
            self.assertEqual(names[1:3], ["content_block_start", "ping"])
            self.assertEqual(names[-2:], ["message_delta", "message_stop"])
            self.assertEqual((names.count("ping"), names.count("message_start")), (1, 1))
            start = events[0][1]["message"]
            self.assertEqual((start["content"], start["stop_reason"], start["stop_sequence"]), ([], None, None))
            self.assertEqual(start["usage"]["cache_read_input_tokens"], 3)
            self.assertEqual(start["usage"]["output_tokens"], 0)
            thinking, text, call = collect(events)
            self.assertEqual(thinking, {"type": "thinking", "thinking": "Look.", "signature": start["id"]}, step)
            self.assertEqual(text, {"type": "text", "text": "I call it."}, step)
            self.assertEqual((call["name"], call["input"]), ("weather", CALL), step)
            delta = events[-2][1]
            self.assertEqual(delta["delta"], {"stop_reason": "tool_use", "stop_sequence": None})
            self.assertEqual(delta["usage"]["input_tokens"], start["usage"]["input_tokens"])
            self.assertGreater(delta["usage"]["output_tokens"], 10)
            self.assertNotIn(DSML, json.dumps(events, ensure_ascii=False))


class Stops(ApiTest):
    script = [{"text": "alpha beta gamma delta"}]

    def test_stop_sequences_are_named_and_not_shown(self):
        fields = ask(stop_sequences=["beta gamma", "zeta"], thinking={"type": "disabled"})
        body = self.server.post("/v1/messages", fields)
        self.assertEqual(body["content"], [{"type": "text", "text": "alpha "}])
        self.assertEqual((body["stop_reason"], body["stop_sequence"]), ("stop_sequence", "beta gamma"))
        events = named_events(self.server, "/v1/messages", fields)
        self.assertEqual(collect(events), [{"type": "text", "text": "alpha "}])
        self.assertEqual(events[-2][1]["delta"], {"stop_reason": "stop_sequence", "stop_sequence": "beta gamma"})

    def test_end_of_the_turn(self):
        body = self.server.post("/v1/messages", ask(thinking={"type": "disabled"}))
        self.assertEqual((body["stop_reason"], body["stop_sequence"]), ("end_turn", None))


class NoText(ApiTest):
    script = [{"text": ""}]

    def test_an_empty_answer_has_no_blocks(self):
        self.assertEqual(self.server.post("/v1/messages", ask())["content"], [])
        names = [name for name, _ in named_events(self.server, "/v1/messages", ask())]
        self.assertEqual(names, ["message_start", "message_delta", "message_stop"])


class Errors(ApiTest):
    script = [{"text": "a b c", "error": "the kernel failed"}]
    options = {"key": "k"}

    def refused(self, status, path="/v1/messages", body=None, headers=None, method="POST"):
        got, _, text = self.server.request(method, path, ask() if body is None else body, headers)
        self.assertEqual(got, status, text)
        error = json.loads(text)
        self.assertEqual(error["type"], "error")
        self.assertIn("message", error["error"])
        return error["error"]

    def test_have_the_type_of_their_status(self):
        self.assertEqual(self.refused(400, body={"model": "rorqual-mini"})["type"], "invalid_request_error")
        self.assertEqual(self.refused(400, body="{")["type"], "invalid_request_error")
        self.assertEqual(self.refused(404, body=ask(model="x"))["type"], "not_found_error")
        self.assertEqual(self.refused(401, headers={"Authorization": "Bearer x"})["type"], "authentication_error")
        self.assertEqual(self.refused(415, headers={"Content-Type": "text/plain"})["type"], "invalid_request_error")
        self.assertEqual(self.refused(405, method="GET", body="")["type"], "invalid_request_error")
        self.assertEqual(self.refused(500)["type"], "api_error")
        self.assertEqual(self.refused(400, "/v1/messages/count_tokens", body={})["type"], "invalid_request_error")
        self.assertEqual(self.refused(400, "/anthropic/v1/messages", body={})["type"], "invalid_request_error")

    def test_key_and_version_as_the_protocol_sends_them(self):
        headers = {"Authorization": "", "x-api-key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
        status, _, text = self.server.request("POST", "/v1/messages/count_tokens", ask(), headers)
        self.assertEqual(status, 200, text)

    def test_after_the_headers_are_an_event(self):
        events = named_events(self.server, "/v1/messages", ask())
        name, error = events[-1]
        self.assertEqual(name, "error")
        self.assertEqual(error["error"]["type"], "api_error")
        self.assertIn("the kernel failed", error["error"]["message"])

    def test_results_and_blocks_out_of_order(self):
        call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]}
        self.assertIn("tool_result", self.refused(400, body=ask(messages=[call]))["message"])
        stray = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "x"}]}
        self.assertIn("t2", self.refused(400, body=ask(messages=[stray]))["message"])
        image = {"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": "aGk="}}]}
        self.assertIn("not supported", self.refused(400, body=ask(messages=[image]))["message"])
        image["content"][0]["source"] = {"type": "url", "url": "https://example.com/a.png"}
        self.assertIn("remote fetch is off", self.refused(400, body=ask(messages=[image]))["message"])


class Queue(ApiTest):
    script = [{"text": "a", "first_pause_ms": 100000}]
    options = {"max_queued": 1, "shutdown_ms": 1}

    def test_a_full_queue_is_a_rate_limit_error(self):
        connection = self.server.connect()
        connection.request("POST", "/v1/messages", json.dumps(ask()), {"Content-Type": "application/json"})
        self.assertTrue(self.server.wait_metric("vllm:num_requests_running", 1))
        status, headers, text = self.server.request("POST", "/v1/messages", ask())
        self.assertEqual((status, json.loads(text)["error"]["type"]), (429, "rate_limit_error"))
        self.assertIn("Retry-After", headers)
        connection.close()


if __name__ == "__main__":
    unittest.main()
