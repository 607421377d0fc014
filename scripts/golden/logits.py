#!/usr/bin/env python3
"""Makes tests/golden/logits.txt: logits of llama.cpp for models of every architecture and weight
type, which tests/model/test_logits.c makes again, byte for byte, and compares with Pith's.

    scripts/golden/logits.py LLAMA_CPP_DIR [--group GROUP] [--label TEXT] [--build DIR] [--data DIR]
                             [--only NAME]

With --group the cases come from a group of families, and the file is logits-GROUP.txt.

LLAMA_CPP_DIR is a source tree of llama.cpp with a static build in build/ (targets llama and
llama-quantize); --build is Pith's build folder, for tests/make_model; --data is where the cases
with real vocabularies find them. Standard library only.

Two kinds of rows are stored. "top" and "proj" come from the file as it is. For quantised types
"exact" follows: the projections of the same weights decoded to F32, without llama.cpp's rounding of
activations, so that the test can tell whose rounding is smaller.
"""
import argparse
import os
import random
import subprocess
import tempfile

from peer import Peer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K",
         "Q5_K", "Q6_K"]
TABLE_TYPES = ["IQ4_NL", "IQ4_XS", "MXFP4"]
FLOAT_TYPES = ("F32", "F16", "BF16")
DEFAULT_VOCAB = 333  # of make_model
VOCABS = {"ggml-vocab-llama-spm.gguf": 32000, "ggml-vocab-llama-bpe.gguf": 128256,
          "ggml-vocab-qwen2.gguf": 151936}


def keys_of(words):
    return dict(word.split("=", 1) for word in words.split())


# llama.cpp asks of qwen2 that the heads together are as wide as the model.
QWEN2 = {"llama": "", "qwen2": " head_dim=32", "qwen3": ""}


class Cases(list):
    """(name, words for make_model, number of ids, vocabulary file or None, bound or None)"""

    def add(self, name, words, n_id=24, vocab=None, bound=None):
        self.append((name, words, n_id, vocab, bound))


def first_cases():
    cases = Cases()
    add = cases.add
    for arch in ("llama", "qwen2", "qwen3"):
        for tied in (0, 1):
            add(f"{arch}-{'tied' if tied else 'untied'}", f"arch={arch} tied={tied}{QWEN2[arch]}")
    for dtype in TYPES:
        add(f"llama-{dtype}", f"arch=llama type={dtype} width=256 ff=512")
    for dtype in ("F16", "Q8_0", "Q4_K", "Q6_K"):
        add(f"qwen3-{dtype}", f"arch=qwen3 type={dtype} width=256 ff=768 head_dim=128 tied=1")
    add("qwen3-Q4_K_M", "arch=qwen3 type=Q4_K_M width=256 ff=512 layers=4 vocab=300 tied=1")
    add("qwen2-Q4_0", "arch=qwen2 type=Q4_0 width=224 heads=7 kv_heads=1 head_dim=32 ff=416 tied=1")
    # Odd shapes: rows that are no multiple of a kernel's group, one block wide, one id.
    for head_dim in (32, 64, 80, 96, 128):
        for arch in ("llama", "qwen3"):
            add(f"{arch}-head{head_dim}",
                f"arch={arch} head_dim={head_dim} heads=3 kv_heads=1 ff=160")
    add("llama-7per", "arch=llama heads=14 kv_heads=2 head_dim=64 width=192")
    add("qwen2-7per", "arch=qwen2 heads=14 kv_heads=2 head_dim=64 width=896 ff=256 type=Q8_0")
    add("llama-mha", "arch=llama heads=6 kv_heads=6 head_dim=32 width=192")
    add("llama-narrow", "arch=llama type=Q8_0 width=32 heads=1 kv_heads=1 head_dim=32 ff=32 "
        "vocab=17")
    add("llama-odd", "arch=llama width=100 heads=5 kv_heads=5 head_dim=20 ff=133 vocab=71")
    add("llama-bias", "arch=llama bias=1 type=Q5_0")
    add("llama-eps", "arch=llama eps=0.01 layers=1")
    add("llama-one-id", "arch=llama", 1)
    # Rotary positions.
    add("llama-theta", "arch=llama theta=1000000 ctx=32768", 150)
    add("llama-linear", "arch=llama scaling=linear factor=4 ctx=8192", 150)
    add("qwen2-yarn", "arch=qwen2 head_dim=32 scaling=yarn factor=4 ctx=256 ctx_orig=64 "
        "theta=1000000", 150)
    add("llama-yarn", "arch=llama scaling=yarn factor=8 ctx=1024 ctx_orig=128", 150)
    add("llama-factors", "arch=llama scaling=factors factor=32 ctx=4096 ctx_orig=64 "
        "theta=500000", 150)
    # Prompts of several pages and chunks.
    add("qwen3-long", "arch=qwen3 heads=8 kv_heads=4", 200)
    add("llama-long-Q4_K", "arch=llama type=Q4_K width=256 ff=256", 200)
    # Real vocabularies.
    add("llama-spm", "arch=llama type=Q8_0 width=64 ff=96 layers=1", 8, "ggml-vocab-llama-spm.gguf")
    add("llama-bpe", "arch=llama type=Q4_0 width=64 ff=96 layers=1 tied=1", 8,
        "ggml-vocab-llama-bpe.gguf")
    add("qwen2-vocab", "arch=qwen2 type=Q5_1 width=64 heads=2 kv_heads=1 head_dim=32 ff=96 "
        "layers=1 tied=1", 8, "ggml-vocab-qwen2.gguf")
    add("qwen3-vocab", "arch=qwen3 type=F16 width=32 ff=96 layers=1 tied=1", 8,
        "ggml-vocab-qwen2.gguf")
    return cases


def dense_cases():
    cases = Cases()
    cases.add("smollm3", "arch=smollm3 layers=5 width=64 heads=4 kv_heads=2 head_dim=16 ff=96", 150)
    gelu = 1e-6  # llama.cpp's GELU is a table of f16
    shape = "layers=7 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=8"
    cases.add("gemma3", f"arch=gemma3 {shape} tied=1", 100, bound=gelu)
    cases.add("gemma3-period", f"arch=gemma3 {shape} pattern=3 base=50000 base_swa=500 final_cap=5",
              100, bound=gelu)
    cases.add("gemma3-array", f"arch=gemma3 {shape} pattern=2 pattern_array=1 scaling=linear "
              "factor=8 tied=1", 100, bound=gelu)
    cases.add("gemma3-full", "arch=gemma3 layers=3 width=64 heads=2 kv_heads=1 head_dim=64 ff=96 "
              "tied=1", 60, bound=gelu)
    cases.add("gemma3-62", "arch=gemma3 layers=62 width=32 heads=2 kv_heads=1 head_dim=32 ff=32 "
              "window=5 tied=1", 30, bound=1e-5)
    cases.add("gemma3-Q4_K", "arch=gemma3 layers=4 width=256 heads=4 kv_heads=1 head_dim=64 ff=512 "
              "window=16 pattern=4 type=Q4_K tied=1", 60)
    cases.add("gemma3-Q8_0", "arch=gemma3 layers=4 width=160 heads=4 kv_heads=1 head_dim=64 ff=224 "
              "window=16 pattern=4 type=Q8_0 tied=1", 60)
    # Two matrices are fused in some; n_rot < head_dim; the context is that of the ids.
    phi = "arch=phi3 layers=3 width=96 heads=6 kv_heads=2 head_dim=16 ff=80 fused=1"
    cases.add("phi3", f"{phi} rot=12", 100)
    cases.add("phi3-long", f"{phi} rot=12 longrope=1 ctx=512 ctx_orig=64 attn_factor=1.19", 150)
    cases.add("phi3-short", f"{phi} longrope=1 ctx=512 ctx_orig=400 attn_factor=1.19 window=20",
              100)
    cases.add("phi3-apart", "arch=phi3 layers=2 width=64 heads=4 kv_heads=4 head_dim=16 ff=96", 40)
    cases.add("phi3-Q4_K", "arch=phi3 layers=2 width=256 heads=4 kv_heads=2 head_dim=64 ff=512 "
              "fused=1 type=Q4_K longrope=1 ctx=512 ctx_orig=32", 60)
    mistral = "arch=mistral3 layers=3 width=64 heads=4 kv_heads=2 head_dim=32 ff=96"
    cases.add("mistral3", mistral, 60)
    cases.add("mistral3-temperature", f"{mistral} scaling=yarn factor=8 ctx=256 ctx_orig=16 "
              "log_mul=1 temperature=0.1", 100)
    cases.add("mistral3-yarn", f"{mistral} scaling=yarn factor=4 ctx=256 ctx_orig=64 log_mul=0.5",
              100)
    cases.add("mistral3-Q5_0", f"{mistral} scaling=yarn factor=8 ctx=256 ctx_orig=16 log_mul=1 "
              "temperature=0.3 type=Q5_0", 60)
    shape = "layers=3 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=8"
    cases.add("gemma2", f"arch=gemma2 {shape} attn_cap=5 final_cap=10 base=20000", 100, bound=gelu)
    cases.add("gemma2-presets", "arch=gemma2 layers=4 width=64 heads=2 kv_heads=1 head_dim=32 "
              "ff=96", 60, bound=gelu)
    cases.add("gemma2-46", "arch=gemma2 layers=46 width=32 heads=2 kv_heads=1 head_dim=32 ff=32 "
              "window=5", 30, bound=1e-5)
    cases.add("gemma2-Q6_K", "arch=gemma2 layers=2 width=256 heads=4 kv_heads=2 head_dim=64 ff=512 "
              "window=16 type=Q6_K", 60)
    return cases


def recurrent_cases():
    cases = Cases()
    small = "arch=qwen35 layers=4 width=64 heads=4 kv_heads=2 head_dim=32 rot=8 ff=96"
    cases.add("qwen35", small, 150)
    cases.add("qwen35-listed", small + " listed=1 interval=2 tied=1", 40)
    cases.add("qwen35-alike", small + " delta_keys=4 delta_values=4 delta_dim=24", 70)
    cases.add("qwen35-odd", "arch=qwen35 layers=5 width=100 heads=5 kv_heads=5 head_dim=20 rot=12 "
              "ff=133 vocab=71 delta_keys=3 delta_values=6 delta_dim=20 taps=3 interval=3", 33)
    cases.add("qwen35-one-id", small, 1)
    cases.add("qwen35-real-heads", "arch=qwen35 layers=4 width=256 heads=4 kv_heads=1 head_dim=256 "
              "rot=64 ff=256 delta_keys=2 delta_values=4 delta_dim=128", 90)
    for dtype in ("F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"):
        cases.add(f"qwen35-{dtype}", f"arch=qwen35 type={dtype} layers=4 width=256 heads=4 "
                  "kv_heads=2 head_dim=64 rot=16 ff=512 delta_keys=4 delta_values=8 delta_dim=64")
    for arch in ("qwen35moe", "qwen3next"):
        more = small.replace("qwen35", arch) + " experts=4 used=2 expert_ff=32"
        cases.add(arch, more, 150)
        cases.add(f"{arch}-listed", more + " listed=1 interval=2 tied=1", 40)
        cases.add(f"{arch}-mtp", more + " layers=5 mtp=1", 40)
        # Another seed has a token with two experts that are nearly equal.
        cases.add(f"{arch}-Q8_0", f"arch={arch} type=Q8_0 layers=4 width=256 heads=4 kv_heads=2 "
                  "head_dim=64 rot=16 ff=128 delta_keys=4 delta_values=8 delta_dim=64 experts=8 "
                  f"used=2 expert_ff=64 seed={1 if arch == 'qwen3next' else 0}")
    cases.add("qwen3next-legacy", small.replace("qwen35", "qwen3next") + " experts=4 used=2 "
              "expert_ff=32 legacy=1", 70)
    return cases


def experts_cases():
    cases = Cases()
    shape = "arch=qwen3moe width=64 heads=4 kv_heads=2 head_dim=32 ff=96"
    cases.add("qwen3moe", f"{shape} experts=8 used=2 expert_ff=32", 150)
    cases.add("qwen3moe-odd", "arch=qwen3moe width=100 heads=5 kv_heads=1 head_dim=20 ff=77 vocab=71 "
              "experts=7 used=3 expert_ff=45 layers=3")
    cases.add("qwen3moe-all", f"{shape} experts=4 used=4 expert_ff=32")
    cases.add("qwen3moe-one", f"{shape} experts=5 used=1 expert_ff=48 tied=1", 1)
    cases.add("qwen3moe-many", f"{shape} experts=128 used=8 expert_ff=24")
    cases.add("qwen3moe-scale", f"{shape} experts=8 used=2 expert_ff=32 expert_scale=2.5")  # not read
    cases.add("qwen3moe-bias", f"{shape} experts=8 used=2 expert_ff=32 bias=1")
    # Activations of 8 bits may choose another of two experts that are nearly equal. A seed whose
    # logits differed in one row gave way to another.
    for dtype, seed in (("F16", 0), ("Q8_0", 0), ("Q4_K", 0), ("Q6_K", 5)):
        cases.add(f"qwen3moe-{dtype}", f"arch=qwen3moe type={dtype} width=256 heads=4 kv_heads=2 "
                  f"head_dim=64 ff=768 experts=16 used=4 expert_ff=256 seed={seed}")
    # Layers without experts first, shared experts, choices by a bias, half of a head rotated.
    glm = "arch=glm4moe width=64 heads=4 kv_heads=2 head_dim=32 rot=16 ff=96 experts=8 expert_ff=32"
    cases.add("glm4moe", f"{glm} layers=3 used=2 norm=1 expert_scale=2.5", 150)
    cases.add("glm4moe-plain", f"{glm} layers=3 used=3 lead=2 shared=2 bias=1 qk_norm=1")
    cases.add("glm4moe-softmax", f"{glm} layers=2 used=2 gating=1 lead=0")
    cases.add("glm4moe-groups", f"{glm} layers=3 used=2 groups=4 groups_used=2 norm=1")
    cases.add("glm4moe-mtp", f"{glm} layers=4 used=2 mtp=1")
    cases.add("glm4moe-Q8_0", f"{glm} type=Q8_0 layers=3 used=2 norm=1 seed=2")
    for dtype in TABLE_TYPES:
        cases.add(f"llama-{dtype}", f"arch=llama type={dtype} width=256 ff=512")
    # Sinks, windows, biases everywhere; prompts longer than the window and the original context.
    oss = "arch=gpt-oss layers=4 width=64 heads=4 kv_heads=2 head_dim=16 experts=4 expert_ff=64"
    cases.add("gpt-oss", f"{oss} used=2 window=8 scaling=yarn factor=4 ctx=256 ctx_orig=64 "
              "theta=150000", 150)
    cases.add("gpt-oss-plain", f"{oss} used=4 window=16", 40)
    cases.add("gpt-oss-bases", f"{oss} used=1 window=8 theta=150000 theta_swa=1000", 60)
    cases.add("gpt-oss-MXFP4", f"{oss} type=MXFP4 used=2 window=8", 40)
    cases.add("gpt-oss-Q8_0", f"{oss} type=Q8_0 used=2 window=8", 40)
    return cases


def latent_cases():
    cases = Cases()
    # head_dim is that of a head's key with its rotated part; rank that of the lane's vector.
    small = "arch=deepseek2 width=64 heads=4 head_dim=24 rot=8 rank=32 value_dim=24 ff=96 experts=8"
    moe = f"{small} layers=3 used=2 expert_ff=32"
    cases.add("deepseek2", f"{moe} query_rank=40", 150)
    cases.add("deepseek2-old", f"{moe} query_rank=40 old=1", 150)
    # llama.cpp takes models of 26 and 27 layers for those that make queries at once.
    lite = (f"arch=deepseek2 layers=26 width=32 heads=2 head_dim=24 rot=8 rank=32 value_dim=16 "
            "ff=48 experts=4 used=2 expert_ff=16 shared=2")
    cases.add("deepseek2-lite", lite, 40)
    cases.add("deepseek2-lite-old", f"{lite} old=1 scaling=yarn factor=40 ctx=2560 ctx_orig=64 "
              "log_mul=0.0707", 90)
    cases.add("deepseek2-sigmoid", f"{moe} query_rank=40 gating=2 norm=1 expert_scale=1.8", 60)
    cases.add("deepseek2-groups", f"{moe} query_rank=40 gating=2 groups=4 groups_used=2 lead=0", 60)
    cases.add("deepseek2-fused", f"{moe} query_rank=40 fused_exps=1 lead=2", 40)
    cases.add("deepseek2-mtp", f"{small} layers=4 used=2 expert_ff=32 query_rank=40 mtp=1", 40)
    for name, more in (("", " log_mul=0.0707"), ("-whole", " log_mul=0.1"), ("-old", "")):
        cases.add(f"deepseek2-yarn{name}", f"{moe} query_rank=40 scaling=yarn factor=40 ctx=2560 "
                  f"ctx_orig=64{more}", 150)
    cases.add("deepseek2-linear", f"{moe} query_rank=40 scaling=linear factor=4 ctx=1024", 60)
    cases.add("deepseek2-temperature", f"{moe} query_rank=40 temperature=0.1 temp_len=16", 60)
    cases.add("deepseek2-odd", "arch=deepseek2 layers=2 width=100 heads=5 head_dim=26 rot=6 rank=37 "
              "value_dim=13 query_rank=29 ff=77 vocab=71 experts=5 used=3 expert_ff=21 lead=1", 33)
    cases.add("deepseek2-wide-head", "arch=deepseek2 layers=2 width=64 heads=3 head_dim=80 rot=16 "
              "rank=24 value_dim=40 query_rank=32 ff=96 experts=4 used=2 expert_ff=32", 40)
    cases.add("deepseek2-one-id", f"{moe} query_rank=40", 1)
    cases.add("deepseek2-real-heads", "arch=deepseek2 layers=2 width=256 heads=16 head_dim=192 "
              "rot=64 rank=512 value_dim=128 query_rank=128 ff=256 experts=8 used=2 expert_ff=64 "
              "shared=2", 90)
    shape = ("layers=2 width=256 heads=4 head_dim=192 rot=64 rank=256 value_dim=64 query_rank=256 "
             "ff=512 experts=8 used=2 expert_ff=256")
    for dtype, seed in (("F16", 0), ("Q8_0", 0), ("Q4_0", 0)):
        cases.add(f"deepseek2-{dtype}", f"arch=deepseek2 type={dtype} {shape} seed={seed}")
    cases.add("deepseek2-old-Q8_0", f"arch=deepseek2 type=Q8_0 {shape} old=1")
    cases.add("deepseek2-old-Q4_K", f"arch=deepseek2 type=Q4_K {shape} old=1".replace(
        "value_dim=64", "value_dim=128"))
    return cases


GROUPS = {"": first_cases, "dense": dense_cases, "experts": experts_cases,
          "recurrent": recurrent_cases, "latent": latent_cases}


def positions_of(n):
    """The first, the second, some between and the last."""
    return sorted({0, min(1, n - 1), n // 3, n // 2, max(n - 2, 0), n - 1})


def make_case(peer, make_model, data, folder, case):
    name, words, n_id, vocab, bound = case
    model, twin = os.path.join(folder, "model.gguf"), os.path.join(folder, "f32.gguf")
    command = [make_model, model, *words.split()]
    if vocab:
        command.append(f"vocab_file={os.path.join(data, 'tokenizer', vocab)}")
    subprocess.run(command, check=True)
    n_vocab = VOCABS[vocab] if vocab else keys_of(words).get("vocab", DEFAULT_VOCAB)
    rng = random.Random(name)
    ids = [rng.randrange(int(n_vocab)) for _ in range(n_id)]
    positions = positions_of(n_id)
    lines = [f"case {name}", f"model {words}"]
    if vocab:
        lines.append(f"vocab {vocab}")
    if bound:
        lines.append(f"bound {bound:g}")
    lines.append("ids " + " ".join(map(str, ids)))
    rows = peer.logits(model, ids, positions)
    exact = []
    if keys_of(words).get("type", "F32") not in FLOAT_TYPES:
        peer.to_f32(model, twin)
        exact = [line.replace("proj", "exact") for line in peer.logits(twin, ids, positions)
                 if line.startswith("proj")]
    for line in rows:
        lines.append(line)
        if line.startswith("proj") and exact:
            lines.append(exact.pop(0))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp")
    parser.add_argument("--group", default="", choices=list(GROUPS))
    parser.add_argument("--label", default="unknown version", help="which llama.cpp it is")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--data", default=os.path.join(ROOT, "build-data"))
    parser.add_argument("--only", help="print this case instead of writing the file")
    args = parser.parse_args()
    make_model = os.path.join(args.build, "tests", "make_model")
    lines = ["# Made by scripts/golden/logits.py; do not edit.", f"# llama.cpp: {args.label}"]
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(args.llama_cpp, folder)
        for case in GROUPS[args.group]():
            if args.only in (None, case[0]):
                lines += make_case(peer, make_model, args.data, folder, case)
    text = "\n".join(lines) + "\n"
    if args.only:
        print(text, end="")
        return
    name = f"logits-{args.group}.txt" if args.group else "logits.txt"
    with open(os.path.join(ROOT, "tests", "golden", name), "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
