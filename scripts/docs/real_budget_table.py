#!/usr/bin/env python3
"""Prints docs/real/budget.md's tables from the cells that scripts/docs/real_budget.sh measured.

    scripts/docs/real_budget_table.py OUT            the tables
    scripts/docs/real_budget_table.py OUT --points   the rows of src/engine/plan_table.c

A cell has the bytes of pages that it held at most, in percent of the full f16 cache's. Facts are
those that are found of all that the full f16 cache finds, and p is the ratio of the right answers'
probabilities. Both have paired errors with texts as units. Perplexity's rise is the mean
of the chunks' logarithms against the same chunks of f16, with chunks as units. Needles that
are found, and problems that are solved, are in percent of those of f16: a ratio of sums that may
exceed 100, with depths and problems as units. Both have a table of their own.
Standard library only.
"""
import glob
import json
import math
import os
import sys

from real_table import items, ratio

MODELS = ("smollm2", "coder-0.5b", "coder-1.5b")
NAMES = {"smollm2": "SmolLM2-135M", "coder-0.5b": "Qwen2.5-Coder-0.5B",
         "coder-1.5b": "Qwen2.5-Coder-1.5B"}
FULL = ("f16-f16", "full", "100", "none")
# A cell's types, policy and recall as plan_table.h names them.
WAYS = {
    ("f16-f16", "full", "none"): "PLAN_F16",
    ("q8_0-q8_0", "full", "none"): "PLAN_Q8",
    ("q8_0-turbo4", "full", "none"): "PLAN_Q8_TURBO4",
    ("q8_0-turbo3", "full", "none"): "PLAN_Q8_TURBO3",
    ("turbo4-turbo4", "full", "none"): "PLAN_TURBO4",
    ("q8_0-turbo4", "kvzap", "none"): "PLAN_KVZAP_TURBO4",
    ("q8_0-turbo3", "kvzap", "none"): "PLAN_KVZAP",
    ("q8_0-turbo3", "kvzap", "text"): "PLAN_KVZAP_TEXT",
    ("q8_0-turbo3", "v3-bare", "text"): "PLAN_V3_TEXT",
    ("q8_0-turbo3", "v3-bare", "kv"): "PLAN_V3_KV",
    ("q8_0-turbo3", "v3-bare", "none"): "PLAN_V3",
    ("q8_0-turbo3", "streaming", "text"): "PLAN_STREAMING_TEXT",
    ("q8_0-turbo3", "streaming", "none"): "PLAN_STREAMING",
}


def load(folder):
    """(model, types, policy, share, recall) -> {task: result}"""
    cells = {}
    for path in glob.glob(os.path.join(folder, "*.json")):
        name = os.path.basename(path)[:-len(".json")]
        model = next((m for m in MODELS if name.startswith(m + ".")), None)
        parts = name[len(model) + 1:].split(".") if model else []
        if len(parts) == 5:
            with open(path, encoding="utf-8") as file:
                cells.setdefault((model, *parts[1:]), {})[parts[0]] = json.load(file)
    return cells


def facts(result, full):
    """Percent of the full cache's facts and its error, and the same of the probability."""
    mine, theirs = items(result, "facts"), items(full, "facts")
    found, chance = {}, {}
    for key, (unit, all_found, all_p) in theirs.items():
        if key not in mine:
            continue
        _, own_found, own_p = mine[key]
        found.setdefault(unit, []).append((own_found * all_found, all_found))
        if not math.isnan(own_p) and not math.isnan(all_p):
            chance.setdefault(unit, []).append((own_p, all_p))
    return tuple(100 * x for x in ratio(found)), tuple(100 * x for x in ratio(chance))


def needles(result, full):
    """Percent of as many needles as the full cache finds, and its error: rows have means of
    depths."""
    mine, theirs = items(result, "needle"), items(full, "needle")
    groups = {key: [(mine[key][1], found)] for key, (_, found, _) in theirs.items() if key in mine}
    return tuple(100 * x for x in ratio(groups))


def problems(result, full):
    """Percent of the problems that the full cache solves, and its error."""
    mine = {row["question"]: row["score"] for row in result["rows"]}
    groups = {row["question"]: [(mine[row["question"]], row["score"])] for row in full["rows"]
              if row["question"] in mine}
    return tuple(100 * x for x in ratio(groups))


def rise(result, full):
    """Percent of perplexity and its error."""
    theirs = {row["chunk"]: row["perplexity"] for row in full["rows"]}
    logs = [math.log(row["perplexity"] / theirs[row["chunk"]]) for row in result["rows"]
            if row["chunk"] in theirs]
    if not logs:
        return math.nan, math.nan
    mean = sum(logs) / len(logs)
    n = len(logs)
    error = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1) / n) if n > 1 else math.nan
    return 100 * (math.exp(mean) - 1), 100 * math.exp(mean) * error


MORE = {"needle": needles, "questions": problems}
WHAT = {"needle": "finds {:.0f} % of {} needles", "questions": "solves {:.0f} % of {} problems"}


def bytes_of(cell, full, task):
    """Of a task's pages, in percent of the full cache's."""
    if task not in cell or task not in full:
        return math.nan
    return 100 * cell[task]["summary"]["kv_peak_bytes"] / full[task]["summary"]["kv_peak_bytes"]


def row_of(cell, full):
    """Figures of a cell, by name; NAN where its task was not measured."""
    none = (math.nan, math.nan)
    out = {"facts": none, "p": none, "rise": none, "bytes": math.nan}
    for task in ("questions", "needle", "perplexity", "facts"):  # the last one's bytes count
        if task in cell and task in full:
            out["bytes"] = bytes_of(cell, full, task)
    if "facts" in cell and "facts" in full:
        out["facts"], out["p"] = facts(cell["facts"], full["facts"])
    if "perplexity" in cell and "perplexity" in full:
        out["rise"] = rise(cell["perplexity"], full["perplexity"])
    for task, figures in MORE.items():
        out[task] = figures(cell[task], full[task]) if task in cell and task in full else none
    return out


def rows(cells, model):
    """[(types, policy, share, recall, figures)], those of most bytes first."""
    full = cells.get((model, *FULL), {})
    out = [(*key[1:], row_of(cell, full)) for key, cell in cells.items() if key[0] == model]
    return sorted((r for r in out if not math.isnan(r[4]["bytes"])),
                  key=lambda r: (-r[4]["bytes"], r[:4]))


def show(value, digits, sign=""):
    figure, error = value
    if math.isnan(figure):
        return ""
    text = f"{figure:{sign}.{digits}f}"
    return text if math.isnan(error) else f"{text} ± {error:.{digits}f}"


def print_tables(cells):
    for model in MODELS:
        full = cells.get((model, *FULL))
        if not full:
            continue
        print(f"\n## {NAMES[model]}\n")
        if "facts" in full:
            s = full["facts"]["summary"]
            print(f"The full f16 cache finds {100 * s['score']:.0f} % of {s['n']} facts.")
        if "perplexity" in full:
            print(f"Its perplexity is {full['perplexity']['summary']['perplexity']:.3f}.")
        print(f"\n<!-- tables/budget-{model.replace('.', '-')}.csv -->")
        print("| bytes, % | K / V | entries | recall | facts, % | p, % | perplexity, % |")
        print("|---|---|---|---|---|---|---|")
        for types, policy, share, recall, f in rows(cells, model):
            if policy == "kv" or math.isnan(f["facts"][0]) and math.isnan(f["rise"][0]):
                continue
            print(f"| {f['bytes']:.1f} | {name_of(types, policy, share, recall)} | "
                  f"{show(f['facts'], 0)} | {show(f['p'], 0)} | {show(f['rise'], 2, '+')} |")


def print_itself(cells):
    """`--kv` as a user has it, with all upkeep within its bytes."""
    print("\n## By `--kv` itself\n\n<!-- tables/budget-itself.csv -->")
    print("| model | `--kv` | facts, % | p, % | perplexity, % | pages, % |")
    print("|---|---|---|---|---|---|")
    for model in MODELS:
        for _, policy, share, _, f in rows(cells, model):
            if policy == "kv":
                print(f"| {NAMES[model]} | {share.replace('_', '.')} % | {show(f['facts'], 0)} | "
                      f"{show(f['p'], 0)} | {show(f['rise'], 2, '+')} | {f['bytes']:.1f} |")


def name_of(types, policy, share, recall):
    """Three columns."""
    entries = "all" if policy == "full" else f"`{policy}` {share} %"
    return f"`{types.replace('-', '` / `')}` | {entries} | {'' if recall == 'none' else recall}"


def print_more(cells):
    """Needles and problems of all models."""
    print("\n## Needles and problems\n")
    for model in MODELS:
        for task, what in WHAT.items():
            if task in cells.get((model, *FULL), {}):
                s = cells[(model, *FULL)][task]["summary"]
                print(f"{NAMES[model]} {what.format(100 * s['score'], s['n'])}.")
    print("\n<!-- tables/budget-needles.csv -->")
    print("| model | K / V | entries | recall | bytes, % | needles, % | bytes, % | problems, % |")
    print("|---|---|---|---|---|---|---|---|")
    for model in MODELS:
        full = cells.get((model, *FULL), {})
        for types, policy, share, recall, f in rows(cells, model):
            cell = cells[(model, types, policy, share, recall)]
            figures = []
            for task in MORE:
                bytes_ = bytes_of(cell, full, task)
                figures += ["" if math.isnan(bytes_) else f"{bytes_:.0f}", show(f[task], 0)]
            if any(figures):
                print(f"| {NAMES[model]} | {name_of(types, policy, share, recall)} | "
                      + " | ".join(figures) + " |")


def number(value, none):
    return none if math.isnan(value) else f"{value:.1f}f"


def print_points(cells):
    for model in MODELS:
        points, found = [], rows(cells, model)
        alone = {row[:3]: row[4]["rise"] for row in found if row[3] == "none"}
        for types, policy, share, recall, f in found:
            way = WAYS.get((types, policy, recall))
            if way is None:
                continue
            if recall == "text":  # a text that asks nothing is read without recall
                f["rise"] = alone.get((types, policy, share), f["rise"])
            points.append((list(WAYS.values()).index(way), way, f))
        print(f"/* {NAMES[model]} */")
        for _, way, f in sorted(points, key=lambda p: (p[0], -p[2]["bytes"])):
            (a, b), (c, d) = f["facts"], f["rise"]
            print(f"    {{{way}, {f['bytes']:.1f}f, {number(a, '-1.0f')}, {number(b, '0.0f')}, "
                  f"{number(c, 'NAN')}, {number(d, 'NAN')}}},")


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--points"]):
        sys.exit(__doc__)
    cells = load(sys.argv[1])
    if sys.argv[2:]:
        print_points(cells)
    else:
        print_tables(cells)
        print_itself(cells)
        print_more(cells)


if __name__ == "__main__":
    main()
