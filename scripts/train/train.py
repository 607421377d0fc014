"""Trains a preset: python3 train.py --preset nano --out DIR.  The same command resumes a stopped
run.

The data of a step depends on the seed and the step's number only, so a resumed run sees what an
uninterrupted one would have seen.  Each batch is cut into SHARDS halves that run side by side,
whatever the number of cores, and their gradients are added in order: the cores change the time,
not the result.
"""

import argparse
import math
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the two halves of a batch are the parallel work

import numpy as np
import torch
import torch.nn.functional as F

import language
import tokenizer
from model import Config, Decoder
from presets import PRESETS
from stories import Stories
from tasks import ANSWER_WEIGHT, Tasks

SHARDS = 2
REPORT_STEPS = 25
CHECKPOINT_STEPS = 200
SMOOTHING = 0.9  # of the running figures in the log
LANGUAGE_COUNT = 500  # how often each word of language.py counts beside a corpus


def make_tokenizer(preset, corpus, path):
    """The preset's tokenizer, learnt on first use and kept in path."""
    if not os.path.exists(path):
        words = Counter({w.encode(): LANGUAGE_COUNT for w in language.vocabulary_words()})
        if preset.n_merges:
            words += tokenizer.count_words([corpus])
        tokenizer.Tokenizer(tokenizer.train(words, preset.n_merges or None)).save(path)
    return tokenizer.Tokenizer.load(path)


def learning_rate(preset, step):
    rate = preset.learning_rate * min(1.0, (step + 1) / preset.warmup)
    left = (preset.steps - step) / (preset.steps * preset.decay_share)
    if left < 1:
        rate *= preset.final_rate + (1 - preset.final_rate) * 0.5 * (1 - math.cos(math.pi * left))
    return rate


def make_optimizer(model, preset):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": preset.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=preset.learning_rate,
        betas=preset.betas,
    )


def phase_of(preset, step):
    for number, phase in enumerate(preset.phases):
        if step < phase.steps:
            return number
        step -= phase.steps
    raise ValueError("step after the last phase")


class Run:
    """One training run and the folder that holds its tokenizer, checkpoint and log."""

    def __init__(self, args):
        self.name, self.seed, self.folder, self.device = (
            args.preset,
            args.seed,
            args.out,
            args.device,
        )
        self.preset = p = PRESETS[args.preset]
        corpus = open(args.corpus, encoding="utf-8").read() if args.corpus else ""
        os.makedirs(self.folder, exist_ok=True)
        torch.set_num_threads(1)
        torch.manual_seed(self.seed)
        tok = make_tokenizer(p, corpus, os.path.join(self.folder, "tokenizer.json"))
        stories = Stories(tok, self.seed, corpus)
        self.tasks = [Tasks(tok, stories, phase) for phase in p.phases]
        self.model = Decoder(
            Config(tok.size, p.n_embd, p.n_layer, p.n_head, p.n_head_kv, p.n_ff, p.rope_theta)
        ).to(self.device)
        self.optimizer = make_optimizer(self.model, p)
        self.step, self.seconds, self.n_tokens, self.running = 0, 0.0, 0, {}
        self.checkpoint = os.path.join(self.folder, "checkpoint.pt")
        if os.path.exists(self.checkpoint):
            self.resume()

    def resume(self):
        state = torch.load(self.checkpoint, map_location=self.device)
        if (state["preset"], state["seed"]) != (self.name, self.seed):
            raise SystemExit(
                f"{self.checkpoint} is of preset {state['preset']} and seed {state['seed']}"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.n_tokens = state["step"], state["seconds"], state["tokens"]

    def save(self):
        """Replaces the checkpoint in one move, so that a killed run leaves the old one whole."""
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "seconds": self.seconds,
                "tokens": self.n_tokens,
                "preset": self.name,
                "seed": self.seed,
                "config": vars(self.model.c),
            },
            self.checkpoint + ".new",
        )
        os.replace(self.checkpoint + ".new", self.checkpoint)

    def shard(self, tasks, rng, n_seq, length):
        """Forward and backward over one shard of a batch.

        Returns the gradients of the weighted sum of losses, that sum, the sum of weights, and how
        many of how many answer tokens were the first choice.
        """
        ids, weight = (torch.from_numpy(a).to(self.device) for a in tasks.batch(rng, n_seq, length))
        logits, target, weight = self.model(ids[:, :-1]), ids[:, 1:], weight[:, 1:]
        loss = F.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), target.reshape(-1), reduction="none"
        )
        total = (loss * weight.reshape(-1)).sum()
        gradients = torch.autograd.grad(total, list(self.model.parameters()))
        with torch.no_grad():
            answers = weight == ANSWER_WEIGHT
            right = ((logits.argmax(-1) == target) & answers).sum().item()
        return gradients, total.item(), weight.sum().item(), right, answers.sum().item()

    def train_step(self, pool):
        number = phase_of(self.preset, self.step)
        phase = self.preset.phases[number]
        draw = np.random.default_rng([self.seed, self.step])
        length = int(draw.choice(list(phase.lengths), p=list(phase.lengths.values())))
        n_seq = max(1, phase.batch_tokens // length // SHARDS)
        jobs = [
            pool.submit(
                self.shard,
                self.tasks[number],
                np.random.default_rng([self.seed, self.step, i]),
                n_seq,
                length,
            )
            for i in range(SHARDS)
        ]
        gradients, losses, weights, right, answers = zip(*(job.result() for job in jobs))
        for p, *parts in zip(self.model.parameters(), *gradients):
            p.grad = sum(parts) / sum(weights)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.preset, self.step)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.preset.clip)
        self.optimizer.step()
        self.n_tokens += SHARDS * n_seq * length
        self.step += 1
        for key, value in (
            ("loss", sum(losses) / sum(weights)),
            (f"right@{length}", sum(right) / max(1, sum(answers))),
        ):
            self.running[key] = SMOOTHING * self.running.get(key, value) + (1 - SMOOTHING) * value

    def report(self, log):
        figures = " ".join(f"{k} {v:.3f}" for k, v in self.running.items())
        done = f"step {self.step} of {self.preset.steps} {self.n_tokens / 1e6:.2f} Mtok"
        line = f"{done} {self.seconds:.0f} s {figures}"
        print(line, flush=True)
        print(line, file=log, flush=True)

    def train(self):
        started = time.time() - self.seconds
        with ThreadPoolExecutor(SHARDS) as pool, open(
            os.path.join(self.folder, "log.txt"), "a"
        ) as log:
            while self.step < self.preset.steps:
                self.train_step(pool)
                self.seconds = time.time() - started
                if self.step % REPORT_STEPS == 0:
                    self.report(log)
                if self.step % CHECKPOINT_STEPS == 0 or self.step == self.preset.steps:
                    self.save()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, required=True)
    parser.add_argument(
        "--out", required=True, help="folder of the tokenizer, the checkpoint and the log"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--corpus", help="plain text, paragraphs separated by blank lines; mini needs one"
    )
    parser.add_argument("--device", default="cpu", help="a torch device")
    args = parser.parse_args()
    if PRESETS[args.preset].needs_corpus and not args.corpus:
        parser.error(f"preset {args.preset} needs --corpus")
    Run(args).train()


if __name__ == "__main__":
    main()
