"""The tokenizer of a GGUF file with byte-level BPE as a folder that transformers loads."""

import json
import os
import struct

SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
         12: "d"}
STRING, ARRAY = 8, 9
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")  # of llama-bpe


def metadata(path):
    """Keys and values of a GGUF file."""
    with open(path, "rb") as f:
        def number(kind):
            return struct.unpack("<" + kind, f.read(struct.calcsize("<" + kind)))[0]

        def value(kind):
            if kind == STRING:
                return f.read(number("Q")).decode()
            if kind != ARRAY:
                return number(SIZES[kind])
            of, n = number("I"), number("Q")
            return [value(of) for _ in range(n)]

        f.read(16)  # magic, version, number of tensors
        return {value(STRING): value(number("I")) for _ in range(number("Q"))}


def save(path, folder):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    data = metadata(path)
    tokens = data["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ", 1)) for m in data["tokenizer.ggml.merges"]]
    t = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges,
                             ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(tokens[i], special=True)
                          for i, kind in enumerate(data["tokenizer.ggml.token_type"]) if kind == 3])
    os.makedirs(folder, exist_ok=True)
    t.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast",
                   "eos_token": tokens[data["tokenizer.ggml.eos_token_id"]]}, f)
