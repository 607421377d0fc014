"""Documents that mini reads and is asked about: RULER's retrieval, tracking and counting tasks and
the code word of the TriAttention V3 report, in the wording of `pith eval ruler` and `needle`.

A document is a list of parts (text, loss weight), END among the texts: what nothing predicts has
the surprise weight, what must be remembered has ANSWER_WEIGHT, or CHOICE_WEIGHT where it says which
of several answers it is, the rest the text weight.
"""

import math
import re

import numpy as np

import language
from tasks import ANSWER_WEIGHT, COPY_WEIGHT, FactSource

END = None  # the text of a part that is the end token
CHOICE_WEIGHT = 3.0  # of the beginning of an answer; what follows can be copied from its place

NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
)
NOISE_WEIGHT = 0.02
LEAST_ROOMS = 20  # words of a list, where as few do not fit
SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)")
HEXADECIMAL = "0123456789abcdef"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PLAIN_WORDS = language.ADJECTIVES + language.THINGS + language.PLACES + language.ROLES


# What stands between a key and its value, from nothing to RULER's words.
GAPS = (
    "",
    " here",
    " mentioned",
    " mentioned here",
    " mentioned above",
    " in text",
    " mentioned in text",
    " in the text",
    " mentioned in the text",
    " mentioned in the provided text",
    " mentioned in the provided text",
)


def pick(rng, items):
    return items[rng.integers(len(items))]


def number(rng):
    return str(rng.integers(1000000, 10000000))


def uuid(rng, alphabet=HEXADECIMAL):
    """A UUID of version 4, its free digits from the alphabet."""
    d = letters(rng, 30, alphabet)
    return f"{d[:8]}-{d[8:12]}-4{d[12:15]}-{pick(rng, '89ab')}{d[15:18]}-{d[18:]}"


def alike(rng, kind, count):
    """A maker of about count values with few pieces in common: what precedes a piece precedes
    others too, so that a value can be copied only from its own place."""
    if kind == "uuid":
        digits = rng.choice(list(HEXADECIMAL), int(rng.integers(3, 9)), False)
        return lambda r: uuid(r, digits)
    few = math.ceil(math.sqrt(count) * rng.uniform(0.6, 1.5)) + 1
    groups = rng.integers(100, 1000, few)
    return lambda r: f"{pick(r, groups)}{pick(r, groups)}{r.integers(0, 10)}"


def pair(rng):
    return f"{pick(rng, language.ADJECTIVES)}-{pick(rng, language.THINGS)}"


VALUES = (
    ("word", lambda rng: pick(rng, PLAIN_WORDS)),
    ("word", pair),
    ("number", number),
)


def letters(rng, count, alphabet):
    return "".join(pick(rng, alphabet) for _ in range(count))


def unlike(rng, make, taken):
    """A value of make(rng) that is not in the set taken, which it joins."""
    while True:
        value = make(rng)
        if value not in taken:
            taken.add(value)
            return value


def announcement(kind, one):
    """How RULER begins a text with one fact, or with several."""
    some, s, its = ("A", "", "is") if one else ("Some", "s", "are")
    return (
        f"{some} special magic {kind}{s} {its} hidden within the following text. Make sure"
        f" to memorize it. I will quiz you about the {kind}{s} afterwards.\n"
    )


def asking(kind, queries, one):
    """(question, beginning of its answer) in RULER's words, for one value or for several."""
    s, its, all_ = ("", "is", "") if one else ("s", "are", " all")
    asked = f"special magic {kind}{s} for {join_words(queries)} mentioned in the provided text"
    return f"\nWhat {its}{all_} the {asked}?", f" The {asked} {its}"


def join_words(words):
    """a; a and b; a, b, and c: the way a question lists its keys."""
    if len(words) < 3:
        return " and ".join(words)
    return ", ".join(words[:-1]) + ", and " + words[-1]


def several(rng):
    """How many values a key has: mostly RULER's four."""
    return int(rng.choice((2, 3, 4), p=(0.15, 0.15, 0.7)))


def called(named, n_query):
    """What stands before each answer of [(key, value)]: its key if several were asked for."""
    return [key for key, _ in named] if n_query > 1 else None


def shuffled(rng, items):
    return [items[i] for i in rng.permutation(len(items))]


def unsaid_weight(i, count):
    """Of the beginning of answer i of count in any order, the less certain the more are left."""
    return CHOICE_WEIGHT * (i + 1) / count


class Reading:
    """Writes documents of at most n_tok tokens with one tokenizer, one corpus, one weighting."""

    def __init__(self, tok, corpus, text_weight, surprise_weight):
        self.tok, self.corpus = tok, corpus
        self.text_weight, self.surprise_weight = text_weight, surprise_weight

    def length(self, parts):
        return len(self.tok.encode("".join(text for text, _ in parts if text is not END)))

    def question(self, text, prefix, answers, joint=", ", names=None, ordered=True):
        """Parts of a question and its answer, closed by the end token; names, if any, stand before
        the answers."""
        parts = [(text + prefix, self.text_weight)]
        for i, answer in enumerate(answers):
            lead = "" if i == 0 else joint.rstrip()
            parts += [(lead, ANSWER_WEIGHT)] if lead else []
            parts += [(f" {names[i]}", ANSWER_WEIGHT)] if names else []
            space, first = (" ", "") if answer[0].isdigit() else ("", " ")
            parts += [(space, self.text_weight)] if space else []
            choice = CHOICE_WEIGHT if ordered else unsaid_weight(i, len(answers))
            parts += [(first + answer[:3], choice), (answer[3:], ANSWER_WEIGHT)]
        last = ANSWER_WEIGHT if len(answers) > 1 else self.text_weight
        return parts + [(".", last), (END, self.text_weight)]

    def prose(self, rng, n_tok):
        return self.corpus.text(rng, max(n_tok, 8))

    def woven(self, rng, room, sentences):
        """Prose of about room tokens with the sentences [(parts)] in it, each after a full stop."""
        pieces = SENTENCE_END.split(self.prose(rng, room))
        places = np.sort(rng.integers(0, len(pieces), len(sentences)))
        parts, start = [], 0
        for place, sentence in zip(places, sentences):
            before = "".join(pieces[start : place + 1])
            start = max(start, place + 1)
            parts += [(before, self.text_weight), (" ", self.text_weight)] + sentence
        return parts + [("".join(pieces[start:]), self.text_weight)]

    def lined(self, rng, room, line, sentences):
        """Copies of a line with the sentences at random lines among them; line None: none."""
        lines = list(sentences)
        if line:
            each = len(self.tok.encode(line + "\n"))
            lines += [[(line, NOISE_WEIGHT)]] * max(0, room // each)
            lines = shuffled(rng, lines)
        return [part for line in lines for part in line + [("\n", self.text_weight)]]

    # ---- facts ----

    def fact(self, fact, known):
        """The fact's sentence; its value is an answer if it has been said before."""
        return [
            (fact.head.lstrip(), self.text_weight),
            (fact.key, self.surprise_weight),
            (fact.verb, self.text_weight),
            (fact.value, ANSWER_WEIGHT if known else self.surprise_weight),
            (".", self.text_weight),
        ]

    def fact_question(self, fact, value):
        return [
            (fact.question, self.text_weight),
            (fact.key, self.surprise_weight),
            ("?\nAnswer:", self.text_weight),
            (fact.head, ANSWER_WEIGHT),
            (fact.key + fact.verb, COPY_WEIGHT),
            (value, ANSWER_WEIGHT),
            (".", COPY_WEIGHT),
            (END, COPY_WEIGHT),
        ]

    def dense(self, rng, n_tok, shares, invented):
        """Facts and the same again, with and without prose between them: the most answers per
        token, from which the circuit of recall forms."""
        source, said, parts = FactSource(rng, shares, invented), [], []
        prose = SENTENCE_END.split(self.prose(rng, n_tok))
        p_prose = rng.random() * 0.6
        n_fact = int(rng.integers(2, max(4, n_tok // 24) + 1))
        for _ in range(n_tok // 5):
            if prose and rng.random() < p_prose:
                sentence = prose.pop(0)
                lead = " " if parts and not sentence[:1].isspace() else ""
                parts.append((lead + sentence, self.text_weight))
                continue
            fresh = len(said) < 2 or (len(said) < n_fact and rng.random() < 0.5)
            fact = source.draw() if fresh else None
            if fact:
                said.append(fact)
            elif not said:
                continue
            now = fact or said[rng.integers(len(said))]
            parts += [(" ", self.text_weight)] if parts else []
            parts += self.fact(now, known=fact is None)
        return parts

    def facts(self, rng, n_tok, shares, invented):
        """Facts in prose, then questions about them."""
        source, facts = FactSource(rng, shares, invented), []
        most = 4 if n_tok >= 2048 and rng.random() < 0.5 else min(max(2, n_tok // 24), 30)
        for _ in range(int(rng.integers(1, most + 1))):
            fact = source.draw()
            if fact and fact.kind == "way":
                facts += [fact] + source.unused_links
                source.unused_links = []
            elif fact:
                facts.append(fact)
        if not facts:
            return []
        facts = shuffled(rng, facts)
        n_question = int(rng.integers(1, max(2, min(16, n_tok // 48))))
        asked = shuffled(rng, facts)[:n_question]
        tail = [p for f in asked for p in self.fact_question(f, source.answer_value(f))]
        sentences = [self.fact(f, known=False) for f in facts]
        room = n_tok - self.length(tail) - sum(self.length(s) + 1 for s in sentences)
        return self.woven(rng, room, sentences) + tail

    def gaps(self, rng, n_tok):
        """Facts, and the same said again with words between the key and its value, so that the
        value must be found by a key that stands further back."""
        kind, make_value = VALUES[rng.integers(len(VALUES))]
        paired = rng.random() < 0.6
        n_key = int(rng.integers(2, max(2, n_tok // 24) + 1))
        paired = paired or n_key > len(language.NAMES)  # there are too few names
        make_key = pair if paired else lambda r: pick(r, language.NAMES)
        if n_key > len(PLAIN_WORDS):
            kind, make_value = "word", pair
        taken, said = set(), {}
        for _ in range(n_key):
            said[unlike(rng, make_key, taken)] = unlike(rng, make_value, taken)
        parts = self.said(rng, kind, said.items())
        used = self.length(parts)
        each = used // len(said) + 3
        for _ in range(max(1, (n_tok - used) // each)):
            key = pick(rng, list(said))
            gap = pick(rng, GAPS)
            parts += self.question(
                "\n", f"The special magic {kind} for {key}{gap} is", [said[key]]
            )[:-1]
        return parts

    def said(self, rng, kind, pairs):
        """Facts one after the other, all in the same words."""
        colon = ":" if rng.random() < 0.6 else ""
        start = "One of the special magic" if rng.random() < 0.5 else "The special magic"
        s = "s" if start.startswith("One") else ""
        parts = []
        for key, value in pairs:
            parts += [
                (f"{start} {kind}{s} for", self.text_weight),
                (f" {key}", self.surprise_weight),
                (f" is{colon}", self.text_weight),
                (f" {value}", self.surprise_weight),
                (". ", self.text_weight),
            ]
        return parts

    def values(self, rng, n_tok):
        """Lists of keys with several values each."""
        return self.lists(rng, n_tok, several(rng))

    def lists(self, rng, n_tok, n_value=0):
        """As gaps, with several answers: one for each key in the order of the question, each
        after its key, or all values of one key in any order: what is left to say is what was not
        said yet."""
        kind, make_value = VALUES[rng.integers(len(VALUES))]
        n_value = n_value or (several(rng) if rng.random() < 0.6 else 1)
        n_fact = int(rng.integers(4, max(4, min(100, n_tok // 24)) + 1))
        taken, pairs = set(), []
        for _ in range(max(1, n_fact // n_value)):
            key = unlike(rng, pair, taken)
            pairs += [(key, unlike(rng, make_value, taken)) for _ in range(n_value)]
        pairs = shuffled(rng, pairs)
        keys = list(dict.fromkeys(key for key, _ in pairs))
        parts = self.said(rng, kind, pairs)
        room, left = n_tok - self.length(parts), keys
        while room > 0 and left:  # each key once: what was answered could be copied from there
            n_query = min(len(left), int(rng.integers(2, 5))) if n_value == 1 else 1
            left = shuffled(rng, left)
            queries, left = left[:n_query], left[n_query:]
            asked = [(k, v) for q in queries for k, v in shuffled(rng, pairs) if k == q]
            text = f"The special magic {kind}s for {join_words(queries)}{pick(rng, GAPS)} are"
            names, values = called(asked, n_query), [v for _, v in asked]
            question = self.question("\n", text, values, names=names, ordered=bool(names))[:-1]
            room -= self.length(question)
            parts += question
        return parts

    def shuffles(self, rng, n_tok):
        """A few things and all of them again and again, in any order: what comes next is what this
        line has not said, until only one is left. The most of that per token."""
        kind, make_value = VALUES[rng.integers(len(VALUES))]
        numbered, taken = rng.random() < 0.3, set()
        items = [unlike(rng, make_value, taken) for _ in range(int(rng.integers(2, 9)))]
        parts, weights = [], [self.surprise_weight] * len(items)
        for _ in range(max(2, n_tok // (5 * len(items)))):
            start = pick(rng, (f"The {kind}s are", "They are", f"All {kind}s:"))
            parts.append((start, self.text_weight))
            for i, item in enumerate(shuffled(rng, items)):
                lead = f" {i + 1}." if numbered else "," if i > 0 else ""
                parts += [(lead, self.text_weight)] if lead else []
                parts.append((f" {item}", weights[i]))
            parts.append((".\n", self.text_weight))
            weights = [unsaid_weight(i, len(items)) for i in range(len(items))]
        return parts

    # ---- needles ----

    def niah(self, rng, n_tok):
        """RULER's needle in a haystack, any mix of keys, values and queries, asked repeatedly."""
        kinds = (("number", number), ("uuid", uuid), ("word", pair))
        kind, make_value = kinds[rng.choice(3, p=(0.5, 0.3, 0.2))]
        make_key = uuid if kind == "uuid" and rng.random() < 0.4 else pair
        haystack = rng.choice(3, p=(0.7, 0.15, 0.15))
        cost = 16 + (24 if make_key is uuid else 3) + (26 if kind == "uuid" else 5)
        room = n_tok - 80
        most = max(1, min(room // (2 * cost), 12))
        n_value = several(rng) if most >= 4 and rng.random() < 0.4 else 1
        n_key = max(1, int(rng.integers(1, most + 1)) // n_value)
        if haystack == 2:
            n_key, n_value = max(1, room // (cost + 2)), 1
        taken, keys = set(), {}
        for _ in range(n_key):
            keys[unlike(rng, make_key, taken)] = [
                unlike(rng, make_value, taken) for _ in range(n_value)
            ]
        sentences = [
            self.needle(kind, key, value) for key, values in keys.items() for value in values
        ]
        sentences = shuffled(rng, sentences)
        asked = self.niah_questions(rng, kind, keys, n_tok)
        parts = [(announcement(kind, len(asked[0][1]) == 1), self.text_weight)]
        tail = [p for _, _, question in asked for p in question]
        room = n_tok - self.length(parts + tail) - sum(self.length(s) + 2 for s in sentences)
        if haystack == 0 and room > 16:
            parts += self.woven(rng, room, sentences)
        else:
            parts += self.lined(rng, room, NOISE if haystack == 1 else None, sentences)
        return parts + tail

    def crowd(self, rng, n_tok):
        """Needles alone, as many as fit, each with its own key, and as many questions as fit:
        RULER's multikey_2 and _3, asked often enough to learn to tell hundreds of keys apart."""
        kinds = (("number", number, pair), ("uuid", uuid, uuid), ("uuid", uuid, pair))
        kind, make_value, make_key = kinds[rng.choice(3, p=(0.25, 0.55, 0.2))]
        cost = self.length(self.needle(kind, make_key(rng), make_value(rng))) + 1
        n_key = max(2, int((n_tok - 80) * rng.uniform(0.3, 0.95)) // cost)
        if make_key is pair and rng.random() < 0.6:  # from so few words that each is in many keys
            few = math.ceil(math.sqrt(n_key) * rng.uniform(1.1, 2.0))
            first = rng.choice(language.ADJECTIVES, min(few, len(language.ADJECTIVES)), False)
            last = rng.choice(language.THINGS, min(few, len(language.THINGS)), False)
            n_key = min(n_key, len(first) * len(last) * 3 // 4)

            def make_key(r):
                return f"{pick(r, first)}-{pick(r, last)}"

        if rng.random() < 0.6:
            make_value = alike(rng, kind, n_key)
            make_key = make_value if make_key is uuid else make_key
        taken, pairs = set(), []
        for _ in range(n_key):
            pairs.append((unlike(rng, make_key, taken), unlike(rng, make_value, taken)))
        parts = [(announcement(kind, True), self.text_weight)]
        parts += self.lined(rng, 0, None, [self.needle(kind, k, v) for k, v in pairs])
        room, order = n_tok - self.length(parts), []
        while room > 0:
            order = order or [int(i) for i in rng.permutation(n_key)]
            key, value = pairs[order.pop()]
            text, prefix = asking(kind, [key], True)
            if rng.random() < 0.25:
                text, prefix = "\n", f"The special magic {kind} for {key}{pick(rng, GAPS)} is"
            question = self.question(text, prefix, [value])
            room -= self.length(question) + 1
            parts += question
        return parts

    def needle(self, kind, key, value):
        return [
            (f"One of the special magic {kind}s for", self.text_weight),
            (f" {key}", self.surprise_weight),
            (" is:", self.text_weight),
            (f" {value}", self.surprise_weight),
            (".", self.text_weight),
        ]

    def niah_questions(self, rng, kind, keys, n_tok):
        """[(keys, answers, parts)]: several questions, the first with the shape of the document."""
        left = shuffled(rng, list(keys))  # each once, as in lists
        questions, spent = [], 0
        n_query = int(rng.integers(2, 5)) if len(left) >= 4 and rng.random() < 0.3 else 1
        share = 2 if n_tok <= 512 else 4  # short documents ask more
        while not questions or (left and spent < n_tok // share and len(questions) < 24):
            queries, left = left[:n_query], left[n_query:]
            asked = [(q, v) for q in queries for v in shuffled(rng, keys[q])]
            answers = [v for _, v in asked]
            text, prefix = asking(kind, queries, len(answers) == 1)
            if rng.random() < (0.4 if n_tok <= 512 else 0.1):  # the key right before its value
                text, prefix = "\n", prefix[1:].replace(" mentioned in the provided text", "")
            names = called(asked, len(queries))
            parts = self.question(text, prefix, answers, names=names, ordered=bool(names))
            questions.append((queries, answers, parts))
            spent += self.length(parts)
        return questions

    def code_word(self, rng, n_tok):
        """The secret code word in prose, two capitalised words and a number."""
        word = f"{pick(rng, language.ADJECTIVES)} {pick(rng, language.THINGS)}".upper()
        answer = f"{word} {rng.integers(1000, 10000)}"
        sentence = [
            ("The secret code word is", self.text_weight),
            (f" {answer}", self.surprise_weight),
            (".", self.text_weight),
        ]
        ask = self.question(
            " What is the secret code word mentioned earlier? Answer with just the code word and"
            " number, nothing else:",
            "",
            [answer],
        )
        room = n_tok - self.length(ask + sentence) - 2
        return self.woven(rng, room, [sentence]) + ask

    # ---- tracking and counting ----

    def variables(self, rng, n_tok):
        """RULER's vt: chains of assignments in noise; the answer names the whole chain."""
        taken, hops = set(), int(rng.integers(2, 6))
        most = max(1, min((n_tok - 60) // 180, 3 if rng.random() < 0.5 else 20))
        n_chain = int(rng.integers(1, most + 1))
        plain = rng.random() < 0.3 and 2 * n_chain * hops <= len(language.NAMES)

        def name(r):
            return pick(r, language.NAMES).upper() if plain else letters(r, 5, LETTERS)

        sentences, chains = [], []
        for _ in range(n_chain):
            chain = [unlike(rng, name, taken) for _ in range(hops)]
            value = unlike(rng, lambda r: str(r.integers(10000, 99999)), taken)
            lines = [[("VAR", self.text_weight), (f" {chain[0]} =", 0.05), (f" {value}", 0.05)]]
            for a, b in zip(chain, chain[1:]):
                lines.append(
                    [("VAR", self.text_weight), (f" {b} =", 0.05), (f" VAR {a} ", 0.3)]
                )
            chains.append((value, chain))
            sentences.append(lines)
        asked = shuffled(rng, chains)
        head = [
            (
                "Memorize and track the chain(s) of variable assignment hidden in the following"
                " text.\n\n",
                self.text_weight,
            )
        ]
        tail = []
        for value, chain in asked:
            tail += self.question(
                f"\nQuestion: Find all variables that are assigned the value {value} in the text"
                " above.",
                " Answer: According to the chain(s) of variable assignment in the text above,"
                f" {len(chain)} variables are assgined the value {value}, they are:",
                chain,
                " ",
            )
        lines = self.merged(rng, sentences)
        used = self.length(head + tail) + sum(self.length(s) + 2 for s in lines)
        each = len(self.tok.encode(NOISE + "\n"))
        noise = [None] * max(0, (n_tok - used) // each)
        order = self.merged(rng, [noise, lines])
        parts = list(head)
        for line in order:
            parts += (line or [(NOISE, NOISE_WEIGHT)]) + [("\n", self.text_weight)]
        return parts + tail

    @staticmethod
    def merged(rng, lists):
        """The lists' items in a random order that keeps the order within each list."""
        owner = np.repeat(np.arange(len(lists)), [len(x) for x in lists])
        at = [iter(x) for x in lists]
        return [next(at[i]) for i in rng.permutation(owner)]

    def common_words(self, rng, n_tok):
        """RULER's cwe: a numbered list; ten words (fewer in short lists) stand there far oftener
        than the others. Invented words have more pieces than others: fewer words then."""
        return self.fitting(n_tok, lambda n: self.common_list(rng, n), (n_tok - 70) // 5)

    def fitting(self, n_tok, make, rooms):
        """make(rooms), with fewer rooms if that is longer than n_tok."""
        rooms = max(LEAST_ROOMS, rooms)
        while True:
            parts = make(rooms)
            n = self.length(parts)
            fewer = max(LEAST_ROOMS, int(rooms * (n_tok - 80) / n) - 2)
            if n <= n_tok or fewer >= rooms:
                return parts
            rooms = fewer

    def common_list(self, rng, rooms):
        """Such a list of this many words. The answer names the common ones in any order."""
        n_common = max(2, min(10, rooms // 8))
        often = max(3, min(30, rooms // (2 * n_common)))
        often = often if rng.random() < 0.5 else min(often, 6)
        rarely = 3 if often == 30 else 1
        n_word = n_common + max(1, (rooms - n_common * often) // rarely)
        words, taken = list(PLAIN_WORDS), set(PLAIN_WORDS)
        n_word_known = n_word * (2 if rng.random() < 0.4 else 1)  # so that more are invented
        while len(words) < n_word_known:
            words.append(unlike(rng, language.invent, taken))
        words = shuffled(rng, words)[:n_word]
        common = words[:n_common]
        listed = shuffled(rng, common * often + words[n_common:] * rarely)
        parts = [
            (
                "Below is a numbered list of words. In these words, some appear more often than"
                " others. Memorize the ones that appear most often.\n",
                self.text_weight,
            )
        ]
        lines = " ".join(f"{i + 1}. {w}" for i, w in enumerate(listed))
        parts.append((lines, NOISE_WEIGHT))
        parts.append(
            (
                f"\nQuestion: What are the {n_common} most common words in the above list? Answer:"
                f" The top {n_common} words that appear most often in the list are:",
                self.text_weight,
            )
        )
        for i in range(n_common):
            parts.append((f" {i + 1}.", self.text_weight))
            parts.append((f" {common[i]}", unsaid_weight(i, n_common)))
        return parts + [(".", self.text_weight), (END, self.text_weight)]

    def coded_words(self, rng, n_tok):
        """RULER's fwe: random words with Zipf's frequencies, exponent 2; the most frequent is
        dots, the next three are asked for."""
        return self.fitting(n_tok, lambda n: self.coded_list(rng, n), (n_tok - 90) // 3)

    def coded_list(self, rng, rooms):
        taken = set()
        words = [
            unlike(rng, lambda r: letters(r, 6, LETTERS.lower()), taken)
            for _ in range(max(6, rooms // 16))
        ]
        words[0] = "..."
        share = np.arange(1, len(words) + 1, dtype=float) ** -2
        counts = np.maximum((rooms * share / share.sum()).astype(int), 0)
        counts[3] = max(counts[3], 1)
        counts[2] = max(counts[2], counts[3] + 1)
        counts[1] = max(counts[1], counts[2] + 1)
        listed = [w for w, c in zip(words, counts) for _ in range(c)]
        listed = shuffled(rng, listed)
        parts = [
            (
                "Read the following coded text and track the frequency of each coded word. Find"
                " the three most frequently appeared coded words. ",
                self.text_weight,
            ),
            (" ".join(listed), NOISE_WEIGHT),
        ]
        return parts + self.question(
            "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are"
            " the three most frequently appeared words in the above coded text?",
            " Answer: According to the coded text above, the three most frequently appeared words"
            " are:",
            words[1:4],
        )
