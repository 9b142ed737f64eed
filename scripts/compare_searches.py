#!/usr/bin/env python3
"""Holds two builds' searches for policies against each other: which finds the faster plans, and which is done first.

    scripts/compare_searches.py BEFORE AFTER [--cases 200] [--seed 48] [--most-seconds 60]

BEFORE and AFTER are two sluice programs. Each plans the same random questions (models, formats, machines, memory,
prompts, sequences), and BEFORE judges the policies that both found, so that both are held to one model of the machine.
It prints a line for each question, then how many of AFTER's plans are slower by more than 1 %, the worst, and the
seconds of both.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

MODELS = ["llama-3.1-8b", "llama-2-7b", "opt-6.7b", "opt-30b", "llama-3.1-70b", "qwen3-14b", "qwen3-30b-a3b",
          "gpt-oss-20b", "gpt-oss-120b", "glm-4.5-air", "mixtral-8x7b", "gemma-3-12b", "qwen3-235b-a22b", "opt-175b",
          "deepseek-v3"]
MACHINES = ["laptop-8gb", "rtx-3060", "rtx-3090", "rtx-4090", "t4", "h100"]
FORMATS = ["bf16", "int4", "int8", "q4_k"]


def question(rng):
    size = lambda most: max(1, round(most ** rng.random()))
    out = [rng.choice(MODELS), "--hardware", rng.choice(MACHINES), "--weights", rng.choice(FORMATS),
           "--prompt-len", str(size(16000)), "--gen-len", str(size(2000)), "--sequences", str(size(300))]
    if rng.random() < 0.3:
        out += ["--cpu-mem", f"{rng.choice([16, 48, 160])}GiB"]
    if rng.random() < 0.15:
        out += ["--device", "cpu"]
    return out


def plan(program, arguments, most_seconds):
    """What is planned, or None: nothing fits, or not in time."""
    try:
        run = subprocess.run([program, "plan", *arguments, "--no-lifts", "--json"], capture_output=True, text=True,
                             timeout=most_seconds)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(run.stdout) if run.returncode == 0 else None


def planned_and_judged(after, before, arguments, most_seconds):
    """What `after` plans, and what `before` says of it."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        found = plan(after, [*arguments, "--output-policy", file.name], most_seconds)
        return found, found and plan(before, [*arguments, "--policy", file.name], most_seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=48)
    parser.add_argument("--most-seconds", type=float, default=60, help="of one search; slower ones are left out")
    parser.add_argument("--known", type=pathlib.Path, help="keeps what BEFORE found, and takes it from there again")
    options = parser.parse_args()
    known = json.loads(options.known.read_text()) if options.known and options.known.exists() else {}
    rng = random.Random(options.seed)
    ratios, seconds = [], [0.0, 0.0]
    slowest = [0.0, 0.0]
    for number in range(options.cases):
        arguments = question(rng)
        name = " ".join(arguments)
        if name not in known:
            found, own = planned_and_judged(options.before, options.before, arguments, options.most_seconds)
            known[name] = own and {"search_s": found["search_s"], "job_s": own["predicted"]["job_s"]}
            if options.known:
                options.known.write_text(json.dumps(known))
        before = known[name]
        if before is None:
            continue
        after, again = planned_and_judged(options.after, options.before, arguments, options.most_seconds)
        if not again:
            print(f"{number}: {name}: only {options.before} has a plan")
            continue
        ratio = again["predicted"]["job_s"] / before["job_s"]
        ratios.append((ratio, name))
        for i, one in enumerate((before, after)):
            seconds[i] += one["search_s"]
            slowest[i] = max(slowest[i], one["search_s"])
        print(f"{number}: {name}: {ratio:.4f}, {before['search_s']:.2f} s, {after['search_s']:.2f} s", flush=True)
    ratios.sort()
    if not ratios:
        sys.exit("no question has a plan")
    print(f"{len(ratios)} questions; slower by more than 1 %: {sum(r > 1.01 for r, _ in ratios)}, faster: "
          f"{sum(r < 0.99 for r, _ in ratios)}; worst {ratios[-1][0]:.4f} ({ratios[-1][1]}), best {ratios[0][0]:.4f}")
    print(f"searches took {seconds[0]:.1f} s before, {seconds[1]:.1f} s after; the longest {slowest[0]:.1f} and "
          f"{slowest[1]:.1f} s")


if __name__ == "__main__":
    main()
