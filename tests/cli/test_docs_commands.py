#!/usr/bin/env python3
"""Runs every `pith` command that README.md, CONTRIBUTING.md, docs/ and models/README.md show.

usage: test_docs_commands.py PITH SOURCE [WORD]

Lines of code blocks that call pith are run in a folder of their own. Files that they name are there
under the same names: models are pith-nano (with a chat template, unless they are named as the one
of the repository), texts are short, and statistics are made of them first. What a page leaves to
the reader (MODEL, FILE) stands in WORDS. Each command gets bounds behind its own options, so that a
benchmark of hours takes a moment. With WORD only lines that have it are run. Standard library only.
"""
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 60  # of one command, on a busy machine

# What stands for something of the reader's.
WORDS = {"MODEL": "model.gguf", "$MODEL": "model.gguf", "M": "model.gguf", "GEMMA": "model.gguf",
         "CODER-0.5B": "model.gguf", "FILE": "text.txt", "PROMPT": "prompt.txt", "TYPE": "turbo3",
         "$n.tokens": "mix.tokens", "$n-answers.ranges": "mix-answers.ranges",
         "$n-answers.stats": "mix-answers.stats", "texts": "text.txt"}

# Later options count: these make a command short. A text has some 400 tokens.
SMALL = {
    "run": ["-n", "4", "-t", "1"],
    "chat": ["-n", "4", "-t", "1", "--history", ""],
    "batch": ["-n", "4", "-t", "1"],
    "demo": ["-t", "1"],
    "bench": ["-p", "16", "-n", "2", "-d", "0", "-r", "1", "-t", "1", "-c", "1024"],
    "tokenize": [], "info": [], "quantize": [], "policies": [], "devices": [], "help": [], "completion": [],
    "logits": ["-t", "1"], "--version": [],
    "plan": ["-t", "1"], "calibrate model.gguf": ["-t", "1"], "calibrate queries": ["-t", "1"], "calibrate importance": ["-t", "1"],
    "calibrate loki": ["-t", "1"], "calibrate share": ["-t", "1"], "calibrate inspect": ["-t", "1"],
    "serve": ["--port", "0", "-t", "1", "--host", "127.0.0.1"],
    "eval perplexity": ["-c", "128", "--chunks", "1", "-t", "1"],
    "eval divergence": ["-c", "128", "--chunks", "1", "-t", "1"],
    "eval stack": ["-c", "128", "--chunks", "1", "-t", "1"],
    "eval needle": ["-n", "256", "-d", "50", "--repeat", "1", "--predict", "4", "--needles", "1",
                    "-t", "1"],
    "eval ruler": ["-n", "1000", "--samples", "1", "-t", "1"],
    "eval recursion": ["--min-steps", "2", "--max-steps", "2", "--samples", "1", "--predict", "4",
                       "-t", "1"],
    "eval longbench": ["--items", "1", "-n", "100", "--predict", "4", "--parallel", "1", "-t", "1"],
    "eval derivation": ["-n", "4", "--samples", "1", "--predict", "4", "-t", "1"],
    "eval questions": ["--questions", "1", "--draws", "2", "--parallel", "2", "--predict", "4",
                       "-t", "1"],
    "eval facts": ["--texts", "1", "--predict", "4", "-n", "600", "-t", "1"],
    "eval share": ["--requests", "2", "-n", "4", "--examples", "0", "--predict", "4",
                   "--repeats", "1", "-t", "1"],
    "eval kept": ["-n", "128", "-t", "1"],
    "eval replay": ["--at", "64", "--queries", "16"],
    "eval report": [], "eval sweep": ["-t", "1"],
}

# Not run as they stand, and what is done instead.
INSTEAD = {
    "eval sweep examples/sweep-": "minutes to hours: the file is read, then its model is not there",
}

# Not run at all: words of a command that asks a hub, or that wants what a hub has given.
HUB = {"pull", "models", "-hf", "smollm2"}


def commands_of(page):
    """(line number, command line) of each call of pith in the page's code blocks."""
    found, fenced, number = [], False, 0
    lines = page.read_text().split("\n")
    while number < len(lines):
        line, first = lines[number], number + 1
        number += 1
        if line.strip().startswith("```"):
            fenced = not fenced
            continue
        if not fenced and not line.startswith("    "):
            continue
        while line.endswith("\\") and number < len(lines):
            line = line[:-1] + " " + lines[number].strip()
            number += 1
        at = re.match(r"\s*(?:\$ )?((?:[A-Z_]+=\S+ )*)(?:build/cli/)?pith ([a-z-].*)", line)
        if at:
            found.append((first, (at.group(1) + at.group(2)).strip()))
    return found


def words_of(text):
    """The environment and the words of a command line, up to its comment, pipe or end."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|;&><")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words, environment = [], {}
    for word in lexer:
        if word[0] in "|;&><" or word == "#":
            break
        if not words and re.fullmatch(r"[A-Z_]+=.*", word):
            name, value = word.split("=", 1)
            environment[name] = value
            continue
        words.append(word)
    return environment, words


def with_template(model, path):
    """A copy of the model with a chat template; what is put in takes a multiple of 32 bytes."""
    data = model.read_bytes()
    key, text = b"tokenizer.chat_template", (
        b"{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}")
    text += b" " * (-(8 + len(key) + 4 + 8 + len(text)) % 32)
    n_kv, = struct.unpack_from("<Q", data, 16)
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(text)) + text
    path.write_bytes(data[:16] + struct.pack("<Q", n_kv + 1) + entry + data[24:])


class Folder:
    """Where commands run: the files that they name, made before or when one first names them."""

    def __init__(self, pith, source, path):
        self.pith, self.source, self.path = pith, source, path
        demo = (source / "models/demo/prompt-2k.txt").read_text()
        self.text = demo[:1600]
        (path / "models").symlink_to(source / "models")
        shutil.copytree(source / "examples", path / "examples")
        (path / "examples/heldout.txt").write_text(self.text)
        (path / "docs").symlink_to(source / "docs")
        with_template(source / "models/pith-nano.gguf", path / "model.gguf")
        self.make("text.txt")
        n = ["-m", "model.gguf", "-f", "text.txt", "-t", "1", "-q"]
        self.call("calibrate", "importance", *n, "-c", "128", "--pieces", "2", "--keep",
                  "triattention:global", "-o", "model.stats")
        shutil.copy(path / "model.stats", path / "first")  # commands may write over model.stats
        self.call("calibrate", "loki", *n, "-o", "model.loki")
        self.call("run", "-m", "model.gguf", "-f", "text.txt", "-n", "0", "-q", "-t", "1", "--record",
                  "run.safetensors")

    def call(self, *words):
        done = subprocess.run([self.pith, *words], cwd=self.path, capture_output=True, text=True,
                              timeout=LIMIT_S)
        if done.returncode:
            sys.exit(f"pith {shlex.join(words)}: {done.stderr}")
        return done.stdout

    def make(self, name):
        """What a file of this name has in the pages."""
        path = self.path / name
        if path.exists() or path.is_symlink():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".gguf"):
            shutil.copy(self.path / "model.gguf", path)
        elif name.endswith(".stats"):
            shutil.copy(self.path / "first", path)
        elif name.endswith(".tokens"):
            ids = json.loads(self.call("tokenize", "-m", "model.gguf", "-f", "text.txt", "--json"))
            path.write_text(" ".join(map(str, ids)))
        elif name.endswith(".ranges"):
            path.write_text("8 64\n100 128\n")
        elif name == "requests.jsonl":
            path.write_text("".join(json.dumps({
                "custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
                "body": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}})
                + "\n" for i in range(2)))
        elif name == "keys.txt":
            path.write_text("a-key\n")
        elif name == "city.json":
            path.write_text('{"enum": ["Hamburg", "Bremen"]}')
        elif name == "kept.json":
            self.call("eval", "kept", "-m", "model.gguf", "-f", "text.txt", "-n", "128", "-t", "1",
                      "--keep", "streaming:budget=64", "--json", name)
        elif name in ("nano.jsonl", "mini.jsonl", "rules.jsonl"):
            sweep = {"model": "model.gguf", "policies": ["full"], "tasks": [{
                "task": "needle", "style": "pith", "lengths": [128], "depths": [0.5],
                "repeats": 1, "predict": 2}]}
            (self.path / "sweep.json").write_text(json.dumps(sweep))
            self.call("eval", "sweep", "sweep.json", "-o", name, "-t", "1")
        elif name == "dfs_state_query_detail.json":
            path.write_text(json.dumps([{
                "graph": {"nodes": [3, 0, 1, 2], "edges": [[0, 2], [0, 1], [1, 3]]},
                "start_node": 0, "steps": 2,
                "answer": {"current_node": 1, "stack": [0, 1], "visited_nodes": [0, 1]}}]))
        elif name == "items.jsonl" or name.startswith("facts-"):
            path.write_text(json.dumps({
                "context": self.text[:600],
                "questions": [{"ask": " The password of", "answer": " Maria"}]}) + "\n")
        elif name == "multi_news.jsonl":
            line = {"context": "The friend of Anton is Emma.", "input": "", "answers": ["Emma"]}
            path.write_text(json.dumps(line) + "\n")
        elif name.endswith(("math500.jsonl", "questions.jsonl")):
            path.write_text(json.dumps({"problem": "What is 1+1?", "answer": "2"}) + "\n")
        elif name.endswith((".txt", ".raw", ".md")):
            path.write_text(self.text)
        elif name in ("k.pem", "c.pem"):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                            "-subj", "/CN=localhost", "-keyout", "k.pem", "-out", "c.pem"],
                           cwd=self.path, check=True, capture_output=True)


def prepare(folder, words):
    """The words as they are run: the reader's things in place, and their files made."""
    words = [WORDS.get(word, word) for word in words]
    makes = {"-o", "--output", "--map", "--record", "--json", "--csv", "--loki"}
    for i, word in enumerate(words):
        before = words[i - 1] if i else ""
        if word == "models/pith-mini.gguf":
            words[i] = word = "models/pith-nano.gguf"
        if before in makes or word.startswith("--cache-weights"):
            continue
        for name in re.findall(r"[\w.@/-]+\.(?:gguf|txt|raw|md|jsonl|json|stats|loki|tokens|ranges|pem)\b",
                               word):
            folder.make(name.lstrip("@"))
    return words


def serve(folder, environment, words):
    """Starts a server, waits until it listens, and ends it."""
    with subprocess.Popen([folder.pith, *words], cwd=folder.path, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        said = server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=LIMIT_S)
    return server.returncode if "listening on" in said else 1, said + out + err


def run(folder, text):
    """None where the command did what it should, else what it said."""
    more, words = words_of(text)
    verb = " ".join(words[:2]) if words[0] in ("eval", "calibrate") else words[0]
    if verb not in SMALL:
        return f"test_docs_commands.py has no bounds for \"{verb}\""
    words = prepare(folder, words)
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("PITH_", "LLAMA_"))} | more
    environment["XDG_CACHE_HOME"] = str(folder.path)  # calibrations are kept there
    wanted = 0, ""
    if any(text.startswith(begin) for begin in INSTEAD):
        words, wanted = words + ["-m", "/no/model.gguf"], (1, "/no/model.gguf")
    elif "--help" not in words and len(words) > 1 or words[0] in ("serve", "demo"):
        words = words + SMALL[verb]
    for i, word in enumerate(words[1:], 1):  # each command writes its output anew
        if words[i - 1] in ("-o", "--output") and (folder.path / word).is_file():
            (folder.path / word).unlink()
    words = [word.replace("/var/cache/pith", str(folder.path)) for word in words]
    words = ["cpu" if word == "cuda:0" else word for word in words]  # there may be no GPU
    if verb == "serve":
        status, said = serve(folder, environment, words)
    else:
        done = subprocess.run([folder.pith, *words], cwd=folder.path, env=environment, text=True,
                              input="Hello\n", capture_output=True, timeout=LIMIT_S)
        status, said = done.returncode, done.stderr
    if status == wanted[0] and wanted[1] in said:
        return None
    return f"status {status}: {said.strip()[-600:]}\n  ran: pith {shlex.join(words)}"


def unlisted(source):
    """Spellings of cli/llama.c that docs/from-llama.cpp.md does not have."""
    page = set((source / "docs/from-llama.cpp.md").read_text().split())
    table = (source / "cli/llama.c").read_text().split("llama_option_table[] = {")[1]
    quoted = re.findall(r'"(--?[a-z][^"]*)"', re.sub(r'\.help = *(\s*"(\\.|[^"\\])*")+', "", table))
    return sorted({name for text in quoted for name in text.split()} - page)


def main():
    pith, source = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2]).resolve()
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    pages = [source / "README.md", source / "CONTRIBUTING.md", source / "models/README.md",
             *sorted((source / "docs").rglob("*.md"))]
    n_run, bad, slow = 0, 0, []
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(pith, source, Path(path))
        for page in pages:
            for number, text in commands_of(page):
                if only not in text:
                    continue
                if HUB & set(text.split()):
                    print(f"skipped, it asks a hub, which tests/cli/test_pull.py plays: pith {text}")
                    continue
                if "k.pem" in text and shutil.which("openssl") is None:
                    print(f"skipped, there is no openssl to make a key: pith {text}")
                    continue
                start = time.monotonic()
                try:
                    wrong = run(folder, text)
                except subprocess.TimeoutExpired:
                    wrong = f"takes more than {LIMIT_S} s"
                slow.append((time.monotonic() - start, text))
                n_run += 1
                if wrong is not None:
                    bad += 1
                    print(f"{page.relative_to(source)}:{number}: pith {text}\n  {wrong}")
    missing = unlisted(source)
    for name in missing:
        print(f"docs/from-llama.cpp.md: {name} of cli/llama.c is not there")
    for begin, reason in INSTEAD.items():
        print(f"not run as it stands: pith {begin}*: {reason}")
    for seconds, text in sorted(slow)[-3:]:
        print(f"{seconds:.1f} s: pith {text[:80]}")
    print(f"{n_run - bad} passed, {bad} failed")
    return 1 if bad or missing or (n_run < 100 and not only) else 0


if __name__ == "__main__":
    sys.exit(main())
