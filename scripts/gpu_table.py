#!/usr/bin/env python3
"""Markdown of what a GPU's kernels reach.

    scripts/gpu_table.py PROFILE.json           shares of the ceilings measured on the spot (sluice profile --gpu 0 -o)
    scripts/gpu_table.py --runs BENCH.json ...  sluice bench --json of whole models

The aims: products of 4-bit weights with few rows and decode attention at 80 % of the memory's rate, prompt attention at 50 % of the
bf16 products' rate.
"""
import json
import re
import sys


def value(figure):
    return figure["value"] if isinstance(figure, dict) else figure


def code_bytes(weights):
    return {"int4-g64": 4.5 / 8, "int8": 1.0, "fp8": 1.0, "f32": 4.0}.get(weights, 2.0)


def operations(flops):
    return f"{flops / 1e12:.1f} TFLOP/s" if flops >= 1e11 else f"{flops / 1e9:.2f} GFLOP/s"


def traffic(bytes_per_second):
    return f"{bytes_per_second / 1e9:.0f} GB/s" if bytes_per_second >= 1e10 else f"{bytes_per_second / 1e6:.1f} MB/s"


def product_share(row, memory, dense):
    """(text, share): what bounds a product, as a rate and as a share of its ceiling."""
    flops = value(row["flops"])
    read = flops / (2 * row["m"]) * code_bytes(row["weights"])
    is_eight_bit = row.get("eight_bit_activations", row.get("int8_activations", False))
    # Few rows of fp8 are multiplied as 16-bit numbers.
    has_fast_cores = is_eight_bit and (not row["weights"].startswith("fp8") or row["m"] >= 65)
    of_cores = flops / (2 * dense if has_fast_cores else dense)
    if read / memory >= of_cores:
        return traffic(read), read / memory
    return operations(flops), of_cores


def product_name(row):
    if not row.get("eight_bit_activations", row.get("int8_activations", False)):
        return row["weights"]
    return row["weights"] + (", fp8 x" if row["weights"].startswith("fp8") else ", int8 x")


def kernels(path):
    with open(path, encoding="utf-8") as file:
        profile = json.load(file)
    if not profile.get("device"):
        sys.exit(f"gpu_table: {path} is the profile of a machine without a GPU: sluice profile --gpu 0 -o {path}")
    gpu, link = profile["device"], profile["link"]
    memory = value(gpu["memory_read_bytes_per_second"])
    dense = max(value(row["flops"]) for row in gpu["matmul"] if row["weights"] in ("bf16", "f16"))
    print(f"{gpu['name']}{', at ' + gpu['conditions'] if gpu.get('conditions') else ', clocks not known'}: "
          f"memory {traffic(memory)}, 16-bit products {operations(dense)}, link "
          f"{value(link['to_device_bytes_per_second']) / 1e9:.1f} up, {value(link['to_host_bytes_per_second']) / 1e9:.1f} down GB/s, "
          f"launch {1e6 * value(gpu['launch_seconds']):.1f} us\n")
    rows_of_x = sorted({row["m"] for row in gpu["matmul"]})
    print("Products: bytes of weights, or operations, a second, and the share of the ceiling that bounds them.\n")
    print("| weights, n x k | " + " | ".join(f"m={m}" for m in rows_of_x) + " |")
    print("| --- |" + " --- |" * len(rows_of_x))
    lines = {}
    for row in gpu["matmul"]:
        text, share = product_share(row, memory, dense)
        lines.setdefault(f"{product_name(row)}, {row['n']} x {row['k']}", {})[row["m"]] = f"{text}, {100 * share:.0f} %"
    for name, cells in lines.items():
        print(f"| {name} | " + " | ".join(cells.get(m, "") for m in rows_of_x) + " |")
    print("\n| attention | rate | share of its ceiling |\n| --- | --- | --- |")
    for row in gpu["attention"]:
        read = value(row["decode_bytes_per_second"])
        print(f"| decode, {row['kv']} KV | {traffic(read)} | {100 * read / memory:.0f} % of memory |")
        flops = value(row["prefill_flops"])
        print(f"| prompt, {row['kv']} KV | {operations(flops)} | {100 * flops / dense:.0f} % of products |")


def busiest(stats):
    """The lane that was busy longest, and for what share of the passes."""
    seconds = stats["prefill_s"] + stats["decode_s"]
    name, lane = max(stats["lanes"].items(), key=lambda item: item[1]["busy_s"])
    return f"{name}, {100 * lane['busy_s'] / max(seconds, 1e-9):.0f} %"


def split_output(path):
    """What a program said before its JSON, and the JSON."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    begin = text.index("\n{\n") + 1 if "\n{\n" in text else text.index("{")
    return text[:begin], json.JSONDecoder().raw_decode(text[begin:])[0]


def read_json(path):
    return split_output(path)[1]


def runs(paths):
    print("| run | batch | prompt tok/s | decode tok/s | all tok/s | expected | busiest lane | GPU memory |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for path in paths:
        name = path.rsplit("/", 1)[-1][:-5]
        try:
            said, answer = split_output(path)
            results = answer["results"]
        except (OSError, ValueError, KeyError):
            print(f"| {name} | failed | | | | | | |")
            continue
        # The search says what it expects before each batch's run.
        expected = re.findall(r"expected ([0-9.e+]+) tokens/s", said)
        for i, row in enumerate(results):
            stats = row["stats"]
            print(f"| {name} | {row['batch']} | {row['prefill_tokens_per_s']['median']:.1f} | {row['decode_tokens_per_s']['median']:.2f} | "
                  f"{stats['total_tokens_per_s']:.2f} | {expected[i] if len(expected) == len(results) else ''} | {busiest(stats)} | "
                  f"{stats['peak_bytes']['device'] / 2**30:.1f} GiB |")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    runs(sys.argv[2:]) if sys.argv[1] == "--runs" else kernels(sys.argv[1])
