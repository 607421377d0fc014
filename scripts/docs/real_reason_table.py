#!/usr/bin/env python3
"""Prints the table "Long generation" of docs/real/generation.md from the cells of
scripts/docs/real_reason.sh.

    scripts/docs/real_reason_table.py OUT

A cell is the percent of the problems that were solved, and behind it the difference to TriAttention
at the same budget in percent points, with the 95 % interval of a paired bootstrap over problems
(10,000 draws, seed 1); where nothing is evicted, the difference to the full cache. `MiB` is the
most that keys and values took. `affected` is the part of the tokens, in percent, that others stand
for, that were evicted (in the mean of the lanes), or that a token did not read. The last column has
generated tokens per second of one processor, prompts included. Standard library only.
"""
import glob
import json
import os
import random
import sys

DRAWS = 10000
LANES = {"smollm2": 90, "coder-0.5b": 48, "coder-1.5b": 56}


def load(folder):
    cells = {}
    for path in sorted(glob.glob(os.path.join(folder, "reason", "*.json"))):
        model, problems, policy, budget = os.path.basename(path)[:-len(".json")].rsplit(".", 3)
        with open(path) as file:
            cell = json.load(file)
        with open(path[:-len("json")] + "time") as file:
            cell["seconds"] = sum(float(x) for x in file.read().split()[1:3])
        cells[model, problems, policy, int(budget)] = cell
    return cells


def scores(cell):
    return {i: row["score"] for i, row in enumerate(cell["rows"])}


def affected(cell, lanes):
    s = cell["summary"]
    if "share" in s:
        return s["share"]["affected"]
    if s["read_share"] < 1:
        return 1 - s["read_share"]
    return s["evicted"] / lanes / (s["prompt_tokens"] + s["generated_tokens"])


def interval(differences):
    """The 95 % interval of their mean, by bootstrap."""
    draw, n = random.Random(1), len(differences)
    means = sorted(sum(draw.choices(differences, k=n)) / n for _ in range(DRAWS))
    return means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS) - 1]


def difference(cell, other):
    mine, theirs = scores(cell), scores(other)
    values = [mine[key] - theirs[key] for key in theirs if key in mine]
    low, high = interval(values)
    return f"{100 * sum(values) / len(values):+.0f} ({100 * low:+.0f} .. {100 * high:+.0f})"


def row(name, cell, other, lanes):
    s = cell["summary"]
    behind = difference(cell, other) if other is not None and other is not cell else ""
    answered = f"{100 * s['answered']:.0f}" if "answered" in s else ""
    return [name, f"{100 * s['score']:.0f}", behind, answered, f"{100 * affected(cell, lanes):.1f}",
            f"{s['generated_tokens'] / s['n']:.0f}",
            f"{s['kv_peak_bytes'] / 2**20:.0f}", f"{s['generated_tokens'] / cell['seconds']:.0f}"]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    cells = load(sys.argv[1])
    for model, problems in dict.fromkeys(key[:2] for key in cells):
        mine = {key[2:]: cell for key, cell in cells.items() if key[:2] == (model, problems)}
        n = next(iter(mine.values()))["summary"]["n"]
        print(f"\n### {model}: {problems}, {n} problems")
        for budget in sorted({key[1] for key in mine}):
            rows = {key[0]: cell for key, cell in mine.items() if key[1] == budget}
            print("\n" + (f"Budget of {budget} entries:" if budget > 0 else "Nothing evicted:"))
            base = "TriAttention" if budget > 0 else "the full cache"
            print(f"\n| policy | solved % | against {base} | answered % | affected % | "
                  "tokens | MiB | tokens/s |\n" + "|---" * 8 + "|")
            other = rows.get("triattention" if budget > 0 else "full")
            for name, cell in sorted(rows.items(), key=lambda r: -r[1]["summary"]["score"]):
                print("| " + " | ".join(row(name, cell, other, LANES[model])) + " |")


if __name__ == "__main__":
    main()
