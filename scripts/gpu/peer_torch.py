#!/usr/bin/env python3
"""PyTorch as a peer of scripts/gpu/tables.sh: models of Qwen3's shapes with random weights in
bfloat16, attention by scaled_dot_product_attention, and a loop over tokens as Hugging Face's
generate has it. It needs PyTorch alone. On a processor it tries the same code (--try).

  full     tokens of sequences behind --depth entries, a preallocated cache
  cat      the same with a cache that grows by concatenation, as Hugging Face's default does
  two      a cache of --depth entries that evicts one a step by LongFlow's score in two passes:
           attention, then keys and values again for weights and norms; the form of the paper's
           baselines
  once     the same with norms that stay beside the entries, and weights that attention uses, too
  rkv      R-KV's rounds: every 128 tokens, of --depth + 128 entries, by attention of the last 8
           queries and by likeness of keys; a step bears its part of a round
  prompt   seconds to the first token of a prompt

Rows: what, shape, sequences, entries or tokens, milliseconds of a step or prompt, tokens/s, the
bound of that, and bytes in use. The bound of a step is weights and entries read once, at the speed
of a measured copy; of a prompt its multiplications, at the speed of a measured product of 8,192
squared.
"""
import argparse
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("PyTorch is not there", file=sys.stderr)
    sys.exit(77)

SHAPES = {  # layers, width, heads, heads of keys, dimensions, feed-forward, words, tied
    "big": (36, 4096, 32, 8, 128, 12288, 151936, False),
    "small": (28, 2048, 16, 8, 128, 6144, 151936, True),
    "toy": (2, 128, 4, 2, 32, 256, 512, True),
}
ROUND = 128  # tokens between rounds
RECENT = 8   # queries of a round


class Model:
    """Weights and a step of one model; caches are lists of
    [sequences][heads][slots][dimensions]."""

    def __init__(self, shape, device):
        self.layers, self.width, self.heads, self.kv, self.dim, ff, words, tied = SHAPES[shape]
        self.device = device

        def matrix(rows, columns):
            return torch.empty(rows, columns, dtype=torch.bfloat16, device=device).normal_(0, 0.02)

        self.embedding = matrix(words, self.width)
        self.output = self.embedding if tied else matrix(words, self.width)
        self.one = torch.ones(self.width, dtype=torch.bfloat16, device=device)
        self.one_head = torch.ones(self.dim, dtype=torch.bfloat16, device=device)
        self.layer = [dict(q=matrix(self.heads * self.dim, self.width), k=matrix(self.kv * self.dim, self.width),
                           v=matrix(self.kv * self.dim, self.width), o=matrix(self.width, self.heads * self.dim),
                           gate=matrix(ff, self.width), up=matrix(ff, self.width), down=matrix(self.width, ff))
                      for _ in range(self.layers)]
        self.turn = 1e6 ** (-torch.arange(0, self.dim, 2, dtype=torch.float32, device=device) / self.dim)
        self.matrices = sum(w.numel() for layer in self.layer for w in layer.values())
        # A step reads the output matrix, but of the embedding single rows.
        self.step_bytes = 2 * (self.matrices + self.output.numel())
        self.entry_bytes = 2 * 2 * self.layers * self.kv * self.dim

    def norm(self, x, weight):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight

    def rotate(self, x, first):
        """x [sequences][heads][tokens][dimensions], from a position on."""
        angle = torch.outer(torch.arange(first, first + x.shape[2], device=self.device).float(), self.turn)
        angle = torch.cat((angle, angle), -1)
        half = torch.cat((-x[..., self.dim // 2:], x[..., :self.dim // 2]), -1)
        return x * angle.cos().to(x.dtype) + half * angle.sin().to(x.dtype)

    def run(self, ids, first, attend):
        """Logits behind the last of ids [sequences][tokens]. attend(layer, q, k, v) has the
        cache."""
        x = self.embedding[ids]
        n, t = ids.shape
        for i, w in enumerate(self.layer):
            h = self.norm(x, self.one)
            q = F.linear(h, w["q"]).view(n, t, self.heads, self.dim)
            k = F.linear(h, w["k"]).view(n, t, self.kv, self.dim)
            v = F.linear(h, w["v"]).view(n, t, self.kv, self.dim).transpose(1, 2)
            q = self.rotate(self.norm(q, self.one_head).transpose(1, 2), first)
            k = self.rotate(self.norm(k, self.one_head).transpose(1, 2), first)
            out = attend(i, q, k, v).transpose(1, 2).reshape(n, t, -1)
            x = x + F.linear(out, w["o"])
            h = self.norm(x, self.one)
            x = x + F.linear(F.silu(F.linear(h, w["gate"])) * F.linear(h, w["up"]), w["down"])
        return F.linear(self.norm(x[:, -1], self.one), self.output)


def attention(q, k, v, causal=False):
    """Query heads share key heads; versions before 2.5 want them repeated."""
    group = q.shape[1] // k.shape[1]
    try:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=group > 1)
    except TypeError:
        return F.scaled_dot_product_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1),
                                              is_causal=causal)


def weights_of(q, k):
    """Of each query head, summed over the heads that share a key head: [sequences][heads of
    keys][entries] and the weights themselves."""
    n, heads, t, dim = q.shape
    grouped = q.reshape(n, k.shape[1], heads // k.shape[1] * t, dim)
    weight = torch.softmax((grouped @ k.transpose(2, 3)).float() * dim ** -0.5, -1)
    return weight.sum(2), weight.to(q.dtype)


class Cache:
    """Keys and values of all layers, filled with random numbers, and the ways to attend to them."""

    def __init__(self, model, n, depth, slots):
        def rows():
            part = torch.zeros(n, model.kv, slots, model.dim, dtype=torch.bfloat16, device=model.device)
            part[:, :, :depth].normal_()
            return part

        self.k = [rows() for _ in range(model.layers)]
        self.v = [rows() for _ in range(model.layers)]
        self.norm = [v.abs().sum(-1).float() for v in self.v]
        self.victim = [torch.full((n, 1, 1, 1), depth - 1, device=model.device) for _ in range(model.layers)]
        self.recent = [None] * model.layers
        self.depth, self.n = depth, depth

    def full(self, i, q, k, v):
        self.k[i][:, :, self.n:self.n + 1], self.v[i][:, :, self.n:self.n + 1] = k, v
        return attention(q, self.k[i][:, :, :self.n + 1], self.v[i][:, :, :self.n + 1])

    def cat(self, i, q, k, v):
        self.k[i], self.v[i] = torch.cat((self.k[i], k), 2), torch.cat((self.v[i], v), 2)
        return attention(q, self.k[i], self.v[i])

    def put(self, i, k, v):
        """In the place of the victim."""
        at = self.victim[i].expand(-1, k.shape[1], 1, k.shape[3])
        self.k[i].scatter_(2, at, k)
        self.v[i].scatter_(2, at, v)
        return at[..., 0]

    def choose(self, i, weight, norm):
        """One victim of a layer: its least score, over the heads."""
        self.victim[i] = (weight * norm).sum(1).argmin(-1).view(-1, 1, 1, 1)

    def two(self, i, q, k, v):
        self.put(i, k, v)
        out = attention(q, self.k[i], self.v[i])
        self.choose(i, weights_of(q, self.k[i])[0], self.v[i].abs().sum(-1))
        return out

    def once(self, i, q, k, v):
        at = self.put(i, k, v)
        self.norm[i].scatter_(2, at, v.abs().sum(-1).float())
        weight_sum, weight = weights_of(q, self.k[i])
        self.choose(i, weight_sum, self.norm[i])
        return (weight @ self.v[i]).reshape(q.shape)

    def rkv(self, i, q, k, v):
        self.recent[i] = q if self.recent[i] is None else torch.cat((self.recent[i], q), 2)[:, :, -RECENT:]
        return self.full(i, q, k, v)

    def rkv_round(self, keep):
        """keep entries stay of self.n: by attention of the last queries less likeness to other
        keys."""
        for i, k in enumerate(self.k):
            k, v = k[:, :, :self.n], self.v[i][:, :, :self.n]
            scores = 0.1 * F.max_pool1d(weights_of(self.recent[i], k)[0], 7, 1, 3)
            unit = F.normalize(k, dim=-1)
            for s in range(k.shape[0]):  # n x n numbers a head: one sequence at a time
                alike = unit[s] @ unit[s].transpose(1, 2)
                alike.diagonal(dim1=1, dim2=2).zero_()
                scores[s] -= 0.9 * torch.softmax(alike.float().mean(1), -1)
            scores[:, :, -RECENT:] = float("inf")
            index = scores.topk(keep, -1).indices.sort(-1).values[..., None].expand(-1, -1, -1, k.shape[3])
            self.k[i][:, :, :keep], self.v[i][:, :, :keep] = k.gather(2, index), v.gather(2, index)
        self.n = keep


class Bench:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
        self.shape = "toy" if args.small else args.shape
        self.model = Model(self.shape, self.device)
        self.read, self.peak = self.copy_speed(), self.product_speed()

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call, n):
        self.wait()
        start = time.perf_counter()
        for _ in range(n):
            call()
        self.wait()
        return (time.perf_counter() - start) / n

    def copy_speed(self):
        size = 1 << (20 if self.args.small else 30)
        a, b = (torch.ones(size, dtype=torch.uint8, device=self.device) for _ in range(2))
        call = lambda: b.copy_(a)
        self.seconds(call, 2)
        return 2 * size / self.seconds(call, 5)

    def product_speed(self):
        n = 256 if self.args.small else 8192
        a = torch.ones(n, n, dtype=torch.bfloat16, device=self.device)
        call = lambda: a @ a
        self.seconds(call, 2)
        return 2 * n ** 3 / self.seconds(call, 5)

    def bytes_in_use(self):
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0

    def row(self, what, n, tokens, seconds, made, bound):
        print(f"{what},{self.shape},{n},{tokens},{1e3 * seconds:.4f},{made / seconds:.4f},{bound:.4f},"
              f"{self.bytes_in_use()}", flush=True)

    def most_sequences(self, slots):
        """As many as the memory holds that is free."""
        if self.device.type != "cuda":
            return 2
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return max(1, int(0.9 * free / (slots * self.model.entry_bytes)))

    def generate(self, what, n):
        depth, steps = self.args.depth, self.args.steps
        slots = depth + 2 + steps
        if what in ("two", "once", "cat"):
            slots = depth
        elif what == "rkv":
            slots = depth + ROUND + 2 + steps
        n = n if n > 0 else self.most_sequences(max(slots, self.args.slots))
        cache = Cache(self.model, n, depth, slots)
        ids = torch.zeros(n, 1, dtype=torch.long, device=self.device)

        def step():
            nonlocal ids
            logits = self.model.run(ids, cache.n, getattr(cache, what))
            ids = logits.argmax(-1, keepdim=True)
            cache.n += what in ("full", "cat", "rkv")

        self.seconds(step, 2)
        seconds = self.seconds(step, steps)
        if what == "rkv":
            cache.n = depth + ROUND
            seconds += self.seconds(lambda: cache.rkv_round(depth), 1) / ROUND
        bound = n / ((self.model.step_bytes + n * depth * self.model.entry_bytes) / self.read)
        self.row(what, n, depth, seconds, n, bound)

    def prompt(self, n):
        m = self.model
        ids = torch.zeros(1, n, dtype=torch.long, device=self.device)
        keep = [None] * m.layers  # the cache, as a prompt leaves it

        def attend(i, q, k, v):
            keep[i] = (k, v)
            return attention(q, k, v, causal=True)

        seconds = self.seconds(lambda: m.run(ids, 0, attend), 1)
        flop = 2 * m.matrices * n + 2 * m.output.numel() + 2 * m.layers * m.heads * m.dim * n * (n + 1)
        self.row("prompt", 1, n, seconds, n, n / (flop / self.peak))

    def run(self):
        print("what,shape,sequences,tokens,ms,tokens_per_s,bound,bytes")
        for what in self.args.what:
            for n in self.args.prompts if what == "prompt" else self.args.batch:
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                try:
                    with torch.inference_mode():
                        self.prompt(n) if what == "prompt" else self.generate(what, n)
                except torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else RuntimeError as error:
                    print(f"{what} {n}: {str(error).splitlines()[0]}", file=sys.stderr)


def main():
    numbers = (lambda text: [int(word) for word in text.split(",")])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", type=lambda text: text.split(","), default=["full"])
    parser.add_argument("--shape", choices=["big", "small"], default="big")
    parser.add_argument("--batch", type=numbers, default=[1], help="sequences; 0: as many as the memory holds")
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--slots", type=int, default=0, help="entries that --batch 0 leaves room for")
    parser.add_argument("--prompts", type=numbers, default=[8192])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    parser.add_argument("--try", dest="small", action="store_true", help="a toy's shape")
    Bench(parser.parse_args()).run()


if __name__ == "__main__":
    main()
