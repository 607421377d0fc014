"""What the tests of `pith serve` share: starting it, asking it, reading streams and metrics. The
standard library alone, so that they run wherever there is Python.

A test program is `python3 test_server_X.py PITH MODEL`; 77 is a skip."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

PITH, MODEL = "", ""
PATIENCE_S = 60  # for what takes a moment, under sanitizers and beside other tests


def main():
    global PITH, MODEL
    PITH, MODEL = sys.argv[1:3]
    __import__("server_rig").PITH, __import__("server_rig").MODEL = PITH, MODEL
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])


def is_sanitized():
    """Whether the command was built with sanitizers, and takes several times as long."""
    said = subprocess.run([PITH, "--version"], capture_output=True, text=True, check=True).stdout
    return not re.search(r"^sanitizers +none$", said, re.M)


def without_model(text):
    """/metrics without the label that all of its lines have."""
    return re.sub(r'\{model_name="(?:[^"\\]|\\.)*",?', "{", text).replace("{}", "")


class Answer:
    def __init__(self, response):
        self.code = response.status
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.body = response.read()

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]


class Server:
    """A server on a free port, ended with the block. launcher: words in front of the command."""

    def __init__(self, *options, tls=None, chunk=64, launcher=()):
        self.tls = tls
        self.process = subprocess.Popen(
            [*launcher, PITH, "serve", "-m", MODEL, "--port", "0", "-t", "1", "--chunk", str(chunk),
             *map(str, options)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = ""
        self.port = None
        while self.port is None:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError("the server did not start: " + self.process.stderr.read())
            self.said += line
            found = re.search(r"^listening on (https?)://\S+:(\d+)$", line, re.M)
            if found:
                self.port = int(found.group(2))
        self.said += self.process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()
            self.err = self.process.stderr.read()
            self.process.stderr.close()
        if self.process.returncode != 0:
            raise AssertionError(f"exit status {self.process.returncode}: {self.err}")

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def connect(self, timeout=PATIENCE_S):
        if self.tls is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls,
                                               timeout=timeout)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None, connection=None):
        c = connection or self.connect()
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        chunked = "Transfer-Encoding" in (headers or {})
        c.request(method, path, body=body, headers=headers or {}, encode_chunked=chunked)
        answer = Answer(c.getresponse())
        if connection is None:
            c.close()
        return answer

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def post(self, path, body, **more):
        return self.ask("POST", path, body=body, **more)

    def metric(self, name):
        text = without_model(self.get("/metrics").body.decode())
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M).group(1))

    def until(self, name, value, seconds=PATIENCE_S):
        """Waits until a metric has the value; the seconds that it took."""
        start = time.monotonic()
        while self.metric(name) != value:
            if time.monotonic() - start > seconds:
                raise AssertionError(f"{name} is {self.metric(name)}, not {value}, after "
                                     f"{seconds} s")
            time.sleep(0.02)
        return time.monotonic() - start

    def stream(self, path, body, headers=None):
        return Stream(self, path, body, headers)


class Stream:
    """A stream of server-sent events, read event by event."""

    def __init__(self, server, path, body, headers=None, method="POST"):
        self.connection = server.connect()
        text = json.dumps(body) if body is not None else None
        self.connection.request(method, path, body=text, headers=headers or {})
        self.response = self.connection.getresponse()
        self.code = self.response.status
        self.type = self.response.getheader("content-type")

    def events(self):
        """(event, data) until the end; data as it stands."""
        name, data = None, []
        while True:
            line = self.response.readline()
            if not line:
                self.close()
                return
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data.append(line[6:])
            elif line == "" and data:
                yield name, "\n".join(data)
                name, data = None, []

    def documents(self):
        return [json.loads(data) for _, data in self.events() if data != "[DONE]"]

    def close(self):
        self.response.close()
        self.connection.close()


def raw(server, method, path, body, small=False):
    """A socket on which a request was sent and nothing was read."""
    s = socket.socket()
    if small:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(PATIENCE_S)
    s.connect(("127.0.0.1", server.port))
    text = json.dumps(body).encode()
    s.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
              .encode() + text)
    return s


def wait_for(holds):
    start = time.monotonic()
    while not holds():
        if time.monotonic() - start > PATIENCE_S:
            raise AssertionError(f"not so after {PATIENCE_S} s")
        time.sleep(0.02)


def together(calls):
    """Results of calls that run at the same time, in order."""
    results = [None] * len(calls)

    def run(i):
        try:
            results[i] = calls[i]()
        except Exception as e:  # told by who looks at the result
            results[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in results:
        if isinstance(r, Exception):
            raise r
    return results
