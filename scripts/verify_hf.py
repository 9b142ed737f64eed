#!/usr/bin/env python3
"""Compares sluice's logits with those of transformers for one checkpoint.

    python scripts/verify_hf.py --sluice build/release/sluice --model tests/fixtures/models/opt-tiny

Runs `sluice logits -m DIR --prompt-ids 1,2,3 -o FILE.npy` (f32 [tokens, vocab]) and loads the same
folder with transformers in float32 with eager attention. Prints for each prompt the largest error
relative to the largest logit, max|a - b| / max|b|, and the share of positions with the same argmax.
Arguments after `--` go to sluice, so that a policy or a budget can be checked in the same way.

Exit codes: 0 within the tolerance, 1 above it (or logits of another shape, or not finite),
2 wrong usage or sluice ended with an error.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np


def parse_ids(text):
    try:
        ids = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of token ids such as 1,2,3")
    if min(ids) < 0:
        raise argparse.ArgumentTypeError("token ids start at 0")
    return ids


def parse_arguments(words):
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        usage="%(prog)s --sluice BINARY --model DIR [options] [-- SLUICE ARGUMENTS]")
    parser.add_argument("--sluice", type=pathlib.Path, required=True, metavar="BINARY")
    parser.add_argument("--model", type=pathlib.Path, required=True, metavar="DIR",
                        help="a Hugging Face folder")
    parser.add_argument("--reference", type=pathlib.Path, metavar="DIR",
                        help="what transformers loads, when --model is a converted copy")
    parser.add_argument("--prompt-ids", type=parse_ids, action="append", metavar="IDS",
                        help="token ids such as 1,2,3; may be given several times "
                             "(default: random ones of 1, 7, 33 and 100 tokens)")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0, help="of the random prompts")
    split = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:split])
    arguments.sluice_arguments = words[split + 1:]
    if not arguments.sluice.is_file():
        parser.error(f"--sluice: {arguments.sluice} is not a file")
    for folder in filter(None, (arguments.model, arguments.reference)):
        if not folder.exists():
            parser.error(f"{folder} does not exist")
    return arguments


def load_reference(folder):
    import torch  # here, so that wrong usage is reported without waiting for it
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()


def reference_logits(model, ids):
    import torch
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


def random_prompts(config, seed):
    longest = getattr(config, "max_position_embeddings", 100)
    generator = np.random.default_rng(seed)
    return [generator.integers(0, config.vocab_size, length).tolist()
            for length in (1, 7, 33, 100) if length <= longest]


def sluice_logits(arguments, ids, path):
    path.unlink(missing_ok=True)  # an old file must never pass for a new one
    command = [str(arguments.sluice.resolve()), "logits", "-m", str(arguments.model),
               "--prompt-ids", ",".join(map(str, ids)), "-o", str(path),
               *arguments.sluice_arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(f"{' '.join(command)}\nended with {result.returncode}:\n{result.stderr.strip()}",
              file=sys.stderr)
        raise SystemExit(2)
    if not path.is_file():
        print(f"{' '.join(command)}\nwrote no {path.name}", file=sys.stderr)
        raise SystemExit(2)
    return np.load(path)


def compare(ours, reference, length, tolerance):
    """Prints one line; true when `ours` is close enough."""
    if ours.shape != reference.shape or ours.dtype != np.float32:
        print(f"{length:5} tokens  {ours.dtype} {ours.shape} instead of float32 {reference.shape}")
        return False
    difference = np.abs(ours.astype(np.float64) - reference)
    error = float(difference.max() / np.abs(reference).max())
    same = ours.argmax(-1) == reference.argmax(-1)
    worst = np.unravel_index(difference.argmax(), difference.shape)
    is_close = bool(np.isfinite(ours).all()) and error <= tolerance
    print(f"{length:5} tokens  max relative error {error:.3e} (position {worst[0]}, token "
          f"{worst[1]})  argmax {same.sum()}/{same.size}  {'ok' if is_close else 'TOO FAR'}")
    return is_close


def main():
    arguments = parse_arguments(sys.argv[1:])
    model = load_reference(arguments.reference or arguments.model)
    prompts = arguments.prompt_ids or random_prompts(model.config, arguments.seed)
    close = True
    with tempfile.TemporaryDirectory() as folder:
        for ids in prompts:
            ours = sluice_logits(arguments, ids, pathlib.Path(folder) / "logits.npy")
            close &= compare(ours, reference_logits(model, ids), len(ids), arguments.tolerance)
    print(f"{arguments.model}: {'within' if close else 'outside'} tolerance "
          f"{arguments.tolerance:g}")
    return 0 if close else 1


if __name__ == "__main__":
    sys.exit(main())
