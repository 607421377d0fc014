#!/usr/bin/env python3
"""Texts for the 722,560-parameter prototype model (docs/prototype.md): contexts with facts and
questions about them for `pith eval facts`, and token files for `pith calibrate queries --tokens`.

    python3 scripts/golden/prototype.py -o DIR [--contexts 48] [--seed 1]

writes facts-8.jsonl and facts-24.jsonl (512 tokens with the questions), and for each of mix, needle
and dfs NAME.tokens (40 texts of 512 tokens) and NAME-answers.ranges, the positions whose next token
is an answer. --mix gives the shares of needle, dfs, chain and copy in mix. --language prints the
successors of the filler words instead, the table in tests/policy/test_prototype.c. Needs numpy. Its
RandomState gives the same numbers in every version.

The vocabulary has 512 ids and no texts: 0-31 marks, 32-47 numbers modulo 16, 64-127 nodes of a
graph, 128-223 keys, 224-351 values, 352-511 filler words."""

import argparse
import json
import os

import numpy as np

BOS, SET, ASK, EQUALS, END_MARK, GRAPH, COLON = 1, 2, 3, 4, 5, 6, 7
POP, END, DFS, STACK, CALC, PLUS, SUM, COPY = 9, 10, 11, 12, 13, 14, 15, 16
NUMBER, NODE, KEY, VALUE, FILLER = 32, 64, 128, 224, 352
N_NODE, N_KEY, N_VALUE, N_FILLER, N_VOCAB = 64, 96, 128, 160, 512

LENGTH = 512          # tokens of a text
LANGUAGE_SEED = 1234  # of the one language that the model learnt
KINDS = ("needle", "dfs", "chain", "copy")
MIX = (0.35, 0.42, 0.18, 0.05)  # what it was trained on last


def language():
    """[N_FILLER][4] words that may follow each word, and the frequency of all words (Zipf)."""
    frequency = 1.0 / np.arange(1, N_FILLER + 1)
    frequency /= frequency.sum()
    rng = np.random.RandomState(LANGUAGE_SEED)
    follow = [rng.choice(N_FILLER, 4, replace=False, p=frequency) for _ in range(N_FILLER)]
    return np.array(follow), frequency


class Text:
    """Tokens, and of each whether it is an answer, which the tokens before it decide."""

    def __init__(self):
        self.ids, self.answer = [], []

    def add(self, ids, answer=False):
        self.ids += [int(i) for i in ids]
        self.answer += list(answer) if isinstance(answer, list) else [answer] * len(ids)

    def __len__(self):
        return len(self.ids)


class Writer:
    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.words = self.walk(400_000)

    def walk(self, n):
        """A long text of filler: seven words in ten follow from the word before."""
        follow, frequency = language()
        follows = self.rng.rand(n) < 0.7
        which = self.rng.choice(4, n, p=[0.5, 0.25, 0.15, 0.1])
        anew = self.rng.choice(N_FILLER, n, p=frequency)
        words, word = np.empty(n, np.int64), 0
        for i in range(n):
            word = follow[word][which[i]] if follows[i] else anew[i]
            words[i] = word
        return words + FILLER

    def filler(self, n):
        at = self.rng.randint(0, len(self.words) - n)
        return self.words[at:at + n]

    # ---- facts in filler ----

    def facts(self, n, least, most):
        """n facts SET key = values ; with keys that differ."""
        keys = self.rng.choice(N_KEY, n, replace=False) + KEY
        sizes = self.rng.randint(least, most + 1, n)
        values = [(self.rng.randint(0, N_VALUE, size) + VALUE).tolist() for size in sizes]
        return [[SET, int(key), EQUALS, *value, END_MARK] for key, value in zip(keys, values)]

    def gaps(self, total, n):
        """n + 1 lengths that add up to total."""
        cuts = np.sort(self.rng.randint(0, total + 1, n))
        return np.diff(np.concatenate([[0], cuts, [total]]))

    @staticmethod
    def question(fact):
        return [ASK] + fact[1:], [False] * 3 + [True] * (len(fact) - 3)

    def needle_apart(self, n_fact, n_question, sizes):
        """Every question somewhere behind its fact."""
        facts = self.facts(n_fact, *sizes)
        when = np.sort(self.rng.rand(n_fact) * 0.8)
        events = [(when[i], False, facts[i]) for i in range(n_fact)]
        for _ in range(n_question):
            i = self.rng.randint(n_fact)
            events.append((when[i] + (1 - when[i]) * self.rng.rand(), True, facts[i]))
        chosen, room = [], LENGTH
        for _, is_question, fact in sorted(events, key=lambda e: e[:2]):
            if len(fact) <= room:
                chosen.append((is_question, fact))
                room -= len(fact)
            elif not is_question:
                break
        text = Text()
        text.add([BOS])
        gaps = self.gaps(room, len(chosen))
        for gap, (is_question, fact) in zip(gaps, chosen):
            text.add(self.filler(gap))
            text.add(*(self.question(fact) if is_question else (fact,)))
        text.add(self.filler(gaps[-1]))
        return text

    def context(self, facts):
        """Facts in filler, with room for a question about each; and where each fact begins."""
        total = sum(len(fact) for fact in facts)
        gaps, text, at = self.gaps(LENGTH - 2 * total, len(facts)), Text(), []
        text.add([BOS])
        for gap, fact in zip(gaps, facts):
            text.add(self.filler(gap))
            at.append(len(text))
            text.add(fact)
        text.add(self.filler(gaps[-1]))
        return text, at

    def needle_tail(self, n_fact, sizes):
        """All questions behind all facts."""
        facts = self.facts(n_fact, *sizes)
        text, _ = self.context(facts)
        for i in self.rng.permutation(n_fact):
            text.add(*self.question(facts[i]))
        return text

    def needle(self):
        kind, many = self.rng.rand(), max(4, min(N_KEY - 1, LENGTH // 14))
        if kind < 0.65:
            n = self.rng.randint(2, many)
            asked = min(n * self.rng.uniform(1, 4), (LENGTH - 6 * n) / 6 * self.rng.uniform(0.5, 1))
            return self.needle_apart(n, int(asked) + 1, (1, 4) if self.rng.rand() < 0.5 else (2, 2))
        if kind < 0.9:
            return self.needle_tail(self.rng.randint(2, many), (2, 2))
        return self.needle_tail(self.rng.randint(1, max(3, LENGTH // 40)), (1, 4))

    # ---- depth-first search of a tree ----

    def tree(self, n):
        """Names, of which the first is the root, and the children of each."""
        names = [NODE] + (self.rng.choice(N_NODE - 1, n - 1, replace=False) + NODE + 1).tolist()
        children = {name: [] for name in names}
        for i in range(1, n):
            free = [p for p in names[max(0, i - 6):i] if len(children[p]) < 3]
            children[free[self.rng.randint(len(free))]].append(names[i])
        for name in names:
            self.rng.shuffle(children[name])
        return names, children

    def search(self, n, p_stack):
        """A tree as lists of children, then its traversal, which sometimes shows the stack."""
        names, children = self.tree(n)
        text = Text()
        text.add([GRAPH])
        for i in self.rng.permutation(n):
            text.add([names[i], COLON] + children[names[i]] + [END_MARK])
        text.add([DFS, names[0]])
        stack, left = [names[0]], {name: list(children[name]) for name in names}
        self.enter(text, stack, p_stack)
        while stack:
            top = stack[-1]
            if left[top]:
                stack.append(left[top].pop(0))
                text.add([stack[-1]], True)
                self.enter(text, stack, p_stack)
                continue
            text.add([END_MARK], True)
            stack.pop()
            if stack:
                text.add([POP, stack[-1], top], [False, True, False])
            else:
                text.add([END])
        return text

    def enter(self, text, stack, p_stack):
        if self.rng.rand() < p_stack:
            text.add([STACK] + stack[::-1] + [END_MARK, stack[-1]],
                     [False] + [True] * (len(stack) + 1) + [False])
        text.add([COLON])

    def dfs(self):
        text = Text()
        text.add([BOS])
        while len(text) <= LENGTH:
            n = self.rng.randint(3, min(N_NODE - 1, max(5, LENGTH // 10)) + 1)
            part, room = self.search(n, self.rng.choice([0.0, 0.1, 0.25])), LENGTH + 1 - len(text)
            if len(text) > 1 and len(part) > room:  # filler, not half a tree
                text.add(self.filler(room))
            else:
                text.add(part.ids, part.answer)
        return text

    # ---- sums and copies ----

    def chain(self):
        text = Text()
        text.add([BOS])
        while len(text) <= LENGTH:
            room = LENGTH + 1 - len(text)
            n = room if self.rng.rand() < 0.5 else self.rng.randint(60, LENGTH)
            self.sums(text, n, [self.rng.randint(0, 16, 2) for _ in range(self.rng.randint(2, 7))])
        return text

    def sums(self, text, n, pairs):
        end, total = len(text) + n, 0
        while len(text) < end:
            a, b = pairs[self.rng.randint(len(pairs))]
            s, t, u = (a + b) % 16, (a + 2 * b) % 16, (2 * a + 2 * b) % 16
            text.add([CALC, NUMBER + a, NUMBER + b, COLON])
            for x, y, z in ((a, b, s), (s, b, t), (t, a, u)):
                text.add([NUMBER + x, PLUS, NUMBER + y, EQUALS, NUMBER + z, END_MARK],
                         [False] * 4 + [True, False])
            after = (total + u) % 16
            text.add([SUM, NUMBER + total, PLUS, NUMBER + u, EQUALS, NUMBER + after, END_MARK],
                     [False, True, False, False, False, True, False])
            total = after

    def copy(self):
        text = Text()
        text.add([BOS])
        while len(text) <= LENGTH:
            room = LENGTH + 1 - len(text)
            n = self.rng.randint(4, max(5, min(LENGTH // 2, room // 2 + 2)))
            letters = self.rng.randint(NODE, N_VOCAB, n)
            text.add([COPY] + letters.tolist() + [COPY])
            text.add(letters, True)
        return text

    # ---- files ----

    def texts(self, n, mix):
        for _ in range(n):
            yield getattr(self, KINDS[self.rng.choice(len(KINDS), p=np.array(mix) / sum(mix))])()

    def item(self, n_fact, n_question):
        facts = self.facts(n_fact, 2, 2)
        text, at = self.context(facts)
        questions = [{"ask": [ASK, facts[i][1], EQUALS], "answer": facts[i][3:5],
                      "at": round(at[i] / len(text), 4)}
                     for i in self.rng.permutation(n_fact)[:n_question]]
        return {"context": text.ids, "questions": questions}


def write_calibration(writer, folder, name, mix, n_text):
    """A range is a run of positions whose next token is an answer."""
    begin, ranges = None, []
    with open(os.path.join(folder, name + ".tokens"), "w") as out:
        for i, text in enumerate(writer.texts(n_text, mix)):
            out.write(" ".join(map(str, text.ids[:LENGTH])) + "\n")
            for j, wanted in enumerate(text.answer[1:LENGTH + 1] + [False]):
                if wanted and begin is None:
                    begin = i * LENGTH + j
                elif not wanted and begin is not None:
                    ranges.append((begin, min(i * LENGTH + j, (i + 1) * LENGTH)))
                    begin = None
    with open(os.path.join(folder, name + "-answers.ranges"), "w") as out:
        out.write("".join(f"{begin} {end}\n" for begin, end in ranges))


def print_language():
    rows = ["{" + ", ".join(map(str, row)) + "}" for row in language()[0]]
    for i in range(0, len(rows), 5):
        print("    " + ", ".join(rows[i:i + 5]) + ",")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", metavar="DIR", help="an existing folder")
    parser.add_argument("--contexts", type=int, default=48, help="of each file of facts")
    parser.add_argument("--questions", type=int, default=8, help="about each context")
    parser.add_argument("--texts", type=int, default=40, help="of each calibration file")
    parser.add_argument("--mix", type=float, nargs=4, default=MIX, metavar="SHARE",
                        help="of " + ", ".join(KINDS) + " (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--language", action="store_true")
    args = parser.parse_args()
    if args.language:
        return print_language()
    if args.output is None:
        parser.error("-o DIR or --language is wanted")
    for n_fact in (8, 24):
        writer = Writer(1000 * args.seed + n_fact)
        with open(os.path.join(args.output, f"facts-{n_fact}.jsonl"), "w") as out:
            for _ in range(args.contexts):
                out.write(json.dumps(writer.item(n_fact, args.questions)) + "\n")
    mixes = (("mix", args.mix), ("needle", (1, 0, 0, 0)), ("dfs", (0, 1, 0, 0)))
    for i, (name, mix) in enumerate(mixes):
        write_calibration(Writer(1000 * args.seed + 100 + i), args.output, name, mix, args.texts)


if __name__ == "__main__":
    main()
