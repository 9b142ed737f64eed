#!/usr/bin/env python3
"""Users who ask `sluice serve` for a long time, and do to it what users do: they stream, ask for JSON under a schema, for calls of
tools, for embeddings, in the forms of OpenAI, Anthropic and Ollama, of two models that exclude each other; they hang up in the
middle, send half a request or rubbish, and run batches. Now and then the server itself is killed, or told to end, and started
anew. Every answer is held against what the model answers alone; the server's memory against its budget.

    scripts/soak.py [--minutes 60] [--users 200] [--seed 1] [--kill-every 300] [--models A B]
                                        default models: the small trained one of the tests, and it again under another name

Prints a line a minute, and at the end what was asked, what was wrong, the longest waits and the most memory; fails where an answer
was wrong or none came, or where memory went 64 MiB beyond the budget. The server is $SLUICE, as for the other scripts here.
"""
import argparse
import asyncio
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import struct
import sys
import tempfile
import time

SLUICE = os.environ.get("SLUICE", "build/release/bin/sluice")
MODEL = pathlib.Path(__file__).parent.parent / "tests/fixtures/models/stories260k"
TEMPLATE = "{% for m in messages %}{{ m.content or '' }}\n{% endfor %}{% if tools %}{{ tools | length }} tools\n{% endif %}"
PROMPTS = ["Once upon a time", "The dog", "Lily and Tom went to the park", "One day, a little girl named Lily", "The sun was", "a"]
LENGTHS = [1, 5, 20, 60]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1,
                                                                                              "maximum": 12}},
          "required": ["name", "age"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "set_age", "parameters": SCHEMA}}
BEYOND = 64 << 20  # that memory may go beyond the budget
LATE = 240.0       # seconds that an answer may take
DRAIN = 60         # that requests which run may take when the server is told to end


class Gone(Exception):
    """The connection broke, as it does when the server was killed."""


class Server:
    """The server, which is started again and again at one port, in one folder of batches."""

    def __init__(self, models, budget, folder):
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as probe:
            self.port = probe.getsockname()[1]
        template = folder / "template.jinja"
        template.write_text(TEMPLATE)
        self.command = [SLUICE, "serve", *map(str, models), "--port", str(self.port), "--cpu-mem", str(budget), "-c", "256", "-t", "1",
                        "--compute", "f32", "--hardware", "none", "--batch-dir", str(folder / "batches"), "--model-turn", "5",
                        "--drain-timeout", str(DRAIN), "--chat-template", str(template), "--tool-call-parser", "hermes",
                        "--max-waiting", "1000", "--swap-space", "16MiB"]
        self.log = open(folder / "log", "ab")
        self.process, self.most, self.starts, self.is_down = None, 0, 0, True
        self.loads = [0]  # of models, by start

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(*self.command, stdout=self.log, stderr=self.log)
        self.starts += 1
        self.loads.append(0)
        until = time.monotonic() + LATE
        while time.monotonic() < until:
            with contextlib.suppress(Gone, OSError):
                status, _ = await call(self.port, "GET", "/health")
                if status == 200:
                    self.is_down = False
                    return
            await asyncio.sleep(0.1)
        raise RuntimeError("the server does not start")

    async def end(self, how):
        """Its exit status; None where it did not end and had to be killed."""
        self.is_down = True
        self.process.send_signal(how)
        try:
            return await asyncio.wait_for(self.process.wait(), DRAIN + LATE)
        except asyncio.TimeoutError:
            self.process.kill()
            await self.process.wait()
            return None

    async def count_loads(self):
        with contextlib.suppress(Gone, asyncio.TimeoutError):
            _, text = await call(self.port, "GET", "/metrics")
            self.loads[-1] = sum(int(n) for n in re.findall(r"^sluice:model_loads_total\{.*\} (\d+)$", text.decode(), re.M))

    def look(self):
        """Its memory now, bytes; remembers the most."""
        with contextlib.suppress(OSError, TypeError):
            text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
            self.most = max(self.most, int(re.search(r"VmRSS:\s+(\d+)", text)[1]) * 1024)


async def connect(port):
    try:
        return await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    except OSError as error:
        raise Gone(str(error)) from error


def bytes_of(method, path, body=None, of="user"):
    data = b"" if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
    kind = "application/json" if not isinstance(body, bytes) else "multipart/form-data; boundary=edge"
    return (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: {of}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n").encode() + data


async def call(port, method, path, body=None):
    """Status and body of an answer, whole or in chunks; Gone where it breaks off."""
    reader, writer = await connect(port)
    try:
        writer.write(bytes_of(method, path, body))
        await writer.drain()
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LATE)).decode("latin-1")
        status = int(head.split(" ")[1])
        if "transfer-encoding: chunked" not in head.lower():
            length = re.search(r"content-length: (\d+)", head.lower())
            return status, await asyncio.wait_for(reader.readexactly(int(length[1])) if length else reader.read(), LATE)
        whole = b""
        while True:
            size = int((await asyncio.wait_for(reader.readuntil(b"\r\n"), LATE)).split(b";")[0], 16)
            chunk = await asyncio.wait_for(reader.readexactly(size + 2), LATE)
            if size == 0:
                return status, whole
            whole += chunk[:-2]
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Gone(str(error)) from error
    finally:
        writer.close()


def events(body):
    """The JSON of a stream's events, without its end."""
    found = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(one) for one in found if one != "[DONE]"]


def fits_schema(value):
    return (isinstance(value, dict) and set(value) == {"name", "age"} and isinstance(value["name"], str) and len(value["name"]) <= 12
            and isinstance(value["age"], int) and 1 <= value["age"] <= 12)


class Soak:
    def __init__(self, server, models, arguments):
        self.server, self.models, self.arguments = server, models, arguments
        self.asked, self.wrong, self.passed, self.longest = (collections.Counter() for _ in range(4))
        self.known = {}  # what a model answers alone, by model, prompt and length
        self.ends = time.monotonic() + arguments.minutes * 60
        self.batches = 0

    def fault(self, what, shown):
        self.wrong[what] += 1
        if self.wrong[what] <= 5:
            print(f"WRONG {what}: {str(shown)[:500]}", flush=True)

    async def ask(self, path, body, method="POST"):
        status, answer = await call(self.server.port, method, path, body)
        if status in (429, 503):  # full, loading or draining: said, and asked again later
            self.passed[f"status {status}"] += 1
            raise Gone("busy")
        if status != 200:
            raise ValueError(f"status {status}: {answer[:300]}")
        return answer

    async def learn(self):
        """The answers of each model alone."""
        for model in self.models:
            for prompt in PROMPTS:
                for length in LENGTHS:
                    body = {"model": model, "prompt": prompt, "max_tokens": length, "temperature": 0}
                    answer = json.loads(await self.ask("/v1/completions", body))
                    self.known[model, prompt, length] = answer["choices"][0]["text"]
            answer = json.loads(await self.ask("/v1/embeddings", {"model": model, "input": PROMPTS[0]}))
            self.known[model, "embedding"] = answer["data"][0]["embedding"]

    # What users do. Each throws ValueError, or has an AssertionError, where an answer is wrong.

    async def whole(self, dice, model):
        prompt, length = dice.choice(PROMPTS), dice.choice(LENGTHS)
        body = {"model": model, "prompt": prompt, "max_tokens": length, "temperature": 0}
        text = json.loads(await self.ask("/v1/completions", body))["choices"][0]["text"]
        assert text == self.known[model, prompt, length], f"{prompt!r} x{length}: {text!r}"

    async def stream(self, dice, model):
        prompt, length = dice.choice(PROMPTS), dice.choice(LENGTHS)
        body = {"model": model, "prompt": prompt, "max_tokens": length, "temperature": 0, "stream": True}
        answer = await self.ask("/v1/completions", body)
        text = "".join(one["choices"][0]["text"] for one in events(answer) if one["choices"])
        assert text == self.known[model, prompt, length], f"{prompt!r} x{length}: {text!r}"

    async def several(self, dice, model):
        prompts = dice.sample(PROMPTS, 3)
        body = {"model": model, "prompt": prompts, "max_tokens": 20, "temperature": 0}
        choices = json.loads(await self.ask("/v1/completions", body))["choices"]
        assert [c["text"] for c in sorted(choices, key=lambda c: c["index"])] == [self.known[model, p, 20] for p in prompts], choices

    async def ollama(self, dice, model):
        prompt = dice.choice(PROMPTS)
        body = {"model": model, "prompt": prompt, "raw": True, "stream": False, "options": {"temperature": 0, "num_predict": 20}}
        text = json.loads(await self.ask("/api/generate", body))["response"]
        assert text == self.known[model, prompt, 20], f"{prompt!r}: {text!r}"

    async def anthropic(self, dice, model):
        body = {"model": model, "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": dice.choice(PROMPTS)}]}
        answer = json.loads(await self.ask("/v1/messages", body))
        assert answer["role"] == "assistant" and answer["usage"]["output_tokens"] <= 12, answer

    async def schema(self, dice, model):
        body = {"model": model, "messages": [{"role": "user", "content": dice.choice(PROMPTS)}], "max_tokens": 120,
                "temperature": dice.choice([0, 1]), "seed": dice.randrange(1000), "stream": dice.random() < 0.5,
                "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}}
        answer = await self.ask("/v1/chat/completions", body)
        if body["stream"]:
            choices = [one["choices"][0] for one in events(answer) if one["choices"]]
            text = "".join(choice["delta"].get("content") or "" for choice in choices)
            reason = choices[-1]["finish_reason"]
        else:
            choice = json.loads(answer)["choices"][0]
            text, reason = choice["message"]["content"], choice["finish_reason"]
        assert reason == "length" or fits_schema(json.loads(text)), (reason, text)

    async def tool(self, dice, model):
        body = {"model": model, "messages": [{"role": "user", "content": dice.choice(PROMPTS)}], "max_tokens": 160, "temperature": 0,
                "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
        choice = json.loads(await self.ask("/v1/chat/completions", body))["choices"][0]
        if choice["finish_reason"] == "length":
            return
        [made] = choice["message"]["tool_calls"]
        assert made["function"]["name"] == "set_age" and fits_schema(json.loads(made["function"]["arguments"])), choice

    async def embedding(self, _, model):
        answer = json.loads(await self.ask("/v1/embeddings", {"model": model, "input": [PROMPTS[0], "The cat"]}))
        known = self.known[model, "embedding"]
        assert max(abs(a - b) for a, b in zip(answer["data"][0]["embedding"], known)) < 1e-4, "an embedding moved"

    async def looks(self, dice, _):
        await self.ask(dice.choice(["/health", "/metrics", "/v1/models", "/api/tags", "/api/ps"]), None, "GET")

    async def hangs_up(self, dice, model):
        """In the middle of an answer, by a reset."""
        reader, writer = await connect(self.server.port)
        body = {"model": model, "prompt": dice.choice(PROMPTS), "max_tokens": 200, "stream": True, "n": dice.choice([1, 4])}
        writer.write(bytes_of("POST", "/v1/completions", body))
        with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
            await writer.drain()
            await asyncio.wait_for(reader.read(dice.choice([1, 300, 3000])), dice.choice([0.05, 1, 5]))
        with contextlib.suppress(OSError):  # it is closed where the server was first
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def half(self, dice, model):
        """Of a request; nothing more comes."""
        _, writer = await connect(self.server.port)
        data = bytes_of("POST", "/v1/completions", {"model": model, "prompt": "a"})
        writer.write(data[:dice.randrange(1, len(data))])
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        await asyncio.sleep(dice.random())
        writer.close()

    async def rubbish(self, dice, model):
        bodies = [b"{", b"[]", b"null", b'{"model": "%s", "prompt": 1e400}' % model.encode(), bytes(dice.randrange(256) for _ in range(50)),
                  json.dumps({"model": model, "prompt": "a", "max_tokens": -7}).encode(),
                  json.dumps({"model": "nobody", "prompt": "a"}).encode(), b'{"a":' * 5000]
        reader, writer = await connect(self.server.port)
        data = dice.choice(bodies)
        writer.write((f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n").encode() + data)
        try:
            head = await asyncio.wait_for(reader.read(400), LATE)
        except ConnectionError as error:
            raise Gone(str(error)) from error
        finally:
            writer.close()
        if not head:
            raise Gone("closed")
        assert 400 <= int(head.split(b" ")[1]) < 500 or head.split(b" ")[1] == b"503", (data[:80], head)

    async def batch(self, dice, model):
        """Of twelve lines; it goes on behind kills of the server."""
        wanted = {f"line-{i}": (dice.choice(PROMPTS), dice.choice(LENGTHS)) for i in range(12)}
        lines = "".join(json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body":
                                    {"model": model, "prompt": prompt, "max_tokens": length, "temperature": 0}}) + "\n"
                        for name, (prompt, length) in wanted.items())
        form = ("--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: form-data; "
                f"name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{lines}\r\n--edge--\r\n").encode()
        file = json.loads(await self.ask("/v1/files", form))["id"]
        made = json.loads(await self.ask("/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions",
                                                         "completion_window": "24h"}))
        until = time.monotonic() + 4 * LATE
        while made["status"] != "completed":
            assert made["status"] in ("validating", "in_progress", "finalizing") and time.monotonic() < until, made
            await asyncio.sleep(2)
            with contextlib.suppress(Gone):
                made = json.loads(await self.ask(f"/v1/batches/{made['id']}", None, "GET"))
        while True:
            with contextlib.suppress(Gone):
                answers = (await self.ask(f"/v1/files/{made['output_file_id']}/content", None, "GET")).decode().splitlines()
                break
            await asyncio.sleep(1)
        records = [json.loads(line) for line in answers]
        texts = {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in records}
        assert len(records) == len(wanted) and texts == {name: self.known[(model, *what)] for name, what in wanted.items()}, made
        self.batches += 1

    async def user(self, number):
        dice = random.Random(self.arguments.seed * 100003 + number)
        does = [(self.whole, 20), (self.stream, 20), (self.several, 5), (self.ollama, 5), (self.anthropic, 5), (self.schema, 10),
                (self.tool, 10), (self.embedding, 5), (self.looks, 5), (self.hangs_up, 15), (self.half, 5), (self.rubbish, 5),
                (self.batch, 1)]
        while time.monotonic() < self.ends:
            [what] = dice.choices([one for one, _ in does], [weight for _, weight in does])
            begin = time.monotonic()
            # Most users stay with one model for a while.
            model = self.models[(int(begin / 20) + (dice.random() < 0.1)) % len(self.models)]
            starts = self.server.starts
            try:
                await what(dice, model)
                self.asked[what.__name__] += 1
                self.longest[what.__name__] = max(self.longest[what.__name__], time.monotonic() - begin)
            except Gone as error:
                was_down = self.server.is_down or self.server.starts != starts
                if str(error) != "busy":
                    self.passed["while the server was down" if was_down else "broken off"] += 1
                if str(error) != "busy" and not was_down and what.__name__ not in ("hangs_up", "half", "rubbish"):
                    self.fault("broken off", what.__name__)
                await asyncio.sleep(dice.random())
            except asyncio.TimeoutError:
                if not self.server.is_down:
                    self.fault("late", f"{what.__name__}: {time.monotonic() - begin:.0f} s")
            except OSError as error:  # of this machine: too many files, say
                self.passed[type(error).__name__] += 1
            except (AssertionError, ValueError, KeyError, IndexError, TypeError) as error:
                self.fault(what.__name__, repr(error))
            await asyncio.sleep(dice.expovariate(1.0))

    async def killer(self):
        """By turns without a warning, and as a service manager ends it."""
        dice, turn = random.Random(self.arguments.seed), 0
        while time.monotonic() < self.ends:
            await asyncio.sleep(dice.uniform(0.5, 1.5) * self.arguments.kill_every)
            if time.monotonic() > self.ends - 20:
                return
            how = [signal.SIGKILL, signal.SIGTERM][turn % 2]
            turn += 1
            code = await self.server.end(how)
            if code is None:
                self.fault("end", "it did not end when it was told to")
            elif how == signal.SIGTERM and code not in (0, -signal.SIGTERM):
                self.fault("end", f"it ended with {code}")
            await self.server.start()

    async def watch(self):
        begin, told = time.monotonic(), 0
        while time.monotonic() < self.ends:
            await asyncio.sleep(0.5)
            self.server.look()
            if not self.server.is_down:
                await self.server.count_loads()
            if self.server.process.returncode is not None and not self.server.is_down:
                self.fault("crash", f"it ended by itself with {self.server.process.returncode}")
                self.server.is_down = True
                await self.server.start()
            if time.monotonic() - begin > 60 * (told + 1):
                told += 1
                print(f"{told} min: {sum(self.asked.values())} done, {sum(self.wrong.values())} wrong, {self.batches} batches, "
                      f"{self.server.starts} starts, {sum(self.server.loads)} loads of models, at most {self.server.most / 2**20:.0f} MiB", flush=True)

    async def run(self):
        await self.server.start()
        await self.learn()
        others = [asyncio.create_task(self.watch())]
        if self.arguments.kill_every > 0:
            others.append(asyncio.create_task(self.killer()))
        users = [asyncio.create_task(self.user(i)) for i in range(self.arguments.users)]
        for task in others:
            task.add_done_callback(self.look_at_end)
        await asyncio.gather(*users)
        await asyncio.gather(*others)
        self.server.look()
        if await self.server.end(signal.SIGTERM) is None:
            self.fault("end", "it did not end when it was told to")

    def look_at_end(self, task):
        """Who watches or kills has ended; by an error: then the users go home, and it is told."""
        if not task.cancelled() and task.exception():
            self.ends = 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-every", type=float, default=300, help="seconds between ends of the server, about; 0: none")
    parser.add_argument("--budget", type=int, default=12 << 20, help="bytes; the default: room for one model at a time")
    parser.add_argument("--models", nargs=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        models = arguments.models
        if not models:
            models = [folder / "ann", folder / "ben"]
            for one in models:
                one.symlink_to(MODEL.resolve())
        server = Server(models, arguments.budget, folder)
        soak = Soak(server, [pathlib.Path(one).stem for one in models], arguments)
        try:
            asyncio.run(soak.run())
        finally:
            if server.process and server.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    server.process.kill()
        for what, count in sorted(soak.asked.items()):
            print(f"{what:12} {count:8} done, the longest took {soak.longest[what]:6.1f} s")
        print(f"passed over: {dict(soak.passed)}; {soak.batches} batches; {server.starts} starts, {sum(server.loads)} loads of models")
        print(f"memory: at most {server.most / 2**20:.0f} MiB, of a budget of {arguments.budget / 2**20:.0f} MiB")
        if server.most > arguments.budget + BEYOND:
            soak.fault("memory", f"{server.most} bytes")
        wrong = sum(soak.wrong.values())
        print(f"{sum(soak.asked.values())} done, {wrong} wrong {dict(soak.wrong) if wrong else ''}")
        if wrong:
            print((folder / "log").read_text(errors="replace")[-3000:])
        sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
