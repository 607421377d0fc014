"""A decoder as Qwen 3.5 is built: gated delta nets, and gated attention in every fourth layer.

Of an attention head the first n_rot dimensions rotate; queries and keys are normed, and a gate
scales the output. A delta net keeps a matrix S per head, dim x dim, which each token turns a
little towards its value (Yang et al., Gated Delta Networks, arXiv:2412.06464):

    S *= exp(g),  S += k (beta (v - S^T k))^T,  o = S^T q / sqrt(dim)

`delta_rule` computes that for CHUNK tokens at once, `delta_steps` token by token. To see that they
agree, and their gradients: python3 hybrid.py
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import Decoder, RMSNorm, attend, rotate

CHUNK = 64
N_CONV = 4  # taps of the convolution
HEAD_GAIN = 1.5  # of normed queries and keys: a logit can be HEAD_GAIN^2 sqrt(head size) = 18
MIN_STEP, MAX_STEP = 0.001, 0.1  # softplus of the bias of decays, at first
MAX_RATE = 16.0  # decays are exp(-rate step), rates from 1 to this at first
# Of the first layer, and of the head that starts by it.
FIRST_RATE, FIRST_GAIN = 50.0, 0.7
EQUAL, EQUAL_GATE = 1.5, 0.5
ROTATED_SHARE = 0.1
GATE_RANGE = 2.0  # where memory is bounded: how far a token moves what softplus is taken of


def delta_steps(q, k, v, g, beta):
    """As delta_rule, by the definition."""
    state, outs = torch.zeros(q.shape[0], q.shape[2], v.shape[2], dtype=q.dtype), []
    for t in range(q.shape[1]):
        state = state * g[:, t, None, None].exp()
        error = v[:, t] - torch.einsum("bij,bi->bj", state, k[:, t])
        state = state + k[:, t, :, None] * (beta[:, t, None] * error)[:, None]
        outs.append(torch.einsum("bij,bi->bj", state, q[:, t]))
    return torch.stack(outs, 1) * q.shape[2] ** -0.5


def delta_rule(q, k, v, g, beta):
    """q, k, v: [n_lane][n_tok][dim], g and beta: [n_lane][n_tok].  Returns v's shape.

    In a chunk with G_t = g_1 + .. + g_t and the state S before it:

        A[t][s] = beta_t (k_t . k_s) exp(G_t - G_s) for s < t
        (I + A) [U W] = diag(beta) [V  diag(exp G) K],  V' = U - W S
        o_t = exp(G_t) q_t S + sum over s <= t of exp(G_t - G_s) (q_t . k_s) V'_s
        S := exp(G_end) S + sum of exp(G_end - G_s) k_s^T V'_s

    The last line is S := P S + Q with P and Q free of S, so that one product per chunk is all that
    waits for the chunk before.
    """
    n_lane, n_tok, dim = q.shape
    pad = -n_tok % CHUNK
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        g, beta = F.pad(g, (0, pad)), F.pad(beta, (0, pad))
    n_chunk = (n_tok + pad) // CHUNK
    q, k, v = (x.reshape(n_lane * n_chunk, CHUNK, dim) for x in (q * dim**-0.5, k, v))
    total = g.reshape(n_lane * n_chunk, CHUNK).cumsum(-1)
    beta = beta.reshape(n_lane * n_chunk, CHUNK, 1)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    decay = (total[:, :, None] - total[:, None, :]).masked_fill(later, -math.inf).exp()
    gone, end = total.exp()[..., None], total[:, -1:]

    matrix = torch.bmm(k, k.transpose(1, 2)) * decay * beta
    right = torch.cat([v, k * gone], -1) * beta
    solved = torch.linalg.solve_triangular(matrix, right, upper=False, unitriangular=True)
    u, w = solved.split(dim, -1)
    left = (k * (end - total).exp()[..., None]).transpose(1, 2)
    q_all, p_all = torch.bmm(left, solved).split(dim, -1)
    p_all = end.exp()[..., None] * torch.eye(dim, dtype=q.dtype, device=q.device) - p_all

    state = torch.zeros(n_lane, dim, dim, dtype=q.dtype, device=q.device)
    states = []
    for p_one, q_one in zip(
        p_all.view(n_lane, n_chunk, dim, dim).unbind(1),
        q_all.reshape(n_lane, n_chunk, dim, dim).unbind(1),
    ):
        states.append(state)
        state = torch.baddbmm(q_one, p_one, state)
    state = torch.stack(states, 1).view(n_lane * n_chunk, dim, dim)

    new = u - torch.bmm(w, state)
    out = torch.bmm(torch.bmm(q, k.transpose(1, 2)) * decay, new)
    out = torch.baddbmm(out, q * gone, state)
    return out.view(n_lane, n_tok + pad, dim)[:, :n_tok]


class Mixed(nn.Module):
    """A layer without its mixer: norms and the feed-forward block."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.attn_norm = RMSNorm(c.n_embd, c.norm_eps)
        self.post_attention_norm = RMSNorm(c.n_embd, c.norm_eps)
        self.ffn_gate = nn.Linear(c.n_embd, c.n_ff, bias=False)
        self.ffn_up = nn.Linear(c.n_embd, c.n_ff, bias=False)
        self.ffn_down = nn.Linear(c.n_ff, c.n_embd, bias=False)

    def forward(self, x, cos, sin, mask):
        x = x + self.mix(self.attn_norm(x), cos, sin, mask)
        h = self.post_attention_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class AttentionLayer(Mixed):
    def __init__(self, c):
        super().__init__(c)
        self.attn_q = nn.Linear(c.n_embd, 2 * c.n_head * c.head_dim, bias=False)
        self.attn_k = nn.Linear(c.n_embd, c.n_head_kv * c.head_dim, bias=False)
        self.attn_v = nn.Linear(c.n_embd, c.n_head_kv * c.head_dim, bias=False)
        self.attn_q_norm = RMSNorm(c.head_dim, c.norm_eps)
        self.attn_k_norm = RMSNorm(c.head_dim, c.norm_eps)
        self.attn_output = nn.Linear(c.n_head * c.head_dim, c.n_embd, bias=False)
        nn.init.constant_(self.attn_q_norm.weight, HEAD_GAIN)
        nn.init.constant_(self.attn_k_norm.weight, HEAD_GAIN)

    def turned(self, x, cos, sin):
        rotated = rotate(x[..., : self.c.n_rot], cos, sin)
        return torch.cat([rotated, x[..., self.c.n_rot :]], -1)

    def mix(self, x, cos, sin, mask):
        """x: [n_seq][n_tok][n_embd].  Of a head's rows the query's come first, then the gate's."""
        c, (n_seq, n_tok, _) = self.c, x.shape
        q, gate = self.attn_q(x).view(n_seq, n_tok, c.n_head, 2 * c.head_dim).chunk(2, -1)
        k = self.attn_k(x).view(n_seq, n_tok, c.n_head_kv, c.head_dim)
        v = self.attn_v(x).view(n_seq, n_tok, c.n_head_kv, c.head_dim).transpose(1, 2)
        q = self.turned(self.attn_q_norm(q).transpose(1, 2), cos, sin)
        k = self.turned(self.attn_k_norm(k).transpose(1, 2), cos, sin)
        mixed = attend(q, k, v, mask)
        return self.attn_output(mixed * torch.sigmoid(gate.reshape(mixed.shape)))


class Convolution(nn.Module):
    """Causal, a filter per channel; the last tap meets the token itself."""

    def __init__(self, n_channel):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_channel, N_CONV))

    def forward(self, x):
        """x: [n_seq][n_tok][n_channel]"""
        past = F.pad(x, (0, 0, N_CONV - 1, 0))
        taps = self.weight.t()
        out = x * taps[-1]
        for i in range(N_CONV - 1):
            out = torch.addcmul(out, past[:, i : i + x.shape[1]], taps[i])
        return out


class Bias(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.bias = nn.Parameter(torch.empty(size))


class DeltaLayer(Mixed):
    """Value head h has key head h modulo their number."""

    def __init__(self, c):
        super().__init__(c)
        self.n_key, self.n_value = c.delta_keys * c.delta_dim, c.delta_values * c.delta_dim
        n_channel = 2 * self.n_key + self.n_value
        self.attn_qkv = nn.Linear(c.n_embd, n_channel, bias=False)
        self.attn_gate = nn.Linear(c.n_embd, self.n_value, bias=False)
        self.ssm_beta = nn.Linear(c.n_embd, c.delta_values, bias=False)
        self.ssm_alpha = nn.Linear(c.n_embd, c.delta_values, bias=False)
        self.ssm_conv1d = Convolution(n_channel)
        self.ssm_dt = Bias(c.delta_values)
        self.ssm_a_log = nn.Parameter(torch.empty(c.delta_values))
        self.ssm_norm = RMSNorm(c.delta_dim, c.norm_eps)
        self.ssm_out = nn.Linear(self.n_value, c.n_embd, bias=False)

    def initialise(self):
        """What is no matrix of a product: filters, and decays of some tokens to a thousand."""
        nn.init.uniform_(self.ssm_conv1d.weight, -(N_CONV**-0.5), N_CONV**-0.5)
        with torch.no_grad():
            self.ssm_a_log.uniform_(1, MAX_RATE).log_()
            step = torch.empty_like(self.ssm_dt.bias)
            step.uniform_(math.log(MIN_STEP), math.log(MAX_STEP)).exp_()
            self.ssm_dt.bias.copy_(step.expm1().log())  # softplus of it is step

    def decays(self):
        """The values of ssm_alpha.weight and ssm_a in a file.

        With bounded memory rows of alpha are cut, so that no token moves a gate by more than
        GATE_RANGE: with the norm's gain, a row's product with a normed x is at most its length
        times sqrt(n_embd).  Then the rate has a least value.
        """
        c, alpha, rate = self.c, self.ssm_alpha.weight, self.ssm_a_log.exp()
        if c.delta_memory:
            reach = (alpha * self.attn_norm.weight).norm(dim=1, keepdim=True) * c.n_embd**0.5
            alpha = alpha * (GATE_RANGE / (reach + 1e-9)).clamp(max=1)
            least = F.softplus(self.ssm_dt.bias - GATE_RANGE)
            rate = torch.maximum(rate, 1 / (c.delta_memory * least))
        return alpha, -rate

    def unit(self, x):
        """A vector per key head, of length 1: [n_seq][n_tok][n_key] to lanes of value heads."""
        c, (n_seq, n_tok, _) = self.c, x.shape
        x = x.view(n_seq, n_tok, c.delta_keys, c.delta_dim)
        x = x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + c.norm_eps)
        x = x.transpose(1, 2).repeat(1, c.delta_values // c.delta_keys, 1, 1)
        return x.view(n_seq * c.delta_values, n_tok, c.delta_dim)

    def mix(self, x, cos, sin, mask):
        c, (n_seq, n_tok, _) = self.c, x.shape
        mixed = F.silu(self.ssm_conv1d(self.attn_qkv(x)))
        q, k, v = mixed.split((self.n_key, self.n_key, self.n_value), -1)
        v = v.reshape(n_seq, n_tok, c.delta_values, c.delta_dim).transpose(1, 2)
        beta = torch.sigmoid(self.ssm_beta(x))
        alpha, rate = self.decays()
        g = rate * F.softplus(F.linear(x, alpha, self.ssm_dt.bias))
        out = delta_rule(
            self.unit(q),
            self.unit(k),
            v.reshape(n_seq * c.delta_values, n_tok, c.delta_dim),
            g.transpose(1, 2).reshape(n_seq * c.delta_values, n_tok),
            beta.transpose(1, 2).reshape(n_seq * c.delta_values, n_tok),
        )
        out = self.ssm_norm(out.view(n_seq, c.delta_values, n_tok, c.delta_dim))
        out = out.transpose(1, 2).reshape(n_seq, n_tok, self.n_value)
        return self.ssm_out(out * F.silu(self.attn_gate(x)))


class Hybrid(Decoder):
    def layer(self, number):
        return (DeltaLayer if (number + 1) % self.c.interval else AttentionLayer)(self.c)

    @torch.no_grad()
    def _point_first_heads_back(self):
        """Starts a head of the first attention as "find what followed these two words".

        Layer 0 writes, in one code, the words one and two back: filters of one tap, a state that
        fades within a token, q equal to k, and gates that an equal dimension of all embeddings
        keeps open.  The head compares what it reads of this word and the last with what keys
        say of their last two.  Only an initial value: all of it is trained.
        """
        for layer in self.blk:
            if isinstance(layer, DeltaLayer):
                layer.initialise()
        first, attention, dim = self.blk[0], self.blk[self.c.interval - 1], self.c.delta_dim
        n_key, taps = first.n_key, first.ssm_conv1d.weight.zero_()
        taps[: 2 * n_key, -1] = 1
        mix = first.attn_qkv.weight
        mix[:n_key] = mix[n_key : 2 * n_key]
        code = mix[2 * n_key : 2 * n_key + dim]
        for head, back in enumerate((1, 2)):
            rows = slice(2 * n_key + head * dim, 2 * n_key + (head + 1) * dim)
            taps[rows, N_CONV - 1 - back] = 1
            mix[rows] = code
        first.ssm_a_log.fill_(math.log(FIRST_RATE))
        first.ssm_dt.bias.fill_(math.log(math.expm1(MAX_STEP)))
        self.token_embd.weight[:, 0] = EQUAL
        first.attn_gate.weight.zero_()[:, 0] = EQUAL_GATE
        nn.init.orthogonal_(first.ssm_out.weight, gain=FIRST_GAIN)
        said = first.ssm_out.weight.t()
        q, k = attention.attn_q.weight, attention.attn_k.weight
        start, end = self.c.n_rot, self.c.head_dim
        for matrix, now, last in ((q, code, said[:dim]), (k, said[:dim], said[dim : 2 * dim])):
            matrix[:start] *= ROTATED_SHARE
            matrix[start : start + dim] = F.normalize(now)
            matrix[start + dim : end] = F.normalize(last[: end - start - dim])


def decoder(c):
    return Hybrid(c) if c.interval else Decoder(c)


def check():
    """That chunks and single steps agree, in values and gradients, at lengths around chunks."""
    torch.manual_seed(1)
    for n_tok in (1, CHUNK - 1, CHUNK, 2 * CHUNK + 5, 4 * CHUNK):
        q, k, v = torch.randn(3, 3, n_tok, 8, dtype=torch.float64)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        g, beta = -torch.rand(3, n_tok, dtype=torch.float64), torch.rand(3, n_tok).double()
        inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
        results, weight = [], torch.randn(3, n_tok, 8, dtype=torch.float64)
        for rule in (delta_rule, delta_steps):
            out = rule(*inputs)
            results.append([out, *torch.autograd.grad((out * weight).sum(), inputs)])
        for a, b in zip(*results):
            if not torch.allclose(a, b, rtol=1e-9, atol=1e-10):
                raise SystemExit(f"{n_tok} tokens: chunks differ by {(a - b).abs().max():.1e}")
    print("chunks and steps agree")


if __name__ == "__main__":
    check()
