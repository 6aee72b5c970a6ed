#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a copy of a checkpoint with one fault, to see whether a gate finds it.

usage: degrade.py IN OUT --experts int3|int2          routed experts re-quantised, stored as legal MXFP4
       degrade.py IN OUT --transpose-scale PATTERN    block scales of the weights whose names match are transposed
                                                      within their shape ("*.attn.wo_b.scale")

Works on any checkpoint in the official format; the standard library only. Prints what changed as JSON.
"""

import argparse
import fnmatch
import json
import pathlib
import shutil
import struct
import sys

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1; bit 3 of a code is the sign
LEVELS = {"int3": (-4, -3, -2, -1, 0, 1, 2, 3), "int2": (-2, -1, 0, 1)}
GROUP_BYTES = 16  # 32 codes share a scale
SHIFTS = (-1, 0, 1, 2)  # candidates for the new scale, as powers of two of the old one
MAX_E8M0 = 254  # 255 is NaN


def value_of(code: int) -> float:
    return -MAGNITUDES[code & 7] if code & 8 else MAGNITUDES[code & 7]


def code_of(level: int) -> int:
    return MAGNITUDES.index(float(abs(level))) | (8 if level < 0 else 0)


def byte_tables(levels: tuple[int, ...], shift: int) -> tuple[bytes, bytes]:
    """For a scale 2^shift times the old one: new byte and squared error of every old byte.

    All values are multiples of a half, so four times a squared error is a whole number; that of two codes fits a byte.
    """
    codes, errors = [], []
    for code in range(16):
        wanted = value_of(code)
        level = min(levels, key=lambda candidate: (abs(candidate * 2.0**shift - wanted), candidate))
        codes.append(code_of(level))
        errors.append(int(4 * (level * 2.0**shift - wanted) ** 2))
    return (bytes(codes[byte & 15] | codes[byte >> 4] << 4 for byte in range(256)),
            bytes(errors[byte & 15] + errors[byte >> 4] for byte in range(256)))


def requantise(weight: bytes, scale: bytes, levels: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Per group the shift with the least squared error, the smallest among equals."""
    tables = [(shift, *byte_tables(levels, shift)) for shift in SHIFTS]
    new_weight, new_scale = bytearray(), bytearray()
    for index, exponent in enumerate(scale):
        group = weight[index * GROUP_BYTES:(index + 1) * GROUP_BYTES]
        best = None
        for shift, codes, errors in tables:
            if not 0 <= exponent + shift <= MAX_E8M0:
                continue
            error = sum(group.translate(errors))
            if best is None or error < best[0]:
                best = (error, shift, codes)
        new_weight += group.translate(best[2])
        new_scale.append(exponent + best[1])
    return bytes(new_weight), bytes(new_scale)


class Shards:
    """The tensors of all shards of a folder, changed in place."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.where = {}  # name -> (file, offset, header entry)
        for file in sorted(folder.glob("*.safetensors")):
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(length))
            for name, entry in header.items():
                if name != "__metadata__":
                    self.where[name] = (file, 8 + length + entry["data_offsets"][0], entry)

    def read(self, name: str) -> bytes:
        file, offset, entry = self.where[name]
        with file.open("rb") as stream:
            stream.seek(offset)
            return stream.read(entry["data_offsets"][1] - entry["data_offsets"][0])

    def write(self, name: str, data: bytes) -> None:
        file, offset, entry = self.where[name]
        assert len(data) == entry["data_offsets"][1] - entry["data_offsets"][0], name
        with file.open("r+b") as stream:
            stream.seek(offset)
            stream.write(data)


def degrade_experts(shards: Shards, kind: str) -> int:
    changed = 0
    for name, (_, _, entry) in shards.where.items():
        if ".experts." not in name or not name.endswith(".weight") or entry["dtype"] not in ("I8", "U8", "F4"):
            continue
        scale_name = name.removesuffix("weight") + "scale"
        weight, scale = shards.read(name), shards.read(scale_name)
        if len(weight) != GROUP_BYTES * len(scale):
            sys.exit(f"error: {name} has {len(weight)} bytes for {len(scale)} scales, expected {GROUP_BYTES} each")
        new_weight, new_scale = requantise(weight, scale, LEVELS[kind])
        shards.write(name, new_weight)
        shards.write(scale_name, new_scale)
        changed += new_weight != weight
    return changed


def transpose_scales(shards: Shards, pattern: str) -> int:
    changed = 0
    for name, (_, _, entry) in shards.where.items():
        if not fnmatch.fnmatchcase(name, pattern) or entry["dtype"] != "F8_E8M0" or len(entry["shape"]) != 2:
            continue
        rows, columns = entry["shape"]
        data = shards.read(name)
        transposed = bytes(data[row * columns + column] for column in range(columns) for row in range(rows))
        shards.write(name, transposed)
        changed += transposed != data
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path)
    fault = parser.add_mutually_exclusive_group(required=True)
    fault.add_argument("--experts", choices=sorted(LEVELS))
    fault.add_argument("--transpose-scale", metavar="PATTERN")
    options = parser.parse_args()
    options.target.mkdir(parents=True)
    for file in options.source.iterdir():
        if file.is_file():
            shutil.copyfile(file, options.target / file.name)  # without modes: the source may be read-only
    shards = Shards(options.target)
    if options.experts:
        changed = degrade_experts(shards, options.experts)
    else:
        changed = transpose_scales(shards, options.transpose_scale)
    if changed == 0:
        shutil.rmtree(options.target)
        sys.exit("error: nothing was changed; does the checkpoint have such tensors?")
    print(json.dumps({"fault": options.experts or f"transpose {options.transpose_scale}", "tensors": changed}))


if __name__ == "__main__":
    main()
