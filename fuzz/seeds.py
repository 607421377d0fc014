#!/usr/bin/env python3
"""Writes the files that fuzzing starts from: DIR/TARGET/NAME for each target that wants some.
Small, valid and different: the fuzzer does the rest. Standard library only.

    fuzz/seeds.py DIR
"""
import json
import os
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?",
         U64: "<Q", I64: "<q", F64: "<d"}
DTYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q8_0": (8, 32, 34), "Q4_0": (2, 32, 18),
          "Q6_K": (14, 256, 210), "unknown": (99, 1, 0)}
ALIGNMENT = 32


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, v):
    return string(v) if kind == STRING else struct.pack(FORMS[kind], v)


def key(name, kind, v):
    return string(name) + struct.pack("<I", kind) + value(kind, v)


def array(name, kind, values):
    head = string(name) + struct.pack("<IIQ", ARRAY, kind, len(values))
    return head + b"".join(value(kind, v) for v in values)


def gguf(keys, tensors=(), version=3):
    """keys: encoded entries. tensors: (name, type, dimensions fastest first)."""
    heads, data = b"", b""
    for name, dtype, ne in tensors:
        number, block_len, block_bytes = DTYPES[dtype]
        heads += string(name) + struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
        heads += struct.pack("<IQ", number, len(data))
        n = 1
        for dim in ne:
            n *= dim
        size = n // block_len * block_bytes
        data += bytes((i * 37 + len(data)) % 64 for i in range(size)) + bytes(-size % ALIGNMENT)
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + heads
    return out + bytes(-len(out) % ALIGNMENT) + data if tensors else out


def scalars():
    keys = [key(f"k{kind}", kind, 1) for kind in FORMS]
    keys += [array(f"a{kind}", kind, [1, 0]) for kind in FORMS]
    keys += [key("s", STRING, "text"), array("as", STRING, ["a", "", "bc"])]
    return gguf(keys, [("x", "F32", [4, 2]), ("y", "unknown", [3])], version=2)


def shape(arch, rope=()):
    """The metadata of a network that fits the tensors of network()."""
    counts = {"block_count": 1, "embedding_length": 32, "feed_forward_length": 32,
              "context_length": 64, "attention.head_count": 2, "attention.head_count_kv": 1}
    keys = [key("general.architecture", STRING, arch)]
    keys += [key(f"{arch}.{name}", U32, n) for name, n in counts.items()]
    keys.append(key(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5))
    return keys + [key(f"{arch}.rope.{name}", kind, v) for name, kind, v in rope]


def network(n_vocab, dtype, arch):
    tensors = [("token_embd.weight", dtype, [32, n_vocab]), ("output_norm.weight", "F32", [32])]
    for name, ne in {"attn_norm": [32], "attn_q": [32, 32], "attn_k": [32, 16], "attn_v": [32, 16],
                     "attn_output": [32, 32], "ffn_norm": [32], "ffn_gate": [32, 32],
                     "ffn_up": [32, 32], "ffn_down": [32, 32]}.items():
        tensors.append((f"blk.0.{name}.weight", "F32" if len(ne) == 1 else dtype, ne))
    if arch == "qwen2":
        tensors += [(f"blk.0.{name}.bias", "F32", [n])
                    for name, n in (("attn_q", 32), ("attn_k", 16), ("attn_v", 16))]
    if arch == "qwen3":
        tensors += [(f"blk.0.{name}.weight", "F32", [16]) for name in ("attn_q_norm", "attn_k_norm")]
    return tensors


def latent_keys(old, more=()):
    """A dense layer and one with experts; heads of 16 with 8 rotated."""
    counts = {"attention.kv_lora_rank": 32, "attention.q_lora_rank": 32, "expert_count": 2,
              "expert_used_count": 1, "expert_feed_forward_length": 32, "expert_shared_count": 1,
              "leading_dense_block_count": 1, "rope.dimension_count": 8, **dict(more)}
    if not old:
        counts.update({"attention.key_length_mla": 16, "attention.value_length_mla": 16})
    keys = [k for k in shape("deepseek2") if b".block_count" not in k]
    return keys + [key(f"deepseek2.{name}", U32, n)
                   for name, n in [("block_count", 2), *counts.items()]]


def latent_network(n_vocab, dtype, old):
    tensors = [("token_embd.weight", dtype, [32, n_vocab]), ("output_norm.weight", "F32", [32])]
    attention = {"attn_norm": [32], "attn_q_a": [32, 32], "attn_q_a_norm": [32],
                 "attn_q_b": [32, 32], "attn_kv_a_mqa": [32, 40], "attn_kv_a_norm": [32],
                 "attn_output": [32, 32], "ffn_norm": [32]}
    both = {"attn_kv_b": [32, 48]} if old else {"attn_k_b": [8, 32, 2], "attn_v_b": [32, 16, 2]}
    dense = {"ffn_gate": [32, 32], "ffn_up": [32, 32], "ffn_down": [32, 32]}
    experts = {"ffn_gate_inp": [32, 2], "ffn_gate_exps": [32, 32, 2], "ffn_up_exps": [32, 32, 2],
               "ffn_down_exps": [32, 32, 2], "ffn_gate_shexp": [32, 32], "ffn_up_shexp": [32, 32],
               "ffn_down_shexp": [32, 32]}
    for layer, feed in enumerate((dense, experts)):
        for name, ne in {**attention, **both, **feed}.items():
            plain = len(ne) == 1 or name == "attn_k_b"
            tensors.append((f"blk.{layer}.{name}.weight", "F32" if plain else dtype, ne))
    return tensors


def spm_vocab():
    """SentencePiece: unknown, control, byte and normal tokens."""
    texts = ["<unk>", "<s>", "</s>", "<0x0A>", "<0x41>", "\u2581", "a", "b", "ab", "\u2581ab"]
    return [key("tokenizer.ggml.model", STRING, "llama"),
            array("tokenizer.ggml.tokens", STRING, texts),
            array("tokenizer.ggml.scores", F32, [float(-i) for i in range(len(texts))]),
            array("tokenizer.ggml.token_type", I32, [2, 3, 3, 6, 6] + [1] * 5),
            key("tokenizer.ggml.bos_token_id", U32, 1), key("tokenizer.ggml.eos_token_id", U32, 2),
            key("tokenizer.ggml.add_bos_token", BOOL, True),
            key("tokenizer.ggml.add_space_prefix", BOOL, True)], len(texts)


def bpe_vocab(pre):
    texts = ["a", "b", "c", "\u0120", "ab", "\u0120a", "abc", "<|im_start|>", "<|im_end|>"]
    return [key("tokenizer.ggml.model", STRING, "gpt2"), key("tokenizer.ggml.pre", STRING, pre),
            array("tokenizer.ggml.tokens", STRING, texts),
            array("tokenizer.ggml.token_type", I32, [1] * 7 + [3] * 2),
            array("tokenizer.ggml.merges", STRING, ["a b", "\u0120 a", "ab c"]),
            key("tokenizer.ggml.eos_token_id", U32, 8),
            key("tokenizer.chat_template", STRING, "{{ '<|im_start|>' + role }}")], len(texts)


def models():
    yarn = [("freq_base", F32, 1e4), ("scaling.type", STRING, "yarn"), ("scaling.factor", F32, 4.0),
            ("scaling.original_context_length", U32, 16)]
    spm, n_spm = spm_vocab()
    bpe, n_bpe = bpe_vocab("qwen2")
    llama = network(n_spm, "F32", "llama") + [("rope_freqs.weight", "F32", [8])]
    return {
        "llama.gguf": gguf(shape("llama", yarn) + spm, llama),
        "qwen2.gguf": gguf(shape("qwen2") + bpe, network(n_bpe, "Q8_0", "qwen2")),
        "qwen3.gguf": gguf(shape("qwen3") + bpe, network(n_bpe, "Q4_0", "qwen3")),
        "latent.gguf": gguf(latent_keys(False) + bpe, latent_network(n_bpe, "F32", False)),
        "latent-old.gguf": gguf(latent_keys(True) + bpe, latent_network(n_bpe, "Q8_0", True)),
        "vocab.gguf": gguf(shape("llama")[:1] + bpe_vocab("llama-bpe")[0]),
    }


def snapshot(shape, page, lanes, n_page, extra=b"", unordered=False, edges=(0,) * 6, groups=(1, 32),
             v_in_k=0):
    """docs/snapshot.md; the target makes the checksum right. lanes: per lane (page, delta, n and
    whether it is closed) and a count that is not 1. Pages are alike, or of a list, the first the
    largest."""
    bits = 1 << 31 if unordered else 0
    pages = page if isinstance(page, list) else [page] * n_page
    page = pages[0] if pages else page
    refs = [ref for lane in lanes for ref in lane]
    sections = {"LANE": b"".join(struct.pack("<I", len(lane) | bits) for lane in lanes),
                "REFS": b"".join(struct.pack("<IiII", *(ref + (1,))[:4]) for ref in refs),
                "PAGE": b"".join(pages), "STAT": b"", "EXTR": extra}
    body = b"".join(tag.encode() + struct.pack("<Q", len(data)) + data
                    for tag, data in sections.items())
    head = b"PITHSNAP" + struct.pack("<IIQ7I", 8, 124, 124 + len(body) + 8, *shape)
    head += struct.pack("<IQQQ", n_page, len(refs), len(page), len(extra))
    head += struct.pack("<11I", *edges, *groups, *(0,) * (4 - len(groups)), v_in_k)
    return head + body + bytes(8)


def snapshots():
    """The shapes of fuzz_snapshot.c: f16 keys with q8_0 values, f32 keys with f16 values, turbo3
    keys, f16 in the first layer, with q4_0 values; q8_0 keys of which the second half is the
    value."""
    a = bytes(2 * 32 * 16 + 64 * 16 + 2 * 2 * 16) + struct.pack("<16i", *range(0, 32, 2))
    b = bytes(4 * 3 * 32 + 2 * 5 * 32) + struct.pack("<32i", *range(32))
    c = b[:-128] + struct.pack("<32i", *range(20, 52, 2), *range(1, 32, 2))
    lanes = [[(0, 0, 16), (1, 16, 16), (0, 40, 7)], [(2, 0, 3)]]
    values = bytes((64 // 2 + 64 // 32 * 2) * 16) + struct.pack("<16i", *range(1, 17))
    f16, turbo3 = bytes(2 * 32 * 16) + values, bytes((8 + 4) * 16) + bytes(64) + values
    latent = bytes((64 + 64 // 32 * 2) * 16) + struct.pack("<16i", *range(16))
    keep = b"h2o:budget=8"
    memory = (struct.pack("<i5IQ", -1, 1, 5, 2, len(keep), 2, 8) + struct.pack("<5i", *range(5)) +
              struct.pack("<2i", 3, -1) + bytes(4 * 2 * 42) + bytes(8) + keep)
    return {"memory.snapshot": snapshot((1, 2, 32, 64, 16, 1, 2), a, lanes, 3, memory),
            "a.snapshot": snapshot((1, 2, 32, 64, 16, 1, 2), a, lanes, 3, b"tokens"),
            "b.snapshot": snapshot((2, 1, 3, 5, 32, 0, 1), b, [[(0, 3, 32)], []], 1, groups=(1, 1)),
            "fallen.snapshot": snapshot((2, 1, 3, 5, 32, 0, 1), c, [[(0, 0, 32)], [(1, 4, 9)]], 2,
                                        unordered=True, groups=(1, 1)),
            "types.snapshot": snapshot((2, 1, 32, 64, 16, 5, 3), [f16, turbo3, turbo3],
                                       [[(0, 0, 16)], [(1, 0, 16), (2, 9, 5)]], 3,
                                       edges=(1, 1, 0, 0, 0, 0), groups=(32, 32, 1)),
            "latent.snapshot": snapshot((1, 1, 64, 32, 16, 2, 2), latent, [[(0, 0, 9, 1)]], 1,
                                        groups=(32, 32), v_in_k=32),
            "counts.snapshot": snapshot((1, 2, 32, 64, 16, 1, 2), a,
                                        [[(0, 0, 16, 3), (1, 16, 1 << 31 | 9, 1), (0, 40, 7, 2)],
                                         [(2, 0, 1 << 31 | 3, 1)]], 3),
            "empty.snapshot": snapshot((1, 2, 32, 64, 16, 1, 2), a, [[], []], 0)}


def safetensors(arrays, meta=None):
    """arrays: name -> (dtype, shape, bytes)."""
    header, data = {"__metadata__": meta} if meta else {}, b""
    for name, (dtype, dims, raw) in arrays.items():
        header[name] = {"dtype": dtype, "shape": dims,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def records():
    """docs/record.md: one layer, two query heads on one KV head, three tokens."""
    rows = {f"layers.0.{name}": ("F32", [3, heads, dim], bytes(4 * 3 * heads * dim))
            for name, heads, dim in (("q_pre", 2, 2), ("q", 2, 2), ("k", 1, 2), ("v", 1, 1))}
    rows["layers.0.v"] = ("BF16", [3, 1, 1], bytes(6))
    lists = {name: ("I32", [3], struct.pack("<3i", 0, 1, 2)) for name in ("positions", "tokens")}
    meta = {"format": "pith.record", "version": "1", "n_layer": "1", "n_head": "2", "n_head_kv": "1",
            "head_dim_k": "2", "head_dim_v": "1", "attn_scale": "0.5", "model": "m"}
    odd = {"z": ("U8", [], b"x"), "e": ("F64", [0, 2], b""), "a": ("I64", [1], bytes(8)),
           "h": ("F16", [2], bytes(4))}
    return {"record.safetensors": safetensors({**lists, **rows}, meta),
            "odd.safetensors": safetensors(odd), "empty.safetensors": safetensors({})}


def tria(version):
    """One layer of two heads with two bands."""
    head = struct.pack("<7I2f", 0x54524941, version, 1, 2, 1, 4, 2, 10000, 1) + bytes(28)
    scale = struct.pack("<f", 1) if version == 2 else b""
    return head + scale + struct.pack("<8f", .5, -1, .5, 0, 1, 1.5, .7, .6) * 2


def statistics():
    """fuzz_stats.c: TRIA files; Pith's format."""
    counts = (1, 2, 1, 2, 1, 2, 1)
    own = (b"PITHSTAT" + struct.pack("<2I3Q", 2, 88, 0, 77, 30) + struct.pack("<7I", *counts) +
           struct.pack("<2HI", 1, 3, 3) + struct.pack("<f2I", 1, 1, 4) + b"mtext" +
           struct.pack("<2i", 0, 30) + struct.pack("<q", 30) + struct.pack("<2d", 1, .01) +
           struct.pack("<7f", .5, -1, .5, 0, 1, 1.5, .7) * 3 + struct.pack("<4f", .5, .5, 1, 0) +
           struct.pack("<7f", .5, -1, .5, 0, 1, 1.5, .7) * 4 + bytes(8 + 8))
    numbers = struct.pack("<2f", -3, 1) + struct.pack("<3f", -4, -3, -2)  # one lane, three quantiles
    key = struct.pack("<5f", 1, -1, .5, 2, -3) + struct.pack("<4f", -1, -1, 0, 0)
    hidden = struct.pack("<3f", 1, 2, -3) + struct.pack("<5f", -1, -1, 1, 1, .6)
    section = (struct.pack("<6I", 1, 2, 4, 3, 1, 0) + numbers + key + struct.pack("<5f", 1, 1, 9, 9, .5) +
               hidden + struct.pack("<I", 3) + b"h2o" + struct.pack("<3f", 1, -3, .4))
    important = own[:-16] + struct.pack("<Q", len(section)) + section + bytes(8)
    return {"important.stats": important, "one.tria": tria(1), "two.tria": tria(2), "own.stats": own}


def projections():
    """fuzz_projection.c: bases of one, two and three dimensions; the target makes size and checksum
    right."""
    def bases(n_layer, n_head, dim, values, vectors, names=(b"", b"")):
        head = b"PITHLOKI" + struct.pack("<2I3Q", 1, 72, 0, 77, 30)
        head += struct.pack("<6IQ", n_layer, n_head, dim, 1 + dim % 2, *map(len, names), 0)
        return head + b"".join(names) + struct.pack(f"<{len(values)}f", *values) + struct.pack(
            f"<{len(vectors)}f", *vectors) + bytes(8)

    turned = [.8, .6, -.6, .8]
    return {"one.loki": bases(3, 2, 1, [4, 3, 2, 1, .5, 0], [1, -1, 1, 1, 1, 1]),
            "two.loki": bases(1, 2, 2, [2, 1, 1, 0], turned + [0, 1, 1, 0], (b"model", b"text")),
            "three.loki": bases(1, 1, 3, [2, 2, 1], [1, 0, 0, 0, .8, .6, 0, -.6, .8])}


def vocabularies():
    """fuzz_vocab.c: the length of the text, a vocabulary file, the text."""
    text = "abc ab <s><|im_start|>user\n'll 12\u4f60 \u2581".encode() + b"\xff\xe4\xbd\nsystem"
    files = {"spm": spm_vocab()[0]}
    for pre in ("default", "gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "gpt-4o", "tekken"):
        files[pre] = bpe_vocab(pre)[0]
    return {name: struct.pack("<H", len(text)) + gguf(keys) + text for name, keys in files.items()}


def options():
    """fuzz_keep.c: two bytes of a shape, options that it accepts."""
    texts = ("longflow:budget=64,score=exact,newest=on", "longflow:budget=25%,overwrite=off",
             "tova:budget=40,window=3,sinks=2,granularity=layer-head", "h2o:budget=64,recent=0.5",
             "vatp:budget=10%,recent=0.9,sinks=4", "h2o:budget=4MiB,overwrite=on,granularity=layer",
             "pyramidkv:budget=256,slack=1", "adakv:budget=50%", "snapkv:budget=64,segments=4",
             "streaming:budget=8MiB,positions=cache", "random:budget=99,layers=pyramid:3,heads=2/1",
             "raas:budget=80,prefix=9", "triattention:v1,budget=512,batch=128", "none")
    return {f"options-{i}": bytes([79, i % 3]) + text.encode() for i, text in enumerate(texts)}


def read_options():
    """fuzz_read.c: two bytes of a shape, options that it accepts."""
    texts = ("quoka:budget=25%,queries=8,pair=token,gate=1", "quoka:index=int8,phase=decode",
             "sampleattention:budget=64,chunk=32", "snapkv:sinks=4,recent=60", "keydiff:tail=64",
             "sparq:quoka,budget=512", "quest:quoka,budget=12.5%", "tidaldecode:source=3", "none")
    return {f"read-{i}": bytes([79, i % 3]) + text.encode() for i, text in enumerate(texts)}


def tiers():
    """fuzz_recall.c: the header of a file of two layers, and a head of three entries; the target
    makes checksums right."""
    header = b"PITHTIER" + struct.pack("<4IQ", 1, 0x01020304, 144, 64, 77)
    header += struct.pack("<6I", 2, 3, 64, 32, 9, 320) + bytes(72) + struct.pack("<2I", 5000, 4000)
    head = b"PAGE" + struct.pack("<3I5Q", 4, 3, 0, 1, 17, 4680, 99, 0) + struct.pack("<3i", 7, 9, 8)
    return {"header.tier": header + bytes(8), "head.tier": head + bytes(320 - len(head))}


def requests():
    """Lines of a batch: one of each endpoint with every key, and some that are refused."""
    def line(url, body, **more):
        return json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body, **more})
    common = {"model": "m", "max_tokens": 8, "temperature": 0.5, "top_p": 0.9, "top_k": 4,
              "min_p": 0.1, "seed": -7, "stop": ["a", "\n"], "n": 2, "presence_penalty": 0.5,
              "frequency_penalty": -0.5, "repeat_penalty": 1.1, "repeat_last_n": 64,
              "ignore_eos": True, "user": "u", "stream": False}
    messages = [{"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "\u00e9"}]}]
    chat, text = "/v1/chat/completions", "/v1/completions"
    lines = {
        "chat": line(chat, {**common, "messages": messages, "logprobs": True, "top_logprobs": 3,
                            "logit_bias": {"1": -100, "2": 0.5},
                            "response_format": {"type": "text"}, "tools": [],
                            "chat_template_kwargs": {"enable_thinking": False}}),
        "text": line(text, {**common, "prompt": ["a", "b"], "logprobs": 2, "stop": "x",
                            "logit_bias": [[1, 2.5], [3, False]], "echo": False, "best_of": 2}),
        "ids": line(text, {"prompt": [[1, 2], [3]]}),
        "id": line(text, {"prompt": [1, 2, 3]}),
        "wrong": line(chat, {"messages": [], "temperature": "hot", "stream": True}),
        "elsewhere": line("/v1/embeddings", {"input": "x"}, method="GET"),
    }
    return {name: text.encode() for name, text in lines.items()}


def bodies():
    """A byte that says which API, and a body for it."""
    say = [{"role": "user", "content": "hi"}]
    tool = {"name": "f", "parameters": {"type": "object"}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}
    tools = [{"type": "function", "function": tool}]
    all_of_them = {
        "chat": (0, {"messages": say + [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "1"}], "tools": tools,
            "tool_choice": "auto", "parallel_tool_calls": False, "stream": True,
            "stream_options": {"include_usage": True}, "reasoning_effort": "low",
            "reasoning_format": "none", "id_slot": 1, "cache_salt": "s", "return_progress": True}),
        "opening": (0, {"messages": say + [{"role": "assistant", "content": "Oh"}],
                        "continue_final_message": True, "max_tokens": 3}),
        "text": (1, {"prompt": ["a", [1, 2]], "n": 2, "echo": True, "stream": True}),
        "own": (2, {"prompt": [1, "a", 2], "n_predict": 2, "n_probs": 2, "return_tokens": True}),
        "infill": (3, {"input_prefix": "a", "input_suffix": "b", "prompt": "c",
                       "input_extra": [{"filename": "f", "text": "t"}]}),
        "messages": (4, {"max_tokens": 2, "system": [{"type": "text", "text":
            "x-anthropic-billing-header: cch=12345;"}], "stop_sequences": ["x"], "messages": [
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c",
                                          "content": [{"type": "text", "text": "r"}]}]}],
            "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled"}, "stream": True}),
        "responses": (5, {"instructions": "s", "stream": True, "tools": [
            {"type": "function", **tool}], "reasoning": {"effort": "none"}, "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"}]}),
        "count": (6, {"messages": say}),
    }
    return {name: bytes([api]) + json.dumps(body).encode()
            for name, (api, body) in all_of_them.items()}


def jinja():
    """A template, a zero byte, the variables as JSON."""
    chat = json.dumps({"messages": [
        {"role": "system", "content": "S"}, {"role": "user", "content": [{"text": "\u00e9"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {
            "name": "f", "arguments": {"x": 1.5, "y": [True, None]}}}]}],
        "tools": [{"name": "f"}], "add_generation_prompt": True})
    templates = {
        "turns": "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}",
        "tools": "{%- for t in tools if t is mapping %}{{ t | tojson(indent=2) }}{% else %}-"
                 "{%- endfor %}{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}",
        "macro": "{% macro f(a, b=[1, 2]) %}{{ a ~ b[::-1] }}{{ caller(a) if caller }}"
                 "{% endmacro %}{% call(x) f(1) %}{{ x }}{% endcall %}{{ f(b={'k': 2}, a=3) }}",
        "text": "{{ '%5.1f|%s' % (2.25, 'x') }}{{ '{0:>4}{a!r}'.format(1, a='b') }}"
                "{{ 'a,b'.split(',') | map('upper') | join('-') | replace('A', '') }}",
        "refuse": "{# no #}{% if messages | length > 2 %}{{ raise_exception('no') }}{% endif %}",
        "loop": "{% for i in [1, [2]] recursive %}{{ loop(i) if i is iterable else i }}"
                "{% break %}{% endfor %}{% raw %}{{ x }}{% endraw %}{{ strftime_now('%d %b') }}",
    }
    return {name: text.encode() + b"\0" + chat.encode() for name, text in templates.items()}


def answers():
    """Form by its number, options, a seed of pieces, then what a template writes."""
    golden = os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "tools.jsonl")
    with open(golden, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    forms = ("generic hermes qwen-coder llama3 mistral mistral-args gpt-oss deepseek dsml kimi glm "
             "seed minimax minicpm functionary solar cohere list nemotron apertus granite").split()
    return {str(i): bytes([forms.index(x["form"]), 0, 1, 2, 3, 4]) +
            x["text"].replace("get_weather", "f").encode() for i, x in enumerate(lines)}


def grammars():
    return {name: text.encode() for name, text in {
        "json": "root ::= v\nv ::= o | a | s | n | \"true\"\no ::= \"{\" (s \":\" v (\",\" s \":\" v)*)? "
                "\"}\"\na ::= \"[\" (v (\",\" v)*)? \"]\"\ns ::= \"\\\"\" [^\"\\\\\\x7F\\x00-\\x1F]* "
                "\"\\\"\"\nn ::= \"-\"? [0-9]{1,3}\n",
        "chars": "root ::= [\u00e0-\u07ff\\U00010000-\\U0001ffff]+ . [^a-z] # all\n | \"x\"{2,5}",
        "deep": "root ::= ((\"a\" | ) (\"b\" root \"c\")?)*", "left": "root ::= root \"a\" | \"b\""}.items()}


def schemas():
    p = {"a": {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^[a-c]+$"},
         "b": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 22.25},
         "c": {"type": ["array", "null"], "prefixItems": [{"const": 1}], "items": {"$ref": "#/$defs/x"},
               "minItems": 1, "maxItems": 4}}
    return {name: json.dumps(s).encode() for name, s in {
        "object": {"type": "object", "properties": p, "required": ["a", "z"],
                   "additionalProperties": {"type": "integer", "minimum": 3},
                   "$defs": {"x": {"anyOf": [{"$ref": "#"}, {"enum": [1, "q", None, [{}]]}]}}},
        "choice": {"allOf": [{"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
                             {"type": ["string", "null", "integer"]}]},
        "map": {"patternProperties": {"^x-": {}}, "minProperties": 1, "maxProperties": 3},
        "any": {}, "no": {"not": {}}}.items()}


def main():
    files = models()
    seeds = {"fuzz_model": files, "fuzz_snapshot": snapshots(),
             "fuzz_vocab": vocabularies(), "fuzz_safetensors": records(),
             "fuzz_stats": statistics(), "fuzz_keep": options(), "fuzz_read": read_options(),
             "fuzz_projection": projections(), "fuzz_recall": tiers(),
             "fuzz_batch": requests(), "fuzz_request": bodies(), "fuzz_jinja": jinja(),
             "fuzz_tools": answers(),
             "fuzz_gbnf": grammars(), "fuzz_schema": schemas(),
             "fuzz_gguf": {**files, "empty.gguf": gguf([]), "scalars.gguf": scalars()}}
    for target, contents in seeds.items():
        folder = os.path.join(sys.argv[1], target)
        os.makedirs(folder, exist_ok=True)
        for name, data in contents.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)


if __name__ == "__main__":
    main()
