#!/usr/bin/env python3
"""Hostile files of every format that sluice reads, and what the program makes of them.

    scripts/hostile_files.py run PROGRAM [--of MODULE] [--only REGEX] [--but REGEX] [--every N] [--jobs N] [--keep FOLDER]
    scripts/hostile_files.py write FOLDER [--only REGEX]
    scripts/hostile_files.py list [--only REGEX]

`run` makes each case's files, runs the program on them and expects an exit code that the case allows (0, or 2, 3, 4: use,
file, resources), never 70 (a bug), a signal or a sanitizer's report; an end within --seconds; at most --memory MiB resident; a
message that is short, UTF-8 and free of control characters; no file that was there changed; nothing that a file asks for run.
--every N takes each Nth case. Cases are in scripts/hostile, by format. Nothing is needed but Python.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

from hostile import configs, texts, weights
from hostile.case import Fifo, Folder, Link, Sparse, llama

LONGEST_MESSAGE = 16384  # bytes of standard error
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.to)
        elif isinstance(content, Fifo):
            os.mkfifo(path)
        elif isinstance(content, Folder):
            path.mkdir()
        elif isinstance(content, Sparse):
            with open(path, "wb") as file:
                file.write(content.head)
                file.truncate(content.size)
        else:
            path.write_bytes(content)


class Runner:
    def __init__(self, options, work):
        self.program = str(pathlib.Path(options.program).resolve())
        self.options = options
        self.work = work
        self.is_sanitized = b"__asan_init" in pathlib.Path(self.program).read_bytes()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        self.environment = dict(kept, SLUICE_THREADS="1", SLUICE_HARDWARE="none", HOME=str(work / "home"), XDG_CACHE_HOME=str(work / "cache"),
                                ASAN_OPTIONS="exitcode=99:allocator_may_return_null=0:max_allocation_size_mb=4096:detect_leaks=0", UBSAN_OPTIONS="exitcode=99")

    def start(self, folder, arguments, given=b""):
        """Exit code (negative: a signal), peak resident bytes, outputs; None for the code where it did not end."""
        (folder.parent / f"{folder.name}.in").write_bytes(given)
        limits = ["prlimit", "--core=0"] + ([] if self.is_sanitized else ["--as=" + str(16 << 30)])
        with open(f"{folder}.in", "rb") as given, open(f"{folder}.out", "wb") as out, open(f"{folder}.err", "wb") as err:
            process = subprocess.Popen(limits + [self.program] + arguments, stdin=given, stdout=out, stderr=err, cwd=folder, env=self.environment)
            has_hung = threading.Event()

            def stop():
                has_hung.set()
                process.send_signal(signal.SIGKILL)

            timer = threading.Timer(self.options.seconds, stop)
            timer.start()
            _, status, usage = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
        outputs = [pathlib.Path(f"{folder}.{end}").read_bytes() for end in ("out", "err")]
        for end in ("in", "out", "err"):
            os.unlink(f"{folder}.{end}")
        return None if has_hung.is_set() else process.returncode, usage.ru_maxrss * 1024, *outputs

    def faults(self, case, folder):
        arguments = [argument.replace("{}", str(folder)) for argument in case.command]
        code, resident, out, err = self.start(folder, arguments, case.input)
        if code is None:
            yield f"did not end within {self.options.seconds} s"
        elif code not in case.codes:
            yield f"exit code {code}, expected one of {sorted(case.codes)}"
        if resident > self.options.memory << 20:
            yield f"{resident >> 20} MiB resident, expected at most {self.options.memory}"
        try:
            text = err.decode()
            # The folder's name is ours; what a file holds must not reach the terminal raw.
            if CONTROL.search(text) or (case.command[0] == "inspect" and CONTROL.search(out.decode())):
                yield "control characters in what it says"
        except UnicodeDecodeError:
            yield "says what is not UTF-8"
        if len(err) > LONGEST_MESSAGE:
            yield f"{len(err)} bytes of messages"
        if code and not err.strip():
            yield "no message"
        if (folder / "ran").exists() or b"HARM" in out:
            yield "RAN what a file asked for"
        for name, content in case.files.items():
            if isinstance(content, bytes) and not name.startswith("out") and (folder / name).read_bytes() != content:
                yield f"changed {name}"

    def run(self, index, case):
        folder = self.work / str(index)
        folder.mkdir()
        try:
            write(folder, case.files)
            faults = list(self.faults(case, folder))
            said = ""
            if faults:
                if self.options.keep:
                    shutil.copytree(folder, pathlib.Path(self.options.keep) / case.name.replace("/", "_")[:80], symlinks=True, dirs_exist_ok=True)
                code, _, _, err = self.start(folder, [argument.replace("{}", str(folder)) for argument in case.command], case.input) \
                    if not any("end within" in fault for fault in faults) else (None, 0, b"", b"")
                said = err.decode(errors="replace")[-1500:]
            return case, faults, said
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def store(self):
        """The files of a packed store that the program makes of the good model."""
        folder = self.work / "good"
        folder.mkdir()
        write(folder, llama())
        code, _, _, err = self.start(folder, ["convert", str(folder), str(folder / "store")])
        if code != 0:
            sys.exit(f"hostile_files: the good model can't be converted:\n{err.decode(errors='replace')}")
        return {path.name: path.read_bytes() for path in (folder / "store").iterdir()}


def chosen(cases, options):
    pattern, known = re.compile(options.only or ""), re.compile(options.but or "(?!)")
    for index, case in enumerate(case for case in cases if pattern.search(case.name) and not known.search(case.name)):
        if index % options.every == options.every - 1 or case.name.endswith("/good"):
            yield case


def every_case(options, store):
    for name, module in {"configs": configs, "weights": weights, "texts": texts}.items():
        if options.of in (None, name):
            yield from module.cases()
    if store and options.of in (None, "stores"):
        yield from weights.store_cases(store)


def run(options):
    with tempfile.TemporaryDirectory(prefix="sluice_hostile_") as work:
        runner = Runner(options, pathlib.Path(work))
        (runner.work / "home").mkdir()
        count = failed = 0
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            waiting = set()

            def take(done):
                nonlocal count, failed
                for future in done:
                    case, faults, said = future.result()
                    count += 1
                    if faults:
                        failed += 1
                        print(f"FAILED {case.name}: {'; '.join(faults)}\n  sluice {' '.join(case.command)}\n{said}", flush=True)

            for index, case in enumerate(chosen(every_case(options, runner.store()), options)):
                waiting.add(pool.submit(runner.run, index, case))
                if len(waiting) >= 2 * options.jobs:  # few at once: some are large
                    done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                    take(done)
            take(concurrent.futures.wait(waiting).done)
        print(f"hostile_files: {count} cases, {failed} failed")
        return 1 if failed or count == 0 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "write", "list"])
    parser.add_argument("program", nargs="?", help="the program, or the folder to write to")
    parser.add_argument("--of", choices=["configs", "weights", "texts", "stores"], help="cases of one module")
    parser.add_argument("--only", help="cases whose names have this regular expression")
    parser.add_argument("--but", help="cases without this regular expression: faults that are known")
    parser.add_argument("--every", type=int, default=1, help="only each Nth case (and the good ones)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="so many at once")
    parser.add_argument("--seconds", type=float, default=120, help="longest time of a case")
    parser.add_argument("--memory", type=int, default=1024, help="most MiB of a case")
    parser.add_argument("--keep", help="copy the files of cases that fail into this folder")
    options = parser.parse_args()
    if options.verb == "list":
        names = [case.name for case in chosen(every_case(options, None), options)]
        print("\n".join(json.dumps(name)[1:-1] for name in names))
        repeated = {name for name in names if names.count(name) > 1}
        return f"hostile_files: names repeat: {sorted(repeated)[:5]}" if repeated else 0
    if not options.program:
        parser.error(f"{options.verb} needs a {'program' if options.verb == 'run' else 'folder'}")
    if options.verb == "run":
        return run(options)
    for index, case in enumerate(chosen(every_case(options, None), options)):
        folder = pathlib.Path(options.program) / f"{index:04}"
        folder.mkdir(parents=True)
        write(folder, case.files)
        (folder / "command.txt").write_text(f"{case.name}\nsluice {' '.join(case.command)}\n", errors="replace")
    return 0


if __name__ == "__main__":
    sys.exit(main())
