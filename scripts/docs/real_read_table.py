#!/usr/bin/env python3
"""Prints the tables "Reading a part" of docs/real/read.md from the cells of
scripts/docs/real_read.sh.

    scripts/docs/real_read_table.py OUT

A cell of facts is what is found of all facts that the full cache finds, and the ratio of the right
answers' probabilities to the full cache's, in percent. A cell of RULER is the score in percent of
the full cache's. Errors are paired, with texts as the units, as in scripts/docs/real_table.py.
Brackets hold the share of the stored entries that chunks read. Standard library only.
"""
import glob
import json
import os
import sys
from collections import defaultdict

from real_table import items, ratio, scores, summary


def load(folder):
    """{(model, task-length): {(policy, budget): result}}"""
    found = defaultdict(dict)
    for path in sorted(glob.glob(os.path.join(folder, "read", "*.json"))):
        model, task, policy, budget = os.path.basename(path)[:-len(".json")].rsplit(".", 3)
        with open(path) as file:
            found[model, task][policy, int(budget)] = json.load(file)
    return found


def facts(result, full):
    """[(found, its error), (probability, its error)], each as a ratio to the full cache's."""
    found, chance = defaultdict(list), defaultdict(list)
    mine = items(result, "facts")
    for key, (unit, full_found, full_p) in items(full, "facts").items():
        own = mine[key]
        found[unit].append((own[1] * full_found, full_found))
        chance[unit].append((own[2], full_p))
    return [ratio(found), ratio(chance)]


def ruler(result, full):
    """[(score, its error)], as a ratio to the full cache's."""
    mine = scores(result)
    return [ratio({key: [(mine[key], x)] for key, x in scores(full).items()})]


def compare(result, full, task):
    return facts(result, full) if task == "facts" else ruler(result, full)


def cell(result, full, task):
    share = result["summary"].get("read_share")
    return ", p ".join(f"{100 * value:.0f} +- {100 * error:.0f}"
                       for value, error in compare(result, full, task)) + (
        f" [{100 * share:.0f}]" if share is not None else "")


def order(policies, budgets, cells, full, task):
    """The best at the largest budget first."""
    def score(policy):
        result = cells.get((policy, budgets[-1]))
        return compare(result, full, task)[0][0] if result else -1.0
    return sorted(policies, key=lambda policy: (-score(policy), policy))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    for (model, name), cells in load(sys.argv[1]).items():
        task = name.split("-")[0]
        full = cells.pop(("full", 0), None)
        if full is None:
            continue
        print(f"\n{model}, {name}: the full cache {summary(full, task)}.\n")
        budgets = sorted({budget for _, budget in cells})
        print("| policy | " + " | ".join(str(b) for b in budgets) + " |")
        print("|---" * (len(budgets) + 1) + "|")
        for policy in order({p for p, _ in cells}, budgets, cells, full, task):
            texts = [cell(cells[policy, b], full, task) if (policy, b) in cells else ""
                     for b in budgets]
            print(f"| {policy} | " + " | ".join(texts) + " |")


if __name__ == "__main__":
    main()
