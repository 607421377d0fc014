"""The part `share`: many sequences through the scheduler, prefix reuse and MemShare's comparing, as
bench_share measures them, and with --requests the table of `pith eval share`. Standard library
only."""
import json
import os

from engines import figures, run
from read import cell, print_rows

HEAD = ["row", "tokens/s", "ratio", "affected", "memory allows", "part of it", "running", "ratio",
        "saved", "dead", "put back", "nll against the first"]
KEYS = ["tokens_per_s", "ratio", "affected", "bound", "of_bound", "running", "running_ratio",
        "saved", "dead", "preempted"]


# Random weights make no page like another, not even of equal steps, so that the thresholds of pages
# are left open: at 0.95 the steps that recur letter by letter are shared, at 0.8 most steps.
OPEN = ",block=100,relative=2"
ROWS = ["none", "prefix", "memshare:step=0.95" + OPEN, "memshare:step=0.8" + OPEN, "random",
        "triattention:v3,budget=50%",
        "memshare:step=0.95" + OPEN + " + triattention:v3,budget=50%"]


def print_requests(args, model, threads, log, commit):
    """Throughput on random weights: answers are given, because none would mean anything."""
    text = run([os.path.join(args.build, "cli", "pith"), "eval", "share", "-m", model, "-t",
                str(threads), "--forced", "verbatim", "--requests", str(args.requests),
                "--repeats", str(args.rounds), "--json", "-",
                *(word for row in ROWS for word in ("--row", row))]).text
    rows = json.loads(text)["rows"]
    print_rows(rows, HEAD, lambda row: [
        row["row"], *(cell("" if row[key] is None else str(row[key]), 2) for key in KEYS),
        f"{row['nll_diff']:+.3f}"])
    for row in rows:
        log.add("pith", commit, setting=row["row"], model=args.types[0], threads=threads,
                test="share requests", depth=args.requests, round=0, value=row["tokens_per_s"])


def print_share(args, log, commit, model):
    """model() makes the file: random weights, and the tokenizer of a model of the repository."""
    threads, path = args.threads[0], model()
    rows = figures(os.path.join(args.build, "bench", "bench_share"),
                   ["--csv", "--threads", str(threads), "--rounds", str(2 * args.rounds - 1), path])
    print(f"\nshare: {args.types[0]}, {threads} threads, medians of {2 * args.rounds - 1}")
    print_rows(rows, ["part", "what", "sequences", "value", "bound", "goal"], lambda row: [
        row["part"], row["what"], row["sequences"],
        f"{cell(row['value'], 3)} {row['unit']}".strip(), cell(row["bound"], 2),
        row["goal"] or "-"])
    for row in rows:
        log.add("pith", commit, setting=row["what"], model=args.types[0], threads=threads,
                test=f"share {row['part']}", depth=int(row["sequences"]), round=0,
                value=float(row["value"]), unit=row["unit"])
    if args.requests:
        print_requests(args, path, threads, log, commit)
