"""scripts/gpu_shards.py with a program of the tests' own in GoogleTest's place."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Says what GoogleTest says. FAULTS: {test: fail, crash, hang, skip, company (fails where another ran before), bad-end}.
PROGRAM = '''#!/usr/bin/env python3
import fnmatch, json, os, sys, time
faults = json.loads(os.environ["FAULTS"])
options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
wanted, _, unwanted = options.get("--gtest_filter", "*").partition("-")
matches = lambda name, globs: any(fnmatch.fnmatchcase(name, glob) for glob in globs.split(":"))
names = [f"Suite{i}.Test/{j}" for i in range(3) for j in range(4)] + ["Suite3.DISABLED_Test"]
names = [name for name in names if matches(name, wanted or "*") and not (unwanted and matches(name, unwanted))]
if "--gtest_list_tests" in sys.argv:
    for suite in sorted({name.split(".")[0] for name in names}):
        print(suite + ".", *[name.split(".")[1] + "  # GetParam() = 1" for name in names if name.startswith(suite)], sep="\\n  ")
    sys.exit(0)
names = [name for name in names if "DISABLED" not in name]
total, index = (int(os.environ.get(name, default)) for name, default in (("GTEST_TOTAL_SHARDS", 1), ("GTEST_SHARD_INDEX", 0)))
code = 0
for number, name in enumerate(names[index::total]):
    fault = faults.get(name)
    print(f"[ RUN      ] {name}", flush=True)
    if fault == "crash":
        print(f"{name} reads where nothing is", flush=True)
        os.abort()
    if fault == "hang":
        time.sleep(100)
    failed = fault == "fail" or fault == "company" and number > 0
    if failed:
        print("  a wrong sum")
    print(f"[{'  FAILED  ' if failed else '  SKIPPED ' if fault == 'skip' else '       OK '}] {name}"
          + (", where GetParam() = 1" if failed else "") + " (3 ms)", flush=True)
    code = code or int(failed) or (7 if fault == "bad-end" else 0)
for name in names:
    if faults.get(name) == "fail":
        print(f"[  FAILED  ] {name}, where GetParam() = 1")
sys.exit(code)
'''


class Shards(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.program = os.path.join(self.folder.name, "program")
        pathlib.Path(self.program).write_text(PROGRAM, encoding="utf-8")
        os.chmod(self.program, 0o700)

    def run_tests(self, faults, *options):
        return subprocess.run([sys.executable, ROOT / "scripts/gpu_shards.py", "--name", "tests", "--logs", self.folder.name, "--shards",
                               "3", *options, "--", self.program], capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "FAULTS": json.dumps(faults)})

    def test_all_pass_each_once(self):
        outcome = self.run_tests({"Suite1.Test/0": "skip"})
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        self.assertIn("12 tests in 3 processes", outcome.stdout)
        self.assertIn("11 passed, 1 skipped", outcome.stdout)
        logs = "".join(path.read_text() for path in pathlib.Path(self.folder.name).glob("tests-shard-*.log"))
        self.assertEqual(logs.count("[ RUN "), 12)

    def test_a_failure_is_named_and_told_from_what_it_does_to_others(self):
        outcome = self.run_tests({"Suite0.Test/1": "fail", "Suite2.Test/3": "company"})
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("10 passed, 2 failed", outcome.stdout)
        self.assertIn("failed: Suite0.Test/1 (by itself: failed)", outcome.stdout)
        self.assertIn("failed: Suite2.Test/3 (by itself: passed)", outcome.stdout)
        self.assertIn("a wrong sum", outcome.stdout)

    def test_after_a_crash_the_rest_of_the_shard_runs(self):
        outcome = self.run_tests({"Suite0.Test/0": "crash"})
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("11 passed, 1 crashed", outcome.stdout)
        self.assertIn("crashed: Suite0.Test/0 (by itself: crashed)", outcome.stdout)
        self.assertIn("reads where nothing is", outcome.stdout)
        self.assertIn("the process ended with -6", outcome.stdout)

    def test_a_test_that_hangs_costs_its_own_seconds_alone(self):
        outcome = self.run_tests({"Suite1.Test/1": "hang"}, "--test-seconds", "1")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("11 passed, 1 hung", outcome.stdout)
        self.assertIn("hung: Suite1.Test/1 (by itself: hung)", outcome.stdout)

    def test_when_time_is_up_it_says_what_did_not_run(self):
        outcome = self.run_tests({"Suite0.Test/0": "hang"}, "--seconds", "2")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("8 passed, 4 not run", outcome.stdout)
        self.assertIn("not run: Suite0.Test/0 Suite0.Test/3", outcome.stdout)

    def test_a_process_that_ends_badly_after_its_tests_is_no_success(self):
        outcome = self.run_tests({"Suite0.Test/2": "bad-end"})
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("12 passed", outcome.stdout)
        self.assertIn("ended with 7 though its tests had passed", outcome.stdout)

    def test_a_filter_without_tests_is_refused(self):
        outcome = self.run_tests({}, "--filter=Nothing*")
        self.assertNotEqual(outcome.returncode, 0)
        self.assertIn("no test matches Nothing*", outcome.stderr)

    def test_a_filter_may_leave_tests_out(self):
        self.assertIn("8 tests in 3 processes", self.run_tests({}, "--filter=-Suite1*").stdout)


if __name__ == "__main__":
    unittest.main()
