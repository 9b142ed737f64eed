#!/usr/bin/env python3
"""Breaks the CUDA kernels and the engine's CUDA path on purpose, one small fault at a time, and wants a red test for each.

    scripts/mutate.py [--only REGEX] [--check] [--own-tests] [--folder DIR] [--table FILE [--missing] [--stale]] [--minutes N] [--jobs N]

The faults are tests/mutants/*.txt: what a careless edit could do. Each is put into a copy of the tracked files (in --folder, kept
and used again where it is given), the test programs are built there, and the tests that the fault names run first, then all, in every
order of threads that the stand-in has (kernels/cuda/shim/host_grid.h). A fault that no test notices fails, unless its entry says
why it can't be noticed; so does one that says so and is noticed. --check builds nothing: it looks whether the text that each
fault changes is still there, and where it is not, the entry is to be brought up to date or to go; with --table also whether each
has a verdict. --own-tests runs no tests but those that a fault names, so what survives has not survived all. --table
docs/gpu/mutants.tsv writes each verdict into its line there, and of which state of the function or class it is that the fault
changes; with --missing only faults
without one are run, with --stale those too whose definition has changed since, and --minutes begins none after so many, so that all can be
done in slices. Only the programs that a fault names are built for it; cuda_cublas_test needs the CUDA toolkit's headers (nvcc in PATH).
Needs no GPU. All of it takes an hour or two; a slice with --folder some 10 to 20 seconds a fault.

An entry:

    == name
    file: path
    tests: PROGRAM FILTER        of GoogleTest
    survives: why no test can notice it      (only then)
    - text to be found once, its lines in order
    + text in its place (none: it goes)
"""
import argparse
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
ORDERS = ("0", "1", "2", "3", "5")
PROGRAMS = ("cuda_kernels_test", "cuda_engine_test")
SECONDS = 300  # of a run of tests: a fault may make a loop endless
SECONDS_OF_ALL = 1800


class Mutant:
    def __init__(self, name):
        self.name, self.file, self.tests, self.survives = name, "", [], ""
        self.old, self.new = [], []


def read_mutants(path):
    """The entries of a file. Exits, naming the line, where one is not understood."""
    found = []
    for number, line in enumerate(open(path), 1):
        line = line.rstrip("\n")
        if not line.strip() or line.startswith("#"):
            continue
        match = re.match(r"(==|file:|tests:|survives:|[-+])( (.*))?$", line)
        if not match or (match.group(1) != "==" and not found):
            sys.exit(f"mutate: {path}:{number}: not understood: {line}")
        key, text = match.group(1), match.group(3) or ""
        if key == "==":
            found.append(Mutant(text))
        elif key == "file:":
            found[-1].file = text
        elif key == "tests:":
            found[-1].tests.append(text.split(" ", 1))
        elif key == "survives:":
            found[-1].survives += text
        else:
            (found[-1].old if key == "-" else found[-1].new).append(text)
    return found


def place_of(mutant, text):
    """Where in `text` the fault is put, as a match; None where what it changes is not there once. Spaces at the ends of lines do
    not count."""
    old = r"\n".join(r"[ \t]*" + re.escape(line.strip()) + r"[ \t]*" for line in mutant.old)
    places = list(re.finditer("(?m)^" + old + "$", text))
    return places[0] if len(places) == 1 else None


def definition(mutant, text):
    """The definition of a function, class or value in `text` that the fault changes, with the comment above it: from the last line
    in front of the fault that begins one to the brace that closes it; None where the fault has no place."""
    place = place_of(mutant, text)
    if not place:
        return None
    ends = [match.end() for match in re.finditer(r"(?m)^\}.*$", text)]
    begin = max((end for end in ends if end <= place.start()), default=0)
    end = min((end for end in ends if end >= place.end()), default=len(text))
    return text[begin:end].strip()


def mutated(mutant, text):
    """`text` with the fault, or None where it has no place."""
    place = place_of(mutant, text)
    if not place:
        return None
    return text[:place.start()] + "\n".join(mutant.new) + text[place.end():]


def lost(mutants):
    """Those whose text is no longer there once."""
    out = []
    for mutant in mutants:
        path = os.path.join(ROOT, mutant.file)
        if not os.path.exists(path) or mutated(mutant, open(path).read()) is None:
            out.append(mutant)
    return out


def copy_tree(folder):
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, to = os.path.join(ROOT, name), os.path.join(folder, name)
        if not os.path.isfile(source):
            continue
        os.makedirs(os.path.dirname(to), exist_ok=True)
        # What has not changed keeps its time: it is not built again.
        if not os.path.exists(to) or open(source, "rb").read() != open(to, "rb").read():
            shutil.copyfile(source, to)


def build(folder, jobs, programs=PROGRAMS):
    return subprocess.run(["cmake", "--build", "build/release", "--target", *programs, "--", f"-j{jobs}"], cwd=folder,
                          capture_output=True, text=True)


def read_table(path):
    """The first lines of a table of verdicts, and its rows by the fault's name, in their order."""
    lines = [line.rstrip("\n") for line in open(path)]
    rows = [line.split("\t") for line in lines[2:]]
    return lines[:2], {row[0]: row for row in rows}


def write_table(path, head, rows):
    with open(path, "w") as table:
        table.write("\n".join([*head, *("\t".join(row) for row in rows.values())]) + "\n")


def known(mutant, rows):
    """Whether the table has a verdict that the entry still stands by."""
    row = rows.get(mutant.name, ("", "", ""))
    if row[1] != mutant.file or not row[2] or row[2].startswith("FAILED"):
        return False
    return row[2] == f"survives: {mutant.survives}" if mutant.survives else not row[2].startswith("survives")


def state_of(mutant):
    """A name for what the definition is now that the fault changes."""
    with open(os.path.join(ROOT, mutant.file), encoding="utf-8") as file:
        found = definition(mutant, file.read())
    return hashlib.sha256(found.encode()).hexdigest()[:10] if found else "gone"


def is_stale(mutant, rows):
    """Whether its verdict is of another state of the definition."""
    row = rows.get(mutant.name, ())
    return len(row) < 4 or row[3] != state_of(mutant)


def table_problems(mutants, rows):
    """What is wrong with a table of verdicts, by the fault's name."""
    names = {mutant.name for mutant in mutants}
    return ([f"{mutant.name}: no verdict" for mutant in mutants if not known(mutant, rows)] +
            [f"{name}: a verdict on no fault" for name in rows if name not in names])


def failure(folder, program, tests, order):
    """The first test that fails, or None."""
    environment = dict(os.environ, SLUICE_THREAD_ORDER=order)
    command = [f"build/release/tests/{program}", f"--gtest_filter={tests}", "--gtest_fail_fast", "--gtest_brief=1"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace",
                              timeout=SECONDS_OF_ALL if tests == "*" else SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return f"{tests} never ended"
    if "Running 0 tests" in done.stdout or " 0 tests from" in done.stdout:
        sys.exit(f"mutate: no test is named {tests} in {program}")
    if done.returncode == 0:
        return None
    named = re.search(r"\[  FAILED  \] ([\w/]+\.[\w/]+)", done.stdout)
    return named.group(1) if named else f"{tests} ended with {done.returncode}"


def programs_of(mutant):
    return list(dict.fromkeys(program for program, _ in mutant.tests)) or list(PROGRAMS)


def runs_of(mutant, own_only):
    """What is run of a fault until something fails: its own tests in every order, then all."""
    every = [(program, "*") for program in programs_of(mutant)]
    for program, tests in [*mutant.tests, *([] if own_only else every)]:
        # Other programs draw their orders themselves.
        for order in ORDERS if program == "cuda_kernels_test" else ORDERS[:1]:
            yield program, tests, order


def verdict(mutant, folder, jobs, own_only):
    """What became of a fault, as (is as it should be, text)."""
    path = os.path.join(folder, mutant.file)
    whole = open(path).read()
    open(path, "w").write(mutated(mutant, whole))
    try:
        built = build(folder, jobs, programs_of(mutant))
        if built.returncode != 0:
            error = next((line for line in built.stdout.splitlines() if "error" in line), "")
            return False, f"does not compile: {error}"
        for program, tests, order in runs_of(mutant, own_only):
            red = failure(folder, program, tests, order)
            if red:
                text = f"{red}, order {order}"
                return (False, f"noticed by {text}, although it says it can't be") if mutant.survives else (True, text)
        return (True, f"survives: {mutant.survives}") if mutant.survives else (False, "SURVIVES")
    finally:
        open(path, "w").write(whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of faults, a regular expression")
    parser.add_argument("--check", action="store_true", help="whether their text is still there; builds nothing")
    parser.add_argument("--own-tests", action="store_true", help="no tests but those that a fault names")
    parser.add_argument("--folder", help="where the copy is; default: a temporary one")
    parser.add_argument("--table", help="of verdicts, a line a fault: written as they are found")
    parser.add_argument("--missing", action="store_true", help="only what --table has no verdict of")
    parser.add_argument("--stale", action="store_true", help="what is missing, and what has a verdict of before its definition changed")
    parser.add_argument("--minutes", type=float, help="after which no fault is begun")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the build")
    options = parser.parse_args()
    files = sorted(glob.glob(os.path.join(ROOT, "tests/mutants/*.txt")))
    mutants = [mutant for path in files for mutant in read_mutants(path) if re.search(options.only, mutant.name)]
    if len({mutant.name for mutant in mutants}) != len(mutants):
        sys.exit("mutate: two faults have one name")
    gone = lost(mutants)
    for mutant in gone:
        print(f"{mutant.name}: the text that it changes is not in {mutant.file} once: bring the entry up to date, or take it out")
    head, rows = read_table(options.table) if options.table else ([], {})
    if options.check:
        problems = table_problems(mutants, rows) if options.table else []
        stale = sum(is_stale(mutant, rows) for mutant in mutants if mutant not in gone)
        older = f", {stale} with verdicts of their definition before it changed (--stale runs them)" if options.table else ""
        print("\n".join([*problems, f"mutate: {len(mutants)} faults, {len(gone)} without their text{older}"]))
        return 1 if gone or problems else 0
    if options.missing or options.stale:
        mutants = [mutant for mutant in mutants
                   if not known(mutant, rows) or (options.stale and (mutant in gone or is_stale(mutant, rows)))]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(options.folder or temporary)
        copy_tree(folder)
        programs = sorted({program for mutant in mutants for program in programs_of(mutant)})
        cuda = "ON" if "cuda_cublas_test" in programs else "OFF"
        subprocess.run(["cmake", "--preset", "release", f"-DSLUICE_CUDA={cuda}"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        whole = build(folder, options.jobs, programs)
        if whole.returncode != 0:
            sys.exit(f"mutate: the tests do not build:\n{whole.stdout[-4000:]}")
        bad = done = 0
        for mutant in mutants:
            if options.minutes and time.monotonic() - began > options.minutes * 60:
                break
            if mutant in gone:
                good, text = False, "its text is gone"
            else:
                good, text = verdict(mutant, folder, options.jobs, options.own_tests)
            bad, done = bad + (not good), done + 1
            text = text if good else f"FAILED: {text}"
            print(f"{mutant.name}  {mutant.file}  {text}", flush=True)
            if options.table:
                rows[mutant.name] = [mutant.name, mutant.file, text, state_of(mutant)]
                write_table(options.table, head, rows)
        print(f"mutate: {done} faults of {len(mutants)}, {done - bad} as they should be")
        return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
