#!/usr/bin/env python3
"""A Ray Data stage that answers prompts with sluice's Python module: each actor opens the model once.

    pip install . 'ray[data]'
    examples/ray_data.py MODEL prompts.jsonl answers/ --workers 2 --cpu-mem 4GiB

Reads JSONL or Parquet with a column "prompt", writes JSONL with the columns of the input and "answer", "finish_reason",
"error". One actor a machine: it takes the cores and the memory that it is given. examples/ray_batch.py does the same by the
command line, which goes on where a killed actor was.
"""
import argparse
import os

import ray


class Answers:
    """Rows in, rows with answers out."""

    def __init__(self, model, options, sampling):
        import sluice  # in the actor: a model's threads don't travel
        self.model = sluice.Model(model, **options)
        self.sampling = sampling

    def __call__(self, batch):
        answers = [(None, None, None)] * len(batch["prompt"])
        prompts, rows = [], []
        for row, prompt in enumerate(map(str, batch["prompt"])):
            # What can't run is one row's matter.
            tokens = len(self.model.tokenizer.encode(prompt))
            if 0 < tokens < self.model.context:
                prompts.append(prompt)
                rows.append(row)
            else:
                answers[row] = (None, None, f"the prompt has {tokens} tokens; the context holds {self.model.context}")
        for result in self.model.as_completed(prompts, **self.sampling):
            error = str(result.error) if result.error else None
            answers[rows[result.index]] = (None if error else result.text, result.finish_reason, error)
        for name, values in zip(("answer", "finish_reason", "error"), zip(*answers)):
            batch[name] = list(values)
        return batch


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("input", help="JSONL or Parquet")
    parser.add_argument("output", help="a folder")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--cpu-mem")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--hardware")
    asked = parser.parse_args()
    options = {name: value for name in ("cpu_mem", "threads", "hardware") if (value := getattr(asked, name)) is not None}
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    rows = ray.data.read_parquet(asked.input) if asked.input.endswith(".parquet") else ray.data.read_json(asked.input)
    # Rows come in blocks of files: cut them, so that every worker has some.
    rows = rows.repartition(max(asked.workers, -(-rows.count() // asked.batch_size)))
    answered = rows.map_batches(Answers, fn_constructor_args=(os.path.abspath(asked.model), options,
                                                              {"max_tokens": asked.max_tokens}),
                                batch_size=asked.batch_size, num_cpus=1, concurrency=asked.workers)
    answered.write_json(os.path.abspath(asked.output))


if __name__ == "__main__":
    main()
