# SPDX-License-Identifier: Apache-2.0
"""Bodies mutated from valid ones: never a 5xx, never silence, and the memory is back afterwards.
RORQUAL_FUZZ_SEED and RORQUAL_FUZZ_BODIES choose other bodies and another number of them."""

import http.client
import json
import os
import random
import unittest

from body_mutations import Mutator
from harness import TIMEOUT_S, ApiTest, Program, tool_block

MAX_BODY_BYTES = 48 << 20  # docs/limits.md
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather.", "strict": True, "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": ["integer", "null"]},
                                     "unit": {"enum": ["c", "f"], "type": "string"}, "at": {"$ref": "#/$defs/at"}},
    "$defs": {"at": {"type": "array", "items": {"type": "number"}}}, "required": ["place", "days", "unit", "at"],
    "additionalProperties": False}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Oslo", "days": 2}'}}
CHATS = [
    {"model": "rorqual-mini", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}],
     "max_tokens": 40, "temperature": 0.7, "top_p": 0.9, "seed": 5, "stop": ["x", "y"], "stream": True,
     "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 3},
    {"model": "rorqual-mini", "thinking": {"type": "enabled"}, "reasoning_effort": "high", "tools": [WEATHER],
     "tool_choice": "auto", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                                         {"role": "assistant", "reasoning_content": "r", "content": "c", "tool_calls": [CALL]},
                                         {"role": "tool", "tool_call_id": "c1", "content": "rain"}]},
    {"model": "rorqual-mini", "messages": [{"role": "user", "content": "json, please"}], "n": 2,
     "thinking": {"type": "disabled"}, "response_format": {"type": "json_object"}, "logit_bias": {"5": -100, "6": 1},
     "presence_penalty": 1, "frequency_penalty": -1, "stop_token_ids": [7], "bad_words": ["no"]},
    {"model": "rorqual-mini", "thinking": {"type": "disabled"}, "messages": [
        {"role": "user", "content": "go"}, {"role": "assistant", "content": "on", "prefix": True}], "max_tokens": 9,
     "min_tokens": 3, "return_token_ids": True, "cache_salt": "s", "priority": 3},
    {"model": "rorqual-mini", "messages": [{"role": "user", "content": "schema"}], "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
            "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}}}}]
COMPLETIONS = [
    {"model": "rorqual-mini", "prompt": "one", "max_tokens": 9, "logprobs": 3, "echo": True, "stop": "x"},
    {"model": "rorqual-mini", "prompt": ["a", "b"], "n": 2, "stream": True, "stream_options": {"include_usage": True}},
    {"model": "rorqual-mini", "prompt": [[5, 6, 7], [8]], "prompt_logprobs": 2, "max_tokens": 1},
    {"model": "rorqual-mini", "prompt": "def f(", "suffix": "return x", "min_p": 0.1, "top_k": 5, "ignore_eos": True}]
TOKENIZE = [{"prompt": "some text 日本 😀", "return_token_strs": True},
            {"messages": CHATS[1]["messages"], "tools": [WEATHER], "add_generation_prompt": False}]
MESSAGES = [{"model": "rorqual-mini", "max_tokens": 50, "system": [{"type": "text", "text": "s"}], "stream": True,
             "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]},
                          {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather",
                                                             "input": {"place": "Oslo"}}]},
                          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"}]}],
             "tools": [{"name": "weather", "description": "w", "input_schema": {"type": "object", "properties": {}}}],
             "tool_choice": {"type": "auto"}, "thinking": {"type": "enabled", "budget_tokens": 1024}, "top_k": 4,
             "stop_sequences": ["x"], "metadata": {"user_id": "u"}}]
RESPONSES = [{"model": "rorqual-mini", "instructions": "i", "max_output_tokens": 50, "store": False, "stream": True,
              "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
                        {"type": "function_call_output", "call_id": "c1", "output": "rain"}],
              "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}],
              "reasoning": {"effort": "high"}, "text": {"format": {"type": "text"}}, "temperature": 1},
             {"model": "rorqual-mini", "input": "hello"}]
ROUTES = {"/v1/chat/completions": CHATS, "/v1/completions": COMPLETIONS, "/tokenize": TOKENIZE,
          "/detokenize": [{"tokens": [5, 6, 7, 300]}], "/v1/messages": MESSAGES, "/v1/messages/count_tokens": MESSAGES,
          "/v1/responses": RESPONSES}


class BodyFuzz:
    """What both servers below must do; `port`, `pid`, `count` and `seed` are theirs."""

    def resident_bytes(self):
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def send(self, path, data):
        """The status; a connection that is kept is used again, as clients do."""
        for attempt in range(2):
            try:
                self.connection.request("POST", path, data, {"Content-Type": "application/json"})
                response = self.connection.getresponse()
                text = response.read()
                break
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self.connection.close()
                if attempt == 1:
                    if len(data) > MAX_BODY_BYTES:
                        return 413  # said and closed while the rest was still being sent
                    raise
        if response.status != 200:  # every refusal has its reason in the form of its protocol
            error = json.loads(text)["error"]
            self.assertTrue(error["message"], data[:500])
        elif text.startswith(b"data: "):
            self.assertNotIn(b'"server_error"', text)
        return response.status

    def served_routes(self):
        served = {}
        for path, bodies in ROUTES.items():
            statuses = [self.send(path, json.dumps(body).encode()) for body in bodies]
            if 501 in statuses or 404 in statuses:
                print(f"{path} is not tried: it answers {statuses}")
                continue
            self.assertEqual(set(statuses), {200}, path)  # else the mutations would start from nothing
            served[path] = bodies
        return served

    def round(self, served, seed, count):
        """Sends the bodies of a seed; {status: count}."""
        source = random.Random(seed)
        mutator = Mutator(source)
        statuses = {}
        names = list(served)
        for i in range(count):
            path = names[i % len(names)] if i % 2 else "/v1/chat/completions"
            data = mutator.body(source.choice(served[path]))
            try:
                status = self.send(path, data)
            except OSError as error:  # a time-out is one
                self.fail(f"body {i} of seed {seed} to {path}: {error!r}: {data[:1000]!r}")
            self.assertLess(status, 500, f"body {i} of seed {seed} to {path}: {data[:1000]!r}")
            statuses[status] = statuses.get(status, 0) + 1
        return statuses

    def try_bodies(self, count):
        seed = int(os.environ.get("RORQUAL_FUZZ_SEED") or random.SystemRandom().randrange(2**32))
        count = int(os.environ.get("RORQUAL_FUZZ_BODIES") or count)
        print(f"RORQUAL_FUZZ_SEED={seed} RORQUAL_FUZZ_BODIES={count}")
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        self.addCleanup(lambda: self.connection.close())
        served = self.served_routes()
        statuses = self.round(served, seed, count)
        print(f"statuses {statuses}")
        self.assertGreater(statuses.get(200, 0), count // 20)  # some still reach the engine,
        self.assertGreater(statuses.get(400, 0), count // 10)  # and some do not
        first = self.resident_bytes()
        # The same again: what was freed is used again. Heaps fill up over a few rounds; a leak grows in each.
        sizes = [first]
        while len(sizes) < 2 or sizes[-1] > sizes[-2] + (4 << 20):
            self.assertLess(len(sizes), 8, sizes)
            self.round(served, seed, count)
            sizes.append(self.resident_bytes())


class Scripted(BodyFuzz, ApiTest):
    script = [{"text": "Thought.</think>Hello there."}, {"text": '{"a": "b"}'},
              {"text": "x</think>" + tool_block("weather", [("place", True, "Oslo"), ("days", False, "2")])}]
    options = {"max_model_len": 2048}

    def test_mutated_bodies_get_an_answer_and_leave_nothing(self):
        self.port, self.pid = self.server.port, self.server.process.pid
        self.try_bodies(500)
        self.assertTrue(self.server.is_alive())
        self.assertTrue(self.server.wait_metric("rorqual:num_requests_running", 0))
        self.assertIsNone(self.server.process.poll())
        self.assertNotIn("exception", self.server.log_text())


class WithModel(BodyFuzz, unittest.TestCase):
    """The program with its model: sampling fields reach a sampler."""

    def test_mutated_bodies_get_an_answer_and_leave_nothing(self):
        program = Program("--served-model-name", "rorqual-mini", "--max-model-len", "1024")
        self.addCleanup(program.stop)
        self.port, self.pid = program.port, program.process.pid
        self.try_bodies(200)
        self.assertIsNone(program.process.poll())
        self.assertEqual(program.stop(), 0)
        self.assertNotIn("exception", "".join(program.lines))


if __name__ == "__main__":
    unittest.main()
