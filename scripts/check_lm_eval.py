#!/usr/bin/env python3
"""Holds lm-eval's log-likelihoods of one model three ways: sluice's Python module, `sluice serve` over HTTP, transformers.

    pip install 'lm-eval[hf,api]'; scripts/check_lm_eval.py [--model DIR] [--program build/release/bin/sluice]

The same requests, tokenised by the harness, go to lm-eval's "sluice", "local-completions" and "hf" models. Also texts that
greedy decoding ends at a stop string. Exit code 1 where two differ by more than the tolerance.
"""
import argparse
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = [("Once upon a time", ", there was a little girl named Lily."), ("The dog", " ran home"), ("The dog", " zebra quantum"),
         ("One day, a cat", " saw a bird in the tree"), ("She was", " happy"), ("She was ", "sad"), ("A", "b"),
         ("Tom and Sam went to the park. They", " played"), ("Zoë said", " “hello”"), ("Mom said,", " \"No.\"\n")] * 3
TEXTS = ["Once upon a time there was a little boy.", "The sun was hot. " * 60, "x"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def served(program, model):
    port = free_port()
    server = subprocess.Popen([program, "serve", str(model), "--port", str(port), "--hardware", "none", "--compute", "f32",
                               "--cpu-mem", "256MiB"], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    for _ in range(200):
        try:
            urllib.request.urlopen(url + "/health", timeout=1).close()
            return server, url
        except OSError:
            time.sleep(0.1)
    server.kill()
    sys.exit("the server did not come up")


def instances(kind, arguments):
    from lm_eval.api.instance import Instance
    return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]


def answers(lm, rolls):
    likely = lm.loglikelihood(instances("loglikelihood", CASES), disable_tqdm=True)
    rolling = lm.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,) for text in TEXTS]),
                                       disable_tqdm=True) if rolls else None
    said = lm.generate_until(instances("generate_until", [(case[0], {"until": ["."], "max_gen_toks": 24})
                                                          for case in CASES[:4]]), disable_tqdm=True)
    return likely, rolling, said


def compare(name, ours, theirs, tolerance):
    worst = max(abs(a[0] - b[0]) for a, b in zip(ours[0], theirs[0]))
    greedy = sum(a[1] == b[1] for a, b in zip(ours[0], theirs[0]))
    print(f"{name}: {len(ours[0])} pairs, largest difference {worst:.2e}, is_greedy the same in {greedy}", end="")
    good = worst <= tolerance and greedy == len(ours[0])
    if theirs[1] is not None:
        rolling = max(abs(a - b) for a, b in zip(ours[1], theirs[1]))
        print(f"; {len(ours[1])} rolling, {rolling:.2e}", end="")
        good = good and rolling <= tolerance * 10
    said = sum(a.strip() == b.strip() for a, b in zip(ours[2], theirs[2]))
    print(f"; texts the same in {said} of {len(ours[2])}")
    return good and said == len(ours[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "tests/fixtures/models/stories260k")
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/sluice"))
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of a sum of log-probabilities")
    asked = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OPENAI_API_KEY="none")
    import lm_eval.api.registry
    import lm_eval.models  # the others register themselves
    from sluice.lm_eval import SluiceLM
    with_model = SluiceLM(asked.model, cpu_mem="256MiB", hardware="none", compute="f32")
    ours = answers(with_model, True)
    with_model.model.close()
    hugging_face = lm_eval.api.registry.get_model("hf")(pretrained=str(asked.model), dtype="float32", device="cpu",
                                                        batch_size=1, max_length=with_model.max_length)
    good = compare("transformers", ours, answers(hugging_face, True), asked.tolerance)
    server, url = served(asked.program, asked.model)
    try:
        remote = lm_eval.api.registry.get_model("local-completions")(
            model=asked.model.name, base_url=url + "/v1/completions", tokenizer=str(asked.model), tokenizer_backend="huggingface",
            tokenized_requests=True, max_length=with_model.max_length, num_concurrent=1, add_bos_token=True)
        good = compare("HTTP", ours, answers(remote, False), asked.tolerance) and good
    finally:
        server.terminate()
        server.wait()
    print("lm-eval: good" if good else "lm-eval: DIFFERENT")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
