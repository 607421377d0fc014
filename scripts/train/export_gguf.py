"""Writes a checkpoint as GGUF (qwen2, F16 matrices): python3 export_gguf.py DIR FILE."""

import argparse
import hashlib
import os
import sys

import numpy as np

from evaluate import load
from model import ARCH
from presets import PRESETS

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from gguf import BOOL, F32, I32, STRING, TENSOR_F16, TENSOR_F32, U32, Writer  # noqa: E402

FILE_TYPE_F16 = 1


def export(tok, model, preset_name, path):
    c, out = model.c, Writer()
    out.add("general.architecture", STRING, ARCH)
    out.add("general.name", STRING, f"pith-{preset_name}")
    out.add("general.license", STRING, "MIT")
    out.add("general.file_type", U32, FILE_TYPE_F16)
    out.add(f"{ARCH}.context_length", U32, PRESETS[preset_name].context)
    out.add(f"{ARCH}.embedding_length", U32, c.n_embd)
    out.add(f"{ARCH}.block_count", U32, c.n_layer)
    out.add(f"{ARCH}.feed_forward_length", U32, c.n_ff)
    out.add(f"{ARCH}.attention.head_count", U32, c.n_head)
    out.add(f"{ARCH}.attention.head_count_kv", U32, c.n_head_kv)
    out.add(f"{ARCH}.attention.layer_norm_rms_epsilon", F32, c.norm_eps)
    out.add(f"{ARCH}.rope.freq_base", F32, c.rope_theta)
    tokens, types, merges = tok.gguf_lists()
    out.add("tokenizer.ggml.model", STRING, "gpt2")
    out.add("tokenizer.ggml.pre", STRING, tok.pre)
    out.add_array("tokenizer.ggml.tokens", STRING, tokens)
    out.add_array("tokenizer.ggml.token_type", I32, types)
    out.add_array("tokenizer.ggml.merges", STRING, merges)
    out.add("tokenizer.ggml.bos_token_id", U32, tok.begin)
    out.add("tokenizer.ggml.eos_token_id", U32, tok.end)
    out.add("tokenizer.ggml.padding_token_id", U32, tok.end)
    out.add("tokenizer.ggml.add_bos_token", BOOL, True)
    out.add("tokenizer.ggml.add_eos_token", BOOL, False)
    for name, p in model.state_dict().items():
        if name == "output.weight" and c.tied:
            continue
        kind, dtype = (TENSOR_F16, np.float16) if p.dim() == 2 else (TENSOR_F32, np.float32)
        out.add_tensor(name, kind, p.shape, p.numpy().astype(dtype).tobytes())
    return out.write(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("file")
    args = parser.parse_args()
    tok, model, state = load(args.folder)
    size = export(tok, model, state["preset"], args.file)
    with open(args.file, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    print(f"{args.file}: {size} bytes, step {state['step']}, seed {state['seed']}, sha256 {digest}")


if __name__ == "__main__":
    main()
