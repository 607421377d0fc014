"""Training and test documents: stories with facts hidden in them, and questions about the facts.

A fact and the answer to its question are the same sentence, "The password of Maria is copper lantern.",
so that one circuit (find the earlier place where the last two tokens stood, copy what followed) serves
facts said again, answers, and every step of a way.  Three kinds:

    password   The password of Maria is copper lantern.
    friend     The friend of Maria is Anton.
    way        The way goes from bridge to tower.       asked as a whole chain:
               The way goes from bridge to tower to mill to nowhere.
"""
from dataclasses import dataclass

import numpy as np

import language

ANSWER_WEIGHT = 1.0
COPY_WEIGHT = 0.3        # tokens of an answer that repeat the question or end the sentence
MAX_WAY = 12             # places in a chain
STORY_PARAGRAPHS = 4000
TOKENS_PER_FACT = 24     # at most one fact in so many tokens where questions stand at the end


@dataclass
class Fact:
    kind: str
    key: str             # the name or place asked about
    value: str           # " copper lantern", without the full stop

    def stem(self):
        if self.kind == "way":
            return f" The way goes from {self.key} to"
        return f" The {self.kind} of {self.key} is"

    def sentence(self):
        return f"{self.stem()}{self.value}."

    def question(self):
        if self.kind == "way":
            return f"\nQuestion: What is the way from {self.key}?\nAnswer:"
        return f"\nQuestion: {'Who' if self.kind == 'friend' else 'What'} is the {self.kind} of {self.key}?\nAnswer:"


class FactSource:
    """Draws facts whose keys differ by kind, and whose passwords differ in their first word."""

    def __init__(self, rng, shares):
        """shares: {kind: probability}."""
        self.rng, self.shares = rng, shares
        self.names = {k: list(rng.permutation(language.NAMES)) for k in ("password", "friend")}
        self.adjectives = list(rng.permutation(language.ADJECTIVES))
        self.chain = list(rng.permutation(language.PLACES)[:rng.integers(2, MAX_WAY + 1)])
        self.links = [Fact("way", a, f" {b}") for a, b in zip(self.chain, self.chain[1:] + ["nowhere"])]
        self.unused_links = [self.links[i] for i in rng.permutation(len(self.links))]

    def draw(self):
        """A new fact, or None when the kind drawn is used up."""
        kind = self.rng.choice(list(self.shares), p=list(self.shares.values()))
        if kind == "way":
            return self.unused_links.pop() if self.unused_links else None
        if not self.names[kind] or not self.adjectives:
            return None
        key = self.names[kind].pop()
        if kind == "friend":
            others = [n for n in language.NAMES if n != key]
            return Fact(kind, key, f" {others[self.rng.integers(len(others))]}")
        thing = language.THINGS[self.rng.integers(len(language.THINGS))]
        return Fact(kind, key, f" {self.adjectives.pop()} {thing}")

    def answer_value(self, fact):
        """What follows the stem in the answer: of a way, the whole chain from its key on."""
        if fact.kind != "way":
            return fact.value
        return " to".join(f" {p}" for p in self.chain[self.chain.index(fact.key) + 1:] + ["nowhere"])


class Stories:
    """Encoded filler: paragraphs as lists of sentences, each a list of ids with a leading space."""

    def __init__(self, tok, seed):
        writer = language.Writer(np.random.default_rng(seed))
        self.paragraphs = [[tok.encode(" " + s) for s in writer.paragraph()] for _ in range(STORY_PARAGRAPHS)]

    def sentences(self, rng):
        """Endless (ids, opens a paragraph)."""
        while True:
            for i, ids in enumerate(self.paragraphs[rng.integers(len(self.paragraphs))]):
                yield ids, i == 0


class Document:
    """Ids and loss weights under construction."""

    def __init__(self, tok, text_weight, surprise_weight):
        """surprise_weight is for tokens that nothing predicts: new keys and values."""
        self.tok, self.text_weight, self.surprise_weight = tok, text_weight, surprise_weight
        self.ids, self.weights = [tok.begin], [0.0]
        self.fresh_line = True
        self.no_space = {tok.encode(" " + w)[0]: tok.encode(w)[0] for w in language.PARAGRAPH_OPENERS}

    def add(self, ids, weight):
        self.ids += ids
        self.weights += [weight] * len(ids)

    def add_sentence(self, ids, opens_paragraph, weight=None):
        """A sentence of filler; a leading space is dropped where it opens a line."""
        if opens_paragraph and not self.fresh_line:
            self.add(self.tok.encode("\n"), self.text_weight)
            self.fresh_line = True
        if self.fresh_line:
            ids = [self.no_space.get(ids[0], ids[0])] + ids[1:]
        self.add(ids, self.text_weight if weight is None else weight)
        self.fresh_line = False

    def add_fact(self, fact, known):
        """The fact's sentence; its value is an answer if it has been said before."""
        start = len(self.ids)
        self.add_sentence(self.tok.encode(fact.stem()), False)
        self.weights[start + self.tok_index_of_key(fact)] = self.surprise_weight
        self.add(self.tok.encode(fact.value), ANSWER_WEIGHT if known else self.surprise_weight)
        self.add(self.tok.encode("."), self.text_weight)

    def tok_index_of_key(self, fact):
        """Keys are the last but one token of every stem."""
        return len(self.tok.encode(fact.stem())) - 2

    def add_question(self, fact, value):
        """Question and answer, closed by the end token; what follows starts on a new line."""
        question = self.tok.encode(fact.question())
        start = len(self.ids)
        self.add(question, self.text_weight)
        # The key stands before "?", "\n", "Answer", ":".
        self.weights[start + len(question) - 5] = self.surprise_weight
        self.add(self.tok.encode(fact.stem()), COPY_WEIGHT)
        self.add(self.tok.encode(value), ANSWER_WEIGHT)
        self.add(self.tok.encode(".") + [self.tok.end], COPY_WEIGHT)
        self.fresh_line = False

    def after_question(self):
        """Call before prose that follows a question."""
        self.add(self.tok.encode("\n"), self.text_weight)
        self.fresh_line = True


class Tasks:
    def __init__(self, tok, stories, phase):
        """phase: a presets.Phase; its document shape and weights are used here."""
        self.tok, self.stories, self.phase = tok, stories, phase

    def document(self):
        return Document(self.tok, self.phase.text_weight, self.phase.surprise_weight)

    def dense(self, rng, n_tok):
        """Facts, the same facts again, questions and stories in any order: the most answers per token."""
        doc, source, said = self.document(), FactSource(rng, self.phase.facts), []
        story = self.stories.sentences(rng)
        p_story = rng.random() * self.phase.most_story
        n_facts = rng.integers(2, max(4, n_tok // TOKENS_PER_FACT) + 1)
        p_question = rng.random() * self.phase.most_questions
        asked = False
        while len(doc.ids) < n_tok:
            if asked:
                doc.after_question()
                asked = False
            if rng.random() < p_story:
                ids, opens = next(story)
                while doc.fresh_line and not opens:
                    ids, opens = next(story)
                doc.add_sentence(ids, opens)
                continue
            # Two facts come first: of one alone, the answer would be whatever value stood last.
            new = len(said) < 2 or (len(said) < n_facts and rng.random() < 0.5)
            fact = source.draw() if new else None
            if fact:
                doc.add_fact(fact, known=False)
                said.append(fact)
            elif said:
                fact = said[rng.integers(len(said))]
                complete = fact.kind != "way" or all(link in said for link in source.links)
                if complete and rng.random() < p_question:
                    doc.add_question(fact, source.answer_value(fact))
                    asked = True
                else:
                    doc.add_fact(fact, known=True)
        return doc

    def facts(self, rng, count):
        """(source, facts): count facts or a few less; ways always whole."""
        source, facts = FactSource(rng, self.phase.facts), []
        for _ in range(count):
            fact = source.draw()
            if fact and fact.kind == "way":
                facts += [fact] + source.unused_links
                source.unused_links = []
            elif fact:
                facts.append(fact)
        return source, facts

    def examination(self, rng, n_tok, n_facts, n_questions):
        """A story of facts and filler, then questions; about n_tok tokens, never more.

        Returns (document, [(fact, index of its first token, index after its question's "Answer:")]).
        """
        source, facts = self.facts(rng, n_facts)
        if not facts:
            return self.examination(rng, n_tok, n_facts, n_questions)
        asked = [facts[i] for i in rng.permutation(len(facts))[:n_questions]]
        encode = self.tok.encode
        used = 1 + sum(len(encode(f.sentence())) for f in facts) + sum(
            len(encode(f.question() + f.stem() + source.answer_value(f) + ".")) + 1 for f in asked)
        sentences = []
        for ids, opens in self.stories.sentences(rng):
            used += len(ids) + opens
            if used > n_tok:
                break
            sentences.append((ids, opens))
        places = np.sort(rng.integers(0, len(sentences) + 1, len(facts)))
        doc, where, at = self.document(), {}, 0
        for i in range(len(sentences) + 1):
            while at < len(facts) and places[at] == i:
                where[id(facts[at])] = len(doc.ids)
                doc.add_fact(facts[at], known=False)
                at += 1
            if i < len(sentences):
                doc.add_sentence(*sentences[i])
        spans = []
        for fact in asked:
            doc.add_question(fact, source.answer_value(fact))
            tail = len(encode(fact.stem() + source.answer_value(fact) + ".")) + 1
            spans.append((fact, where[id(fact)], len(doc.ids) - tail))
        return doc, spans

    def tail(self, rng, n_tok):
        most = max(2, n_tok // TOKENS_PER_FACT)
        n_facts = int(rng.integers(1, min(most, 30) + 1))
        n_questions = int(rng.integers(1, max(2, min(16, n_tok // 48))))
        return self.examination(rng, n_tok, n_facts, n_questions)[0]

    def batch(self, rng, n_seq, n_tok):
        """ids [n_seq][n_tok + 1] and the loss weight of each as a target, same shape."""
        ids = np.full((n_seq, n_tok + 1), self.tok.end, np.int64)
        weights = np.zeros((n_seq, n_tok + 1), np.float32)
        for row in range(n_seq):
            doc = (self.dense if rng.random() < self.phase.dense else self.tail)(rng, n_tok + 1)
            n = min(len(doc.ids), n_tok + 1)
            ids[row, :n] = doc.ids[:n]
            weights[row, :n] = doc.weights[:n]
        return ids, weights
