#!/usr/bin/env python3
"""An agent in a small memory: a long system prompt, documents that it reads by calls of a tool, and
a report. Each document has one fact, and the report should name them all.

    scripts/docs/agent.py --model MODEL --stats STATS --text wiki.test.raw --out OUT RUN...

RUN is one of
  full    the full cache, with memory for the whole session
  small   the full cache in the small memory
  keep    --keep in the small memory
  recall  the same with --recall kv
  text    the same with --recall text
  shift   llama-server (--peer FILE) with --context-shift and the small memory

    scripts/docs/agent.py --picture docs/figures/agent.svg OUT/RUN.json ...

Each run starts a server of its own and plays the same session in one slot. It writes OUT/RUN.json:
turns, scores, and the bytes of KV memory over time. With --picture nothing runs: the bytes are
drawn against the tokens of the session. The standard library is enough."""
import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

CITIES = ["Lisbon", "Oslo", "Kyoto", "Quito", "Dublin", "Tunis", "Bergen", "Havana"]
ADJECTIVES = ["silver", "crimson", "wooden", "hollow", "golden", "quiet", "frozen", "purple"]
NOUNS = ["lantern", "harbor", "falcon", "anchor", "violin", "meadow", "compass", "teapot"]
INTRO = ("You are an agent in an office. You read documents with tools and then write a report. "
         "Each document has one password in it, which the report must name. "
         "The handbook of the office follows.\n\n")
CALL_TOKENS, REPORT_TOKENS = 64, 256
EVERY_S = 0.5  # between looks at the memory
PATIENCE_S = 6 * 3600


class Refused(Exception):
    """An answer with another code than 200: its sentence."""


# ---- the server ----

class Server:
    """A server of its own, and a thread that notes its KV memory."""

    def __init__(self, command, log):
        self.port = free_port()
        self.log = open(log, "w", encoding="utf-8")
        self.process = subprocess.Popen([*command, "--port", str(self.port)], stdout=self.log,
                                        stderr=subprocess.STDOUT)
        self.start, self.samples, self.over = time.monotonic(), [], threading.Event()
        self.wait()
        self.start = time.monotonic()
        self.looker = threading.Thread(target=self.look)
        self.looker.start()

    def wait(self):
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"agent.py: the server did not start; see {self.log.name}")
            try:
                self.ask("GET", "/health")
                return
            except (OSError, Refused):
                time.sleep(0.2)

    def now(self):
        return round(time.monotonic() - self.start, 2)

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        c.request(method, path, body=None if body is None else json.dumps(body),
                  headers={"Content-Type": "application/json"})
        answer = c.getresponse()
        data = answer.read()
        c.close()
        if answer.status != 200:
            raise Refused(f"{answer.status}: {sentence_of(data)}")
        return data

    def post(self, path, body):
        return json.loads(self.ask("POST", path, body))

    def used(self):
        """Bytes of pages in use, None: this server does not say."""
        found = re.search(r"^pith_kv_used_bytes\{.*\} (\S+)$", self.ask("GET", "/metrics").decode(), re.M)
        return int(float(found.group(1))) if found else None

    def look(self):
        while not self.over.is_set():
            try:
                used = self.used()
            except (OSError, Refused, http.client.HTTPException):
                return
            if used is None:
                return
            if not self.samples or self.samples[-1][1] != used:
                self.samples.append((self.now(), used))
            self.over.wait(EVERY_S)

    def end(self):
        if self.samples:
            self.samples.append((self.now(), self.samples[-1][1]))
        self.over.set()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.looker.join()
        self.log.close()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def sentence_of(data):
    try:
        return json.loads(data)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return data.decode(errors="replace").strip()


# ---- texts ----

def count(server, text):
    return len(server.post("/tokenize", {"content": text})["tokens"])


def read_lines(path):
    with open(path, encoding="utf-8") as f:
        return [line.strip() for line in f if len(line.strip()) > 80]


def take(server, lines, n_token):
    """Takes lines from the list until they are about n_token tokens, the last one cut."""
    text = []
    while n_token > 0:
        line = lines.pop(0)
        n = count(server, line + "\n")
        text.append(line if n <= n_token else line[:len(line) * n_token // n])
        n_token -= n
    return "\n".join(text)


def fact_of(i):
    """(question's place, the fact's word) of document i."""
    return CITIES[i], f"{ADJECTIVES[i]} {NOUNS[i]}"


def make_texts(server, o):
    lines = read_lines(o.text)
    system = INTRO + take(server, lines, o.system_tokens - count(server, INTRO))
    documents = []
    for i in range(o.documents):
        city, word = fact_of(i)
        half = (o.document_tokens - 12) // 2
        documents.append(f"Document {i + 1}.\n{take(server, lines, half)}\n"
                         f"The password of the archive in {city} is {word}.\n"
                         f"{take(server, lines, half)}")
    return system, documents


# ---- the session ----

def tool(name, description, **properties):
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object", "additionalProperties": False,
                       "required": list(properties), "properties": properties}}}


def tools_of(o):
    numbers = list(range(1, o.documents + 1))
    return [tool("read_document", "Returns the text of a document.",
                 number={"type": "integer", "enum": numbers}),
            tool("write_report", "Writes the whole report.", text={"type": "string"}),
            tool("write_section", "Writes the section of the report about an archive.",
                 archive={"type": "string"}, password={"type": "string"})]


class Session:
    """The conversation so far, and what each turn cost. Every turn is a call of a tool."""

    def __init__(self, server, o, system):
        self.server, self.turns, self.tools = server, [], tools_of(o)
        self.messages = [{"role": "system", "content": system}]

    def say(self, text):
        self.messages.append({"role": "user", "content": text})

    def call(self, what, name, n):
        """Has the model call a tool; its arguments, as text. The conversation then has the call."""
        begun = self.server.now()
        print(f"{begun:8.1f} s  {what}", end="", flush=True)
        answer = self.server.post("/v1/chat/completions", {
            "messages": self.messages, "tools": self.tools, "parallel_tool_calls": False,
            "tool_choice": {"type": "function", "function": {"name": name}},
            "id_slot": 0, "cache_prompt": True, "max_tokens": n, "temperature": 0, "seed": 1})
        usage, message = answer["usage"], answer["choices"][0]["message"]
        self.messages.append({"role": "assistant", "content": message.get("content") or "",
                              "tool_calls": message["tool_calls"]})
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        arguments = message["tool_calls"][0]["function"]["arguments"]
        self.turns.append({"what": what, "begun_s": begun, "ended_s": self.server.now(),
                           "prompt_tokens": usage["prompt_tokens"], "cached_tokens": cached,
                           "completion_tokens": usage["completion_tokens"],
                           "pith": usage.get("pith"), "arguments": arguments,
                           "finish": answer["choices"][0]["finish_reason"]})
        print(f": {usage['prompt_tokens']} tokens, {cached} of them cached; {arguments[:160]}; "
              f"{json.dumps(usage.get('pith'))}", flush=True)
        return arguments

    def result(self, text):
        """What the tool of the last call returned."""
        self.messages.append({"role": "tool", "content": text,
                              "tool_call_id": self.messages[-1]["tool_calls"][0]["id"]})


def number_of(arguments):
    try:
        return json.loads(arguments).get("number")
    except ValueError:  # cut off
        return None


def play(server, o, result):
    """The whole session. What is known of it is in result at any time."""
    system, documents = make_texts(server, o)
    facts = [fact_of(i) for i in range(o.documents)]
    session = Session(server, o, system)
    result.update(turns=session.turns, right_calls=0, in_report=[], in_sections=[])
    session.say(f"Read the documents 1 to {o.documents} in this order, one with each call, then "
                "write the report.")
    for i, document in enumerate(documents):
        arguments = session.call(f"read {i + 1}", "read_document", CALL_TOKENS)
        result["right_calls"] += number_of(arguments) == i + 1
        session.result(document)
    session.say("Write the report: one line for each document, with its archive and the password.")
    report = session.call("report", "write_report", REPORT_TOKENS)
    session.result("written")
    result["in_report"] = [word in report for _, word in facts]
    for i, (city, word) in enumerate(facts):
        session.say("Write the section of the report about one archive. What is the password of "
                    f"the archive in {city}?")
        section = session.call(f"section {i + 1}", "write_section", CALL_TOKENS)
        session.result("written")
        result["in_sections"].append(word in section)
    result["ended"] = True


# ---- runs ----

def small_tokens(o):
    """The system prompt and half of the following text."""
    return o.memory_tokens or o.system_tokens + o.documents * (o.document_tokens + 60) // 2 + 256


def whole_tokens(o):
    return o.system_tokens + o.documents * (o.document_tokens + 160) + 2048


def command_of(run, o):
    small = str(small_tokens(o))
    if run == "shift":
        return [o.peer, "-m", o.model, "-c", small, "-np", "1", "--context-shift", "--jinja",
                "--metrics", "-t", str(o.threads), "--host", "127.0.0.1"]
    command = [o.pith, "serve", "-m", o.model, "-t", str(o.threads)]
    command += ["-c", str(whole_tokens(o)) if run == "full" else small]
    if run in ("keep", "recall", "text"):
        command += ["--keep", o.keep]
    if run in ("recall", "text"):
        command += ["--recall", o.recall if run == "recall" else "text"]
    return command


def perform(run, o):
    command = command_of(run, o)
    words = [os.path.basename(word) if word.startswith("/") else word for word in command]
    result = {"run": run, "command": " ".join(words), "ended": False,
              "system_tokens": o.system_tokens, "document_tokens": o.document_tokens,
              "documents": o.documents, "memory_tokens": small_tokens(o),
              "model": os.path.basename(o.model)}
    print(f"{run}: {result['command']}", flush=True)
    server = Server(command, os.path.join(o.out, run + ".log"))
    try:
        play(server, o, result)
    except Refused as e:
        result["refused"] = str(e)
        print(f"\n  refused with {e}", flush=True)
    finally:
        server.end()
        result["samples"] = server.samples
        with open(os.path.join(o.out, run + ".json"), "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
    print(f"{run}: report {sum(result.get('in_report', []))}, sections "
          f"{sum(result.get('in_sections', []))} of {o.documents}; "
          f"peak {max([s[1] for s in server.samples], default=0)} bytes", flush=True)


# ---- the picture ----

COLOURS = ["#888888", "#d1495b", "#00798c", "#edae49", "#7d5ba6"]
WIDTH, HEIGHT, LEFT, TOP = 640, 300, 60, 40  # of the plot, and its corner


def line_of(result):
    """[(tokens of the session, MiB in use)] at the end of each turn."""
    points, samples = [(0, 0.0)], result["samples"]
    for turn in result["turns"]:
        used = [s[1] for s in samples if s[0] <= turn["ended_s"]]
        points.append((turn["prompt_tokens"], (used[-1] if used else 0) / 2**20))
    return points


def draw(paths, picture):
    runs = [json.load(open(path, encoding="utf-8")) for path in paths]
    lines = [line_of(r) for r in runs]
    most_x = 5000 * -(-max(p[0] for line in lines for p in line) // 5000)
    most_y = 100 * -(-max(p[1] for line in lines for p in line) // 100)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 120} {HEIGHT + 100}" '
           'font-family="sans-serif" font-size="13">',
           f'<rect width="{WIDTH + 120}" height="{HEIGHT + 100}" fill="white"/>',
           f'<text x="{LEFT}" y="22">KV memory, MiB, against tokens of the session</text>']
    for y in range(0, int(most_y) + 1, 100):
        at = TOP + HEIGHT * (1 - y / most_y)
        out.append(f'<path d="M{LEFT} {at:.1f}h{WIDTH}" stroke="#dddddd"/>'
                   f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{y}</text>')
    for x in range(0, most_x + 1, 5000):
        out.append(f'<text x="{LEFT + WIDTH * x / most_x:.1f}" y="{TOP + HEIGHT + 20}" '
                   f'text-anchor="middle">{x}</text>')
    for i, (result, line) in enumerate(zip(runs, lines)):
        path = "L".join(f"{LEFT + WIDTH * x / most_x:.1f} {TOP + HEIGHT * (1 - y / most_y):.1f}"
                        for x, y in line)
        end = "" if result["ended"] else " (refused)"
        out.append(f'<path d="M{path}" fill="none" stroke="{COLOURS[i]}" stroke-width="2"/>'
                   f'<text x="{LEFT + 10 + 130 * i}" y="{TOP + HEIGHT + 45}" fill="{COLOURS[i]}">'
                   f'{result["run"]}{end}</text>')
    with open(picture, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n</svg>\n")


def options():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("runs", nargs="*", metavar="RUN")
    p.add_argument("--picture", help="draws the files of runs that ended")
    p.add_argument("--model")
    p.add_argument("--text", help="a file of plain text")
    p.add_argument("--out", default=".")
    p.add_argument("--pith", default="build/cli/pith")
    p.add_argument("--peer", default="llama-server")
    p.add_argument("--keep", default="streaming:budget=1024,sinks=4,pin-prompt=on")
    p.add_argument("--recall", default="kv")
    p.add_argument("--system-tokens", type=int, default=15000)
    p.add_argument("--document-tokens", type=int, default=1500)
    p.add_argument("--documents", type=int, default=6)
    p.add_argument("--memory-tokens", type=int, help="the small memory; half of the session")
    p.add_argument("--threads", type=int, default=2)
    return p.parse_args()


def main():
    o = options()
    if o.picture:
        draw(o.runs, o.picture)
        return
    if not o.model or not o.text:
        raise SystemExit("agent.py: --model and --text are needed")
    os.makedirs(o.out, exist_ok=True)
    for run in o.runs:
        if run not in ("full", "small", "keep", "recall", "text", "shift"):
            raise SystemExit(f'agent.py: there is no run "{run}"')
        perform(run, o)


if __name__ == "__main__":
    main()
