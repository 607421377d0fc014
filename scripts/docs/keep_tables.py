#!/usr/bin/env python3
"""Tables from the results of examples/sweep-mini-{rules,triattention,reasoning}.json
(docs/mini.md): a row for each policy, a column for each task, in it the scores from the largest
share of the tokens to the smallest, or from the fewest tokens to the most. Of perplexity: the full
cache's, and how many percent more it is than that of the full cache over the same chunks. Standard
library only.

usage: scripts/docs/keep_tables.py RESULTS.jsonl ...
"""
import sys
from collections import defaultdict

from results import figure, order, read


def read_results(paths):
    """policy -> task -> budget ("" without) -> text."""
    table = defaultdict(lambda: defaultdict(dict))
    for (task, policy, budget), results in read(paths).items():
        table[policy][task][budget] = text_of([result["summary"] for result in results])
    return table


def mean(summaries, key):
    return sum(s["n"] * s[key] for s in summaries) / sum(s["n"] for s in summaries)


def text_of(seeds):
    if "score" in seeds[0]:
        return figure(mean(seeds, "score"))
    if "ratio" in seeds[0]:
        return f"{100 * (mean(seeds, 'ratio') - 1):.1f}".replace("-0.0", "0.0")
    return f"{mean(seeds, 'perplexity'):.1f}"


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
