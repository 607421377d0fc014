"""What is trained, on what, for how many steps.  A preset fixes everything but the seed and the threads."""
from dataclasses import dataclass, field

PASSWORDS = {"password": 1.0}
ALL_FACTS = {"password": 0.6, "friend": 0.2, "way": 0.2}


@dataclass
class Phase:
    steps: int
    lengths: dict                   # {tokens per sequence: probability}, drawn for each step
    batch_tokens: int               # per step; a step has at least one sequence
    facts: dict = field(default_factory=lambda: ALL_FACTS)
    dense: float = 0.5              # share of documents with questions anywhere, the rest ask at the end
    most_story: float = 0.8         # dense documents: share of filler is uniform up to this
    most_questions: float = 0.5     # dense documents: share of full questions among repetitions, likewise
    text_weight: float = 0.3        # loss weights; answers have 1
    surprise_weight: float = 0.05
    corpus: float = 0.0             # share of the sequences that is plain natural text, all weights 1


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
    n_merges: int = 0               # 0: merge until every word of language.py is one token
    weight_decay: float = 0.05
    betas: tuple = (0.9, 0.98)
    clip: float = 1.0
    warmup: int = 100               # steps
    decay_share: float = 0.4        # last share of all steps in which the rate falls along a cosine ..
    final_rate: float = 0.05        # .. to this share of itself

    @property
    def steps(self):
        return sum(p.steps for p in self.phases)


NANO = Preset(
    n_embd=128, n_layer=3, n_head=4, n_head_kv=2, n_ff=384, rope_theta=1e6, context=4096, learning_rate=3e-3,
    phases=[
        # The induction circuit forms here: short, dense, small batches.
        Phase(200, {64: 1.0}, 2048, PASSWORDS, dense=1.0, most_story=0.3, most_questions=0.0, text_weight=0.05,
              surprise_weight=0.02),
        Phase(500, {64: 0.2, 128: 0.4, 256: 0.4}, 2048, dense=0.7, text_weight=0.1),
        Phase(600, {128: 0.3, 256: 0.4, 512: 0.3}, 4096),
        Phase(400, {256: 0.3, 512: 0.3, 1024: 0.25, 2048: 0.15}, 4096),
        Phase(100, {512: 0.3, 1024: 0.3, 2048: 0.2, 4096: 0.2}, 8192),
    ])

PRESETS = {"nano": NANO}
