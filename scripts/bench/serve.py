#!/usr/bin/env python3
"""Two servers beside each other: the same file, threads, memory and requests.

    serve.py --pith build/cli/pith --peer llama.cpp/build/bin/llama-server -m MODEL.gguf --csv FILE

A cell is a number of clients and a length of prompt. Each client sends one request at the same
moment, as token ids, for an answer of a fixed length (ignore_eos), streamed. Prompts differ; in a
cell with a shared prefix they begin alike, and the first request that reads it belongs to the cell.
A server is started anew for each run, and runs of the two take turns. A line has the total of
tokens (prompts and answers) per second of wall time, and the median and 95th percentile of the time
to the first token and between tokens. Speeds are compared inside a round; a table has medians.

Both get memory for all clients of a cell. llama-server shares its cache between slots as one
(--kv-unified), which is its best setting where prefixes are shared. Standard library only.
"""
import argparse
import csv
import http.client
import json
import os
import re
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

FIELDS = ["round", "engine", "clients", "prompt", "shared", "answer", "total_per_s", "ttft_median",
          "ttft_p95", "gap_median", "gap_p95", "wall_s", "cached", "load", "steps", "step_s",
          "server_cpu_s"]


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--pith", required=True, help="the program pith")
    p.add_argument("--peer", help="llama-server; without it only pith is measured")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("-t", "--threads", type=int, default=1)
    p.add_argument("--cpu", default="0", help="cores of the server, as taskset takes them")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--answer", type=int, default=128)
    p.add_argument("--cells", default="1x512,4x512,16x512,1x4096,4x4096,4x4096:2048",
                   help="clients x prompt[:shared], between commas")
    p.add_argument("--pith-options", default="", help="more options of pith serve")
    p.add_argument("--port", type=int, default=18310)
    p.add_argument("--csv", required=True, help="lines are added to it")
    return p.parse_args()


def cell(text):
    """"4x4096:2048" -> (4, 4096, 2048)."""
    clients, _, rest = text.partition("x")
    prompt, _, shared = rest.partition(":")
    return int(clients), int(prompt), int(shared or 0)


def command(engine, o, clients, tokens):
    """tokens: what one request takes, its answer included; each engine rounds up to pages."""
    each = (tokens + 127) // 64 * 64
    common = ["-m", o.model, "-t", str(o.threads), "--host", "127.0.0.1", "--port", str(o.port),
              "-np", str(clients), "-c", str(each * clients)]
    if engine == "pith":
        program = [o.pith, "serve", *common, "--slot-count", "0", *o.pith_options.split()]
    else:
        program = [o.peer, *common, "-tb", str(o.threads), "--kv-unified", "--no-webui",
                   "--cache-ram", "0"]
    return (["taskset", "-c", o.cpu] if o.cpu else []) + program


def wait_for(port, child, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if child.poll() is not None:
            sys.exit(f"the server ended with status {child.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.05)
    sys.exit("the server did not start")


def prompts(clients, length, shared, seed):
    """Token ids of ordinary words; the same for both engines."""
    dice = random.Random(seed)
    prefix = [dice.randrange(300, 5000) for _ in range(shared)]
    return [prefix + [dice.randrange(300, 5000) for _ in range(length - shared)]
            for _ in range(clients)]


class Client(threading.Thread):
    """One streamed request: when each token came."""

    def __init__(self, port, ids, answer, start):
        super().__init__()
        self.body = json.dumps({"prompt": ids, "n_predict": answer, "ignore_eos": True,
                                "stream": True, "temperature": 0.0, "cache_prompt": True})
        self.port, self.start_at, self.times, self.cached, self.error = port, start, [], 0, None
        self.n_token = 0

    def run(self):
        try:
            self.ask()
        except (OSError, ValueError, KeyError) as error:
            self.error = error

    def ask(self):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        link.connect()
        link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.start_at.wait()
        self.sent = time.monotonic()
        link.request("POST", "/completion", self.body, {"Content-Type": "application/json"})
        answer = link.getresponse()
        if answer.status != 200:
            raise ValueError(answer.read().decode())
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            if event.get("stop"):
                self.cached = event["timings"].get("cache_n", 0)
                self.n_token = event["tokens_predicted"]
            else:
                self.times.append(time.monotonic())


def percentile(values, share):
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def pith_counters(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = re.sub(r'\{model_name="(?:[^"\\]|\\.)*",?', "{", answer.read().decode())
        lines = text.replace("{}", "").splitlines()
    return {name: float(value) for name, value in
            (line.split(" ") for line in lines if not line.startswith("#"))}


def cpu_seconds(pid):
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(engine, o, shape, seed):
    clients, length, shared = shape
    child = subprocess.Popen(command(engine, o, clients, length + o.answer),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(o.port, child)
        start = threading.Barrier(clients)
        threads = [Client(o.port, ids, o.answer, start)
                   for ids in prompts(clients, length, shared, seed)]
        warm = Client(o.port, [400, 500, 600], 4, threading.Barrier(1))
        warm.start()
        warm.join()
        before, counters = cpu_seconds(child.pid), {}
        if engine == "pith":
            counters = pith_counters(o.port)
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        spent = cpu_seconds(child.pid) - before
        after = pith_counters(o.port) if engine == "pith" else {}
    finally:
        child.terminate()
        child.wait()
    return summarize(o, threads, shape, spent, counters, after)


def summarize(o, threads, shape, spent, counters, after):
    for t in threads:
        if t.error is not None or t.n_token != o.answer:
            sys.exit(f"a request failed: {t.error or t.n_token}")
    wall = max(t.times[-1] for t in threads) - min(t.sent for t in threads)
    first = [t.times[0] - t.sent for t in threads]
    gaps = [b - a for t in threads for a, b in zip(t.times, t.times[1:])]
    delta = {k: after[k] - counters[k] for k in after}
    return {
        "clients": shape[0], "prompt": shape[1], "shared": shape[2], "answer": o.answer,
        "total_per_s": len(threads) * (shape[1] + o.answer) / wall,
        "ttft_median": statistics.median(first), "ttft_p95": percentile(first, 0.95),
        "gap_median": statistics.median(gaps), "gap_p95": percentile(gaps, 0.95), "wall_s": wall,
        "cached": sum(t.cached for t in threads), "load": os.getloadavg()[0],
        "steps": delta.get("pith_steps_total", 0),
        "step_s": delta.get("pith_step_seconds_total", 0), "server_cpu_s": spent,
    }


def table(rows):
    """Markdown: medians of each engine, and the median of the ratios inside a round."""
    shapes = sorted({(r["clients"], r["prompt"], r["shared"]) for r in rows},
                    key=lambda s: (s[2], s[1], s[0]))
    print("| clients | prompt | tokens/s | ratio | first token, s | ratio | between tokens, ms "
          "(95 %) | ratio |\n|---|---|---|---|---|---|---|---|")
    for shape in shapes:
        of = {e: {r["round"]: r for r in rows if r["engine"] == e and
                  (r["clients"], r["prompt"], r["shared"]) == shape} for e in ("pith", "peer")}
        both = sorted(of["pith"].keys() & of["peer"].keys())

        def mid(engine, field):
            values = [r[field] for r in of[engine].values()]
            return statistics.median(values) if values else float("nan")

        def ratio(field, up):
            values = [of["pith"][i][field] / of["peer"][i][field] for i in both]
            return statistics.median(v if up else 1 / v for v in values) if values else 0

        print(f"| {shape[0]} | {shape[1]}" + (f", {shape[2]} shared" if shape[2] else "") +
              f" | {mid('pith', 'total_per_s'):.1f} / {mid('peer', 'total_per_s'):.1f}"
              f" | {ratio('total_per_s', True):.2f}"
              f" | {mid('pith', 'ttft_median'):.2f} / {mid('peer', 'ttft_median'):.2f}"
              f" | {ratio('ttft_median', False):.2f}"
              f" | {mid('pith', 'gap_median') * 1e3:.0f} ({mid('pith', 'gap_p95') * 1e3:.0f})"
              f" / {mid('peer', 'gap_median') * 1e3:.0f} ({mid('peer', 'gap_p95') * 1e3:.0f})"
              f" | {ratio('gap_median', False):.2f} |")


def main():
    o = options()
    rows, engines = [], ["pith"] + (["peer"] if o.peer else [])
    new = not os.path.exists(o.csv)
    with open(o.csv, "a", encoding="utf-8", newline="") as f:
        out = csv.DictWriter(f, FIELDS)
        if new:
            out.writeheader()
        for i in range(o.rounds):
            for text in o.cells.split(","):
                for engine in engines if i % 2 == 0 else engines[::-1]:
                    row = {"round": i, "engine": engine,
                           **measure(engine, o, cell(text), seed=1000 * i + len(text))}
                    rows.append(row)
                    out.writerow({k: f"{v:.4g}" if isinstance(v, float) else v
                                  for k, v in row.items()})
                    f.flush()
    table(rows)


if __name__ == "__main__":
    main()
