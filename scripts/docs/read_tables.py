#!/usr/bin/env python3
"""Tables of docs/mini.md from the results of examples/sweep-mini-read*.json: the score of every
read policy at every budget, a table for each task and one of all tasks together, with the share of
the cache that was read. Standard library only.

usage: scripts/docs/read_tables.py RESULTS.jsonl ...
"""
import json
import sys
from collections import defaultdict


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


def order(budget):
    """Tokens before shares, both ascending."""
    return (budget.endswith("%"), float(budget.rstrip("%")))


def read_results(paths):
    """task or "all" -> policy -> budget ("" without) -> Cell; the last of equal cells counts."""
    last = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                result = json.loads(line)
                last[result["cell"]["hash"]] = result
    tables = defaultdict(lambda: defaultdict(lambda: defaultdict(Cell)))
    for result in last.values():
        cell, summary = result["cell"], result["summary"]
        share = summary["read_share"]
        for row in result["rows"]:
            name = row.get("task", cell["task"])
            for task in (name, "all"):
                point = tables[task][cell["policy"]][cell["budget"] or ""]
                point.add(row["n"], row["score"], share)
    return tables


def figure(value):
    return f"{value:.2f}".lstrip("0") if value < 1 else f"{value:.2f}"


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
