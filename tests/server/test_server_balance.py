"""Two servers behind HAProxy with examples/haproxy.cfg: each conversation stays with the server
that has read it, both get some, and one that ends loses nobody a request. Skipped where HAProxy is
not installed."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import server_rig as rig

CONFIGURATION = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "haproxy.cfg")
N_TALK, N_TURN = 12, 3


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Balancer:
    """HAProxy with the example's configuration, but for the ports."""

    def __init__(self, servers):
        self.port = free_port()
        with open(CONFIGURATION, encoding="utf-8") as f:
            text = f.read().replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        for place, server in zip(("8081", "8082"), servers):
            text = text.replace(f"127.0.0.1:{place}", f"127.0.0.1:{server.port}")
        self.file = tempfile.NamedTemporaryFile("w", suffix=".cfg")
        self.file.write(text)
        self.file.flush()
        self.process = subprocess.Popen(["haproxy", "-q", "-f", self.file.name])

    def __enter__(self):
        start = time.monotonic()
        while True:
            try:
                self.ask("GET", "/health")
                return self
            except OSError:
                if time.monotonic() - start > rig.PATIENCE_S:
                    raise
                time.sleep(0.05)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(rig.PATIENCE_S)
        self.file.close()

    def ask(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=rig.PATIENCE_S)
        c.request(method, path, body=None if body is None else json.dumps(body),
                  headers=headers or {})
        answer = rig.Answer(c.getresponse())
        c.close()
        return answer


def opening(i):
    """A talk's first messages; the system prompt is everybody's."""
    return [{"role": "system", "content": "Who is whose friend? " * 8},
            {"role": "user", "content": f"The friend number {i} of Otto is Maria. " * 12}]


class Balance(unittest.TestCase):
    def turn(self, balancer, messages):
        """One more turn of a talk: how many tokens the server knew."""
        a = balancer.ask("POST", "/v1/chat/completions",
                         {"messages": messages, "max_tokens": 4, "ignore_eos": True, "seed": 1})
        self.assertEqual(a.code, 200, a.body)
        answer = a.json()
        messages.append(answer["choices"][0]["message"])
        messages.append({"role": "user", "content": "And of Maria?"})
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_talks_stay(self):
        options = ("--page", "16", "-c", "8192")
        with rig.Server(*options) as one, rig.Server(*options) as two:
            with Balancer((one, two)) as balancer:
                talks = [opening(i) for i in range(N_TALK)]
                for n in range(N_TURN):
                    for messages in talks:
                        known = self.turn(balancer, messages)
                        if n > 0:  # the page that the last turn ended in is read again
                            self.assertGreater(known, 150)
                asked = [s.metric("pith_prompt_tokens_total") for s in (one, two)]
                self.assertGreater(min(asked), 0)
                # One ends, and its talks go on with the other.
                two.terminate()
                for messages in talks:
                    self.turn(balancer, messages)

    def test_long_bodies(self):
        with rig.Server("--body", "4MiB") as one, rig.Server("--body", "4MiB") as two:
            with Balancer((one, two)) as balancer:
                a = balancer.ask("POST", "/tokenize", {"content": "word " * 300000})
                self.assertEqual(a.code, 200, a.body[:200])
                self.assertGreater(len(a.json()["tokens"]), 300000)


if __name__ == "__main__":
    if shutil.which("haproxy") is None:
        print("skipped: there is no haproxy; to fetch it: apt-get install haproxy")
        sys.exit(77)
    rig.main()
