"""The batches that mini learns from: natural text, and documents of reading.py and reasoning.py, in
the shares that a phase of the preset gives.

Answers are 1 % of the tokens of one kind of document and 80 % of another.  So that no kind drowns
the others, the weights of a row's answers are scaled to ANSWER_SHARE of the row's tokens in sum.
"""

import numpy as np

from reading import END, Reading
from reasoning import Reasoning
from tasks import ANSWER_WEIGHT

MARGIN = 4  # tokens that a document may come out longer than planned
ANSWER_SHARE = 0.2
MOST_WEIGHT = 10.0
SHORTEST = 48  # tokens of a document; what is left of a row beyond is natural text


class Mixture:
    def __init__(self, tok, corpus, phase):
        self.tok, self.corpus, self.phase = tok, corpus, phase
        self.sizes = np.array([len(token) for token in tok.tokens] + [0, 0])
        self.reading = Reading(tok, corpus, phase.text_weight, phase.surprise_weight)
        self.reasoning = Reasoning(phase.surprise_weight)
        self.kinds = list(phase.kinds)
        self.shares = np.array(list(phase.kinds.values())) / sum(phase.kinds.values())

    def parts(self, rng, kind, n_tok):
        p = self.phase
        if kind in ("dense", "facts"):
            return getattr(self.reading, kind)(rng, n_tok, p.facts, p.invented)
        if kind in ("trace", "derivation"):
            return getattr(self.reasoning, kind)(rng, n_tok)
        return getattr(self.reading, kind)(rng, n_tok)

    def encode(self, parts):
        """(ids, weights): texts up to an end token are cut into tokens as one; a token has the
        weight of the part that it begins in."""
        ids, weights, run = [self.tok.begin], [0.0], []
        for text, weight in parts + [(END, None)]:
            if text is not END:
                run.append((text.encode(), weight))
                continue
            some = self.tok.encode(b"".join(t for t, _ in run).decode())
            starts = np.cumsum(self.sizes[some]) - self.sizes[some]
            parts_end = np.cumsum([len(t) for t, _ in run])
            owner = np.searchsorted(parts_end, starts, side="right")
            ids += some
            weights += [run[i][1] for i in owner]
            run = []
            if weight is not None:
                ids.append(self.tok.end)
                weights.append(weight)
        return ids, weights

    def row(self, rng, n_tok):
        """(ids, weights, kind of the first document), n_tok of each."""
        kind = first = self.kinds[rng.choice(len(self.kinds), p=self.shares)]
        ids, weights = [], []
        while len(ids) < n_tok:
            room = n_tok - len(ids)
            if kind == "text" or room < SHORTEST:
                some = self.corpus.passage(rng, room).tolist()
                ids += some
                weights += [self.phase.text_weight] * len(some)
            else:
                some, their = self.encode(self.parts(rng, kind, room - MARGIN))
                ids += some
                weights += their
        return ids[:n_tok], weights[:n_tok], first

    def batch(self, rng, n_seq, n_tok):
        """ids [n_seq][n_tok + 1], the loss weight of each as a target, the weight in its document
        of each answer and 0 for the rest, and the rows' kinds."""
        rows = [self.row(rng, n_tok + 1) for _ in range(n_seq)]
        ids = np.array([r[0] for r in rows], np.int64)
        weights = np.array([r[1] for r in rows], np.float32)
        answers = np.where(weights >= ANSWER_WEIGHT, weights, 0)
        scale = ANSWER_SHARE * n_tok / np.maximum(answers.sum(1, keepdims=True), 1)
        scaled = np.minimum(answers * scale, MOST_WEIGHT)
        return ids, np.where(answers > 0, scaled, weights), answers, [r[2] for r in rows]
