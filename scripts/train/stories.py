"""Filler: paragraphs as lists of encoded sentences, written by language.py or cut from a corpus."""

import re

import numpy as np

import language

PARAGRAPHS = 4000
STRANGE_SHARE = 0.1
SENTENCE_END = re.compile(r"(?<=[.!?]) +")


def _encoded(tok, sentences):
    """The first as it opens a line, the others with their leading space."""
    return [tok.encode(s if i == 0 else " " + s) for i, s in enumerate(sentences)]


class Stories:
    def __init__(self, tok, seed, corpus=""):
        """corpus: plain text, paragraphs separated by blank lines."""
        writer = language.Writer(np.random.default_rng(seed), STRANGE_SHARE)
        self.written = [_encoded(tok, writer.paragraph()) for _ in range(PARAGRAPHS)]
        paragraphs = (" ".join(p.split()) for p in corpus.split("\n\n"))
        self.cut = [_encoded(tok, SENTENCE_END.split(p)) for p in paragraphs if p]

    def sentences(self, rng, from_corpus):
        """Endless (ids, opens a paragraph): written ones at random, the corpus in its order."""
        at = rng.integers(len(self.cut)) if from_corpus else 0
        while True:
            if from_corpus:
                paragraph, at = self.cut[at], (at + 1) % len(self.cut)
            else:
                paragraph = self.written[rng.integers(len(self.written))]
            for i, ids in enumerate(paragraph):
                yield ids, i == 0
