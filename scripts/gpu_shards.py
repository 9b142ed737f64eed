#!/usr/bin/env python3
"""Runs a GoogleTest program in several processes at once, for GPUs: what fails there may take the rest of its process with it.

    scripts/gpu_shards.py --name NAME --logs DIR [--shards N] [--seconds S] [--test-seconds T] [--filter F] -- PROGRAM [ARGUMENTS...]

Each process is one of GoogleTest's shards and has a log, DIR/NAME-shard-K.log. Where one crashes, or a test takes longer than
T seconds, that test is noted and another process goes on with the shard's rest. What has failed runs once more in the end, each
by itself, so that a test that only met what another left behind is told from one that fails. Prints numbers, the tests that
did not pass by name, and the last lines of some of them; exits with 0 where all have passed. After S seconds it ends all by
itself and prints what there is; so it does when it gets SIGTERM.
"""
import argparse
import collections
import concurrent.futures
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time

EVENT = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]+)")
ENDED = re.compile(r"\(\d+ ms\)")  # the list of failures at a run's end has no times
MOST_LOG_BYTES = 1 << 20
SHOWN_NAMES, SHOWN_TESTS, SHOWN_LINES = 60, 8, 8
PASSED, SKIPPED, FAILED, CRASHED, HUNG = "passed", "skipped", "failed", "crashed", "hung"
NO_PROGRESS = 2  # processes in a row that end without a test

stopped = threading.Event()


class Results:
    """What became of each test; of those that did not pass also their last lines. Any thread."""

    def __init__(self):
        self.lock = threading.Lock()
        self.of, self.lines, self.alone, self.trouble = {}, {}, {}, []

    def note(self, test, outcome, lines=()):
        with self.lock:
            self.of[test] = outcome
            self.lines[test] = list(lines)[-SHOWN_LINES:]
            if outcome not in (PASSED, SKIPPED):  # for whoever ends this before its report
                print(f"so far {outcome}: {test}", flush=True)

    def complain(self, text):
        with self.lock:
            self.trouble.append(text)


class Process:
    """One process of the program, from its start to its end or to a test that takes too long."""

    def __init__(self, asked, deadline):
        self.asked, self.deadline = asked, deadline
        self.finished, self.running, self.lines = [], None, collections.deque(maxlen=SHOWN_LINES)

    def read(self, line, log, note):
        if log.tell() < MOST_LOG_BYTES:
            log.write(line + "\n")
        event = EVENT.search(line)
        kind, test = (event[1], event[2]) if event else (None, None)
        if kind == "RUN":
            self.running = test
            self.lines.clear()
        elif kind and test == self.running and ENDED.search(line):
            note(test, {"OK": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED}[kind], self.lines)
            self.finished.append(test)
            self.running = None
        elif line.strip():
            self.lines.append(line)

    def run(self, log, note, selection, shard=None):
        """The exit status, or HUNG, or None where time was up."""
        environment = dict(os.environ)
        for name in ("GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"):
            environment.pop(name, None)
        if shard:
            environment["GTEST_SHARD_INDEX"], environment["GTEST_TOTAL_SHARDS"] = map(str, shard)
        process = subprocess.Popen(self.asked.program + [f"--gtest_filter={selection}", "--gtest_color=no"], env=environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        pending, heard, status = b"", time.monotonic(), None
        while True:
            now = time.monotonic()
            if stopped.is_set() or now >= self.deadline:
                break
            if now - heard > self.asked.test_seconds:
                status = HUNG
                break
            if not select.select([process.stdout], [], [], 0.2)[0]:
                continue
            block = os.read(process.stdout.fileno(), 1 << 16)
            if not block:
                break
            *whole, pending = (pending + block).split(b"\n")
            finished = len(self.finished)
            for line in whole:
                self.read(line.decode("utf-8", "replace"), log, note)
            # A test that goes on talking is no nearer its end.
            if len(self.finished) > finished:
                heard = time.monotonic()
        if pending:
            self.read(pending.decode("utf-8", "replace"), log, note)
        log.flush()
        return self.end(process, status)

    def end(self, process, status):
        if status == HUNG or stopped.is_set() or time.monotonic() >= self.deadline:
            process.kill()
        try:
            code = process.wait(5)
        except subprocess.TimeoutExpired:  # a driver may hold what it does not finish
            process.kill()
            return HUNG if status is None and not stopped.is_set() else status
        if status is None and not stopped.is_set() and time.monotonic() < self.deadline:
            return code
        return status


def listed(asked):
    """The names of the tests, as the program lists them."""
    try:
        found = subprocess.run(asked.program + [f"--gtest_filter={asked.filter}", "--gtest_list_tests"], timeout=20, text=True,
                               errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.exit(f"gpu_shards: the tests can't be listed: {error}")
    tests, suite = [], ""
    for line in found.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if re.match(r"\S+\.$", name):
            suite = name
        elif suite and re.match(r"  \S+$", name):
            tests.append(suite + name.strip())
    tests = [test for test in tests if not re.search(r"(^|[./])DISABLED_", test)]
    if not tests:
        sys.exit(f"gpu_shards: no test matches {asked.filter}; the program ended with {found.returncode}: "
                 + found.stdout.strip()[-300:])
    return tests


def run_shard(asked, number, tests, results):
    """Runs the tests of a shard, in another process after each that ends too early."""
    left, shard, selection, without = list(tests), (number, asked.shards), asked.filter, 0
    with open(os.path.join(asked.logs, f"{asked.name}-shard-{number}.log"), "w", encoding="utf-8") as log:
        while left and not stopped.is_set() and time.monotonic() < asked.deadline:
            process = Process(asked, asked.deadline)
            status = process.run(log, results.note, selection, shard)
            if process.running and status is not None:
                how = HUNG if status == HUNG else CRASHED
                ended = f"no end after {asked.test_seconds} s" if how == HUNG else f"the process ended with {status}"
                results.note(process.running, how, [*process.lines, ended])
                process.finished.append(process.running)
            elif status == HUNG:
                results.complain(f"shard {number}: the process hung outside tests")
            elif status not in (0, None) and all(results.of[test] in (PASSED, SKIPPED) for test in process.finished):
                results.complain(f"shard {number}: the process ended with {status} though its tests had passed; its last lines: "
                                 + " / ".join(process.lines)[-300:])
            without = 0 if process.finished else without + 1
            left = [test for test in left if test not in set(process.finished)]
            if without == NO_PROGRESS:
                break
            shard, selection = None, ":".join(left)


def run_shard_safely(asked, number, tests, results):
    try:
        run_shard(asked, number, tests, results)
    except Exception as error:  # no memory for a process, no room for a log: the other shards go on
        results.complain(f"shard {number}: {type(error).__name__}: {error}")


def run_alone(asked, test, results):
    if stopped.is_set() or time.monotonic() > asked.deadline - 2:
        return
    outcome = {}
    path = os.path.join(asked.logs, f"{asked.name}-alone-{re.sub('[^A-Za-z0-9]', '-', test)[:80]}.log")
    with open(path, "w", encoding="utf-8") as log:
        process = Process(asked, asked.deadline)
        status = process.run(log, lambda name, how, _: outcome.update({name: how}), test)
    with results.lock:
        if test in outcome:
            results.alone[test] = outcome[test] + (f", then the process ended with {status}"
                                                   if outcome[test] == PASSED and status not in (0, None) else "")
        elif status is not None:
            results.alone[test] = {HUNG: HUNG, 0: "not run"}.get(status, CRASHED)


def report(asked, tests, results, began):
    with results.lock:
        counts = collections.Counter(results.of.values())
        bad = [test for test in tests if results.of.get(test, PASSED) not in (PASSED, SKIPPED)]
        missing = [test for test in tests if test not in results.of]
        parts = [f"{counts[how]} {how}" for how in (PASSED, SKIPPED, FAILED, CRASHED, HUNG) if counts[how] or how == PASSED]
        if missing:
            parts.append(f"{len(missing)} not run")
        print(f"{len(tests)} tests in {asked.shards} processes, {time.monotonic() - began:.0f} s: " + ", ".join(parts))
        for test in bad[:SHOWN_NAMES]:
            print(f"{results.of[test]}: {test} (by itself: {results.alone.get(test, 'not tried')})")
        if len(bad) > SHOWN_NAMES:
            print(f"and {len(bad) - SHOWN_NAMES} more")
        for text in results.trouble[:SHOWN_TESTS]:
            print(text)
        if missing:
            print("not run: " + " ".join(missing[:SHOWN_TESTS]) + (" ..." if len(missing) > SHOWN_TESTS else ""))
        for test in sorted(bad, key=lambda test: results.alone.get(test) == PASSED)[:SHOWN_TESTS]:
            print(f"the end of {test}:")
            for line in results.lines[test]:
                print("  " + line[:240])
        sys.stdout.flush()
        return 0 if not bad and not missing and not results.trouble else 1


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True)
    parser.add_argument("--logs", required=True)
    parser.add_argument("--shards", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--test-seconds", type=float, default=30)
    parser.add_argument("--filter", default="*")
    parser.add_argument("program", nargs="+")
    return parser.parse_args()


def main():
    asked = parsed()
    began = time.monotonic()
    asked.deadline = began + asked.seconds
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    tests, results = listed(asked), Results()
    asked.shards = max(1, min(asked.shards, len(tests)))
    print(f"begins: {len(tests)} tests", flush=True)
    with concurrent.futures.ThreadPoolExecutor(asked.shards) as pool:
        list(pool.map(lambda number: run_shard_safely(asked, number, tests[number::asked.shards], results), range(asked.shards)))
        bad = [test for test in tests if results.of.get(test, PASSED) not in (PASSED, SKIPPED)]
        list(pool.map(lambda test: run_alone(asked, test, results), bad))
    code = report(asked, tests, results, began)
    # A process that can't be ended is not waited for.
    os._exit(code)


if __name__ == "__main__":
    main()
