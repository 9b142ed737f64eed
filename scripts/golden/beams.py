#!/usr/bin/env python3
"""Writes what Hugging Face's beam search finds on fixture models: tests/fixtures/models/NAME/beams.json.

    python scripts/golden/beams.py [NAME ...]

Needs torch and transformers; their versions are written into the files. The models are random and hardly ever end a
text by themselves, so the cases name some of the tokens that their beams run through as end tokens. A case is kept
when float64 finds the same sequences as float32: rounding then decides nothing.
"""
import json
import pathlib
import random
import sys

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "models"
NAMES = ("llama-tiny-gqa", "opt-tiny", "qwen3-5-tiny", "youtu-tiny")


def search(model, prompt, case):
    with torch.no_grad():
        found = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones((1, len(prompt)), dtype=torch.long), do_sample=False,
            num_beams=case["num_beams"], num_return_sequences=case["num_beams"], max_new_tokens=case["max_tokens"],
            length_penalty=case["length_penalty"], early_stopping=case["early_stopping"],
            repetition_penalty=case["repetition_penalty"], eos_token_id=case["end_tokens"] or None, pad_token_id=0,
            min_new_tokens=case["min_tokens"] or None, return_dict_in_generate=True, output_scores=True)
    sequences = []
    for row in found.sequences.tolist():
        output = row[len(prompt):]
        ends = [i for i, token in enumerate(output) if token in case["end_tokens"]]
        sequences.append(output[: ends[0] + 1] if ends else output)
    return sequences, found.sequences_scores.tolist()


def cases_of(model, model64, vocab, rng):
    cases = []
    while len(cases) < 24:
        prompt = [rng.randrange(3, vocab) for _ in range(rng.choice((1, 5, 17, 40)))]
        case = {"prompt": prompt, "num_beams": rng.choice((2, 3, 4, 7)), "max_tokens": rng.choice((1, 6, 14, 20)),
                "length_penalty": rng.choice((1.0, 1.0, 0.0, -1.0, 2.0, 0.6)),
                "early_stopping": rng.choice((False, True, "never")),
                "repetition_penalty": rng.choice((1.0, 1.0, 1.3)), "min_tokens": 0, "end_tokens": []}
        plain, _ = search(model, prompt, case)
        seen = sorted({token for row in plain for token in row})
        case["end_tokens"] = rng.sample(seen, min(len(seen), rng.choice((0, 1, 2, 3))))
        if case["end_tokens"] and case["max_tokens"] > 6 and rng.random() < 0.3:
            case["min_tokens"] = 4
        sequences, scores = search(model, prompt, case)
        sequences64, scores64 = search(model64, prompt, case)
        gaps = [a - b for a, b in zip(scores64, scores64[1:])]
        if sequences != sequences64 or min(gaps, default=1) < 1e-4:
            continue
        cases.append({**case, "sequences": sequences, "scores": [round(score, 5) for score in scores64]})
    return cases


def main():
    for name in sys.argv[1:] or NAMES:
        folder = ROOT / name
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        model64 = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        for one in (model, model64):
            one.generation_config = transformers.GenerationConfig()
        rng = random.Random(name)
        record = {"made_with": f"transformers {transformers.__version__}, torch {torch.__version__}",
                  "cases": cases_of(model, model64, model.config.vocab_size, rng)}
        lines = ",\n".join(json.dumps(case) for case in record["cases"])
        (folder / "beams.json").write_text(f'{{"made_with": "{record["made_with"]}",\n"cases": [\n{lines}\n]}}\n')
        ended = sum(len(row) < case["max_tokens"] for case in record["cases"] for row in case["sequences"])
        print(f"{name}: {len(record['cases'])} cases, {ended} sequences end before their limit")


main()
