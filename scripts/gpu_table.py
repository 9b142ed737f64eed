#!/usr/bin/env python3
"""Markdown of what a GPU's kernels reach.

    scripts/gpu_table.py PROFILE.json           shares of the ceilings measured on the spot (sluice profile --gpu 0 -o)
    scripts/gpu_table.py --runs BENCH.json ...  sluice bench --json of whole models

The aims: products of 4-bit weights with few rows and decode attention at 80 % of the memory's rate, prompt attention at 50 % of the
bf16 products' rate.
"""
import json
import sys


def value(figure):
    return figure["value"] if isinstance(figure, dict) else figure


def code_bytes(weights):
    return {"int4-g64": 4.5 / 8, "int8": 1.0, "fp8": 1.0, "f32": 4.0}.get(weights, 2.0)


def kernels(path):
    with open(path, encoding="utf-8") as file:
        profile = json.load(file)
    gpu, link = profile["device"], profile["link"]
    memory = value(gpu["memory_read_bytes_per_second"])
    dense = max(value(row["flops"]) for row in gpu["matmul"] if row["weights"] in ("bf16", "f16"))
    print(f"{gpu['name']}: memory {memory / 1e9:.0f} GB/s, 16-bit products {dense / 1e12:.0f} TFLOP/s, link "
          f"{value(link['to_device_bytes_per_second']) / 1e9:.1f} up, {value(link['to_host_bytes_per_second']) / 1e9:.1f} down GB/s, "
          f"launch {1e6 * value(gpu['launch_seconds']):.1f} us\n")
    print("| kernel | rate | share of its ceiling |\n| --- | --- | --- |")
    for row in gpu["matmul"]:
        flops = value(row["flops"])
        read = flops / (2 * row["m"]) * code_bytes(row["weights"])
        is_eight_bit = row.get("eight_bit_activations", row.get("int8_activations", False))
        is_fp8 = row["weights"].startswith("fp8")
        inputs = "" if not is_eight_bit else ", fp8 inputs," if is_fp8 else ", int8 inputs,"
        # Few rows of fp8 are multiplied as 16-bit numbers.
        has_fast_cores = is_eight_bit and (not is_fp8 or row["m"] >= 65)
        bound = max(read / memory, flops / (2 * dense if has_fast_cores else dense))
        print(f"| {row['weights']}{inputs} m={row['m']} {row['n']}x{row['k']} | {flops / 1e12:.2f} TFLOP/s, {read / 1e9:.0f} GB/s of weights | "
              f"{100 * bound:.0f} % |")
    for row in gpu["attention"]:
        read = value(row["decode_bytes_per_second"])
        print(f"| decode attention, {row['kv']} KV | {read / 1e9:.0f} GB/s | {100 * read / memory:.0f} % of memory |")
        flops = value(row["prefill_flops"])
        print(f"| prompt attention, {row['kv']} KV | {flops / 1e12:.1f} TFLOP/s | {100 * flops / dense:.0f} % of products |")


def runs(paths):
    print("| run | batch | prefill tok/s | decode tok/s |\n| --- | --- | --- | --- |")
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            results = json.loads(text[text.index("{"):])["results"]
        except (ValueError, KeyError):
            continue
        for row in results:
            print(f"| {path.rsplit('/', 1)[-1][:-5]} | {row['batch']} | {row['prefill_tokens_per_s']['median']:.1f} | "
                  f"{row['decode_tokens_per_s']['median']:.2f} |")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    runs(sys.argv[2:]) if sys.argv[1] == "--runs" else kernels(sys.argv[1])
