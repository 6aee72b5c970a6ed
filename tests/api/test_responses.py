# SPDX-License-Identifier: Apache-2.0
"""/v1/responses: output items and every event, the same at every cut of the output."""

import json
import unittest

from harness import ApiTest, DSML, Server, THINK_END, named_events, tool_block

WEATHER = {"type": "function", "name": "weather", "description": "Weather of a place.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}, "required": ["place"]}}
FULL = "Look." + THINK_END + "I call it." + tool_block("weather", [("place", True, "Oslo"), ("days", False, "2")])
CALL = {"place": "Oslo", "days": 2}
FIELDS = ["id", "object", "created_at", "status", "background", "error", "incomplete_details", "model", "output",
          "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning", "temperature", "text",
          "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user", "previous_response_id", "store", "usage"]
PARTS = {"reasoning": "reasoning_text", "message": "output_text"}
ARGUMENTS = {"function_call": "function_call_arguments", "custom_tool_call": "custom_tool_call_input"}


def ask(**fields):
    return {"model": "rorqual-mini", "input": "hello", **fields}


def check_events(events):
    """The output items, put together from the events; each event is checked against what must come before it."""
    assert [e["sequence_number"] for _, e in events] == list(range(len(events)))
    assert all(name == e["type"] for name, e in events)
    assert [n for n, _ in events[:2]] == ["response.created", "response.in_progress"]
    for _, event in events[:2]:
        assert event["response"]["status"] == "in_progress" and event["response"]["output"] == []
        assert event["response"]["usage"] is None
    items, at = [], 2
    while events[at][0] == "response.output_item.added":
        at, item = check_item(events, at, len(items))
        items.append(item)
    assert at == len(events) - 1, events[at]
    assert events[at][1]["response"]["output"] == items
    return items


def check_item(events, at, index):
    added = events[at][1]
    assert added["output_index"] == index
    kind, item_id = added["item"]["type"], added["item"]["id"]
    assert added["item"]["status"] == "in_progress"
    at += 1
    stem = PARTS.get(kind) or ARGUMENTS[kind]
    if kind in PARTS:
        assert added["item"]["content"] == []
        assert events[at][0] == "response.content_part.added"
        assert events[at][1]["part"]["type"] == stem and events[at][1]["part"]["text"] == ""
        at += 1
    text = ""
    while events[at][0] == f"response.{stem}.delta":
        event = events[at][1]
        assert (event["item_id"], event["output_index"]) == (item_id, index) and event["delta"]
        text += event["delta"]
        at += 1
    done = events[at][1]
    assert events[at][0] == f"response.{stem}.done" and done["item_id"] == item_id
    assert next(done[k] for k in ("text", "arguments", "input") if k in done) == text
    at += 1
    if kind in PARTS:
        assert events[at][0] == "response.content_part.done" and events[at][1]["part"]["text"] == text
        at += 1
    name, event = events[at]
    assert name == "response.output_item.done" and event["output_index"] == index
    item = event["item"]
    assert item["id"] == item_id and item["type"] == kind
    assert (item["content"][0]["text"] if kind in PARTS else item.get("arguments", item.get("input"))) == text
    return at + 1, item


class Whole(ApiTest):
    script = [{"text": FULL, "cached_tokens": 3}]

    def test_has_reasoning_message_and_call(self):
        for path in ("/v1/responses", "/responses"):
            body = self.server.post(path, ask(tools=[WEATHER]))
            self.assertEqual(list(body), FIELDS)
            self.assertRegex(body["id"], r"^resp_[0-9a-f]{24}$")
            self.assertEqual((body["object"], body["status"], body["store"]), ("response", "completed", False))
            name = body["id"][5:]
            reasoning, message, call = body["output"]
            self.assertEqual(reasoning, {
                "id": f"rs_{name}_0", "type": "reasoning", "summary": [],
                "content": [{"type": "reasoning_text", "text": "Look."}], "encrypted_content": f"{name}-0",
                "status": "completed"})
            self.assertEqual(message, {
                "id": f"msg_{name}_1", "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "I call it.", "annotations": [], "logprobs": []}],
                "phase": "commentary"})
            self.assertRegex(call.pop("call_id"), r"^call_00_[0-9A-Za-z]{24}$")
            self.assertEqual(json.loads(call.pop("arguments")), CALL)
            self.assertEqual(call, {"id": f"fc_{name}_2", "type": "function_call", "status": "completed",
                                    "name": "weather"})

    def test_usage(self):
        usage = self.server.post("/v1/responses", ask(tools=[WEATHER]))["usage"]
        self.assertEqual(list(usage), ["input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details",
                                       "total_tokens", "rorqual"])
        self.assertEqual(usage["input_tokens_details"], {"cached_tokens": 3})
        self.assertGreater(usage["output_tokens_details"]["reasoning_tokens"], 0)
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])

    def test_fields_of_the_request_come_back(self):
        sent = {"instructions": "Be brief.", "metadata": {"a": "b"}, "tools": [WEATHER], "tool_choice": "auto",
                "temperature": 0.5, "max_output_tokens": 300, "reasoning": {"effort": "low"}, "user": "u",
                "text": {"format": {"type": "text"}}, "parallel_tool_calls": False}
        body = self.server.post("/v1/responses", ask(**sent))
        for name, value in sent.items():
            self.assertEqual(body[name], value)
        default = self.server.post("/v1/responses", ask())
        self.assertEqual((default["tools"], default["tool_choice"], default["metadata"]), ([], "auto", {}))

    def test_an_answer_that_was_cut_is_incomplete(self):
        body = self.server.post("/v1/responses", ask(max_output_tokens=3))
        self.assertEqual(body["status"], "incomplete")
        self.assertEqual(body["incomplete_details"], {"reason": "max_output_tokens"})
        self.assertEqual(body["output"][-1]["status"], "incomplete")
        events = named_events(self.server, "/v1/responses", ask(max_output_tokens=3))
        items = check_events(events)
        self.assertEqual(events[-1][0], "response.incomplete")
        self.assertEqual(events[-1][1]["response"]["status"], "incomplete")
        self.assertEqual(items[-1]["status"], "incomplete")

    def test_logprobs_of_the_text(self):
        fields = ask(reasoning={"effort": "none"}, include=["message.output_text.logprobs"], top_logprobs=2)
        whole = self.server.post("/v1/responses", fields)["output"][-1]["content"][0]
        self.assertEqual("".join(t["token"] for t in whole["logprobs"]), "Look.I call it." + FULL.split("I call it.")[1])
        events = named_events(self.server, "/v1/responses", fields)
        deltas = [t for name, e in events if name == "response.output_text.delta" for t in e["logprobs"]]
        self.assertEqual(deltas, whole["logprobs"])
        self.assertEqual(len(deltas[0]["top_logprobs"]), 2)


class EveryCut(unittest.TestCase):
    def test_items_are_the_same_for_every_number_of_tokens_per_step(self):
        steps = list(range(1, 40)) + [1000]
        server = Server([{"text": FULL, "step_tokens": n} for n in steps])
        self.addCleanup(server.stop)
        for step in steps:
            events = named_events(server, "/v1/responses", ask(tools=[WEATHER]))
            reasoning, message, call = check_events(events)
            self.assertEqual(events[-1][0], "response.completed")
            self.assertEqual(reasoning["content"], [{"type": "reasoning_text", "text": "Look."}], step)
            self.assertEqual(message["content"][0]["text"], "I call it.", step)
            self.assertEqual(message["phase"], "commentary")
            self.assertEqual((call["name"], json.loads(call["arguments"])), ("weather", CALL), step)
            self.assertNotIn(DSML, json.dumps(events, ensure_ascii=False))


class Plain(ApiTest):
    script = [{"text": "Hello there."}]

    def test_a_message_alone_is_the_final_answer(self):
        events = named_events(self.server, "/v1/responses", ask(reasoning={"effort": "none"}))
        message, = check_events(events)
        self.assertEqual((message["phase"], message["content"][0]["text"]), ("final_answer", "Hello there."))

    def test_nothing_is_stored(self):
        for method in ("GET", "DELETE"):
            status, _, text = self.server.request(method, "/v1/responses/resp_1")
            self.assertEqual(status, 404)
            self.assertIn("stores no responses", json.loads(text)["error"]["message"])
        self.assertEqual(self.server.request("POST", "/v1/responses/resp_1/cancel", "{}")[0], 404)
        self.assertEqual(self.server.request("GET", "/v1/responses/resp_1/input_items")[0], 404)
        for name, value in (("previous_response_id", "resp_1"), ("conversation", "c"), ("background", True),
                            ("prompt", {"id": "p"})):
            error = self.error("/v1/responses", ask(**{name: value}))
            self.assertEqual(error["param"], name)
        self.assertFalse(self.server.post("/v1/responses", ask(store=True, background=False))["store"])

    def test_errors_name_their_field(self):
        self.assertEqual(self.error("/v1/responses", ask(input=[]))["param"], "input")
        self.assertEqual(self.error("/v1/responses", ask(input=[{"role": "user"}]))["param"], "input[0].content")
        self.assertEqual(self.error("/v1/responses", ask(temperature=3))["param"], "temperature")
        self.assertEqual(self.error("/v1/responses", {"input": "a"})["param"], "model")
        orphan = [{"type": "function_call_output", "call_id": "c", "output": "x"}]
        self.assertIn("No tool call found", self.error("/v1/responses", ask(input=orphan))["message"])

    def test_items_of_an_answer_can_be_sent_back(self):
        first = self.server.post("/v1/responses", ask())
        turns = [{"role": "user", "content": "hello"}, *first["output"], {"role": "user", "content": "more"}]
        self.assertEqual(self.server.post("/v1/responses", ask(input=turns))["status"], "completed")


class Namespaces(ApiTest):
    script = [{"text": tool_block("files::read", [("path", True, "a.txt")]).replace(
        f"</{DSML} calls>", f'<{DSML} invoke name="plain">\n</{DSML} invoke>\n</{DSML} calls>')}]
    tools = [{"type": "namespace", "name": "files", "description": "Files.", "tools": [
        {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}]},
        {"type": "function", "name": "plain", "parameters": {"type": "object", "properties": {}}}]

    def test_are_split_again(self):
        fields = ask(tools=self.tools, reasoning={"effort": "none"})
        for items in (self.server.post("/v1/responses", fields)["output"],
                      check_events(named_events(self.server, "/v1/responses", fields))):
            read, plain = items
            self.assertEqual((read["name"], read["namespace"]), ("read", "files"))
            self.assertEqual(json.loads(read["arguments"]), {"path": "a.txt"})
            self.assertEqual(plain["name"], "plain")
            self.assertNotIn("namespace", plain)
            self.assertEqual(plain["arguments"], "{}")
            result = {"type": "function_call_output", "call_id": read["call_id"], "output": "text"}
            self.server.post("/v1/responses", ask(tools=self.tools, input=[{"role": "user", "content": "x"}, read, result]))


class CustomTool(unittest.TestCase):
    patch = '*** Begin Patch\n*** Add File: "a\\b".txt\n+é 😀\t<tag>\n*** End Patch\n'

    def test_apply_patch_takes_text_at_every_cut(self):
        steps = list(range(1, 30)) + [1000]
        server = Server([{"text": tool_block("apply_patch", [("input", True, self.patch)]), "step_tokens": n}
                         for n in steps])
        self.addCleanup(server.stop)
        fields = ask(tools=[{"type": "custom", "name": "apply_patch"}], reasoning={"effort": "none"})
        for step in steps:
            events = named_events(server, "/v1/responses", fields)
            call, = check_events(events)
            self.assertEqual((call["type"], call["name"], call["input"]), ("custom_tool_call", "apply_patch", self.patch), step)
            self.assertTrue(call["id"].startswith("ctc_"))
        whole = server.post("/v1/responses", fields)["output"][0]
        self.assertEqual(whole["input"], self.patch)
        result = {"type": "custom_tool_call_output", "call_id": whole["call_id"], "output": "done"}
        turns = [{"role": "user", "content": "x"}, whole, result]
        self.assertEqual(server.post("/v1/responses", ask(tools=fields["tools"], input=turns))["status"], "completed")

    def test_the_text_comes_while_it_is_generated(self):
        server = Server([{"text": tool_block("apply_patch", [("input", True, self.patch)]), "pause_ms": 5}])
        self.addCleanup(server.stop)
        events = named_events(server, "/v1/responses", ask(tools=[{"type": "custom", "name": "apply_patch"}],
                                                           reasoning={"effort": "none"}))
        deltas = [e["delta"] for name, e in events if name == "response.custom_tool_call_input.delta"]
        self.assertGreater(len(deltas), 3)
        self.assertEqual("".join(deltas), self.patch)


class Failure(ApiTest):
    script = [{"text": "Some words", "error": "the kernel failed"}]

    def test_is_an_event_with_the_response(self):
        self.assertIn("the kernel failed", self.error("/v1/responses", ask(), 500)["message"])
        events = named_events(self.server, "/v1/responses", ask())
        name, event = events[-1]
        self.assertEqual(name, "response.failed")
        self.assertEqual(event["sequence_number"], len(events) - 1)
        response = event["response"]
        self.assertEqual((response["status"], response["error"]["code"]), ("failed", "server_error"))
        self.assertIn("the kernel failed", response["error"]["message"])
        self.assertEqual(response["output"][0]["content"][0]["text"], "Some words")


if __name__ == "__main__":
    unittest.main()
