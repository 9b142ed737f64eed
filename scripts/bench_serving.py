#!/usr/bin/env python3
"""The measurements of docs/perf-notes.md, "Serving", that need more than one server.

    scripts/bench_serving.py swap MODEL       old prompts from swap space beside computing them again
    scripts/bench_serving.py admission MODEL  static batches, continuous batching, and KV by expected length
    scripts/bench_serving.py ladder MODEL     one request at a time, static, continuous, by expected length, with the prefix cache
    scripts/bench_serving.py streamed MODEL   the same for a model of which CPU_MEM (400MiB) stays in memory

MODEL: a folder or store; TinyLlama's shape in int4 for the figures there (`sluice synth tinyllama-1.1b DIR`, `sluice convert DIR
STORE --weights int4`). Each server runs alone, ROUNDS times in turn (default 1). Environment: SLUICE, ROUNDS, CPU_MEM; TRACE, a file of
"seconds,prompt tokens,new tokens" whose lengths the ladder takes (cut at LONGEST, 160) instead of exponential ones; STEPS, the
names of the ladder's steps to climb, with commas between.
"""
import json
import os
import random
import subprocess
import sys
import time
import urllib.request

from served import SLUICE, served

ROUNDS = int(os.environ.get("ROUNDS", 1))


def ask(url, prompt, tokens):
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    began = time.monotonic()
    answer = json.load(urllib.request.urlopen(request, timeout=600))
    return time.monotonic() - began, answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]


def swap(model):
    """Eight prompts of 800 tokens in turn, three times, and KV for three of them."""
    draw = random.Random(3)
    prompts = [[draw.randrange(100, 30000) for _ in range(800)] for _ in range(8)]
    texts = {}
    print("| swap space | round | mean s to 4 tokens | tokens copied or known |\n|---|---|---|---|")
    for space in ["0", "2GiB"] * ROUNDS:
        flags = ["-c", "1024", "--kv-tokens", "2600", "--max-num-seqs", "4"]
        flags += ["--swap-space", space] if space != "0" else []
        with served(model, *flags) as url:
            for number in range(3):
                seconds, known = 0, 0
                for i, prompt in enumerate(prompts):
                    took, cached, text = ask(url, prompt, 4)
                    seconds += took
                    known += cached
                    if texts.setdefault(i, text) != text:
                        sys.exit(f"prompt {i} has another answer than before")
                print(f"| {space} | {number + 1} | {seconds / len(prompts):.2f} | {known} of {800 * len(prompts)} |", flush=True)


def load(url, *flags):
    done = subprocess.run([SLUICE, "bench", "serve", "--url", url, "--vocab", "30000", "--json", *flags], capture_output=True,
                          text=True, timeout=1800)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["results"][0]


def metric(url, name):
    for line in urllib.request.urlopen(url + "/metrics").read().decode().splitlines():
        if line.startswith(name):
            return float(line.split()[-1])
    return float("nan")


def measure(model, serve_flags, load_flags):
    """What the load felt of a server of its own, with the passes that it took."""
    with served(model, *serve_flags) as url:
        row = load(url, *load_flags)
        row["passes"] = metric(url, "vllm:iteration_tokens_total_count")
    return row


def in_seconds(row, name, *shares):
    return " / ".join(f"{row[name][share] / 1000:.1f}" for share in shares)


KINDS = {"static": ["--static", "--no-length-prediction"], "continuous": ["--no-length-prediction"],
         "continuous, KV by expected length": []}


def compare(model, serve_flags, loads):
    print("| load | batching | output tok/s | passes | TTFT s p50 | E2E s p50 / p99 |\n|---|---|---|---|---|---|")
    for name, load_flags in loads.items():
        for kind, kind_flags in list(KINDS.items()) * ROUNDS:
            row = measure(model, ["--no-prefix-cache", *serve_flags, *kind_flags], load_flags)
            print(f"| {name} | {kind} | {row['output_tokens_per_s']:.1f} | {row['passes']:.0f} | {in_seconds(row, 'ttft_ms', 'p50')} | "
                  f"{in_seconds(row, 'e2e_ms', 'p50', 'p99')} |", flush=True)


def admission(model):
    compare(model, ["-c", "256", "--kv-tokens", "1024", "--max-num-seqs", "32"], {
        "16 + 112, all alike": ["--users", "32", "--requests", "48", "--pp", "16", "--tg", "112"],
        "16 + about 80": ["--users", "32", "--requests", "48", "--pp", "16", "--tg", "80", "--lengths", "exponential",
                          "--max-gen-len", "230"]})


def ladder(model):
    """Every step has KV for 16 sequences of the longest length, which is what batches of fixed slots can hold."""
    flags = ["--users", "64", "--requests", "64", "--shared-prefix", "64"]
    longest = int(os.environ.get("LONGEST", 160))
    trace = os.environ.get("TRACE")
    flags += (["--trace", trace, "--max-prompt-len", str(longest), "--max-gen-len", str(longest)] if trace else
              ["--pp", "96", "--tg", "48", "--lengths", "exponential"])
    most = 64 + (2 * longest if trace else 4 * (96 + 48))  # exponential lengths are cut at four times their mean
    sixteen, uncached = ["--max-num-seqs", "16"], ["--no-prefix-cache", "--no-length-prediction"]
    steps = {"one at a time": ["--max-num-seqs", "1", "--no-prefix-cache"],
             "static batches of 16": ["--static", *sixteen, *uncached],
             "16 at a time continuously": [*sixteen, *uncached],
             "as many as the pages hold": ["--max-num-seqs", "64", *uncached],
             "and KV by expected length": ["--max-num-seqs", "64", "--no-prefix-cache"],
             "and the prefix cache": ["--max-num-seqs", "64"]}
    print("| batching | req/s | output tok/s | passes | TTFT s p50 / p99 | E2E s p50 / p99 |\n|---|---|---|---|---|---|")
    asked = [step.strip() for step in os.environ.get("STEPS", ",".join(steps)).split(",")]
    if unknown := set(asked) - set(steps):
        sys.exit(f"STEPS: {', '.join(unknown)} is none of {', '.join(steps)}")
    for step, step_flags in [step for step in steps.items() if step[0] in asked] * ROUNDS:
        row = measure(model, ["-c", str(max(1024, most)), "--kv-tokens", str(16 * most), *step_flags], flags)
        print(f"| {step} | {row['requests_per_s']:.2f} | {row['output_tokens_per_s']:.1f} | {row['passes']:.0f} | "
              f"{in_seconds(row, 'ttft_ms', 'p50', 'p99')} | {in_seconds(row, 'e2e_ms', 'p50', 'p99')} |", flush=True)


def streamed(model):
    compare(model, ["-c", "256", "--cpu-mem", os.environ.get("CPU_MEM", "400MiB"), "--activations", "int8"], {
        "about 24 + 24": ["--users", "64", "--requests", "64", "--pp", "24", "--tg", "24", "--lengths", "exponential"]})


if __name__ == "__main__":
    modes = {"swap": swap, "admission": admission, "ladder": ladder, "streamed": streamed}
    if len(sys.argv) != 3 or sys.argv[1] not in modes:
        sys.exit(__doc__)
    modes[sys.argv[1]](sys.argv[2])
