"""Writes the prompts that the demo and the tests use: python3 make_demo.py DIR OUT.

needles.jsonl holds, per length, the first held-out documents whose answer the model gives with a
margin that survives other arithmetic (half floats, quantised keys): they test an engine, not the
model. prompt-2k.txt and answer-2k.txt are one more such document, asked about a fact in its first
quarter; it ends with the opening of the answer.
"""

import argparse
import json
import os

import numpy as np
import torch

from evaluate import PASSWORD, TEST_SEED, load
from presets import Phase
from stories import Stories
from tasks import Tasks

LENGTHS = (256, 512, 1024, 2048)
PER_LENGTH = 10
MARGIN = 1.0  # least distance between the first and the second logit along the answer
INVENTED = 0.25


@torch.no_grad()
def margin(model, ids, answer_start):
    """Least lead of the right logit along ids[answer_start:]; negative where one is wrong."""
    logits = model(torch.tensor([ids[:-1]]))[0, answer_start - 1 :]
    right = torch.tensor(ids[answer_start:])[:, None]
    lead = logits.gather(1, right)[:, 0]
    return (lead - logits.scatter(1, right, -np.inf).max(-1).values).min().item()


def documents(model, tasks, n_tok, n_facts):
    """Endless (number, ids, index of the fact, index of the answer) of documents with margin."""
    number = 0
    while True:
        rng = np.random.default_rng([TEST_SEED + 1, n_tok, number])
        doc, [(fact_at, answer_at)] = tasks.examination(rng, n_tok, n_facts, 1)
        if margin(model, doc.ids, answer_at) >= MARGIN:
            yield number, doc.ids, fact_at, answer_at
        number += 1


def write(path, text):
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("out")
    args = parser.parse_args()
    tok, model, _ = load(args.folder)
    stories = Stories(tok, TEST_SEED + 1)
    os.makedirs(args.out, exist_ok=True)
    tasks, lines = Tasks(tok, stories, Phase(0, {}, 0, facts=PASSWORD, invented=INVENTED)), []
    for n_tok in LENGTHS:
        source = documents(model, tasks, n_tok, n_tok // 64)
        for _ in range(PER_LENGTH):
            number, ids, _, at = next(source)
            lines.append(
                json.dumps(
                    {
                        "tokens": at,
                        "prompt": tok.decode(ids[1:at]),
                        "answer": tok.decode(ids[at:-1]),
                    }
                )
            )
        print(f"{n_tok} tokens: {PER_LENGTH} of {number + 1} documents")
    write(os.path.join(args.out, "needles.jsonl"), "".join(line + "\n" for line in lines))

    tasks = Tasks(tok, stories, Phase(0, {}, 0, facts=PASSWORD, invented=0.0))
    ids, at = next(
        (ids, at) for _, ids, fact_at, at in documents(model, tasks, 2000, 12) if fact_at < at // 4
    )
    opening = tok.encode(" is")[0]
    at = ids.index(opening, at) + 1
    write(os.path.join(args.out, "prompt-2k.txt"), tok.decode(ids[1:at]))
    write(os.path.join(args.out, "answer-2k.txt"), tok.decode(ids[at:-1]))


if __name__ == "__main__":
    main()
