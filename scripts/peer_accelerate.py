#!/usr/bin/env python3
"""Accelerate's offload on a checkpoint folder, as a peer: scripts/peer_accelerate.py DIR --gpu-gib 16 --batch 16 --pp 512 --tg 32

Prints one JSON object: prefill and decode tokens a second of one timed generation (greedy, random prompts) after a warm-up of two
tokens. Needs torch, transformers and accelerate.
"""
import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--gpu-gib", type=float, required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--pp", type=int, default=512)
    parser.add_argument("--tg", type=int, default=32)
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model, torch_dtype=torch.float16, device_map="auto", offload_folder="offload",
        max_memory={0: f"{arguments.gpu_gib}GiB", "cpu": "1000GiB"})
    ids = torch.randint(10, 1000, (arguments.batch, arguments.pp), device="cuda:0")

    def generate(tokens):
        torch.cuda.synchronize()
        start = time.time()
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        torch.cuda.synchronize()
        return time.time() - start

    generate(2)
    first, whole = generate(1), generate(arguments.tg)
    print(json.dumps({"prefill_tokens_per_s": arguments.batch * arguments.pp / first,
                      "decode_tokens_per_s": arguments.batch * (arguments.tg - 1) / (whole - first), "total_s": whole}))


if __name__ == "__main__":
    main()
