#!/usr/bin/env python3
"""Prints the tables of docs/real/tables.md from the cells that scripts/docs/real.sh measured.

    scripts/docs/real_table.py OUT

A cell of facts and needles is: what is found of all that the full cache finds, the ratio of the
right answers' probabilities to the full cache's, and for facts the share of the entries that was
held when the questions came (protected entries and the slack of rounds included), in percent. A
model's line says how many the full cache finds. A cell of
RULER is the score in percent of the full cache's, a ratio of sums that may exceed 100; a cell of
perplexity is its rise over the full cache's in percent. The errors are paired, item by item: of
ratios sqrt(G / (G - 1) * sum_g (y_g - R x_g)^2) / sum x with texts (facts), items (needles, RULER)
or chunks (perplexity) as the units g. Standard library only.
"""
import glob
import json
import math
import os
import sys
import textwrap
from collections import defaultdict

BUDGETS = ["100", "90", "75", "50", "25", "10"]


def load(folder):
    cells = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        name = os.path.basename(path)[:-len(".json")]
        # A model's name may hold dots: the other five words do not.
        parts = name.rsplit(".", 5)
        if len(parts) != 6:
            continue
        with open(path) as file:
            cells[tuple(parts)] = json.load(file)
    return cells


def ratio(groups):
    """groups: {unit: [(y, x), ..]}. Returns sum y / sum x and its error."""
    sums = [(sum(y for y, _ in g), sum(x for _, x in g)) for g in groups.values()]
    below = sum(x for _, x in sums)
    if below <= 0:
        return math.nan, math.nan
    value = sum(y for y, _ in sums) / below
    n = len(sums)
    left = sum((y - value * x) ** 2 for y, x in sums)
    return value, math.sqrt(n / (n - 1) * left) / below if n > 1 else math.nan


def items(result, task):
    """{key: (unit, found, log p)} of a cell."""
    out = {}
    for row in result["rows"]:
        if task == "facts":
            key, unit = (row["length"], row["text"], row["depth"]), (row["length"], row["text"])
            found = row["found"]
        else:
            key = unit = (row["length"], row["depth"])
            found = row["pass"] / row["n"]
        logprob = row["answer_logprob"]
        out[key] = unit, found, math.exp(logprob) if logprob is not None else math.nan
    return out


def compare(result, full, task):
    if task == "ruler":
        return compare_ruler(result, full)
    found, chance = defaultdict(list), defaultdict(list)
    mine, theirs = items(result, task), items(full, task)
    for key, (unit, full_found, full_p) in theirs.items():
        if key not in mine:
            continue
        _, own_found, own_p = mine[key]
        found[unit].append((own_found * full_found, full_found))
        if not math.isnan(own_p) and not math.isnan(full_p):
            chance[unit].append((own_p, full_p))
    (a, a_se), (b, b_se) = ratio(found), ratio(chance)
    held = result["summary"].get("held_mean"), full["summary"].get("held_mean")
    share = "" if None in held else f" [{100 * held[0] / held[1]:.0f}]"
    return f"{show(a, a_se, 100)}, p {show(b, b_se, 100)}{share}"


def scores(result):
    """{(task, number): score} of RULER's texts."""
    return {(row["task"], i): text["score"]
            for row in result["rows"] for i, text in enumerate(row["texts"])}


def compare_ruler(result, full):
    """The score relative to the full cache's, with the texts as the units."""
    mine, theirs = scores(result), scores(full)
    value, error = ratio({key: [(mine[key], theirs[key])] for key in theirs if key in mine})
    return show(value, error, 100)


def show(value, error, scale=1.0):
    if math.isnan(value):
        return "-"
    digits = 0 if scale == 100 else 2
    text = f"{scale * value:.{digits}f}"
    return text if math.isnan(error) else f"{text} +- {scale * error:.{digits}f}"


def rise(result, full):
    """Percent of perplexity, with chunks as the units."""
    theirs = {row["chunk"]: row for row in full["rows"]}
    diffs = [math.log(row["perplexity"] / theirs[row["chunk"]]["perplexity"])
             for row in result["rows"] if row["chunk"] in theirs]
    if not diffs:
        return "-"
    mean = sum(diffs) / len(diffs)
    value = math.exp(mean) - 1
    if len(diffs) < 2:
        return f"{100 * value:+.2f} %"
    se = math.sqrt(sum((d - mean) ** 2 for d in diffs) / (len(diffs) - 1) / len(diffs))
    return f"{100 * value:+.2f} +- {100 * math.exp(mean) * se:.2f} %"


def summary(full, task):
    s = full["summary"]
    if task == "perplexity":
        return f"perplexity {s['perplexity']:.3f} +- {s['perplexity_se']:.3f}, " \
               f"{len(full['rows'])} chunks"
    none = math.nan
    if task == "ruler":
        return f"scores {100 * s['score']:.0f} % over {s['n']} texts: " + ", ".join(
            f"{row['task']} {100 * row['score']:.0f}" for row in full["rows"])
    return f"finds {show(s['score'], none if s['se'] is None else s['se'], 100)} % of {s['n']}, " \
           f"probability {s['probability']:.3g}"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    cells = load(sys.argv[1])
    for model, task in dict.fromkeys(key[:2] for key in cells):
        full = cells.get((model, task, "full", "100", "stream", "own"))
        if full is None:
            print(f"\n{model}, {task}: the full cache's cell is not there yet")
            continue
        mine = {key[2:]: value for key, value in cells.items()
                if key[:2] == (model, task) and key[2] != "full"}
        budgets = [b for b in BUDGETS if any(key[1] == b for key in mine)]
        line = f"The full cache: {summary(full, task.split('-')[0])}."
        print(f"\n## {model}: {task}\n\n{textwrap.fill(line, 100)}\n")
        print("| policy | rounds | ranking |" + "".join(f" {b} % |" for b in budgets))
        print("|---|---|---|" + "---|" * len(budgets))
        for policy, rounds, ranking in sorted({(k[0], k[2], k[3]) for k in mine}):
            row = []
            for budget in budgets:
                cell = mine.get((policy, budget, rounds, ranking))
                row.append("" if cell is None else rise(cell, full) if task == "perplexity"
                           else compare(cell, full, task.split("-")[0]))
            print(f"| {policy} | {rounds} | {ranking} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
