# SPDX-License-Identifier: Apache-2.0
"""Disconnects, full queues, silence, shutting down."""

import http.client
import json
import signal
import socket
import threading
import unittest

from harness import ApiTest, Server

SLOW = {"text": "a b c d e f g h i j k l m n o p", "first_pause_ms": 600_000}
STREAMING = {"text": "a b c d e f g h", "pause_ms": 600_000}


def raw_request(server, body):
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class Disconnects(unittest.TestCase):
    def test_leaving_clients_end_their_requests(self):
        for line in (SLOW, STREAMING):
            for stream in (False, True):
                for half in (False, True):
                    with self.subTest(line=line, stream=stream, half=half):
                        server = Server([line])
                        client = server.socket()
                        client.sendall(raw_request(server, server.chat(stream=stream)))
                        self.assertTrue(server.wait_metric("rorqual:num_requests_running", 1))
                        if half:
                            client.shutdown(socket.SHUT_WR)
                        else:
                            client.close()
                        self.assertTrue(server.wait_metric("rorqual:num_requests_running", 0))
                        self.assertTrue(server.wait_metric("rorqual:request_success_total", 1, '"abort"'))
                        self.assertTrue(server.wait_metric("rorqual:http_requests_total", 1, '"499"'))
                        client.close()
                        self.assertEqual(server.stop(), (0, "stopped clean\n"))

    def test_normal_ends_are_no_aborts(self):
        server = Server([{"text": "x y"}])
        self.addCleanup(server.stop)
        for i in range(100):
            server.events("/v1/chat/completions", server.chat()) if i % 2 else server.post("/v1/chat/completions",
                                                                                           server.chat())
        self.assertEqual(server.metric("rorqual:request_success_total", '"stop"'), 100)
        self.assertEqual(server.metric("rorqual:request_success_total", '"abort"'), 0)


class FullQueue(ApiTest):
    script = [SLOW]
    options = {"max_queued": 4}

    def test_requests_beyond_the_limit_are_told_to_come_back(self):
        clients = []
        for _ in range(4):
            client = self.server.socket()
            client.sendall(raw_request(self.server, self.server.chat()))
            clients.append(client)
        self.assertTrue(self.server.wait_metric("rorqual:num_requests_running", 4))
        for stream in (False, True):
            status, headers, text = self.server.request("POST", "/v1/chat/completions", self.server.chat(stream=stream))
            self.assertEqual(status, 429)
            self.assertEqual(headers["Retry-After"], "1")
            self.assertEqual(json.loads(text)["error"]["type"], "rate_limit_error")
        # A request of several choices that only partly fits leaves nothing behind.
        clients.pop().close()
        self.assertTrue(self.server.wait_metric("rorqual:num_requests_running", 3))
        self.assertEqual(self.server.request("POST", "/v1/chat/completions", self.server.chat(n=2))[0], 429)
        self.assertTrue(self.server.wait_metric("rorqual:num_requests_running", 3))
        self.assertEqual(self.server.metric("rorqual:admission_rejections_total"), 3)
        for client in clients:
            client.close()


class Silence(ApiTest):
    script = [{"text": "late", "first_pause_ms": 400}]
    options = {"keep_alive_ms": 50}

    def test_headers_come_at_once_and_comments_while_waiting(self):
        connection = self.server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(self.server.chat(stream=True)),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        text = response.read().decode()
        connection.close()
        self.assertGreaterEqual(text.count(": keep-alive\n\n"), 3)
        self.assertTrue(text.startswith('data: {"id"'))
        self.assertTrue(text.endswith("data: [DONE]\n\n"))


class Shutdown(unittest.TestCase):
    def test_idle_server_stops_at_once(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = Server([{"text": "a"}])
            self.assertTrue(server.is_alive())
            self.assertEqual(server.stop(number), (0, "stopped clean\n"))

    def test_running_streams_finish_and_new_requests_are_refused(self):
        server = Server([{"text": "a b c d", "pause_ms": 150}])
        results = []
        threads = [threading.Thread(target=lambda: results.append(server.events("/v1/chat/completions", server.chat())))
                   for _ in range(5)]
        for thread in threads:
            thread.start()
        self.assertTrue(server.wait_metric("rorqual:num_requests_running", 5))
        server.process.send_signal(signal.SIGTERM)
        while server.request("GET", "/ready")[0] == 200:
            pass
        self.assertEqual(json.loads(server.get("/ready", 503))["status"], "draining")
        self.assertEqual(server.get("/health"), "")
        status, headers, text = server.request("POST", "/v1/chat/completions", server.chat())
        self.assertEqual((status, json.loads(text)["error"]["code"]), (503, "draining"))
        self.assertIn("Retry-After", headers)
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 5)
        self.assertTrue(all(e[-1]["choices"][0]["finish_reason"] == "stop" for e in results))
        out, _ = server.process.communicate(timeout=30)
        self.assertEqual((server.process.returncode, out), (0, "stopped clean\n"))

    def open_stream(self, server):
        connection = server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(server.chat(stream=True)),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertTrue(response.readline().startswith(b"data: "))
        return connection, response

    def test_time_limit_cancels_what_still_runs(self):
        server = Server([STREAMING], shutdown_ms=100)
        connection, response = self.open_stream(server)
        self.assertEqual(server.stop(), (0, "stopped cancelled\n"))
        text = response.read().decode()
        self.assertIn("The server is stopping", text)
        self.assertTrue(text.endswith("data: [DONE]\n\n"))
        connection.close()

    def test_second_signal_stops_at_once(self):
        server = Server([STREAMING], shutdown_ms=600_000)
        connection, response = self.open_stream(server)
        server.process.send_signal(signal.SIGTERM)
        while server.request("GET", "/ready")[0] == 200:
            pass
        self.assertEqual(server.stop(), (0, "stopped cancelled\n"))
        self.assertIn(b"The server is stopping", response.read())
        connection.close()

    def test_port_in_use_is_reported(self):
        server = Server([{"text": "a"}])
        self.addCleanup(server.stop)
        with self.assertRaisesRegex(RuntimeError, f"port {server.port} on 127.0.0.1 is in use"):
            Server([{"text": "a"}], port=server.port)  # does not start


class KeepAlive(ApiTest):
    def test_connection_serves_on_after_errors(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        for body, status in (("{", 400), (json.dumps(self.server.chat()), 200), ("[]", 400),
                             (json.dumps(self.server.chat(stream=True)), 200), (json.dumps(self.server.chat()), 200)):
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.assertEqual(response.status, status)
            response.read()
        connection.close()


if __name__ == "__main__":
    unittest.main()
