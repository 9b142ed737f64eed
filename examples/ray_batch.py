#!/usr/bin/env python3
"""A Ray Data stage that answers prompts with sluice: an actor of a few lines over `sluice batch`.

    pip install 'ray[data]'
    examples/ray_batch.py MODEL prompts.jsonl answers/ --workers 2

Reads JSONL or Parquet with a column "prompt" (and "custom_id", where rows have names), writes JSONL with the columns of the
input and "answer", "finish_reason", "error". On a cluster that is there, RAY_ADDRESS says where it is.
"""
import argparse
import hashlib
import json
import os
import subprocess
import tempfile

import ray


class Sluice:
    """Rows in, rows with answers out. One actor a machine: the program takes the cores and the memory that it is given.

    A batch is one run of the program, which opens the model anew: make batches so large that this does not matter. Where an
    actor dies, Ray gives its batch to another one; if `folder` is on the same machine or shared, that one goes on where the
    first one was, since the program does.
    """

    def __init__(self, model, program="sluice", flags=(), folder=None):
        self.model, self.program, self.flags = model, program, list(flags)
        self.folder = folder or os.path.join(tempfile.gettempdir(), "sluice-ray")
        os.makedirs(self.folder, exist_ok=True)

    def __call__(self, batch):
        prompts = [str(prompt) for prompt in batch["prompt"]]
        lines = "".join(json.dumps({"custom_id": f"{i}", "prompt": prompt}) + "\n" for i, prompt in enumerate(prompts))
        job = "\n".join([self.model, *self.flags, lines])
        path = os.path.join(self.folder, hashlib.sha256(job.encode()).hexdigest())
        with open(path + ".in", "w", encoding="utf-8") as file:
            file.write(lines)
        done = subprocess.run([self.program, "batch", self.model, path + ".in", "-o", path + ".out", *self.flags],
                              stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (0, 2) or not os.path.exists(path + ".out"):  # 2: some rows have errors instead of answers
            raise RuntimeError(f"sluice batch: {done.stderr[-2000:]}")
        answers = [(None, None, "no record")] * len(prompts)
        with open(path + ".out", encoding="utf-8") as file:
            for record in map(json.loads, file):
                if record["error"]:
                    answers[int(record["custom_id"])] = (None, None, record["error"]["message"])
                else:
                    choice = record["response"]["body"]["choices"][0]
                    answers[int(record["custom_id"])] = (choice["text"], choice["finish_reason"], None)
        if any(answer[2] == "no record" for answer in answers):
            raise RuntimeError(f"sluice batch: {done.stderr[-2000:]}")
        os.remove(path + ".in")
        os.remove(path + ".out")
        for name, values in zip(("answer", "finish_reason", "error"), zip(*answers)):
            batch[name] = list(values)
        return batch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("input", help="JSONL or .parquet, a file or a folder")
    parser.add_argument("output", help="folder for JSONL files")
    parser.add_argument("--workers", type=int, default=2, help="actors; one a machine")
    parser.add_argument("--cpus", type=float, default=1, help="of each actor, for Ray's scheduler")
    parser.add_argument("--batch-size", type=int, default=1024, help="rows of one run of the program")
    parser.add_argument("--program", default=os.environ.get("SLUICE", "sluice"))
    parser.add_argument("--flags", default="", help="for sluice batch, as '-n 64 --cpu-mem 8GiB'")
    options = parser.parse_args()
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    is_parquet = options.input.endswith(".parquet")
    rows = ray.data.read_parquet(options.input) if is_parquet else ray.data.read_json(options.input)
    # Rows come in blocks of files: cut them, so that every worker has some.
    rows = rows.repartition(max(options.workers, -(-rows.count() // options.batch_size)))
    answered = rows.map_batches(
        Sluice, fn_constructor_args=(os.path.abspath(options.model), options.program, options.flags.split()),
        batch_size=options.batch_size, num_cpus=options.cpus, concurrency=options.workers)
    answered.write_json(os.path.abspath(options.output))


if __name__ == "__main__":
    main()
