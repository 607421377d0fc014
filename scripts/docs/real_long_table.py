#!/usr/bin/env python3
"""Prints the table "At 32,768 tokens" of docs/real/long.md from the cells of
scripts/docs/real_long.sh.

    scripts/docs/real_long_table.py OUT

`facts` are those found, of all; `p` is the probability of the right answers in percent of the full
cache's; `held` is the share of the entries that were left when the questions came. `perplexity` is
of the second half of a chunk, with the change against the full cache. Seconds are of one processor,
for the whole cell. Standard library only.
"""
import glob
import json
import os
import sys
from collections import defaultdict


def load(folder):
    """{(model, length): {setting: {task: result}}}"""
    found = defaultdict(lambda: defaultdict(dict))
    for path in sorted(glob.glob(os.path.join(folder, "long", "*.json"))):
        model, length, task, setting = os.path.basename(path)[:-len(".json")].rsplit(".", 3)
        with open(path) as file:
            result = json.load(file)
        with open(path[:-len("json")] + "time") as file:
            _, user, system = file.read().split()[:3]
        result["processor_s"] = float(user) + float(system)
        found[model, int(length)][setting][task] = result
    return found


def facts(result, full):
    if result is None:
        return [""] * 5
    s = result["summary"]
    p = 100 * s["probability"] / full["summary"]["probability"]
    entries = result["rows"][0]["tokens"]
    return [f"{round(s['score'] * s['n'])} of {s['n']}", f"{p:.0f}",
            f"{100 * s['held_mean'] / entries:.0f}", f"{s['kv_peak_bytes'] / 2**20:.0f}",
            f"{result['processor_s']:.0f}"]


def perplexity(result, full):
    if result is None:
        return ["", ""]
    mine, whole = result["summary"]["perplexity"], full["summary"]["perplexity"]
    change = "" if result is full else f" ({100 * (mine / whole - 1):+.2f} %)"
    return [f"{mine:.4f}{change}", f"{result['processor_s']:.0f}"]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    for (model, length), settings in load(sys.argv[1]).items():
        full = settings.get("full", {})
        print(f"\n{model}, {length} tokens\n")
        print("| setting | facts | p | held % | KV MiB at the peak | s | perplexity | s |")
        print("|---" * 8 + "|")
        for name in sorted(settings, key=lambda name: (name != "full", name)):
            cell = settings[name]
            columns = facts(cell.get("facts"), full.get("facts"))
            columns += perplexity(cell.get("perplexity"), full.get("perplexity"))
            print("| " + " | ".join([name] + columns) + " |")


if __name__ == "__main__":
    main()
