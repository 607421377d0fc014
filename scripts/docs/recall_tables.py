#!/usr/bin/env python3
"""Tables from the results of examples/sweep-mini-recall.json (docs/mini.md): what every arm finds
at every budget, by depth where asked, and what recall adds to the seconds of a prompt. An arm
"v3, kv" is compared with the arm "v3". Standard library only.

usage: scripts/docs/recall_tables.py [--depth] RESULTS.jsonl ...
"""
import sys

from results import read


def rows_of(results):
    return [row for result in results for row in result["rows"]]


def prompt_seconds(results):
    return sum(result["summary"]["prompt_seconds"] for result in results)


def ordered(values):
    return list(dict.fromkeys(values))


def share(budget):
    return -float(budget.rstrip("%")) if budget else -1e9


def found(results):
    """Right answers of all."""
    rows = rows_of(results)
    return f"{sum(r['pass'] for r in rows)}/{sum(r['n'] for r in rows)}"


def by_depth(results):
    depths = {}
    for row in rows_of(results):
        right, n = depths.get(row["depth"], (0, 0))
        depths[row["depth"]] = right + row["pass"], n + row["n"]
    return " ".join(f"{right / n:.2f}".lstrip("0") or "0" for right, n in depths.values())


def extra(cells, task, arm, budget):
    """Percent that recall adds to the seconds of the prompts; "" for an arm without."""
    alone = cells.get((task, arm.split(",")[0], budget))
    here = cells[task, arm, budget]
    if alone is None or "recall" not in here[0]:
        return ""
    return f"{100 * (prompt_seconds(here) / prompt_seconds(alone) - 1):+.1f}"


def table(cells, task, show):
    mine = [key for key in cells if key[0] == task]
    arms = ordered(key[1] for key in mine)
    budgets = sorted(ordered(key[2] for key in mine if key[2]), key=share)
    yield "| arm | " + " | ".join(budgets) + " |"
    yield "|---|" + "---|" * len(budgets)
    for arm in arms:
        whole = cells.get((task, arm, ""))
        texts = [show(cells[task, arm, b]) if (task, arm, b) in cells else
                 show(whole) if whole else "" for b in budgets]
        yield f"| {arm} | " + " | ".join(texts) + " |"


def times(cells, task):
    mine = [key for key in cells if key[0] == task]
    budgets = sorted(ordered(key[2] for key in mine if key[2]), key=share)
    yield "| arm | " + " | ".join(f"% more at {b}" for b in budgets) + " |"
    yield "|---|" + "---|" * len(budgets)
    for arm in ordered(key[1] for key in mine):
        if any("recall" in result for b in budgets for result in cells.get((task, arm, b), [])):
            texts = [extra(cells, task, arm, b) if (task, arm, b) in cells else "" for b in budgets]
            yield f"| {arm} | " + " | ".join(texts) + " |"


def main(arguments):
    depth = "--depth" in arguments
    paths = [a for a in arguments if a != "--depth"]
    if not paths:
        sys.exit(__doc__.strip().splitlines()[-1])
    cells = read(paths)
    for task in ordered(key[0] for key in cells):
        print(f"**{task}**: right answers of all\n")
        print("\n".join(table(cells, task, by_depth if depth else found)) + "\n")
        print("Seconds of the prompts:\n")
        print("\n".join(times(cells, task)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
