#!/usr/bin/env python3
"""What each format of weights and KV costs in accuracy and saves in bytes, on one model and text.

  scripts/quantisation_table.py MODEL TEXT WORKDIR [--window N] [--calibration TEXT2]

MODEL is a checkpoint that is not quantised; WORKDIR takes the stores and the f32 logits (vocabulary x tokens x 4 bytes).
Everything is held against the f32 run: KL divergence and top-token agreement over the tokens of TEXT. Prints Markdown and
writes WORKDIR/table.json.
"""
import argparse
import json
import os
import subprocess
import sys

PROGRAM = os.environ.get("SLUICE", "build/release/bin/sluice")

# name, weights (None: as they are), range, flags of eval
ROWS = [
    ("bf16", "bf16", "clip", ["--kv-dtype", "bf16"]),
    ("int8 (W8A16)", "int8", "clip", []),
    ("int8, groups of 32", "int8-g32", "clip", []),
    ("fp8 e4m3", "fp8", "clip", []),
    ("fp8 e4m3 with fp8 activations", "fp8", "clip", ["--activations", "fp8"]),
    ("W8A8", "int8", "clip", ["--activations", "int8"]),
    ("LLM.int8() (W8A8, outliers over 6 apart)", "int8", "clip", ["--activations", "int8", "--outlier-threshold", "6"]),
    ("NF4 g64", "nf4", "clip", []),
    ("int4 g32, min/max", "int4-g32", "minmax", []),
    ("int4 g64, min/max", "int4", "minmax", []),
    ("int4 g128, min/max", "int4-g128", "minmax", []),
    ("int4 g32, clipped", "int4-g32", "clip", []),
    ("int4 g64, clipped (default)", "int4", "clip", []),
    ("int4 g128, clipped", "int4-g128", "clip", []),
    ("int4 g64 with int8 activations (W4A8)", "int4", "clip", ["--activations", "int8"]),
    ("f32 weights, KV int8", None, "clip", ["--kv-dtype", "int8"]),
    ("f32 weights, KV k8v4 (keys int8, values int4)", None, "clip", ["--kv-dtype", "k8v4"]),
    ("f32 weights, KV int4", None, "clip", ["--kv-dtype", "int4"]),
    ("f32 weights, KV int4, the newest 32 tokens f16", None, "clip", ["--kv-dtype", "int4", "--kv-recent", "32"]),
    ("f32 weights, KV int4, the newest 128 tokens f16", None, "clip", ["--kv-dtype", "int4", "--kv-recent", "128"]),
    ("int4 g64 and KV int4", "int4", "clip", ["--kv-dtype", "int4"]),
    ("f32 weights, values of 10 % of the positions", None, "clip", ["--attn-sparsity", "0.1"]),
    ("4-bit-S: int4 g64, KV int4, values of 10 %", "int4", "clip", ["--kv-dtype", "int4", "--attn-sparsity", "0.1"]),
]
# With --calibration: scaled for what the activations are.
CALIBRATED = [
    ("int4 g32, activation-aware", "int4-g32", "calibrated", []),
    ("int4 g64, activation-aware", "int4", "calibrated", []),
]


def sluice(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"sluice {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("workdir")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--calibration", help="text that activation-aware rows are scaled for, other than TEXT")
    options = parser.parse_args()
    os.makedirs(options.workdir, exist_ok=True)
    base_logits = os.path.join(options.workdir, "base.npy")
    common = ["--text", options.text, "--window", options.window, "--json"]
    base = json.loads(sluice("eval", options.model, *common, "--compute", "f32", "--kv-dtype", "f32", "--save-logits", base_logits))
    size = json.loads(sluice("inspect", options.model, "--json"))["model"]["weight_bytes"]
    print(f"{base['scored_tokens']} tokens, windows of {base['window_tokens']}\n")
    print("| | weights | perplexity | against f32 | mean KL | 99 % KL | same top token |")
    print("|---|---|---|---|---|---|---|")
    print(f"| f32 | {size / 1024:.0f} KiB | {base['perplexity']:.4f} | | | | |", flush=True)
    results = [{"name": "f32", "bytes": size, **{k: base[k] for k in ("perplexity", "scored_tokens")}}]
    for name, weights, search, flags in ROWS + (CALIBRATED if options.calibration else []):
        model = options.model
        if weights:
            model = os.path.join(options.workdir, f"{weights}-{search}")
            if not os.path.exists(os.path.join(model, "sluice-store.json")):
                choice = ["--calibrate", options.calibration] if search == "calibrated" else ["--int4-range", search]
                sluice("convert", options.model, model, "--weights", weights, *choice)
        own_kv = [] if "--kv-dtype" in flags else ["--kv-dtype", "f32"]
        row = json.loads(sluice("eval", model, *common, "--against", base_logits, *flags, *own_kv))
        row_bytes = json.loads(sluice("inspect", model, "--json"))["model"]["weight_bytes"]
        change = row["perplexity"] / base["perplexity"] - 1
        print(f"| {name} | {row_bytes / 1024:.0f} KiB | {row['perplexity']:.4f} | {100 * change:+.2f} % | {row['kl_mean']:.5f} | "
              f"{row['kl_p99']:.4f} | {100 * row['top1_agreement']:.1f} % |", flush=True)
        results.append({"name": name, "bytes": row_bytes, "change": change,
                        **{k: row[k] for k in ("perplexity", "kl_mean", "kl_p99", "kl_max", "top1_agreement")}})
    with open(os.path.join(options.workdir, "table.json"), "w") as out:
        json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()
