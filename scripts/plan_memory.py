#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planned against measured memory of `rorqual serve`: starts the server on each model, fills every sequence to its
last token, scores a prompt (rows of logits), and compares the peak of resident memory with `rorqual plan`.

usage: plan_memory.py RORQUAL [--tokenizer FILE] [--bound 0.05] [--only N] [--json FILE]
Exits with 1 when a ratio is outside the bound. Standard library only."""

import argparse
import concurrent.futures
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

SLICE = "synthetic:v41?"
ROLES = SLICE + "layers=0,1,2,3,20,24&experts=16&drafts=0&engram-rows=20000&candidate-blocks=80"

# name, model, options of serve; None = the demonstration model inside the program.
CASES = [
    ("mini", "", ["--max-model-len", "2048", "--max-num-seqs", "4"]),
    ("one layer, 64 experts", SLICE + "layers=1&experts=64", ["--max-model-len", "1024", "--max-num-seqs", "2"]),
    ("four layers, Engram in RAM", SLICE + "layers=4&experts=16&engram-rows=200000",
     ["--max-model-len", "1024", "--max-num-seqs", "4", "--engram-placement", "host"]),
    ("four layers, Engram on disk", SLICE + "layers=4&experts=16&engram-rows=200000",
     ["--max-model-len", "2048", "--max-num-seqs", "2", "--engram-placement", "disk"]),
    ("six roles", ROLES, ["--max-model-len", "2048", "--max-num-seqs", "2", "--max-num-batched-tokens", "1024"]),
    ("six roles, exact", ROLES, ["--max-model-len", "1024", "--max-num-seqs", "4", "--numerics", "exact"]),
    ("one layer, all experts", SLICE + "layers=1", ["--max-model-len", "512", "--max-num-seqs", "8"]),
    ("two kinds of layers, FP8 head", SLICE + "layers=0,2,3&experts=48",
     ["--max-model-len", "1024", "--max-num-seqs", "2", "--lm-head", "fp8"]),
]


def option(options: list, name: str, default: int) -> int:
    return int(options[options.index(name) + 1]) if name in options else default


class Server:
    def __init__(self, program: str, model: str, options: list):
        command = [program, "serve", *([model] if model else []), *options, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.model = model or "rorqual-mini"
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"ready  http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                return
        raise RuntimeError("the server did not start:\n" + "".join(self.log[-5:]))

    def complete(self, body: dict) -> dict:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1200)
        connection.request("POST", "/v1/completions", json.dumps({"model": self.model, **body}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {text}")
        return json.loads(text)

    def peak_bytes(self) -> int:
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        raise RuntimeError("no VmHWM")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)


def fill(server: Server, length: int, sequences: int) -> None:
    """All sequences at the same time up to the last position, after a scored prompt of up to 256 tokens."""
    scored = min(length - 1, 256)
    server.complete({"prompt": [100 + i % 900 for i in range(scored)], "max_tokens": 1, "prompt_logprobs": 1})
    answer = min(48, length // 2)

    def run(index: int) -> int:
        prompt = [100 + (7 * index + i) % 900 for i in range(length - answer)]
        reply = server.complete({"prompt": prompt, "max_tokens": answer, "ignore_eos": True, "temperature": 1.0,
                                 "seed": index})
        return reply["usage"]["total_tokens"]

    with concurrent.futures.ThreadPoolExecutor(sequences) as pool:
        for total in pool.map(run, range(sequences)):
            if total < length:
                raise RuntimeError(f"a request ended after {total} of {length} tokens")


def measure(program: str, name: str, model: str, options: list) -> dict:
    planned = json.loads(subprocess.run([program, "plan", *([model] if model else []), *options, "--json", "--no-measure"],
                                        capture_output=True, text=True, check=True).stdout)
    began = time.monotonic()
    server = Server(program, model, options)
    try:
        fill(server, option(options, "--max-model-len", 0), option(options, "--max-num-seqs", 8))
        peak = server.peak_bytes()
    finally:
        server.stop()
    need = planned["verdict"]["needed_bytes"]
    return {"name": name, "model": model or "rorqual-mini", "options": options, "planned_bytes": need,
            "measured_bytes": peak, "ratio": need / peak, "seconds": time.monotonic() - began}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--tokenizer", help="the release's tokenizer.json (scripts/make_real_tokenizer.py)")
    parser.add_argument("--bound", type=float, default=0.05)
    parser.add_argument("--only", type=int, action="append", help="number of a case, from 0")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    rows, failed = [], False
    print(f"{'model':<32}{'planned MiB':>12}{'measured MiB':>14}{'ratio':>8}{'s':>6}")
    for index, (name, model, options) in enumerate(CASES):
        if arguments.only and index not in arguments.only:
            continue
        if model and not arguments.tokenizer:
            print(f"{name:<32}  skipped: needs --tokenizer")
            continue
        extra = ["--tokenizer", arguments.tokenizer] if model else []
        row = measure(os.path.abspath(arguments.program), name, model, options + extra)
        bad = abs(row["ratio"] - 1) > arguments.bound
        failed |= bad
        rows.append(row)
        print(f"{name:<32}{row['planned_bytes'] / 2**20:>12.0f}{row['measured_bytes'] / 2**20:>14.0f}"
              f"{row['ratio']:>8.3f}{row['seconds']:>6.0f}{'  outside' if bad else ''}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"schema": "rorqual.plan_memory/1", "bound": arguments.bound, "rows": rows}, file, indent=1)
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
