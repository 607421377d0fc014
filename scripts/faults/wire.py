"""A server to be hurt, and HTTP by hand: requests that may end anywhere, answers that are checked
byte by byte. The standard library alone."""

import asyncio
import atexit
import json
import os
import re
import socket
import struct
import subprocess
import tempfile
import time

PATIENCE_S = 120.0  # for what takes a moment, under sanitizers and beside other work


class Wrong(Exception):
    """What must not happen."""


class Server:
    """A process on a free port, whose log is a file."""

    def __init__(self, pith, model, *options):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="pith-faults-", suffix=".log")
        self.process = subprocess.Popen(
            [pith, "serve", "-m", model, "--port", "0", "-t", "1", "-v", *map(str, options)],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        atexit.register(self.process.kill)  # of one that was not ended
        line = self.process.stdout.readline()
        found = re.search(r"^listening on http://\S+:(\d+)$", line)
        if found is None:
            raise Wrong("the server did not start: " + self.said())
        self.port = int(found.group(1))

    def said(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            return f.read()

    def end(self):
        """Lets it end; what it said. A sanitizer's report is an exit status other than 0."""
        self.process.terminate()
        code = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        said = self.said()
        if code != 0 or "Sanitizer" in said or "runtime error" in said:
            raise Wrong(f"exit status {code}: {said[-4000:]}")
        return said

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))

    def n_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    async def all_closed(self, files):
        """The server hears of a connection's end a moment after its client has ended it."""
        for _ in range(100):
            if self.n_files() <= files:
                return
            await asyncio.sleep(0.1)
        raise Wrong(f"{self.n_files()} open files, {files} before")

    async def metrics(self):
        answer = await ask(self.port, "GET", "/metrics")
        # All have the model's name as a label.
        text = re.sub(r'\{model_name="(?:[^"\\]|\\.)*",?', "{", answer.body.decode())
        lines = [line.split() for line in text.replace("{}", "").splitlines() if line[:1] != "#"]
        return {name: float(value) for name, value in lines}

    async def until(self, what, holds):
        """Waits until the metrics are as wanted; the metrics."""
        start = time.monotonic()
        while True:
            m = await self.metrics()
            if holds(m):
                return m
            if time.monotonic() - start > PATIENCE_S:
                raise Wrong(f"{what}: not so after {PATIENCE_S:.0f} s: {m}")
            await asyncio.sleep(0.1)


# ---- requests ----


def text_of(method, path, body=None, headers=()):
    """The bytes of a request. body: bytes, or what becomes JSON."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


class Line:
    """A connection to the server."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port, small=False):
        s = socket.socket()
        s.setblocking(False)
        if small:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(s, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=s, limit=1024 if small else 1 << 16))

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    def end_sending(self):
        """Hangs up half."""
        try:
            self.writer.write_eof()
        except OSError:
            pass  # the server was first

    def reset(self):
        """Hangs up with a reset instead of a farewell."""
        s = self.writer.get_extra_info("socket")
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self):
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass


# ---- answers ----


class Answer:
    def __init__(self, code, headers, body):
        self.code, self.headers, self.body = code, headers, body

    def json(self):
        return json.loads(self.body)

    def events(self):
        """Documents of a stream, without [DONE]."""
        found = re.findall(rb"^data: (.*)$", self.body, re.M)
        return [json.loads(data) for data in found if data != b"[DONE]"]


async def read_chunks(reader):
    body = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        part = await reader.readexactly(size + 2)
        if part[-2:] != b"\r\n":
            raise Wrong("a chunk that does not end where it says")
        if size == 0:
            return body
        body += part[:-2]


async def read_answer(reader):
    """A whole answer after which nothing comes; None: the server hung up before its end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        code = int(re.match(r"HTTP/1\.1 (\d{3}) ", head).group(1))
        headers = {k.strip().lower(): v.strip() for k, v in
                   (line.split(":", 1) for line in head.split("\r\n")[1:] if line)}
        if headers.get("transfer-encoding") == "chunked":
            body = await read_chunks(reader)
        elif "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            body = await reader.read()
    except (asyncio.IncompleteReadError, OSError):
        return None
    try:
        rest = await reader.read()
    except OSError:
        rest = b""
    if rest:
        raise Wrong(f"{len(rest)} bytes after the end of an answer: {rest[:80]}")
    if not (200 <= code < 300) and headers.get("content-type", "").startswith("application/json"):
        error = json.loads(body)["error"]
        if not error["message"]:
            raise Wrong("an error without a message")
    return Answer(code, headers, body)


async def ask(port, method, path, body=None, headers=()):
    """An answer, which must come."""
    line = await Line.open(port)
    await line.send(text_of(method, path, body, headers))
    answer = await asyncio.wait_for(read_answer(line.reader), PATIENCE_S)
    await line.close()
    if answer is None:
        raise Wrong(f"{method} {path}: the server hung up")
    return answer


async def post(port, path, body):
    """An answer with 200; where the server is full the request is made again."""
    while True:
        answer = await ask(port, "POST", path, body)
        if answer.code == 200:
            return answer
        if answer.code not in (429, 503):
            raise Wrong(f"{path}: {answer.code}: {answer.body[:300]}")
        await asyncio.sleep(0.05)


# What differs between two answers to the same request: names, times, and what was found in a cache.
PASSING = {"id", "created", "created_at", "completed_at", "timings", "tokens_cached", "id_slot",
           "cached_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
           "cache_why", "cache_differs_at", "cache_from", "read_tokens", "input_tokens", "item_id"}


def lasting(value):
    """The rest, to be compared. Of "pith" in a usage nothing may be left."""
    if isinstance(value, dict):
        kept = {k: lasting(v) for k, v in value.items() if k not in PASSING}
        return {k: v for k, v in kept.items() if k != "pith" or v}
    if isinstance(value, list):
        return [lasting(v) for v in value]
    return value


def content_of(answer):
    """What must be the same each time, as one text. Numbers are written with all their bits."""
    streamed = answer.headers["content-type"].startswith("text/event-stream")
    document = answer.events() if streamed else answer.json()
    return json.dumps(lasting(document), sort_keys=True)


def differ(what, a, b):
    """Wrong, with the place where two contents part."""
    n = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    raise Wrong(f"{what}: ...{a[max(n - 80, 0):n + 80]} is not ...{b[max(n - 80, 0):n + 80]}")
