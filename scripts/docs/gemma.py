#!/usr/bin/env python3
"""Compares Gemma 3 270M in Pith and in llama.cpp: tokens, greedy texts, perplexity, memory, speed.

    scripts/docs/gemma.py LLAMA_CPP_DIR MODEL DATA [--pith build/cli/pith] [--part PART] [-n N]

MODEL is gemma-3-270m-q4_k_m.gguf. LLAMA_CPP_DIR holds a build with llama-server, llama-perplexity
and llama-bench in build/bin; DATA has text/wiki.test.raw. Both sides read the same weights. Texts
and perplexities are measured with the weights decoded to F32 (`pith quantize`). With --as-is they
are measured with the file itself, where each side rounds activations in its own way. PART is
tokens, text, perplexity or speed; all without it. Standard library only.
"""
import argparse
import json
import os
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a king who",
    "def factorial(n):\n",
    "Water boils at a temperature of",
    "The three primary colours are",
    "1, 2, 3, 4, 5, 6, 7, 8,",
    "To make a cup of tea, first",
    "The planets of the solar system are",
    "Dear Sir or Madam,\n\nI am writing to",
    "In the year 1969 the first man",
    "Die Hauptstadt von Deutschland ist",
    "El perro y el gato",
    "import numpy as np\n\ndef softmax(x):\n",
    "The quick brown fox",
    "Photosynthesis is the process by which",
    "Once the rain had stopped, the children",
    "#include <stdio.h>\n\nint main(void)\n{\n",
    "La tour Eiffel se trouve",
    "Shakespeare was born in",
    "The recipe calls for two eggs, a cup of flour and",
]
# Runs of spaces and newlines, scripts without spaces, bytes that no token has, marks that look
# special.
TEXTS = PROMPTS + [
    "", " ", "\n", "   three   spaces   ", "tab\tand\n\n\n\nnewlines\r\n", "日本語のテキスト。",
    "Привет, мир! Ünïcödé ẞ", "emoji 🙂👩‍👩‍👧 and \u200b zero width", "𐍈 old gothic", "<bos><eos>",
    "<start_of_turn>user\nHi<end_of_turn>\n", "a\u0301 combining", "x" * 300,
    "for (int i = 0; i < n; i++) { a[i] += b[i] * 0x1F; }", "١٢٣ ๔๕ 123456789", "\u2581 meta",
]
WIKI_TOKENS = 40000  # bytes of WikiText whose tokens are compared


def output(command):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT).stdout


class Server:
    """A server of llama-server's API, until the end of a with block."""

    def __init__(self, command, port):
        self.command, self.url = command + ["--port", str(port)], f"http://127.0.0.1:{port}"

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5)
                return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise SystemExit(f"{self.command[0]} does not answer")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def ask(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)

    def tokens(self, text):
        return self.ask("/tokenize", {"content": text, "add_special": True,
                                      "parse_special": True})["tokens"]

    def greedy(self, ids, n):
        """n ids, and by how much each was ahead of the second choice, in natural logarithms."""
        reply = self.ask("/completion", {"prompt": ids, "n_predict": n, "temperature": 0,
                                         "ignore_eos": True, "n_probs": 2, "return_tokens": True,
                                         "cache_prompt": False, "samplers": ["top_k"], "top_k": 1})
        steps = reply["completion_probabilities"]
        tops = [step.get("top_logprobs") or step["top_probs"] for step in steps]
        return [step["id"] for step in steps], [t[0]["logprob"] - t[1]["logprob"] for t in tops]


def servers(args, model):
    theirs = Server([os.path.join(args.llama_cpp, "build/bin/llama-server"), "-m", model, "-t", "1",
                     "-c", "4096", "-np", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32",
                     "--no-webui"], 18731)
    ours = Server([args.pith, "serve", "-m", model, "-t", "1", "-ctk", "f32", "-ctv", "f32",
                   "--kv-memory", "512MiB"], 18732)
    return theirs, ours


def compare_tokens(args):
    theirs, ours = servers(args, args.model)
    with open(os.path.join(args.data, "text/wiki.test.raw"), encoding="utf-8") as file:
        texts = TEXTS + [file.read(WIKI_TOKENS)]
    with theirs, ours:
        rows = [(text, theirs.tokens(text), ours.tokens(text)) for text in texts]
    n = sum(len(row[1]) for row in rows)
    bad = [row for row in rows if row[1] != row[2]]
    print(f"tokens: {len(rows) - len(bad)} of {len(rows)} texts alike, {n} tokens")
    for text, a, b in bad:
        print(f"  {text[:40]!r}: {a[:12]} in llama.cpp, {b[:12]} here")


def compare_texts(args, model):
    theirs, ours = servers(args, model)
    n_same = 0
    with theirs, ours:
        for prompt in PROMPTS:
            ids = theirs.tokens(prompt)
            want, gap = theirs.greedy(ids, args.n)
            got, _ = ours.greedy(ids, args.n)
            at = next((i for i in range(args.n) if got[i] != want[i]), None)
            n_same += at is None
            if at is not None:
                print(f"  {prompt[:30]!r} differs at token {at}, where llama.cpp's first choice "
                      f"is ahead by {gap[at]:.4f}")
    print(f"text: {n_same} of {len(PROMPTS)} alike, {args.n} tokens each")


def compare_perplexity(args, model):
    text = os.path.join(args.data, "text/wiki.test.raw")
    for n_ctx in args.contexts:
        n_chunk = max(1, args.chunks // (n_ctx // 1024)) if n_ctx > 1024 else args.chunks
        common = ["-f", text, "-c", str(n_ctx), "-b", "512", "--chunks", str(n_chunk), "-t", "1",
                  "-ctk", "f32", "-ctv", "f32"]
        told = output([os.path.join(args.llama_cpp, "build/bin/llama-perplexity"), "-m", model,
                       "-fa", "off"] + common)
        theirs = re.search(r"Final estimate: PPL = ([0-9.]+)", told)
        ours = json.loads(subprocess.run([args.pith, "eval", "perplexity", "-m", model, "--json",
                                          "-"] + common, check=True, text=True,
                                         stdout=subprocess.PIPE).stdout)
        print(f"perplexity at {n_ctx}, {n_chunk} chunks: llama.cpp "
              f"{theirs.group(1) if theirs else told[-300:]}, Pith {find_perplexity(ours)}",
              flush=True)


def find_perplexity(result):
    """The number of that name, wherever it stands."""
    if isinstance(result, dict):
        for key, value in result.items():
            if key in ("perplexity", "ppl") and isinstance(value, (int, float)):
                return value
        result = list(result.values())
    if isinstance(result, list):
        for item in result:
            found = find_perplexity(item)
            if found is not None:
                return found
    return None


def compare_speed(args):
    depth = str(args.depth)
    print(output([args.pith, "bench", "-m", args.model, "-t", "1", "-p", "512", "-n", "32", "-d",
                  depth, "-r", "1"]))
    print(output([os.path.join(args.llama_cpp, "build/bin/llama-bench"), "-m", args.model, "-t",
                  "1", "-p", "512", "-n", "32", "-d", depth, "-r", "1", "-fa", "1"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp")
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--pith", default=os.path.join(ROOT, "build", "cli", "pith"))
    parser.add_argument("--part", choices=["tokens", "text", "perplexity", "speed"])
    parser.add_argument("--as-is", action="store_true", help="the file's own weight types")
    parser.add_argument("--chunks", type=int, default=8, help="of 512 tokens; of longer ones fewer")
    parser.add_argument("--contexts", type=lambda text: [int(n) for n in text.split(",")],
                        default=[512, 4096], help="16384 takes llama.cpp 9 GB for its logits")
    parser.add_argument("--depth", type=int, default=16384)
    parser.add_argument("-n", type=int, default=48)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model
        if not args.as_is and args.part in (None, "text", "perplexity"):
            model = os.path.join(folder, "f32.gguf")
            output([args.pith, "quantize", args.model, model, "F32"])
        if args.part in (None, "tokens"):
            compare_tokens(args)
        if args.part in (None, "text"):
            compare_texts(args, model)
        if args.part in (None, "perplexity"):
            compare_perplexity(args, model)
        if args.part in (None, "speed"):
            compare_speed(args)


if __name__ == "__main__":
    main()
