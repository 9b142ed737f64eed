#!/usr/bin/env python3
"""The packages of GPTQ and AWQ beside sluice's formats at equal bits: rows for scripts/equal_bits_table.py's table.

  scripts/equal_bits_packages.py MODEL TEXT CALIBRATION WORKDIR [--window N]

Wants llmcompressor (vLLM's, which has both) in Python's path; quantises on the CPU. The first 16384 tokens of CALIBRATION in
windows, as equal_bits_table.py; linear layers alone, the head and the table stay as they are. What it writes (compressed-tensors
folders) is measured by `sluice eval` as it lies, against f32. Prints Markdown.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys

import datasets
import torch
import transformers
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier
try:
    from llmcompressor.modifiers.awq import AWQModifier
except ImportError:
    from llmcompressor.modifiers.transform.awq import AWQModifier

PROGRAM = os.environ.get("SLUICE", "build/release/bin/sluice")
TOKENS = 16384
GPTQ, ZEROS, AWQ = ("GPTQ", GPTQModifier, True), ("GPTQ, with zeros", GPTQModifier, False), ("AWQ", AWQModifier, False)
MEASURED = [(*kind, group) for group in (128, 64, 32) for kind in (AWQ, ZEROS, GPTQ)]
if not torch.cuda.is_available():  # llmcompressor pins what it keeps of the activations, which wants a driver
    torch.Tensor.pin_memory = lambda tensor, *_: tensor


def windows(model, text, size):
    """The calibration text's first tokens as rows of one window each, without padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with open(text) as file:
        ids = tokenizer(file.read(), add_special_tokens=False)["input_ids"][:TOKENS]
    rows = [ids[begin:begin + size] for begin in range(0, len(ids) - size + 1, size)]
    return datasets.Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * size for _ in rows]})


def quantise(model, rows, modifier, out):
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    shutil.rmtree(out, ignore_errors=True)
    oneshot(model=network, dataset=rows, recipe=[modifier], max_seq_length=len(rows[0]["input_ids"]), num_calibration_samples=len(rows))
    network.save_pretrained(out, save_compressed=True)
    shutil.copy(os.path.join(model, "tokenizer.json"), out)


def measured(folder, arguments, base):
    line = [PROGRAM, "eval", folder, "--text", arguments.text, "--window", str(arguments.window), "--json", "--compute", "f32",
            "--kv-dtype", "f32", *base]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(line)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "text", "calibration", "workdir"):
        parser.add_argument(name)
    parser.add_argument("--window", type=int, default=256)
    arguments = parser.parse_args()
    os.makedirs(arguments.workdir, exist_ok=True)
    base = os.path.join(arguments.workdir, "base.npy")
    measured(arguments.model, arguments, ["--save-logits", base])
    rows = windows(arguments.model, arguments.calibration, arguments.window)
    print("| bits a weight | | perplexity | mean KL | same top token |\n|---|---|---|---|---|")
    for name, modifier, symmetric, group in MEASURED:
        weights = QuantizationArgs(num_bits=4, type="int", symmetric=symmetric, strategy="group", group_size=group)
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        out = os.path.join(arguments.workdir, f"{name.split(',')[0].lower()}-{'sym' if symmetric else 'asym'}-{group}")
        quantise(arguments.model, rows, modifier(config_groups={"group_0": scheme}, ignore=["lm_head"]), out)
        one = measured(out, arguments, ["--against", base])
        bits = 4 + (16 if symmetric else 20) / group
        print(f"| {bits:.2f} | {name}, groups of {group} | {one['perplexity']:.3f} | {one['kl_mean']:.6f} | "
              f"{100 * one['top1_agreement']:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
