#!/usr/bin/env python3
"""What strangers can do to `sluice serve`: runs each attack against a served tiny model and prints the attack's outcome, how long it
took, the server's memory at its peak and afterwards, and the longest that another caller waited for /health meanwhile. Fails where
an attack has more success than its own checks allow, or a server takes more than $MOST_MB (1024) or does not end.

    scripts/check_server_attacks.py [ATTACK...]      default: all; the server is $SLUICE, as for the other scripts here
    scripts/check_server_attacks.py --list           their names
"""
import contextlib
import gzip
import json
import multiprocessing
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

SLUICE = os.environ.get("SLUICE", "build/release/bin/sluice")
MODEL = str(pathlib.Path(__file__).parent.parent / "tests/fixtures/models/stories260k")
LONG = float(os.environ.get("SECONDS", "60"))  # nothing is waited for longer
MOST_MB = float(os.environ.get("MOST_MB", "1024"))
FAILED = []


def expect(holds, what):
    """A check of an attack: what does not hold is told at the end."""
    if not holds:
        FAILED.append(what)


class Server:
    """One server, and a caller who asks it again and again how it goes."""

    def __init__(self, model=MODEL, *flags):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([SLUICE, "serve", model, "--port", "0", "-c", "256", "-t", "1", "--drain-timeout", "2", *flags],
                                        stderr=self.log, stdout=self.log)
        found = None
        while not found:
            time.sleep(0.1)
            self.log.seek(0)
            found = re.search(r"at http://127.0.0.1:(\d+)/v1", self.log.read())
            if self.process.poll() is not None:
                raise SystemExit("sluice serve ended at once")
        self.port = int(found[1])
        # A process of its own: what this one is busy with delays nobody there.
        self.worst, self.is_over = multiprocessing.Value("d", 0.0), multiprocessing.Event()
        self.watcher = multiprocessing.Process(target=self.watch, daemon=True)

    def connect(self, timeout=LONG, of=None):
        made = socket.create_connection(("127.0.0.1", self.port), timeout=timeout, source_address=(of, 0) if of else None)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def say(self, data, timeout=LONG):
        """The status of the answer to these bytes; 0: none within the time, or the connection broke."""
        try:
            with contextlib.closing(self.connect(timeout)) as to:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    to.sendall(data)
                heard, until = b"", time.monotonic() + timeout
                while b"\r\n\r\n" not in heard and time.monotonic() < until:
                    some = to.recv(65536)
                    if not some:
                        break
                    heard += some
                return int(heard.split(b" ")[1]) if heard else 0
        except OSError:
            return 0

    def watch(self):
        while not self.is_over.is_set():
            begin = time.monotonic()
            self.say(b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            self.worst.value = max(self.worst.value, time.monotonic() - begin)
            time.sleep(0.02)

    def memory(self, name):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(name + r":\s+(\d+)", text)[1]) / 1024

    def ask(self, method, path, body=b"", *headers, host="h", of=None):
        """The status and the body of an answer that closes; (0, b"") where none comes."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        try:
            with contextlib.closing(self.connect(of=of)) as to:
                to.sendall((head + "".join(h + "\r\n" for h in headers)).encode() + b"\r\n" + body)
                heard = rest(to)
            return int(heard.split(b" ")[1]), heard.split(b"\r\n\r\n", 1)[1]
        except (OSError, IndexError):
            return 0, b""

    def upload(self, lines, *headers):
        form = (b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\nContent-Disposition: form-data; '
                b'name="file"; filename="a.jsonl"\r\n\r\n' + lines + b"\r\n--x--\r\n")
        return self.ask("POST", "/v1/files", form, "Content-Type: multipart/form-data; boundary=x", *headers)

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            FAILED.append("the server does not end within 15 s of SIGTERM")
            self.process.kill()
            self.process.wait()


def post(path, body, *headers):
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n" + "".join(h + "\r\n" for h in headers)
    return head.encode() + b"\r\n" + body


def together(count, what):
    """`what(i)` in so many threads; the results."""
    results = [None] * count

    def one(i):
        results[i] = what(i)

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def counted(results):
    return ", ".join(f"{results.count(r)} x {r or 'no answer'}" for r in sorted(set(results)))


def compressed(server):
    """1 MB of gzip that holds 1 GB"""
    body = gzip.compress(b'{"prompt": "' + b"a" * (1 << 30) + b'"}', 6)
    yield
    yield counted([server.say(post("/v1/completions", body, "Content-Encoding: gzip"))])


def many_keys(server):
    """a million keys of logit_bias"""
    body = json.dumps({"prompt": "a", "max_tokens": 1, "logit_bias": {str(i): 1 for i in range(10 ** 6)}}).encode()
    yield
    yield counted([server.say(post("/v1/completions", body))])


def dripping(server, count):
    """so many connections that say a byte now and then; how many of them still hold on after 40 s"""
    yield
    held = [server.connect() for _ in range(count)]
    head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nX: "
    for one in held:
        one.sendall(head)
        one.setblocking(False)
    until = time.monotonic() + 40
    while time.monotonic() < until:
        time.sleep(9)
        for one in held:
            with contextlib.suppress(OSError):
                one.send(b"x")
    left = 0
    for one in held:
        try:
            left += bool(one.recv(1)) * 0
        except BlockingIOError:
            left += 1
        except OSError:
            pass
        one.close()
    yield f"{left} of {count} still held"


def crowd(server):
    """400 users at once, 16 run and 256 may wait"""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 100, "temperature": 0, "ignore_eos": True}).encode()
    yield
    yield counted(together(400, lambda i: server.say(post("/v1/completions", body))))


def no_body(server):
    """a POST without a body"""
    yield
    yield counted([server.say(b"POST /v1/batches/x/cancel HTTP/1.1\r\nHost: a\r\n\r\n")])


def lying_lengths(server):
    """Content-Length 10^12, -1, two of them"""
    lengths = ["Content-Length: 1000000000000", "Content-Length: -1", "Content-Length: 3\r\nContent-Length: 4"]
    yield
    yield counted([server.say(f"POST /v1/completions HTTP/1.1\r\nHost: h\r\n{length}\r\n\r\n".encode(), 20) for length in lengths])


def large_bodies(server):
    """24 bodies of 30 MB at once"""
    body = json.dumps({"prompt": [1] * (10 ** 7)}).encode()
    yield
    yield counted(together(24, lambda i: server.say(post("/v1/completions", body))))


def long_prompt(server):
    """a prompt of 30 MB of text"""
    words = "the cat sat on a mat and Lily said hello to it while Tom ran ".encode() * 500000
    body = b'{"prompt": "' + words[: 30 * 10 ** 6] + b'"}'
    yield
    yield counted([server.say(post("/v1/completions", body))])


def rest(to):
    """What comes until the other side ends."""
    heard = b""
    while some := to.recv(65536):
        heard += some
    return heard


def health(server):
    """/health's body."""
    with contextlib.closing(server.connect()) as to:
        to.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        return rest(to).split(b"\r\n\r\n")[-1].decode()


def leavers(server):
    """64 who leave before their answer; how many requests are left a second later"""
    body = json.dumps({"prompt": "Once", "max_tokens": 250, "ignore_eos": True, "n": 16}).encode()
    yield
    for _ in range(64):
        with contextlib.closing(server.connect()) as gone:
            gone.sendall(post("/v1/completions", body))
    time.sleep(2)
    yield health(server)


def half_closed(server):
    """a caller who says that nothing more will come"""
    body = json.dumps({"prompt": "Once", "max_tokens": 200, "ignore_eos": True}).encode()
    yield
    with contextlib.closing(server.connect()) as to:
        to.sendall(post("/v1/completions", body))
        to.shutdown(socket.SHUT_WR)
        heard = rest(to)
    yield "answered" if b'"text_completion"' in heard else "no answer"


def other_interfaces(server):
    """100 000 messages, items and results on the other interfaces' routes, then 64 who leave their streams and embeddings"""
    text = {"role": "user", "content": "a"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    lost = {"type": "function_call_output", "call_id": "c", "output": "a"}
    many = [("/v1/responses", {"input": [text] * 100000}), ("/v1/responses", {"input": [call] + [lost] * 100000}),
            ("/v1/messages", {"max_tokens": 1, "messages": [text] * 100000}),
            ("/api/chat", {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}] * 128}]
                           + [{"role": "tool", "tool_name": "g", "content": "a"}] * 100000}),
            ("/completion", {"prompt": [1, "a"] * 10 ** 6, "n_predict": 1}), ("/completion", {"prompt": ["a"] * 10 ** 6}),
            ("/completion", {"prompt": "a", "grammar": "root ::= (((\"\"){10000}){10000}){10000}"}),
            ("/completion", {"prompt": "a", "logit_bias": [[1, 1]] * 10 ** 6, "n_predict": 1}),
            ("/completion", {"prompt": "a", "dry_multiplier": 1, "dry_sequence_breakers": ["a"] * 10 ** 6}),
            ("/v1/rerank", {"query": "a" * 10 ** 6, "documents": ["a"]}), ("/v1/rerank", {"query": "a", "documents": ["a"] * 10 ** 6}),
            ("/v1/rerank", {"query": "a", "documents": ["a" * 50] * 1000}),
            ("/v1/embeddings", {"input": ["a"] * 10 ** 6}), ("/v1/embeddings", {"input": "a" * 10 ** 6}),
            ("/v1/embeddings", {"input": ["Once upon a time"] * 2048}), ("/v1/embeddings", {"input": [[1]] * 10 ** 6}),
            ("/v1/embeddings", {"input": [1] * 10 ** 6}), ("/api/embed", {"input": "a" * 10 ** 6}),
            ("/embedding", {"content": [[1, "a"] * 10 ** 5] * 3}),
            ("/api/show", {"model": "a" * 10 ** 7})]
    bodies = [post(path, json.dumps(body).encode()) for path, body in many]
    streams = [("/v1/responses", {"input": "Once", "stream": True, "max_output_tokens": 250, "ignore_eos": True}),
               ("/v1/messages", {"messages": [text], "stream": True, "max_tokens": 250, "ignore_eos": True}),
               ("/api/generate", {"prompt": "Once", "raw": True, "options": {"num_predict": 250}}),
               ("/v1/embeddings", {"input": ["Once upon a time, there was a girl. " * 8] * 512})]
    leaving = [post(path, json.dumps(body).encode()) for path, body in streams]
    yield
    outcome = counted(together(len(bodies), lambda i: server.say(bodies[i])))
    for i in range(64):
        with contextlib.closing(server.connect()) as gone:
            gone.sendall(leaving[i % len(leaving)])
    time.sleep(2)
    yield f"{outcome}; {health(server)}"


def idle(server, said):
    """1100 connections that ask nothing, and 18 more a second; how callers of the moment fare"""
    yield
    held, statuses = [], []
    caller = server.connect()
    for _ in range(1100):
        held.append(server.connect())
        held[-1].sendall(said)
    until = time.monotonic() + 5
    while time.monotonic() < until:
        held += [server.connect() for _ in range(4)]
        statuses.append(server.ask("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 1}')[0])
        time.sleep(0.2)
    expect(set(statuses) == {200}, f"idle connections: completions gave {counted(statuses)}")
    with contextlib.suppress(OSError):
        caller.close()
    yield counted(statuses)


def failing_batch(server):
    """a batch of 50,000 lines for another model, cancelled, one behind it, and SIGTERM while a third runs"""
    line = json.dumps({"custom_id": "r%d", "method": "POST", "url": "/v1/completions", "body": {"model": "gpt-4o", "prompt": "a"}})
    wrong = "\n".join(line % i for i in range(50000)).encode()
    right = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 1}}).encode()

    def batch(lines):
        file = json.loads(server.upload(lines)[1])["id"]
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        return json.loads(server.ask("POST", "/v1/batches", json.dumps(body).encode())[1])["id"]

    def until(name, statuses, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = json.loads(server.ask("GET", f"/v1/batches/{name}")[1])
            if state["status"] in statuses:
                return state
            time.sleep(0.05)
        FAILED.append(f"batch of failing lines: {state['status']} after {seconds} s")
        return state
    yield
    first, behind = batch(wrong), batch(right)
    server.ask("POST", f"/v1/batches/{first}/cancel")
    counts = until(first, ["cancelled"])["request_counts"]
    until(behind, ["completed"])
    begin = time.monotonic()
    whole = until(batch(wrong), ["completed"])
    seconds = time.monotonic() - begin
    batch(wrong)
    yield f"cancelled after {counts['failed']} lines; {whole['request_counts']['failed'] / seconds:.0f} failing lines a second"


def pages(server):
    """what a page of another origin, or under a name that it made mean this machine, gets done"""
    body = b'{"prompt": "a", "max_tokens": 1}'
    evil = ["Origin: https://evil.example", "Sec-Fetch-Site: cross-site"]
    asks = [server.ask("POST", "/v1/completions", body, "Content-Type: text/plain", *evil),
            server.ask("POST", "/v1/completions", body, "Content-Type: text/plain", "Origin: null"),
            server.ask("POST", "/v1/completions", body, "Sec-Fetch-Site: same-site"),
            server.upload(b"{}", *evil), server.ask("POST", "/v1/batches", b"{}", *evil), server.ask("GET", "/v1/models", b"", *evil),
            *(server.ask(method, path, b"", host="evil.example:80") for method, path in
              [("GET", "/"), ("GET", "/v1/files"), ("DELETE", "/v1/files/file-0"), ("POST", "/v1/completions"), ("OPTIONS", "/v1/models")])]
    yield
    statuses = [status for status, _ in asks]
    expect(set(statuses) == {403}, f"pages of other origins: {counted(statuses)}")
    yield counted(statuses)


def many_uploads(server):
    """uploads until the quota is full"""
    yield
    statuses = [server.upload(b"{}\n" * (1 << 20))[0] for _ in range(8)]
    expect(statuses[-1] == 413, f"uploads beyond the quota: {counted(statuses)}")
    yield counted(statuses)


BOMBS = ["{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
         "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}", "{% set r = range(999999) %}{{ r | sort | map('string') | unique | list }}",
         "{% set r = range(999999) %}{% for i in r %}{{ r | tojson | length }}{% endfor %}",
         "{% set s = 'a' * 3000000 %}{{ s.find('a' * 1500000 + 'b') }}",
         "{% set n = namespace(l=['a']) %}{% for i in range(64) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l | tojson }}",
         "{{ '%99999999d' % 1 }}", "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + ['a' * 1000] %}{% endfor %}"]


def templates(server):
    """chat templates that run without end, 32 at once, beside a caller who wants a token"""
    asks = [post("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "a"}], "chat_template": bomb}).encode())
            for bomb in BOMBS * 4]
    yield
    statuses, worst = [], [0.0]

    def one(i):
        if i < len(asks):
            return server.say(asks[i])
        time.sleep(0.5)
        begin = time.monotonic()
        status = server.ask("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 1}')[0]
        worst[0] = time.monotonic() - begin
        return status
    statuses = together(len(asks) + 1, one)
    expect(set(statuses[:-1]) == {400} and statuses[-1] == 200, f"templates: {counted(statuses)}")
    expect(worst[0] < 30, f"a completion beside templates took {worst[0]:.1f} s")
    yield f"{counted(statuses)}; a completion beside them took {worst[0]:.1f} s"


def greedy(server):
    """answers without end and long prompts of one caller, beside another's of 8 tokens"""
    many = json.dumps({"prompt": "Once upon a time", "max_tokens": 200, "n": 128, "ignore_eos": True, "temperature": 1}).encode()
    long = json.dumps({"prompt": "a " * 90, "max_tokens": 100, "n": 8, "ignore_eos": True, "temperature": 1}).encode()
    little = b'{"prompt": "Lily", "max_tokens": 8, "temperature": 0}'
    yield
    callers = [threading.Thread(target=server.say, args=(post("/v1/completions", body),), daemon=True) for body in [many, long, long]]
    for caller in callers:
        caller.start()
    time.sleep(1)
    waits, answers = [], set()
    while callers[0].is_alive() and len(waits) < 20:
        begin = time.monotonic()
        answers.add(server.ask("POST", "/v1/completions", little, of="127.0.0.2")[1][-200:].split(b'"text"')[-1])
        waits.append(time.monotonic() - begin)
    for caller in callers:
        caller.join()
    waits.sort()
    expect(waits and waits[len(waits) // 2] < 2, f"greedy: an answer of 8 tokens takes {waits[len(waits) // 2]:.1f} s")
    yield f"{len(waits)} answers of 8 tokens beside them: {waits[len(waits) // 2]:.2f} s (median), {waits[-1]:.2f} s at most"


ATTACKS = {"compressed": compressed, "many-keys": many_keys, "slow-256": lambda s: dripping(s, 256),
           "slow-2000": lambda s: dripping(s, 2000), "crowd": crowd, "no-body": no_body, "lying-lengths": lying_lengths,
           "large-bodies": large_bodies, "long-prompt": long_prompt, "leavers": leavers, "half-closed": half_closed,
           "interfaces": other_interfaces, "idle": lambda s: idle(s, b""),
           "idle-half": lambda s: idle(s, b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\n\r\n{"),
           "failing-batch": failing_batch, "pages": pages, "uploads": many_uploads, "templates": templates,
           "greedy": greedy}
FLAGS = {"failing-batch": ["--batch-dir"], "pages": ["--batch-dir"], "uploads": ["--batch-dir", "--batch-dir-quota=16MiB"],
         "templates": ["--trust-request-chat-template"]}

if sys.argv[1:] == ["--list"]:
    print("\n".join(ATTACKS))
    sys.exit()
unknown = set(sys.argv[1:]) - set(ATTACKS)
if unknown:
    raise SystemExit(f"no such attack: {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
print(f"{'attack':14} {'seconds':>8} {'peak MB':>8} {'after MB':>8} {'worst /health s':>15}  outcome", flush=True)
for name in sys.argv[1:] or ATTACKS:
    kept = tempfile.TemporaryDirectory()
    attacked = Server(MODEL, *(f"--batch-dir={kept.name}" if flag == "--batch-dir" else flag for flag in FLAGS.get(name, [])))
    try:
        attack = ATTACKS[name](attacked)
        next(attack)  # what it will say is ready
        attacked.watcher.start()
        time.sleep(0.5)
        begin = time.monotonic()
        outcome = next(attack)
        seconds = time.monotonic() - begin
        attacked.is_over.set()
        attacked.watcher.join(LONG + 5)
        time.sleep(0.5)
        expect(attacked.memory("VmHWM") <= MOST_MB, f"{name}: {attacked.memory('VmHWM'):.0f} MB")
        expect(attacked.process.poll() is None, f"{name}: the server has ended")
        print(f"{name:14} {seconds:8.2f} {attacked.memory('VmHWM'):8.0f} {attacked.memory('VmRSS'):8.0f} {attacked.worst.value:15.2f}"
              f"  {outcome}", flush=True)
    finally:
        attacked.close()
        kept.cleanup()
if FAILED:
    raise SystemExit("\n".join(FAILED))
