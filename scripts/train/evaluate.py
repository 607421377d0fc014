"""Scores a checkpoint on held-out documents: python3 evaluate.py DIR.

An answer counts if every token of it, the end token included, is the model's first choice given the ones
before, which is the same as: greedy generation gives exactly this answer.
"""
import argparse
import os
from collections import defaultdict

import numpy as np
import torch

import tokenizer
from model import Config, Decoder
from presets import Phase
from tasks import Stories, Tasks

TEST_SEED = 90001        # training seeds are small numbers
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
DEPTHS = ("start", "middle", "end")
SHARES = {"password": {"password": 1.0}, "friend": {"friend": 1.0}, "way": {"way": 1.0},
          "mixed": {"password": 0.6, "friend": 0.2, "way": 0.2}}


def load(folder):
    """(tokenizer, model, checkpoint) of a training run's folder."""
    state = torch.load(os.path.join(folder, "checkpoint.pt"))
    model = Decoder(Config(**state["config"]))
    model.load_state_dict(state["model"])
    return tokenizer.Tokenizer.load(os.path.join(folder, "tokenizer.json")), model.eval(), state


@torch.no_grad()
def is_right(model, ids, answer_start):
    """Whether ids[answer_start:] is what the model would write after ids[:answer_start]."""
    choice = model(torch.tensor([ids[:-1]]))[0, answer_start - 1:].argmax(-1)
    return choice.tolist() == ids[answer_start:]


def score(model, tasks, n_tok, n_facts, count):
    """{third of the document: [right or not]} over count documents with one question each."""
    results = defaultdict(list)
    for i in range(count):
        rng = np.random.default_rng([TEST_SEED, n_tok, n_facts, i])
        doc, [(_, fact_at, answer_at)] = tasks.examination(rng, n_tok, n_facts, 1)
        depth = DEPTHS[min(2, 3 * fact_at // answer_at)]
        results[depth].append(is_right(model, doc.ids, answer_at))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=100, help="documents per row")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tok, model, _ = load(args.folder)
    stories = Stories(tok, TEST_SEED)
    print("| tokens | facts | kind | documents | right | " + " | ".join(DEPTHS) + " |")
    print("|---|---|---|---|---|---|---|---|")
    for n_tok in (n for n in LENGTHS if n <= args.longest):
        for kind, n_facts in (("password", 1), ("password", max(4, min(24, n_tok // 40))), ("friend", 4), ("way", 1),
                              ("mixed", max(4, min(24, n_tok // 40)))):
            tasks = Tasks(tok, stories, Phase(0, {}, 0, facts=SHARES[kind]))
            results = score(model, tasks, n_tok, n_facts, args.count)
            every = [r for rs in results.values() for r in rs]
            cells = [f"{np.mean(results[d]):.2f} ({len(results[d])})" if results[d] else "-" for d in DEPTHS]
            print(f"| {n_tok} | {n_facts} | {kind} | {len(every)} | {np.mean(every):.3f} | {' | '.join(cells)} |",
                  flush=True)


if __name__ == "__main__":
    main()
