"""Threads, signals, event loops, processes: what runs beside a generation, and what ends it."""
import asyncio
import gc
import os
import signal
import threading
import time
import weakref

import pytest

import sluice
from conftest import STORIES, run_python

OPEN = """
import os, sys, threading, time
import sluice
model = sluice.Model(sys.argv[1], cpu_mem="256MiB", hardware="none", threads=1)
"""


def test_another_thread_counts_on(model):
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before, began = counted[0], time.monotonic()
        model.generate([f"Once upon a time {i}" for i in range(64)], max_tokens=100)
        counts, seconds = counted[0] - before, time.monotonic() - began
    finally:
        stop.set()
        thread.join()
    # A thread that waits for the interpreter counts nothing at all; one that shares cores with the engine counts less.
    assert counts > 1000 * seconds, f"{counts} in {seconds:.2f} s"


def test_threads_share_the_model(model):
    expected = [model.generate(f"Day {i}", max_tokens=20).token_ids for i in range(8)]
    got = [None] * 8

    def ask(i):
        got[i] = model.generate(f"Day {i}", max_tokens=20).token_ids

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


def test_ctrl_c_ends_a_generation_and_leaves_the_model(model):
    expected = model.generate("Once upon a time", max_tokens=8).token_ids
    for prompts in (["Once"] * 400, "Once"):
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            while True:
                model.generate(prompts, max_tokens=400, ignore_eos=True)
        timer.join()
        assert model.generate("Once upon a time", max_tokens=8).token_ids == expected
    deadline = time.monotonic() + 10
    while model.running + model.waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    assert model.running == model.waiting == 0


def test_two_models_at_once(opened, model):
    with opened() as other:
        first, second = model.stream("Once", max_tokens=30), other.stream("Once", max_tokens=30)
        said = [(a.text, b.text) for a, b in zip(first, second)]
        assert all(a == b for a, b in said)
    assert len(model.generate("Once", max_tokens=3).token_ids) == 3


def test_use_after_close(opened):
    with opened() as one:
        pieces = one.stream("Once upon a time", max_tokens=400)
        next(pieces)
    assert one.closed and "closed" in repr(one)
    with pytest.raises(sluice.ClosedError, match="closed"):
        one.generate("x")
    with pytest.raises(sluice.ClosedError, match="closed"):
        list(pieces)
    for call in (lambda: one.logits("x"), lambda: one.loglikelihood("a", "b"), lambda: one.running,
                 lambda: asyncio.run(one.agenerate("x"))):
        with pytest.raises(sluice.ClosedError):
            call()
    one.close()
    with pytest.raises(RuntimeError), opened() as other:
        raise RuntimeError("closes it too")
    assert other.closed


def test_closing_from_another_thread_ends_who_waits(opened):
    one = opened()
    timer = threading.Timer(0.1, one.close)
    timer.start()
    with pytest.raises(sluice.ClosedError):
        while True:
            one.generate(["Once"] * 300, max_tokens=400, ignore_eos=True)
    timer.join()


def test_a_model_that_nobody_holds_is_gone(opened):
    one = opened()
    pieces = one.stream("Once", max_tokens=400)
    next(pieces)
    gone = weakref.ref(one)
    del one, pieces
    gc.collect()
    assert gone() is None


def test_asking_at_once_in_an_event_loop(model):
    expected = [model.generate(f"Day {i}", max_tokens=30).token_ids for i in range(5)]

    async def all_of_them():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        answers = await asyncio.gather(*[model.agenerate(f"Day {i}", max_tokens=30) for i in range(5)])
        ticking.cancel()
        return answers, ticks

    answers, ticks = asyncio.run(all_of_them())
    assert [answer.token_ids for answer in answers] == expected
    assert ticks > 10  # the loop was free


def test_async_streams(model):
    async def said():
        return "".join([piece.text async for piece in model.astream("Once upon a time", max_tokens=30)])

    async def both():
        return await asyncio.gather(said(), said())

    whole = model.generate("Once upon a time", max_tokens=30).text
    assert asyncio.run(both()) == [whole, whole]
    assert asyncio.run(said()) == whole  # another loop


def test_a_cancelled_task_gives_its_prompt_up(model):
    async def cancelled():
        task = asyncio.ensure_future(model.agenerate(["Once"] * 300, max_tokens=400, ignore_eos=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async for _ in model.astream("Once", max_tokens=400):
            break
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(model.agenerate(["Once"] * 300, max_tokens=400, ignore_eos=True), 0.05)
        deadline = time.monotonic() + 10
        while model.running + model.waiting and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert model.running == model.waiting == 0

    asyncio.run(cancelled())
    assert len(model.generate("Once", max_tokens=3).token_ids) == 3


def test_exit_while_generating():
    run_python(OPEN + "pieces = model.stream('Once', max_tokens=400, ignore_eos=True); next(pieces)", STORIES)
    for daemon in (True, False):
        done = run_python(OPEN + f"""
def go():
    try:
        while True:
            model.generate(["Once"] * 100, max_tokens=400, ignore_eos=True)
    except sluice.ClosedError:
        pass
threading.Thread(target=go, daemon={daemon}).start()
time.sleep(0.2)
{"" if daemon else "threading.Timer(0.2, model.close).start()"}
""", STORIES)
        assert "Fatal" not in done.stderr and "terminate" not in done.stderr


def test_sys_exit_and_exceptions_while_generating():
    done = run_python(OPEN + "next(model.stream('Once', max_tokens=400)); sys.exit(3)", STORIES, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    done = run_python(OPEN + "g = model.stream('Once', max_tokens=400); next(g); raise ValueError('mine')", STORIES, check=False)
    assert done.returncode == 1 and "ValueError: mine" in done.stderr


def test_ctrl_c_in_a_program_of_its_own():
    done = run_python(OPEN + """
import signal
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        model.generate(["Once"] * 100, max_tokens=400, ignore_eos=True)
except KeyboardInterrupt:
    print(len(model.generate("Once", max_tokens=5).token_ids))
""", STORIES)
    assert done.stdout == "5\n"


def test_fork():
    done = run_python(OPEN + """
pieces = model.stream("Once", max_tokens=400, ignore_eos=True)
next(pieces)
child = os.fork()
if child == 0:
    said = []
    for call in (lambda: model.generate("x"), lambda: next(pieces), lambda: model.logits("x")):
        try:
            call()
        except sluice.Error as error:
            said.append("fork" in str(error))
    del pieces
    model.close()
    model = sluice.Model(sys.argv[1], cpu_mem="256MiB", hardware="none", threads=1)
    said.append(len(model.generate("Once", max_tokens=5).token_ids) == 5)
    print(said, flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
print(os.WEXITSTATUS(status), os.WIFSIGNALED(status), len(model.generate("Once", max_tokens=5).token_ids))
""", STORIES)
    assert done.stdout == "[True, True, True, True]\n0 False 5\n", done.stdout + done.stderr


def test_opened_again_and_again(opened):
    threads = threading.active_count()
    for _ in range(5):
        with opened() as one:
            one.generate("x", max_tokens=1)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/task")) < 40
