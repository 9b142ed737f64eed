#!/usr/bin/env python3
"""Accuracy by bits a weight: sluice's formats and --bits, with and without --calibrate, beside llama.cpp's quantiser on the same weights.

  scripts/equal_bits_table.py MODEL TEXT CALIBRATION LIBGGML WORKDIR [--window N]

MODEL is a Llama checkpoint (scripts/train_small_model.py), TEXT and CALIBRATION are texts that have nothing in common, LIBGGML is
a shared library with llama.cpp's ggml_quantize_chunk (ggml.c, ggml-quants.c and ggml-threading.cpp are enough:
`cc -shared -fPIC`). Its importance matrix is what llama-imatrix gathers: mean squares of each linear layer's inputs, here from
transformers. Types by tensor are llama-quantize's for Llama. Its values, decoded by the gguf package, become f32 checkpoints, and
everything is measured by `sluice eval` against f32. Rows that are no multiple of a type's block are filled up with zeros for it;
bits a weight are the type's, without what fills rows (but with --bits, which counts it), and those of the linear layers alone: embedding and head stay as they are everywhere. Prints Markdown.
"""
import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys

import gguf
import numpy
import torch
import transformers
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file

PROGRAM = os.environ.get("SLUICE", "build/release/bin/sluice")
BITS = {"int8": 8, "q6_k": 6.625, "q5_k": 5.5, "int4-g32": 5, "iq4": 5, "int4": 4.5, "q4_0": 4.5, "nf4": 4.5, "q4_k": 4.5, "int4-g128": 4.25,
        "mxfp4": 4.25, "q3_k": 3.5, "q2_k": 2.625}
ASKED = [3.5, 4, 4.16, 4.25, 4.3, 4.5, 4.8, 5, 5.5, 6.56]  # --bits
THEIRS = ["Q8_0", "Q6_K", "Q5_K", "Q4_K_M", "Q4_K", "Q4_0", "IQ4_NL", "IQ4_XS", "Q3_K_M", "Q3_K", "IQ3_S", "IQ3_XXS", "Q2_K_M", "Q2_K"]
TOKENS, WINDOW = 16384, 256


def sluice(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"sluice {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def mean_squares(model, text):
    """By name of the weight, over the first tokens of the text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    sums, rows = {}, 0

    def observe(name):
        def hook(module, inputs, _):
            sums[name] = sums.get(name, 0) + inputs[0].double().square().sum((0, 1))
        return hook

    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_hook(observe(name + ".weight"))
    with open(text) as file:
        ids = tokenizer(file.read(), add_special_tokens=False)["input_ids"][:TOKENS]
    with torch.no_grad():
        for begin in range(0, len(ids), WINDOW - 1):
            window = [network.config.bos_token_id] + ids[begin:begin + WINDOW - 1]
            network(torch.tensor([window]))
            rows += len(window)
    return {name: (sum / rows).float().numpy() for name, sum in sums.items()}


def type_of(asked, name, layers, important):
    """llama-quantize's choice for a tensor of Llama (llama_tensor_get_type), up to 3 query heads to a KV head."""
    layer = int(name.split(".")[2])
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if asked == "Q3_K_M":
        if "v_proj" in name and layer < 2 or "down_proj" in name and layer < layers // 16:
            return "Q5_K"
        return "Q4_K" if any(part in name for part in ("v_proj", "o_proj", "down_proj")) else "Q3_K"
    if asked == "Q2_K_M":  # what llama-quantize calls Q2_K
        return "Q3_K" if any(part in name for part in ("v_proj", "o_proj", "down_proj")) else "Q2_K"
    if asked == "Q4_K_M":
        return "Q6_K" if more and ("v_proj" in name or "down_proj" in name) else "Q4_K"
    if "down_proj" in name and layer < layers // 8:
        if asked in ("IQ4_NL", "IQ4_XS") and not important:
            return "Q5_K"
        if asked == "Q4_0" and important:
            return "Q4_1"
    return asked


def quantised(ggml, weight, kind, importance):
    """The values that are left of a matrix, and bits a weight."""
    quant = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[quant]
    rows, cols = weight.shape
    padded = -(-cols // block) * block
    source = numpy.zeros((rows, padded), numpy.float32)
    source[:, :cols] = weight
    factors = None
    if importance is not None:
        factors = numpy.zeros(padded, numpy.float32)
        factors[:cols] = importance
    out = numpy.zeros(rows * padded // block * size, numpy.uint8)
    pointer = ctypes.POINTER(ctypes.c_float)
    ggml.ggml_quantize_chunk(int(quant), source.ctypes.data_as(pointer), out.ctypes.data_as(ctypes.c_void_p), 0, rows, padded,
                             factors.ctypes.data_as(pointer) if factors is not None else None)
    return dequantize(out.reshape(rows, -1), quant)[:, :cols], 8 * size / block


def their_model(options, ggml, kind, importance, layers):
    folder = os.path.join(options.workdir, kind + ("-imatrix" if importance else ""))
    os.makedirs(folder, exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(os.path.join(options.model, name), folder)
    tensors = {name: value.float() for name, value in load_file(os.path.join(options.model, "model.safetensors")).items()}
    bits, count = 0.0, 0
    for name, value in tensors.items():
        if not name.endswith("_proj.weight"):
            continue
        chosen = type_of(kind, name, layers, bool(importance))
        values, each = quantised(ggml, value.numpy(), chosen, importance[name] if importance else None)
        tensors[name] = torch.from_numpy(numpy.ascontiguousarray(values))
        bits += each * value.numel()
        count += value.numel()
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    return folder, bits / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "text", "calibration", "libggml", "workdir"):
        parser.add_argument(name)
    parser.add_argument("--window", type=int, default=WINDOW)
    options = parser.parse_args()
    os.makedirs(options.workdir, exist_ok=True)
    ggml = ctypes.CDLL(options.libggml, mode=os.RTLD_LAZY)
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_int64,
                                         ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_float)]
    with open(os.path.join(options.model, "config.json")) as file:
        layers = json.load(file)["num_hidden_layers"]
    base = os.path.join(options.workdir, "base.npy")
    common = ["--text", options.text, "--window", options.window, "--json", "--compute", "f32", "--kv-dtype", "f32"]
    f32 = json.loads(sluice("eval", options.model, *common, "--save-logits", base))
    rows = [(16, "as it is", f32["perplexity"], 0, 1)]

    def measure(bits, name, folder):
        result = json.loads(sluice("eval", folder, *common, "--against", base))
        rows.append((bits, name, result["perplexity"], result["kl_mean"], result["top1_agreement"]))

    importance = mean_squares(options.model, options.calibration)
    for kind in THEIRS:
        for factors in (None, importance):
            folder, bits = their_model(options, ggml, kind, factors, layers)
            measure(bits, f"llama.cpp {kind}" + (", importance matrix" if factors else ""), folder)
    for kind in BITS:
        for flags in ([], ["--calibrate", options.calibration, "--calibrate-tokens", TOKENS]):
            folder = os.path.join(options.workdir, "ours")
            sluice("convert", options.model, folder, "--overwrite", "--weights", kind, *flags)
            measure(BITS[kind], f"sluice {kind}" + (", --calibrate" if flags else ""), folder)
    for bits in ASKED:
        for flags in ([], ["--calibrate", options.calibration, "--calibrate-tokens", TOKENS]):
            folder = os.path.join(options.workdir, "ours")
            sluice("convert", options.model, folder, "--overwrite", "--bits", bits, *flags)
            model = json.loads(sluice("inspect", folder, "--json"))["model"]
            measure(model["bits_a_weight"], f"sluice --bits {bits:g}" + (", --calibrate" if flags else ""), folder)
            print(f"--bits {bits:g}{' --calibrate' if flags else ''}: {model['mix']}", file=sys.stderr)
    print("| bits a weight | | perplexity | mean KL | same top token |\n|---|---|---|---|---|")
    for bits, name, perplexity, kl, same in sorted(rows, key=lambda row: (-row[0], -row[3])):
        print(f"| {bits:.2f} | {name} | {perplexity:.3f} | {kl:.6f} | {100 * same:.1f} % |")


if __name__ == "__main__":
    main()
