"""Files that are a little wrong, as users have them: a weight that is no number, keys too large for
their storage type, a byte order mark in front of a text; and prompts that ask for too much: a
context beyond the training, BOS written out, a prompt longer than a keep policy's budget.

    test_odd_files.py PITH MODEL
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import server_rig

MARK = b"\xef\xbb\xbf"
NAN = struct.pack("<I", 0x7fc00000)
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Gguf:
    """Where the tensors of a GGUF file lie."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = bytearray(file.read())
        self.at = 8
        n_tensor, n_kv = self.num("Q"), self.num("Q")
        for _ in range(n_kv):
            self.text()
            self.skip(self.num("I"))
        heads = {}
        for _ in range(n_tensor):
            name = self.text()
            dims = [self.num("Q") for _ in range(self.num("I"))]
            heads[name] = (self.num("I"), dims, self.num("Q"))
        start = (self.at + 31) // 32 * 32
        self.tensors = {name: (kind, dims, start + at) for name, (kind, dims, at) in heads.items()}

    def num(self, form):
        size = struct.calcsize(form)
        self.at += size
        return struct.unpack_from("<" + form, self.data, self.at - size)[0]

    def text(self):
        n = self.num("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode("utf-8", "replace")

    def skip(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            item, n = self.num("I"), self.num("Q")
            if item == 8:
                for _ in range(n):
                    self.text()
            else:
                self.at += n * SIZES[item]
        else:
            self.at += SIZES[kind]

    def poke(self, tensor, index, data):
        at = self.tensors[tensor][2] + 4 * index
        self.data[at:at + len(data)] = data

    def save(self, path):
        with open(path, "wb") as file:
            file.write(self.data)


def pith(*args, stdin=None):
    return subprocess.run([server_rig.PITH, *map(str, args)], input=stdin, capture_output=True,
                          timeout=300)


class Folder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)

    def path(self, name, data=None):
        path = os.path.join(self.temporary.name, name)
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        return path

    def damaged(self, tensor="output_norm.weight", index=5, value=NAN):
        model = Gguf(server_rig.MODEL)
        model.poke(tensor, index, value)
        model.save(self.path("damaged.gguf"))
        return self.path("damaged.gguf")

    def says(self, result, *words, code=1):
        self.assertEqual(result.returncode, code, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr.decode())


class NotFinite(Folder):
    WORDS = ("not finite", "weight 5 of tensor \"output_norm.weight\" is NaN")

    def test_run(self):
        r = pith("run", "-m", self.damaged(), "-p", "Once", "-n", 4, "-q")
        self.says(r, *self.WORDS)
        self.assertEqual(r.stdout, b"")

    def test_chat(self):
        self.says(pith("chat", "-m", self.damaged(), "--chat-template", "chatml", stdin=b"hey\n"),
                  *self.WORDS)

    def test_infinite(self):
        model = self.damaged(value=struct.pack("<f", float("inf")))
        self.says(pith("run", "-m", model, "-p", "Once", "-n", 4, "-q"), "is infinite")

    def test_eval(self):
        text = self.path("text.txt", b"the dog ran over the hill and saw a cat. " * 60)
        for task in ("perplexity", "divergence"):
            extra = ["--keep", "streaming:budget=16"] if task == "divergence" else []
            self.says(pith("eval", task, "-m", self.damaged(), "-f", text, "-c", 64, "--chunks", 2,
                           *extra), *self.WORDS)

    def test_logits(self):
        self.says(pith("logits", "-m", self.damaged(), "--ids", "1,2,3"), "position 0",
                  *self.WORDS)

    def test_batch(self):
        body = {"model": "m", "prompt": "Once", "max_tokens": 3}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
        lines = self.path("in.jsonl", json.dumps(line).encode() + b"\n")
        pith("batch", "-m", self.damaged(), "-f", lines, "-o", self.path("out.jsonl"))
        with open(self.path("out.jsonl"), encoding="utf-8") as file:
            answer = json.loads(file.readline())
        self.assertIn("not finite", json.dumps(answer))

    def test_server(self):
        model, server_rig.MODEL = server_rig.MODEL, self.damaged()
        try:
            with server_rig.Server("-c", 256) as server:
                for path, body in (("/completion", {"prompt": "Once", "n_predict": 3}),
                                   ("/v1/completions", {"prompt": "Once", "max_tokens": 3}),
                                   ("/v1/completions", {"prompt": "Once", "max_tokens": 3,
                                                        "echo": True, "logprobs": 1})):
                    answer = server.post(path, body)
                    self.assertEqual(answer.code, 500, path)
                    self.assertIn("not finite", answer.error()["message"])
        finally:
            server_rig.MODEL = model

    def test_quantize(self):
        for tensor in ("output_norm.weight", "blk.0.attn_norm.weight"):
            out = self.path("out.gguf")
            r = pith("quantize", self.damaged(tensor), out, "Q8_0", "-q")
            self.says(r, f'tensor "{tensor}": weight 5 is NaN or infinite')
            self.assertFalse(os.path.exists(out))


class Keys(Folder):
    def test_overflow(self):
        """Keys beyond f16 are stored as its largest number, and one line says so."""
        model = Gguf(server_rig.MODEL)
        _, dims, _ = model.tensors["blk.1.attn_norm.weight"]
        model.poke("blk.1.attn_norm.weight", 0, struct.pack("<f", 1e7) * dims[0])
        model.save(self.path("loud.gguf"))
        words = "layer 1: a key is no number or more than f16 holds"
        run = ("run", "-m", self.path("loud.gguf"), "-p", "Once upon a time", "-n", 3, "-q")
        for options, told in (((), 1), (("-ctk", "bf16", "-ctv", "bf16"), 0),
                              (("-ctk", "f32", "-ctv", "f32"), 0)):
            r = pith(*run, *options)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual(r.stderr.decode().count(words), told, options)
        sound = pith("run", "-m", server_rig.MODEL, "-p", "Once", "-n", 3, "-q")
        self.assertEqual(sound.stderr, b"")


class Marks(Folder):
    """A byte order mark changes nothing."""

    def same(self, *args, name, text):
        plain = pith(*[self.path(name, text) if a is None else a for a in args])
        self.assertEqual(plain.returncode, 0, plain.stderr)
        marked = pith(*[self.path(name, MARK + text) if a is None else a for a in args])
        self.assertEqual(marked.returncode, 0, marked.stderr)
        self.assertEqual(marked.stdout, plain.stdout)

    def test_prompt(self):
        run = ("run", "-m", server_rig.MODEL, "-n", 2, "-q", "--echo")
        self.same(*run, "-f", None, name="p.txt", text=b"Once upon a time")
        plain = pith(*run, stdin=b"Once upon a time")
        self.assertEqual(pith(*run, stdin=MARK + b"Once upon a time").stdout, plain.stdout)
        self.same("tokenize", "-m", server_rig.MODEL, "-f", None, name="p.txt", text=b"Once")

    def test_template(self):
        self.same("run", "-m", server_rig.MODEL, "--chat", "-p", "hey", "-n", 1, "-q", "--echo",
                  "--chat-template-file", None, name="t.jinja",
                  text=b"{% for m in messages %}{{ m.content }}{% endfor %}")

    def test_grammar(self):
        run = ("run", "-m", server_rig.MODEL, "-p", "Is it? ", "-q", "-n", 8)
        self.same(*run, "--grammar-file", None, name="g.gbnf", text=b'root ::= "yes" | "no"')
        schema = self.path("s.json", MARK + b'{"type": "boolean"}')
        self.assertEqual(pith(*run, "-j", "@" + schema).returncode, 0)

    def test_eval(self):
        text = b"the dog ran over the hill and saw a cat. " * 60
        args = ("eval", "perplexity", "-m", server_rig.MODEL, "-c", 64, "--chunks", 2)
        figures = []
        for mark in (b"", MARK):
            out = self.path("e.json")
            r = pith(*args, "-f", self.path("e.txt", mark + text), "--json", out)
            self.assertEqual(r.returncode, 0, r.stderr)
            with open(out, encoding="utf-8") as file:
                figures.append(json.load(file)["summary"]["perplexity"])
        self.assertEqual(figures[0], figures[1])


class Said(Folder):
    def test_context(self):
        run = ("run", "-m", server_rig.MODEL, "-p", "Once", "-n", 2)
        words = ("8192 tokens", "4096 of the model's training", "rope base 1e+06", "scaling none")
        self.says(pith(*run, "-c", 8192), *words, code=0)
        self.assertNotIn(b"training", pith(*run, "-c", 4096).stderr)
        self.says(pith("chat", "-m", server_rig.MODEL, "-c", 8192, "--chat-template", "chatml",
                       stdin=b""), *words, code=0)

    def test_bos(self):
        ids = [json.loads(pith("tokenize", "-m", server_rig.MODEL, "--json", "--parse-special",
                               "-p", text).stdout) for text in ("Once", self.bos() + "Once")]
        self.assertEqual(ids[0], ids[1])
        run = ("run", "-m", server_rig.MODEL, "-n", 1, "-q", "-p", self.bos() + "Once")
        self.says(pith(*run, "--parse-special"), "no other is put in front", code=0)
        self.says(pith(*run), "read as letters", code=0)

    @staticmethod
    def bos():
        first = json.loads(pith("tokenize", "-m", server_rig.MODEL, "--json", "-p", "x").stdout)[0]
        model = Gguf(server_rig.MODEL)
        at = model.data.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 16
        model.at = at
        for _ in range(first):
            model.text()
        return model.text()

    def test_long_prompt(self):
        """A prompt of more than half of the budget is not pinned: it works under every policy."""
        prompt = "the dog ran over the hill and saw a cat. " * 60
        for keep in ("triattention:budget=256", "raas:budget=256", "streaming:budget=256",
                     "knorm:budget=256,pin-prompt=on"):
            r = pith("run", "-m", server_rig.MODEL, "-p", prompt, "-n", 3, "--keep", keep)
            self.assertEqual(r.returncode, 0, r.stderr)
            told = r.stderr.decode().count("is not pinned")
            self.assertEqual(told, 0 if keep.startswith("streaming") else 1, keep)
        r = pith("run", "-m", server_rig.MODEL, "-p", "Once", "-n", 3, "--keep", "raas:budget=256")
        self.assertNotIn(b"is not pinned", r.stderr)

    def test_overwritten(self):
        """What a token takes the place of is gone, as what a round drops."""
        text = self.path("e.txt", b"the dog ran over the hill and saw a cat. " * 60)
        r = pith("eval", "perplexity", "-m", server_rig.MODEL, "-f", text, "-c", 128, "--chunks", 2,
                 "-b", 1, "--keep", "longflow:budget=48", "--json",
                 self.path("e.json"))
        self.assertEqual(r.returncode, 0, r.stderr)
        with open(self.path("e.json"), encoding="utf-8") as file:
            got = json.load(file)
        self.assertGreater(got["rows"][0]["evicted"], 0)
        self.assertGreater(got["summary"]["after_first_eviction"]["tokens"], 0)
        self.assertNotIn("behind the last token", got["summary"].get("note", ""))


if __name__ == "__main__":
    server_rig.main()
