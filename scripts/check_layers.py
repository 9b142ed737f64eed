#!/usr/bin/env python3
"""Fails when an #include points up or sideways between the folders (ARCHITECTURE.md, "Who may know whom")."""
import os
import re
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# Rooms of a folder: whoever may know the folder may know each of them.
IO = ["io/files", "io/async", "io/checkpoint", "io/convert"]
BELOW_ENGINE = ["src/base", "src/shape", "src/schedule", "policy", *IO, "kernels", "src/device", "src/cache", "src/layer",
                "src/model", "src/sampling", "src/guide", "src/lora"]
ENGINE = ["src/engine/passes", "src/engine/stores", "src/engine/runners", "src/engine/batching", "src/engine"]
ALLOWED = {
    "src/base": [],
    "src/shape": ["src/base"],
    "src/layer": ["src/base", "src/shape"],
    "src/schedule": ["src/base", "src/cache", "src/shape"],
    "policy": ["src/base", "src/shape", "src/schedule"],
    "io/files": ["src/base"],
    "io/async": ["src/base", "io/files"],
    "io/checkpoint": ["src/base", "io/files"],
    "io/convert": ["src/base", "io/files", "io/checkpoint"],
    "kernels": ["src/base"],
    "src/text": ["src/base"],
    "src/chat": ["src/base", "src/text"],
    "src/sampling": ["src/base"],
    "src/guide": ["src/base", "src/text", "src/sampling"],
    "src/jobs": ["src/base", "src/sampling"],
    "src/transport": ["src/base"],
    "src/ranks": ["src/base", "src/shape", "src/schedule", "policy", "src/sampling", "src/jobs", "src/transport"],
    "src/device": ["src/base", "src/schedule"],
    "src/cache": ["src/base"],
    "src/model": ["src/base", "src/shape", "src/layer", *IO],
    "src/lora": ["src/base", "src/guide", *IO],
    "src/engine/passes": BELOW_ENGINE,
    "src/engine/stores": [*BELOW_ENGINE, *ENGINE[:1]],
    "src/engine/runners": [*BELOW_ENGINE, *ENGINE[:2]],
    "src/engine/batching": [*BELOW_ENGINE, *ENGINE[:3]],
    "src/engine": [*BELOW_ENGINE, *ENGINE[:4]],
    "src/engine/cuda": [*BELOW_ENGINE, *ENGINE],
    "src/profile": ["src/base", "src/schedule", "policy", *IO, "kernels", "src/device"],
    "src/http": ["src/base"],
    "src/serve": ["src/base", "src/http", "src/shape", "src/schedule", "policy", *IO, "src/cache", "src/layer", "src/model", "src/lora", "src/sampling", "src/text", "src/guide", "src/chat",
                  "src/jobs", *ENGINE, "src/app"],
    "src/app": ["src/base", "src/shape", "src/schedule", "policy", *IO, "kernels", "src/device", "src/cache",
                "src/layer", "src/model", "src/lora", "src/sampling", "src/text", "src/guide", "src/jobs", *ENGINE, "src/engine/cuda",
                "src/profile"],
    "src/api": ["src/base", "src/model", "policy", "src/sampling", "src/text", *ENGINE, "src/app", "src/chat", "src/lora", "src/profile", "src/serve"],
}
ALLOWED["tools"] = list(ALLOWED)
ALLOWED["python"] = []  # the installed headers alone
CHECKED_TREES = ("src", "policy", "io", "kernels", "tools", "python", "include")
# Third-party headers that only the sources (not the headers) of one folder may see; the commands share their flags.
PRIVATE = {"liburing.h": "io/async", "zlib.h": ("io/files", "io/checkpoint", "src/http"), "dnnl.hpp": "kernels", "dnnl.h": "kernels", "pcre2.h": "src/text",
           "utf8proc.h": ("src/text", "src/chat"), "httplib.h": "src/serve", "sentencepiece_processor.h": "src/text", "CLI/CLI.hpp": "tools",
           "cuda_runtime_api.h": ("tools", "kernels"), "cuda_runtime.h": ("tools", "kernels"), "cublasLt.h": "kernels", "mpi.h": "src/transport",
           "cuda_fp16.h": "kernels", "cuda_bf16.h": "kernels"}
PRIVATE_FOLDERS = {"boost/": "src/http"}
# Headers of one folder's own sources that may show them.
INNER_HEADERS = {"src/http/connection.h", "src/http/server_core.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


def folder_of(path):
    known = list(ALLOWED) + ["tests", "benchmarks"]
    return max((f for f in known if path.startswith(f + "/")), key=len, default=None)


def public_problem_of(path, quote, target):
    """What is wrong with one #include of a public header: what is not installed is not there for others."""
    if path == "include/sluice/error.h" or quote == "<" and "/" not in target or target.startswith("sluice/"):
        return None
    return f"{target} is not installed"


def problem_of(path, home, quote, target):
    """What is wrong with one #include, or None."""
    owner = PRIVATE.get(target) or next((o for f, o in PRIVATE_FOLDERS.items() if target.startswith(f)), None)
    if owner and home not in (owner if isinstance(owner, tuple) else (owner,)):
        return f"{target} belongs to {owner}"
    if target in INNER_HEADERS and home != folder_of(target):
        return f"{target} is for the sources of {folder_of(target)}"
    may_show = home == "tools" or path in INNER_HEADERS or path == "kernels/cuda/shim/device_vocabulary.h"
    if owner and path.endswith(".h") and not may_show:
        return f"{target} in a header: keep it in a source"
    to = folder_of(target)
    if quote == '"' and not os.path.exists(os.path.join(ROOT, target)):
        return f"\"{target}\" is no path from the root"
    if to and to != home and to not in ALLOWED[home]:
        return f"{home} must not know {to} ({target})"
    return None


def check_file(path):
    is_public = path.startswith("include/")
    home = folder_of(path)
    if home is None and not is_public:
        return [f"{path}:1: its folder is not in the layers; add it to scripts/check_layers.py and ARCHITECTURE.md"]
    failures = []
    with open(os.path.join(ROOT, path), encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, target = match.groups()
            problem = public_problem_of(path, quote, target) if is_public else problem_of(path, home, quote, target)
            if problem:
                failures.append(f"{path}:{number}: {problem}")
    return failures


def find_cycle():
    """A folder that may, by way of others, include itself; None when the arrows only go down."""
    done, open_ = set(), []

    def visit(folder):
        if folder in open_:
            return " -> ".join(open_[open_.index(folder):] + [folder])
        if folder in done:
            return None
        open_.append(folder)
        found = next(filter(None, map(visit, ALLOWED[folder])), None)
        open_.pop()
        done.add(folder)
        return found

    return next(filter(None, map(visit, ALLOWED)), None)


def main():
    cycle = find_cycle()
    failures = [f"scripts/check_layers.py: the layers themselves go in a circle: {cycle}"] if cycle else []
    for top in CHECKED_TREES:
        for folder, _, files in sorted(os.walk(os.path.join(ROOT, top))):
            for name in sorted(files):
                if name.endswith((".h", ".cc", ".inc", ".cu", ".cuh")):
                    failures += check_file(os.path.relpath(os.path.join(folder, name), ROOT))
    print("\n".join(failures) if failures else "layers: every include points down")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
