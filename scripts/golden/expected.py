#!/usr/bin/env python3
"""Makes tests/golden/expected.txt: queries before rotation, keys after it and values of random
lanes, and the scores that Expected Attention (arXiv 2510.00636) gives the entries, by the formulas
of ExpectedAttentionPress in NVIDIA's kvpress, in double precision and with whole matrices: every
rotation to the next positions is a matrix, their mean is applied to the mean and the covariance of
the queries. tests/policy/keep/test_keep_expected.c compares.

    scripts/golden/expected.py
    scripts/golden/expected.py --kvpress    # compares the shares with the press itself instead

Needs numpy; with --kvpress also torch and kvpress (0.5.5). It takes the press's kind of model:
pairs of halves, whole heads, as many queries left out as there are sinks. A case is a line "case
NAME n_token n_head n_group dim n_pair adjacent future skip base", then the queries [n_token][n_head
* n_group][dim], the keys and the values [n_head][n_token][dim], one row a line, and [n_head] rows
of n_token - 4 scores, share and logit: of all but the 4 sinks.
"""
import os
import sys
import types

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(ROOT, "tests", "golden", "expected.txt")
SINKS = 4
CASES = [("halves", 40, 2, 2, 8, 4, 0, 512, 4, 10000.0),
         ("adjacent", 24, 1, 3, 8, 4, 1, 64, 4, 100.0),
         ("partly", 30, 2, 1, 8, 3, 0, 16, 7, 500.0)]
# For the press alone: the shapes of SmolLM2-135M and of Qwen2.5-0.5B.
LARGE = [("smollm2", 300, 3, 3, 64, 32, 0, 512, 4, 100000.0),
         ("qwen2.5", 300, 2, 7, 64, 32, 0, 512, 4, 1000000.0)]


def rotation(pos, dim, n_pair, adjacent, base):
    r = np.eye(dim)
    for f in range(n_pair):
        a, b = (2 * f, 2 * f + 1) if adjacent else (f, n_pair + f)
        angle = pos * base ** (-2.0 * f / (2 * n_pair))
        r[a, a], r[a, b], r[b, a], r[b, b] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
    return r


def make(case, rng):
    name, n, n_head, n_group, dim, n_pair, adjacent, future, skip, base = case
    bias = rng.normal(size=(n_head * n_group, dim)) * 2
    q = (rng.normal(size=(n, n_head * n_group, dim)) + bias).astype(np.float32)
    raw = rng.normal(size=(n_head, n, dim)) * 1.5
    turn = [rotation(p, dim, n_pair, adjacent, base) for p in range(n)]
    k = np.stack([[turn[i] @ raw[h, i] for i in range(n)] for h in range(n_head)]).astype(np.float32)
    v = rng.normal(size=(n_head, n, dim)).astype(np.float32)
    mean = np.mean([rotation(p, dim, n_pair, adjacent, base) for p in range(n, n + future)], axis=0)
    share, logit = [], []
    for h in range(n_head):
        key, value = k[h, SINKS:].astype(float), v[h, SINKS:].astype(float)
        norm = np.linalg.norm(value, axis=1)
        rows = []
        for g in range(n_group):
            x = q[skip:, h * n_group + g].astype(float)
            mu = mean @ x.mean(axis=0)
            cov = mean @ np.cov(x.T, bias=True) @ mean.T
            rows.append(key @ mu / np.sqrt(dim) + np.einsum("ni,ij,nj->n", key, cov, key) / dim / 2)
        rows = np.array(rows)
        soft = np.exp(rows - rows.max(axis=1, keepdims=True))
        soft /= soft.sum(axis=1, keepdims=True)
        share.append(soft.mean(axis=0) * norm)
        logit.append(np.log(np.exp(rows).mean(axis=0)) + np.log(norm))
    return q.reshape(-1, dim), k.reshape(-1, dim), v.reshape(-1, dim), np.array(share), np.array(logit)


def scores_of_press(case, q, k, v):
    """What ExpectedAttentionPress gives the entries behind the sinks, in double precision. Its
    layer's inputs are the queries, and the projection to queries leaves them as they are."""
    import torch
    from kvpress import ExpectedAttentionPress
    _, n, n_head, n_group, dim, n_pair, _, future, _, base = case
    freq = base ** (-torch.arange(n_pair, dtype=torch.float64) / n_pair)

    def rotary(_, positions):
        angle = (positions[..., None].double() * freq).repeat(1, 1, 2)
        return angle.cos(), angle.sin()

    layer = torch.nn.Module()
    layer.config = types.SimpleNamespace(num_attention_heads=n_head * n_group,
                                         num_key_value_heads=n_head)
    layer.head_dim, layer.q_proj, layer.rotary_emb = dim, torch.nn.Identity(), rotary
    inputs = torch.tensor(q).double().view(1, n, -1)
    keys, values = (torch.tensor(x).double().view(1, n_head, n, dim) for x in (k, v))
    press = ExpectedAttentionPress(0.5, n_future_positions=future, n_sink=SINKS)
    return press.score(layer, inputs, keys, values, None, {})[0, :, SINKS:].numpy()


def compare_with_press():
    rng, worst = np.random.default_rng(7), 0.0
    for case in CASES + LARGE:
        q, k, v, share, _ = make(case, rng)
        _, _, _, _, dim, n_pair, adjacent, _, skip, _ = case
        if adjacent or 2 * n_pair != dim or skip != SINKS:
            continue
        apart = np.abs(scores_of_press(case, q, k, v) / share - 1.0).max()
        print(f"{case[0]}: the press's scores differ by {apart:.1e} of themselves at most")
        worst = max(worst, apart)
    sys.exit(0 if worst < 1e-9 else "expected.py: that is more than rounding")


def main():
    if sys.argv[1:] == ["--kvpress"]:
        compare_with_press()
    rng = np.random.default_rng(7)
    with open(OUT, "w") as out:
        out.write("# Made by scripts/golden/expected.py; do not edit.\n")
        for case in CASES:
            out.write("case " + " ".join(str(x) for x in case) + "\n")
            for part in make(case, rng):
                for row in part:
                    out.write(" ".join(f"{x:.9g}" for x in row) + "\n")


if __name__ == "__main__":
    main()
