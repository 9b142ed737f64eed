"""scripts/gpu_lent.sh, and the parts of gpu-check.sh that it calls, with programs of the tests' own in a GPU program's place."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_FILES, MOST_BYTES, MOST_COMMAND, UNPACKING = 6, 16 << 20, 2000, 60
# Steps in the order of their worth, and the seconds that each may take.
FIRST = {"doctor": 15, "kernels-test-vocabulary": 20, "machine": 10, "kernels-test-rest": 120, "offload-synth": 30, "offload-cpu": 25,
         "offload-gpu": 25, "offload-same": 8, "engine-test-logits": 120, "engine-test-rest": 90, "profile": 100,
         "kernel-bench-products": 35, "kernel-bench-others": 30, "resident-f16": 30, "sanitizer-memcheck": 120,
         "sanitizer-racecheck": 120}
SECOND = {"doctor": 15, "synth-opt-tiny-int4": 25, "profile": 45, "offload-int4": 60, "accelerate-opt-30b": 80, "synth-opt-tiny-f16": 25,
          "offload-f16": 50, "machine": 10}
ANSWER = {"logprobs": [{"id": 5, "logprob": -7.0, "top": [{"id": 5, "logprob": -7.0}]}],
          "stats": {"tokens_per_s": 1.0, "pinned_bytes": 3 << 30, "pageable_bytes": 0, "peak_bytes": {"device": 1},
                    "lanes": {"disk read": {"bytes": 1 << 20}}}}
RATES = {"results": [{"batch": 1, "prefill_tokens_per_s": {"median": 1.0}, "decode_tokens_per_s": {"median": 1.0},
                      "stats": {"total_tokens_per_s": 1.0, "prefill_s": 1, "decode_s": 1, "peak_bytes": {"device": 1},
                                "lanes": {"device compute": {"busy_s": 1}}}}]}
TRACE = {"traceEvents": [{"ph": "M", "pid": 1, "tid": 4, "name": "thread_name", "args": {"name": "device compute"}},
                         *({"ph": "X", "tid": 4, "name": "compute layer 0 attention", "ts": 100 * i, "dur": 50, "args": {"pass": i}}
                           for i in range(8))]}
SLUICE = f"""#!/bin/sh
out= last= trace= answer='{json.dumps(RATES)}'
for word; do
  [ "$last" != -o ] || out=$word
  [ "$last" != --trace ] || trace=$word
  last=$word
done
case $1 in
  doctor) echo 'ok   CUDA  1 GPUs' ;;
  version) echo 'sluice 1' ;;
  synth) mkdir -p "$3" ;;
  profile) echo '{{}}' >"$out" ;;
  run) answer='{json.dumps(ANSWER)}'; echo "$answer" ;;
  bench) echo "$answer"; echo "$@" >&2 ;;
esac
[ -z "$trace" ] || echo '{json.dumps(TRACE)}' >"$trace"
"""
TESTS = """#!/bin/sh
case $* in
  *list_tests*) printf 'Suite.\\n  One\\n  Two\\n' ;;
  *) for test in One Two; do printf '[ RUN      ] Suite.%s\\n[       OK ] Suite.%s (1 ms)\\n' $test $test; done ;;
esac
"""
# Says what limit each command has; and, where a test asks so, does not end what is to be ended.
TIMEOUT = """#!/bin/sh
[ "$1" != -k ] || echo "$3" >>"$LIMITS"
case $* in *'made to hang'*) [ -z "$HOLDS" ] || exec sleep "$HOLDS" ;; esac
exec /usr/bin/timeout "$@"
"""


class Lent:
    """A copy of the tree's scripts, a bundle, and what a call leaves."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        self.tools, self.tree, self.out = (os.path.join(self.folder, name) for name in ("tools", "tree", "out"))
        for folder in (self.tools, self.tree):
            os.makedirs(folder)
        shutil.copytree(ROOT / "scripts", os.path.join(self.tree, "scripts"))
        self.programs = {"sluice": SLUICE, "cuda_kernels_gpu_test": TESTS, "cuda_engine_gpu_test": TESTS,
                         "sluice_cuda_bench": "#!/bin/sh\necho 'few_rows/0/1/1 1 us'\n"}
        self.tool("timeout", TIMEOUT)
        self.tool("compute-sanitizer", "#!/bin/sh\nexit 0\n")
        # A GPU of its own: what a call finds left of one that was killed on the same GPU, it removes.
        self.environment = {"LIMITS": os.path.join(self.folder, "limits"), "HOLDS": "", "SLUICE_REHEARSED_LIMIT": "1",
                            "CUDA_VISIBLE_DEVICES": "GPU-" + os.path.basename(self.folder)}

    def tool(self, name, text):
        path = pathlib.Path(self.tools, name)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o700)

    def bundle(self):
        bundle = pathlib.Path(self.folder, "sluice-gpu")
        for name, text in self.programs.items():
            path = bundle / "bin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o700)
        for folder in ("bin/lib", "scripts"):
            (bundle / folder).mkdir(exist_ok=True)
        (bundle / "VERSION").write_text("abc123\n", encoding="utf-8")
        lent = pathlib.Path(self.tree, "build/lent")
        lent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(lent / "sluice-gpu.tar.xz", "w:xz", preset=0) as archive:
            archive.add(bundle, "sluice-gpu")

    def begin(self, *words, **more):
        pathlib.Path(self.environment["LIMITS"]).touch()
        return subprocess.Popen(["bash", "scripts/gpu_lent.sh", *words], cwd=self.tree, text=True, start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env={**os.environ, **self.environment, "OUT": self.out, "PATH": self.tools + ":" + os.environ["PATH"],
                                     "TMPDIR": self.folder, **more})

    def call(self, *words, **more):
        self.bundle()
        process = self.begin(*words, **more)
        self.said = process.communicate(timeout=120)[0]
        return process.returncode

    @property
    def summary(self):
        path = pathlib.Path(self.out, "summary.md")
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def steps(self):
        """{step: passed or FAILED...}, in their order."""
        return dict(re.findall(r"^- ([a-z0-9-]+): (passed|FAILED|not begun|could not be ended)", self.summary, re.MULTILINE))

    def limits(self):
        return [int(line) for line in pathlib.Path(self.environment["LIMITS"]).read_text(encoding="utf-8").split()]

    def packed(self):
        archive, = pathlib.Path(self.out).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            return [os.path.basename(name) for name in files.getnames()]

    def clear(self):
        for left in pathlib.Path("/dev/shm").glob(f"sluice-models-{self.environment['CUDA_VISIBLE_DEVICES']}.*"):
            shutil.rmtree(left)
        shutil.rmtree(self.folder)


class GpuLent(unittest.TestCase):
    def setUp(self):
        self.lent = self.made()

    def made(self):
        lent = Lent()
        self.addCleanup(lent.clear)
        return lent

    def expect_whole(self, lent):
        """What comes back fits, and has every log."""
        files = [path for path in pathlib.Path(lent.out).rglob("*") if path.is_file()]
        self.assertLessEqual(len(files), MOST_FILES, files)
        for path in files:
            self.assertRegex(path.name, r"^[A-Za-z0-9._-]+$")
            self.assertLess(path.stat().st_size, MOST_BYTES)
        for step in lent.steps():
            if lent.steps()[step] in ("passed", "FAILED"):
                self.assertIn(f"{step}.log", lent.packed())

    def test_what_is_sent_is_short(self):
        outcome = subprocess.run(["bash", ROOT / "scripts/gpu_lent.sh", "--print"], capture_output=True, text=True, check=False)
        self.assertIn("at most 600 s", outcome.stdout)
        self.assertIn("at most 170 s", outcome.stdout)
        commands = re.findall(r"^bash .*$", outcome.stdout, re.MULTILINE)
        self.assertEqual(commands, ["bash scripts/gpu_lent.sh first", "bash scripts/gpu_lent.sh second"])
        for command in commands:
            self.assertLessEqual(len(command), MOST_COMMAND)

    def test_what_is_sent_fits(self):
        self.lent.bundle()
        for command in (["init", "-q"], ["add", "scripts"]):
            subprocess.run(["git", *command], cwd=self.lent.tree, check=True)
        print_calls = ["bash", "scripts/gpu_lent.sh", "--print"]
        outcome = subprocess.run(print_calls, cwd=self.lent.tree, capture_output=True, text=True, check=False)
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        self.assertRegex(outcome.stdout, r"sluice-gpu.tar.xz 0.0 MiB; at most 64 MiB")
        with open(os.path.join(self.lent.tree, "build/lent/more"), "wb") as file:
            file.truncate(70 << 20)
        outcome = subprocess.run(print_calls, cwd=self.lent.tree, capture_output=True, text=True, check=False)
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("more 70.0 MiB, ", outcome.stdout)

    def test_the_first_call_runs_by_worth_within_its_limits(self):
        self.assertEqual(self.lent.call("first"), 0, self.lent.summary)
        self.assertEqual(self.lent.steps(), {step: "passed" for step in FIRST})
        self.assertEqual(list(self.lent.steps()), list(FIRST), "in this order")
        self.assertEqual(self.lent.limits(), [UNPACKING, *FIRST.values()])
        self.expect_whole(self.lent)
        self.assertIn("2 tests in 2 processes", self.lent.summary)
        self.assertIn("1 of 1 tokens equal", self.lent.summary)
        self.assertIn("few_rows/0/1/1 1 us", self.lent.summary)
        self.assertIn("kernels-test-rest-shard-1.log", self.lent.packed())
        # All but the last four fit though each takes all of its time, and the offloaded model's steps 60 s together.
        self.assertLess(sum(list(FIRST.values())[:-4]) - 28, 588)

    def test_the_second_call_keeps_its_lanes(self):
        self.assertEqual(self.lent.call("second", "--rehearse"), 0, self.lent.summary)
        self.assertEqual(self.lent.steps(), {step: "passed" for step in SECOND if step != "accelerate-opt-30b"})
        self.assertEqual(list(self.lent.steps()), [step for step in SECOND if step != "accelerate-opt-30b"])
        self.assertIn("accelerate: not installed", self.lent.summary)
        self.assertIn("<svg", pathlib.Path(self.lent.out, "offload-int4-lanes.svg").read_text(encoding="utf-8"))
        self.assertIn("offload-int4-trace.json", self.lent.packed())
        self.assertEqual(self.lent.limits(), [UNPACKING, *[limit for step, limit in SECOND.items() if step != "accelerate-opt-30b"]])
        self.expect_whole(self.lent)

    def test_a_profile_that_is_sent_is_not_measured_again(self):
        self.lent.bundle()
        pathlib.Path(self.lent.tree, "build/lent/profile.json").write_text("{}", encoding="utf-8")
        self.assertEqual(self.lent.call("second", "--rehearse"), 0, self.lent.summary)
        self.assertNotIn("profile", self.lent.steps())
        self.assertIn("profile.json", self.lent.packed())

    def test_every_step_may_fail_crash_or_hang(self):
        def run(fault):
            lent = self.made()
            return fault, lent, lent.call("first", "--rehearse", SLUICE_REHEARSED_FAULT=fault)

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for fault, lent, code in pool.map(run, ["all=fail", "all=crash", "all=hang"]):
                with self.subTest(fault=fault):
                    self.assertEqual(code, 1)
                    # A bench without a model is not begun.
                    self.assertEqual(lent.steps(), {**{step: "FAILED" for step in FIRST if step != "resident-f16"},
                                                    "synth-opt-tiny-f16": "FAILED"}, lent.summary)
                    self.assertIn(f"made to {fault[4:]}", lent.summary)
                    self.expect_whole(lent)

    def test_what_befalls_one_step_befalls_no_other(self):
        def run(fault):
            lent = self.made()
            return fault, lent, lent.call("first", "--rehearse", SLUICE_REHEARSED_FAULT=fault)

        faults = ["kernels-test-rest=crash", "offload-gpu=hang", "profile=fail", "kernels-test-vocabulary=hang"]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for fault, lent, code in pool.map(run, faults):
                with self.subTest(fault=fault):
                    name = fault.split("=")[0]
                    failed = {name, "offload-same"} if name == "offload-gpu" else {name}
                    self.assertEqual(code, 1)
                    self.assertEqual(lent.steps(), {step: "FAILED" if step in failed else "passed" for step in FIRST}, lent.summary)
                    self.assertIn(f"{len(failed)} failures in", lent.summary)

    def test_a_peer_takes_nothing_from_the_step_after_it(self):
        for package in ("torch", "accelerate", "transformers"):
            pathlib.Path(self.lent.folder, package + ".py").touch()
        for fault in ("fail", "hang", "crash"):
            with self.subTest(fault=fault):
                shutil.rmtree(self.lent.out, ignore_errors=True)
                code = self.lent.call("second", "--rehearse", SLUICE_REHEARSED_FAULT=f"accelerate-opt-30b={fault}",
                                      PYTHONPATH=self.lent.folder)
                self.assertEqual(code, 1)
                self.assertEqual(self.lent.steps(), {step: "FAILED" if step == "accelerate-opt-30b" else "passed" for step in SECOND})
                self.assertEqual(list(self.lent.steps()), list(SECOND))

    def test_outside_a_rehearsal_no_step_is_made_to_fail(self):
        self.assertEqual(self.lent.call("first", SLUICE_REHEARSED_FAULT="all=fail"), 0, self.lent.summary)

    def test_what_can_not_be_ended_is_left_behind(self):
        self.assertEqual(self.lent.call("first", "--rehearse", SLUICE_REHEARSED_FAULT="machine=hang", HOLDS="30"), 1)
        self.assertIn("- machine: could not be ended", self.lent.summary)
        self.assertIn("- kernels-test-rest: passed", self.lent.summary)

    def test_without_a_gpu_its_minutes_are_kept(self):
        self.lent.programs["sluice"] = SLUICE.replace("1 GPUs", "built with CUDA 13.0; no GPU in use: no device")
        self.lent.programs["cuda_kernels_gpu_test"] = "#!/bin/sh\necho no device\nexit 1\n"
        self.assertEqual(self.lent.call("first"), 1)
        self.assertIn("there is no GPU for CUDA", self.lent.summary)
        self.assertEqual(list(self.lent.steps()), ["doctor", "kernels-test-vocabulary", "machine"])

    def test_failing_tests_are_named(self):
        self.lent.programs["cuda_kernels_gpu_test"] = TESTS.replace("[       OK ] Suite.%s (1 ms)", "wrong\\n[  FAILED  ] Suite.%s (1 ms)")
        self.assertEqual(self.lent.call("first"), 1)
        self.assertIn("failed: Suite.Two (by itself: failed)", self.lent.summary)

    def test_a_talkative_program_does_not_outgrow_what_comes_back(self):
        self.lent.programs["sluice_cuda_bench"] = "#!/bin/sh\nhead -c 60000000 /dev/urandom | base64\n"
        self.assertEqual(self.lent.call("first"), 0, self.lent.summary)
        self.expect_whole(self.lent)

    def test_a_bundle_that_is_damaged_is_told(self):
        self.lent.bundle()
        pathlib.Path(self.lent.tree, "build/lent/sluice-gpu.tar.xz").write_bytes(b"no archive")
        process = self.lent.begin("first")
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn("can't be unpacked", self.lent.summary)

    def test_ended_in_the_middle_it_leaves_what_was_done(self):
        self.lent.programs["cuda_engine_gpu_test"] = TESTS.replace("*) for", "*) sleep 1000; for")
        for how, archive_has in ((signal.SIGTERM, "engine-test-logits.log"), (signal.SIGKILL, "offload-same.log")):
            with self.subTest(how=how):
                shutil.rmtree(self.lent.out, ignore_errors=True)
                self.lent.bundle()
                process = self.lent.begin("first")
                deadline = time.monotonic() + 60
                while "- offload-same" not in self.lent.summary and time.monotonic() < deadline:
                    time.sleep(0.1)
                time.sleep(1)
                process.send_signal(how)
                process.wait(30)
                process.stdout.close()
                if how == signal.SIGKILL:  # its step goes on
                    found = subprocess.run(["pgrep", "-s", str(process.pid)], capture_output=True, text=True, check=False)
                    for pid in found.stdout.split():
                        os.kill(int(pid), signal.SIGKILL)
                self.assertIn("- kernels-test-rest: passed", self.lent.summary)
                self.assertIn(archive_has, self.lent.packed())


if __name__ == "__main__":
    unittest.main()
