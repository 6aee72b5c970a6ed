# SPDX-License-Identifier: Apache-2.0
"""Writes bench/prompts/{code,tool,needle}.jsonl: held-out prompts of the demonstration model's families, rendered
with the chat encoding, one {"prompt"} a line.

    python3 python/mini/bench_prompts.py [COUNT]
"""
import json
import pathlib
import random
import sys

import data

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "bench" / "prompts"


def prompt_of(sample):
    """Text up to the answer of the last assistant turn, and how many characters that answer has."""
    if "raw" in sample:
        prompt = data.BOS + sample["rawprompt"]
        return prompt, len(data.BOS + sample["raw"]) - len(prompt)
    last = max(i for i, m in enumerate(sample["messages"]) if m["role"] == "assistant")
    prompt = data.render(sample, last)
    turns = dict(sample, messages=sample["messages"][: last + 1])
    return prompt, len(data.render(turns)) - len(prompt)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    FOLDER.mkdir(parents=True, exist_ok=True)
    for family in ("code", "tool", "needle"):
        rng = random.Random(f"bench {family}")
        lines = []
        while len(lines) < count:
            sample = data.sample(rng, family, held=True)
            prompt, answer = prompt_of(sample)
            if answer < 24:
                continue  # too short to time a decode
            if family == "code" and "def " not in prompt:
                continue  # code from a stub only
            lines.append(json.dumps({"prompt": prompt}, ensure_ascii=False))
        (FOLDER / f"{family}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
