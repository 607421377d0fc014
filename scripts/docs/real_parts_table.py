#!/usr/bin/env python3
"""Prints docs/real/parts.md's tables from the cells that scripts/docs/real_parts.sh measured.

    scripts/docs/real_parts_table.py OUT

Facts are those that are found of all that the full cache finds, and p is the ratio of the right
answers' probabilities. Both have paired errors with texts as units. Perplexity is its rise over the
full cache's, with chunks as units. Standard library only."""
import glob
import json
import os
import sys

from real_budget_table import MODELS, NAMES, facts, rise, show

TABLES = {  # file: (head, kinds of cells)
    "parts-score": ("score", ("score",)),
    "parts-calibration": ("calibrated on", ("text", "length")),
    "parts-v3": ("V3", ("v3", "prefix")),
    "parts-distance": ("entries that stay", ("global", "fixed")),
}


def load(folder):
    """(model, cell) -> {task: result}"""
    cells = {}
    for path in glob.glob(os.path.join(folder, "*.json")):
        name = os.path.basename(path)[:-len(".json")]
        model = next((m for m in MODELS if name.startswith(m + ".")), None)
        if model:
            task, kind, what = name[len(model) + 1:].split(".", 2)
            with open(path, encoding="utf-8") as file:
                cells.setdefault((model, f"{kind}/{what}"), {})[task] = json.load(file)
    return cells


def name_of(cell, kinds):
    """What stands in the first column."""
    kind, what = cell.split("/")
    if cell == "score/base":
        return "as it is" if "score" in kinds else "8,192 tokens of prose"
    return {"score": f"`{what}`", "text": f"8,192 tokens of {what}", "v3": f"{what} %",
            "length": f"{int(what):,} tokens of prose" if what.isdigit() else "",
            "prefix": f"`prefix={what}`", "global": f"{what} %",
            "fixed": f"{what} %, `distance=256`"}[kind]


def figures(cell, full):
    """Facts, p and perplexity, as text; empty where they were not measured."""
    out = ["", "", ""]
    if "facts" in cell and "facts" in full:
        found, chance = facts(cell["facts"], full["facts"])
        out[:2] = [show(found, 0), show(chance, 0)]
    if "perplexity" in cell and "perplexity" in full:
        out[2] = show(rise(cell["perplexity"], full["perplexity"]), 2, "+")
    return out


def key_of(cell):
    """Order of rows: as they were measured."""
    kind, what = cell.split("/")
    numeric = what.isdigit()
    number = int(what) if numeric else 0
    return kind, not numeric, -number if kind in ("v3", "global", "fixed") else number, what


def main():
    """Reads the command line, prints."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    cells = load(sys.argv[1])
    models = [m for m in MODELS if (m, "full/100") in cells]
    for table, (head, kinds) in TABLES.items():
        base = table in ("parts-score", "parts-calibration")
        seen = sorted({cell for _, cell in cells
                       if cell.split("/")[0] in kinds or (base and cell == "score/base")},
                      key=lambda c, kinds=kinds: (c != "score/base", kinds.index(c.split("/")[0])
                                                  if c.split("/")[0] in kinds else 0, key_of(c)))
        columns = [[f"{NAMES[m]}: {what}"] + [figures(cells.get((m, c), {}), cells[(m, "full/100")])[i]
                                              for c in seen]
                   for m in models for i, what in enumerate(("facts, %", "p, %", "perplexity, %"))]
        columns = [[head] + [name_of(c, kinds) for c in seen]] + [c for c in columns if any(c[1:])]
        print(f"\n<!-- tables/{table}.csv -->")
        for i, row in enumerate(zip(*columns)):
            print("| " + " | ".join(row) + " |")
            if i == 0:
                print("|---" * len(columns) + "|")


if __name__ == "__main__":
    main()
