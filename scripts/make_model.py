#!/usr/bin/env python3
"""Writes GGUF models with random weights: any shape of the architectures llama, qwen2 and qwen3, any
weight type, the same bytes on every machine. Standard library only.

    scripts/make_model.py --arch qwen3 --shape qwen3-0.6b --type Q4_K_M OUT.gguf
    scripts/make_model.py --arch llama --shape tiny --set n_head=8 --set n_head_kv=1 OUT.gguf

The weights are scaled so that a pass looks like one of a trained model: activations stay of order
one, attention scores spread by two to three units, logits by about three. Without --vocab the file has
no tokenizer (type "none"); with it, tokenizer metadata and size come from that GGUF file.
"""
import argparse
import math
import struct
from dataclasses import dataclass, fields, replace

from models.blocks import random_tensor, random_vector
from models.gguf import BOOL, DTYPES, F32, STRING, U32, Reader, Writer

GAIN_SCORE = 1.5   # of the query and key projections: scores then spread by GAIN_SCORE^2
GAIN_LOGITS = 3.0  # of the output projection: the spread of the logits
BIAS_STD = 0.3
NORM_STD = 0.15    # of norm weights, about 1

# general.file_type, as llama.cpp numbers the types of whole files.
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9,
              "Q2_K": 10, "Q3_K": 12, "Q4_K": 14, "Q4_K_M": 15, "Q5_K": 16, "Q6_K": 18, "BF16": 32}


@dataclass(frozen=True)
class Shape:
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_vocab: int
    n_ctx: int = 2048
    n_rot: int = 0          # rotated dimensions of a head; 0: all
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tied: bool = False      # the output projection is the embedding
    rope_scaling: str = ""  # "linear", "yarn" or "llama3" (frequency factors in a tensor)
    rope_factor: float = 1.0
    n_ctx_orig: int = 0     # positions before scaling


SHAPES = {
    "tiny": Shape(2, 256, 4, 2, 64, 512, 320),
    # The shapes of Qwen3-0.6B, Qwen2.5-0.5B and Llama 3.2 1B.
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3072, 151936, n_ctx=40960, rope_theta=1e6,
                        norm_eps=1e-6, tied=True),
    "qwen2-0.5b": Shape(24, 896, 14, 2, 64, 4864, 151936, n_ctx=32768, rope_theta=1e6,
                        norm_eps=1e-6, tied=True),
    "llama-1b": Shape(16, 2048, 32, 8, 64, 8192, 128256, n_ctx=131072, rope_theta=5e5, tied=True,
                      rope_scaling="llama3", rope_factor=32.0, n_ctx_orig=8192),
}


def llama3_factors(shape):
    """What rope_freqs.weight holds: the divisors of the rotary frequencies in Llama 3.1 and later.
    Wavelengths beyond n_ctx_orig are stretched by the factor, those below a quarter of it are kept,
    and between them the frequency is interpolated (config rope_type "llama3")."""
    factors = []
    n_rot = shape.n_rot or shape.head_dim
    for i in range(0, n_rot, 2):
        wavelength = 2 * math.pi * shape.rope_theta ** (i / n_rot)
        smooth = (shape.n_ctx_orig / wavelength - 1) / 3
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / shape.rope_factor + smooth))
    return struct.pack(f"<{len(factors)}f", *factors)


def mix_type(dtype, name, layer, shape):
    """The weight type of a matrix. Q4_K_M follows llama.cpp's choice: Q6_K for the output matrix and,
    in the first and last eighth of the layers and every third between, for V and the FFN's down."""
    if dtype != "Q4_K_M":
        return dtype
    n = shape.n_layer
    more = layer is not None and (layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2)
    if name == "output" or (name == "token_embd" and shape.tied):
        return "Q6_K"
    return "Q6_K" if more and name in ("attn_v", "ffn_down") else "Q4_K"


class Model:
    """One model on its way to a file."""

    def __init__(self, arch, shape, dtype, seed):
        self.arch, self.shape, self.dtype, self.seed = arch, shape, dtype, seed
        self.out = Writer()

    def matrix(self, name, n_row, n_col, gain=1.0, layer=None):
        full = f"{name}.weight" if layer is None else f"blk.{layer}.{name}.weight"
        dtype = mix_type(self.dtype, name, layer, self.shape)
        chunks = random_tensor(dtype, (n_row, n_col), f"{self.seed}/{full}", gain / math.sqrt(n_col))
        self.out.add_tensor(full, dtype, (n_row, n_col), chunks)

    def vector(self, name, n, layer=None, mean=1.0, std=NORM_STD):
        full = name if layer is None else f"blk.{layer}.{name}"
        data = random_vector(n, f"{self.seed}/{full}", mean, std)
        self.out.add_tensor(full, "F32", (n,), [data])

    def metadata(self, vocab):
        s, out = self.shape, self.out
        out.add("general.architecture", STRING, self.arch)
        out.add("general.name", STRING, f"random {self.arch} {self.dtype} {self.seed}")
        out.add("general.file_type", U32, FILE_TYPES[self.dtype])
        for key, value in (("block_count", s.n_layer), ("context_length", s.n_ctx),
                           ("embedding_length", s.n_embd), ("feed_forward_length", s.n_ff),
                           ("attention.head_count", s.n_head),
                           ("attention.head_count_kv", s.n_head_kv),
                           ("attention.key_length", s.head_dim),
                           ("attention.value_length", s.head_dim),
                           ("rope.dimension_count", s.n_rot or s.head_dim),
                           ("vocab_size", s.n_vocab)):
            out.add(f"{self.arch}.{key}", U32, value)
        out.add(f"{self.arch}.attention.layer_norm_rms_epsilon", F32, s.norm_eps)
        out.add(f"{self.arch}.rope.freq_base", F32, s.rope_theta)
        if s.rope_scaling in ("linear", "yarn"):
            out.add(f"{self.arch}.rope.scaling.type", STRING, s.rope_scaling)
            out.add(f"{self.arch}.rope.scaling.factor", F32, s.rope_factor)
            if s.n_ctx_orig:
                out.add(f"{self.arch}.rope.scaling.original_context_length", U32, s.n_ctx_orig)
        if vocab is None:
            out.add("tokenizer.ggml.model", STRING, "none")
            out.add("tokenizer.ggml.add_bos_token", BOOL, False)
        else:
            for key, encoded in vocab.metadata.items():
                if key.startswith("tokenizer."):
                    out.add_encoded(key, encoded)

    def layer(self, i):
        s = self.shape
        n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
        normed = self.arch == "qwen3"
        self.vector("attn_norm.weight", s.n_embd, i)
        self.matrix("attn_q", n_q, s.n_embd, GAIN_SCORE, i)
        self.matrix("attn_k", n_kv, s.n_embd, GAIN_SCORE, i)
        self.matrix("attn_v", n_kv, s.n_embd, layer=i)
        if self.arch == "qwen2":
            for name, n in (("attn_q.bias", n_q), ("attn_k.bias", n_kv), ("attn_v.bias", n_kv)):
                self.vector(name, n, i, mean=0.0, std=BIAS_STD)
        if normed:
            self.vector("attn_q_norm.weight", s.head_dim, i, mean=GAIN_SCORE)
            self.vector("attn_k_norm.weight", s.head_dim, i, mean=GAIN_SCORE)
        self.matrix("attn_output", s.n_embd, n_q, layer=i)
        self.vector("ffn_norm.weight", s.n_embd, i)
        self.matrix("ffn_gate", s.n_ff, s.n_embd, layer=i)
        self.matrix("ffn_up", s.n_ff, s.n_embd, layer=i)
        self.matrix("ffn_down", s.n_embd, s.n_ff, layer=i)


def make_model(path, arch, shape, dtype, seed="0", vocab_path=None):
    vocab = Reader(vocab_path) if vocab_path else None
    if vocab:
        shape = replace(shape, n_vocab=vocab.value("tokenizer.ggml.tokens"))
    model = Model(arch, shape, dtype, seed)
    model.metadata(vocab)
    # A tied embedding is the output projection as well, and takes its scale.
    model.matrix("token_embd", shape.n_vocab, shape.n_embd,
                 GAIN_LOGITS if shape.tied else math.sqrt(shape.n_embd))
    for i in range(shape.n_layer):
        model.layer(i)
    model.vector("output_norm.weight", shape.n_embd)
    if not shape.tied:
        model.matrix("output", shape.n_vocab, shape.n_embd, GAIN_LOGITS)
    if shape.rope_scaling == "llama3":
        factors = llama3_factors(shape)
        model.out.add_tensor("rope_freqs.weight", "F32", (len(factors) // 4,), [factors])
    model.out.write(path)


def changed(shape, settings):
    """shape with the settings KEY=VALUE of the command line."""
    types = {field.name: field.type for field in fields(Shape)}
    values = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        if key not in types:
            raise SystemExit(f"--set {key}: no such key, there are {', '.join(types)}")
        values[key] = text in ("1", "true") if types[key] is bool else types[key](text)
    return replace(shape, **values)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=["llama", "qwen2", "qwen3"], required=True)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="change one number of the shape: " + ", ".join(
                            field.name for field in fields(Shape)))
    parser.add_argument("--type", default="F32", choices=[*DTYPES, "Q4_K_M"])
    parser.add_argument("--vocab", metavar="GGUF", help="file whose tokenizer is copied")
    parser.add_argument("--seed", default="0")
    parser.add_argument("out", metavar="OUT.gguf")
    args = parser.parse_args()
    make_model(args.out, args.arch, changed(SHAPES[args.shape], args.set), args.type, args.seed,
               args.vocab)


if __name__ == "__main__":
    main()
