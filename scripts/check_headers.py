#!/usr/bin/env python3
"""Fails on types and functions of headers without a comment, and on classes with too many members.

A type or function at namespace scope has a comment above it, in a run of lines without an empty one. A header's own
noun (`class Engine` in engine.h) is what its opening comment is about; a function that a comment of the header names
needs none of its own, nor do those of a namespace `reference`, which do what their namesakes do. Reads clang-format's
layout."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["include", "src", "policy", "io", "kernels", "tools", "python"]
# The words of CUDA and of its stand-in: kernels/cuda/vocabulary.h says what they mean; those of instruction sets:
# kernels/cpu/isa/generic.h does. The CPU's inner loops are sources, compiled once for each.
EXEMPT = ["kernels/cuda/shim/", "kernels/cuda/vocabulary.h", "kernels/cpu/isa/avx", "kernels/cpu/isa/neon", "kernels/cpu/generic/",
          "kernels/cpu/avx2/", "kernels/cpu/avx512_bf16/", "kernels/cpu/neon_bf16/"]
MOST_MEMBERS = 20

NO_DECLARATION = re.compile(
    r"(namespace|using|extern|public|private|protected|inline constexpr|constexpr|static|typedef)\b|SLUICE_"
    r"|(template <[^;]*> )?(struct|class|enum class|enum) \w+( : \w+)?;")
TYPE = re.compile(r"(?:template <.*> )?(?:struct|class|enum class|enum|union) (?:\w+\([^)]*\) )?([\w:]+)")
FUNCTION = re.compile(r"([\w:~]+|operator\S+)\(")
MEMBER = re.compile(r"\b\w+_(\{[^}]*\}| = [^;(]*|( SLUICE_\w+\([^)]*\))( = [^;]*|\{[^}]*\})?)?;")


def without_comment(path):
    """(line from 1, what) of each declaration that nothing explains."""
    lines = path.read_text().split("\n")
    own = path.stem.replace("_", "")
    comments = " ".join(line[line.index("//"):] for line in lines if "//" in line)
    is_explained = False
    is_reference = False
    for number, line in enumerate(lines[1:], 2):
        is_reference = line.startswith("namespace reference {") or is_reference and not line.startswith("}  // namespace")
        if not line or line.startswith("//"):
            is_explained = bool(line)
            continue
        if line[0] in " \t#}" or NO_DECLARATION.match(line):
            continue
        is_type = TYPE.match(line)
        name = (is_type or FUNCTION.search(line) or [None, ""])[1]
        if "::" in name and not is_type:
            continue  # a member's definition
        name = name.split("::")[-1]
        if line.startswith("template") and not is_type:
            continue
        if is_explained or is_reference or "//" in line:
            continue
        if is_type and name.lower() == own or not is_type and (not name or re.search(rf"\b{name}\b", comments)):
            continue
        yield number, name


def large_classes(path):
    """(line from 1, class, members) of classes that are no plain values."""
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        match = re.match(r"^( *)class (?:\w+\([^)]*\) )?(\w+)[^;]*$", line)
        if not match:
            continue
        depth, members = len(match[1]), 0
        for inner in lines[number:]:
            if re.match(rf"^ {{{depth}}}}};", inner):
                break
            indent = len(inner) - len(inner.lstrip())
            if indent <= depth + 6 and MEMBER.search(inner) and "return" not in inner:
                members += 1
        if members > MOST_MEMBERS:
            yield number, match[2], members


def main():
    failures = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix == ".h" and not any(name.startswith(exempt) for exempt in EXEMPT):
                for line, what in without_comment(path):
                    failures.append(f"{name}:{line}: nothing says what {what} is")
            if path.suffix in (".h", ".cc"):
                for line, what, members in large_classes(path):
                    failures.append(f"{name}:{line}: {what} has {members} members, at most {MOST_MEMBERS}; part it")
    print("\n".join(failures) if failures else "headers: every type and function is explained")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
