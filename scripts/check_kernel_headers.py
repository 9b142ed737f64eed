#!/usr/bin/env python3
"""Fails where a header of the CPU kernels can't be compiled alone, as an editor opens it (.clangd has the same flags). The others are
proved self-contained by the source that includes each first; these have none."""
import concurrent.futures
import os
import pathlib
import platform
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["isa", "generic", "avx2", "avx512_bf16", "neon_bf16"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mavx512vnni", "-mfma", "-mf16c"]
FLAGS = ["-std=c++20", "-I.", "-fsyntax-only", "-x", "c++-header", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]


def flags_of(path):
    name = path.as_posix()
    return AVX2 if "avx2" in name else AVX512 if "avx512" in name or path.name == "transpose16.h" else []


def look(path):
    done = subprocess.run(["clang++", *FLAGS, *flags_of(path), str(path)], cwd=ROOT, capture_output=True, text=True)
    return path, done.returncode, done.stderr


def main():
    if not shutil.which("clang++"):
        print("check_kernel_headers: no clang++ here, the kernels' headers were not looked at")
        return 0
    paths = sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / "kernels/cpu" / folder).rglob("*.h"))
    # The registers of one machine mean nothing to another's compiler; scripts/test_arm64.sh compiles ARM's.
    others = {"neon"} if platform.machine() == "x86_64" else {"avx", "transpose16"}
    paths = [path for path in paths if not any(other in path.as_posix() for other in others)]
    failed = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, status, text in pool.map(look, paths):
            if status:
                failed = True
                print(f"check_kernel_headers: {path} can't be compiled alone\n{text}")
    if not failed:
        print(f"kernel headers: {len(paths)} compile alone")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
