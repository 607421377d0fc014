"""Natural text for mini: a folder of .txt or .txt.xz files, encoded once, drawn as passages.

Works are separated by form feeds, paragraphs by blank lines.
"""

import glob
import lzma
import os
import re

import numpy as np

SENTENCE_START = re.compile(r"(?<=[.!?])\s+(?=\S)")
SEARCHED = 24  # tokens: the usual distance to the next sentence


def read(folder, heldout=False):
    """The works of a folder's files in the order of their names: of heldout.*, which is for tests,
    or of all others."""
    works = []
    for path in sorted(glob.glob(os.path.join(folder, "*.txt*"))):
        if os.path.basename(path).startswith("heldout") != heldout:
            continue
        opened = lzma.open if path.endswith(".xz") else open
        with opened(path, "rt", encoding="utf-8") as f:
            works += [w.strip("\n") for w in f.read().split("\f") if w.strip()]
    return works


class Corpus:
    """Token ids of all works, each closed by the end token."""

    def __init__(self, tok, ids):
        self.tok, self.ids = tok, ids

    @classmethod
    def load(cls, tok, folder, path, heldout=False):
        """Encoded on first use and kept in path."""
        if not os.path.exists(path):
            works = read(folder, heldout)
            encoded = [np.array(tok.encode(work) + [tok.end], np.uint16) for work in works]
            np.save(path, np.concatenate(encoded))
        return cls(tok, np.load(path, mmap_mode="r"))

    def passage(self, rng, n_tok):
        """n_tok ids from anywhere."""
        at = rng.integers(len(self.ids) - n_tok)
        return self.ids[at : at + n_tok]

    def text(self, rng, n_tok):
        """About n_tok tokens as text, from the beginning of a sentence on."""
        text = self.tok.decode(self.passage(rng, n_tok + SEARCHED))
        return SENTENCE_START.split(text, maxsplit=1)[-1]
