# SPDX-License-Identifier: Apache-2.0
"""What a hostile network can do to the server: framing, limits, slowness, crowds, keys, open ports."""

import gzip
import json
import os
import re
import resource
import socket
import subprocess
import unittest

from harness import ApiTest, Program, Server, TIMEOUT_S

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def send_all(client, data):
    """Sends as far as the server takes it; it may answer and close before the end."""
    try:
        client.sendall(data)
    except OSError:
        pass


def read_all(client):
    """Everything up to the end of the connection."""
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def status_of(answer):
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else None


def listening_ports(pid):
    """(address, port) of the TCP sockets on which a process listens, addresses as the kernel prints them."""
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{entry}")
        except OSError:
            continue
        if match := re.fullmatch(r"socket:\[(\d+)\]", link):
            inodes.add(match[1])
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                is_bound = fields[3] == "0A" or table.startswith("udp")
                if fields[9] in inodes and is_bound:
                    address, port = fields[1].split(":")
                    found.add((address, int(port, 16)))
    return found


class Raw(ApiTest):
    """Bytes on a socket, and the server alive afterwards."""

    def tearDown(self):
        self.assertTrue(self.server.is_alive())
        self.assertIsNone(self.server.process.poll())

    def ask(self, *parts):
        with self.server.socket() as client:
            for part in parts:
                send_all(client, part)
            client.settimeout(TIMEOUT_S)
            return read_all(client)

    def flood(self, head, unit, total_bytes):
        """Sends `head`, then `unit` until the server closes or `total_bytes` went out; (answer, sent bytes)."""
        with self.server.socket() as client:
            client.sendall(head)
            sent = 0
            try:
                while sent < total_bytes:
                    client.sendall(unit)
                    sent += len(unit)
            except OSError:
                pass
            return read_all(client), sent


class Limits(Raw):
    def test_floods_of_header_bytes(self):
        before = resident_bytes(self.server.process.pid)
        filler = b"a" * (1 << 20)
        answer, _ = self.flood(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", filler, 100 << 20)
        self.assertIn(status_of(answer), (431, None))
        answer, _ = self.flood(b"GET /", filler, 1 << 20)
        self.assertIn(status_of(answer), (414, None))
        self.assertEqual(status_of(self.ask(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"A: b\r\n" * 10_000, b"\r\n")),
                         431)
        self.assertEqual(status_of(self.ask(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"A: b\r\n" * 100, b"\r\n")),
                         431)
        self.assertEqual(status_of(self.ask(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n",
                                            b"A: b\r\n" * 98, b"\r\n")), 200)
        self.assertLess(resident_bytes(self.server.process.pid), before + (16 << 20))

    def test_bodies_that_are_too_large_or_never_end(self):
        self.assertEqual(status_of(self.ask(POST + b"Content-Length: 1000000000\r\n\r\n")), 413)
        self.assertEqual(status_of(self.ask(POST + b"Content-Length: 50331649\r\n\r\n")), 413)
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        answer, sent = self.flood(POST + b"Transfer-Encoding: chunked\r\n\r\n", chunk, 200 << 20)
        self.assertIn(status_of(answer), (413, None))
        self.assertLess(sent, 200 << 20)

    def test_endless_lines_between_chunks_take_no_memory(self):
        before = resident_bytes(self.server.process.pid)
        for begin in (b"1;", b"1\r\nx\r\n2;n=", b"0\r\nTrailer: ", b"0;"):
            answer, sent = self.flood(POST + b"Transfer-Encoding: chunked\r\n\r\n" + begin, b"a" * (1 << 20), 200 << 20)
            self.assertIn(status_of(answer), (400, None), begin)
            self.assertLess(sent, 200 << 20)
        self.assertLess(resident_bytes(self.server.process.pid), before + (16 << 20))

    def test_many_large_bodies_at_once_stay_within_the_memory_kept_for_them(self):
        before = resident_bytes(self.server.process.pid)
        body = b"x" * (40 << 20)
        clients, refused = [], 0
        for _ in range(16):  # 640 MB, of which none is complete
            client = self.server.socket()
            self.addCleanup(client.close)
            send_all(client, POST + b"Content-Length: 45000000\r\n\r\n" + body)
            clients.append(client)
        self.assertTrue(self.server.is_alive())
        self.assertLess(resident_bytes(self.server.process.pid), before + (600 << 20))
        for client in clients:
            client.setblocking(False)
            try:
                refused += client.recv(65536).startswith(b"HTTP/1.1 503")
            except BlockingIOError:
                pass
            except ConnectionResetError:
                refused += 1
            client.close()
        self.assertGreaterEqual(refused, 2)
        self.assertEqual(self.server.post("/tokenize", {"prompt": "a " * 500_000})["count"] > 0, True)


class Framing(Raw):
    def test_forms_of_smuggling_are_refused(self):
        for fields in (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
                       b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
                       b"Content-Length: 3\r\nContent-Length: 4\r\n", b"Content-Length: 3\r\nContent-Length: 3\r\n",
                       b"Content-Length: 3, 3\r\n", b"Content-Length: -1\r\n", b"Content-Length: 3x\r\n",
                       b"Transfer-Encoding: xchunked\r\n", b"Transfer-Encoding: chunked, identity\r\n",
                       b"Transfer-Encoding: identity\r\nContent-Length: 3\r\n", b"Transfer-Encoding : chunked\r\n",
                       b"Host: 127.0.0.1\r\n", b"X: a\0b\r\n", b"X: a\rb\r\n", b" X: a\r\n", b"X\n: a\r\n", b": a\r\n"):
            answer = self.ask(POST + fields + b"\r\n0\r\n\r\nGET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            if fields.startswith(b" X"):  # a folded line continues the value before it, which is then no Host
                self.assertIn(status_of(answer), (400, 403))
                continue
            self.assertEqual(status_of(answer), 400, fields)
            self.assertEqual(answer.count(b"HTTP/1.1 "), 1, fields)
            self.assertIn(b"Connection: close", answer)

    def test_odd_requests_have_defined_answers(self):
        for request, status in ((b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 200),
                                (b"OPTIONS /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 204),
                                (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
                                (b"TRACE /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
                                (b"DELETE /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
                                (b"CONNECT a:443 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
                                (b"BREW /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
                                (b"GET /health HTTP/1.0\r\n\r\n", 200), (b"GET /health HTTP/1.1\r\n\r\n", 400),
                                (b"GET /health HTTP/0.9\r\n\r\n", 400), (b"GET /health\r\n\r\n", 400),
                                (b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
                                (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400), (b"\x16\x03\x01\x02\x00\x01\x00\x01", None),
                                (b"\0\0\0\0\r\n\r\n", 400), (b"\r\n\r\n", 400),
                                (b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
                                (b"get /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
                                (b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404)):
            with self.server.socket() as client:
                client.sendall(request)
                answer = client.recv(65536)
            if status is None:  # TLS on a plain port: an error or nothing, but an end
                self.assertIn(status_of(answer), (400, None))
            else:
                self.assertEqual(status_of(answer), status, request)

    def test_requests_in_a_row_are_answered_in_order(self):
        count = 200
        answer = self.ask(GET * count + b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n" + GET)
        self.assertEqual(answer.count(b"HTTP/1.1 200"), count)
        self.assertEqual(answer.count(b"HTTP/1.1 404"), 1)
        self.assertEqual(answer.count(b"HTTP/1.1 "), count + 1)

    def test_compressed_bodies_are_refused(self):
        bomb = gzip.compress(b"a" * 10_000_000)
        for coding in ("gzip", "deflate", "br", "x-gzip", "identity, gzip"):
            status, _, text = self.server.request("POST", "/tokenize", bomb, {"Content-Encoding": coding})
            self.assertEqual(status, 415, coding)
            self.assertIn("uncompressed", text)

    def test_forwarded_headers_are_ignored(self):
        for value in (b",", b"", b", ,", b"x" * 10_000, b"\xff\xfe"):
            self.assertEqual(status_of(self.ask(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" +
                                                (b"X-Forwarded-For: " + value + b"\r\n") * (1 if len(value) > 99 else 3) +
                                                b"\r\n")), 200, value)

    def test_no_path_leads_to_a_file(self):
        for path in (b"/../../etc/passwd", b"/%2e%2e%2fetc/passwd", b"/..%2f..%2fetc%2fpasswd", b"/..\\..\\etc\\passwd",
                     b"/\\..\\", b"//", b"//etc/passwd", b"/./", b"/chat.js/../chat.css", b"/%00", b"/chat.js%00.html",
                     b"/.git/config", b"/chat.html/", b"/web/chat.js", b"/~root", b"/etc/passwd", b"/proc/self/environ",
                     b"/%c0%ae%c0%ae/", b"/v1/models/../../etc/passwd", b"/chat.JS", b"file:///etc/passwd"):
            answer = self.ask(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            self.assertIn(status_of(answer), (404, 400), path)
            self.assertNotIn(b"root:", answer)


class Hosts(Raw):
    def status(self, method=b"GET", path=b"/health", **fields):
        lines = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in fields.items())
        body = b"Content-Length: 2\r\n" if method == b"POST" else b""
        return status_of(self.ask(method + b" " + path + b" HTTP/1.1\r\nConnection: close\r\n" + lines + body + b"\r\n" +
                                  (b"{}" if body else b"")))

    def test_a_page_that_rebinds_its_name_gets_nothing(self):
        for host in (b"evil.example", b"evil.example:8000", b"127.0.0.1.evil.example", b"localhost.evil", b"[::2]"):
            self.assertEqual(self.status(Host=host), 403, host)
            self.assertEqual(self.status(b"POST", b"/tokenize", Host=host, Origin=b"http://" + host), 403, host)
        for host in (b"127.0.0.1", b"localhost:1", b"LOCALHOST", b"[::1]:8000"):
            self.assertEqual(self.status(Host=host), 200, host)

    def test_pages_of_others_cannot_post(self):
        for origin in (b"http://evil.example", b"null", b"http://127.0.0.1:1", b"https://127.0.0.1.evil", b"file://"):
            self.assertEqual(self.status(b"POST", b"/tokenize", Host=b"127.0.0.1:8000", Origin=origin), 403, origin)
            _, headers, _ = self.server.request("GET", "/v1/models", headers={"Origin": origin.decode()})
            self.assertFalse([h for h in headers if h.lower().startswith("access-control-")])


class Slowness(ApiTest):
    options = {"header_ms": 1500, "body_ms": 1500}

    def test_five_hundred_dripping_clients_hold_up_nobody_and_are_cut(self):
        beginnings = (b"", b"G", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", POST + b"Content-Length: 9\r\n\r\n{",
                      POST + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{")
        clients = []
        for i in range(500):
            client = self.server.socket()
            self.addCleanup(client.close)
            send_all(client, beginnings[i % len(beginnings)])
            clients.append(client)
        for i in range(50):
            for client in clients[::7]:
                send_all(client, b"a")
            self.assertTrue(self.server.is_alive())
        for i, client in enumerate(clients):
            client.settimeout(TIMEOUT_S)
            answer = read_all(client)  # ends: nobody drips any more, and a drop in between renewed nothing
            self.assertIn(status_of(answer), (None,) if i % len(beginnings) == 0 and i % 7 else (408, 400, None), answer[:80])
            client.close()
        self.assertTrue(self.server.is_alive())

    def test_a_drip_does_not_renew_the_time(self):
        for beginning in (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", POST + b"Content-Length: 999999\r\n\r\n"):
            with self.server.socket() as client:
                client.sendall(beginning)
                client.settimeout(0.05)  # the rhythm of the drip
                answer = b""
                for _ in range(20 * TIMEOUT_S):
                    send_all(client, b"a")
                    try:
                        answer = client.recv(65536)
                        break
                    except TimeoutError:
                        continue
                self.assertEqual(status_of(answer), 408, beginning)


class SlowReader(ApiTest):
    script = [{"text": "word " * 400, "step_tokens": 20, "pause_ms": 20}]
    options = {"write_ms": 700}

    def test_a_stream_that_nobody_reads_is_cut_and_its_requests_end(self):
        body = json.dumps(self.server.chat(stream=True, n=16, ignore_eos=True, max_tokens=16000, logprobs=True,
                                           top_logprobs=20)).encode()
        before = resident_bytes(self.server.process.pid)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", self.server.port))
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body) +
                           body)
            self.assertTrue(self.server.wait_metric("rorqual:http_requests_total", 1, '"499"'))
            self.assertTrue(self.server.wait_metric("rorqual:num_requests_running", 0))
            self.assertLess(resident_bytes(self.server.process.pid), before + (64 << 20))
        self.assertTrue(self.server.is_alive())


class Crowds(unittest.TestCase):
    def crowd(self, server, count):
        """Opens connections; returns those that stay, and how many were answered 503 or closed."""
        clients, refused = [], 0
        for _ in range(count):
            client = server.socket()
            self.addCleanup(client.close)
            clients.append(client)
        kept = []
        for client in clients:
            send_all(client, GET)
        for client in clients:
            answer = b""
            try:
                answer = client.recv(65536)
            except ConnectionResetError:
                pass
            if answer.startswith(b"HTTP/1.1 200"):
                kept.append(client)
            else:
                self.assertIn(status_of(answer), (503, None))
                refused += 1
                client.close()
        return kept, refused

    def test_ten_thousand_connections(self):
        count = 10_000
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < count + 200:
            count = hard - 200
            print(f"only {count} connections: the limit on open files is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        server = Server([{"text": "a"}])
        self.addCleanup(server.stop)
        kept, refused = self.crowd(server, count)
        self.assertGreater(len(kept), 0)
        self.assertLessEqual(len(kept), 1024)
        self.assertEqual(len(kept) + refused, count)
        kept[0].sendall(GET)  # whoever is in, is served
        self.assertTrue(kept[0].recv(65536).startswith(b"HTTP/1.1 200"))
        for client in kept:
            client.close()
        while server.metric("process_open_fds") > 100:  # all closed, in the end
            pass
        self.assertTrue(server.is_alive())

    def test_few_descriptors_leave_a_reserve(self):
        limit = 256

        def lower():
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        server = Server([{"text": "a"}], preexec_fn=lower)
        self.addCleanup(server.stop)
        kept, refused = self.crowd(server, 2 * limit)
        self.assertGreater(refused, 0)
        open_files = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        self.assertLess(open_files, limit - 16)
        for client in kept:
            client.close()
        self.assertTrue(server.is_alive())


class Network(unittest.TestCase):
    def test_the_default_listens_on_one_loopback_port_only(self):
        server = Server([{"text": "a"}])
        self.addCleanup(server.stop)
        server.post("/v1/chat/completions", server.chat())
        self.assertEqual(listening_ports(server.process.pid), {("0100007F", server.port)})

    def test_an_open_address_needs_a_key_or_an_explicit_word(self):
        for host in ("0.0.0.0", "::"):
            if host == "::" and not os.path.exists("/proc/net/if_inet6"):
                print("no IPv6 here: :: is not tried")
                continue
            with self.assertRaisesRegex(RuntimeError, "no API key is set"):
                Server([{"text": "a"}], host=host)
        for options in ({"key": "k"}, {"allow_no_key": 1}):
            server = Server([{"text": "a"}], host="0.0.0.0", **options)
            self.addCleanup(server.stop)
            self.assertTrue(server.is_alive())
            self.assertEqual("anyone who reaches it" in server.log_text(), "key" not in options)

    def test_the_program_refuses_an_open_address_before_loading(self):
        program = os.environ["RORQUAL"]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("RORQUAL_")}
        result = subprocess.run([program, "serve", "--host", "0.0.0.0", "--port", "0"], capture_output=True, text=True,
                                env=clean, timeout=TIMEOUT_S, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("error: --host 0.0.0.0 opens the server to the network, and no API key is set", result.stderr)
        self.assertIn("--allow-no-key", result.stderr)
        self.assertNotIn("load   ", result.stderr)

    def test_listed_names_are_the_only_ones_on_an_open_address(self):
        server = Server([{"text": "a"}], host="0.0.0.0", key="k", allowed_host="llm.lan")
        self.addCleanup(server.stop)
        for host, status in (("llm.lan:1", 200), ("127.0.0.1", 200), ("10.1.2.3:4", 200), ("evil.example", 403)):
            self.assertEqual(server.request("GET", "/v1/models", headers={"Host": host})[0], status, host)


class Secrets(unittest.TestCase):
    def test_keys_are_in_no_log_list_of_processes_metrics_or_error(self):
        secret, upstream = "sk-visible-nowhere", "sk-upstream-nowhere"
        program = Program("--api-key", secret, f"--upstream-api-key={upstream}", "--log-level", "trace")
        self.addCleanup(program.stop)
        with open(f"/proc/{program.process.pid}/cmdline", encoding="utf-8") as file:
            words = file.read()
        self.assertIn("--api-key", words)
        for key in (secret, upstream):
            self.assertNotIn(key, words)
        for key, status in ((secret, 200), (secret[:-1], 401), (secret + "x", 401), ("", 401)):
            connection = program.connect()
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
            response = connection.getresponse()
            text = response.read().decode()
            connection.close()
            self.assertEqual(response.status, status)
            self.assertNotIn(secret, text)
            if key:
                self.assertNotIn(key, text)
        self.assertEqual(listening_ports(program.process.pid), {("0100007F", program.port)})
        self.assertEqual(program.stop(), 0)
        log = "".join(program.lines)
        for key in (secret, upstream):
            self.assertNotIn(key, log)
        self.assertIn("api-key=***", log)


if __name__ == "__main__":
    unittest.main()
