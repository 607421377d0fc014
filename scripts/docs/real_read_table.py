#!/usr/bin/env python3
"""Prints the table "Reading a part" of docs/real.md from the cells of scripts/docs/real_read.sh.

    scripts/docs/real_read_table.py OUT

A cell is what is found of all facts that the full cache finds, and the ratio of the right answers'
probabilities to the full cache's, in percent. Errors are paired, with texts as the units, as in
scripts/docs/real_table.py. `read` is the share of the stored entries that chunks read. Standard
library only.
"""
import glob
import json
import os
import sys
from collections import defaultdict

from real_table import items, ratio


def load(folder):
    """{(model, length): {(policy, budget): result}}"""
    found = defaultdict(dict)
    for path in sorted(glob.glob(os.path.join(folder, "read", "*.json"))):
        model, length, policy, budget = os.path.basename(path)[:-len(".json")].rsplit(".", 3)
        with open(path) as file:
            found[model, int(length)][policy, int(budget)] = json.load(file)
    return found


def compare(result, full):
    """Found, its error, probability, its error, each as a ratio to the full cache's."""
    found, chance = defaultdict(list), defaultdict(list)
    mine = items(result, "facts")
    for key, (unit, full_found, full_p) in items(full, "facts").items():
        own = mine[key]
        found[unit].append((own[1] * full_found, full_found))
        chance[unit].append((own[2], full_p))
    return ratio(found) + ratio(chance)


def cell(result, full):
    a, a_se, b, b_se = (100 * x for x in compare(result, full))
    share = result["summary"].get("read_share")
    return f"{a:.0f} +- {a_se:.0f}, p {b:.0f} +- {b_se:.0f}" + (
        f" [{100 * share:.0f}]" if share is not None else "")


def order(policies, budgets, cells, full):
    """The best at the largest budget first."""
    def score(policy):
        result = cells.get((policy, budgets[-1]))
        return compare(result, full)[0] if result else -1.0
    return sorted(policies, key=lambda policy: (-score(policy), policy))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    for (model, length), cells in load(sys.argv[1]).items():
        full = cells.pop(("full", 0), None)
        if full is None:
            continue
        got = items(full, "facts").values()
        print(f"\n{model}, {length} tokens: the full cache finds {sum(f for _, f, _ in got):.0f} of "
              f"{len(got)}.\n")
        budgets = sorted({budget for _, budget in cells})
        print("| policy | " + " | ".join(str(b) for b in budgets) + " |")
        print("|---" * (len(budgets) + 1) + "|")
        for policy in order({p for p, _ in cells}, budgets, cells, full):
            texts = [cell(cells[policy, b], full) if (policy, b) in cells else "" for b in budgets]
            print(f"| {policy} | " + " | ".join(texts) + " |")


if __name__ == "__main__":
    main()
