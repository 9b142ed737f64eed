#!/usr/bin/env python3
"""Writes small PEFT adapters of fixture models and what the models answer with them: tests/fixtures/lora.

    python scripts/golden/lora.py [NAME...]

Needs torch, transformers and peft; their versions are written into the files. Weights of an adapter are random, B's too, so that each
says something. logits.npy: of the prompt's last position, from the model with the adapter beside it, not merged."""
import json
import pathlib
import random
import shutil
import sys

import numpy
import peft
import safetensors.torch
import torch
import transformers

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
# name: (model, what LoraConfig is given)
CASES = {
    "plain": ("llama-tiny-gqa", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "patterns": ("qwen2-tiny", dict(r=3, lora_alpha=7, target_modules=ATTENTION + MLP, use_rslora=True,
                                    rank_pattern={"k_proj": 1, r"layers\.1\.mlp\..*": 5},
                                    alpha_pattern={"k_proj": 2, r"layers\.1\.mlp\..*": 11})),
    "dora": ("qwen2-tiny", dict(r=2, lora_alpha=6, target_modules=["v_proj", "down_proj"], use_dora=True)),
    "ends": ("qwen2-tiny", dict(r=2, lora_alpha=4, target_modules=["embed_tokens", "o_proj"], modules_to_save=["lm_head"])),
    "fused": ("phi3-tiny", dict(r=3, lora_alpha=6, target_modules=["qkv_proj", "gate_up_proj"])),
    "tables": ("gemma2-tiny", dict(r=5, lora_alpha=3, target_modules=["embed_tokens", "k_proj"])),
    "layers": ("gemma2-tiny", dict(r=5, lora_alpha=3, target_modules=["q_proj", "down_proj"], layers_to_transform=[1],
                                   layers_pattern="layers")),
    "head": ("qwen2-tiny", dict(r=7, lora_alpha=5, target_modules=["embed_tokens", "lm_head", "up_proj"])),
    "linear": ("gpt2-tiny", dict(r=2, lora_alpha=5, target_modules="all-linear")),
    "mixture": ("mixtral-tiny", dict(r=3, lora_alpha=4, target_modules=r".*layers\.[01]\.self_attn\.[qvo]_proj")),
    "half": ("llama-tiny-gqa", dict(r=9, lora_alpha=3, target_modules=ATTENTION + MLP)),
    "stories-a": ("stories260k", dict(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "stories-b": ("stories260k", dict(r=3, lora_alpha=8, target_modules=["o_proj", "up_proj"])),
    "weighed": ("phi3-tiny", dict(r=3, lora_alpha=6, target_modules=["qkv_proj", "o_proj"], use_dora=True)),
}


def main():
    for number, (name, (base, settings)) in enumerate(CASES.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(number + 1)
        folder = FIXTURES / "lora" / name
        shutil.rmtree(folder, ignore_errors=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(FIXTURES / "models" / base, dtype=torch.float32,
                                                                  attn_implementation="eager")
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
        for key, parameter in model.named_parameters():
            if "lora_magnitude" in key:
                parameter.data *= 1 + 0.2 * torch.randn_like(parameter)
            elif "lora_" in key:
                parameter.data = 0.15 * torch.randn_like(parameter)
            elif "modules_to_save" in key:
                parameter.data += 0.05 * torch.randn_like(parameter)
            if name == "half" and "lora_" in key:
                parameter.data = parameter.data.bfloat16().float()
        model.eval()
        model.save_pretrained(folder)
        if name == "half":
            file = folder / "adapter_model.safetensors"
            safetensors.torch.save_file({key: value.bfloat16() for key, value in safetensors.torch.load_file(file).items()}, file)
        for extra in ("README.md", "tokenizer.json", "tokenizer_config.json"):
            (folder / extra).unlink(missing_ok=True)
        rng = random.Random(number)
        prompt = [rng.randrange(3, model.config.vocab_size) for _ in range(21)]
        with torch.no_grad():
            logits = model(torch.tensor([prompt])).logits[0, -1]
        numpy.save(folder / "logits.npy", logits.numpy().astype(numpy.float32))
        (folder / "golden.json").write_text(json.dumps(
            {"base": base, "prompt": prompt, "torch": torch.__version__, "transformers": transformers.__version__,
             "peft": peft.__version__}) + "\n")
        config = json.loads((folder / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = base
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        print(name, sum(path.stat().st_size for path in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main()
