"""torch.ops.pith.attention of attention_amx.cpp, with its gradient.

python3 attention_amx.py compares both with PyTorch's in float32.
"""

import os
import tempfile

import torch

HEAD, BLOCK = 64, 64
FLAGS = ["-O3", "-march=native"]
MOST_ERROR = 0.01  # relative, of a tensor: weights and results are rounded to bfloat16


def usable(head_dim, lengths):
    """Whether this processor has AMX, and the kernel these shapes."""
    fits = head_dim == HEAD and all(n % BLOCK == 0 for n in lengths)
    return fits and torch.cpu._is_amx_tile_supported()


def unlock(folder):
    """Forgets a process that was killed while it compiled: PyTorch would wait for its end."""
    lock = os.path.join(folder, "lock")
    if os.path.exists(lock):
        os.remove(lock)


def build(folder):
    """Compiles the kernel there, or waits for who does."""
    from torch.utils import cpp_extension  # takes a second

    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attention_amx.cpp")
    os.makedirs(folder, exist_ok=True)
    cpp_extension.load(
        "pith_attention",
        [source],
        extra_cflags=FLAGS,
        build_directory=folder,
        is_python_module=False,
    )

    @torch.library.register_fake("pith::attention")
    def _(q, k, v):
        n_seq, n_tok, n_head, _ = q.shape
        return torch.empty_like(q), q.new_empty((n_seq, n_head, n_tok), dtype=torch.float32)

    @torch.library.register_fake("pith::attention_backward")
    def _(g, q, k, v, out, lse):
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs, *output)

    def backward(ctx, g, _):
        return torch.ops.pith.attention_backward(g.contiguous(), *ctx.saved_tensors)

    torch.library.register_autograd("pith::attention", backward, setup_context=keep)


def mixed(q, k, v):
    """What the operation computes, by PyTorch in float32."""
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def main():
    if not usable(HEAD, [BLOCK]):
        raise SystemExit("this processor has no AMX")
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
    torch.manual_seed(1)
    for n_tok in (BLOCK, 9 * BLOCK, 16 * BLOCK):
        shapes = [(2, n_tok, n_head, HEAD) for n_head in (4, 2, 2, 4)]
        *inputs, g = (2 * torch.randn(shape).bfloat16() for shape in shapes)
        results = []
        for attend in (lambda *x: torch.ops.pith.attention(*x)[0], mixed):
            leaves = [x.clone().requires_grad_() for x in inputs]
            out = attend(*leaves)
            results.append([out, *torch.autograd.grad(out, leaves, g.to(out.dtype))])
        for name, ours, theirs in zip(("out", "dq", "dk", "dv"), *results):
            error = ((ours.float() - theirs.float()).norm() / theirs.float().norm()).item()
            print(f"{n_tok} positions, {name}: {error:.4f}")
            if not error < MOST_ERROR:
                raise SystemExit(f"{name} differs by more than {MOST_ERROR}")


if __name__ == "__main__":
    main()
