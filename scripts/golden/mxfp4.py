#!/usr/bin/env python3
"""What transformers makes of MXFP4 blocks of every code and of every scale that f32 has room for:
the number that tests/model/mxfp4_test.cc compares with, to the bit.

    python scripts/golden/mxfp4.py

Needs torch and transformers. Byte i of the blocks is 37 i + 11, scale j is j modulo 253. Printed is
the FNV-1a hash (64 bits) of the values' f32 bytes, row by row."""

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

ROWS, GROUPS = 4, 64


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    count = ROWS * GROUPS * 16
    blocks = ((torch.arange(count) * 37 + 11) % 256).to(torch.uint8).reshape(1, ROWS, GROUPS, 16)
    scales = (torch.arange(ROWS * GROUPS) % 253).to(torch.uint8).reshape(1, ROWS, GROUPS)
    values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)[0]  # [cols, rows]
    print(f"{fnv1a(values.T.contiguous().numpy().tobytes()):#018x}")


if __name__ == "__main__":
    main()
