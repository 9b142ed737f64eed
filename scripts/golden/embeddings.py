#!/usr/bin/env python3
"""Writes what transformers makes of prompts as embeddings: of small checkpoints that the other scripts here wrote, rows
behind the final norm (last_hidden_state, f32), the last and the mean of all, not normalised.

    python scripts/golden/embeddings.py > tests/fixtures/embeddings.json

Needs torch and transformers (scripts/golden/models.py)."""

import json
import pathlib

import torch
import transformers

# Of both kinds of norm, of a norm by 1 + gain (gemma3), and with scaled logits (cohere).
MODELS = ("qwen3-tiny", "gemma3-tiny", "cohere-tiny", "gpt2-tiny")


def rounded(row):
    return [float(f"{value:.8g}") for value in row.tolist()]


def main():
    fixtures = pathlib.Path(__file__).parents[2] / "tests/fixtures/models"
    out = {"made_by": "scripts/golden/embeddings.py", "transformers": transformers.__version__}
    for name in MODELS:
        model = transformers.AutoModel.from_pretrained(fixtures / name, dtype=torch.float32).eval()
        for case in json.loads((fixtures / name / "goldens.json").read_text())["cases"]:
            with torch.no_grad():
                rows = model(torch.tensor([case["prompt_ids"]])).last_hidden_state[0]
            out.setdefault(name, {})[case["name"]] = {"last": rounded(rows[-1]), "mean": rounded(rows.mean(0))}
    print(json.dumps(out, separators=(",", ":")).replace('},"', '},\n"'))


if __name__ == "__main__":
    main()
