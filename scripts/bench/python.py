#!/usr/bin/env python3
"""python.py MODEL.gguf TEXT PITH [--threads N] [--repeats N] [--tokens N] - what Python costs over
C.

Medians of some repeats, by turns, with pithkv and the command PITH of the same commit:

    import      milliseconds of processor time that `import pithkv` takes over an empty program
    generate    tokens/s behind 128 tokens: pulled one by one in Python, and `pith run`
    choices     seconds for 8 questions of 4 endings behind 200 tokens: side by side on forks, and
                each read anew
    policy      seconds to read N tokens (2,048) under knorm at 25 % and slack=128: Pith's own, and
                the same in a line of numpy, with the rounds that either had

Run it where nothing else computes.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import numpy as np

import pithkv
from python_rig import choices_on_forks, questions_of, read_ids, seconds


def processor_ms(program: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", program], check=True)
    after = os.times()
    return 1000 * (after.children_user - before.children_user + after.children_system - before.children_system)


def pulled(engine, ids, n: int) -> float:
    """Tokens per second behind the prompt, without their log probabilities."""
    with engine.sequence() as seq:
        generation = seq.generate(ids[:128], n, temperature=0.0, ignore_end=True)
        generation.next_token(logprob=False)
        return (n - 1) / seconds(lambda: [generation.next_token(logprob=False) for _ in range(n - 1)])


def command(pith: str, model: str, threads: int, text: str, n: int) -> float:
    err = subprocess.run([pith, "run", "-m", model, "-t", str(threads), "-n", str(n), "--temp", "0", "--ignore-eos",
                          "--draft", "none", "--json", "-p", text], check=True, capture_output=True, text=True).stderr
    found = json.loads(err.splitlines()[-1])
    return found["generated_tokens"] / found["generate_s"]


def choices_anew(engine, questions) -> None:
    for context, ends in questions:
        for end in ends:
            with engine.sequence() as one:
                one.eval(context)
                one.eval(end[:-1], targets=end[1:])


def knorm(lane):
    return -np.sqrt((lane.keys * lane.keys).sum(axis=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("pith")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2048)
    o = parser.parse_args()
    model = pithkv.Model(o.model, n_thread=o.threads)
    ids = read_ids(o.text, model)
    text = model.detokenize(ids[:128])
    questions = questions_of(ids, 8)
    plain = pithkv.Engine(model, n_thread=o.threads, kv_tokens=8192)
    rules = dict(budget=0.25, slack=128)
    kept = {"C": pithkv.Keep("knorm", **rules), "Python": pithkv.Keep(knorm, **rules)}
    engines = {side: pithkv.Engine(model, n_thread=o.threads, kv_tokens=4096, keep=keep) for side, keep in kept.items()}
    found: dict[str, list[float]] = {}
    rounds = {}
    for _ in range(o.repeats):
        def add(name: str, value: float) -> None:
            found.setdefault(name, []).append(value)

        add("import, ms of processor time", processor_ms("import pithkv") - processor_ms("pass"))
        add("generate, pulled in Python, tokens/s", pulled(plain, ids, 64))
        add("generate, pith run, tokens/s", command(o.pith, o.model, o.threads, text, 64))
        add("choices, of forks, s", seconds(lambda: choices_on_forks(plain, questions)))
        add("choices, each read anew, s", seconds(lambda: choices_anew(plain, questions)))
        for side, engine in engines.items():
            with engine.sequence() as seq:
                add(f"policy in {side}, s", seconds(lambda: seq.eval(ids[:o.tokens])))
                rounds[side] = seq.keep_stats["rounds"]
    for name, values in found.items():
        print(f"{name:38} {statistics.median(values):9.3f}   {min(values):9.3f} to {max(values):.3f}")
    print("rounds:", ", ".join(f"{n} of {side}'s" for side, n in rounds.items()))


if __name__ == "__main__":
    main()
