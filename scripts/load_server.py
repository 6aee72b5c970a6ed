# SPDX-License-Identifier: Apache-2.0
"""A `rorqual serve` process for the load scripts: started on a free port, asked for its metrics, stopped. Standard
library only."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
STOP_S = 60


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with the script


def clean_environment():
    """The environment without RORQUAL_* variables, which would change what is measured."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RORQUAL_") or name == "RORQUAL_CPU_ISA"}


def default_program():
    return os.environ.get("RORQUAL", str(ROOT / "build" / "rorqual"))


class Server:
    """Ready when the constructor returns. `log` holds its standard error."""

    def __init__(self, program, *arguments):
        self.log = []
        command = [program, "serve", *map(str, arguments), "--port", "0", "--log-format", "text", "--color", "never"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.url = None
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            found = re.search(r"ready\s+(http://\S+)", line)
            if found:
                self.url = found.group(1)
                break
        if self.url is None:
            self.process.wait()
            raise RuntimeError("the server did not start: " + "\n".join(self.log[-5:]))
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            del self.log[:-2000]

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def metrics(self):
        """{name: sum over labels} and {name{labels}: value} of /metrics."""
        out = {}
        for line in self.get("/metrics").splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                out[name] = float(value)
                base = name.split("{")[0]
                if base != name:
                    out[base] = out.get(base, 0.0) + float(value)
        return out

    def wait_idle(self, seconds=60):
        """The metrics once nothing runs or waits, or None."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            values = self.metrics()
            if values["vllm:num_requests_running"] == 0 and values["vllm:num_requests_waiting"] == 0:
                return values
            time.sleep(0.2)
        return None

    def stop(self, number=signal.SIGTERM):
        """The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()


def bench(program, kind, *arguments, codes=(0, 1)):
    """(report, error text) of `rorqual bench KIND … --json`; other exit codes than `codes` end the script."""
    done = subprocess.run([program, "bench", kind, *map(str, arguments), "--json"], capture_output=True, text=True,
                          env=clean_environment())
    if done.returncode not in codes:
        raise RuntimeError(f"bench {kind} ended with {done.returncode}: {done.stderr.strip()}")
    error = json.loads(done.stderr)["error"]["message"] if done.returncode else ""
    return json.loads(done.stdout), error


def load_average():
    return list(os.getloadavg())


def finish(report):
    """Prints the report; exit status 1 unless every verdict is true."""
    print(json.dumps(report, indent=2, ensure_ascii=False))
    return 0 if all(verdict["met"] for verdict in report["verdicts"]) else 1


def verdict(name, met, detail):
    return {"name": name, "met": bool(met), "detail": detail}
