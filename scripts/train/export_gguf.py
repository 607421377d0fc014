"""Writes a checkpoint as GGUF (qwen2 or qwen35, F16 matrices): python3 export_gguf.py DIR FILE."""

import argparse
import hashlib
import os
import sys

import numpy as np

from evaluate import load
from hybrid import N_CONV
from model import ARCH
from presets import PRESETS

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from gguf import BOOL, F32, I32, STRING, TENSOR_F16, TENSOR_F32, U32, Writer  # noqa: E402

FILE_TYPE_F16 = 1
HYBRID_ARCH = "qwen35"


def add_hybrid(out, c):
    """Keys of gated delta nets, and of heads that rotate in part."""
    out.add(f"{HYBRID_ARCH}.attention.key_length", U32, c.head_dim)
    out.add(f"{HYBRID_ARCH}.attention.value_length", U32, c.head_dim)
    out.add(f"{HYBRID_ARCH}.rope.dimension_count", U32, c.n_rot)
    n_pair = c.n_rot // 2  # shared by the first three of four positions, which are equal for text
    sections = [(n_pair + 2) // 3, (n_pair + 1) // 3, n_pair // 3, 0]
    out.add_array(f"{HYBRID_ARCH}.rope.dimension_sections", I32, sections)
    out.add(f"{HYBRID_ARCH}.full_attention_interval", U32, c.interval)
    out.add(f"{HYBRID_ARCH}.ssm.conv_kernel", U32, N_CONV)
    out.add(f"{HYBRID_ARCH}.ssm.state_size", U32, c.delta_dim)
    out.add(f"{HYBRID_ARCH}.ssm.group_count", U32, c.delta_keys)
    out.add(f"{HYBRID_ARCH}.ssm.time_step_rank", U32, c.delta_values)
    out.add(f"{HYBRID_ARCH}.ssm.inner_size", U32, c.delta_values * c.delta_dim)


def add_tensors(out, model):
    for name, p in model.state_dict().items():
        if name == "output.weight" and model.c.tied:
            continue
        if name.endswith(("ssm_alpha.weight", "ssm_a_log")):
            alpha, rate = model.blk[int(name.split(".")[1])].decays()
            p = alpha if p.dim() == 2 else rate
            name = name.replace("ssm_a_log", "ssm_a")
        narrow = p.dim() == 2 and not name.endswith("ssm_conv1d.weight")
        kind, dtype = (TENSOR_F16, np.float16) if narrow else (TENSOR_F32, np.float32)
        out.add_tensor(name, kind, p.shape, p.detach().numpy().astype(dtype).tobytes())


def export(tok, model, preset_name, path):
    c, out = model.c, Writer()
    arch = HYBRID_ARCH if c.interval else ARCH
    out.add("general.architecture", STRING, arch)
    out.add("general.name", STRING, f"pith-{preset_name}")
    out.add("general.license", STRING, "MIT")
    out.add("general.file_type", U32, FILE_TYPE_F16)
    out.add(f"{arch}.context_length", U32, PRESETS[preset_name].context)
    out.add(f"{arch}.embedding_length", U32, c.n_embd)
    out.add(f"{arch}.block_count", U32, c.n_layer)
    out.add(f"{arch}.feed_forward_length", U32, c.n_ff)
    out.add(f"{arch}.attention.head_count", U32, c.n_head)
    out.add(f"{arch}.attention.head_count_kv", U32, c.n_head_kv)
    out.add(f"{arch}.attention.layer_norm_rms_epsilon", F32, c.norm_eps)
    out.add(f"{arch}.rope.freq_base", F32, c.rope_theta)
    if c.interval:
        add_hybrid(out, c)
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
    add_tensors(out, model)
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
