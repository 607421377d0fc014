#!/usr/bin/env python3
"""Draws docs/figures/v3-sign.svg: the score of a key at each distance under `triattention:v3` and
`triattention:v3-fork`, from the TriAttention authors' statistics of a model (.pt).

    scripts/docs/sign_curves.py qwen3_8b.pt --kv-heads 8 --theta 1000000 > docs/figures/v3-sign.svg

Such a file holds no keys. The curves are for a key that has the phase of the head's mean query in
every band, and a modulus of 1 in all bands. So only its distance counts, and the second sum of the
score is the same everywhere.

    score_h(D) = sum over f of |q_f| Re(G_f exp(i freq_f D)),  G_f = mean over d of exp(i freq_f d)

v3 standardises it per query head over 4,096 positions drawn from a cache of 32,768, takes the
greatest of a KV head's queries, and the mean over KV heads and layers. v3-fork takes layer 0 alone,
the mean of a KV head's centres, raw, and turns the sign around. Each curve is then standardised
once more, so that both have one scale, and averaged over parts of the distance's logarithm.
Needs numpy.
"""
import argparse
import math
import re
import sys
import zipfile

import numpy as np

N_POSITION = 32768
N_SAMPLE = 4096
N_NEAR = 512  # distances that are drawn one by one, beside the sample
N_BIN = 90


def read_heads(path):
    """[layer][head][3][band] of an authors' file: its storages follow each other head by head,
    layer by layer, as real, imaginary and modulus. The pickle only tells how many there are."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        stem = next(n for n in names if n.endswith("/data.pkl"))[: -len("data.pkl")]
        heads = re.findall(rb"layer(\d+)_head(\d+)", archive.read(stem + "data.pkl"))
        layers, per_layer = 1 + max(int(a) for a, _ in heads), 1 + max(int(b) for _, b in heads)
        n = layers * per_layer
        rows = [
            np.frombuffer(archive.read(f"{stem}data/{i}"), dtype="<f4") for i in range(3 * n)
        ]
    return np.array(rows, dtype=np.float64).reshape(layers, per_layer, 3, -1)


def standardise(x):
    """By mean and deviation over the sample, which is the last N_SAMPLE."""
    sample = x[..., -N_SAMPLE:]
    return (x - sample.mean(axis=-1, keepdims=True)) / sample.std(axis=-1, keepdims=True)


def curves(heads, n_kv, theta):
    layers, n_head, _, bands = heads.shape
    freq = theta ** (-np.arange(bands) / bands)
    offsets = 2.0 ** np.arange(17)
    fold = np.exp(1j * np.outer(freq, offsets)).mean(axis=1)
    rng = np.random.RandomState(1)
    sample = rng.choice(np.arange(1, N_POSITION + 1), N_SAMPLE, replace=False)
    at = np.concatenate([np.arange(1, N_NEAR + 1), sample])
    wave = (fold[:, None] * np.exp(1j * np.outer(freq, at))).real
    z = heads[:, :, 0] + 1j * heads[:, :, 1]
    score = standardise(np.abs(z) @ wave)
    ours = score.reshape(layers, n_kv, n_head // n_kv, -1).max(axis=2).mean(axis=(0, 1))
    # The fork's key lies where its own centre does.
    centre = z[0].reshape(n_kv, n_head // n_kv, -1).mean(axis=1)
    fork = -(np.abs(centre) @ wave).mean(axis=0)
    edges = np.exp(np.linspace(0, math.log(N_POSITION), N_BIN + 1))
    out = []
    for lo, hi in zip(edges, edges[1:]):
        pick = (at >= lo) & (at < hi) & ((at > N_NEAR) | (np.arange(at.size) < N_NEAR))
        if pick.any():
            out.append((math.sqrt(lo * hi), standardise(ours)[pick].mean(),
                        standardise(fork)[pick].mean()))
    return out


def svg(points, title):
    width, height, left, right, top, bottom = 720, 360, 64, 28, 44, 52
    lo = min(min(p[1:]) for p in points)
    hi = max(max(p[1:]) for p in points)

    def x(d):
        return left + (width - left - right) * math.log(d) / math.log(N_POSITION)

    def y(v):
        return top + (height - top - bottom) * (hi - v) / (hi - lo)

    def line(i, style):
        path = " ".join(f"{x(p[0]):.1f},{y(p[i]):.1f}" for p in points)
        return f'<polyline points="{path}" fill="none" {style}/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="13" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="20" fill="#1b1f24">{title}</text>',
    ]
    for v in range(math.ceil(lo), math.floor(hi) + 1):
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(v):.1f}" y2="{y(v):.1f}" '
                     f'stroke="{"#8a939c" if v == 0 else "#e1e5e9"}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end" fill="#515b66">'
                     f"{v}</text>")
    for e in range(0, 16, 3):
        d = 2**e
        parts.append(f'<line x1="{x(d):.1f}" x2="{x(d):.1f}" y1="{height - bottom}" '
                     f'y2="{height - bottom + 5}" stroke="#515b66"/>')
        parts.append(f'<text x="{x(d):.1f}" y="{height - bottom + 20}" text-anchor="middle" '
                     f'fill="#515b66">{d}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle" '
                 'fill="#515b66">distance from the next token, in tokens</text>')
    parts.append(f'<text transform="translate(16 {(top + height - bottom) / 2}) rotate(-90)" '
                 'text-anchor="middle" fill="#515b66">score (standard deviations)</text>')
    parts.append(line(1, 'stroke="#0b63b0" stroke-width="2"'))
    parts.append(line(2, 'stroke="#c04a00" stroke-width="2" stroke-dasharray="6 3"'))
    for i, (name, colour) in enumerate((("v3", "#0b63b0"), ("v3-fork", "#c04a00"))):
        yy = top + 12 + 18 * i
        xx = left + (width - left - right) * 0.66
        dash = ' stroke-dasharray="6 3"' if i else ""
        parts.append(f'<line x1="{xx:.0f}" x2="{xx + 28:.0f}" y1="{yy}" y2="{yy}" '
                     f'stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{xx + 36:.0f}" y="{yy + 4}" fill="#1b1f24">{name}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stats")
    parser.add_argument("--kv-heads", type=int, required=True)
    parser.add_argument("--theta", type=float, required=True)
    parser.add_argument("--name", default="Qwen3-8B")
    args = parser.parse_args()
    points = curves(read_heads(args.stats), args.kv_heads, args.theta)
    sys.stdout.write(svg(points, f"Score of a key by its distance ({args.name})"))
    for d, ours, fork in points[:: len(points) // 12]:
        print(f"{d:8.0f} {ours:7.2f} {fork:7.2f}", file=sys.stderr)


if __name__ == "__main__":
    main()
