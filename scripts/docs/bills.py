#!/usr/bin/env python3
"""Prints problems whose answers repeat their steps, as `pith eval questions` reads them.

    scripts/docs/bills.py PROBLEMS > bills.jsonl

Six people buy pencils, notebooks and folders; the model writes each bill in the same way and names
the largest. Purchases are drawn from three, so that most bills are written more than once, under
other names. The same number gives the same problems. Standard library only.
"""
import json
import random
import sys

NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Frank"]
GOODS = ["pencils", "notebooks", "folders"]


def problem(draw):
    prices = draw.sample(range(2, 7), len(GOODS))
    kinds = [[draw.randint(1, 5) for _ in GOODS] for _ in range(3)]
    bought = [draw.choice(kinds) for _ in NAMES]
    costs = ", ".join(f"{good} cost ${price} each" for good, price in zip(GOODS, prices))
    lines = [f"{name} buys " + ", ".join(f"{n} {good}" for n, good in zip(counts, GOODS)) + "."
             for name, counts in zip(NAMES, bought)]
    largest = max(sum(n * price for n, price in zip(counts, prices)) for counts in bought)
    return {"question": f"In a shop {costs}. {' '.join(lines)} Write the bill of each person, one after the "
                        "other, in full sentences and in the same way for each. How many dollars is the "
                        "largest bill?", "answer": str(largest)}


def main():
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    draw = random.Random(1)
    for _ in range(int(sys.argv[1])):
        print(json.dumps(problem(draw)))


if __name__ == "__main__":
    main()
