"""A GGUF file of the llama family with Q4_0 matrices as distributed-llama's model (.m) and
tokenizer (.t):
    python3 dllama_file.py MODEL.gguf OUT.m OUT.t
Its Q40 has the bytes of Q4_0, and q and k have the same order, so that weights are the same ones.
Its embedding is F32. The tokenizer is made up: a letter is the token of its code, and any other
token is its number in brackets."""

import array
import struct
import sys

FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
F32, Q4_0 = 0, 2
BLOCK, BLOCK_BYTES = 32, 18
LLAMA, SILU, Q40 = 0xABCD00, 1, 2
MODEL_MAGIC, TOKENIZER_MAGIC = 0xA00ABCD, 0x567124
LAYER = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down", "ffn_up",
         "attn_norm", "ffn_norm")


class Gguf:
    def __init__(self, path):
        self.file = open(path, "rb")
        _, _, n_tensor, n_key = self.numbers("4sIQQ")
        self.keys = {self.value(STRING): self.value(self.numbers("I")[0]) for _ in range(n_key)}
        self.tensors = {}
        for _ in range(n_tensor):
            name, (n_dim,) = self.value(STRING), self.numbers("I")
            self.tensors[name] = (self.numbers(f"{n_dim}Q"), *self.numbers("IQ"))
        align = self.keys.get("general.alignment", 32)
        self.data = -(-self.file.tell() // align) * align

    def numbers(self, form):
        return struct.unpack("<" + form, self.file.read(struct.calcsize("<" + form)))

    def value(self, kind):
        if kind == STRING:
            return self.file.read(self.numbers("Q")[0]).decode()
        if kind == ARRAY:
            of, n = self.numbers("IQ")
            return [self.value(of) for _ in range(n)]
        return self.numbers(FIXED[kind])[0]

    def tensor(self, name, wanted):
        """Its bytes, which must be of the type wanted."""
        shape, kind, at = self.tensors[name]
        if kind != wanted:
            sys.exit(f"{name} is of type {kind}, not {wanted}")
        n = 1
        for dim in shape:
            n *= dim
        self.file.seek(self.data + at)
        return self.file.read(n * 4 if kind == F32 else n // BLOCK * BLOCK_BYTES)


def as_f32(blocks):
    """Each half of a block has its values in the low, then in the high four bits."""
    out = array.array("f")
    for (scale, *codes) in struct.iter_unpack("<e16B", blocks):
        value = [(code - 8) * scale for code in range(16)]
        out.extend([value[c & 15] for c in codes])
        out.extend([value[c >> 4] for c in codes])
    return out.tobytes()


def head(magic, pairs):
    data = b"".join(struct.pack("<ii", key, value) for key, value in pairs)
    return struct.pack("<ii", magic, 8 + len(data)) + data


def write_model(gguf, path):
    def key(name):
        return int(gguf.keys["llama." + name])

    n_layer, n_head = key("block_count"), key("attention.head_count")
    width = key("embedding_length")
    eps = {1e-5: 5, 1e-6: 6}[float(f"{gguf.keys['llama.attention.layer_norm_rms_epsilon']:.1e}")]
    (_, n_vocab), *_ = gguf.tensors["token_embd.weight"]
    head_dim = int(gguf.keys.get("llama.attention.key_length", width // n_head))
    with open(path, "wb") as out:
        # By number: enum LlmHeaderKey of its llm.hpp.
        out.write(head(MODEL_MAGIC, [*enumerate([
            0, LLAMA, width, key("feed_forward_length"), n_layer, n_head,
            key("attention.head_count_kv"), 0, 0, n_vocab, key("context_length"), SILU,
            int(gguf.keys.get("llama.rope.freq_base", 10000)), Q40]), (19, head_dim), (20, eps)]))
        out.write(as_f32(gguf.tensor("token_embd.weight", Q4_0)))
        for layer in range(n_layer):
            for name in LAYER:
                out.write(gguf.tensor(f"blk.{layer}.{name}.weight",
                                      F32 if name.endswith("norm") else Q4_0))
        out.write(gguf.tensor("output_norm.weight", F32))
        tied = "output.weight" not in gguf.tensors
        out.write(gguf.tensor("token_embd.weight" if tied else "output.weight", Q4_0))
    return n_vocab


def write_tokenizer(n_vocab, path):
    words = [chr(i) if chr(i).isalpha() and i < 128 else f"[{i}]" for i in range(n_vocab)]
    with open(path, "wb") as out:
        # Version, tokens, the longest of them, the first special one, and no such one at the start.
        out.write(head(TOKENIZER_MAGIC, [(0, 1), (1, n_vocab), (2, max(map(len, words))),
                                         (3, n_vocab - 1), (10, 0)]))
        for word in words:
            out.write(struct.pack("<fI", 0, len(word)) + word.encode())


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    write_tokenizer(write_model(Gguf(sys.argv[1]), sys.argv[2]), sys.argv[3])
