#!/usr/bin/env python3
"""Holds what each CUDA kernel takes of a multiprocessor against docs/gpu/kernel-budget.tsv, and looks into the PTX.

    scripts/kernel_budget.py [--update] [--archs 75,80,86,89,90,120] [--sources REGEX] [--changed] [--only-compile] [--nvdisasm PATH]

Compiles every kernel source for every architecture and fails, naming kernel and figure, where one is worse than in the table, where
a kernel is not in it, or where PTX lacks the instructions that a kernel is made for. Counted are registers, stack and spills, and
of the machine code (scripts/sass.py) the instructions and calls of the hot loop (of the whole kernel, where it has no loop). What a
kernel says of itself (state_budget() in kernels/cuda/vocabulary.h) gives instructions of a warp for each KB of weights or KV, the blocks that
fit a multiprocessor, and the bytes that these have under way; fewer of either fail too, and so do fewer blocks than the host plans
for. --update writes the table anew: run it after every change below kernels/cuda. Another nvcc than the table's counts differently:
then it only compiles. --sources: only files with such names; other files' rows stay. --changed: only sources that
differ, themselves or in a header of ours, from what the table was made of (docs/gpu/kernel-sources.tsv has a digest of each). --nvdisasm holds our reading of the machine code against NVIDIA's. Needs nvcc and c++filt, no GPU.
"""
import argparse
import concurrent.futures
import hashlib
import os
import re
import subprocess
import sys
import tempfile

import sass

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
TABLE = os.path.join(ROOT, "docs/gpu/kernel-budget.tsv")
DIGESTS = os.path.join(ROOT, "docs/gpu/kernel-sources.tsv")
ARCHS = "75,80,86,89,90,120"
SOURCES = sorted(f for f in os.listdir(os.path.join(ROOT, "kernels/cuda")) if f.endswith(".cu") and not f.endswith("_cuda.cu"))
COLUMNS = ("registers", "stack", "spill_stores", "spill_loads", "calls", "loop", "per_kb", "blocks", "in_flight")
MORE_IS_BETTER = ("blocks", "in_flight")
PTX = {"attention.cu": ["cp.async.cg", "mma.sync.aligned.m16n8k16", "ldmatrix", "ex2.approx"],
       "quantised_linear_int4.cu": ["cp.async.cg", "mma.sync.aligned.m16n8k16", "lop3"]}
WARP = 32
# Of a multiprocessor (CUDA programming guide, table of compute capabilities): threads, blocks, shared memory for them, and what each
# block takes of that beside its own.
PROCESSORS = {"75": (1024, 16, 64 << 10, 0), "80": (2048, 32, 164 << 10, 1 << 10), "86": (1536, 16, 100 << 10, 1 << 10),
              "89": (1536, 24, 100 << 10, 1 << 10), "90": (2048, 32, 228 << 10, 1 << 10), "120": (1536, 24, 100 << 10, 1 << 10)}
REGISTERS = 1 << 16
ROOMY = ("80", "90")  # where shared memory must leave room for the planned blocks too


def nvcc():
    for path in (os.environ.get("NVCC"), "nvcc", "/usr/local/cuda/bin/nvcc"):
        if path and subprocess.run(["which", path], capture_output=True).returncode == 0:
            return path
    sys.exit("kernel_budget: no nvcc here (set NVCC)")


def release(compiler):
    return re.search(r"release (\S+),", subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout).group(1)


def compile_one(compiler, source, arch, folder):
    """What ptxas says of a source, and the paths of its PTX and machine code."""
    kept = os.path.join(folder, f"{source}.{arch}")
    os.mkdir(kept)
    cubin = os.path.join(kept, "cubin")
    done = subprocess.run([compiler, "-std=c++20", f"-I{ROOT}", f"-arch=sm_{arch}", "-cubin", "-keep", "-keep-dir", kept,
                           "-Werror=all-warnings", "--resource-usage", os.path.join(ROOT, "kernels/cuda", source), "-o", cubin],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kernel_budget: {source} for sm_{arch}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr, os.path.join(kept, source[:-len(".cu")] + ".ptx"), cubin


def plain_names(mangled):
    """{mangled: as people read it}."""
    names = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True).stdout.splitlines()
    for i, name in enumerate(names):
        name = re.sub(r"(\(anonymous namespace\)|_GLOBAL__N__\w+)::", "", name)
        name = re.sub(r"^void ", "", name).replace("sluice::cuda::", "").replace("sluice::", "")
        names[i] = re.sub(r"\(.*$", "", re.sub(r"\((\w+)\)", r"\1:", name))
    return dict(zip(mangled, names))


def stated(ptx):
    """{mangled: (threads of a block, what state_budget() says)} of PTX."""
    found = {}
    for part in re.split(r"\.entry ", ptx)[1:]:
        threads = int(re.search(r"\.maxntid (\d+)", part).group(1))
        said = re.search(r"// budget: shared (\d+) turn (\d+) ahead (\d+) blocks (\d+)", part)
        found[re.match(r"\w+", part).group()] = (threads, tuple(map(int, said.groups())) if said else None)
    return found


def handed_out(registers):
    """What a thread that asks for so many is given: the hardware hands registers out by eights."""
    return -(-registers // 8) * 8


def blocks_of(arch, registers, threads, shared):
    most_threads, most_blocks, most_shared, beside = PROCESSORS[arch]
    warps = threads // WARP
    # A quarter of the registers belongs to each of the four schedulers, which have whole warps.
    by_registers = REGISTERS // 4 // (handed_out(registers) * WARP) * 4 // warps
    return min(most_blocks, most_threads // threads, by_registers, most_shared // (shared + beside) if shared + beside else most_blocks)


def figures(text, ptx, cubin, arch):
    """{kernel: values in the order of COLUMNS}, and what is wrong with the plan's blocks."""
    said = stated(ptx)
    codes = sass.kernels_of(cubin, int(arch))
    parts = {re.match(r"'(\w+)'", part).group(1): part
             for part in re.split(r"ptxas info\s*: Compiling entry function ", text)[1:]}
    names = plain_names(list(parts))
    found, problems = {}, []
    for mangled, part in parts.items():
        stack, stores, loads = map(int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                                                  part).groups())
        registers = int(re.search(r"Used (\d+) registers", part).group(1))
        loop = codes[mangled].hot_loop()
        threads, facts = said[mangled]
        shared, turn, ahead, planned = facts or (0, 0, 0, 0)
        blocks = blocks_of(arch, registers, threads, shared)
        if (blocks if arch in ROOMY else blocks_of(arch, registers, threads, 0)) < planned:
            problems.append(f"{names[mangled]}, sm_{arch}: the host plans {planned} blocks a multiprocessor, {blocks} fit")
        per_kb = round(len(loop) * 1024 / turn) if turn else 0
        found[names[mangled]] = (registers, stack, stores, loads, codes[mangled].count(loop, sass.CALLS), len(loop), per_kb, blocks,
                                 blocks * threads // WARP * ahead)
    return found, problems


def measure(compiler, sources, archs, nvdisasm):
    table, problems = {}, []

    def one(job):
        text, ptx, cubin = compile_one(compiler, *job, folder)
        wrong = sass.differences(nvdisasm, cubin, int(job[1])) if nvdisasm else []
        with open(ptx, encoding="utf-8") as read_ptx, open(cubin, "rb") as read_cubin:
            return *figures(text, read_ptx.read(), read_cubin.read(), job[1]), wrong, ptx

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(source, arch) for source in sources for arch in archs]
        for (source, arch), (found, *wrong, ptx) in zip(jobs, pool.map(one, jobs)):
            table.update({(source, name, arch): values for name, values in found.items()})
            problems += sum(wrong, [])
            if source in PTX and arch == "80":
                with open(ptx, encoding="utf-8") as file:
                    ptx = file.read()
                problems += [f"{source}: no {word} in its PTX" for word in PTX[source] if word not in ptx]
                if ".f64" in ptx:
                    problems.append(f"{source}: computes in f64")
    return table, problems


def read_table():
    """nvcc's version and {(source, kernel, sm): figures}. A source or kernel that is empty is the line's above."""
    if not os.path.exists(TABLE):
        return None, {}
    with open(TABLE, encoding="utf-8") as lines:
        version = next(lines).split()[-1]
        next(lines)
        table, source, kernel = {}, "", ""
        for line in lines:
            row = line.rstrip("\n").split("\t")
            source, kernel = row[0] or source, row[1] or kernel
            table[source, kernel, row[2]] = tuple(map(int, row[3:]))
    return version, table


def digest(source):
    """Of a kernel source with the headers of ours that it includes, and theirs."""
    paths, seen = [os.path.join("kernels/cuda", source)], {}
    while paths:
        path = paths.pop()
        if path in seen or not os.path.exists(os.path.join(ROOT, path)):
            continue
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            seen[path] = file.read()
        paths += re.findall(r'^\s*#\s*include "([^"]+)"', seen[path], re.MULTILINE)
    return hashlib.sha256("".join(f"{path}\n{seen[path]}" for path in sorted(seen)).encode()).hexdigest()[:16]


def read_digests():
    if not os.path.exists(DIGESTS):
        return {}
    with open(DIGESTS, encoding="utf-8") as lines:
        return dict(line.split() for line in lines)


def write_digests(sources):
    kept = {source: value for source, value in read_digests().items() if source in SOURCES}
    kept.update({source: digest(source) for source in sources})
    with open(DIGESTS, "w", encoding="utf-8") as out:
        out.writelines(f"{source}\t{kept[source]}\n" for source in sorted(kept))


def growth(values, budget):
    """What is worse than in the table: texts."""
    worse = []
    for column, value, allowed in zip(COLUMNS, values, budget):
        if column == "registers":
            value, allowed = handed_out(value), handed_out(allowed)
        if column == "loop" and values[COLUMNS.index("per_kb")]:
            continue  # a longer loop that does more
        if value < allowed if column in MORE_IS_BETTER else value > allowed:
            worse.append(f"{column} {allowed} -> {value}")
    return worse


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--only-compile", action="store_true")
    parser.add_argument("--archs", default=ARCHS)
    parser.add_argument("--sources", default="")
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--nvdisasm")
    arguments = parser.parse_args()
    compiler = nvcc()
    sources = [source for source in SOURCES if re.search(arguments.sources, source)]
    version, budget = read_table()
    if arguments.changed and version == release(compiler):
        known = read_digests()
        sources = [source for source in sources if known.get(source) != digest(source)]
        if not sources:
            print("kernel_budget: every source is the one that the table was made of")
            return
    table, problems = measure(compiler, sources, arguments.archs.split(","), arguments.nvdisasm)
    if arguments.update:
        if sources != SOURCES:
            table.update({key: values for key, values in budget.items() if key[0] in SOURCES and key[0] not in sources})
        with open(TABLE, "w", encoding="utf-8") as out:
            out.write(f"Written by scripts/kernel_budget.py --update with nvcc {release(compiler)}\n")
            out.write("\t".join(("source", "kernel", "sm") + COLUMNS) + "\n")
            above = ("", "")
            for source, kernel, arch in sorted(table):
                shown = ("" if source == above[0] else source, "" if (source, kernel) == above else kernel, arch)
                out.write("\t".join(shown + tuple(map(str, table[source, kernel, arch]))) + "\n")
                above = (source, kernel)
        if arguments.archs == ARCHS:
            write_digests(sources)
    elif version == release(compiler) and not arguments.only_compile:
        for key, values in sorted(table.items()):
            name = f"{key[0]}, {key[1]}, sm_{key[2]}"
            if key not in budget:
                problems.append(f"{name}: not in the table (scripts/kernel_budget.py --update)")
            elif worse := growth(values, budget[key]):
                problems.append(f"{name}: {', '.join(worse)}")
    else:
        print(f"kernel_budget: nvcc {release(compiler)}, the table is of {version}: compiled, not compared")
    if problems:
        print("\n".join(problems))
        sys.exit("kernel_budget: FAILED; smaller again, or --update with the reason in the commit")
    spills = [f"{key[1]} sm_{key[2]}" for key, values in sorted(table.items()) if values[2] or values[3]]
    print(f"kernel_budget: {len(table)} kernels of {len(sources)} sources, {len(spills)} spill {', '.join(spills)}; "
          f"{max(values[0] for values in table.values())} registers at most")


if __name__ == "__main__":
    main()
