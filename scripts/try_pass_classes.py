#!/usr/bin/env python3
"""Prompts and decodes mixed in one server, on an emulated device behind a slow link beside a slower host: classes of passes that
choose who computes, beside both fixed choices for the same placement (docs/perf-notes.md, "Classes of passes").

    scripts/try_pass_classes.py MODEL

Each server runs alone, ROUNDS times in turn (default 3), with USERS callers (4), REQUESTS (24) prompts of a mean of PROMPT (96) and
outputs of a mean of NEW (16) tokens, both exponential. Environment besides: SLUICE, DEVICE, CPU_MEM.
"""
import copy
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request

from served import SLUICE, served

DEVICE = os.environ.get("DEVICE", "emulated:mem=256MiB,h2d=400MB/s,d2h=400MB/s,host_flops=10GFLOP/s")
CPU_MEM = os.environ.get("CPU_MEM", "4GiB")
ROUNDS, USERS, REQUESTS, PROMPT, NEW = (int(os.environ.get(name, value)) for name, value in
                                        [("ROUNDS", 3), ("USERS", 4), ("REQUESTS", 24), ("PROMPT", 96), ("NEW", 16)])
# The same shares with another ring: some more room, so that the comparison is not about that.
ROOMIER = re.sub(r"mem=(\d+)MiB", lambda found: f"mem={int(found[1]) + 64}MiB", DEVICE)
PLACE = ["--device", DEVICE, "--cpu-mem", CPU_MEM, "-c", str(8 * (PROMPT + NEW))]
LENGTHS = ["--pp", str(PROMPT), "--tg", str(NEW), "--lengths", "exponential", "--max-prompt-len", str(6 * PROMPT)]


def called(*arguments):
    done = subprocess.run([SLUICE, *arguments], capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def metrics(url):
    """Passes and seconds by class."""
    text = urllib.request.urlopen(url + "/metrics", timeout=60).read().decode()
    lines = [line for line in text.splitlines() if line.startswith("sluice:pass_class_") and "first_token" not in line]
    return {line.split("sluice:pass_class_")[1].split("{")[0] + " from " + line.split('from_tokens="')[1].split('"')[0]:
            float(line.rsplit(" ", 1)[1]) for line in lines}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    model = sys.argv[1]
    shape = ["--max-num-seqs", str(USERS)]
    found = called("serve", model, *PLACE, *shape, "--dry-run", "--json")["policy"]
    print("policy found:", json.dumps(found), flush=True)
    fixed = {}
    for name, share in [("all in place", found["weights"]["host"]), ("all sent up", 0.0)]:
        policy = copy.deepcopy(found)
        policy.pop("larger_passes", None)
        policy["inplace_host_fraction"] = share
        fixed[name] = policy
    took = {"by class": [], **{name: [] for name in fixed}}
    print("| round | who computes | s | TTFT ms p50 / p99 | TPOT ms p50 | output tok/s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            for name in took:
                flags = []
                if name in fixed:
                    path = os.path.join(folder, name.replace(" ", "-") + ".json")
                    with open(path, "w") as file:
                        json.dump(fixed[name], file)
                    flags = ["--policy", path, "--device", ROOMIER]
                with served(model, *(flags or PLACE[:2]), *PLACE[2:], *shape) as url:
                    row = called("bench-serve", "--url", url, "--users", str(USERS), "--requests", str(REQUESTS), "--vocab",
                                 "30000", "--seed", str(number + 1), *LENGTHS, "--json")["results"][0]
                    by_class = metrics(url)
                took[name].append(row["seconds"])
                print(f"| {number + 1} | {name} | {row['seconds']:.1f} | {row['ttft_ms']['p50']:.0f} / {row['ttft_ms']['p99']:.0f} | "
                      f"{row['tpot_ms']['p50']:.0f} | {row['output_tokens_per_s']:.2f} |", flush=True)
                print("  ", by_class, file=sys.stderr, flush=True)
    for name in fixed:
        ratio = statistics.median(a / b for a, b in zip(took[name], took["by class"]))
        print(f"{name}: {ratio:.2f} times as long as by class (median of {ROUNDS} pairs)")


if __name__ == "__main__":
    main()
