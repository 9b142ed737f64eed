#!/usr/bin/env python3
"""Writes goldens.json and a logits file beside a copy of the stories260K checkpoint.

    python scripts/golden/stories.py --model tests/fixtures/models/stories260k \
                                     --text tests/fixtures/prompts/tiny.txt

Needs torch, transformers, tokenizers and numpy. Everything is computed by transformers in float32
with eager attention. greedy.json in that folder comes from an independent numpy forward pass; this
script refuses to write anything unless transformers gives the same tokens.

goldens.json holds, for each text prompt, the ids (tokenizer.json, BOS in front), 64 argmax tokens
after it (end-of-sequence tokens do not stop them), the margin of each step, and the decoded text;
and the perplexity of the text file, by the formula given there.
"""

import argparse
import json
import math
import pathlib

import models  # beside this file: the same loading, greedy loop and writers
import tokenizers
import torch
import transformers

GREEDY_TOKENS = 64
WINDOW_TOKENS = 256
PROMPTS = (
    "Once upon a time",
    "Lily and Tom",
    "",
    "One day, a little boy named Tim went to the park. He saw a big dog. The dog was sad.",
    "\"Can I play with you?\" asked the bird.\n\nThe cat said,",
    "Zoë had 12 café cups & a 🐶!",
)
LOGITS_PROMPT = 3
PERPLEXITY_FORMULA = (
    "exp(sum of NLL / scored tokens). The text is tokenised once without special tokens; the ids"
    " are cut into runs of 255; each run with BOS (id 1) in front is one window of 256 tokens (the"
    " last run may be shorter). Windows share nothing and positions start at 0 in each. Every token"
    " of a run is scored, its first one from BOS. NLL is -log softmax(logits)[token], natural log.")


def check_greedy(model, path):
    """greedy.json is one list: BOS and the tokens after it. Returns the smallest margin."""
    tokens = json.loads(path.read_text())
    ids, margins = models.greedy(model, tokens[:1], len(tokens) - 1)
    if ids != tokens[1:]:
        raise SystemExit(f"{path}: transformers gives {ids}")
    return min(margins)


def prompt_case(model, tokenizer, prompt):
    prompt_ids = tokenizer.encode(prompt).ids
    ids, margins = models.greedy(model, prompt_ids, GREEDY_TOKENS)
    return {"prompt": prompt, "prompt_ids": prompt_ids, "greedy_ids": ids,
            "greedy_margins": [float(f"{margin:.6g}") for margin in margins],
            "text": tokenizer.decode(prompt_ids + ids)}


def perplexity(model, tokenizer, text, bos):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    sums = []
    for start in range(0, len(ids), WINDOW_TOKENS - 1):
        window = [bos] + ids[start:start + WINDOW_TOKENS - 1]
        log_probabilities = torch.log_softmax(models.logits_of(model, window).double(), dim=-1)
        targets = torch.tensor(window[1:])
        sums.append(-float(log_probabilities[torch.arange(len(targets)), targets].sum()))
    return {"formula": PERPLEXITY_FORMULA, "window_tokens": WINDOW_TOKENS,
            "scored_tokens": len(ids), "window_nll_sums": [round(value, 6) for value in sums],
            "mean_nll": sum(sums) / len(ids), "perplexity": math.exp(sum(sums) / len(ids)),
            "first_ids": ids[:32], "last_ids": ids[-8:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--text", type=pathlib.Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = models.load_folder(arguments.model, torch.float32)
    tokenizer = tokenizers.Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    smallest = check_greedy(model, arguments.model / "greedy.json")
    print(f"greedy.json: same tokens, smallest margin {smallest:.4f}")

    cases = [prompt_case(model, tokenizer, prompt) for prompt in PROMPTS]
    logits = models.logits_of(model, cases[LOGITS_PROMPT]["prompt_ids"])
    models.write_npy(arguments.model / "logits_prompt.npy", logits, bits=23)
    cases[LOGITS_PROMPT]["logits"] = "logits_prompt.npy"
    text = arguments.text.read_text(encoding="utf-8")
    score = perplexity(model, tokenizer, text, model.config.bos_token_id)
    models.write_json(arguments.model / "goldens.json", {
        "model": "stories260k", "made_by": "scripts/golden/stories.py", "stored_dtype": "f32",
        "cases": cases, "perplexity": {"text": f"../../prompts/{arguments.text.name}", **score}})
    for case in cases:
        margin = min(case["greedy_margins"])
        print(f"{len(case['prompt_ids']):3} ids, smallest margin {margin:.4f}: {case['text']!r}")
    print(f"perplexity {score['perplexity']:.6f} over {score['scored_tokens']} tokens, logits "
          f"{list(logits.shape)}")


if __name__ == "__main__":
    main()
