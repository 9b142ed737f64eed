#!/usr/bin/env python3
"""Clang's thread-safety analysis over every source that takes a lock (src/base/mutex.h): a member that is guarded and
touched without its lock is an error. Needs clang; `--all` looks at every source.

    scripts/check_threads.py [--all] [FILE...]
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src", "io", "kernels", "policy", "tools"]
TAKES_A_LOCK = re.compile(r"\bMutexLock\b|\bSLUICE_(GUARDED_BY|REQUIRES)\b")
OWN_LOCKS = re.compile(r"\bstd::(recursive_|shared_|timed_)?mutex\b|\bstd::condition_variable")
EXEMPT = {"src/base/mutex.h"}  # the locks themselves
FLAGS = ["-std=c++20", "-I.", "-Iinclude", "-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Werror"]


def sources(suffixes):
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and "fixtures" not in path.parts:
                yield path.relative_to(ROOT)


def takes_a_lock(path):
    """The source itself, or the header that it implements."""
    own = [path, path.with_suffix(".h")]
    return any((ROOT / file).exists() and TAKES_A_LOCK.search((ROOT / file).read_text()) for file in own)


def look(path):
    command = ["clang++", *FLAGS, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return path, done.returncode, done.stderr


def main():
    unchecked = [str(p) for p in sources({".h", ".cc"}) if str(p) not in EXEMPT and OWN_LOCKS.search((ROOT / p).read_text())]
    for path in unchecked:
        print(f"check_threads: {path} has a lock that the compiler does not check; use src/base/mutex.h")
    if not shutil.which("clang++"):
        print("check_threads: no clang++ here, locks were not looked at")
        return 1 if unchecked else 0
    words = [word for word in sys.argv[1:] if word != "--all"]
    paths = [pathlib.Path(word) for word in words] or [
        path for path in sources({".cc"}) if "--all" in sys.argv or takes_a_lock(path)]
    failed = bool(unchecked)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, status, text in pool.map(look, paths):
            if status:
                failed = True
                print(f"check_threads: {path}\n{text}")
    if failed:
        return 1
    print(f"threads: {len(paths)} sources hold the locks that their members want")
    return 0


if __name__ == "__main__":
    sys.exit(main())
