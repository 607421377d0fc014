#!/usr/bin/env python3
"""Conversations of clients that name no slot: how much of earlier turns is read again.

    talks.py --pith PITH --model MODEL --text FILE [--keep POLICY] [--recall POLICY]
             [--clients N] [--turns N] [--tokens N] [--answer N] [--slots] [-- OPTION...]

Starts `pith serve` and runs N clients at the same time. Each sends its whole conversation every
turn, as OpenAI's clients do, and knows nothing of the server: a piece of the text and a question.
For each turn it prints the tokens of the prompt, those that were parked, seconds until the first
token and until the end, and the server's processor seconds for all clients. The
last line has the share of the earlier turns' tokens that came from parked conversations. --slots
runs them once more, each in a slot of its own, and compares the answers."""

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time


def start(a):
    command = [a.pith, "serve", "-m", a.model, "--port", "0", *a.option]
    if a.keep:
        command += ["--keep", a.keep]
    if a.recall:
        command += ["--recall", a.recall]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        found = re.search(r"^listening on \S+:(\d+)$", line)
        if found:
            return process, int(found.group(1))
    sys.exit("talks.py: the server did not start")


def ask(port, body):
    """(seconds to the first token, seconds to the end, text, usage)."""
    begin = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    c.request("POST", "/v1/chat/completions", json.dumps(body))
    r = c.getresponse()
    if r.status != 200:
        sys.exit(f"talks.py: {r.read().decode()}")
    text, usage, first = "", None, None
    for line in r:
        if not line.startswith(b"data: {"):
            continue
        d = json.loads(line[6:])
        usage = d.get("usage") or usage
        for choice in d["choices"]:
            part = choice["delta"].get("content")
            if part:
                first = first or time.monotonic() - begin
                text += part
    c.close()
    end = time.monotonic() - begin
    return first or end, end, text, usage


def processor_s(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client(threading.Thread):
    def __init__(self, a, server, number, text, slot):
        super().__init__()
        self.process, self.port = server
        self.a, self.number, self.text, self.slot = a, number, text, slot
        self.answers, self.rows = [], []

    def run(self):
        a, messages, earlier = self.a, [], 0
        for turn in range(a.turns):
            at = (self.number * a.turns + turn) * a.tokens * 4  # some four bytes are a token
            piece = self.text[at:at + a.tokens * 4]
            messages.append({"role": "user",
                             "content": f"{piece}\n\nWhat was said here? Answer in a sentence."})
            body = {"messages": messages, "max_tokens": a.answer, "temperature": 0, "stream": True,
                    "stream_options": {"include_usage": True}}
            if self.slot:
                body["id_slot"] = self.number
            before = processor_s(self.process.pid)
            first, end, text, usage = ask(self.port, body)
            pith = usage["pith"]
            parked = pith["cached_tokens"] if pith.get("cache_from") == "conversation" else 0
            self.rows.append((self.number, turn, usage["prompt_tokens"], earlier, parked,
                              pith.get("cache_why", ""), first, end,
                              processor_s(self.process.pid) - before))
            earlier = usage["prompt_tokens"] + usage["completion_tokens"]
            self.answers.append(text)
            messages.append({"role": "assistant", "content": text})


def run(a, text, slot):
    process, port = start(a)
    try:
        clients = [Client(a, (process, port), i, text, slot) for i in range(a.clients)]
        for c in clients:
            c.start()
        for c in clients:
            c.join()
        return clients
    finally:
        process.terminate()
        process.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--pith", default="build/cli/pith")
    p.add_argument("--model", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--keep")
    p.add_argument("--recall")
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--turns", type=int, default=8)
    p.add_argument("--tokens", type=int, default=150, help="of each question, about")
    p.add_argument("--answer", type=int, default=24, help="most tokens of an answer")
    p.add_argument("--slots", action="store_true")
    p.add_argument("option", nargs="*", help="of pith serve, behind --")
    a = p.parse_args()
    with open(a.text, encoding="utf-8") as f:
        text = re.sub(r"\s+", " ", f.read())
    clients = run(a, text, False)
    print("client turn prompt earlier parked why first_s end_s cpu_s")
    for row in sorted(r for c in clients for r in c.rows):
        print("{:6} {:4} {:6} {:7} {:6} {:8} {:7.2f} {:6.2f} {:6.2f}".format(*row))
    earlier = sum(r[3] for c in clients for r in c.rows)
    parked = sum(r[4] for c in clients for r in c.rows)
    print(f"of {earlier} tokens of earlier turns {parked} were parked"
          + (f": {100 * parked / earlier:.1f} %" if earlier else ""))
    if a.slots:
        others = run(a, text, True)
        n = sum(x == y for c, o in zip(clients, others) for x, y in zip(c.answers, o.answers))
        print(f"of {a.clients * a.turns} answers {n} equal the answers with a slot for each")
        sys.exit(n != a.clients * a.turns)


main()
