"""What the tests share: the small trained model, opened once, and the command line beside it.

They run on the package that is installed (pip install . && python3 -m pytest python/tests), or on the sources, by an interpreter
that has their C++ built in: ctest -R python_tests."""
import os
import pathlib
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
STORIES = FIXTURES / "models" / "stories260k"
runpy.run_path(str(ROOT / "scripts" / "fixtures.py"))["unpack"]()  # models but for this one

try:
    import _core  # noqa: F401  built in, where the interpreter is the tests' own
except ImportError:
    pass
import sluice

# No search and two threads: tests run beside others.
FAST = {"cpu_mem": "256MiB", "hardware": "none", "threads": 2, "compute": "f32"}


@pytest.fixture(scope="session")
def opened():
    """Opens models with what all tests have in common."""
    def open_model(path=STORIES, **options):
        return sluice.Model(path, **{**FAST, **options})
    return open_model


@pytest.fixture(scope="session")
def model(opened):
    with opened() as one:
        yield one


@pytest.fixture(scope="session")
def tool():
    """Runs the command line; skips where it is not built."""
    path = os.environ.get("SLUICE_TOOL", str(ROOT / "build" / "release" / "bin" / "sluice"))
    if not os.path.exists(path):
        pytest.skip(f"no command line at {path}")

    def run(*words):
        flags = ["--cpu-mem", "256MiB", "--hardware", "none", "-t", "2", "--compute", "f32"]
        return subprocess.run([path, *map(str, words), *flags], check=True, capture_output=True, text=True).stdout
    return run


def run_python(code, *words, timeout=60, check=True):
    """A program of its own, with the module that is tested here."""
    path = os.pathsep.join([os.path.dirname(os.path.dirname(sluice.__file__)), os.environ.get("PYTHONPATH", "")])
    built_in = "import _core; " if "_core" in sys.builtin_module_names else ""
    done = subprocess.run([sys.executable, "-c", built_in + code, *map(str, words)], capture_output=True, text=True,
                          timeout=timeout, env={**os.environ, "PYTHONPATH": path}, check=False)
    if check:
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
