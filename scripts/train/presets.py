"""What is trained, on what, for how many steps: everything but the seed and the corpus."""

from dataclasses import dataclass, field

PASSWORDS = {"password": 1.0}
ALL_FACTS = {"password": 0.7, "friend": 0.15, "way": 0.15}


@dataclass
class Phase:
    steps: int
    lengths: dict  # {tokens per sequence: probability}, drawn for each step
    batch_tokens: int  # per step; each half of a step has at least one sequence
    facts: dict = field(default_factory=lambda: ALL_FACTS)
    invented: float = 0.4  # share of names and passwords that are invented words or numbers
    dense: float = 0.5  # share of documents with questions anywhere; others ask at the end
    plain: float = 0.0  # share of documents that are filler alone
    most_story: float = 0.8  # dense documents: share of filler is uniform up to this
    most_questions: float = 0.5  # dense documents: share of questions among repetitions, likewise
    text_weight: float = 0.3  # loss weights; answers have 1
    surprise_weight: float = 0.05
    corpus: float = 0.0  # share of the documents whose filler is the corpus


@dataclass
class Preset:
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    rope_theta: float
    context: int
    phases: list
    learning_rate: float
    n_merges: int = 0  # 0: merge until every word of language.py is one token
    weight_decay: float = 0.05
    betas: tuple = (0.9, 0.98)
    clip: float = 1.0
    warmup: int = 100  # steps
    decay_share: float = 0.4  # last share of all steps, in which the rate falls along a cosine ..
    final_rate: float = 0.05  # .. to this share of itself

    @property
    def steps(self):
        return sum(p.steps for p in self.phases)

    @property
    def needs_corpus(self):
        return self.n_merges > 0 or any(p.corpus > 0 for p in self.phases)


# The induction circuit forms in the first phase: short, dense, small batches, light filler.
FIRST = dict(
    lengths={64: 1.0},
    batch_tokens=2048,
    facts=PASSWORDS,
    invented=0.0,
    dense=1.0,
    most_story=0.3,
    most_questions=0.0,
    text_weight=0.05,
    surprise_weight=0.02,
)

# Later phases of a model that is to read natural text.
NATURAL = dict(dense=0.3, plain=0.4, text_weight=0.5, corpus=0.8)

NANO = Preset(
    n_embd=128,
    n_layer=3,
    n_head=4,
    n_head_kv=2,
    n_ff=384,
    rope_theta=1e6,
    context=4096,
    learning_rate=3e-3,
    phases=[
        Phase(200, **FIRST),
        Phase(500, {64: 0.2, 128: 0.4, 256: 0.4}, 2048, invented=0.25, dense=0.7, text_weight=0.1),
        Phase(700, {128: 0.3, 256: 0.4, 512: 0.3}, 4096),
        Phase(400, {256: 0.3, 512: 0.3, 1024: 0.25, 2048: 0.15}, 4096),
        Phase(400, {512: 0.2, 1024: 0.2, 2048: 0.3, 4096: 0.3}, 8192),
    ],
)

# The larger model: the same documents, with natural text as filler and alone, to 8,192 tokens.
MINI = Preset(
    n_embd=256,
    n_layer=6,
    n_head=8,
    n_head_kv=4,
    n_ff=768,
    rope_theta=1e6,
    context=8192,
    learning_rate=1.5e-3,
    n_merges=3800,
    warmup=200,
    phases=[
        Phase(600, **FIRST),
        Phase(2000, {64: 0.2, 128: 0.4, 256: 0.4}, 8192, plain=0.1, corpus=0.5),
        Phase(6000, {256: 0.4, 512: 0.4, 1024: 0.2}, 32768, **NATURAL),
        Phase(3000, {512: 0.3, 1024: 0.3, 2048: 0.25, 4096: 0.15}, 32768, **NATURAL),
        Phase(1000, {1024: 0.3, 2048: 0.3, 4096: 0.2, 8192: 0.2}, 32768, **NATURAL),
    ],
)

PRESETS = {"nano": NANO, "mini": MINI}
