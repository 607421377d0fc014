"""Trains a preset: python3 train.py nano --out DIR.  Run again with the same DIR to resume.

The data of a step depends on the seed and the step's number only, so a resumed run sees what an
uninterrupted one would have seen.  Each batch is cut into SHARDS halves that run side by side, whatever
the number of cores, and their gradients are added in order: the cores change the time, not the result.
"""
import argparse
import math
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

os.environ["OPENBLAS_NUM_THREADS"] = "1"    # the two halves of a batch are the parallel work

import numpy as np
import torch
import torch.nn.functional as F

import language
import tokenizer
from model import Config, Decoder
from presets import PRESETS
from tasks import ANSWER_WEIGHT, Stories, Tasks

SHARDS = 2
REPORT_STEPS = 25
CHECKPOINT_STEPS = 200
SMOOTHING = 0.9       # of the running figures in the log


def make_tokenizer(preset, path):
    """The preset's tokenizer, learnt on first use and kept in path."""
    if not os.path.exists(path):
        words = Counter({w.encode(): 1 for w in language.vocabulary_words()})
        tokenizer.Tokenizer(tokenizer.train(words)).save(path)
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
    return torch.optim.AdamW([{"params": matrices, "weight_decay": preset.weight_decay},
                              {"params": vectors, "weight_decay": 0.0}],
                             lr=preset.learning_rate, betas=preset.betas)


def phase_of(preset, step):
    for number, phase in enumerate(preset.phases):
        if step < phase.steps:
            return number, phase
        step -= phase.steps
    raise ValueError("step after the last phase")


def shard(model, tasks, rng, n_seq, length):
    """Forward and backward over one shard of a batch.

    Returns the gradients of the weighted sum of losses, that sum, the sum of weights, and how many of how
    many answer tokens were the first choice.
    """
    ids, weight = map(torch.from_numpy, tasks.batch(rng, n_seq, length))
    logits, target, weight = model(ids[:, :-1]), ids[:, 1:], weight[:, 1:]
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1), reduction="none")
    total = (loss * weight.reshape(-1)).sum()
    gradients = torch.autograd.grad(total, list(model.parameters()))
    with torch.no_grad():
        answers = weight == ANSWER_WEIGHT
        right = ((logits.argmax(-1) == target) & answers).sum().item()
    return gradients, total.item(), weight.sum().item(), right, answers.sum().item()


def save(path, state):
    """Replaces the checkpoint in one move, so that a killed run leaves the old one whole."""
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--out", required=True, help="folder of the tokenizer, the checkpoint and the log")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    preset = PRESETS[args.preset]
    os.makedirs(args.out, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tok = make_tokenizer(preset, os.path.join(args.out, "tokenizer.json"))
    model = Decoder(Config(tok.size, preset.n_embd, preset.n_layer, preset.n_head, preset.n_head_kv, preset.n_ff,
                           preset.rope_theta))
    optimizer = make_optimizer(model, preset)
    stories = Stories(tok, args.seed)
    tasks = [Tasks(tok, stories, phase) for phase in preset.phases]

    checkpoint = os.path.join(args.out, "checkpoint.pt")
    first, seconds, n_tokens = 0, 0.0, 0
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, seconds, n_tokens = state["step"], state["seconds"], state["tokens"]

    log = open(os.path.join(args.out, "log.txt"), "a", encoding="utf-8")
    running, started = {}, time.time() - seconds
    pool = ThreadPoolExecutor(SHARDS)
    for step in range(first, preset.steps):
        number, phase = phase_of(preset, step)
        lengths = list(phase.lengths)
        length = int(np.random.default_rng([args.seed, step]).choice(lengths, p=list(phase.lengths.values())))
        n_seq = max(1, phase.batch_tokens // length // SHARDS)
        jobs = [pool.submit(shard, model, tasks[number], np.random.default_rng([args.seed, step, i]), n_seq, length)
                for i in range(SHARDS)]
        gradients, losses, weights, right, answers = zip(*(job.result() for job in jobs))
        for p, *parts in zip(model.parameters(), *gradients):
            p.grad = sum(parts) / sum(weights)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(preset, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), preset.clip)
        optimizer.step()
        n_tokens += SHARDS * n_seq * length

        for key, value in (("loss", sum(losses) / sum(weights)), (f"right@{length}", sum(right) / sum(answers))):
            running[key] = SMOOTHING * running.get(key, value) + (1 - SMOOTHING) * value
        if (step + 1) % REPORT_STEPS == 0:
            seconds = time.time() - started
            figures = " ".join(f"{k} {v:.3f}" for k, v in running.items())
            line = f"step {step + 1} of {preset.steps} phase {number} {n_tokens / 1e6:.2f} Mtok {seconds:.0f} s {figures}"
            print(line, flush=True)
            print(line, file=log, flush=True)
        if (step + 1) % CHECKPOINT_STEPS == 0 or step + 1 == preset.steps:
            save(checkpoint, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1,
                              "seconds": time.time() - started, "tokens": n_tokens, "preset": args.preset,
                              "seed": args.seed, "config": vars(model.c)})


if __name__ == "__main__":
    main()
