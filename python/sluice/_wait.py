"""Waiting for answers: in a thread, where signals are looked at; in an event loop, without a thread."""
import asyncio
import os
import threading
import weakref

from . import _results
from ._errors import ClosedError, UserError, in_python

STARTED, PROMPT, TEXT, FINISHED, REFUSED, FAILED = range(6)  # sluice.h's Piece::Kind
_POLL_SECONDS = 0.1  # how long Ctrl-C may have to wait


class Event:
    """One piece of the library's."""

    __slots__ = ("kind", "question", "text", "ids", "logprobs", "tops", "finish", "output_tokens", "cached_tokens",
                 "embedding")

    def __init__(self, values):
        (self.kind, self.question, self.text, self.ids, self.logprobs, self.tops, finish, self.output_tokens,
         self.cached_tokens, self.embedding) = values
        self.finish = _results.FINISHES[finish]

    @property
    def is_last(self):
        return self.kind >= FINISHED

    def error(self, model, count):
        """Why there is no answer, or None."""
        if self.kind == REFUSED:
            where = f"prompt {self.question}: " if count > 1 else ""
            return UserError(where + in_python(self.text))
        if self.kind == FAILED or self.finish == "cancelled":
            if model.closed:
                return ClosedError("the model was closed before its answer was whole")
            return ClosedError("the model has stopped: " + in_python(self.text)) if self.kind == FAILED else None
        return None


def events(answers, count):
    """All pieces of `count` questions; what has not ended when the caller leaves is given up."""
    left = count
    try:
        while left > 0:
            values = answers.take(_POLL_SECONDS)
            if values is None:
                continue
            event = Event(values)
            left -= event.is_last
            yield event
    finally:
        if left > 0:
            answers.cancel()


class _Wakeup:
    """A pipe that answers write to and one event loop reads from."""

    _of_loops = weakref.WeakKeyDictionary()
    _lock = threading.Lock()

    def __init__(self, loop):
        self.loop = loop
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        os.set_blocking(self.write, False)
        self.users = 0
        self.waiting = set()
        weakref.finalize(self, _close, self.read, self.write)

    @classmethod
    def of(cls, loop):
        with cls._lock:
            found = cls._of_loops.get(loop)
            if found is None:
                found = cls._of_loops[loop] = cls(weakref.proxy(loop))
            return found

    def enter(self):
        self.users += 1
        if self.users == 1:
            self.loop.add_reader(self.read, self._wake)

    def leave(self):
        self.users -= 1
        if self.users == 0 and not self.loop.is_closed():
            self.loop.remove_reader(self.read)

    def _wake(self):
        try:
            while os.read(self.read, 4096):
                pass
        except BlockingIOError:
            pass
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()

    async def wait(self):
        future = asyncio.get_running_loop().create_future()
        self.waiting.add(future)
        try:
            await future
        finally:
            self.waiting.discard(future)


def _close(*files):
    for file in files:
        os.close(file)


async def events_async(answers, count):
    """The same for an event loop: a cancelled task gives its questions up."""
    wakeup = _Wakeup.of(asyncio.get_running_loop())
    left = count
    wakeup.enter()
    try:
        answers.watch(wakeup.write)
        while left > 0:
            values = answers.take(0)
            if values is None:
                await wakeup.wait()
                continue
            event = Event(values)
            left -= event.is_last
            yield event
    finally:
        answers.watch(-1)
        if left > 0:
            answers.cancel()
        wakeup.leave()
