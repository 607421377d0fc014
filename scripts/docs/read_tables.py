#!/usr/bin/env python3
"""Tables from the results of examples/sweep-mini-read.json (docs/mini.md): the score of every
read policy at every budget, a table for each task and one of all tasks together, with the share of
the cache that was read. Standard library only.

usage: scripts/docs/read_tables.py RESULTS.jsonl ...
"""
import sys
from collections import defaultdict

from results import figure, order, read


class Cell:
    """Items of one policy and budget, with what they scored and read."""

    def __init__(self):
        self.n, self.right, self.share, self.results = 0, 0.0, 0.0, 0

    def add(self, n, score, share):
        self.n += n
        self.right += n * score
        self.share += share
        self.results += 1

    def score(self):
        return self.right / self.n

    def read(self):
        return self.share / self.results


def read_results(paths):
    """task or "all" -> policy -> budget ("" without) -> Cell."""
    tables = defaultdict(lambda: defaultdict(lambda: defaultdict(Cell)))
    for (whole, policy, budget), results in read(paths).items():
        for result in results:
            for row in result["rows"]:
                for task in (row.get("task", whole), "all"):
                    tables[task][policy][budget].add(row["n"], row["score"],
                                                     result["summary"]["read_share"])
    return tables


def print_table(name, policies):
    budgets = sorted({budget for cells in policies.values() for budget in cells if budget},
                     key=order)
    print(f"\n| {name} | " + " | ".join(budgets) + " |\n|" + "---|" * (len(budgets) + 1))
    for policy, cells in policies.items():
        if "" in cells:
            words = [f"{figure(cells[''].score())}"] + [""] * (len(budgets) - 1)
        else:
            words = [figure(cells[budget].score()) if budget in cells else "-"
                     for budget in budgets]
        print(f"| {policy} | " + " | ".join(words) + " |")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    tables = read_results(sys.argv[1:])
    for task, policies in tables.items():
        print_table(task, policies)
    print("\nThe share of the cache that was read:")
    budgets = sorted({budget for cells in tables["all"].values() for budget in cells if budget},
                     key=order)
    print("\n| read | " + " | ".join(budgets) + " |\n|" + "---|" * (len(budgets) + 1))
    for policy, cells in tables["all"].items():
        if "" not in cells:
            print(f"| {policy} | " + " | ".join(
                figure(cells[budget].read()) if budget in cells else "-" for budget in budgets)
                + " |")


if __name__ == "__main__":
    main()
