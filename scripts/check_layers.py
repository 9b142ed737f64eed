#!/usr/bin/env python3
"""Fails when an #include points up or sideways between the folders (ARCHITECTURE.md, "Who may know whom")."""
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
ALLOWED = {
    "src/base": [],
    "src/shape": ["src/base"],
    "src/schedule": ["src/base", "src/shape"],
    "policy": ["src/base", "src/shape", "src/schedule"],
    "io": ["src/base"],
    "kernels": ["src/base"],
    "src/text": ["src/base"],
    "src/sampling": ["src/base"],
    "src/jobs": ["src/base", "src/sampling"],
    "src/device": ["src/base", "src/schedule"],
    "src/cache": ["src/base"],
    "src/model": ["src/base", "src/shape", "io"],
    "src/engine": ["src/base", "src/shape", "src/schedule", "policy", "io", "kernels", "src/device", "src/cache",
                   "src/model", "src/sampling"],
    "src/app": ["src/base", "src/shape", "src/schedule", "policy", "io", "kernels", "src/device", "src/cache",
                "src/model", "src/sampling", "src/text", "src/jobs", "src/engine"],
}
# Third-party headers that only the sources of one folder may see.
PRIVATE = {"liburing.h": "io", "dnnl.hpp": "kernels", "pcre2.h": "src/text", "utf8proc.h": "src/text",
           "sentencepiece_processor.h": "src/text", "CLI/CLI.hpp": "tools"}
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')


def folder_of(path):
    return max((f for f in list(ALLOWED) + ["tools", "tests", "benchmarks"] if path.startswith(f + "/")),
               key=len, default=None)


def main():
    failures = []
    for top in ("src", "policy", "io", "kernels", "tools"):
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            for name in files:
                if not name.endswith((".h", ".cc", ".inc", ".cu", ".cuh")):
                    continue
                path = os.path.relpath(os.path.join(folder, name), ROOT)
                home = folder_of(path)
                for number, line in enumerate(open(os.path.join(ROOT, path), encoding="utf-8"), 1):
                    match = INCLUDE.match(line)
                    if not match:
                        continue
                    target = match.group(1)
                    if target in PRIVATE and not path.startswith(PRIVATE[target] + "/"):
                        failures.append(f"{path}:{number}: {target} belongs to {PRIVATE[target]}")
                    to = folder_of(target)
                    if home in ALLOWED and to and to != home and to not in ALLOWED[home]:
                        failures.append(f"{path}:{number}: {home} must not know {to} ({target})")
    print("\n".join(failures) if failures else "layers: every include points down")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
