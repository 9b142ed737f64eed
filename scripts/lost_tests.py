#!/usr/bin/env python3
"""Names the tests that a commit has and this tree has not: scripts/lost_tests.py BASE. A test may move to another
file; one that is gone or renamed is listed, and then this fails."""
import re
import subprocess
import sys

TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)


def names_in(commit):
    """{"Suite.Name"} of a commit's tests; of the working tree for None."""
    if commit:
        files = subprocess.run(["git", "ls-tree", "-r", "--name-only", commit, "tests"], check=True, capture_output=True,
                               text=True).stdout.splitlines()
    else:
        files = subprocess.run(["git", "ls-files", "tests"], check=True, capture_output=True, text=True).stdout.splitlines()
    names = set()
    for file in files:
        if not file.endswith((".cc", ".h", ".cu")) or file.startswith("tests/fixtures/"):
            continue
        if commit:
            text = subprocess.run(["git", "show", f"{commit}:{file}"], check=True, capture_output=True).stdout.decode("utf-8", "replace")
        else:
            text = open(file, encoding="utf-8", errors="replace").read()
        names |= {f"{suite}.{name}" for suite, name in TEST.findall(text)}
    return names


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    before, now = names_in(sys.argv[1]), names_in(None)
    lost = sorted(before - now)
    print("\n".join(lost + [f"lost_tests: {len(before)} then, {len(now)} now, {len(lost)} gone"]))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
