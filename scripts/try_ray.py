#!/usr/bin/env python3
"""Tries examples/ray_batch.py on a Ray cluster of two worker nodes on this machine: JSONL and Parquet, against one process;
and examples/ray_data.py where the Python module is.

    pip install 'ray[data]'; scripts/try_ray.py [PROGRAM]
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

import pyarrow
import pyarrow.parquet
import ray
from ray.cluster_utils import Cluster

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
MODEL = os.path.join(ROOT, "tests/fixtures/models/stories260k")
FLAGS = ["-n", "24", "-t", "1", "--cpu-mem", "256MiB", "--hardware", "none"]
ROWS = 60


def read_lines(folder):
    rows = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            rows += map(json.loads, file)
    return {row["custom_id"]: row for row in rows}, len(rows)


def main():
    program = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.join(ROOT, "build/release/bin/sluice")
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"custom_id": f"r{i}", "prompt": f"Once upon a time {i}"} for i in range(ROWS)]
        lines = os.path.join(folder, "rows.jsonl")
        with open(lines, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        table = os.path.join(folder, "rows.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), table)
        alone = os.path.join(folder, "alone.jsonl")
        subprocess.run([program, "batch", MODEL, lines, "-o", alone, *FLAGS], check=True, stderr=subprocess.DEVNULL)
        with open(alone, encoding="utf-8") as file:
            expected = {record["custom_id"]: record["response"]["body"]["choices"][0]["text"] for record in map(json.loads, file)}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False)
        nodes = [node for node in ray.nodes() if node["Resources"].get("CPU")]
        print(f"ray {ray.__version__}: {len(nodes)} worker nodes")
        ray.shutdown()
        for source in (lines, table):
            out = os.path.join(folder, os.path.basename(source) + ".answers")
            subprocess.run([sys.executable, os.path.join(ROOT, "examples/ray_batch.py"), MODEL, source, out, "--workers", "2",
                            "--batch-size", "20", "--program", program, "--flags", " ".join(FLAGS)],
                           check=True, env={**os.environ, "RAY_ADDRESS": cluster.address}, stderr=subprocess.DEVNULL)
            found, count = read_lines(out)
            same = sum(found.get(name, {}).get("answer") == text for name, text in expected.items())
            print(f"{os.path.basename(source)}: {count} rows, {same} of {ROWS} as one process answers them")
            if count != ROWS or same != ROWS:
                sys.exit(1)
        if importlib.util.find_spec("sluice"):
            out = os.path.join(folder, "module.answers")
            subprocess.run([sys.executable, os.path.join(ROOT, "examples/ray_data.py"), MODEL, lines, out, "--workers", "2",
                            "--batch-size", "20", "--max-tokens", "24", "--threads", "1", "--cpu-mem", "256MiB",
                            "--hardware", "none"],
                           check=True, env={**os.environ, "RAY_ADDRESS": cluster.address}, stderr=subprocess.DEVNULL)
            found, count = read_lines(out)
            same = sum(found.get(name, {}).get("answer") == text for name, text in expected.items())
            print(f"by the module: {count} rows, {same} of {ROWS} as one process answers them")
            if count != ROWS or same != ROWS:
                sys.exit(1)
        else:
            print("the Python module is not installed: examples/ray_data.py was not tried")
        cluster.shutdown()


if __name__ == "__main__":
    main()
