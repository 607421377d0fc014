"""Scores a checkpoint on held-out documents: python3 evaluate.py DIR.

An answer counts if every token of it, the end token included, is the model's first choice given
the ones before, which is the same as: greedy generation gives exactly this answer.  Depth is the
third of the document before the question in which the fact stands.
"""

import argparse
import os
from collections import defaultdict

import numpy as np
import torch

import tokenizer
from hybrid import decoder
from model import Config
from presets import Phase
from stories import Stories
from tasks import Tasks

TEST_SEED = 90001  # training seeds are small numbers
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
DEPTHS = ("start", "middle", "end")
PASSWORD, FRIEND, WAY = {"password": 1.0}, {"friend": 1.0}, {"way": 1.0}
# Name of the row, kinds of facts, share of invented words, facts in the document (None: one per 40
# tokens, 4 to 24).
ROWS = (
    ("password", PASSWORD, 0.0, 1),
    ("password", PASSWORD, 0.0, None),
    ("password, invented", PASSWORD, 1.0, 4),
    ("friend", FRIEND, 0.0, 4),
    ("way", WAY, 0.0, 1),
)


def load(folder):
    """(tokenizer, model, checkpoint) of a training run's folder."""
    state = torch.load(os.path.join(folder, "checkpoint.pt"), map_location="cpu")
    model = decoder(Config(**state["config"]))
    model.load_state_dict(state["model"])
    return tokenizer.Tokenizer.load(os.path.join(folder, "tokenizer.json")), model.eval(), state


@torch.no_grad()
def is_right(model, ids, answer_start):
    """Whether ids[answer_start:] is what the model would write after ids[:answer_start]."""
    choice = model(torch.tensor([ids[:-1]]))[0, answer_start - 1 :].argmax(-1)
    return choice.tolist() == ids[answer_start:]


def score(model, tasks, n_tok, n_facts, count):
    """{third of the document: [right or not]} over count documents with one question each."""
    results = defaultdict(list)
    for i in range(count):
        rng = np.random.default_rng([TEST_SEED, n_tok, n_facts, i])
        doc, [(fact_at, answer_at)] = tasks.examination(rng, n_tok, n_facts, 1)
        depth = DEPTHS[min(2, 3 * fact_at // answer_at)]
        results[depth].append(is_right(model, doc.ids, answer_at))
    return results


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=100, help="documents per row")
    parser.add_argument("--shortest", type=int, default=128)
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--corpus", help="use this text as filler instead of the small English")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tok, model, _ = load(args.folder)
    stories = Stories(
        tok, TEST_SEED, open(args.corpus, encoding="utf-8").read() if args.corpus else ""
    )
    print("| tokens | kind | facts | documents | right | " + " | ".join(DEPTHS) + " |")
    print("|---|---|---|---|---|---|---|---|")
    for n_tok in (n for n in LENGTHS if args.shortest <= n <= args.longest):
        for name, kinds, invented, n_facts in ROWS:
            n_facts = n_facts or max(4, min(24, n_tok // 40))
            phase = Phase(0, {}, 0, facts=kinds, invented=invented, corpus=float(bool(args.corpus)))
            results = score(model, Tasks(tok, stories, phase), n_tok, n_facts, args.count)
            every = [r for rs in results.values() for r in rs]
            cells = [
                f"{np.mean(results[d]):.2f} ({len(results[d])})" if results[d] else "-"
                for d in DEPTHS
            ]
            print(
                f"| {n_tok} | {name} | {n_facts} | {len(every)} | {np.mean(every):.3f} | "
                + f"{' | '.join(cells)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
