"""Muon (Jordan et al. 2024): momentum whose matrix is replaced by the nearest orthogonal one.

update = NS(momentum g + (1 - momentum) m) * sqrt(max(1, rows / columns)); NS is five steps of the
quintic Newton-Schulz iteration X <- a X + (b A + c A^2) X, A = X X^T, from X = g / |g|.
"""

from collections import defaultdict

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the published ones: singular values end within 0.7..1.2
STEPS = 5


def orthogonal(g):
    """g: [n][rows][columns], any sizes."""
    a, b, c = COEFFICIENTS
    x = g.to(torch.bfloat16)
    flip = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if flip else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return (x.transpose(1, 2) if flip else x).to(g.dtype)


class Muon(torch.optim.Optimizer):
    """For the matrices of the layers; embeddings, output and vectors belong to AdamW."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            same = defaultdict(list)
            for p in group["params"]:
                same[p.shape].append(p)
            for shape, params in same.items():
                for p in params:
                    self.state[p].setdefault("mean", torch.zeros_like(p))
                    self.state[p]["mean"].lerp_(p.grad, 1 - group["momentum"])
                ahead = [p.grad.lerp(self.state[p]["mean"], group["momentum"]) for p in params]
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for p, update in zip(params, orthogonal(torch.stack(ahead))):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)
