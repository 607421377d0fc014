"""How far a checkpoint's attention is like a real model's: python3 geometry.py DIR --corpus FOLDER.

Prints, as the tables of models/README.md,
  - R by layer and query head: |E q_f| / E|q_f| of the queries before rotary positions, mean of the
    two bands with the largest E|q_f| E|k_f| (dominant) and mean of all bands weighted by that
    product
  - the reconstruction correlation: Pearson's, between a query's logits at log-spaced distances and
    the curve  sum over f of |E q_f| |E k_f| cos(w_f d + arg E q_f - arg E k_f),  mean over queries
  - the accuracy on facts in prose when each KV head keeps only a share of the entries of the text
    before the question is read: those with the largest values (a control: it needs no query), the
    newest, and a random choice.
"""

import argparse
import os

import numpy as np
import torch

import reading
from corpus import Corpus
from evaluate import load
from model import rope_frequencies, rope_tables, rotate

TEST_SEED = 90002
N_TEXT = 4096  # tokens of ordinary text per passage
N_PASSAGE = 4
N_DISTANCE = 24
N_SINK = 4


@torch.no_grad()
def walk(model, ids, n_prompt=0, keep=None):
    """Logits of ids [n_tok], and per layer (q, k) before rotary positions, [n_head][n_tok][dim].

    keep(v [n_head_kv][n_prompt][dim]) gives the entries [n_head_kv][n_kept] of the first n_prompt
    that the tokens after them may see.
    """
    c, n_tok, seen = model.c, len(ids), []
    cos, sin = rope_tables(n_tok, c.head_dim, c.rope_theta)
    x = model.token_embd(torch.tensor(ids))
    causal = torch.ones(n_tok, n_tok, dtype=torch.bool).triu(1)
    for layer in model.blk:
        h = layer.attn_norm(x)
        q, k, v = (
            w(h).view(n_tok, -1, c.head_dim).transpose(0, 1)
            for w in (layer.attn_q, layer.attn_k, layer.attn_v)
        )
        seen.append((q, k))
        hidden = causal.expand(c.n_head_kv, -1, -1)
        if keep is not None:
            hidden, kept = hidden.clone(), keep(v[:, :n_prompt])
            lost = torch.ones(c.n_head_kv, n_prompt, dtype=torch.bool).scatter(1, kept, False)
            hidden[:, n_prompt:, :n_prompt] |= lost[:, None]
        group = c.n_head // c.n_head_kv
        scores = rotate(q, cos, sin) @ rotate(k, cos, sin).repeat_interleave(group, 0).mT
        scores = (scores * c.head_dim**-0.5).masked_fill(
            hidden.repeat_interleave(group, 0), float("-inf")
        )
        mixed = torch.softmax(scores, -1) @ v.repeat_interleave(group, 0)
        x = x + layer.attn_output(mixed.transpose(0, 1).reshape(n_tok, -1))
        h = layer.ffn_norm(x)
        x = x + layer.ffn_down(torch.nn.functional.silu(layer.ffn_gate(h)) * layer.ffn_up(h))
    return model.output(model.output_norm(x)), seen


def complex_bands(x):
    a, b = x.double().chunk(2, -1)
    return torch.complex(a, b)


def heads(model, corpus):
    """Prints R and the reconstruction correlation of every query head over held-out passages."""
    c = model.c
    rng = np.random.default_rng(TEST_SEED)
    passages = [walk(model, corpus.passage(rng, N_TEXT).tolist())[1] for _ in range(N_PASSAGE)]
    omega = rope_frequencies(c.head_dim, c.rope_theta)
    distances = torch.from_numpy(np.unique(np.geomspace(1, N_TEXT // 2, N_DISTANCE).astype(int)))
    print("| layer | head | R, dominant bands | R, all bands | reconstruction |")
    print("|---|---|---|---|---|")
    table = []
    for i in range(c.n_layer):
        for h in range(c.n_head):
            q = torch.cat([complex_bands(p[i][0][h]) for p in passages])
            k = torch.cat([complex_bands(p[i][1][h * c.n_head_kv // c.n_head]) for p in passages])
            r = q.mean(0).abs() / q.abs().mean(0)
            share = q.abs().mean(0) * k.abs().mean(0)
            top = r[share.topk(2).indices].mean().item()
            every = ((r * share).sum() / share.sum()).item()
            mean = q.mean(0) * k.mean(0).conj()
            turn = torch.exp(1j * omega * distances[:, None])
            curve = (mean * turn).real.sum(-1)
            rho = []
            for p in passages:
                q1 = complex_bands(p[i][0][h])
                k1 = complex_bands(p[i][1][h * c.n_head_kv // c.n_head])
                for at in rng.integers(N_TEXT // 2 + 1, N_TEXT, 64):
                    s = (q1[at] * k1[at - distances].conj() * turn).real.sum(-1)
                    rho.append(torch.corrcoef(torch.stack([s, curve]))[0, 1].item())
            table.append((top, every, float(np.mean(rho))))
            print(f"| {i} | {h} | {top:.3f} | {every:.3f} | {np.mean(rho):.3f} |")
    print("| mean | | " + " | ".join(f"{x:.3f}" for x in np.mean(table, 0)) + " |")


CHOICES = {
    "largest values": lambda v, n, g: v.norm(dim=-1).topk(n).indices,
    "newest, 4 sinks": lambda v, n, g: torch.cat(
        [torch.arange(N_SINK), torch.arange(v.shape[1] - n + N_SINK, v.shape[1])]
    ).expand(len(v), -1),
    "random": lambda v, n, g: torch.rand(v.shape[:2], generator=g).topk(n).indices,
}


def control(tok, model, corpus, n_tok, n_key, count):
    """Prints the accuracy on one of n_key keys in n_tok tokens of prose, by choice and share."""
    writer = reading.Reading(tok, corpus, 1.0, 1.0)
    right = {}
    for i in range(count):
        rng, noise = np.random.default_rng([TEST_SEED, n_tok, i]), torch.Generator().manual_seed(i)
        taken = set()
        keys = {
            reading.unlike(rng, reading.pair, taken): reading.unlike(rng, reading.number, taken)
            for _ in range(n_key)
        }
        needles = [writer.needle("number", k, v) for k, v in keys.items()]
        asked = list(keys)[rng.integers(n_key)]
        prompt = tok.encode("".join(t for t, _ in writer.woven(rng, n_tok - 16 * n_key, needles)))
        about = f"for {asked} mentioned in the provided text"
        tail = tok.encode(
            f"\nWhat is the special magic number {about}? The special magic number {about} is"
        )
        answer = tok.encode(f" {keys[asked]}")
        ids = [tok.begin] + prompt + tail + answer
        for name, choose in {"everything": None, **CHOICES}.items():
            for share in (1,) if choose is None else (2, 4, 8):
                n_prompt = len(prompt) + 1
                keep = choose and (lambda v: choose(v, n_prompt // share, noise))
                logits, _ = walk(model, ids, n_prompt, keep)
                first = len(ids) - len(answer)
                said = logits[first - 1 : -1].argmax(-1).tolist()
                right.setdefault((name, share), []).append(said == answer)
    for name in ("everything", *CHOICES):
        cells = [right.get((name, share)) for share in (1, 2, 4, 8)]
        print(
            f"| {n_tok} | {n_key} | {name} | "
            + " | ".join("-" if c is None else f"{np.mean(c):.2f}" for c in cells)
            + " |"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--corpus", required=True, help="folder with heldout.txt or heldout.txt.xz")
    parser.add_argument("--count", type=int, default=50, help="documents per row of the control")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tok, model, _ = load(args.folder)
    corpus = Corpus.load(tok, args.corpus, os.path.join(args.folder, "heldout.npy"), heldout=True)
    heads(model, corpus)
    print("\n| tokens | keys | kept | all | 1/2 | 1/4 | 1/8 |\n|---|---|---|---|---|---|---|")
    for n_tok, n_key in ((512, 4), (1024, 4), (2048, 4)):
        control(tok, model, corpus, n_tok, n_key, args.count)


if __name__ == "__main__":
    main()
