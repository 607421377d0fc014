"""The part `store`: one token's attention, and a chunk's, over every pair of storage types that
bench_store measures, against f16. Standard library only."""
import os

from engines import figures
from read import cell, print_rows

TABLES = {"flat": "one token, flat weights", "peaked": "one token, peaked weights",
          "prompt": "128 tokens"}


def print_store(args, log):
    threads = args.threads[0]
    program = os.path.join(args.build, "bench", "bench_store")
    rounds = min(100, 5 * args.rounds)
    rows = figures(program, ["--csv", "--threads", str(threads), "--rounds", str(rounds)])
    print(f"\nstore: one layer's lanes of 8 KV heads, {threads} threads, medians of {rounds}; times "
          "as fast as f16")
    pairs = list(dict.fromkeys((row["k"], row["v"]) for row in rows))
    for data, words in TABLES.items():
        table = {}
        for row in rows:
            if row["data"] == data:
                place = tuple(int(row[key]) for key in ("dim", "group", "depth"))
                table.setdefault(place, {})[row["k"], row["v"]] = row
        head = ["head size", "group", "entries", "f16, us", "bound, us",
                *(f"{k}/{v}" for k, v in pairs[1:])]
        print(f"\n{words}")
        print_rows(sorted(table.items()), head, lambda item: [
            *(f"{x:,}" for x in item[0]), cell(item[1][pairs[0]]["us"], 0),
            cell(item[1][pairs[0]]["bound_us"], 0),
            *(cell(item[1][pair]["times_f16"], 2) if pair in item[1] else "-"
              for pair in pairs[1:])])
    for row in rows:
        log.add("pith", "-", setting=f"{row['k']}/{row['v']} {row['data']} dim {row['dim']} group "
                f"{row['group']}", model="-", threads=threads, test="store",
                depth=int(row["depth"]), round=0, value=float(row["us"]), unit="us")
