"""A stock Qwen2 decoder (RMSNorm, RoPE, grouped queries with bias, SwiGLU).

Three ways through attention, equal but for rounding: `attention` for PyTorch 1.13 without a
compiler, `attention_compiled` whose masks and softmax torch.compile fuses, and `attention_amx` of
attention_amx.cpp.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

import attention_amx

ARCH = "qwen2"  # GGUF's name of it
QUERY_BLOCK = 256  # queries per attention block; a block reads only the keys it may see
HIDDEN = -1e30  # a logit that softmax makes 0
EMBEDDING_STD = 0.5
WEIGHT_GAIN = 0.5  # of 1/sqrt(fan in)
OFFSET_HEAD_GAIN = 5.0
OFFSET_HEAD_MIN_FREQUENCY = 0.02


@dataclass
class Config:
    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    rope_theta: float
    norm_eps: float = 1e-5
    tied: bool = False
    head_size: int = 0  # 0: n_embd / n_head
    n_rot: int = 0  # dimensions of a head that rotate; 0: all
    interval: int = 0  # one layer in `interval` has attention, the others delta nets; 0: all have
    delta_keys: int = 0  # heads of keys and of values of a delta net, and their size
    delta_values: int = 0
    delta_dim: int = 0
    delta_memory: float = 0  # tokens: the longest time in which a state fades by e; 0: no bound

    @classmethod
    def of(cls, preset, n_vocab):
        return cls(
            n_vocab,
            preset.n_embd,
            preset.n_layer,
            preset.n_head,
            preset.n_head_kv,
            preset.n_ff,
            preset.rope_theta,
            **preset.hybrid,
        )

    @property
    def head_dim(self):
        return self.head_size or self.n_embd // self.n_head


class _RMSNormFunction(torch.autograd.Function):
    """x / rms(x) * gain; its backward pass keeps one tensor of x's shape instead of four."""

    @staticmethod
    def forward(ctx, x, gain, eps):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        unit = x * scale
        ctx.save_for_backward(unit, scale, gain)
        return unit * gain

    @staticmethod
    def backward(ctx, grad):
        unit, scale, gain = ctx.saved_tensors
        grad_gain = (grad * unit).sum(tuple(range(grad.dim() - 1)))
        grad_unit = grad * gain
        grad_x = (grad_unit - unit * (grad_unit * unit).mean(-1, keepdim=True)) * scale
        return grad_x, grad_gain, None


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return _RMSNormFunction.apply(x, self.weight, self.eps)


def rope_frequencies(head_dim, theta):
    """[head_dim/2], radians per position."""
    return theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


def rope_tables(n_tok, head_dim, theta):
    """cos and sin, each [n_tok][head_dim/2]."""
    angle = torch.arange(n_tok, dtype=torch.float64)[:, None] * rope_frequencies(head_dim, theta)
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    """Rotary positions, dimension i paired with i + head_dim/2.  x: [..., n_tok, head_dim]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q, k, v, mask):
    """q: [n_seq][n_head][n_tok][dim], k and v: [n_seq][n_head_kv][n_tok][dim], mask: additive.

    Returns [n_seq][n_tok][n_head * dim].
    """
    n_seq, n_head, n_tok, dim = q.shape
    n_lane, group = n_seq * k.shape[1], n_head // k.shape[1]
    q = q.reshape(n_lane, group, n_tok, dim)
    k = k.reshape(n_lane, n_tok, dim)
    v = v.reshape(n_lane, n_tok, dim)
    blocks = []
    for start in range(0, n_tok, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, n_tok)
        rows = q[:, :, start:end].reshape(n_lane, group * (end - start), dim)
        bias = mask[start:end, :end].repeat(group, 1)[None]
        scores = torch.baddbmm(bias, rows, k[:, :end].transpose(1, 2), alpha=dim**-0.5)
        mixed = torch.bmm(torch.softmax(scores, -1), v[:, :end])
        blocks.append(mixed.view(n_seq, n_head, end - start, dim))
    return torch.cat(blocks, 2).transpose(1, 2).reshape(n_seq, n_tok, n_head * dim)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.amx = c, False
        self.attn_norm = RMSNorm(c.n_embd, c.norm_eps)
        self.attn_q = nn.Linear(c.n_embd, c.n_head * c.head_dim)
        self.attn_k = nn.Linear(c.n_embd, c.n_head_kv * c.head_dim)
        self.attn_v = nn.Linear(c.n_embd, c.n_head_kv * c.head_dim)
        self.attn_output = nn.Linear(c.n_head * c.head_dim, c.n_embd, bias=False)
        self.ffn_norm = RMSNorm(c.n_embd, c.norm_eps)
        self.ffn_gate = nn.Linear(c.n_embd, c.n_ff, bias=False)
        self.ffn_up = nn.Linear(c.n_embd, c.n_ff, bias=False)
        self.ffn_down = nn.Linear(c.n_ff, c.n_embd, bias=False)

    def attention(self, x, cos, sin, mask):
        """x: [n_seq][n_tok][n_embd], mask: [n_tok][n_tok] additive.  Returns x's shape."""
        c, (n_seq, n_tok, _) = self.c, x.shape

        def heads(y, n_head):
            return y.view(n_seq, n_tok, n_head, c.head_dim).transpose(1, 2)

        q = rotate(heads(self.attn_q(x), c.n_head), cos, sin)
        k = rotate(heads(self.attn_k(x), c.n_head_kv), cos, sin)
        v = heads(self.attn_v(x), c.n_head_kv)
        return self.attn_output(attend(q, k, v, mask))

    def attention_compiled(self, x, cos, sin):
        """As attention, causal by comparing positions; products in autocast's type."""
        c, (n_seq, n_tok, _) = self.c, x.shape
        group, n_lane = c.n_head // c.n_head_kv, n_seq * c.n_head_kv

        def heads(y, n_head):
            return y.view(n_seq, n_tok, n_head, c.head_dim).transpose(1, 2)

        v = heads(self.attn_v(x), c.n_head_kv).reshape(n_lane, n_tok, c.head_dim)
        q = rotate(heads(self.attn_q(x), c.n_head), cos, sin).to(v.dtype)
        k = rotate(heads(self.attn_k(x), c.n_head_kv), cos, sin).to(v.dtype)
        q = q.reshape(n_lane, group, n_tok, c.head_dim)
        k = k.reshape(n_lane, n_tok, c.head_dim)
        pos = torch.arange(n_tok, device=x.device)
        block = max(QUERY_BLOCK, n_tok // 8)  # few blocks: each is compiled
        mixed = []
        for start in range(0, n_tok, block):
            end = min(start + block, n_tok)
            rows = q[:, :, start:end].reshape(n_lane, group * (end - start), c.head_dim)
            scores = torch.bmm(rows, k[:, :end].transpose(1, 2)).float() * c.head_dim**-0.5
            scores = scores.view(n_lane, group, end - start, end)
            hidden = pos[None, :end] > pos[start:end, None]
            weights = torch.softmax(scores.masked_fill(hidden, HIDDEN), -1).to(v.dtype)
            part = torch.bmm(weights.view(n_lane, group * (end - start), end), v[:, :end])
            mixed.append(part.view(n_seq, c.n_head, end - start, c.head_dim))
        mixed = torch.cat(mixed, 2).transpose(1, 2).reshape(n_seq, n_tok, c.n_head * c.head_dim)
        return self.attn_output(mixed)

    def attention_amx(self, x, cos, sin):
        """As attention, by a kernel that takes heads as they lie, [n_seq][n_tok][n_head][64]."""
        c, (n_seq, n_tok, _) = self.c, x.shape
        cos, sin = cos[:, None], sin[:, None]
        v = self.attn_v(x).view(n_seq, n_tok, c.n_head_kv, c.head_dim)
        q = rotate(self.attn_q(x).view(n_seq, n_tok, c.n_head, c.head_dim), cos, sin)
        k = rotate(self.attn_k(x).view(n_seq, n_tok, c.n_head_kv, c.head_dim), cos, sin)
        mixed, _ = torch.ops.pith.attention(
            q.to(v.dtype).contiguous(), k.to(v.dtype).contiguous(), v.contiguous()
        )
        return self.attn_output(mixed.view(n_seq, n_tok, c.n_head * c.head_dim))

    def forward(self, x, cos, sin, mask):
        """mask None: a compiled way."""
        h = self.attn_norm(x)
        if mask is None:
            attend = self.attention_amx if self.amx else self.attention_compiled
            x = x + attend(h, cos, sin)
        else:
            x = x + self.attention(h, cos, sin, mask)
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Decoder(nn.Module):
    """Parameter names follow GGUF's, so that the export is a table of names."""

    def __init__(self, c):
        super().__init__()
        self.c, self.compiled = c, False
        self.token_embd = nn.Embedding(c.n_vocab, c.n_embd)
        self.blk = nn.ModuleList([self.layer(i) for i in range(c.n_layer)])
        self.output_norm = RMSNorm(c.n_embd, c.norm_eps)
        self.output = nn.Linear(c.n_embd, c.n_vocab, bias=False)
        self._initialise()
        if c.tied:
            self.output.weight = self.token_embd.weight

    def layer(self, number):
        return Layer(self.c)

    def _initialise(self):
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.dim() == 2:
                std = WEIGHT_GAIN * self.c.n_embd**-0.5
                if name.endswith(("attn_output.weight", "ffn_down.weight", "ssm_out.weight")):
                    std /= math.sqrt(2 * self.c.n_layer)
                nn.init.normal_(p, 0, EMBEDDING_STD if name == "token_embd.weight" else std)
        self._point_first_heads_back()

    def _point_first_heads_back(self):
        """Starts the query heads of layer 0, KV head 0 as "attend j tokens back", j = 1, 2, ..

        With constant q = g (cos -f j, sin -f j) and k = g (1, 0) in the biases, the rotated score
        at distance d is g^2 sum over f of cos(f (d - j)).  Only an initial value: both biases are
        trained. It makes the induction circuit form some hundred steps earlier.
        """
        c, half = self.c, self.c.head_dim // 2
        f = rope_frequencies(c.head_dim, c.rope_theta).float()
        gain = OFFSET_HEAD_GAIN * (f > OFFSET_HEAD_MIN_FREQUENCY).float()
        q_bias = self.blk[0].attn_q.bias.data.view(c.n_head, 2, half)
        for head in range(c.n_head // c.n_head_kv):
            q_bias[head, 0] = gain * torch.cos(-f * (head + 1))
            q_bias[head, 1] = gain * torch.sin(-f * (head + 1))
        self.blk[0].attn_k.bias.data[:half] = gain

    def compile(self, lengths, kernels):
        """From now on runs compiled layers on sequences of these lengths; kernels: a folder for
        what is compiled."""
        torch._dynamo.config.automatic_dynamic_shapes = False
        torch._dynamo.config.cache_size_limit = 4 * len(lengths)
        self.compiled = True
        on_cpu = self.token_embd.weight.device.type == "cpu"
        if on_cpu and attention_amx.usable(self.c.head_dim, lengths):
            attention_amx.build(kernels)
            for layer in self.blk:
                layer.amx = True
        for layer in self.blk:
            layer.compile()

    def hidden(self, ids):
        """ids: [n_seq][n_tok].  Returns the output matrix's input, [n_seq][n_tok][n_embd]."""
        n_tok = ids.shape[1]
        cos, sin = rope_tables(n_tok, self.c.n_rot or self.c.head_dim, self.c.rope_theta)
        cos, sin, mask = cos.to(ids.device), sin.to(ids.device), None
        if not self.compiled:
            mask = torch.full((n_tok, n_tok), -math.inf, device=ids.device).triu(1)
        x = self.token_embd(ids)
        for layer in self.blk:
            x = layer(x, cos, sin, mask)
        return self.output_norm(x)

    def forward(self, ids):
        """ids: [n_seq][n_tok].  Returns logits [n_seq][n_tok][n_vocab]."""
        return self.output(self.hidden(ids))
