#!/usr/bin/env python3
"""Trains the model of 15 million parameters that docs/quantisation.md measures formats on: Llama's layers, on the CPU.

    scripts/train_small_model.py OUT MINUTES HTML_FOLDER...     MINUTES of all cores; for example /usr/share/doc/python3.11/html

OUT becomes a checkpoint as Hugging Face writes them (config.json, model.safetensors, tokenizer.json), with held_out.txt (text
of pages that it never saw) and calibration.txt (of pages that it did). Started again it goes on from OUT/state.pt. Needs torch,
tokenizers and safetensors.
"""
import glob
import html.parser
import json
import math
import os
import random
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, MLP, CONTEXT = 4096, 384, 8, 6, 3, 64, 1152, 256
BATCH, RATE, WARMUP = 16, 1.5e-3, 60


class Paragraphs(html.parser.HTMLParser):
    """The running text of a page: its paragraphs and list items."""

    def __init__(self):
        super().__init__()
        self.depth, self.text, self.done = 0, [], []

    def handle_starttag(self, tag, attributes):
        if tag in ("p", "li", "dd"):
            self.flush()
            self.depth = 1

    def handle_endtag(self, tag):
        if tag in ("p", "li", "dd", "body"):
            self.flush()
            self.depth = 0

    def handle_data(self, data):
        if self.depth:
            self.text.append(data)

    def flush(self):
        paragraph = " ".join("".join(self.text).split())
        self.text = []
        if len(paragraph) > 80:
            self.done.append(paragraph)


def pages_of(folders):
    """Text by page, in an order of chance; what several pages say stands in one."""
    paths = sorted(path for folder in folders for path in glob.glob(folder + "/**/*.html", recursive=True))
    random.Random(1).shuffle(paths)
    seen, pages = set(), []
    for path in filter(os.path.isfile, paths):
        parser = Paragraphs()
        with open(path, encoding="utf-8", errors="replace") as file:
            parser.feed(file.read())
        fresh = [paragraph for paragraph in parser.done if paragraph not in seen]
        seen.update(fresh)
        if fresh:
            pages.append("\n".join(fresh) + "\n")
    return pages


def train_tokenizer(pages, path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<|end|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(pages, trainer)
    tokenizer.save(path)
    return tokenizer


def make_weights():
    def normal(*shape, share=1.0):
        return torch.nn.Parameter(torch.randn(*shape) * 0.02 * share)

    weights = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN), "model.norm.weight": torch.nn.Parameter(torch.ones(HIDDEN))}
    out_share = 1 / math.sqrt(2 * LAYERS)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights |= {at + "input_layernorm.weight": torch.nn.Parameter(torch.ones(HIDDEN)),
                    at + "post_attention_layernorm.weight": torch.nn.Parameter(torch.ones(HIDDEN)),
                    at + "self_attn.q_proj.weight": normal(HEADS * HEAD, HIDDEN),
                    at + "self_attn.k_proj.weight": normal(KV_HEADS * HEAD, HIDDEN),
                    at + "self_attn.v_proj.weight": normal(KV_HEADS * HEAD, HIDDEN),
                    at + "self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD, share=out_share),
                    at + "mlp.gate_proj.weight": normal(MLP, HIDDEN),
                    at + "mlp.up_proj.weight": normal(MLP, HIDDEN),
                    at + "mlp.down_proj.weight": normal(HIDDEN, MLP, share=out_share)}
    return weights


def rotated(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def logits_of(weights, ids, cos, sin):
    def norm(x, name):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weights[name]

    rows, length = ids.shape
    x = F.embedding(ids, weights["model.embed_tokens.weight"])
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        y = norm(x, at + "input_layernorm.weight")
        q, k, v = (F.linear(y, weights[at + f"self_attn.{name}_proj.weight"]).view(rows, length, -1, HEAD).transpose(1, 2)
                   for name in "qkv")
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        q, k = rotated(q, cos, sin).to(v.dtype), rotated(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, length, -1)
        x = x + F.linear(y, weights[at + "self_attn.o_proj.weight"])
        y = norm(x, at + "post_attention_layernorm.weight")
        gate, up = (F.linear(y, weights[at + f"mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, weights[at + "mlp.down_proj.weight"])
    return F.linear(norm(x, "model.norm.weight"), weights["model.embed_tokens.weight"])


def save(weights, out):
    save_file({name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in weights.items()},
              out + "/model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN,
              "intermediate_size": MLP, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": VOCAB,
              "bos_token_id": 0, "eos_token_id": 0}
    with open(out + "/config.json", "w") as file:
        json.dump(config, file, indent=2)


def main(out, minutes, folders):
    os.makedirs(out, exist_ok=True)
    pages = pages_of(folders)
    held = max(1, len(pages) // 100)
    tokenizer = train_tokenizer(pages[held:], out + "/tokenizer.json")
    for name, part in (("held_out", pages[:held]), ("calibration", pages[held:2 * held])):
        with open(f"{out}/{name}.txt", "w") as file:
            file.write("".join(part))
    data = torch.tensor([id for text in tokenizer.encode_batch(pages[held:]) for id in text.ids + [0]])
    print(f"{len(pages)} pages, {sum(map(len, pages)) / 1e6:.1f} million characters, {len(data) / 1e6:.2f} million tokens", flush=True)
    torch.manual_seed(1)
    weights = make_weights()
    print(f"{sum(w.numel() for w in weights.values()) / 1e6:.1f} million parameters", flush=True)
    matrices = [w for w in weights.values() if w.dim() == 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": [w for w in weights.values() if w.dim() == 1], "weight_decay": 0}],
                                  lr=RATE, betas=(0.9, 0.95))
    angles = torch.arange(CONTEXT)[:, None] * (10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD))[None]
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1) for f in (torch.cos, torch.sin))
    step, spent, mean = 0, 0.0, 0.0
    if os.path.exists(out + "/state.pt"):
        state = torch.load(out + "/state.pt")
        for name, weight in weights.items():
            weight.data.copy_(state["weights"][name])
        optimizer.load_state_dict(state["optimizer"])
        step, spent, mean = state["step"], state["spent"], state["mean"]
    while spent < minutes * 60:
        began = time.process_time()
        share = spent / (minutes * 60)
        for group in optimizer.param_groups:  # up, then down a cosine
            group["lr"] = RATE * min((step + 1) / WARMUP, 0.05 + 0.95 * (1 + math.cos(math.pi * share)) / 2)
        draw = random.Random(step)
        rows = [draw.randrange(len(data) - CONTEXT - 1) for _ in range(BATCH)]
        batch = torch.stack([data[row:row + CONTEXT + 1] for row in rows])
        with torch.autocast("cpu", torch.bfloat16):
            logits = logits_of(weights, batch[:, :-1], cos, sin)
        loss = F.cross_entropy(logits.float().view(-1, VOCAB), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        step += 1
        mean = loss.item() if step == 1 else 0.95 * mean + 0.05 * loss.item()
        spent += (time.process_time() - began) / torch.get_num_threads()  # what others took of the cores does not count
        if step % 50 == 0 or spent >= minutes * 60:
            print(f"step {step}, {spent / 60:.1f} min, loss {mean:.3f} (perplexity {math.exp(mean):.1f})", flush=True)
            save(weights, out)
            torch.save({"weights": weights, "optimizer": optimizer.state_dict(), "step": step, "spent": spent, "mean": mean},
                       out + "/state.pt")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
