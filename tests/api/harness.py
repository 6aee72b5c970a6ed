# SPDX-License-Identifier: Apache-2.0
"""Starts the scripted server or the program and talks to it: the common part of the API tests. Standard library
only."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "models" / "mini" / "tokenizer.json"
TIMEOUT_S = 30
PROGRAM_TIMEOUT_S = 120  # it computes

THINK_END = "</think>"
DSML = "｜DSML｜"


def tool_block(name, parameters):
    """The output of a model that calls one tool; parameters are (name, is_string, value)."""
    lines = [f"<{DSML} calls>", f'<{DSML} invoke name="{name}">']
    for key, is_string, value in parameters:
        flag = "true" if is_string else "false"
        lines.append(f'<{DSML} parameter name="{key}" string="{flag}">{value}</{DSML} parameter>')
    lines += [f"</{DSML} invoke>", f"</{DSML} calls>"]
    return "\n\n" + "\n".join(lines)


class Metered:
    """A server's figures."""

    def metrics(self):
        """Samples of /metrics as {"name{labels}": value}."""
        out = {}
        for line in self.get("/metrics").splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                out[name] = float(value)
        return out

    def metric(self, name, labels=""):
        """Sum of the samples of one name whose labels contain `labels`."""
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name and labels in k)


def named_events(server, path, body):
    """(name, data) of all events of a stream that names them; there is no [DONE]."""
    status, headers, text = server.request("POST", path, {**body, "stream": True})
    if status != 200:
        raise AssertionError(f"status {status}: {text[:500]}")
    assert headers["Content-Type"].startswith("text/event-stream"), headers
    pieces = text.split("\n\n")
    assert pieces[-1] == "", "the stream must end with a blank line"
    events = []
    for piece in pieces[:-1]:
        if piece.startswith(":"):
            continue
        name, data = piece.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), piece
        events.append((name[7:], json.loads(data[6:])))
    return events


class Server(Metered):
    """One scripted server process; script lines are dicts (runtime/scripted_engine.h), options go to the program."""

    def __init__(self, script, preexec_fn=None, **options):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8")
        self.file.write("".join(json.dumps(line) + "\n" for line in script))
        self.file.flush()
        program = os.environ["RORQUAL_SCRIPTED_SERVER"]
        arguments = [f"{name}={value}" for name, value in options.items()]
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [program, str(TOKENIZER), self.file.name, *arguments],
            stdout=subprocess.PIPE, stderr=self.log, text=True, preexec_fn=preexec_fn)
        line = self.process.stdout.readline()
        if not line.startswith("listening "):
            self.process.wait(TIMEOUT_S)
            text = self.log_text()
            self.stop()
            raise RuntimeError(f"the server did not start: {line!r} {text}")
        self.port = int(line.split()[1])
        self.key = options.get("key")
        if "routes" in options:  # "METHOD path" or "METHOD path open"
            self.routes = [r.split() for r in self.process.stdout.readline().rstrip("\n").split("\t")[1:]]

    def log_text(self):
        self.log.seek(0)
        return self.log.read()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, text). A dict body is sent as JSON."""
        connection = self.connect()
        headers = dict(headers or {})
        if self.key and "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {self.key}"
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
            body = body.encode() if isinstance(body, str) else body
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, dict(response.getheaders()), text

    def post(self, path, body, status=200):
        """The JSON of an answer with the expected status."""
        got, _, text = self.request("POST", path, body)
        if got != status:
            raise AssertionError(f"status {got}, expected {status}: {text[:500]}")
        return json.loads(text)

    def get(self, path, status=200):
        got, _, text = self.request("GET", path)
        if got != status:
            raise AssertionError(f"status {got}, expected {status}: {text[:500]}")
        return text

    def events(self, path, body):
        """All SSE events of a streamed answer as JSON; checks the framing and the closing [DONE]."""
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        if status != 200:
            raise AssertionError(f"status {status}: {text[:500]}")
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        pieces = text.split("\n\n")
        assert pieces[-1] == "", "the stream must end with a blank line"
        pieces = [p for p in pieces[:-1] if not p.startswith(":")]
        assert all(p.startswith("data: ") and "\n" not in p for p in pieces), pieces
        assert pieces[-1] == "data: [DONE]", pieces[-1]
        return [json.loads(p[6:]) for p in pieces[:-1]]

    def chat(self, **fields):
        """A chat body with defaults; greedy, thinking off."""
        return {"model": "rorqual-mini", "messages": [{"role": "user", "content": "hello"}],
                "thinking": {"type": "disabled"}, **fields}

    def is_alive(self):
        """A normal request succeeds."""
        return self.post("/tokenize", {"prompt": "a"})["count"] > 0

    def wait_metric(self, name, value, labels=""):
        """Asks until the metric has the value; gives up with the test's time limit."""
        for _ in range(3000):
            if self.metric(name, labels) == value:
                return True
        return False

    def stop(self, number=signal.SIGTERM):
        """(exit status, rest of the standard output)."""
        if self.log.closed:
            return self.process.returncode, ""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=TIMEOUT_S)
        self.file.close()
        self.log.close()
        return self.process.returncode, out


class Program(Metered):
    """`rorqual serve` with options and variables of the environment; its log is read by a thread."""

    def __init__(self, *options, program=None, environment=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("RORQUAL_")}
        self.process = subprocess.Popen(
            [program or os.environ["RORQUAL"], "serve", "--port", "0", *map(str, options)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**clean, **(environment or {})})
        self.lines = []
        self.output = ""  # standard output, after stop()
        self.port = None
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.ready.wait(PROGRAM_TIMEOUT_S)
        if self.port is None:
            self.stop()
            raise RuntimeError("the program did not start: " + "".join(self.lines))
        self.url = f"http://127.0.0.1:{self.port}"

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            ready = re.search(r"ready +http://127.0.0.1:(\d+)", line)
            if ready:
                self.port = int(ready.group(1))
                self.ready.set()
        self.ready.set()

    def stop(self, number=signal.SIGTERM):
        """The exit status; may be called again."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(PROGRAM_TIMEOUT_S)
        self.reader.join()
        if not self.process.stdout.closed:
            self.output = self.process.stdout.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.returncode

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PROGRAM_TIMEOUT_S)

    def send(self, path, body, request_id=None):
        """An open connection whose answer was not read."""
        connection = self.connect()
        headers = {"Content-Type": "application/json"}
        if request_id:
            headers["X-Request-Id"] = request_id
        connection.request("POST" if body is not None else "GET", path, None if body is None else json.dumps(body),
                           headers)
        return connection

    def ask(self, path, body=None, status=200, request_id=None):
        connection = self.send(path, body, request_id)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.status != status:
            raise AssertionError(f"status {response.status}, expected {status}: {text[:500]}")
        return text

    def get(self, path):
        return self.ask(path)

    def wait(self, is_true, what):
        deadline = time.monotonic() + PROGRAM_TIMEOUT_S
        while not is_true():
            if time.monotonic() > deadline:
                raise AssertionError(f"never: {what}; {self.metrics()}")


class ApiTest(unittest.TestCase):
    """Tests over one server per class; `script` and `options` are the class's own."""

    script = [{"text": "Hello there."}]
    options = {}

    def setUp(self):
        self.server = Server(self.script, **self.options)
        self.addCleanup(self.server.stop)

    def error(self, path, body, status=400):
        """The error object of a refused request, checked for its form."""
        error = self.server.post(path, body, status)["error"]
        self.assertLessEqual({"message", "type", "param", "code"}, set(error))
        self.assertIsInstance(error["message"], str)
        self.assertTrue(error["message"])
        return error
