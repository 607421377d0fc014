"""Training and test documents: texts with facts hidden in them, and questions about the facts.

A fact and the answer to its question are the same sentence, "The password of Maria is copper
lantern.", so that one circuit (find the earlier place where the last two tokens stood, copy what
followed) serves facts said again, answers, and every step of a way.  Three kinds:

    password   The password of Maria is copper lantern.      also invented words and numbers
    friend     The friend of Maria is Anton.
    way        The way goes from bridge to tower.            asked as a whole chain:
               The way goes from bridge to tower to mill to nowhere.
"""

from dataclasses import dataclass

import numpy as np

import language

ANSWER_WEIGHT = 1.0
COPY_WEIGHT = 0.3  # tokens of an answer that repeat the question or end the sentence
MAX_WAY = 12  # places in a chain
TOKENS_PER_FACT = 24  # at most one fact in this number of tokens
MAX_FACTS = 30  # of documents that ask at the end


@dataclass
class Fact:
    kind: str
    key: str  # " Maria": the name or place asked about, with its space
    value: str  # " copper lantern", with its space, without the full stop

    @property
    def head(self):
        """What stands before the key."""
        return " The way goes from" if self.kind == "way" else f" The {self.kind} of"

    @property
    def verb(self):
        return " to" if self.kind == "way" else " is"

    @property
    def question(self):
        if self.kind == "way":
            return "\nQuestion: What is the way from"
        return f"\nQuestion: {'Who' if self.kind == 'friend' else 'What'} is the {self.kind} of"


class FactSource:
    """Draws facts whose keys differ by kind, and whose passwords differ in their first word."""

    def __init__(self, rng, shares, invented):
        """shares: {kind: probability}; invented: share of unknown names and passwords."""
        self.rng, self.shares, self.invented = rng, shares, invented
        self.names = {k: list(rng.permutation(language.NAMES)) for k in ("password", "friend")}
        self.adjectives = list(rng.permutation(language.ADJECTIVES))
        self.chain = [
            f" {p}" for p in rng.permutation(language.PLACES)[: rng.integers(2, MAX_WAY + 1)]
        ]
        self.chain.append(" nowhere")
        self.links = [Fact("way", a, b) for a, b in zip(self.chain, self.chain[1:])]
        self.unused_links = [self.links[i] for i in rng.permutation(len(self.links))]

    def draw(self):
        """A new fact, or None when the kind drawn is used up."""
        kind = self.rng.choice(list(self.shares), p=list(self.shares.values()))
        if kind == "way":
            return self.unused_links.pop() if self.unused_links else None
        if not self.names[kind] or not self.adjectives:
            return None
        key = self.name(self.names[kind].pop())
        if kind == "friend":
            others = [n for n in language.NAMES if f" {n}" != key]
            return Fact(kind, key, self.name(others[self.rng.integers(len(others))]))
        return Fact(kind, key, self.password())

    def name(self, known):
        if self.rng.random() < self.invented:
            return " " + language.invent(self.rng).capitalize()
        return f" {known}"

    def password(self):
        adjective = self.adjectives.pop()
        thing = language.THINGS[self.rng.integers(len(language.THINGS))]
        if self.rng.random() >= self.invented:
            return f" {adjective} {thing}"
        if self.rng.random() < 0.4:
            return " " + "".join(map(str, self.rng.integers(0, 10, self.rng.integers(2, 7))))
        word = language.invent(self.rng)
        return (f" {word}", f" {word} {thing}", f" {adjective} {word}")[self.rng.integers(3)]

    def answer_value(self, fact):
        """What follows the verb in the answer: of a way, the whole chain from its key on."""
        if fact.kind != "way":
            return fact.value
        return " to".join(self.chain[self.chain.index(fact.key) + 1 :])


class Document:
    """Ids and loss weights under construction."""

    def __init__(self, tok, text_weight, surprise_weight):
        """surprise_weight is for tokens that nothing predicts: new keys and values."""
        self.tok, self.text_weight, self.surprise_weight = tok, text_weight, surprise_weight
        self.ids, self.weights = [tok.begin], [0.0]
        self.fresh_line = True

    def add(self, ids, weight):
        self.ids += ids
        self.weights += [weight] * len(ids)
        self.fresh_line = False

    def add_text(self, text, weight):
        self.add(self.tok.encode(text), weight)

    def add_sentence(self, ids, opens_paragraph):
        """A sentence of filler; one that opens a paragraph starts a line."""
        if opens_paragraph and not self.fresh_line:
            self.add_text("\n", self.text_weight)
        self.add(ids, self.text_weight)

    def add_fact(self, fact, known):
        """The fact's sentence; its value is an answer if it has been said before."""
        self.add_text(fact.head.lstrip() if self.fresh_line else fact.head, self.text_weight)
        self.add_text(fact.key, self.surprise_weight)
        self.add_text(fact.verb, self.text_weight)
        self.add_text(fact.value, ANSWER_WEIGHT if known else self.surprise_weight)
        self.add_text(".", self.text_weight)

    def add_question(self, fact, value):
        """Question and answer, closed by the end token.  Returns the answer's first index."""
        self.add_text(fact.question, self.text_weight)
        self.add_text(fact.key, self.surprise_weight)
        self.add_text("?\nAnswer:", self.text_weight)
        start = len(self.ids)
        self.add_text(fact.head + fact.key + fact.verb, COPY_WEIGHT)
        self.add_text(value, ANSWER_WEIGHT)
        self.add(self.tok.encode(".") + [self.tok.end], COPY_WEIGHT)
        return start


class Tasks:
    """Documents in the shape that one phase of a preset asks for."""

    def __init__(self, tok, stories, phase):
        self.tok, self.stories, self.phase = tok, stories, phase

    def document(self):
        return Document(self.tok, self.phase.text_weight, self.phase.surprise_weight)

    def filler(self, rng):
        return self.stories.sentences(rng, rng.random() < self.phase.corpus)

    def source(self, rng):
        return FactSource(rng, self.phase.facts, self.phase.invented)

    def plain(self, rng, n_tok):
        """Nothing but filler."""
        doc, story = self.document(), self.filler(rng)
        while len(doc.ids) < n_tok:
            doc.add_sentence(*next(story))
        return doc

    def dense(self, rng, n_tok):
        """Facts, the same again, questions and filler in any order: the most answers per token."""
        doc, source, said = self.document(), self.source(rng), []
        story = self.filler(rng)
        p_story = rng.random() * self.phase.most_story
        n_facts = rng.integers(2, max(4, n_tok // TOKENS_PER_FACT) + 1)
        p_question = rng.random() * self.phase.most_questions
        while len(doc.ids) < n_tok:
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
                self.say_again(rng, doc, source, said, p_question)
        return doc

    def say_again(self, rng, doc, source, said, p_question):
        """One of the facts said: a sentence or, where the whole of it is known, a question."""
        fact = said[rng.integers(len(said))]
        complete = fact.kind != "way" or all(link in said for link in source.links)
        if complete and rng.random() < p_question:
            doc.add_question(fact, source.answer_value(fact))
            doc.add_text("\n", self.phase.text_weight)
            doc.fresh_line = True
        else:
            doc.add_fact(fact, known=True)

    def facts(self, rng, count):
        """(source, facts): count facts or a few less; ways always whole."""
        source, facts = self.source(rng), []
        for _ in range(count):
            fact = source.draw()
            if fact and fact.kind == "way":
                facts += [fact] + source.unused_links
                source.unused_links = []
            elif fact:
                facts.append(fact)
        return source, facts

    def examination(self, rng, n_tok, n_facts, n_questions):
        """Filler with facts in it, then questions; n_tok tokens or a little less.

        Returns (document, [(index of the fact's first token, index of the answer's first token)]).
        """
        source, facts = self.facts(rng, n_facts)
        if not facts:
            return self.examination(rng, n_tok, n_facts, n_questions)
        asked = [facts[i] for i in rng.permutation(len(facts))[:n_questions]]
        rest = self.document()
        for fact in facts:
            rest.add_fact(fact, known=False)
        for fact in asked:
            rest.add_question(fact, source.answer_value(fact))
        sentences, used = [], len(rest.ids)
        for ids, opens in self.filler(rng):
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
        return doc, [(where[id(f)], doc.add_question(f, source.answer_value(f))) for f in asked]

    def tail(self, rng, n_tok):
        n_facts = int(rng.integers(1, min(max(2, n_tok // TOKENS_PER_FACT), MAX_FACTS) + 1))
        n_questions = int(rng.integers(1, max(2, min(16, n_tok // 48))))
        return self.examination(rng, n_tok, n_facts, n_questions)[0]

    def batch(self, rng, n_seq, n_tok):
        """ids [n_seq][n_tok + 1], the loss weight of each as a target, that of each answer and 0
        for the rest, and the rows' kinds."""
        ids = np.full((n_seq, n_tok + 1), self.tok.end, np.int64)
        weights = np.zeros((n_seq, n_tok + 1), np.float32)
        p, writers = self.phase, (self.plain, self.dense, self.tail)
        for row in range(n_seq):
            writer = writers[rng.choice(3, p=(p.plain, p.dense, 1 - p.plain - p.dense))]
            doc = writer(rng, n_tok + 1)
            n = min(len(doc.ids), n_tok + 1)
            ids[row, :n] = doc.ids[:n]
            weights[row, :n] = doc.weights[:n]
        return ids, weights, np.where(weights == ANSWER_WEIGHT, weights, 0), ["right"] * n_seq
