#!/usr/bin/env python3
"""Writes docs/mixtures-planned.md: what `sluice plan` expects of large mixtures of experts, from the program alone.

    scripts/mixture_plans.py [--check]

Nothing is measured and no weights are needed; some minutes of one core. Fails where a plan is faster than its own bytes
allow by arithmetic. --check fails where the page is not what the program gives. SLUICE names the program.
"""
import json
import os
import subprocess
import sys

PROGRAM = os.environ.get("SLUICE", "build/release/bin/sluice")
ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PAGE = os.path.join(ROOT, "docs/mixtures-planned.md")
PROMPT, NEW = 512, 256

# What MoE-Gen publishes of one RTX A5000 (its README): prefill and decode tokens/s, weights as they are published.
MOE_GEN = (("mixtral-8x7b", "bf16", 2790, 469), ("mixtral-8x22b", "bf16", 907, 91), ("deepseek-v2", "bf16", 787, 31),
           ("deepseek-v3", "fp8", 204, 17))
MOE_GEN_BOX = ("--hardware", "a5000", "--cpu-mem", "1TiB")
MOE_GEN_SEQUENCES = 2048

MODELS = ("deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b")
BLOCKS = (1, 64, 256, 1024, 2048)
MACHINES = (
    ("A 24 GB GPU, 128 GB, an NVMe of 7 GB/s", ("--hardware", "rtx-4090", "--cpu-mem", "128GB"), 7e9),
    ("An 8 GB laptop", ("--hardware", "laptop-8gb"), None),
    ("A CPU with 24 GiB, the same NVMe", ("--hardware", "rtx-4090", "--device", "cpu", "--cpu-mem", "24GiB"), 7e9))

# Written by hand after looking at what the tables have: look again when they change.
NOTES = """## What it says

- **Blocks beside MoE-Gen**: planned almost as fast as its Mixtral-8x7B with the same bytes, 1.4 to 3.7 times as fast in
  decode with the larger ones; in int4 2 to 6.5 times, since a quarter of the bytes goes up the link. The GPU's
  arithmetic is taken as 50 to 75 % of its data sheet's for 64 rows and more: prompts are as sure as that.
- **One user beside a GPU**: slots in host memory hold the experts of late, the CPU multiplies them, and the disk brings
  what is missing. DeepSeek-V3 on the 24 GB GPU decodes 3.9 tokens/s, on the laptop 0.72; when every pass waited for all
  experts it was 0.030 and 0.014. Qwen3-235B on the laptop: 1.95, was 0.045.
- **A layer's experts need no ring**: DeepSeek-V3 on a CPU with 24 GiB would keep 5.8 GiB free for them. All passes ask
  instead, prompts' too, and that memory holds 7 experts of each layer: 0.97 tokens/s, was 0.019. It fits into 12 GiB.
- **More users on disk gain little, large blocks much**: a CPU with 24 GiB decodes Qwen3-235B for one user at 2.8
  tokens/s, for 64 at 4.1 together, for 256 at 12. DeepSeek-V3 on the 24 GB GPU decodes no faster for 64 users than
  for one; their prompts come in 50 times as fast together.

What looked wrong:

- DeepSeek-V3's prompts on the laptop come in at 9.5 tokens/s in a job of 2048 too, since passes that ask multiply
  experts on the host. Passes that send them up would be faster by far, and leave room for small blocks in decode only.
- int4 prompts are no faster than bf16 ones: arithmetic bounds them, and the shipped machines have no rates of their own
  for int4.
""".rstrip().split("\n")


def sluice(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode == 4:
        return None  # it does not fit
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def known_models():
    names = subprocess.run([PROGRAM, "plan", "--list-models"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in names.splitlines()}


def plan(model, machine, sequences, weights=None, disk=None):
    words = ["plan", model, *machine, "--prompt-len", PROMPT, "--gen-len", NEW, "--sequences", sequences, "--no-lifts",
             "--json"]
    if weights:
        words += ["--weights", weights]
    if not disk:
        return sluice(*words)
    row = sluice(*words, "--sweep", f"disk-read={disk / 1e9:g}GB/s")[0]
    return None if "error" in row else row


def rates(machine):
    """Bytes a second of (disk, link); 0: there is none."""
    profile = sluice("profile", "--show", machine[machine.index("--hardware") + 1], "--json")
    disk = sum(one["read_bytes_per_second"]["value"] for one in profile["disks"])
    return disk, 0 if "cpu" in machine else profile["link"]["to_device_bytes_per_second"]["value"]


def figures(row):
    predicted = row["predicted"]
    block = predicted["block_sequences"]
    return block, block * PROMPT / predicted["prefill_s"], block * (NEW - 1) / predicted["decode_s"]


def bound(row, phase):
    """The lane that is busiest in a phase, and how much of it."""
    predicted = row["predicted"]
    name, lane = max(predicted["lanes"].items(), key=lambda item: item[1][phase])
    return f"{name} {min(100 * lane[phase] / predicted[phase], 100):.0f} %"


def require_possible(row, machine, disk):
    """A decode pass takes its experts' bytes over the disk's and the link's rates, at least."""
    disk_rate, link_rate = rates(machine)
    decode = row["mixture"]["decode_pass"]
    least = decode["read_bytes"] / (disk or disk_rate)
    if link_rate:
        least = max(least, decode["up_bytes"] / link_rate)
    seconds = row["predicted"]["decode_s"] / (NEW - 1)
    if seconds < 0.98 * least:
        raise RuntimeError(f"{row['model']} on {row['hardware']}: a pass takes {seconds:.3g} s, "
                           f"its bytes {least:.3g} s")


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    return ""


def moe_gen_rows():
    yield "| model | weights | block | prefill tok/s | MoE-Gen | bound | decode tok/s | MoE-Gen | bound |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for model, published, prefill, decode in MOE_GEN:
        for weights in (published, "int4"):
            row = plan(model, MOE_GEN_BOX, MOE_GEN_SEQUENCES, weights)
            require_possible(row, MOE_GEN_BOX, None)
            block, planned_prefill, planned_decode = figures(row)
            yield (f"| {model} | {weights} | {block} "
                   f"| {number(planned_prefill)} | {prefill} | {bound(row, 'prefill_s')} "
                   f"| {number(planned_decode)} | {decode} | {bound(row, 'decode_s')} |")


def machine_rows(machine, disk, models):
    yield "| model | sequences, block | prefill tok/s | bound | decode tok/s | bound | experts found | moved a token |"
    yield "|---|---|---|---|---|---|---|---|"
    for model in models:
        # Codes that its files have are kept; others are quantised.
        weights = None if model.startswith("gpt-oss") else "int4"
        for sequences in BLOCKS:
            row = plan(model, machine, sequences, weights, disk)
            if row is None:
                yield f"| {model} | {sequences} | does not fit | | | | | |"
                continue
            require_possible(row, machine, disk)
            block, prefill, decode = figures(row)
            one = row["mixture"]["decode_pass"]
            yield (f"| {model} | {sequences}, {block} | {number(prefill)} | {bound(row, 'prefill_s')} "
                   f"| {number(decode)} | {bound(row, 'decode_s')} "
                   f"| {100 * one['found_share']:.0f} % | {size(one['moved_bytes_a_token'])} |")


def page():
    models = [name for name in MODELS if name in known_models()]
    yield from (
        "# Large mixtures, planned",
        "",
        "**Simulated, not measured.** Every number on this page but MoE-Gen's is what `sluice plan` expects by",
        "simulating its schedule; no GPU has run any of it. Machines are data sheets and estimated shares of them",
        "(`sluice profile --show NAME`). `scripts/mixture_plans.py` makes the page from the program alone and fails",
        "where a plan is faster than the bytes that it moves allow.",
        "",
        f"Prompts of {PROMPT} tokens, {NEW} new ones. *Bound*: the lane that is busiest in the phase, and its share of",
        "the phase's time. *Block*: sequences that decode together, as the plan chose it; larger jobs run in rounds.",
        "",
        "## MoE-Gen's box",
        "",
        "One RTX A5000 (24 GB, PCIe 4.0 x16) and host memory for the model: 1 TiB here. What its host computes with is",
        "not known here; ours has 32 cores and eight channels of DDR4-3200. MoE-Gen's numbers are its authors' (README,",
        f"March 2025), without quantisation but R1's FP8 files; ours are of a job of {MOE_GEN_SEQUENCES} sequences. R1",
        "has DeepSeek-V3's shape.",
        "",
        *moe_gen_rows(),
        "",
        "    sluice plan MODEL " + " ".join(MOE_GEN_BOX) + f" --prompt-len {PROMPT} --gen-len {NEW}" +
        f" --sequences {MOE_GEN_SEQUENCES} --weights W")
    for title, machine, disk in MACHINES:
        yield from (
            "", f"## {title}", "", *machine_rows(machine, disk, models), "",
            "    sluice plan MODEL " + " ".join(machine) + f" --prompt-len {PROMPT} --gen-len {NEW} --sequences N" +
            " \\", "      --weights int4" + (f" --sweep disk-read={disk / 1e9:g}GB/s" if disk else ""))
    yield from ("", *NOTES)


def main():
    text = "\n".join(page()) + "\n"
    if "--check" in sys.argv:
        with open(PAGE, encoding="utf-8") as there:
            if there.read() != text:
                sys.exit(f"{PAGE} is not what the program gives: run scripts/mixture_plans.py")
        return
    with open(PAGE, "w", encoding="utf-8") as out:
        out.write(text)


if __name__ == "__main__":
    main()
