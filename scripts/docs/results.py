"""What the scripts beside this one have in common: results of `pith eval sweep`."""
import json


def read(paths):
    """(task, policy, budget, "" without) -> a list of the results of all seeds; of equal cells the
    last counts."""
    last = {}
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                result = json.loads(line)
                cell = result["cell"]
                last[cell["task"], cell["policy"], cell["budget"] or "", cell["seed"]] = result
    cells = {}
    for (*place, _), result in last.items():
        cells.setdefault(tuple(place), []).append(result)
    return cells


def order(budget):
    """Tokens before shares, both ascending."""
    return (budget.endswith("%"), float(budget.rstrip("%")))


def figure(value):
    return f"{value:.2f}".lstrip("0") if value < 1 else f"{value:.2f}"
