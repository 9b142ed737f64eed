#!/usr/bin/env python3
"""Logits of gated and of plain MLPs with every activation that transformers names, for tests/engine/activations_test.cc.

    scripts/golden/activations.py        prints the table; needs torch and transformers

The models are fixtures with another activation in their config.json: llama-tiny-yarn gates, gpt-neox-tiny does not. Of each the
first eight logits behind the last token of a prompt, in f32; of a name that transformers makes with weights of its own (prelu,
xielu) or can't make without arguments there are none.
"""
import json
import os
import shutil
import tempfile

import torch
import transformers
from transformers.activations import ACT2FN

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/fixtures/models")
PROMPT = [3, 17, 5, 40, 8, 22, 51, 9]


def logits(model, name):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(os.path.join(MODELS, model), folder, dirs_exist_ok=True)
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config["hidden_act"] = name
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            return loaded(torch.tensor([PROMPT])).logits[0, -1, :6].tolist()


def main():
    transformers.logging.set_verbosity_error()
    for name in sorted(ACT2FN):
        for model in ("llama-tiny-yarn", "gpt-neox-tiny"):
            try:
                values = logits(model, name)
            except Exception:  # what it is given arguments for
                continue
            print(f'    {{"{name}", "{model}", {{{", ".join(f"{value:.5f}f" for value in values)}}}}},')


if __name__ == "__main__":
    main()
