#!/usr/bin/env python3
"""Holds what each CUDA kernel takes of a multiprocessor against docs/gpu/kernel-budget.tsv, and looks into the PTX.

    scripts/kernel_budget.py [--update] [--archs 75,80,86,89,90,120] [--only-compile]

Compiles every kernel source for every architecture and fails, naming kernel and figure, where registers, spills or stack grew past
the table, where a kernel is not in it, or where PTX lacks the instructions that a kernel is made for. --update writes the table
anew: run it after every change below kernels/cuda. Another nvcc than the table's counts differently: then it only compiles.
Needs nvcc and c++filt, no GPU.
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
TABLE = os.path.join(ROOT, "docs/gpu/kernel-budget.tsv")
SOURCES = sorted(f for f in os.listdir(os.path.join(ROOT, "kernels/cuda")) if f.endswith(".cu") and not f.endswith("_cuda.cu"))
COLUMNS = ("registers", "stack", "spill_stores", "spill_loads")
PTX = {"attention.cu": ["cp.async.cg", "mma.sync.aligned.m16n8k16", "ldmatrix", "ex2.approx"],
       "quantised_linear_int4.cu": ["cp.async.cg", "mma.sync.aligned.m16n8k16", "lop3", "ld.global.cs.v2"]}


def nvcc():
    for path in (os.environ.get("NVCC"), "nvcc", "/usr/local/cuda/bin/nvcc"):
        if path and subprocess.run(["which", path], capture_output=True).returncode == 0:
            return path
    sys.exit("kernel_budget: no nvcc here (set NVCC)")


def release(compiler):
    return re.search(r"release (\S+),", subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout).group(1)


def compile_one(compiler, source, arch, kind, folder):
    out = os.path.join(folder, f"{source}.{arch}.{kind}")
    done = subprocess.run([compiler, "-std=c++20", f"-I{ROOT}", f"-arch={'compute' if kind == 'ptx' else 'sm'}_{arch}", f"-{kind}",
                           "-Werror=all-warnings", "--resource-usage", os.path.join(ROOT, "kernels/cuda", source), "-o", out],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kernel_budget: {source} for sm_{arch}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr, out


def plain_name(mangled):
    name = subprocess.run(["c++filt", mangled], capture_output=True, text=True).stdout.strip()
    name = re.sub(r"(\(anonymous namespace\)|_GLOBAL__N__\w+)::", "", name)
    name = re.sub(r"^void ", "", name).replace("sluice::cuda::", "").replace("sluice::", "")
    return re.sub(r"\(.*$", "", re.sub(r"\((\w+)\)", r"\1:", name))


def figures(text):
    found = {}
    for part in re.split(r"ptxas info\s*: Compiling entry function ", text)[1:]:
        name = plain_name(re.match(r"'(\w+)'", part).group(1))
        stack, stores, loads = map(int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                                                  part).groups())
        found[name] = (int(re.search(r"Used (\d+) registers", part).group(1)), stack, stores, loads)
    return found


def measure(compiler, archs):
    jobs = [(source, arch) for source in SOURCES for arch in archs]
    table = {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = pool.map(lambda job: compile_one(compiler, job[0], job[1], "cubin", folder)[0], jobs)
        for (source, arch), text in zip(jobs, texts):
            for name, values in figures(text).items():
                table[(source, name, arch)] = values
        missing = []
        for source, words in PTX.items():
            _, path = compile_one(compiler, source, "80", "ptx", folder)
            ptx = open(path, encoding="utf-8").read()
            missing += [f"{source}: no {word} in its PTX" for word in words if word not in ptx]
            if ".f64" in ptx:
                missing.append(f"{source}: computes in f64")
    return table, missing


def read_table():
    if not os.path.exists(TABLE):
        return None, {}
    with open(TABLE, encoding="utf-8") as lines:
        version = next(lines).split()[-1]
        next(lines)
        rows = [line.rstrip("\n").split("\t") for line in lines]
    return version, {(row[0], row[1], row[2]): tuple(map(int, row[3:])) for row in rows}


def handed_out(registers):
    """What a thread that asks for so many is given: the hardware hands registers out by eights."""
    return -(-registers // 8) * 8


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--only-compile", action="store_true")
    parser.add_argument("--archs", default="75,80,86,89,90,120")
    arguments = parser.parse_args()
    compiler = nvcc()
    table, problems = measure(compiler, arguments.archs.split(","))
    version, budget = read_table()
    if arguments.update:
        with open(TABLE, "w", encoding="utf-8") as out:
            out.write(f"Written by scripts/kernel_budget.py --update with nvcc {release(compiler)}\n")
            out.write("\t".join(("source", "kernel", "sm") + COLUMNS) + "\n")
            for key in sorted(table):
                out.write("\t".join(key + tuple(map(str, table[key]))) + "\n")
    elif version == release(compiler) and not arguments.only_compile:
        for key, values in sorted(table.items()):
            values = (handed_out(values[0]), *values[1:])
            if key not in budget:
                problems.append(f"{key[0]}, {key[1]}, sm_{key[2]}: not in the table (scripts/kernel_budget.py --update)")
                continue
            problems += [f"{key[0]}, {key[1]}, sm_{key[2]}: {column} {budget[key][i]} -> {values[i]}"
                         for i, column in enumerate(COLUMNS) if values[i] > (handed_out(budget[key][i]) if i == 0 else budget[key][i])]
    else:
        print(f"kernel_budget: nvcc {release(compiler)}, the table is of {version}: compiled, not compared")
    if problems:
        print("\n".join(problems))
        sys.exit("kernel_budget: FAILED; smaller again, or --update with the reason in the commit")
    spills = [f"{key[1]} sm_{key[2]}" for key, values in sorted(table.items()) if values[2] or values[3]]
    print(f"kernel_budget: {len(table)} kernels of {len(SOURCES)} sources, {len(spills)} spill {', '.join(spills)}; "
          f"{max(values[0] for values in table.values())} registers at most")


if __name__ == "__main__":
    main()
