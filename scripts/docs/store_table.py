"""Prints the tables of docs/store.md, "On real models", from the cells of store_real.sh.

usage: store_table.py OUT

Perplexity's rise is exp(mean difference of nll) - 1, its error that of the paired tokens. KiB per
token are the peak of a sequence of 1,024 tokens, positions and whole pages included.
"""
import glob
import json
import os
import sys

MODELS = ("smollm2", "coder-0.5b", "coder-1.5b")


def cells(out):
    found = {}
    for path in glob.glob(os.path.join(out, "*.json")):
        model = next((m for m in MODELS if os.path.basename(path).startswith(m + ".")), None)
        if model is None:
            continue
        task, k, v = os.path.basename(path)[len(model) + 1:-len(".json")].split(".", 2)
        with open(path) as file:
            found[model, task, k, v] = json.load(file)["summary"]
    return found


def rise(summary):
    if summary is None:
        return "-"
    return f"{100 * (summary['ratio'] - 1):+.2f} ± {100 * summary['ratio_se']:.2f}"


def row(found, model, k, v):
    short, long, facts = (found.get((model, task, k, v))
                          for task in ("perplexity", "perplexity-8192", "facts"))
    size = f"{short['kv_peak_bytes'] / 1024 / 1024:.2f}" if short else "-"
    of = f"{facts['score'] * facts['n']:.0f} of {facts['n']}" if facts else "-"
    return f"| `{k}` / `{v}` | {size} | {rise(short)} | {rise(long)} | {of} |"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    found = cells(sys.argv[1])
    for model in MODELS:
        pairs = {(k, v) for m, _, k, v in found if m == model}
        size = {p: found.get((model, "perplexity", *p), {}).get("kv_peak_bytes", 0) for p in pairs}
        if not pairs:
            continue
        print(f"\n{model}\n\n| K / V | KiB per token | 1,024 tokens, % | 8,192 tokens, % | facts |\n"
              "|---|---|---|---|---|")
        for k, v in sorted(pairs, key=lambda p: (-size[p], p)):
            print(row(found, model, k, v))


if __name__ == "__main__":
    main()
