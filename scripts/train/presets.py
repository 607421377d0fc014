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
    corpus: float = 0.0  # share of the documents whose filler is another text (evaluate.py)
    kinds: dict = field(default_factory=dict)  # {kind of document: share}, of mixture.py


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
    n_vocab: int = 0  # 0: merge until every word of language.py is one token; else needs a corpus
    matrix_rate: float = 0.0  # learning rate of Muon for the layers' matrices; 0: AdamW for all
    compiled: bool = False  # layers go through torch.compile, products in bfloat16
    first_shard: int = 0  # number of the first of a step's shards, in their seeds
    hybrid: dict = field(default_factory=dict)  # further fields of a Config (hybrid.py)
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
    def lengths(self):
        return sorted({length for p in self.phases for length in p.lengths})


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

LIGHT = dict(text_weight=0.1, surprise_weight=0.02)
MIDDLE = dict(text_weight=0.4, surprise_weight=0.05)
HEAVY = dict(text_weight=0.9, surprise_weight=0.3)  # nearly the plain loss of a language model

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

ASKING = dict(invented=0.2, dense=0.25, text_weight=0.1)

# As nano, of gated delta nets with attention in every fourth layer, where a quarter of a head
# rotates (qwen35).
HYBRID = Preset(
    n_embd=128,
    n_layer=8,
    n_head=2,
    n_head_kv=2,
    n_ff=128,
    rope_theta=1e6,
    context=4096,
    learning_rate=3e-3,
    hybrid=dict(
        norm_eps=1e-6,
        head_size=64,
        n_rot=16,
        interval=4,
        delta_keys=1,
        delta_values=2,
        delta_dim=32,
        delta_memory=16,
    ),
    first_shard=1,
    decay_share=0.3,
    phases=[
        Phase(200, **FIRST),
        Phase(100, {64: 0.2, 128: 0.4, 256: 0.4}, 2048, invented=0.25, dense=0.5, text_weight=0.1),
        Phase(250, {128: 0.3, 256: 0.4, 512: 0.3}, 4096, PASSWORDS, **ASKING),
        Phase(150, {512: 0.5, 1024: 0.3, 2048: 0.2}, 4096, PASSWORDS, **ASKING),
        Phase(120, {1024: 0.3, 2048: 0.35, 4096: 0.35}, 8192, PASSWORDS, **ASKING),
        Phase(40, {4096: 0.5, 8192: 0.5}, 16384, PASSWORDS, **ASKING),
    ],
)

# Shares of mini's documents (reading.py, reasoning.py), without natural text: while circuits form,
# and later.
EARLY = {
    "dense": 0.15,
    "gaps": 0.35,
    "facts": 0.08,
    "niah": 0.2,
    "variables": 0.07,
    "common_words": 0.05,
    "coded_words": 0.03,
    "trace": 0.04,
    "derivation": 0.03,
}
LATER = {
    "gaps": 0.05,
    "facts": 0.1,
    "niah": 0.42,
    "code_word": 0.05,
    "variables": 0.1,
    "common_words": 0.08,
    "coded_words": 0.06,
    "trace": 0.09,
    "derivation": 0.05,
}
# Again, with more of the tasks that are still weak: lists of answers, searches, sums, many keys.
DRILL = {
    "gaps": 0.14,
    "lists": 0.2,
    "facts": 0.04,
    "niah": 0.14,
    "variables": 0.08,
    "common_words": 0.04,
    "coded_words": 0.03,
    "trace": 0.15,
    "derivation": 0.18,
}
LAST = {
    "gaps": 0.16,
    "lists": 0.14,
    "facts": 0.06,
    "niah": 0.27,
    "code_word": 0.03,
    "variables": 0.08,
    "common_words": 0.05,
    "coded_words": 0.04,
    "trace": 0.1,
    "derivation": 0.07,
}


def kinds(text, tasks):
    """Shares with this much natural text; the tasks have the rest."""
    return {"text": text, **{k: (1 - text) * v / sum(tasks.values()) for k, v in tasks.items()}}


# The longest texts, and whom of many to ask.
FAR = {
    "gaps": 0.14,
    "lists": 0.14,
    "facts": 0.1,
    "niah": 0.38,
    "code_word": 0.04,
    "variables": 0.06,
    "common_words": 0.03,
    "coded_words": 0.02,
    "trace": 0.06,
    "derivation": 0.03,
}


# What the first 5,180 steps left weak: one of hundreds of keys, identifiers, searches and sums.
CROWDS = {
    "gaps": 0.12,
    "lists": 0.06,
    "facts": 0.03,
    "niah": 0.14,
    "crowd": 0.25,
    "code_word": 0.03,
    "variables": 0.06,
    "common_words": 0.03,
    "coded_words": 0.02,
    "trace": 0.16,
    "derivation": 0.1,
}
MIDDLE_CROWDS = {
    "gaps": 0.08,
    "lists": 0.1,
    "facts": 0.03,
    "niah": 0.22,
    "crowd": 0.17,
    "code_word": 0.04,
    "variables": 0.09,
    "common_words": 0.03,
    "coded_words": 0.03,
    "trace": 0.14,
    "derivation": 0.07,
}
FAR_CROWDS = {
    "gaps": 0.06,
    "lists": 0.08,
    "facts": 0.06,
    "niah": 0.3,
    "crowd": 0.2,
    "code_word": 0.05,
    "variables": 0.08,
    "common_words": 0.02,
    "coded_words": 0.02,
    "trace": 0.08,
    "derivation": 0.05,
}
FAR_FACTS = {
    "gaps": 0.03,
    "lists": 0.05,
    "facts": 0.24,
    "niah": 0.2,
    "crowd": 0.11,
    "code_word": 0.03,
    "variables": 0.05,
    "trace": 0.17,
    "derivation": 0.12,
}


# What the first 7,200 steps left weak: several answers, long identifiers, when to end.
LISTS = {
    "gaps": 0.04,
    "lists": 0.24,
    "facts": 0.03,
    "niah": 0.2,
    "crowd": 0.16,
    "code_word": 0.02,
    "variables": 0.12,
    "common_words": 0.04,
    "coded_words": 0.02,
    "trace": 0.08,
    "derivation": 0.05,
}
COUNTED = {
    "gaps": 0.02,
    "lists": 0.4,
    "facts": 0.03,
    "niah": 0.25,
    "crowd": 0.08,
    "variables": 0.06,
    "trace": 0.09,
    "derivation": 0.07,
}
FAR_LISTS = {
    "gaps": 0.03,
    "lists": 0.11,
    "facts": 0.06,
    "niah": 0.22,
    "crowd": 0.14,
    "code_word": 0.03,
    "variables": 0.1,
    "common_words": 0.02,
    "coded_words": 0.01,
    "trace": 0.15,
    "derivation": 0.13,
}


# What the first 8,800 steps left weak: long values among many alike.
COPIES = {
    "gaps": 0.03,
    "lists": 0.08,
    "facts": 0.03,
    "niah": 0.14,
    "crowd": 0.4,
    "variables": 0.07,
    "common_words": 0.03,
    "coded_words": 0.02,
    "trace": 0.09,
    "derivation": 0.11,
}
FAR_COPIES = {
    "gaps": 0.03,
    "lists": 0.08,
    "facts": 0.05,
    "niah": 0.2,
    "crowd": 0.28,
    "code_word": 0.02,
    "variables": 0.08,
    "common_words": 0.02,
    "coded_words": 0.02,
    "trace": 0.1,
    "derivation": 0.12,
}


# What the first 10,420 steps left weak: what to say next of several, counting.
COUNTS = {
    "lists": 0.26,
    "facts": 0.02,
    "niah": 0.13,
    "crowd": 0.09,
    "variables": 0.08,
    "common_words": 0.2,
    "coded_words": 0.14,
    "trace": 0.05,
    "derivation": 0.03,
}
UNSAID = {
    "shuffles": 0.4,
    "lists": 0.25,
    "niah": 0.1,
    "crowd": 0.05,
    "common_words": 0.1,
    "variables": 0.05,
    "trace": 0.05,
}
SETS = {
    "values": 0.5,
    "shuffles": 0.1,
    "lists": 0.05,
    "niah": 0.1,
    "common_words": 0.15,
    "variables": 0.05,
    "trace": 0.05,
}
FAR_COUNTS = {
    "gaps": 0.02,
    "values": 0.11,
    "lists": 0.04,
    "facts": 0.05,
    "niah": 0.22,
    "crowd": 0.2,
    "code_word": 0.02,
    "variables": 0.1,
    "common_words": 0.1,
    "coded_words": 0.06,
    "trace": 0.08,
    "derivation": 0.06,
}


# The larger model: natural text, and questions about far facts in it, to 8,192 tokens.
MINI = Preset(
    n_embd=256,
    n_layer=6,
    n_head=4,
    n_head_kv=2,
    n_ff=768,
    rope_theta=1e6,
    context=8192,
    learning_rate=3e-3,
    matrix_rate=0.012,
    n_vocab=5120,
    warmup=100,
    decay_share=0.1,
    compiled=True,
    first_shard=1,
    phases=[
        Phase(
            300,
            {64: 1.0},
            4096,
            PASSWORDS,
            0.0,
            kinds=kinds(0.1, {"dense": 0.65, "gaps": 0.35}),
            **LIGHT,
        ),
        Phase(200, {128: 0.6, 256: 0.4}, 8192, kinds=kinds(0.15, EARLY), **MIDDLE),
        Phase(300, {128: 1.0}, 4096, kinds=kinds(0.1, {**EARLY, "gaps": 2.0}), **LIGHT),
        Phase(400, {128: 0.3, 256: 0.7}, 8192, kinds=kinds(0.2, {**EARLY, "dense": 0.5}), **MIDDLE),
        Phase(500, {128: 1.0}, 4096, kinds=kinds(0.1, {**EARLY, "gaps": 2.0}), **LIGHT),
        Phase(500, {256: 0.4, 512: 0.6}, 16384, kinds=kinds(0.2, LATER), **MIDDLE),
        Phase(350, {512: 0.4, 1024: 0.6}, 16384, kinds=kinds(0.25, LATER), **HEAVY),
        Phase(250, {512: 0.2, 1024: 0.4, 2048: 0.4}, 16384, kinds=kinds(0.25, LATER), **HEAVY),
        Phase(
            250,
            {1024: 0.2, 2048: 0.3, 4096: 0.3, 8192: 0.2},
            16384,
            kinds=kinds(0.25, LATER),
            **HEAVY,
        ),
        Phase(500, {128: 0.3, 256: 0.4, 512: 0.3}, 8192, kinds=kinds(0.15, DRILL), **MIDDLE),
        Phase(500, {256: 0.2, 512: 0.4, 1024: 0.4}, 16384, kinds=kinds(0.2, DRILL), **MIDDLE),
        Phase(
            500,
            {512: 0.2, 1024: 0.3, 2048: 0.3, 4096: 0.2},
            16384,
            kinds=kinds(0.25, LAST),
            **HEAVY,
        ),
        Phase(
            500,
            {1024: 0.2, 2048: 0.3, 4096: 0.3, 8192: 0.2},
            16384,
            kinds=kinds(0.25, LAST),
            **HEAVY,
        ),
        Phase(130, {2048: 0.15, 4096: 0.25, 8192: 0.6}, 16384, kinds=kinds(0.2, FAR), **HEAVY),
        Phase(520, {512: 0.4, 1024: 0.6}, 16384, kinds=kinds(0.15, CROWDS), **MIDDLE),
        Phase(500, {1024: 0.4, 2048: 0.6}, 16384, kinds=kinds(0.15, CROWDS), **MIDDLE),
        Phase(
            550,
            {1024: 0.2, 2048: 0.3, 4096: 0.3, 8192: 0.2},
            16384,
            kinds=kinds(0.2, MIDDLE_CROWDS),
            **HEAVY,
        ),
        Phase(
            300,
            {1024: 0.1, 2048: 0.2, 4096: 0.3, 8192: 0.4},
            16384,
            kinds=kinds(0.2, FAR_CROWDS),
            **HEAVY,
        ),
        Phase(
            150,
            {1024: 0.3, 2048: 0.1, 4096: 0.25, 8192: 0.35},
            16384,
            kinds=kinds(0.2, FAR_FACTS),
            **HEAVY,
        ),
        Phase(600, {512: 0.5, 1024: 0.5}, 16384, kinds=kinds(0.12, LISTS), **MIDDLE),
        Phase(350, {1024: 0.4, 2048: 0.6}, 16384, kinds=kinds(0.15, LISTS), **MIDDLE),
        Phase(250, {512: 0.6, 1024: 0.4}, 16384, kinds=kinds(0.1, COUNTED), **MIDDLE),
        Phase(
            400,
            {1024: 0.3, 2048: 0.25, 4096: 0.25, 8192: 0.2},
            16384,
            kinds=kinds(0.2, FAR_LISTS),
            **HEAVY,
        ),
        Phase(600, {512: 0.4, 1024: 0.6}, 16384, kinds=kinds(0.12, COPIES), **MIDDLE),
        Phase(250, {1024: 0.3, 2048: 0.7}, 16384, kinds=kinds(0.15, COPIES), **MIDDLE),
        Phase(
            450,
            {1024: 0.2, 2048: 0.2, 4096: 0.25, 8192: 0.35},
            16384,
            kinds=kinds(0.2, FAR_COPIES),
            **HEAVY,
        ),
        Phase(
            320,
            {2048: 0.1, 4096: 0.2, 8192: 0.7},
            16384,
            kinds=kinds(0.2, {**FAR_COPIES, "crowd": 0.5}),
            **HEAVY,
        ),
        Phase(180, {512: 0.5, 1024: 0.5}, 16384, kinds=kinds(0.1, COUNTS), **MIDDLE),
        Phase(300, {128: 0.3, 256: 0.7}, 8192, kinds=kinds(0.1, UNSAID), **MIDDLE),
        Phase(
            200,
            {512: 0.5, 1024: 0.5},
            16384,
            kinds=kinds(0.1, {**COUNTS, "shuffles": 0.1}),
            **MIDDLE,
        ),
        Phase(
            200,
            {256: 0.2, 512: 0.4, 1024: 0.4},
            16384,
            kinds=kinds(0.1, {**COUNTS, "shuffles": 0.12}),
            **MIDDLE,
        ),
        Phase(400, {128: 0.1, 256: 0.9}, 8192, kinds=kinds(0.1, SETS), **MIDDLE),
        Phase(
            300,
            {512: 0.6, 1024: 0.4},
            16384,
            kinds=kinds(0.1, {**COUNTS, "values": 0.3, "lists": 0.05, "shuffles": 0.1}),
            **MIDDLE,
        ),
        Phase(
            350,
            {1024: 0.4, 2048: 0.6},
            16384,
            kinds=kinds(
                0.12,
                {**COUNTS, "values": 0.2, "lists": 0.1, "crowd": 0.12, "shuffles": 0.05},
            ),
            **MIDDLE,
        ),
        Phase(
            450,
            {1024: 0.2, 2048: 0.2, 4096: 0.25, 8192: 0.35},
            16384,
            kinds=kinds(0.2, FAR_COUNTS),
            **HEAVY,
        ),
        Phase(
            150,
            {1024: 0.4, 2048: 0.3, 4096: 0.3},
            16384,
            kinds=kinds(0.15, {**FAR_COUNTS, "variables": 0.25}),
            **HEAVY,
        ),
        Phase(
            200,
            {2048: 0.1, 4096: 0.2, 8192: 0.7},
            16384,
            kinds=kinds(0.2, FAR_COUNTS),
            **HEAVY,
        ),
        Phase(
            200,
            {512: 0.25, 1024: 0.35, 2048: 0.2, 4096: 0.1, 8192: 0.1},
            16384,
            kinds=kinds(0.15, {**FAR_COUNTS, "derivation": 0.35, "trace": 0.2}),
            **HEAVY,
        ),
        Phase(
            120,
            {1024: 0.2, 2048: 0.5, 4096: 0.15, 8192: 0.15},
            16384,
            kinds=kinds(0.15, {**FAR_COUNTS, "derivation": 0.25, "trace": 0.2}),
            **HEAVY,
        ),
        Phase(
            110,
            {1024: 0.1, 2048: 0.2, 4096: 0.2, 8192: 0.5},
            16384,
            kinds=kinds(0.15, {**FAR_COUNTS, "crowd": 0.35, "derivation": 0.15, "trace": 0.12}),
            **HEAVY,
        ),
        Phase(
            320,
            {1024: 0.05, 2048: 0.1, 4096: 0.2, 8192: 0.65},
            16384,
            kinds=kinds(0.15, {**FAR_COUNTS, "crowd": 0.5, "derivation": 0.15, "trace": 0.12}),
            **HEAVY,
        ),
        Phase(
            220,
            {1024: 0.15, 2048: 0.1, 4096: 0.1, 8192: 0.65},
            16384,
            kinds=kinds(0.15, {**FAR_COUNTS, "crowd": 0.5, "derivation": 0.2, "trace": 0.12}),
            **HEAVY,
        ),
        Phase(
            380,
            {1024: 0.1, 2048: 0.1, 4096: 0.1, 8192: 0.7},
            16384,
            kinds=kinds(0.12, {**FAR_COUNTS, "crowd": 0.65, "derivation": 0.17, "trace": 0.12}),
            **HEAVY,
        ),
    ],
)

PRESETS = {"nano": NANO, "hybrid": HYBRID, "mini": MINI}
