#!/usr/bin/env python3
"""Tables of docs/mini.md from the results of examples/sweep-mini-{rules,triattention,reasoning}.json:
a row for each policy, a column for each task, in it the scores from the largest share of the tokens
to the smallest, or from the fewest tokens to the most. Of perplexity: the full cache's, and how many
percent more it is than that of the full cache over the same chunks. Standard library only.

usage: scripts/docs/keep_tables.py RESULTS.jsonl ...
"""
import json
import sys
from collections import defaultdict

from read_tables import order


def read_results(paths):
    """policy -> task -> budget ("" without) -> text; the last of equal cells counts."""
    table = defaultdict(lambda: defaultdict(dict))
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                result = json.loads(line)
                cell, summary = result["cell"], result["summary"]
                table[cell["policy"]][cell["task"]][cell["budget"] or ""] = text_of(summary)
    return table


def text_of(summary):
    if "score" in summary:
        return f"{summary['score']:.2f}".replace("0.", ".", 1)
    if "ratio" in summary:
        return f"{100 * (summary['ratio'] - 1):.1f}"
    return f"{summary['perplexity']:.1f}"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    table = read_results(sys.argv[1:])
    tasks = list(dict.fromkeys(task for cells in table.values() for task in cells))
    budgets = sorted({b for cells in table.values() for at in cells.values() for b in at if b},
                     key=order)
    if all(b.endswith("%") for b in budgets):
        budgets.reverse()
    print("Budgets: " + " / ".join(budgets))
    print("\n| policy | " + " | ".join(tasks) + " |\n|" + "---|" * (len(tasks) + 1))
    for policy, cells in table.items():
        row = [cells[task].get("") or " ".join(cells[task].get(b, "-") for b in budgets)
               for task in tasks]
        print(f"| {policy} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
