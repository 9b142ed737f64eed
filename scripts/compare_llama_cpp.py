#!/usr/bin/env python3
"""sluice beside llama.cpp on the same weights, turn by turn on the same machine.

    scripts/compare_llama_cpp.py LLAMA_BIN MODEL.gguf STORE [options of sluice bench for STORE ...]

LLAMA_BIN: folder with llama-batched-bench, of llama.cpp or of ik_llama.cpp. STORE: `sluice convert MODEL.gguf STORE`. Each batch runs on one engine and
then on the other, ROUNDS times (default 2); the table has the best of each, tokens a second, and sluice over llama.cpp.
Environment: SLUICE, THREADS (default: all), BATCHES (1,8,32), PP (128), TG (32), ROUNDS, PEER_OPTIONS (more for the peer,
as "-rtr").
"""
import json
import os
import subprocess
import sys
import tempfile

SLUICE = os.environ.get("SLUICE", "build/release/bin/sluice")
THREADS = os.environ.get("THREADS", str(os.cpu_count()))
BATCHES = [int(b) for b in os.environ.get("BATCHES", "1,8,32").split(",")]
PP, TG = int(os.environ.get("PP", 128)), int(os.environ.get("TG", 32))
ROUNDS = int(os.environ.get("ROUNDS", 2))


def run(command, folder=None):
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done


def peer(folder, model, batch):
    with tempfile.TemporaryDirectory() as scratch:  # peers leave logs where they are run
        out = run([f"{folder}/llama-batched-bench", "-m", model, "-npp", str(PP), "-ntg", str(TG), "-npl", str(batch), "-c",
                   str((PP + TG) * batch), "-t", THREADS, "-tb", THREADS, "-b", "2048", "-ub", "512",
                   *os.environ.get("PEER_OPTIONS", "").split()], scratch)
    out = out.stdout + out.stderr  # ik_llama.cpp's table goes there
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in out.splitlines() if row.startswith("|")]
    named = dict(zip(rows[0], rows[-1]))
    return float(named["S_PP t/s"]), float(named["S_TG t/s"])


def ours(store, batch, options):
    out = run([SLUICE, "bench", store, "--batch", str(batch), "--pp", str(PP), "--tg", str(TG), "--reps", "1", "--json",
               "--no-disk-probe", "--threads", THREADS, *options])
    row = json.loads(out.stdout)["results"][0]
    return row["prefill_tokens_per_s"]["median"], row["decode_tokens_per_s"]["median"]


def main(folder, model, store, *options):
    folder, model = os.path.abspath(folder), os.path.abspath(model)
    print("| batch | llama.cpp prefill | sluice prefill | ratio | llama.cpp decode | sluice decode | ratio |")
    print("|---|---|---|---|---|---|---|")
    for batch in BATCHES:
        theirs, mine = [0, 0], [0, 0]
        for _ in range(ROUNDS):
            theirs = [max(pair) for pair in zip(theirs, peer(folder, model, batch))]
            mine = [max(pair) for pair in zip(mine, ours(store, batch, options))]
        print(f"| {batch} | {theirs[0]:.1f} | {mine[0]:.1f} | {mine[0] / theirs[0]:.2f} | {theirs[1]:.1f} | {mine[1]:.1f} | "
              f"{mine[1] / theirs[1]:.2f} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
