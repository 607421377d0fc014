"""Trains a preset: python3 train.py --preset nano --out DIR.  The same command resumes a stopped
run.

The data of a step depends on the seed and the step's number only, so a resumed run sees the data of
an uninterrupted one.  Each batch is cut into SHARDS halves that run side by side,
whatever the number of cores, and their gradients are added in order: the cores change the time,
not the result.  The halves are threads; with compiled layers, whose kernels hold Python's lock,
they are processes that hold the same weights and take the same step.
"""

import argparse
import math
import os
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the two halves of a batch are the parallel work

import numpy as np
import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.functional as F

import attention_amx
import language
import tokenizer
from corpus import Corpus, read
from hybrid import decoder
from mixture import Mixture
from model import Config
from muon import Muon
from presets import PRESETS
from stories import Stories
from tasks import Tasks

SHARDS = 2
REPORT_STEPS = 25
CHECKPOINT_STEPS = 100
PART_TOKENS = 2048  # of a shard that compiled layers take at a time: what caches hold
SMOOTHING = 0.9  # of the running figures in the log
LANGUAGE_COUNT = 3000  # how often each word of the tasks counts beside a corpus
RARE = 3  # pieces of the corpus that occur less often teach the tokenizer nothing
KERNELS = "kernels"  # a folder in that of the run
GGUF_SPECIALS = 2  # begin and end of a text


def natural_tokenizer(n_vocab, folder):
    """Byte-level BPE of a corpus; the words of the tasks and all numbers below 1000 are tokens."""
    words = tokenizer.count_words(read(folder), "llama-bpe")
    words = Counter(
        {w: n for w, n in words.items() if n >= RARE and not any(0x30 <= c < 0x3A for c in w)}
    )
    for word in language.task_words():
        words[word.encode()] += LANGUAGE_COUNT
    numbers = [f"{n:0{width}}".encode() for width in (2, 3) for n in range(10**width)]
    n_merges = n_vocab - 256 - len(numbers) - GGUF_SPECIALS
    return tokenizer.Tokenizer(tokenizer.train(words, n_merges), numbers, "llama-bpe")


def make_tokenizer(preset, corpus, path):
    """The preset's tokenizer, learnt on first use and kept in path."""
    if not os.path.exists(path):
        if preset.n_vocab:
            tok = natural_tokenizer(preset.n_vocab, corpus)
        else:
            words = Counter({w.encode(): 1 for w in language.vocabulary_words()})
            tok = tokenizer.Tokenizer(tokenizer.train(words))
        tok.save(path)
    return tokenizer.Tokenizer.load(path)


def rate_share(preset, step, fresh):
    """What the learning rates are multiplied with.  fresh: the step at which optimizers began."""
    rate = min(1.0, (step - fresh + 1) / preset.warmup)
    left = (preset.steps - step) / (preset.steps * preset.decay_share)
    if left < 1:
        rate *= preset.final_rate + (1 - preset.final_rate) * 0.5 * (1 - math.cos(math.pi * left))
    return rate


def make_optimizers(model, preset):
    def adam(groups):
        return torch.optim.AdamW(groups, lr=preset.learning_rate, betas=preset.betas)

    matrices = [p for n, p in model.named_parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    if preset.matrix_rate == 0:
        decay = {"params": matrices, "weight_decay": preset.weight_decay}
        return [adam([decay, {"params": vectors, "weight_decay": 0.0}])]
    layers = [p for n, p in model.named_parameters() if p.dim() == 2 and n.startswith("blk.")]
    ends = [p for n, p in model.named_parameters() if p.dim() == 2 and not n.startswith("blk.")]
    return [
        adam([{"params": ends + vectors, "weight_decay": 0.0}]),
        Muon(layers, preset.matrix_rate, weight_decay=preset.weight_decay),
    ]


def token_losses(hidden, output, target):
    """The loss of each token, and whether it is the first choice.  hidden: [n_seq][n_tok][n_embd],
    output: [n_vocab][n_embd], target: [n_seq][n_tok]."""
    logits = F.linear(hidden, output).float()
    chosen = logits.gather(-1, target[..., None])[..., 0]
    return torch.logsumexp(logits, -1) - chosen, chosen >= logits.amax(-1)


def phase_of(preset, step):
    for number, phase in enumerate(preset.phases):
        if step < phase.steps:
            return number
        step -= phase.steps
    raise ValueError("step after the last phase")


def prepare(args):
    """Makes what the processes read: the tokenizer and the encoded corpus."""
    os.makedirs(args.out, exist_ok=True)
    preset = PRESETS[args.preset]
    tok = make_tokenizer(preset, args.corpus, os.path.join(args.out, "tokenizer.json"))
    Corpus.load(tok, args.corpus, os.path.join(args.out, "corpus.npy"))
    attention_amx.unlock(os.path.join(args.out, KERNELS))


class Run:
    """One training run and the folder that holds its tokenizer, checkpoint and log."""

    def __init__(self, args, rank=0):
        """rank: which half of a batch this process works on, where halves are processes."""
        self.name, self.seed, self.folder, self.device, self.rank = (
            args.preset,
            args.seed,
            args.out,
            args.device,
            rank,
        )
        self.preset = p = PRESETS[args.preset]
        self.token_losses = torch.compile(token_losses) if p.compiled else token_losses
        os.makedirs(self.folder, exist_ok=True)
        torch.set_num_threads(1)
        torch.manual_seed(self.seed)
        tok = make_tokenizer(p, args.corpus, os.path.join(self.folder, "tokenizer.json"))
        if p.n_vocab:
            corpus = Corpus.load(tok, args.corpus, os.path.join(self.folder, "corpus.npy"))
            self.tasks = [Mixture(tok, corpus, phase) for phase in p.phases]
        else:
            stories = Stories(tok, self.seed)
            self.tasks = [Tasks(tok, stories, phase) for phase in p.phases]
        self.model = decoder(Config.of(p, tok.size)).to(self.device)
        self.optimizers = make_optimizers(self.model, p)
        self.initial_rates = [g["lr"] for o in self.optimizers for g in o.param_groups]
        if p.compiled:
            self.model.compile(p.lengths, os.path.join(self.folder, KERNELS))
        self.step, self.seconds, self.n_tokens, self.running, self.fresh = 0, 0.0, 0, {}, 0
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
        self.step, self.seconds, self.n_tokens = state["step"], state["seconds"], state["tokens"]
        self.fresh = state.get("fresh", 0)
        if state["optimizers"] is None:  # import_gguf.py
            self.fresh = self.step
            return
        for optimizer, kept in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(kept)

    def save(self):
        """Replaces the checkpoint in one move, so that a killed run leaves the old one whole."""
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizers": [o.state_dict() for o in self.optimizers],
                "step": self.step,
                "fresh": self.fresh,
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

        Returns the gradients of the weighted sum of losses, that sum, the sum of weights, and
        {kind of row: (answer tokens that were the first choice, answer tokens)}; of the answer
        tokens of a row, the ones with the largest weight.
        """
        *arrays, kinds = tasks.batch(rng, n_seq, length)
        ids, weight, answers = (torch.from_numpy(a).to(self.device) for a in arrays)
        target, weight, answers = ids[:, 1:], weight[:, 1:], answers[:, 1:]
        rows = max(1, PART_TOKENS // length) if self.preset.compiled else n_seq
        gradients, losses, first = None, [], []
        for start in range(0, n_seq, rows):
            part = slice(start, start + rows)
            with torch.autocast(self.device, torch.bfloat16, enabled=self.preset.compiled):
                hidden = self.model.hidden(ids[part, :-1])
                loss, hit = self.token_losses(hidden, self.model.output.weight, target[part])
            some = torch.autograd.grad(
                (loss * weight[part]).sum(), list(self.model.parameters())
            )
            gradients = [a + b for a, b in zip(gradients, some)] if gradients else some
            losses.append(loss.detach())
            first.append(hit)
        loss = torch.cat(losses)
        total = (loss * weight).sum()
        answers = (answers > 0) & (answers == answers.amax(1, keepdim=True))
        right = (torch.cat(first) & answers).sum(1).tolist()
        counts = answers.sum(1).tolist()
        scores = Counter(), Counter()
        for kind, r, n in zip(kinds, right, counts):
            scores[0][kind] += r
            scores[1][kind] += n
        plain = loss[[k == "text" for k in kinds]]
        scores[0]["text"], scores[1]["text"] = plain.sum().item(), plain.numel()
        return gradients, total.item(), weight.sum().item(), *scores

    def summed(self, part):
        """A shard's results with gradients, loss and weight summed over the processes."""
        gradients, loss, weight, right, answers = part
        row = torch.cat([g.flatten() for g in gradients] + [torch.tensor([loss, weight])])
        torch.distributed.all_reduce(row)
        sizes = [p.numel() for p in self.model.parameters()]
        gradients = [
            g.view_as(p) for g, p in zip(row[:-2].split(sizes), self.model.parameters())
        ]
        return gradients, row[-2].item(), row[-1].item(), right, answers

    def train_step(self, pool):
        number = phase_of(self.preset, self.step)
        phase = self.preset.phases[number]
        draw = np.random.default_rng([self.seed, self.step])
        length = int(draw.choice(list(phase.lengths), p=list(phase.lengths.values())))
        n_seq = max(1, phase.batch_tokens // length // SHARDS)

        def shard(i):
            # NumPy fills a short seed up with zeros, so that shard 0 draws what the length was
            # drawn with, unless it counts from 1: nano's file was made with the former.
            rng = np.random.default_rng([self.seed, self.step, i + self.preset.first_shard])
            return self.shard(self.tasks[number], rng, n_seq, length)

        if self.preset.compiled:
            parts = [self.summed(shard(self.rank))]
        else:
            parts = pool.map(shard, range(SHARDS))
        gradients, losses, weights, right, answers = zip(*parts)
        for p, *parts in zip(self.model.parameters(), *gradients):
            p.grad = sum(parts) / sum(weights)
        groups = [g for o in self.optimizers for g in o.param_groups]
        for group, initial in zip(groups, self.initial_rates):
            group["lr"] = initial * rate_share(self.preset, self.step, self.fresh)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.preset.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        self.n_tokens += SHARDS * n_seq * length
        self.step += 1
        figures = {"loss": sum(losses) / sum(weights)}
        right, answers = sum(right, Counter()), sum(answers, Counter())
        figures.update({f"{k}@{length}": right[k] / n for k, n in answers.items() if n})
        for key, value in figures.items():
            self.running[key] = SMOOTHING * self.running.get(key, value) + (1 - SMOOTHING) * value

    def report(self, log):
        figures = " ".join(f"{k} {v:.3f}" for k, v in sorted(self.running.items()))
        done = f"step {self.step} of {self.preset.steps} {self.n_tokens / 1e6:.2f} Mtok"
        line = f"{done} {self.seconds:.0f} s {figures}"
        print(line, flush=True)
        print(line, file=log, flush=True)

    def train(self):
        started = time.time() - self.seconds
        log_path = os.path.join(self.folder, "log.txt")
        with ThreadPoolExecutor(SHARDS) as pool, open(log_path, "a") as log:
            while self.step < self.preset.steps:
                self.train_step(pool)
                self.seconds = time.time() - started
                if self.rank > 0:
                    continue
                if self.step % REPORT_STEPS == 0:
                    self.report(log)
                if self.step % CHECKPOINT_STEPS == 0 or self.step == self.preset.steps:
                    self.save()


def process(rank, args, meeting):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=SHARDS
    )
    Run(args, rank).train()


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
        "--corpus", help="folder of .txt or .txt.xz files, works separated by form feeds (mini)"
    )
    parser.add_argument("--device", default="cpu", help="a torch device")
    args = parser.parse_args()
    if PRESETS[args.preset].n_vocab and not args.corpus:
        parser.error(f"preset {args.preset} needs --corpus")
    if not PRESETS[args.preset].compiled:
        Run(args).train()
        return
    prepare(args)
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        torch.multiprocessing.spawn(process, (args, meeting), nprocs=SHARDS)


if __name__ == "__main__":
    main()
