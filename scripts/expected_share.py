#!/usr/bin/env python3
"""Writes docs/gpu/expected-share.md: what share of the ceiling each CUDA kernel should reach, from docs/gpu/kernel-budget.tsv.

    scripts/expected_share.py [--check]

The arithmetic is docs/gpu/design.md's. --check fails where the page is not what the table gives. Needs no GPU, no compiler.
"""
import itertools
import os
import re
import sys

import kernel_budget

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PAGE = os.path.join(ROOT, "docs/gpu/expected-share.md")
KIB = 1024
LONG_READS = 0.92  # of the nominal rate
ISSUED = 0.8  # of the issue slots, and of the tensor cores' time, beside waits and barriers


class Gpu:
    def __init__(self, name, arch, processors, rate, clock, latency, mma, integer_mma):
        self.name, self.arch = name, arch
        self.mma, self.integer_mma = mma, integer_mma  # cycles of a scheduler's m16n8k16 of 16-bit floats, m16n8k32 of int8
        self.cycles = KIB * clock * processors * 4 / rate  # of schedulers, while 1 KiB comes
        self.needed = rate * latency / processors  # bytes under way a multiprocessor
        self.each = rate / processors  # bytes a second of a multiprocessor
        self.clock, self.latency = clock, latency


GPUS = (Gpu("H200", "90", 132, 4.8e12, 1.83e9, 0.8e-6, 4, 4),
        Gpu("RTX 4090", "89", 128, 1.008e12, 2.52e9, 0.6e-6, 32, 16),
        Gpu("T4", "75", 40, 0.32e12, 1.3e9, 0.6e-6, 16, 16))
ENCODINGS = {"1": "int4", "2": "int8", "3": "nf4", "4": "fp8", "5": "mxfp4", "15": "q4_0", "16": "iq4"}
EIGHT_BITS = ("int8", "fp8")
SCALE_BYTES = {"mxfp4": 16, "q4_0": 32}  # of a group, else 64
KINDS = ("f16", "bf16", "int8", "int4", "k8v4")  # as KvKind numbers them
ROWS = {"1": "1 to 8", "2": "9 to 16", "4": "17 to 32", "8": "33 to 64"}


def budget():
    """{(kernel, sm): (instructions of the loop, instructions a KiB, blocks, bytes under way)}."""
    return {(kernel, sm): figures[5:9] for (_, kernel, sm), figures in kernel_budget.read_table()[1].items()}


def weights_of_kib(encoding, run):
    columns = int(run) or 64
    name = ENCODINGS[encoding]
    each = columns * (16 if name in EIGHT_BITS else 8) + (SCALE_BYTES.get(name, 64) if run != "0" else 0)
    return KIB * 16 * columns / each


def share(gpu, figures, planned, tensor_cycles):
    """(instructions a KiB, KiB under way, expected share of the memory's rate)."""
    _, per_kib, blocks, under_way = figures
    under_way = under_way / blocks * min(blocks, planned)
    least = min(LONG_READS, LONG_READS * under_way / gpu.needed, ISSUED * gpu.cycles / per_kib,
                ISSUED * gpu.cycles / tensor_cycles if tensor_cycles else 1)
    return f"{per_kib}, {under_way / KIB:.0f}, **{least:.2f}**"


def product(name):
    """(text, planned blocks, whether on integers, tensor instructions a KiB) of a product's kernel, or None."""
    match = re.match(r"quantised_linear_kernel<Encoding:(\d+), false, (\d), (\d+)>", name)
    integer = re.match(r"int8_linear_kernel<Encoding:(\d+), (\d), (\d+)>", name)
    if not match and not integer:
        return None
    encoding, tiles, run = (match or integer).groups()
    group = "" if run == "0" else f"-g{run}"
    tokens, macs = 8 * int(tiles), 16 * 8 * (32 if integer else 16)
    text = f"{ENCODINGS[encoding]}{group} x {'int8' if integer else 'f16'}, {ROWS[tiles]} rows"
    return text, 2, bool(integer), weights_of_kib(encoding, run) * tokens / macs


def products(table):
    for name in sorted({name for name, _ in table}, key=lambda name: ("int8" in name[:4], name)):
        known = product(name)
        if not known:
            continue
        text, planned, is_integer, instructions = known
        yield text, [share(gpu, table[name, gpu.arch], planned, instructions * (gpu.integer_mma if is_integer else gpu.mma))
                     for gpu in GPUS]


# GGUF's types that are kept as they are, by their encodings' numbers.
K_TYPES = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q4_1", "q5_1", "iq1", "iq2")


def k_types(table):
    for number, name in enumerate(K_TYPES, 6):
        for tiles, rows in (("1", "1 to 8"), ("4", "9 to 32")):
            kernel = next(kernel for kernel, _ in table if kernel.startswith(f"k_linear_kernel<Encoding:{number}, false, {tiles}>"))
            yield f"{name} x f16, {rows} rows", [share(gpu, table[kernel, gpu.arch], 2, 0) for gpu in GPUS]


def attention(table, has_few_rows):
    for kind, dim, adjusts in itertools.product((0, 2, 4, 3), (64, 128, 256), (False, True)):
        name = f"attention_kernel<KvKind:{kind}, {dim}, {str(has_few_rows).lower()}, {str(adjusts).lower()}>"
        text = f"{KINDS[kind]} KV, heads of {dim}" + (", scores capped or sloped" if adjusts else "")
        if has_few_rows:
            yield text, [share(gpu, table[name, gpu.arch], 3 if dim > 64 else 4, 0) for gpu in GPUS]
            continue
        parts = 2 if dim > 128 else 4
        cells = []
        for gpu in GPUS:
            loop = table[name, gpu.arch][0]
            cycles = parts * dim // 16 * 4 * gpu.mma
            cells.append(f"{loop}, {cycles}, **{ISSUED * cycles / max(cycles, loop):.2f}**")
        yield text, cells


def wide(table):
    for kernel, text in (("false, false", ""), ("false, true", ", scores capped or sloped")):
        cells = []
        for gpu in GPUS:
            figures = table[f"wide_attention_kernel<{kernel}>", gpu.arch]
            cycles = (2 * 512 // 32 + 2 * 2 * 128 // 16) * gpu.mma  # of scores, of values
            cells.append(f"{share(gpu, figures, 3, 0)}, **{ISSUED * cycles / max(cycles, figures[0]):.2f}**")
        yield f"f16 KV{text}", cells


# Latent rows: columns, query heads of a model.
LATENT = ((576, 128, "DeepSeek-V2"), (576, 16, "DeepSeek-V2-Lite"), (320, 40, "MiniCPM3"), (128, 32, "short rows"))
LATENT_ROWS, LATENT_TILE, LATENT_PLANNED = 32, 32, 2


def latent(table):
    for dim, heads, model in LATENT:
        yield f"{dim} columns, {heads} heads ({model})", [latent_share(gpu, table, dim, heads) for gpu in GPUS]


def latent_share(gpu, table, dim, heads):
    """(instructions a KiB, KiB under way, shares of the memory's rate at single tokens and of the tensor cores in prompts)."""
    loop, per_kib, blocks, under_way = table[f"latent_attention_kernel<false, {dim}, false>", gpu.arch]
    if blocks == 0:
        return "does not fit"
    held = min(blocks, LATENT_PLANNED)
    tiles = -(-heads // LATENT_ROWS)  # blocks that want the same rows: the first has them from memory, the others from L2
    tensor = (2 * dim // 16 + 2 * LATENT_TILE // 16 * 2 * dim // 4 // 16) * gpu.mma / gpu.clock
    works = max(loop / gpu.clock, tensor) / ISSUED
    tile_bytes = LATENT_TILE * dim * 2

    def turn(part):
        comes = tile_bytes * part / gpu.each / LONG_READS
        return max(held * comes, held * works, gpu.latency + comes + works)

    # L2 is taken for twice as fast as memory.
    of_memory = held * tile_bytes / tiles / turn(max(1 / tiles, 0.5)) / gpu.each
    of_cores = held * tensor / turn(0.5)
    return f"{per_kib}, {under_way / blocks * held / KIB:.0f}, **{of_memory:.2f}**, **{of_cores:.2f}**"


def page():
    table = budget()
    lines = ["# Expected shares", "",
             "Written by `scripts/expected_share.py` from [kernel-budget.tsv](kernel-budget.tsv); [design.md](design.md) has the",
             "arithmetic and what was taken for it. No GPU has run any of this.", ""]

    def section(title, what, rows):
        lines.extend([f"## {title}", "", what, "", "| kernel | " + " | ".join(gpu.name for gpu in GPUS) + " |",
                      "| --- |" + " --- |" * len(GPUS)])
        lines.extend(f"| {text} | " + " | ".join(cells) + " |" for text, cells in rows)
        lines.append("")

    each = "Instructions a KiB, KiB under way a multiprocessor, **share of the memory's nominal rate**."
    section("Products of few rows", each, products(table))
    section("Products of few rows with GGUF's types as they are",
            f"{each}\nUnder way is taken to be a block of 32 columns of each warp; what the compiler asks for ahead comes on top.",
            k_types(table))
    section("Attention of few rows", each, attention(table, True))
    section("Attention of prompts", "Instructions of a warp's tile, cycles of the tensor cores beside them, **share of the tensor cores**.",
            attention(table, False))
    section("Attention of heads of 512 columns",
            "Instructions a KiB, KiB under way, **share of the memory's nominal rate at single tokens**, **of the tensor cores in\n"
            "prompts**, if tiles did not wait for their loads.", wide(table))
    section("Attention to latent rows",
            "Instructions a KiB of rows, KiB under way a multiprocessor, **share of the memory's rate at single tokens**, **share of\n"
            "the tensor cores in prompts**.", latent(table))
    return "\n".join(lines)


def main():
    text = page()
    if "--check" in sys.argv[1:]:
        if not os.path.exists(PAGE) or open(PAGE, encoding="utf-8").read() != text:
            sys.exit("expected_share: docs/gpu/expected-share.md is not what docs/gpu/kernel-budget.tsv gives: run "
                     "scripts/expected_share.py")
        return
    with open(PAGE, "w", encoding="utf-8") as out:
        out.write(text)


if __name__ == "__main__":
    main()
