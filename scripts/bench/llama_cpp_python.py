#!/usr/bin/env python3
"""llama_cpp_python.py MODEL.gguf TEXT [--threads N] [--repeats N] [--questions N] - pithkv beside
llama-cpp-python.

Three figures on the same file and threads, each the median of some repeats, by turns:

    generate    a prompt of 128 tokens and 64 greedy ones behind it
    logits      seconds for all rows of logits of 512 tokens; of pithkv also for log probabilities
                alone
    choices     seconds for N questions (8) of 4 endings behind 200 tokens, as lm-eval asks

Needs pithkv and llama-cpp-python (which pip builds). Run it where nothing else computes.
"""
import argparse
import statistics
import sys

import numpy as np

import pithkv
from python_rig import choices_on_forks, questions_of, read_ids, seconds


def log_softmax(rows):
    rows = rows.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def pith_calls(path, ids, questions, threads):
    engine = pithkv.Engine(pithkv.Model(path, n_thread=threads), n_thread=threads, kv_tokens=8192)

    def generate():
        engine.sequence().generate(ids[:128], 64, temperature=0.0, ignore_end=True).text()

    return {"generate": generate, "logits": lambda: engine.sequence().eval(ids[:512], logits="all"),
            "choices": lambda: choices_on_forks(engine, questions),
            "log probabilities": lambda: engine.sequence().eval(ids[:512], targets=np.append(ids[1:512], -1))}


def llama_calls(path, ids, questions, threads):
    from llama_cpp import Llama
    llama = Llama(path, n_ctx=1024, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False)
    plain = Llama(path, n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)

    def generate():
        plain.reset()
        for n, _ in enumerate(plain.generate([int(t) for t in ids[:128]], temp=0.0), 1):
            if n == 64:
                break

    def logits():
        llama.reset()
        llama.eval([int(t) for t in ids[:512]])
        return llama.scores[:512].copy()

    def choices():
        for context, ends in questions:
            for end in ends:  # it has no forks: each choice is read with its context
                llama.reset()
                llama.eval([int(t) for t in (*context, *end)])
                log_softmax(llama.scores[len(context) - 1:len(context) + len(end) - 1])

    return {"generate": generate, "logits": logits, "choices": choices}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--questions", type=int, default=8)
    o = parser.parse_args()
    ids = read_ids(o.text, pithkv.Model(o.model, vocab_only=True))
    questions = questions_of(ids, o.questions)
    sides = {"pithkv": pith_calls(o.model, ids, questions, o.threads),
             "llama-cpp-python": llama_calls(o.model, ids, questions, o.threads)}
    found = {side: {name: [] for name in calls} for side, calls in sides.items()}
    for i in range(o.repeats):
        for name in found["pithkv"]:
            for side, calls in list(sides.items())[::1 if i % 2 == 0 else -1]:
                if name in calls:
                    found[side][name].append(seconds(calls[name]))
                    print(f"{side:17} {name:18} {found[side][name][-1]:8.3f} s", file=sys.stderr, flush=True)
    for side, names in found.items():
        for name, times in names.items():
            median = statistics.median(times)
            rate = f"  {64 / median:.1f} tokens/s with its prompt" if name == "generate" else ""
            print(f"{side:17} {name:18} {median:8.3f} s{rate}")


if __name__ == "__main__":
    main()
