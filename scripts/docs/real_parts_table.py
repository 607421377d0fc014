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
}
WORDS = {"score/base": "as it is", "prefix/0": "prefix=0", "prefix/256": "prefix=256"}


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


def name_of(cell):
    """What stands in the first column."""
    kind, what = cell.split("/")
    if cell in WORDS:
        return f"`{WORDS[cell]}`" if kind == "prefix" else WORDS[cell]
    return {"score": f"`{what}`", "text": f"8,192 tokens of {what}",
            "length": f"{what} tokens of prose", "v3": f"{what} %", "prefix": what}[kind]


def figures(cell, full):
    """Facts, p and perplexity, as text; held entries."""
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
    return kind, not numeric, -number if kind == "v3" else number, what


def main():
    """Reads the command line, prints."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    cells = load(sys.argv[1])
    models = [m for m in MODELS if (m, "full/100") in cells]
    for table, (head, kinds) in TABLES.items():
        print(f"\n<!-- tables/{table}.csv -->")
        columns = [f"{NAMES[m]}: {what}" for m in models for what in ("facts, %", "p, %", "perplexity, %")]
        print("| " + " | ".join([head] + columns) + " |")
        print("|---" * (len(columns) + 1) + "|")
        seen = sorted({cell for m, cell in cells if cell.split("/")[0] in kinds},
                      key=lambda c: (kinds.index(c.split("/")[0]), c != "score/base", key_of(c)))
        for cell in seen:
            row = [text for m in models
                   for text in figures(cells.get((m, cell), {}), cells[(m, "full/100")])]
            print("| " + " | ".join([name_of(cell)] + row) + " |")


if __name__ == "__main__":
    main()
