#!/usr/bin/env python3
"""Importance matrices of a Llama checkpoint in both forms that llama-imatrix writes, with transformers.

  scripts/golden/imatrix.py MODEL TEXT OUT [--tokens N] [--window N]

Writes OUT.dat (what llama-imatrix --output-format dat writes) and OUT.gguf (its form since 2025; the gguf package's writer):
sums of squares of every linear layer's inputs over the first tokens of TEXT, by GGUF's names; no output.weight, as
llama-imatrix leaves it out unless told otherwise. Last run with transformers 5.24.0 and gguf 0.19.0.

tests/fixtures/imatrix: stories260k on the text of its goldens.
"""
import argparse
import struct

import gguf
import numpy
import torch
import transformers

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def sums_of_squares(model, text, tokens, window):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    sums = {}

    def observe(name):
        def hook(module, inputs, _):
            rows = inputs[0].double().reshape(-1, inputs[0].shape[-1])
            sums[name] = sums.get(name, 0) + rows.square().sum(0)
        return hook

    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            layer, part = name.split(".", 3)[2:]
            module.register_forward_hook(observe(f"blk.{layer}.{NAMES[part]}.weight"))
    with open(text) as file:
        ids = tokenizer(file.read(), add_special_tokens=False)["input_ids"][:tokens]
    rows = 0
    with torch.no_grad():
        for begin in range(0, len(ids), window - 1):
            part = [network.config.bos_token_id] + ids[begin:begin + window - 1]
            network(torch.tensor([part]))
            rows += len(part)
    return {name: one.numpy() for name, one in sorted(sums.items())}, rows


def write_dat(path, sums, rows, window, text):
    chunks = max(1, rows // window)
    with open(path, "wb") as file:
        file.write(struct.pack("<i", len(sums)))
        for name, one in sums.items():
            file.write(struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", chunks, len(one)))
            file.write((one / rows * chunks).astype("<f4").tobytes())
        file.write(struct.pack("<ii", chunks, len(text)) + text.encode())


def write_gguf(path, sums, rows, window, text):
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].pop("general.architecture", None)  # llama-imatrix writes none
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", [text])
    writer.add_uint32("imatrix.chunk_count", max(1, rows // window))
    writer.add_uint32("imatrix.chunk_size", window)
    for name, one in sums.items():
        writer.add_tensor(name + ".in_sum2", one.astype(numpy.float32).reshape(1, -1))
        writer.add_tensor(name + ".counts", numpy.array([[rows]], numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "text", "out"):
        parser.add_argument(name)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--window", type=int, default=256)
    options = parser.parse_args()
    sums, rows = sums_of_squares(options.model, options.text, options.tokens, options.window)
    name = options.text.rsplit("/", 1)[-1]
    write_dat(options.out + ".dat", sums, rows, options.window, name)
    write_gguf(options.out + ".gguf", sums, rows, options.window, name)
    print(f"{len(sums)} matrices, {rows} rows")


if __name__ == "__main__":
    main()
