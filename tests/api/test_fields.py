# SPDX-License-Identifier: Apache-2.0
"""Fields of chat and completions: what they do, what is refused, and that errors name the field."""

import json
import re
import unittest

from harness import ApiTest, Server, THINK_END, tool_block

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}}}}}


def text_of(events, field="content"):
    return "".join(c["delta"].get(field) or "" for e in events for c in e["choices"])


class Fields(ApiTest):
    script = [{"text": "alpha beta gamma delta"}]

    def complete(self, **fields):
        return {"model": "rorqual-mini", "prompt": "one", **fields}

    def test_refused_fields_are_those_of_the_page(self):
        with open("../../docs/api.md", encoding="utf-8") as file:
            section = re.search(r"Refused \(400\).*?\n\n(.*?)\n\n", file.read(), re.S)[1]
        names = [n for row in section.splitlines()[2:] for n in re.findall(r"`(\w+)`", row.split("|")[1])]
        self.assertGreaterEqual(len(names), 9)
        for name in names:
            for path, body in ((CHAT, self.server.chat()), (COMPLETIONS, self.complete())):
                for value in (True, 2, "x", ["x"], {"a": 1}):
                    error = self.error(path, {**body, name: value})
                    self.assertEqual(error["param"], name)
                    self.assertIn("not supported", error["message"])
                for value in (None, False, [], {}, ""):
                    if name != "best_of" or value is None:
                        self.server.post(path, {**body, name: value})
        self.server.post(COMPLETIONS, self.complete(best_of=1))

    def test_fields_without_effect_are_those_of_the_page(self):
        with open("../../docs/api.md", encoding="utf-8") as file:
            page = file.read()
        checked = re.findall(r"`(\w+)`", re.search(r"Checked for their type, without effect:(.*?)Ignored", page, re.S)[1])
        ignored = re.findall(r"`(\w+)`", re.search(r"Ignored, as by the official\nservice:(.*?)\n\n", page, re.S)[1])
        self.assertGreaterEqual(len(checked), 9)
        plain = self.server.post(CHAT, self.server.chat())["choices"]
        good = {"length_penalty": 0.5, "session_id": "s", **{n: {} for n in checked if n.endswith(("args", "params"))}}
        for name in checked:
            self.assertEqual(self.server.post(CHAT, self.server.chat(**{name: good.get(name, True)}))["choices"], plain)
            self.assertEqual(self.error(CHAT, self.server.chat(**{name: [5]}))["param"], name)
        for name in ignored:
            if name != "skip_special_tokens":
                self.assertEqual(self.server.post(CHAT, self.server.chat(**{name: [5]}))["choices"], plain)

    def test_every_field_of_the_page_is_checked(self):
        with open("../../docs/api.md", encoding="utf-8") as file:
            table = re.search(r"\| field \| what \|\n\|---\|---\|\n(.*?)\n\n", file.read(), re.S)[1]
        wrong = {"stop": [1], "logprobs": [], "stream_options": 5}
        seen = 0
        for row in table.splitlines():
            cell = row.split("|")[1]
            for name in re.findall(r"`(\w+)`", cell):
                if name in ("reasoning_content", "prefix"):
                    continue
                is_chat = not cell.rstrip().endswith(" T")
                path, body = (CHAT, self.server.chat()) if is_chat else (COMPLETIONS, self.complete())
                value = wrong.get(name, {"x": [[]]})
                if name == "structured_outputs":
                    value = {}
                if name in ("thinking", "chat_template_kwargs", "response_format", "repetition_detection", "logit_bias"):
                    value = "x"
                error = self.error(path, {**body, name: value})
                self.assertIn(name, error["param"] or "", (path, name, error))
                seen += 1
        self.assertGreater(seen, 45)

    def test_errors_name_the_field_with_its_path(self):
        user = {"role": "user", "content": "a"}
        cases = [
            ({"messages": [user, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "video"}]}]},
             "messages[1].content[1].type"),
            ({"messages": [user, {"role": "nobody", "content": "a"}]}, "messages[1].role"),
            ({"messages": [{"role": "tool", "content": "a", "tool_call_id": "x"}]}, "messages[0]"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "assistant", "content": None}]}, "messages[0]"),
            ({"messages": [user, {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": {}}]}]},
             "messages[1].tool_calls[0].function.name"),
            ({"tools": [WEATHER, {"type": "function", "function": {"name": "a b"}}]}, "tools[1].function.name"),
            ({"tools": [WEATHER, WEATHER]}, "tools"),
            ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
            ({"tool_choice": "perhaps"}, "tool_choice"),
            ({"response_format": {"type": "xml"}}, "response_format.type"),
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
            ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
            ({"stream_options": {}}, "stream_options"),
            ({"temperature": 3}, "temperature"), ({"top_p": 0}, "top_p"), ({"n": 99}, "n"), ({"seed": -1}, "seed"),
            ({"stop": ["a", ""]}, "stop"), ({"stop": ["a"] * 17}, "stop"), ({"logit_bias": {"x": 1}}, "logit_bias"),
            ({"logit_bias": {"1": 101}}, "logit_bias"), ({"top_logprobs": 3}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"prompt_logprobs": 21}, "prompt_logprobs"),
            ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 20000}, "max_tokens"),
            ({"stop_token_ids": [10 ** 6]}, "stop_token_ids"), ({"allowed_token_ids": [10 ** 6]}, "allowed_token_ids"),
            ({"logit_bias": {"1000000": 1}}, "logit_bias"), ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
            ({"chat_template_kwargs": {"thinking": 1}}, "chat_template_kwargs.thinking"),
            ({"thinking": {"type": "maybe"}}, "thinking.type"), ({"logprob_token_ids": [5]}, "logprob_token_ids"),
            ({"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3}}, "repetition_detection.min_pattern_size"),
            ({"repetition_detection": {"max_pattern_size": 2, "min_count": 1}}, "repetition_detection.min_count"),
            ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"), ({"truncation_side": "top"}, "truncation_side"),
            ({"stream_interval": 0}, "stream_interval"), ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ]
        self.assertEqual(self.error(CHAT, self.server.chat(model="x"), 404)["param"], "model")
        for fields, param in cases:
            with self.subTest(param):
                self.assertEqual(self.error(CHAT, {**self.server.chat(), **fields})["param"], param)
        for fields, param in (({"prompt": []}, "prompt"), ({"logprobs": 21}, "logprobs"), ({"n": 9999}, "n"),
                              ({"prompt": [10 ** 6]}, "prompt"), ({"max_tokens": 0}, "max_tokens"),
                              ({"suffix": "a", "echo": True}, "echo"), ({"thinking_token_budget": 3}, "thinking_token_budget")):
            with self.subTest(param):
                self.assertEqual(self.error(COMPLETIONS, {**self.complete(), **fields})["param"], param)

    def test_malformed_bodies_have_the_official_beginning(self):
        for body in ("", "{", "[]", "null", '{"a":1}x', '{"model": 5}', "\ufeff{}", '{"messages": 3, "input": 3, "prompt": {}, "model": "rorqual-mini"}'):
            for path in (CHAT, COMPLETIONS, "/v1/responses", "/tokenize"):
                status, _, text = self.server.request("POST", path, body)
                self.assertEqual(status, 400)
                error = json.loads(text)["error"]
                self.assertTrue(error["message"].startswith(
                    "Failed to deserialize the JSON body into the target type: "), error)
                self.assertEqual((error["type"], error["code"]), ("invalid_request_error", "invalid_request_error"))

    def test_prompt_text_and_ids(self):
        fields = {"return_prompt_text": True, "return_token_ids": True}
        whole = self.server.post(CHAT, self.server.chat(**fields))
        self.assertTrue(whole["prompt_text"].endswith("hello<｜Assistant｜></think>"))
        self.assertEqual(self.server.post("/detokenize", {"tokens": whole["prompt_token_ids"]})["prompt"], whole["prompt_text"])
        events = self.server.events(CHAT, self.server.chat(**fields))
        self.assertEqual([e.get("prompt_text") for e in events], [whole["prompt_text"]] + [None] * (len(events) - 1))
        choice = self.server.post(COMPLETIONS, self.complete(**fields))["choices"][0]
        self.assertEqual(choice["prompt_text"], "one")
        events = self.server.events(COMPLETIONS, self.complete(**fields))
        self.assertEqual([c.get("prompt_text") for e in events for c in e["choices"]][0], "one")
        ids = [i for e in events for c in e["choices"] for i in c["token_ids"]]
        self.assertEqual(ids, choice["token_ids"])

    def test_tokens_as_ids(self):
        fields = {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
        whole = self.server.post(CHAT, self.server.chat(**fields, return_token_ids=True))["choices"][0]
        labels = [t["token"] for t in whole["logprobs"]["content"]]
        self.assertEqual(labels, [f"token_id:{i}" for i in whole["token_ids"]])

    def test_truncates_the_prompt_on_either_side(self):
        prompt = list(range(300, 320))
        for fields, kept in (({"truncate_prompt_tokens": 5}, prompt[-5:]),
                             ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, prompt[-5:]),
                             ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, prompt[:5]),
                             ({"truncate_prompt_tokens": 100}, prompt), ({"truncate_prompt_tokens": -1}, prompt)):
            body = self.complete(prompt=prompt, return_token_ids=True, **fields)
            self.assertEqual(self.server.post(COMPLETIONS, body)["choices"][0]["prompt_token_ids"], kept)
        long = self.complete(prompt=[7] * 20000, max_tokens=100)
        self.error(COMPLETIONS, long)
        usage = self.server.post(COMPLETIONS, {**long, "truncate_prompt_tokens": -1})["usage"]
        self.assertEqual(usage["prompt_tokens"], 16384 - 100)
        messages = [{"role": "user", "content": "word " * 30000}]
        chat = self.server.chat(messages=messages, truncate_prompt_tokens=-1, max_tokens=50, return_token_ids=True)
        answer = self.server.post(CHAT, chat)
        self.assertEqual(answer["usage"]["prompt_tokens"], 16384 - 50)
        self.assertEqual(len(answer["prompt_token_ids"]), 16384 - 50)

    def test_echo_repeats_the_message_that_is_continued(self):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Well, "}]
        for more in ({"messages": [messages[0], {**messages[1], "prefix": True}]},
                     {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}):
            plain, echoed = self.server.chat(**more), self.server.chat(**more, echo=True)
            self.assertEqual(self.server.post(CHAT, plain)["choices"][0]["message"]["content"], self.script[0]["text"])
            self.assertEqual(self.server.post(CHAT, echoed)["choices"][0]["message"]["content"],
                             "Well, " + self.script[0]["text"])
            self.assertEqual(text_of(self.server.events(CHAT, echoed)), "Well, " + self.script[0]["text"])
        both = self.server.chat(messages=messages, continue_final_message=True, add_generation_prompt=True)
        self.assertIn("Cannot set both", self.error(CHAT, both)["message"])
        self.assertEqual(self.error(CHAT, self.server.chat(continue_final_message=True))["param"], "continue_final_message")
        echoed = self.server.post(CHAT, self.server.chat(echo=True))["choices"][0]["message"]["content"]
        self.assertEqual(echoed, self.script[0]["text"], "nothing is continued")

    def test_thinking_by_any_of_its_names(self):
        off = self.server.post(CHAT, self.server.chat())["usage"]["prompt_tokens"]
        on = self.server.post(CHAT, self.server.chat(thinking={"type": "enabled"}))["usage"]["prompt_tokens"]
        self.assertNotEqual(on, off)
        for fields in ({"chat_template_kwargs": {"thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}},
                       {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}},
                       {"chat_template_kwargs": {"reasoning_effort": "none"}}):
            body = {**self.server.chat(), **fields}
            if "thinking" not in fields:
                del body["thinking"]
            self.assertEqual(self.server.post(CHAT, body)["usage"]["prompt_tokens"], off, fields)

    def test_images_are_refused_with_the_reason(self):
        def ask(url):
            return self.server.chat(messages=[{"role": "user", "content": [
                {"type": "text", "text": "what"}, {"type": "image_url", "image_url": {"url": url}}]}])
        error = self.error(CHAT, ask("data:image/png;base64,aGk="))
        self.assertIn("not supported by this server yet", error["message"])
        for url in ("http://127.0.0.1/a.png", "https://example.com/a.png"):
            self.assertIn("remote fetch is off", self.error(CHAT, ask(url))["message"])
        for url in ("file:///etc/passwd", "ftp://a/b", "a.png", "data:text/html,x"):
            self.assertIn("Unsupported image_url format", self.error(CHAT, ask(url))["message"])

    def test_logprobs_of_given_ids_come_instead_of_the_best(self):
        chat = self.server.chat(logprobs=True, top_logprobs=3, logprob_token_ids=[5, 9])
        self.assertEqual(self.server.post(CHAT, chat)["choices"][0]["finish_reason"], "stop")

    def test_stop_reason_and_included_stops(self):
        for stop, included in (("gamma", "alpha beta gamma"), (["x", "beta"], "alpha beta")):
            body = self.server.post(CHAT, self.server.chat(stop=stop, include_stop_str_in_output=True))
            self.assertEqual(body["choices"][0]["message"]["content"], included)
            choice = self.server.post(COMPLETIONS, self.complete(stop=stop, include_stop_str_in_output=True))["choices"][0]
            self.assertEqual(choice["text"], included)

    def test_request_ids_are_the_answers(self):
        self.assertEqual(self.server.post(CHAT, self.server.chat(request_id="r1"))["id"], "chatcmpl-r1")
        self.assertEqual(self.server.post(COMPLETIONS, self.complete(request_id="r2"))["id"], "cmpl-r2")


class Repetition(ApiTest):
    script = [{"text": "say " + "ab cd " * 40 + "end"}]

    def test_ends_the_answer_with_its_own_reason(self):
        limit = {"repetition_detection": {"max_pattern_size": 8, "min_pattern_size": 2, "min_count": 4}}
        free = self.server.post(CHAT, self.server.chat())["usage"]["completion_tokens"]
        whole = self.server.post(CHAT, self.server.chat(**limit))
        self.assertEqual(whole["choices"][0]["finish_reason"], "repetition")
        self.assertEqual(whole["choices"][0]["stop_reason"], "repetition_detected")
        self.assertLess(whole["usage"]["completion_tokens"], free // 3)
        events = self.server.events(CHAT, self.server.chat(**limit))
        self.assertEqual(text_of(events), whole["choices"][0]["message"]["content"])
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "repetition")
        body = {"model": "rorqual-mini", "prompt": "a", "max_tokens": 500, **limit}
        choice = self.server.post(COMPLETIONS, body)["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("repetition", "repetition_detected"))
        rare = {"repetition_detection": {"max_pattern_size": 8, "min_count": 1000}}
        self.assertEqual(self.server.post(CHAT, self.server.chat(**rare))["choices"][0]["finish_reason"], "stop")
        off = {"repetition_detection": {"max_pattern_size": 0}}
        self.assertEqual(self.server.post(CHAT, self.server.chat(**off))["choices"][0]["finish_reason"], "stop")


class StreamInterval(ApiTest):
    script = [{"text": "one two three four five six seven eight nine ten", "pause_ms": 4}]

    def pieces(self, path, **fields):
        body = self.server.chat() if path == CHAT else {"model": "rorqual-mini", "prompt": "a"}
        events = self.server.events(path, {**body, **fields})
        key = (lambda c: c["delta"].get("content")) if path == CHAT else (lambda c: c["text"])
        return [key(c) for e in events for c in e["choices"] if key(c)]

    def test_pieces_wait_for_so_many_tokens(self):
        for path in (CHAT, COMPLETIONS):
            every = self.pieces(path)
            some = self.pieces(path, stream_interval=5)
            self.assertEqual("".join(every), "".join(some))
            self.assertEqual("".join(some), self.script[0]["text"])
            self.assertLess(len(some), len(every))
            self.assertLessEqual(len(self.pieces(path, stream_interval=1000)), 2)

    def test_the_server_can_set_the_least(self):
        server = Server(self.script, stream_interval=1000)
        self.addCleanup(server.stop)
        self.server = server
        self.assertLessEqual(len(self.pieces(CHAT, stream_interval=1)), 2)


class EveryCut(unittest.TestCase):
    def test_chat_is_the_same_for_every_number_of_tokens_per_step(self):
        text = "Look." + THINK_END + "I call it." + tool_block("weather", [("place", True, "Oslo")])
        steps = list(range(1, 40)) + [1000]
        server = Server([{"text": text, "step_tokens": n} for n in steps])
        self.addCleanup(server.stop)
        for step in steps:
            events = server.events(CHAT, server.chat(thinking={"type": "enabled"}, tools=[WEATHER], logprobs=True))
            self.assertEqual((text_of(events, "reasoning_content"), text_of(events)), ("Look.", "I call it."), step)
            calls = [c for e in events for c in e["choices"][0]["delta"].get("tool_calls", [])]
            self.assertEqual("".join(c["function"].get("name", "") for c in calls), "weather", step)
            self.assertEqual(json.loads("".join(c["function"]["arguments"] for c in calls)), {"place": "Oslo"}, step)
            self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")
            labels = {name: "".join(t["token"] for e in events for c in e["choices"] if c["logprobs"]
                                    for t in c["logprobs"][name] or []) for name in ("content", "reasoning_content")}
            self.assertEqual(labels["reasoning_content"], "Look.", step)
            self.assertTrue(labels["content"].startswith("I call it."), step)


if __name__ == "__main__":
    unittest.main()
