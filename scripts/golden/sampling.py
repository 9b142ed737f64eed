#!/usr/bin/env python3
"""Writes the goldens of the sampling chain: logits in, probabilities out.

    python scripts/golden/sampling.py --out tests/fixtures/sampling

Needs torch, transformers and numpy. One JSON file for each logit vector:

    logits           float32 values, written with enough digits to read back the same bits
    history          token ids seen so far, for the penalties (repeats count)
    cases[].settings only the settings that are on. They are applied in the order of ORDER
    cases[].kept     ascending ids of the tokens that can still be drawn
    cases[].probs    float32 probability of each kept token, in the order of `kept`; absent tokens
                     have probability 0

transformers' processors compute all but presence and frequency penalty, which it does not have:
logit -= presence_penalty * (count > 0) + frequency_penalty * count, with the count over `history`.
repetition_penalty divides positive and multiplies negative logits of the ids in `history`, once
each. top_k keeps ties with the k-th logit; top_p drops the tail of the ascending order whose
cumulative probability is <= 1 - top_p; min_p drops what is below min_p times the top probability.
top_p and min_p each see the probabilities renormalised over what the steps before have kept.
temperature 0 has no processor: it is argmax, the lowest id among equals.

A case is refused when float32 and float64 disagree on `kept`, so no golden hangs on rounding.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
import transformers
from transformers.generation import logits_process

ORDER = ("repetition_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_k",
         "top_p", "min_p")

SETTINGS = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.5},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 5000},
    {"top_p": 0.0001},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 1.0},
    {"min_p": 0.02},
    {"min_p": 0.3},
    {"min_p": 1.0},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 0.9},
    {"frequency_penalty": 0.6},
    {"presence_penalty": -0.5, "frequency_penalty": -0.25},
    {"presence_penalty": 0.4, "frequency_penalty": 0.7},
    {"repetition_penalty": 1.2, "temperature": 0.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.85},
    {"temperature": 1.3, "top_k": 12, "min_p": 0.1},
    {"temperature": 0.6, "top_p": 0.7, "min_p": 0.25},
    {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3,
     "temperature": 0.9, "top_k": 15, "top_p": 0.92, "min_p": 0.05},
)
FULL_LISTS_UP_TO = 100  # a larger vector keeps only cases whose kept set is at most this long


def penalise_counts(logits, history, settings):
    """OpenAI's presence and frequency penalties; no processor of transformers has this formula."""
    counts = torch.bincount(torch.tensor(history, dtype=torch.long), minlength=logits.shape[-1])
    presence = settings.get("presence_penalty", 0.0)
    frequency = settings.get("frequency_penalty", 0.0)
    return logits - presence * (counts > 0).to(logits.dtype) - frequency * counts.to(logits.dtype)


def processors(settings):
    """transformers' processors after the penalties, in the order of its own generate()."""
    chain = transformers.LogitsProcessorList()
    if "temperature" in settings:
        chain.append(logits_process.TemperatureLogitsWarper(settings["temperature"]))
    if "top_k" in settings:
        chain.append(logits_process.TopKLogitsWarper(settings["top_k"]))
    if "top_p" in settings:
        chain.append(logits_process.TopPLogitsWarper(settings["top_p"]))
    if "min_p" in settings:
        chain.append(logits_process.MinPLogitsWarper(settings["min_p"]))
    return chain


def probabilities(logits, history, settings):
    """[vocab] probabilities in the dtype of `logits`."""
    ids, scores = torch.tensor([history], dtype=torch.long), logits[None].clone()
    if "repetition_penalty" in settings:
        penalty = logits_process.RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"])
        scores = penalty(ids, scores)
    scores = penalise_counts(scores, history, settings)
    if settings.get("temperature") == 0.0:
        result = torch.zeros_like(logits)
        result[int(np.argmax(scores[0].numpy()))] = 1.0
        return result
    return torch.softmax(processors(settings)(ids, scores), dim=-1)[0]


def float32_text(value):
    """Shortest decimal that reads back as the same float32."""
    return float(str(np.float32(value)))


def golden_case(name, logits, history, settings):
    result = probabilities(logits, history, settings)
    kept = torch.nonzero(result).flatten().tolist()
    wide = probabilities(logits.double(), history, settings)
    if torch.nonzero(wide).flatten().tolist() != kept:
        raise SystemExit(f"{name} {settings}: kept set depends on rounding; change seed or setting")
    return {"settings": {key: settings[key] for key in ORDER if key in settings}, "kept": kept,
            "probs": [float32_text(value) for value in result[kept].tolist()]}


def vectors():
    """name, logits, history. `ties` has equal logits at the top-k edge and at the maximum;
    `masked` has logits of -inf, as a grammar or a banned token leaves them."""
    normal = np.random.default_rng(11).standard_normal(50) * 2.5
    yield "normal_50", normal, [3, 7, 7, 7, 21, 48, int(normal.argmax()), int(normal.argmin())]
    flat = np.random.default_rng(12).standard_normal(50) * 0.2 + 100.0
    yield "large_offset_50", flat, [0, 0, 49]
    ties = np.round(np.random.default_rng(13).standard_normal(50) * 2.0)
    yield "ties_50", ties, [int(ties.argmax())] * 2 + [5, 6]
    masked = np.random.default_rng(14).standard_normal(50) * 3.0
    masked[::3] = -np.inf
    yield "masked_50", masked, [1, 2, 4, 4]
    wide = np.random.default_rng(15).gumbel(size=1000) * 0.7
    top = np.argsort(-wide)
    yield "gumbel_1000", wide, top[[0, 0, 1, 3, 3, 3, 40]].tolist() + [999, 999]


def write_vector(out, name, logits, history):
    logits = torch.from_numpy(logits.astype(np.float32))
    cases = []
    for settings in SETTINGS:
        if name == "ties_50" and "top_p" in settings and settings["top_p"] < 1.0:
            continue  # which of several equal tokens top_p cuts is left open by the definition
        case = golden_case(name, logits, history, settings)
        if len(logits) <= FULL_LISTS_UP_TO or len(case["kept"]) <= FULL_LISTS_UP_TO:
            cases.append(case)
    # JSON has no infinity: null stands for -inf
    numbers = [None if np.isinf(value) else float32_text(value) for value in logits.tolist()]
    lines = ",\n  ".join(json.dumps(case) for case in cases)
    text = (f'{{"made_by": "scripts/golden/sampling.py", "torch": "{torch.__version__}", '
            f'"transformers": "{transformers.__version__}",\n "vocab_size": {len(logits)},\n '
            f'"order": {json.dumps(ORDER)},\n "null_means": "-inf",\n "logits": '
            f'{json.dumps(numbers)},\n "history": {json.dumps(history)},\n "cases": [\n  {lines}'
            '\n ]}\n')
    back = [-np.inf if value is None else value for value in json.loads(text)["logits"]]
    if not np.array_equal(np.array(back, dtype=np.float32), logits.numpy()):
        raise SystemExit(f"{name}: logits do not read back as the same float32")
    (out / f"{name}.json").write_text(text)
    print(f"{name}: {len(cases)} cases, {len(text)} bytes, kept "
          f"{[len(case['kept']) for case in cases]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, logits, history in vectors():
        write_vector(arguments.out, name, logits, history)


if __name__ == "__main__":
    main()
