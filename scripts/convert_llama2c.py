#!/usr/bin/env python3
"""Converts a llama2.c checkpoint and its tokenizer to GGUF (architecture llama, F32).

    scripts/convert_llama2c.py stories260K.bin tok512.bin OUT.gguf

The checkpoint is the legacy format: seven int32 (width, FFN width, layers, heads, KV heads,
vocabulary, context; a negative vocabulary says that the output matrix is not the embedding), then
float32 matrices [out][in], all layers of one kind together. Rotary pairs are adjacent, as GGUF's
llama has them, so no rows are moved. Standard library only.
"""
import argparse
import os
import struct

from gguf import BOOL, F32, I32, STRING, TENSOR_F32, U32, Writer

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # tokenizer.ggml.token_type
SPECIAL = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
N_BYTE_TOKENS = 256
EPS = 1e-5
THETA = 10000.0


class Checkpoint:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.width, self.ff, self.layers, self.heads, self.kv_heads, vocab, self.context = \
            struct.unpack_from("<7i", self.data)
        self.vocab, self.tied = abs(vocab), vocab > 0
        self.at = 28

    def take(self, *shape):
        """The bytes of the next float32 tensor."""
        size = 4
        for dim in shape:
            size *= dim
        self.at += size
        if self.at > len(self.data):
            raise SystemExit(f"the checkpoint ends at byte {len(self.data)}, {self.at} are needed")
        return self.data[self.at - size:self.at]

    def tensors(self):
        """(name, shape, bytes), in the order of the checkpoint."""
        w, f, head = self.width, self.ff, self.width // self.heads
        kv = self.kv_heads * head
        yield "token_embd", (self.vocab, w), self.take(self.vocab, w)
        for name, shape in (("attn_norm", (w,)), ("attn_q", (w, w)), ("attn_k", (kv, w)),
                            ("attn_v", (kv, w)), ("attn_output", (w, w)), ("ffn_norm", (w,)),
                            ("ffn_gate", (f, w)), ("ffn_down", (w, f)), ("ffn_up", (f, w))):
            for layer in range(self.layers):
                yield f"blk.{layer}.{name}", shape, self.take(*shape)
        yield "output_norm", (w,), self.take(w)
        self.take(self.context, head)  # tables of cosines and sines, which are not used
        if not self.tied:
            yield "output", (self.vocab, w), self.take(self.vocab, w)


def read_tokens(path, n):
    """Lists of texts, scores and types. SentencePiece writes a space as U+2581."""
    texts, scores, types = [], [], []
    with open(path, "rb") as file:
        file.read(4)
        for i in range(n):
            score, size = struct.unpack("<fi", file.read(8))
            text, kind = file.read(size).replace(b" ", "\u2581".encode()), NORMAL
            if i < len(SPECIAL):
                text, kind = SPECIAL[i]
            elif i < len(SPECIAL) + N_BYTE_TOKENS:
                text, kind = f"<0x{i - len(SPECIAL):02X}>", BYTE
            texts.append(text)
            scores.append(score)
            types.append(kind)
    return texts, scores, types


def convert(checkpoint_path, tokenizer_path, out_path):
    c, out = Checkpoint(checkpoint_path), Writer()
    out.add("general.architecture", STRING, "llama")
    out.add("general.name", STRING, os.path.splitext(os.path.basename(checkpoint_path))[0])
    for key, value in (("block_count", c.layers), ("context_length", c.context),
                       ("embedding_length", c.width), ("feed_forward_length", c.ff),
                       ("attention.head_count", c.heads), ("attention.head_count_kv", c.kv_heads),
                       ("rope.dimension_count", c.width // c.heads), ("vocab_size", c.vocab)):
        out.add(f"llama.{key}", U32, value)
    out.add("llama.attention.layer_norm_rms_epsilon", F32, EPS)
    out.add("llama.rope.freq_base", F32, THETA)
    texts, scores, types = read_tokens(tokenizer_path, c.vocab)
    out.add("tokenizer.ggml.model", STRING, "llama")
    out.add_array("tokenizer.ggml.tokens", STRING, texts)
    out.add_array("tokenizer.ggml.scores", F32, scores)
    out.add_array("tokenizer.ggml.token_type", I32, types)
    for i, key in enumerate(("unknown", "bos", "eos")):
        out.add(f"tokenizer.ggml.{key}_token_id", U32, i)
    out.add("tokenizer.ggml.add_bos_token", BOOL, True)
    out.add("tokenizer.ggml.add_eos_token", BOOL, False)
    for name, shape, data in c.tensors():
        out.add_tensor(f"{name}.weight", TENSOR_F32, shape, data)
    out.write(out_path)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    args = parser.parse_args()
    convert(args.checkpoint, args.tokenizer, args.out)


if __name__ == "__main__":
    main()
