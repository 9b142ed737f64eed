#!/usr/bin/env python3
"""Holds what a GPU answered against what the CPU did: sluice run --json --logprobs 5, the same prompt and model.

    scripts/gpu_same.py CPU.json GPU.json [--tolerance 0.02] [--least-host 2GiB]

The tokens have to be the same up to a near tie, where two tokens are as likely but for twice the tolerance; what comes after one is
of other contexts. Up to there the log-probabilities of the likeliest tokens differ by the tolerance at most. --least-host wants
so much in pinned host memory, and some of the weights read from disk. Prints one line, or what differs, and then exits with 1.

The tolerance: OPT-6.7B's shape with 2 and 8 layers of random f16 weights differed by 0.0013 and 0.0018 between the CPU in f32 and
the kernels on the host's stand-in; rounding grows as the root of the layers.
"""
import argparse
import sys

from gpu_table import read_json

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    return int(float(text[:-3]) * UNITS[text[-3:]])


def compare(cpu, gpu, tolerance):
    """(tokens that are equal, the largest difference, what is wrong or None, what ended it or None)."""
    largest = 0.0
    for i, (here, there) in enumerate(zip(cpu["logprobs"], gpu["logprobs"])):
        ours = {choice["id"]: choice["logprob"] for choice in [here, *here["top"]]}
        theirs = {choice["id"]: choice["logprob"] for choice in [there, *there["top"]]}
        both = ours.keys() & theirs.keys()
        if here["id"] not in theirs and there["id"] not in ours:
            return i, largest, f"token {i}: {here['id']} and {there['id']}, neither among the other's likeliest", None
        difference = max(abs(ours[token] - theirs[token]) for token in both)
        if not difference <= tolerance:  # NaN is not
            return i, largest, f"token {i}: log-probabilities differ by {difference:.4f}", None
        largest = max(largest, difference)
        if here["id"] != there["id"]:
            gap = min(ours[here["id"]] - ours[there["id"]] if there["id"] in ours else float("inf"),
                      theirs[there["id"]] - theirs[here["id"]] if here["id"] in theirs else float("inf"))
            if gap <= 2 * tolerance:
                return i, largest, None, f"then {here['id']} and {there['id']} within {gap:.4f}"
            return i, largest, f"token {i}: {here['id']} on the CPU, {there['id']} on the GPU, {gap:.4f} apart", None
    if len(cpu["logprobs"]) != len(gpu["logprobs"]) or not cpu["logprobs"]:
        return len(cpu["logprobs"]), largest, f"{len(cpu['logprobs'])} and {len(gpu['logprobs'])} tokens", None
    return len(cpu["logprobs"]), largest, None, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cpu")
    parser.add_argument("gpu")
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--least-host", type=size, default=0)
    asked = parser.parse_args()
    try:
        cpu, gpu = read_json(asked.cpu), read_json(asked.gpu)
        equal, largest, wrong, tie = compare(cpu, gpu, asked.tolerance)
        stats = gpu["stats"]
        read = stats["lanes"].get("disk read", {}).get("bytes", 0)
        pinned, pageable = stats["pinned_bytes"], stats["pageable_bytes"]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"gpu_same: an answer is missing: {type(error).__name__}: {error}")
    print(f"{equal} of {len(cpu['logprobs'])} tokens equal{', ' + tie if tie else ''}; log-probabilities differ by {largest:.4f} "
          f"at most ({asked.tolerance} allowed); on the GPU {stats['peak_bytes']['device'] / 2**30:.2f} GiB, in pinned host memory "
          f"{pinned / 2**30:.2f}, not pinned {pageable / 2**30:.2f}, read from disk {read / 2**30:.2f}; "
          f"{stats['tokens_per_s']:.2f} tokens/s")
    if asked.least_host and (pinned < asked.least_host or read == 0):
        wrong = wrong or f"not in three places: {pinned} bytes pinned, {read} read from disk"
    if wrong:
        sys.exit(f"gpu_same: {wrong}")


if __name__ == "__main__":
    main()
