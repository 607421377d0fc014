"""Byte-level BPE: training, encoding, decoding, and the GGUF view of it.

A token is a byte string.  Ids are: 0..255 the single bytes, then one id per merge in rank order,
then whole pieces that no merge makes, then the two control tokens.  Text is first cut by a pattern
(a word takes its leading space with it), and merges never cross a cut.  Two patterns, by the names
that GGUF has for them: "gpt-2", and "llama-bpe" (Llama 3), which cuts numbers into groups of three
digits and takes a piece that is a token as that token whatever the merges say.
"""

import functools
import json
import re
import sys
import unicodedata
from collections import Counter, defaultdict

BEGIN = "<|begin_of_text|>"
END = "<|end_of_text|>"


def _category_class(prefix):
    """Body of a regular-expression class: the characters whose category starts with prefix."""
    ranges = []
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code <= 0xDFFF and unicodedata.category(chr(code)).startswith(prefix):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in ranges)


@functools.lru_cache
def _pattern(name):
    letter, number = _category_class("L"), _category_class("N")
    if name == "gpt-2":
        return re.compile(
            rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{letter}]+| ?[{number}]+"
            rf"| ?[^\s{letter}{number}]+|\s+(?!\S)|\s+"
        )
    return re.compile(
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n{letter}{number}]?[{letter}]+|[{number}]{{1,3}}"
        rf"| ?[^\s{letter}{number}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def byte_alphabet():
    """GPT-2's printable stand-in for each of the 256 byte values."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, spare = {}, 256
    for byte in range(256):
        if byte in plain:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(spare)
            spare += 1
    return table


class Tokenizer:
    def __init__(self, merges, pieces=(), pre="gpt-2"):
        """merges: list of (left, right) byte strings in rank order; pieces: byte strings that are
        tokens without a merge (llama-bpe only); pre: the pattern's name."""
        self.merges, self.pieces, self.pre = merges, list(pieces), pre
        self.tokens = [bytes([b]) for b in range(256)] + [a + b for a, b in merges] + self.pieces
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.rank = {pair: i for i, pair in enumerate(merges)}
        self.begin = len(self.tokens)
        self.end = self.begin + 1
        self.size = self.begin + 2
        self.pattern = _pattern(pre)
        self.cache = {}
        if pre == "llama-bpe":
            self.cache = {token: [i] for token, i in self.ids.items()}

    def _word(self, piece):
        """Ids of one pre-token (bytes): again and again joins the pair of lowest rank."""
        known = self.cache.get(piece)
        if known is not None:
            return known
        parts = [bytes([b]) for b in piece]
        while len(parts) > 1:
            best = min(zip(parts, parts[1:]), key=lambda p: self.rank.get(p, len(self.rank)))
            if best not in self.rank:
                break
            parts = _join(parts, best)
        self.cache[piece] = ids = [self.ids[p] for p in parts]
        return ids

    def encode(self, text):
        """Ids of the text, without control tokens."""
        out = []
        for piece in self.pattern.findall(text):
            out += self._word(piece.encode("utf-8"))
        return out

    def decode(self, ids):
        return b"".join(self.tokens[i] for i in ids if i < self.begin).decode("utf-8", "replace")

    def gguf_lists(self):
        """(tokens, token types, merges) in GGUF's spelling; type 1 is normal, 3 is control."""
        alphabet = byte_alphabet()

        def spell(token):
            return "".join(alphabet[b] for b in token)

        tokens = [spell(t) for t in self.tokens] + [BEGIN, END]
        types = [1] * len(self.tokens) + [3, 3]
        return tokens, types, [f"{spell(a)} {spell(b)}" for a, b in self.merges]

    def save(self, path):
        merges = [[a.hex(), b.hex()] for a, b in self.merges]
        pieces = [p.hex() for p in self.pieces]
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"pre": self.pre, "merges": merges, "pieces": pieces}, f)

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as f:
            kept = json.load(f)
        merges = [(bytes.fromhex(a), bytes.fromhex(b)) for a, b in kept["merges"]]
        return cls(merges, [bytes.fromhex(p) for p in kept["pieces"]], kept["pre"])


def _join(parts, pair):
    """parts with every non-overlapping occurrence of the pair replaced by its concatenation."""
    out, i = [], 0
    while i < len(parts):
        if i + 1 < len(parts) and parts[i] == pair[0] and parts[i + 1] == pair[1]:
            out.append(pair[0] + pair[1])
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return out


def count_words(texts, pre="gpt-2"):
    """Counter of pre-tokens (bytes) over an iterable of strings."""
    pattern = _pattern(pre)
    counts = Counter()
    for text in texts:
        counts.update(pattern.findall(text))
    return Counter({word.encode("utf-8"): n for word, n in counts.items()})


def train(counts, n_merges=None):
    """Merges learnt from pre-token counts; without n_merges until every word is one token.

    Ties are broken by the pair's bytes, so the result depends on the counts alone.
    """
    words = [[bytes([b]) for b in word] for word in counts]
    weight = list(counts.values())
    pairs, where = Counter(), defaultdict(set)
    for w, parts in enumerate(words):
        for pair in zip(parts, parts[1:]):
            pairs[pair] += weight[w]
            where[pair].add(w)
    merges = []
    while pairs and (n_merges is None or len(merges) < n_merges):
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        for w in where.pop(best):
            for pair in zip(words[w], words[w][1:]):
                pairs[pair] -= weight[w]
                if pairs[pair] == 0:
                    del pairs[pair]
            words[w] = _join(words[w], best)
            for pair in zip(words[w], words[w][1:]):
                pairs[pair] += weight[w]
                where[pair].add(w)
    return merges
