"""Long prompts on a terminal: the bar, and Ctrl-C. A pseudo-terminal plays the user's, and kernels
without vectors make reading slow enough to be looked at.

usage: test_terminal.py PITH MODEL
"""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PITH, MODEL = sys.argv[1:3]
FOLDER = tempfile.TemporaryDirectory()
TEXT = os.path.join(FOLDER.name, "text")  # some 1,200 tokens
with open(os.path.join(os.path.dirname(MODEL), "demo", "prompt-2k.txt")) as demo:
    with open(TEXT, "w") as part:
        text = demo.read()
        part.write(text[:len(text) * 6 // 10])
SLOW = ["-m", MODEL, "--cpu-level", "scalar", "-t", "1"]
PATIENCE_S = 60
BAR = re.compile(rb"\[[#.]{20}\] +\d+ %  reading [\d,]+ of 1,\d{3} tokens")
RATE = re.compile(rb"reading [\d,]+ of [\d,]+ tokens, \d+ tokens/s, .*left")


class Terminal:
    """A command on a terminal of its own, whose output is kept in .text."""

    def __init__(self, *args):
        self.text = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="dumb", COLUMNS="120")
            os.execv(PITH, [PITH, *args])

    def read(self, wait=0.1):
        if select.select([self.fd], [], [], wait)[0]:
            try:
                more = os.read(self.fd, 65536)
            except OSError:  # Linux says so when the other side is closed
                return False
            self.text += more
            return bool(more)
        return True

    def until(self, what, start=0):
        """Waits until what, a pattern, stands behind start; returns the match."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = re.compile(what).search(self.text, start)
            if found:
                return found
            if not self.read():
                break
        raise AssertionError(f"{what!r} did not come: {self.text[-2000:]!r}")

    def type(self, text):
        os.write(self.fd, text)

    def end(self):
        """The exit status, once it has ended."""
        stop = time.monotonic() + PATIENCE_S
        while time.monotonic() < stop:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            self.read()
        raise AssertionError(f"it does not end: {self.text[-2000:]!r}")

    def __enter__(self):
        return self

    def __exit__(self, *args):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.fd)


class Bar(unittest.TestCase):
    def test_long_prompt_and_interrupt(self):
        """One pass over all of the prompt, which Ctrl-C ends within."""
        with Terminal("run", *SLOW, "-f", TEXT, "-n", "4", "--chunk", "4096") as t:
            t.until(BAR)
            t.until(RATE)
            t.type(b"\x03")
            start = time.monotonic()
            self.assertEqual(t.end(), 130)
            self.assertLess(time.monotonic() - start, 20)
            self.assertNotRegex(t.text, b"tokens/s\r?\n")  # the line was taken away

    def test_short_prompt(self):
        with Terminal("run", "-m", MODEL, "-p", "Where is Maria?", "-n", "2", "-q") as t:
            self.assertEqual(t.end(), 0)
            self.assertNotIn(b"reading", t.text)

    def test_no_terminal(self):
        """Neither a long prompt nor a task has a bar where standard error is a pipe."""
        with tempfile.TemporaryDirectory() as folder:
            for command in (["run", "-m", MODEL, "-f", TEXT, "-n", "1", "-q"],
                            ["eval", "perplexity", "-m", MODEL, "-f", TEXT, "-c", "256"],
                            ["quantize", MODEL, os.path.join(folder, "out.gguf"), "Q8_0", "-q"]):
                done = subprocess.run([PITH, *command], stdin=subprocess.DEVNULL,
                                      capture_output=True, timeout=PATIENCE_S)
                self.assertEqual(done.stderr.replace(b"\n", b""), b"", command)

    def test_tasks(self):
        """Ctrl-C ends a task within an evaluation, and its bar says what is read."""
        for command in (["eval", "perplexity", *SLOW, "-f", TEXT, "-c", "500", "--chunk", "4096"],
                        ["eval", "needle", *SLOW, "-n", "1100", "--chunk", "4096"]):
            with Terminal(*command) as t:
                t.until(rb"\[[#.]{20}\] +\d+ %  .*[\d,]+ of (1,\d|\d)\d\d tokens, \d+ tokens/s")
                t.type(b"\x03")
                self.assertEqual(t.end(), 130, command)

    def test_batch(self):
        with tempfile.TemporaryDirectory() as folder:
            requests, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
            with open(TEXT) as f, open(requests, "w") as to:
                body = {"prompt": f.read(), "max_tokens": 4}
                json.dump({"custom_id": "1", "method": "POST", "url": "/v1/completions",
                           "body": body}, to)
            with Terminal("batch", *SLOW, "--chunk", "4096", "-f", requests, "-o", out) as t:
                t.until(rb"0 of 1 requests, .*[\d,]+ of 1,\d{3} tokens, \d+ tokens/s")
                t.type(b"\x03")
                self.assertEqual(t.end(), 130)
                self.assertIn(b"--resume does the rest", t.text)
            with open(out) as f:
                self.assertEqual(f.read(), "")


class Chat(unittest.TestCase):
    def talk(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "talk.json")
            with open(TEXT) as f, open(path, "w") as to:
                json.dump([{"role": "user", "content": f.read()},
                           {"role": "assistant", "content": "Yes."}], to)
            with Terminal("chat", *SLOW, "--chat-template", "chatml", "--history", "", "-n", "3",
                          "--temp", "0", "--chunk", "16", *options) as t:
                t.until(b"> ")
                t.type(f"/load {path}\n".encode())
                t.until(b"loaded 2 messages")
                read = 0
                for _ in range(2):
                    at = len(t.text)
                    t.type(b"Where is Maria?\n")
                    t.until(rb"reading ([4-9]\d|\d{3}) of [12],\d{3} tokens", at)
                    t.type(b"\x03")
                    stopped = t.until(rb"stopped: (\d+) of (\d+) tokens are read", at)
                    self.assertGreater(int(stopped[1]), read)  # it went on from there
                    read = int(stopped[1])
                    self.assertLess(read, int(stopped[2]))
                    t.until(b"> ", stopped.end())
                at = len(t.text)
                t.type(b"/reset\n")
                t.until(b"starts over", at)
                at = len(t.text)
                t.type(b"Where is Maria?\n")
                t.until(rb"Where is Maria\?\r\n[^>]*\S[^>]*\n> ", at)
                t.type(b"/quit\n")
                self.assertEqual(t.end(), 0)

    def test_second_interrupt(self):
        """One Ctrl-C ends reading; another, before the first is answered, ends the program. Where
        the first was faster, the chat goes on, and both are typed again at another distance."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "talk.json")
            with open(TEXT) as f, open(path, "w") as to:
                json.dump([{"role": "user", "content": f.read()},
                           {"role": "assistant", "content": "Yes."}], to)
            with Terminal("chat", *SLOW, "--chat-template", "chatml", "--history", "", "-n", "3",
                          "--chunk", "4096") as t:
                t.until(b"> ")
                begin, attempt = time.monotonic(), 0
                while t.pid:
                    self.assertLess(time.monotonic() - begin, 3 * PATIENCE_S)
                    at = len(t.text)
                    t.type(b"/reset\n")
                    t.until(b"starts over", at)
                    t.type(f"/load {path}\n".encode())
                    t.until(b"loaded 2 messages", at)
                    t.type(b"Where is Maria?\n")
                    t.until(rb"reading \d+ of [12],\d{3} tokens", at)
                    t.type(b"\x03")
                    time.sleep(0.0001 * (attempt % 20))
                    t.type(b"\x03")
                    start, attempt = time.monotonic(), attempt + 1
                    try:
                        t.until(rb"stopped: \d+ of \d+ tokens are read[^>]*> ", at)
                    except AssertionError:
                        self.assertEqual(t.end(), 130)
                        self.assertLess(time.monotonic() - start, 20)

    def test_full_cache(self):
        self.talk()

    def test_keep(self):
        self.talk("--keep", "streaming:budget=64,slack=16")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
