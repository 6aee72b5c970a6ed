# SPDX-License-Identifier: Apache-2.0
"""Constrained output of `rorqual serve` with the model inside it: calls and JSON that satisfy their schemas.

RORQUAL_ANSWERS sets how many complete answers of each kind are asked for (200: the acceptance of the issue; fewer by
default). Standard library only; the validator below knows the keywords that the schemas here use."""

import concurrent.futures
import http.client
import json
import os
import re
import signal
import subprocess
import unittest

ANSWERS = int(os.environ.get("RORQUAL_ANSWERS", "24"))
DEADLINE_S = 300
STREAMS = 8
THINKING = {"type": "enabled"}
CHAT = {"type": "disabled"}

PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
    "size": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5}, "kind": {"enum": ["a", "b", None]},
    "place": {"$ref": "#/$defs/place"}}, "required": ["name", "age", "tags", "place"], "additionalProperties": False,
    "$defs": {"place": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {
        "x": {"type": "integer", "minimum": -9, "maximum": 9}, "code": {"type": "string", "pattern": "^[A-Z]{2}$"}},
        "required": ["x", "code"], "additionalProperties": False}]}}}
TOOLS = [{"type": "function", "function": {"name": name, "description": name, "parameters": parameters}} for name, parameters in (
    ("set_light", {"type": "object", "properties": {
        "room": {"type": "string", "maxLength": 10}, "level": {"type": "integer", "minimum": 0, "maximum": 100},
        "colour": {"type": ["string", "null"], "enum": ["red", "blue", None]}}, "required": ["room", "level"],
        "additionalProperties": False}),
    ("find", {"type": "object", "properties": {"ids": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 99},
                                               "minItems": 1, "maxItems": 3}}, "required": ["ids"],
              "additionalProperties": False}))]


def resolve(root, schema):
    while "$ref" in schema:
        node = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            node = node[key]
        schema = node
    return schema


TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def has_type(value, name):
    if name in ("integer", "number"):
        return isinstance(value, int if name == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def problem(root, schema, value, path="$"):
    """What is wrong with `value`, or None."""
    schema = resolve(root, schema)
    if "anyOf" in schema:
        return None if any(problem(root, s, value, path) is None for s in schema["anyOf"]) else f"{path}: no option fits"
    if "enum" in schema and value not in schema["enum"]:
        return f"{path}: {value!r} is not in the list"
    names = schema.get("type", list(TYPES) + ["number"])
    if not any(has_type(value, name) for name in ([names] if isinstance(names, str) else names)):
        return f"{path}: {value!r} has the wrong type"
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            return f"{path}: {value!r} has the wrong length"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            return f"{path}: {value!r} does not match"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value) or value <= schema.get("exclusiveMinimum", value - 1):
            return f"{path}: {value!r} is out of range"
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return f"{path}: {len(value)} items"
        return next(filter(None, (problem(root, schema.get("items", {}), v, f"{path}[{i}]") for i, v in enumerate(value))), None)
    elif isinstance(value, dict):
        missing = set(schema.get("required", [])) - set(value)
        unknown = set(value) - set(schema.get("properties", {})) if schema.get("additionalProperties") is False else set()
        if missing or unknown:
            return f"{path}: missing {missing}, unknown {unknown}"
        return next(filter(None, (problem(root, schema.get("properties", {}).get(k, {}), v, f"{path}.{k}") for k, v in value.items())), None)
    return None


def unique(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key twice: {keys}"
    return dict(pairs)


class Program:
    """`rorqual serve` with options."""

    def __init__(self, *options):
        environment = {k: v for k, v in os.environ.items() if k == "RORQUAL" or not k.startswith("RORQUAL_")}
        self.process = subprocess.Popen(
            [environment["RORQUAL"], "serve", "--port", "0", "--served-model-name", "m", "--seed", "1", "--max-num-seqs", "16",
             *options], stderr=subprocess.PIPE, text=True, env=environment)
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            ready = re.search(r"ready +http://127.0.0.1:(\d+)", line)
            if ready:
                self.port = int(ready.group(1))
                break
        else:
            raise RuntimeError("".join(lines))
        # Nobody reads on: what is logged later must not fill the pipe.
        self.drain = concurrent.futures.ThreadPoolExecutor(1)
        self.drain.submit(lambda: [None for _ in self.process.stderr])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE_S)
        self.drain.shutdown()
        self.process.stderr.close()

    def send(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def ask(self, path, body, status=200):
        connection = self.send(path, body)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        assert response.status == status, f"status {response.status}, expected {status}: {text[:800]}"
        return json.loads(text)

    def chat(self, status=200, **fields):
        body = {"model": "m", "messages": [{"role": "user", "content": "Describe a person as json, please."}], "thinking": CHAT,
                "temperature": 1, "max_tokens": 300, "return_token_ids": True, **fields}
        return self.ask("/v1/chat/completions", body, status)

    def complete(self, status=200, **fields):
        body = {"model": "m", "prompt": "Here: ", "temperature": 1, "max_tokens": 64, "seed": 1, **fields}
        return self.ask("/v1/completions", body, status)


class ConstraintTest(unittest.TestCase):
    options = ()

    @classmethod
    def setUpClass(cls):
        cls.program = Program(*cls.options)

    @classmethod
    def tearDownClass(cls):
        cls.program.stop()


def json_format(schema, **fields):
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, **fields}}


class Answers(ConstraintTest):
    def complete_answers(self, bodies):
        """ANSWERS answers that were not cut by length, of the bodies in turn with ever new seeds."""
        found, cut, seed = [], 0, 0
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            while len(found) < ANSWERS:
                batch = [dict(bodies[i % len(bodies)], seed=i) for i in range(seed, seed + 2 * STREAMS)]
                seed += len(batch)
                for answer in pool.map(lambda body: self.program.chat(**body), batch):
                    if answer["choices"][0]["finish_reason"] == "length":
                        cut += 1
                    else:
                        found.append(answer)
                self.assertLess(cut, 20 * ANSWERS + 200, "hardly any answer ends")
        print(f"{len(found)} complete answers, {cut} cut by length", flush=True)
        return found

    def check_calls(self, answers, names):
        parameters = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}
        for answer in answers:
            choice = answer["choices"][0]
            self.assertEqual(choice["finish_reason"], "tool_calls", answer)
            self.assertTrue(choice["message"]["tool_calls"], answer)
            self.assertEqual(choice["message"]["content"], "")
            for call in choice["message"]["tool_calls"]:
                self.assertIn(call["function"]["name"], names)
                arguments = json.loads(call["function"]["arguments"], object_pairs_hook=unique)
                schema = parameters[call["function"]["name"]]
                self.assertIsNone(problem(schema, schema, arguments), call)

    def test_required_calls_are_valid(self):
        ask = {"tools": TOOLS, "tool_choice": "required", "messages": [{"role": "user", "content": "Make the kitchen bright."}]}
        self.check_calls(self.complete_answers([ask]), {"set_light", "find"})

    def test_required_calls_after_thinking_are_valid(self):
        ask = {"tools": TOOLS, "tool_choice": "required", "thinking": THINKING, "max_tokens": 600,
               "messages": [{"role": "user", "content": "What is 17 + 25?"}]}
        answers = self.complete_answers([ask])
        self.check_calls(answers, {"set_light", "find"})
        self.assertTrue(any(a["choices"][0]["message"]["reasoning_content"] for a in answers))

    def test_named_calls_are_of_that_name(self):
        ask = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "find"}}, "parallel_tool_calls": False}
        answers = self.complete_answers([ask, {**ask, "thinking": THINKING, "max_tokens": 600}])
        self.check_calls(answers, {"find"})
        for answer in answers:
            self.assertEqual(len(answer["choices"][0]["message"]["tool_calls"]), 1)

    def test_json_schemas_are_satisfied(self):
        ask = {"response_format": json_format(PERSON)}
        for answer in self.complete_answers([ask, {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}]):
            content = answer["choices"][0]["message"]["content"]
            value = json.loads(content, object_pairs_hook=unique)
            self.assertIsNone(problem(PERSON, PERSON, value), content)

    def test_json_after_thinking_is_in_the_content(self):
        ask = {"response_format": json_format(PERSON), "thinking": THINKING, "max_tokens": 800,
               "messages": [{"role": "user", "content": "What is 17 + 25? Answer as json."}]}
        for answer in self.complete_answers([ask])[:ANSWERS]:
            value = json.loads(answer["choices"][0]["message"]["content"])
            self.assertIsNone(problem(PERSON, PERSON, value))

    def test_strict_schemas_keep_their_definitions(self):
        strict = {"type": "object", "properties": {"p": {"$ref": "#/$defs/q"}}, "required": ["p"], "additionalProperties": False,
                  "$defs": {"q": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 5, "maximum": 7}}}}}
        answer = self.program.chat(response_format=json_format(strict, strict=True), temperature=0)
        self.assertIn(json.loads(answer["choices"][0]["message"]["content"])["p"]["n"], (5, 6, 7))
        tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": strict}}
        answer = self.program.chat(tools=[tool], tool_choice="required", parallel_tool_calls=False)
        call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
        self.assertIn(json.loads(call["arguments"])["p"]["n"], (5, 6, 7))


class Forms(ConstraintTest):
    def content(self, **fields):
        return self.program.chat(**fields)["choices"][0]["message"]["content"]

    def test_regex_choice_grammar_and_tags(self):
        for seed in range(4):
            self.assertRegex(self.content(structured_outputs={"regex": "[a-f]{3}-[0-9]{2}"}, seed=seed), r"\A[a-f]{3}-[0-9]{2}\Z")
            self.assertRegex(self.content(response_format={"type": "regex", "regex": "x[0-9]"}, seed=seed), r"\Ax[0-9]\Z")
            self.assertIn(self.content(structured_outputs={"choice": ["yes", "no", "maybe <b>"]}, seed=seed), ("yes", "no", "maybe <b>"))
            self.assertRegex(self.content(structured_outputs={"grammar": 'root ::= "a" b\nb ::= [0-9] [0-9]'}, seed=seed), r"\Aa[0-9]{2}\Z")
            tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<n>", "end": "</n>", "content": {
                "type": "json_schema", "json_schema": {"type": "integer", "minimum": 1, "maximum": 9}}}}
            self.assertRegex(self.content(structured_outputs={"structural_tag": tag}, seed=seed), r"\A<n>[1-9]</n>\Z")
            self.assertRegex(self.content(response_format=tag, seed=seed), r"\A<n>[1-9]</n>\Z")

    def test_completions_have_them_too(self):
        choice = self.program.complete(structured_outputs={"regex": "[ab]{4}"})["choices"][0]
        self.assertRegex(choice["text"], r"\A[ab]{4}\Z")
        self.assertEqual(choice["finish_reason"], "stop")
        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
        answer = self.program.complete(response_format=json_format(schema), n=2)
        for choice in answer["choices"]:
            self.assertIn(json.loads(choice["text"])["n"], (1, 2))

    def test_optional_calls_leave_the_answer_free(self):
        plain = self.program.chat(tools=TOOLS, tool_choice="auto", temperature=0)
        self.assertIn(plain["choices"][0]["finish_reason"], ("stop", "length", "tool_calls"))

    def test_a_stream_has_the_same_tokens(self):
        body = {"model": "m", "messages": [{"role": "user", "content": "json"}], "thinking": CHAT, "temperature": 1, "seed": 3,
                "response_format": json_format(PERSON), "max_tokens": 200}
        whole = self.program.chat(**{k: v for k, v in body.items() if k != "model"})["choices"][0]["message"]["content"]
        connection = self.program.send("/v1/chat/completions", {**body, "stream": True})
        events = connection.getresponse().read().decode().split("\n\n")
        connection.close()
        pieces = [json.loads(e[6:])["choices"][0]["delta"].get("content") or "" for e in events if e.startswith("data: {")]
        self.assertEqual("".join(pieces), whole)


class Exactness(ConstraintTest):
    options = ("--speculative-tokens", "5")
    CASES = (
        {"response_format": json_format(PERSON)},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": "required", "thinking": THINKING},
        {"structured_outputs": {"regex": "([a-z]+ ){1,9}end"}},
    )

    def ids(self, **fields):
        return self.program.chat(**fields)["choices"][0]["token_ids"]

    def test_drafts_change_no_token(self):
        accepted = 0
        for case in self.CASES:
            for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 7}):
                plain = self.ids(**case, **sampling, speculative_tokens=0)
                drafted = self.program.chat(**case, **sampling, speculative_tokens=5)
                self.assertEqual(drafted["choices"][0]["token_ids"], plain, (case, sampling))
                accepted += drafted["usage"]["rorqual"]["drafts"]["accepted"]
        self.assertGreater(accepted, 0, "no draft was accepted: nothing was tested")

    def test_sixteen_streams_are_as_alone(self):
        bodies = [dict(self.CASES[i % len(self.CASES)], seed=i) for i in range(16)]
        alone = [self.ids(**body) for body in bodies]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            together = list(pool.map(lambda body: self.ids(**body), bodies))
        self.assertEqual(together, alone)

    def test_clients_that_leave_change_nothing_for_others(self):
        body = {"response_format": json_format(PERSON), "seed": 5}
        expected = self.ids(**body)
        for _ in range(5):
            connection = self.program.send("/v1/chat/completions", {
                "model": "m", "messages": [{"role": "user", "content": "json"}], "thinking": CHAT, "stream": True,
                "response_format": json_format(PERSON), "max_tokens": 300, "seed": 11})
            connection.getresponse().read(60)
            connection.close()
            self.assertEqual(self.ids(**body), expected)


class Refusals(ConstraintTest):
    def message(self, **fields):
        return self.program.chat(status=400, **fields)["error"]["message"]

    def test_the_place_of_the_fault_is_named(self):
        def schema(**parts):
            return {"response_format": json_format({"type": "object", "properties": parts})}
        for fields, part in (
                (schema(a={"type": "string", "pattern": "("}), "$.properties.a.pattern: at character 1"),
                (schema(a={"type": "string", "pattern": "a{1000000}"}), "a count above 160"),
                (schema(a={"not": {}}), "$.properties.a: 'not' cannot be enforced"),
                (schema(a={"type": "array", "items": {"type": "string", "format": "idn-email"}}), "$.properties.a.items"),
                ({"structured_outputs": {"regex": "(?=a)"}}, "look-ahead"),
                ({"structured_outputs": {"grammar": "root ::= missing"}}, "grammar"),
                ({"structured_outputs": {"choice": []}}, "choice"),
                ({"structured_outputs": {"structural_tag": {"format": {"type": "token", "token": 5}}}}, "format"),
                ({"structured_outputs": {"json": PERSON, "regex": "a"}}, "exactly one"),
                ({"structured_outputs": {"json": PERSON, "whitespace_pattern": " "}}, "whitespace_pattern"),
                ({"structured_outputs": {"json": PERSON}, "tools": TOOLS}, "tools"),
                ({"structured_outputs": {"json": PERSON}, **schema()}, "response_format"),
                ({"structured_outputs": {"regex": "a"}, "min_tokens": 5}, "min_tokens")):
            self.assertIn(part, self.message(**fields))

    def test_hostile_schemas_are_refused_and_the_server_goes_on(self):
        wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10000)}}
        deep = {"type": "integer"}
        for _ in range(50):
            deep = {"type": "array", "items": deep}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": 5}}}}}
        for fields in ({"response_format": json_format(wide)},
                       {"response_format": json_format({"enum": ["x" * 1000000]})},
                       {"response_format": json_format({"allOf": [{"$ref": "#"}], "type": "object"})},
                       {"tools": [tool], "tool_choice": "required"},
                       {"structured_outputs": {"regex": "((a{200}){200}){200}"}}):
            self.program.chat(status=400, **fields)
        self.assertTrue(self.program.chat(response_format=json_format(deep), max_tokens=80)["choices"])
        text = self.program.chat(structured_outputs={"regex": "(a+)+b"}, temperature=0, max_tokens=200)
        self.assertRegex(text["choices"][0]["message"]["content"], r"\Aa+b?\Z")


class OfficialToolChoice(ConstraintTest):
    options = ("--official-tool-choice",)

    def test_required_calls_need_chat_mode(self):
        ask = {"tools": TOOLS, "tool_choice": "required"}
        error = self.program.chat(status=400, thinking=THINKING, **ask)["error"]
        self.assertEqual(error["message"], "Thinking mode does not support this tool_choice")
        self.program.chat(**ask)


if __name__ == "__main__":
    unittest.main()
