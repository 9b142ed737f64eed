#!/usr/bin/env python3
"""Accelerate's offload as a peer, on random weights made in memory: nothing is downloaded and nothing is on disk.

    scripts/peer_accelerate.py opt-30b --gpu-gib 16 --batch 16 --pp 512 --tg 32
    scripts/peer_accelerate.py FOLDER/config.json --cpu ...     tries the script where there is no GPU

Layers are copies of one that is drawn at random, each with memory of its own. Prints one JSON object: prefill and decode tokens a
second of one timed generation (greedy, random prompts) after a warm-up of two tokens. Needs torch, transformers and accelerate.
"""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from accelerate import cpu_offload, dispatch_model, infer_auto_device_map, init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, OPTConfig

OPT = {"opt-1.3b": (24, 2048, 32), "opt-6.7b": (32, 4096, 32), "opt-13b": (40, 5120, 40), "opt-30b": (48, 7168, 56)}


def config_of(shape):
    if shape in OPT:
        layers, hidden, heads = OPT[shape]
        return OPTConfig(num_hidden_layers=layers, hidden_size=hidden, ffn_dim=4 * hidden, num_attention_heads=heads,
                         word_embed_proj_dim=hidden, vocab_size=50272, max_position_embeddings=2048)
    if os.path.exists(shape):
        return AutoConfig.from_pretrained(shape)
    sys.exit(f"peer_accelerate: {shape} is neither a config.json nor one of {', '.join(OPT)}")


def is_layer(name):
    """The number of its layer and the rest of the name, where a parameter is a layer's."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return int(part), ".".join(parts[i + 1:])
    return None


def fill(model, dtype):
    """Gives every parameter of a model without memory some on the CPU."""
    first_layer = {}
    for name, parameter in list(model.named_parameters()):
        layer = is_layer(name)
        if layer and layer[0] > 0:
            values = first_layer[layer[1]].clone()
        else:
            values = torch.empty(parameter.shape, dtype=dtype).normal_(0, 0.02)
            if layer:
                first_layer[layer[1]] = values
        owner = model.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], torch.nn.Parameter(values, requires_grad=False))
    model.tie_weights()


def placed(config, arguments):
    dtype = torch.float32 if arguments.cpu else torch.float16
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config)
    fill(model, dtype)
    model.eval()
    if arguments.cpu:
        return cpu_offload(model, execution_device=torch.device("cpu"))
    limits = {0: f"{arguments.gpu_gib}GiB", "cpu": "1000GiB"}
    kept_whole = [f"{config.model_type.upper()}DecoderLayer", "LlamaDecoderLayer"]
    devices = infer_auto_device_map(model, max_memory=limits, no_split_module_classes=kept_whole, dtype=dtype)
    print(f"parts on the GPU: {sum(1 for place in devices.values() if place == 0)} of {len(devices)}", file=sys.stderr)
    return dispatch_model(model, devices)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shape")
    parser.add_argument("--gpu-gib", type=float, default=16)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--pp", type=int, default=512)
    parser.add_argument("--tg", type=int, default=32)
    parser.add_argument("--cpu", action="store_true", help="no GPU: tries the script")
    arguments = parser.parse_args()
    if arguments.tg < 2:
        parser.error("--tg: at least 2, decode is what comes after the first token")
    started = time.time()
    config = config_of(arguments.shape)
    model = placed(config, arguments)
    print(f"made in {time.time() - started:.0f} s", file=sys.stderr)
    ids = torch.randint(10, min(1000, config.vocab_size), (arguments.batch, arguments.pp), device="cpu" if arguments.cpu else "cuda:0")

    def generate(tokens):
        wait = (lambda: None) if arguments.cpu else torch.cuda.synchronize
        wait()
        start = time.time()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        wait()
        assert out.shape[1] == arguments.pp + tokens, "as many tokens as asked for"
        return time.time() - start

    with torch.no_grad():
        generate(2)
        first, whole = generate(1), generate(arguments.tg)
    print(json.dumps({"prefill_tokens_per_s": arguments.batch * arguments.pp / first,
                      "decode_tokens_per_s": arguments.batch * (arguments.tg - 1) / max(whole - first, 1e-9), "total_s": whole}))


if __name__ == "__main__":
    main()
