#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `plan` with reality on six synthetic slices of the release: memory within 5 %, tokens per second within 15 %.

Each slice runs `rorqual bench latency`, which measures peak memory, prefill and decode, and the rates of the machine in
between, and predicts all three. Prints a Markdown table and ends with 1 if a ratio is outside its bound.

    scripts/plan_accuracy.py build/rorqual --json accuracy.json

Needs at least 12 GB of free memory and a quiet machine: a neighbour on the cores shows as spread. Ends within eight
minutes on two cores. Standard library only.
"""
import argparse
import json
import os
import subprocess
import sys
import time

SMALL_TABLES = "engram-rows=20000"
# name, keys of the synthetic model, prompt, answer, batch. `held_out`: not looked at while the model was made.
SLICES = [
    {"name": "window only", "keys": "layers=1&experts=64", "prompt": 64, "generate": 17, "batch": 1},
    {"name": "all experts", "keys": "layers=1", "prompt": 64, "generate": 9, "batch": 4},
    {"name": "first four", "keys": f"layers=4&experts=16&{SMALL_TABLES}", "prompt": 64, "generate": 17, "batch": 1},
    {"name": "ratio 2, long", "keys": "layers=2,3&experts=32", "prompt": 1024, "generate": 17, "batch": 1},
    {"name": "six roles", "keys": f"layers=0,1,2,3,20,24&experts=16&drafts=0&candidate-blocks=80&{SMALL_TABLES}",
     "prompt": 64, "generate": 9, "batch": 4, "held_out": True},
    {"name": "ratio 1, long", "keys": "layers=20,24&experts=48", "prompt": 1024, "generate": 17, "batch": 1,
     "held_out": True},
]


def run_slice(options, entry):
    """The report of one slice, or None with the reason printed."""
    rows = min(512, entry["prompt"] * entry["batch"])
    command = [options.program, "bench", "latency", f"synthetic:v41?{entry['keys']}&seed=1", "--json",
               "--prompt", str(entry["prompt"]), "--generate", str(entry["generate"]), "--batch", str(entry["batch"]),
               "--repeat", str(options.repeat), "--max-num-batched-tokens", str(rows), "--threads", str(options.threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(f"{entry['name']}: exit {done.returncode}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def values_of(entry, report):
    """(what, planned, measured, ratio, spread of the measurement) of the three figures."""
    memory = report["memory"]
    yield ("memory", memory["planned_bytes"], memory["rss_peak_bytes"], memory["planned_to_measured_ratio"], 0.0)
    for phase in ("prefill", "decode"):
        part = report[phase]
        yield (phase, part["planned"]["tokens_per_second"], part["tokens_per_second"],
               part["planned_to_measured_ratio"], part["spread"])


def check_slice(options, entry, report):
    """Rows of the result, each with its verdict."""
    rows = []
    for what, planned, measured, ratio, spread in values_of(entry, report):
        bound = options.memory_bound if what == "memory" else options.speed_bound
        passed = ratio is not None and abs(ratio - 1) <= bound
        rows.append({"slice": entry["name"], "keys": entry["keys"], "prompt": entry["prompt"], "batch": entry["batch"],
                     "held_out": entry.get("held_out", False), "what": what, "planned": planned, "measured": measured,
                     "ratio": ratio, "spread": spread, "bound": bound, "passed": passed})
    return rows


def format_value(what, value):
    if value is None:
        return "unknown"
    return f"{value / 2**30:.2f} GiB" if what == "memory" else f"{value:.2f} tok/s"


def print_row(row):
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
    mark = "" if row["passed"] else " **out**"
    held = ", held out" if row["held_out"] else ""
    print(f"| {row['slice']}{held} | {row['prompt']} x {row['batch']} | {row['what']} "
          f"| {format_value(row['what'], row['planned'])} | {format_value(row['what'], row['measured'])} "
          f"| {row['spread'] * 100:.0f} % | {ratio}{mark} |", flush=True)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="path of rorqual")
    parser.add_argument("--json", metavar="FILE", help="write all reports and verdicts here")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0 = what the process may use")
    parser.add_argument("--only", action="append", metavar="NAME", help="run these slices only")
    parser.add_argument("--without-held-out", action="store_true", help="leave the held-out slices alone")
    parser.add_argument("--memory-bound", type=float, default=0.05)
    parser.add_argument("--speed-bound", type=float, default=0.15)
    return parser.parse_args()


def main():
    options = parse_options()
    chosen = [entry for entry in SLICES
              if (not options.only or entry["name"] in options.only)
              and not (options.without_held_out and entry.get("held_out"))]
    if not chosen:
        print("no slice of that name: " + ", ".join(entry["name"] for entry in SLICES), file=sys.stderr)
        return 2
    print("| slice | prompt x batch | figure | planned | measured | spread | ratio |")
    print("|---|---|---|---:|---:|---:|---:|")
    rows, reports, start = [], [], time.monotonic()
    for entry in chosen:
        report = run_slice(options, entry)
        if report is None:
            rows.append({"slice": entry["name"], "what": "run", "passed": False})
            continue
        reports.append(report)
        for row in check_slice(options, entry, report):
            rows.append(row)
            print_row(row)
    passed = all(row["passed"] for row in rows)
    threads = reports[0]["machine"]["threads"] if reports else 0
    print(f"\n{sum(row['passed'] for row in rows)} of {len(rows)} within bounds (memory {options.memory_bound:.0%}, speed "
          f"{options.speed_bound:.0%}); {threads} threads, load average {os.getloadavg()[0]:.1f}, "
          f"{time.monotonic() - start:.0f} s")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": "rorqual.plan_accuracy/1", "passed": passed, "rows": rows, "reports": reports}, file,
                      indent=1)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
