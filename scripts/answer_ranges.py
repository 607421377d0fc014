#!/usr/bin/env python3
"""Texts and answers of `pith eval TASK --text --json FILE` as what `pith calibrate` reads: the
token ids of each prompt and its answer, one piece after the other, and the ranges of the tokens
from which answers are written (the last of the prompt to the last but one of the answer).

    scripts/answer_ranges.py MODEL OUT FILE.. [--pith build/cli/pith] [--piece N]
    pith calibrate queries -m MODEL --tokens OUT.tokens -c N --select OUT.ranges -o model.stats

A piece is filled up with its last token; an item longer than one is left out. Standard library."""
import argparse
import json
import subprocess


def tokenize(args, text):
    run = subprocess.run([args.pith, "tokenize", "-m", args.model, "--json"], input=text.encode(),
                         check=True, stdout=subprocess.PIPE)
    return json.loads(run.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("results", nargs="+")
    parser.add_argument("--pith", default="build/cli/pith")
    parser.add_argument("--piece", type=int, default=1100, help="tokens of a piece (default 1100)")
    args = parser.parse_args()
    ids, ranges = [], []
    for name in args.results:
        with open(name, encoding="utf-8") as f:
            texts = [text for row in json.load(f)["rows"] for text in row["texts"]]
        for text in texts:
            prompt = tokenize(args, text["prompt"] + text["prefix"])
            whole = tokenize(args, text["prompt"] + text["prefix"] + text["answer"])
            if not len(prompt) < len(whole) <= args.piece:
                continue
            ranges.append(f"{len(ids) + len(prompt) - 1} {len(ids) + len(whole) - 1}")
            ids += whole + [whole[-1]] * (args.piece - len(whole))
    with open(args.out + ".tokens", "w", encoding="ascii") as f:
        f.write(" ".join(map(str, ids)) + "\n")
    with open(args.out + ".ranges", "w", encoding="ascii") as f:
        f.write("\n".join(ranges) + "\n")
    print(f"{len(ranges)} answers, {len(ids)} tokens")


if __name__ == "__main__":
    main()
