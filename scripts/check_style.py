#!/usr/bin/env python3
"""Fails on functions of more than 80 lines in the product's code (aim: 60). Reads clang-format's layout: a function
begins on a line that ends with '{' and ends on the next line that begins with '}' no deeper."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["include", "src", "policy", "io", "kernels", "tools", "python"]
SUFFIXES = {".h", ".cc", ".cu", ".inc"}
MOST_LINES = 80
OPENS = re.compile(r"^( {0,4})(\S.*) \{$")
NO_FUNCTION = re.compile(r"^(namespace|class|struct|union|enum|extern|if|for|while|switch|do|else|try|case|\})\b|^\}|=$")


def functions(lines):
    """(first line from 0, lines) of each function; its head may be several lines."""
    for begin, line in enumerate(lines):
        match = OPENS.match(line)
        if not match or NO_FUNCTION.search(match[2]):
            continue
        depth = len(match[1])
        for end in range(begin + 1, len(lines)):
            closing = re.match(r"^( *)\}", lines[end])
            if closing and len(closing[1]) <= depth:
                yield begin, end - begin + 1
                break


def main():
    failures = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            for begin, length in functions(path.read_text().split("\n")):
                if length > MOST_LINES:
                    failures.append(f"{path.relative_to(ROOT)}:{begin + 1}: a function of {length} lines; part it")
    print("\n".join(failures) if failures else f"style: no function has more than {MOST_LINES} lines")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
