#!/usr/bin/env python3
"""Writes PEFT adapters of random values for the linear layers of a Llama-like checkpoint, for speed work.

    scripts/random_lora.py CHECKPOINT FOLDER [--count 10] [--rank 16]

FOLDER/0, FOLDER/1, ...: f16, of all linear layers. Needs numpy and safetensors, no torch."""
import argparse
import json
import pathlib

import numpy
import safetensors.numpy


def linear_layers(config):
    """(name, outputs, inputs) of each."""
    hidden, width = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    for layer in range(config["num_hidden_layers"]):
        prefix = f"base_model.model.model.layers.{layer}."
        for name, outputs, inputs in (("self_attn.q_proj", queries, hidden), ("self_attn.k_proj", keys, hidden),
                                      ("self_attn.v_proj", keys, hidden), ("self_attn.o_proj", hidden, queries),
                                      ("mlp.gate_proj", width, hidden), ("mlp.up_proj", width, hidden),
                                      ("mlp.down_proj", hidden, width)):
            yield prefix + name, outputs, inputs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--rank", type=int, default=16)
    asked = parser.parse_args()
    config = json.loads((asked.checkpoint / "config.json").read_text())
    for number in range(asked.count):
        random = numpy.random.default_rng(number)
        tensors = {}
        for name, outputs, inputs in linear_layers(config):
            for end, shape in ((".lora_A.weight", (asked.rank, inputs)), (".lora_B.weight", (outputs, asked.rank))):
                tensors[name + end] = (0.01 * random.standard_normal(shape, dtype=numpy.float32)).astype(numpy.float16)
        folder = asked.folder / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "r": asked.rank, "lora_alpha": asked.rank, "target_modules": "all-linear", "bias": "none"}) + "\n")


if __name__ == "__main__":
    main()
