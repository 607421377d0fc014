"""The small English that pith-nano reads: word lists and a generator of paragraphs.

Every word below becomes one token of nano's vocabulary.  The words of the answers (ADJECTIVES,
THINGS, PLACES, NAMES) are also the words of the filler, so that no word gives a fact away by
itself.
"""

WOMEN = (
    "Maria Clara Elena Greta Irene Karla Marta Nora Paula Sara Anna Diana Flora Helen "
    "Julia Lena Nina Rosa Vera Emma"
).split()
MEN = (
    "Anton David Felix Hugo Jonas Leon Oscar Robert Thomas Victor Walter Bruno Carl "
    "Emil Martin Otto Peter Simon Paul Henry"
).split()
NAMES = WOMEN + MEN

QUALITIES = (
    "green blue red white black yellow silent quiet bright dark small large long "
    "round cold warm"
).split()
ADJECTIVES = (
    QUALITIES
    + (
        "copper silver golden purple wooden iron stone glass paper heavy light soft hard "
        "sweet bitter broken hidden narrow gentle proud strong clean rare plain"
    ).split()
)

THINGS = (
    "lantern ladder window bottle candle mirror basket hammer needle ribbon feather "
    "button pencil letter blanket carpet kettle spoon knife bucket barrel wagon "
    "saddle compass trumpet violin drum pepper cherry honey bread cheese butter horse "
    "goat rabbit fox raven turtle beetle spider salmon flower leaf shell rope crown "
    "coin key door chair table book box hat coat boat"
).split()

PLACES = (
    "bridge tower mill harbor market village castle station school church library "
    "bakery stable cellar kitchen attic gate shore chapel inn farm field orchard "
    "valley cave dock square garden wall well"
).split()

ROLES = (
    "baker farmer miller sailor teacher doctor painter soldier hunter tailor captain "
    "gardener shepherd smith merchant widow"
).split()

AGES = "old young tired happy hungry".split()
MOODS = "tired happy hungry afraid alone late ready sick calm".split()
TIMES = "morning evening afternoon night winter summer spring autumn".split()
GOING = "walked went came ran rode".split()
TAKING = (
    "bought sold found lost carried took made saw kept cleaned painted washed opened "
    "wanted hid"
).split()
BEING = "waited slept sat stood talked laughed sang worked read".split()
WHERE = "near behind beside under".split()
WEATHER = "rain snow wind sun moon".split()
WEATHER_DID = {
    "rain": ("fell", "stopped", "began"),
    "snow": ("fell", "stopped", "began"),
    "wind": ("blew", "stopped", "began"),
    "sun": ("shone", "rose"),
    "moon": ("shone", "rose"),
}
# Parts of invented words.
CONSONANTS = "b c d f g h j k l m n p r s t v w z".split()
ONSETS = CONSONANTS + "bl br ch dr fl gr kr pl qu sh st th tr y".split()
VOWELS = "a e i o u".split()
CODAS = ["", "", ""] + "b ck d f l ll m n nd ng p r rt s st t x".split()

STRANGE = [WOMEN, MEN, NAMES, ADJECTIVES, THINGS, PLACES, ROLES, TAKING, BEING]  # open classes

# Words that occur only inside the sentence patterns and the question forms.
PATTERN_WORDS = (
    "the a of to in on at from with and but before after when because so then there it she he "
    "they her his was were had is not very old young still "
    "told gave about friend password way goes "
    "nowhere"
).split()
# Words that can follow a full stop, or open a paragraph (there without a leading space).
OPENERS = "The In At One When After Then But It She He They There".split()
PARAGRAPH_OPENERS = "The In At One When After".split()
QUESTION_WORDS = "What Who".split()
LINE_OPENERS = "Question Answer".split()


def vocabulary_words():
    """What is to be one token: words as they stand in a text, parts of other words and numbers."""
    spaced = (
        NAMES
        + ADJECTIVES
        + THINGS
        + PLACES
        + ROLES
        + MOODS
        + TIMES
        + GOING
        + TAKING
        + BEING
        + WHERE
        + WEATHER
        + [w for v in WEATHER_DID.values() for w in v]
        + PATTERN_WORDS
        + OPENERS
        + QUESTION_WORDS
    )
    parts = [c + v for c in CONSONANTS for v in VOWELS] + [f"{n:02}" for n in range(100)]
    return sorted(
        {" " + w for w in spaced} | set(PARAGRAPH_OPENERS) | set(LINE_OPENERS) | set(parts)
    )


# Words of the prompts of reading.py and reasoning.py.
PROMPT_WORDS = (
    " special magic number numbers uuid uuids word words hidden within following text Make sure"
    " memorize quiz afterwards mentioned provided secret code earlier Answer nothing else"
    " Memorize track chain variable variables assignment Find assigned value above According"
    " VAR Below numbered list appear common Question Read coded frequency three frequently"
    " appeared explanation Please ignore dots under new old end Back Step Stack Visited State"
    " Search steps Graph Part Total Sums modulo # green sky yellow grass"
).split()
LINE_WORDS = "Graph Search Step State Part Sums Answer Question VAR Some One What".split()


def task_words():
    """What is to be one token of mini's vocabulary beside what its corpus teaches."""
    known = {w for w in vocabulary_words() if not any(c.isdigit() for c in w)}
    things = {"-" + w for w in THINGS}
    return sorted(known | things | {" " + w for w in PROMPT_WORDS} | set(LINE_WORDS))


def invent(rng):
    """A word of one to three syllables, most of them in no dictionary."""

    def pick(parts):
        return parts[rng.integers(len(parts))]

    return "".join(pick(ONSETS) + pick(VOWELS) + pick(CODAS) for _ in range(rng.integers(1, 4)))


class Writer:
    """Writes paragraphs of unrelated small stories from one seeded generator.

    A share of the paragraphs is strange: most of their nouns, names and verbs are invented words.
    """

    def __init__(self, rng, strange):
        """strange: that share."""
        self.rng, self.share, self.strange = rng, strange, False

    def pick(self, words):
        known = words[self.rng.integers(len(words))]
        if self.strange and words in STRANGE and self.rng.random() < 0.6:
            word = invent(self.rng)
            return word.capitalize() if known[0].isupper() else word
        return known

    def paragraph(self):
        """List of 3 to 8 sentences about one person; the first opens a paragraph."""
        self.strange = self.rng.random() < self.share
        if self.rng.random() < 0.5:
            woman = self.rng.random() < 0.5
            who = self.pick(WOMEN if woman else MEN)
        else:
            woman = self.rng.random() < 0.3
            who = f"the {self.pick(AGES)} {self.pick(ROLES)}"
        pronoun = "she" if woman else "he"
        sentences = [self.opening(who)]
        for _ in range(self.rng.integers(2, 8)):
            sentences.append(self.sentence(who, pronoun))
        return sentences

    def thing(self):
        """A thing with or without an adjective, and its article."""
        if self.rng.random() < 0.7:
            return f"a {self.pick(ADJECTIVES)} {self.pick(THINGS)}"
        return f"{self.pick(('the', 'a'))} {self.pick(THINGS)}"

    def place(self):
        if self.rng.random() < 0.3:
            return f"the {self.pick(QUALITIES)} {self.pick(PLACES)}"
        return f"the {self.pick(PLACES)}"

    def weather(self):
        kind = self.pick(WEATHER)
        return f"the {kind} {self.pick(WEATHER_DID[kind])}"

    def action(self):
        """A verb phrase in the past tense."""
        kind = self.rng.integers(6)
        if kind == 0:
            return f"{self.pick(GOING)} to {self.place()}"
        if kind == 1:
            return f"{self.pick(TAKING)} {self.thing()}"
        if kind == 2:
            return f"{self.pick(TAKING)} {self.thing()} {self.pick(WHERE)} {self.place()}"
        if kind == 3:
            return f"{self.pick(BEING)} {self.pick(WHERE)} {self.place()}"
        if kind == 4:
            return f"gave {self.thing()} to {self.pick(NAMES)}"
        return f"was {self.pick(MOODS)}"

    def opening(self, who):
        kind = self.rng.integers(5)
        if kind == 0:
            return f"In the {self.pick(TIMES)} {who} {self.action()}."
        if kind == 1:
            return f"One {self.pick(TIMES)} {who} {self.action()}."
        if kind == 2:
            return f"When {self.weather()}, {who} {self.action()}."
        if kind == 3:
            return f"At {self.place()} {who} {self.action()}."
        return f"After the {self.pick(WEATHER)} {who} {self.action()}."

    def sentence(self, who, pronoun):
        kind = self.rng.integers(10)
        subject = pronoun if self.rng.random() < 0.7 else who
        if kind == 0:
            return f"There {pronoun} {self.action()} and {self.action()}."
        if kind == 1:
            return f"Then {subject} {self.action()}."
        if kind == 2:
            return f"But {subject} was not {self.pick(MOODS)}, because {self.weather()}."
        if kind == 3:
            degree = ("very", "still", "not")
            return f"The {self.pick(THINGS)} was {self.pick(degree)} {self.pick(QUALITIES)}."
        if kind == 4:
            return f"It was a {self.pick(QUALITIES)} {self.pick(TIMES)}, and {self.weather()}."
        if kind == 5:
            return (
                f"{subject[0].upper()}{subject[1:]} told {self.pick(NAMES)} about {self.thing()}."
            )
        if kind == 6:
            return f"{subject[0].upper()}{subject[1:]} {self.action()} before {self.weather()}."
        if kind == 7:
            return f"The {self.pick(ROLES)} and the {self.pick(ROLES)} {self.pick(BEING)} there."
        if kind == 8:
            opening = f"{subject[0].upper()}{subject[1:]} {self.action()}"
            return f"{opening}, and {self.pick(NAMES)} {self.action()}."
        return f"{subject[0].upper()}{subject[1:]} {self.action()}."
