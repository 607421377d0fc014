#!/usr/bin/env python3
"""Measures keep policies beside NVIDIA's kvpress: same weights, same texts, same questions.

    scripts/docs/beside_kvpress.py MODEL.gguf DATA OUT

DATA has text/wiki.test.raw. `pith eval facts --text` makes the texts with ten facts and says their
tokens; transformers reads the same GGUF file (dequantised to float32, one thread). On both sides
the text is read whole, without a question, cut once, and each question is asked behind what stays,
greedily. Then the entries that both leave of 1,536 tokens of plain text are compared. OUT gets one
JSON file per cell: ours.NAME.BUDGET.json, theirs. (which grows with each text), same. (entries).
Started again, the script goes on where it stopped. Its end prints the table of
docs/real/kvpress.md; with OUT alone it only prints.

It needs `pip install torch transformers kvpress gguf` (made with 2.15, 5.2, 0.5.5, 0.19) and a
built pith. Environment:
    PITH=build/cli/pith  TEXTS=4  LENGTH=2048  SEED=3  BUDGETS="25 50"
    PARTS="ours theirs same"  (start it twice with parts of these to do them at once)
    POLICIES="snapkv pyramidkv adakv expected keydiff tova streaming knorm kvzip"
One core of a server, all nine policies and two budgets: SmolLM2-135M about 30 minutes of its time,
Qwen2.5-Coder-0.5B four times that; 2.3 and 4 GB of memory. read_s and cut_s in the cells of theirs
are seconds of the processor.

A text is read once for all presses. The inputs of a press (each layer's input, keys, values) are
kept, and its forward_hook is called with them. The numbers are those in `with press(model)`,
without reading again (the first cell is made both ways and compared). KVzip reads by itself. A
layer may hold fewer entries than another, which transformers' masks cannot say: attention makes its
own here. It also masks what Ada-KV and KVzip take away, exactly, where kvpress puts keys that get
no attention.
"""
import json
import math
import os
import subprocess
import sys
import time
import types
from collections import defaultdict

from real_table import ratio

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PITH = os.environ.get("PITH", os.path.join(ROOT, "build/cli/pith"))
TEXTS = os.environ.get("TEXTS", "4")
LENGTH = os.environ.get("LENGTH", "2048")
SEED = os.environ.get("SEED", "3")
BUDGETS = os.environ.get("BUDGETS", "25 50").split()
PARTS = os.environ.get("PARTS", "ours theirs same").split()
N_PREDICT = 24  # as pith eval facts
N_SAME = 1536  # tokens of the text whose entries are compared
SIDE = 10  # questions side by side

# What --keep takes beside the budget, so that both protect the same entries. PyramidKV's window is
# 16: with 64, kvpress falls back to even budgets wherever budget / 20 is less than that.
OURS = {
    "snapkv": "snapkv:window=64,queries=64",
    "pyramidkv": "pyramidkv:window=16,queries=16",
    "adakv": "adakv:window=64,queries=64,pool=avg,kernel=5",
    "expected": "expected:sinks=4",
    "keydiff": "keydiff",
    "tova": "tova:window=1,overwrite=off",
    "streaming": "streaming:sinks=4",
    "knorm": "knorm",
    "kvzip": "kvzip:window=0,sinks=4",
}
POLICIES = os.environ.get("POLICIES", " ".join(OURS)).split()


def press_of(name, share):
    """The press that leaves `share` percent."""
    import kvpress
    drop = 1.0 - share / 100.0
    return {
        "snapkv": lambda: kvpress.SnapKVPress(drop, window_size=64, kernel_size=5),
        "pyramidkv": lambda: kvpress.PyramidKVPress(drop, window_size=16, kernel_size=5, beta=20),
        "adakv": lambda: kvpress.AdaKVPress(kvpress.SnapKVPress(drop, 64, 5), 0.2),
        "expected": lambda: kvpress.ExpectedAttentionPress(drop),
        "keydiff": lambda: kvpress.KeyDiffPress(drop),
        "tova": lambda: kvpress.TOVAPress(drop),
        "streaming": lambda: kvpress.StreamingLLMPress(drop, n_sink=4),
        "knorm": lambda: kvpress.KnormPress(drop),
        "kvzip": lambda: kvpress.KVzipPress(drop, n_sink=4),
    }[name]()


# ---- cells ----


def load(out, side, name, budget):
    path = os.path.join(out, f"{side}.{name}.{budget}.json")
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return json.load(file)


def save(out, side, name, budget, cell):
    path = os.path.join(out, f"{side}.{name}.{budget}.json")
    with open(path + ".new", "w") as file:
        json.dump(cell, file)
    os.replace(path + ".new", path)


def measure_ours(model, data, out, name, budget):
    path = os.path.join(out, f"ours.{name}.{budget}.json")
    if os.path.exists(path):
        return
    keep = []
    if name != "full":
        colon = "," if ":" in OURS[name] else ":"
        keep = ["--keep", f"{OURS[name]}{colon}budget={budget}%,rounds=prompt-end"]
    print(f"beside_kvpress.py: ours, {name} at {budget} %", file=sys.stderr)
    subprocess.run([PITH, "eval", "facts", "-m", model, "-f",
                    os.path.join(data, "text/wiki.test.raw"), "-n", LENGTH, "--texts", TEXTS,
                    "--chat", "--seed", SEED, "--text", "--no-paired", "-t", "1", *keep,
                    "--json", path + ".new"], check=True, stdout=subprocess.DEVNULL)
    os.replace(path + ".new", path)


# ---- their side ----


class Reading:
    """A text that was read: the cache, and what the attention of each layer was called with."""

    def __init__(self, model, ids):
        import torch
        from transformers import DynamicCache
        self.ids, self.cache, self.calls = ids, DynamicCache(), []
        self.zipped = None  # what cut_by_kvzip said
        hooks = [layer.self_attn.register_forward_hook(self.note, with_kwargs=True)
                 for layer in model.model.layers]
        start = time.process_time()
        model.model(input_ids=torch.tensor([ids]), past_key_values=self.cache)
        self.seconds = time.process_time() - start
        for hook in hooks:
            hook.remove()

    def note(self, module, _, kwargs, __):
        self.calls.append((module, kwargs))

    def copy(self):
        from transformers import DynamicCache
        cache = DynamicCache()
        for i, layer in enumerate(self.cache.layers):
            cache.update(layer.keys.clone(), layer.values.clone(), i)
        return cache

    def cut(self, model, press):
        """The cache that the press leaves, and the seconds that it took."""
        cache = self.copy()
        press.post_init_from_model(model)
        start = time.process_time()
        for module, kwargs in self.calls:
            module.masked_key_indices = None
            module.rotary_emb = model.model.rotary_emb
            press.forward_hook(module, [], {**kwargs, "past_key_values": cache}, (None, None))
        return cache, time.process_time() - start


def read_with(model, ids, press):
    """As kvpress' pipeline does it."""
    import torch
    from transformers import DynamicCache
    cache = DynamicCache()
    start = time.process_time()
    with press(model):
        model.model(input_ids=torch.tensor([ids]), past_key_values=cache)
    return cache, time.process_time() - start


def attend(module, query, key, value, attention_mask, dropout=0.0, scaling=None, own=None, **_):
    """Causal attention; the queries are the last entries, however many a layer holds.
    own [row][m] says which of the last m entries are of a row, and masked_key_indices
    of the layer (heads, entries) which ones a press took away without freeing them."""
    import torch
    n, held = query.shape[2], key.shape[2]
    taken = getattr(module, "masked_key_indices", None) if n < held else None
    mask = None
    if n < held:
        mask = torch.ones(1, 1, n, held, dtype=torch.bool).tril(held - n)
        if own is not None:
            mask = mask.repeat(query.shape[0], 1, 1, 1)
            mask[..., held - own.shape[1]:] &= own[:, None, None, :]
        if taken is not None:
            left = torch.ones(key.shape[1], held, dtype=torch.bool)
            left[taken[1], taken[2]] = False
            left = left.repeat_interleave(query.shape[1] // key.shape[1], 0)
            mask = mask & left[None, :, None, :]
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=n == held and n > 1, scale=scaling,
        enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


def open_model(path):
    import kvpress.presses.kvzip_press
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.utils import logging
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    logging.disable_progress_bar()
    ALL_ATTENTION_FUNCTIONS.register("facts", attend)
    folder, file = os.path.split(os.path.abspath(path))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32,
                                                 attn_implementation="facts")
    # KVzip loads a tokenizer by the model's name, which here is that of no repository; one that
    # is saved and loaded again cuts texts otherwise (transformers 5.2, SmolLM2).
    kvpress.presses.kvzip_press.AutoTokenizer = types.SimpleNamespace(
        from_pretrained=lambda _: tokenizer)
    return model.eval(), tokenizer


def check_tokens(tokenizer, data, model):
    """The tokens that are given to both are those that transformers would make."""
    with open(os.path.join(data, "text/wiki.test.raw")) as file:
        text = file.read(8000)
    ours = subprocess.run([PITH, "tokenize", "-m", model, "-f", "/dev/stdin", "--json"],
                          input=text, capture_output=True, text=True, check=True)
    same = json.loads(ours.stdout) == tokenizer.encode(text, add_special_tokens=False)
    print(f"beside_kvpress.py: tokens of {len(text)} characters are "
          f"{'the same' if same else 'not the same'} in both", file=sys.stderr)


class Asker:
    """Asks questions behind a cache, SIDE at once; the cache is as before afterwards."""

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        words = {"<|im_end|>", "<|endoftext|>", tokenizer.eos_token}
        self.ends = {tokenizer.convert_tokens_to_ids(w) for w in words} - {None}

    def logits(self, cache, ids, positions, own):
        """[row][token][vocabulary] behind ids [row][token]; own: attend's."""
        import torch
        return self.model(input_ids=torch.tensor(ids), past_key_values=cache,
                          position_ids=torch.tensor(positions), own=own).logits

    def ask(self, cache, rows):
        """[(found, log p of the right answer, answer)] of some questions of one reading.
        Questions end at the same place: the tokens before a shorter one are padding."""
        import torch
        read = rows[0]["tokens"]
        questions = [row["prompt_ids"][read:] for row in rows]
        longest, answer = max(map(len, questions)), max(len(row["answer_ids"]) for row in rows)
        blank = [longest - len(q) for q in questions]
        ids = [[0] * b + q + row["answer_ids"][:-1] + [0] * (answer - len(row["answer_ids"]))
               for b, q, row in zip(blank, questions, rows)]
        positions = [[read + max(0, i - b) for i in range(len(ids[0]))] for b in blank]
        own = torch.tensor([[i >= b for i in range(longest + N_PREDICT + answer)] for b in blank])
        many = wide(cache, len(rows))
        held = [layer.keys.shape[2] for layer in many.layers]
        logits = self.logits(many, ids, positions, own[:, :len(ids[0])])[:, longest - 1:]
        logprob = [float(sum(logits[r, k].log_softmax(-1)[i]
                             for k, i in enumerate(row["answer_ids"])))
                   for r, row in enumerate(rows)]
        said = [[int(i)] for i in logits[:, 0].argmax(-1)]
        for layer, n in zip(many.layers, held):
            layer.keys = layer.keys[:, :, :n + longest]
            layer.values = layer.values[:, :, :n + longest]
        for step in range(N_PREDICT - 1):
            if all(self.ended(words, row["wanted"]) for words, row in zip(said, rows)):
                break
            logits = self.logits(many, [words[-1:] for words in said],
                                 [[read + len(q) + step] for q in questions],
                                 own[:, :longest + step + 1])
            for words, best in zip(said, logits[:, -1].argmax(-1)):
                words.append(int(best))
        texts = [self.text(words, row["wanted"]) for words, row in zip(said, rows)]
        return [(row["wanted"].lower() in text.lower(), p, text)
                for row, p, text in zip(rows, logprob, texts)]

    def decode(self, ids):
        return self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    def ended(self, said, wanted):
        return bool(self.ends & set(said)) or wanted.lower() in self.decode(said).lower()

    def text(self, said, wanted):
        """What was said up to its end, or to where it was right."""
        for n in range(1, len(said) + 1):
            if said[n - 1] in self.ends:
                return self.decode(said[:n - 1])
            if wanted.lower() in self.decode(said[:n]).lower():
                return self.decode(said[:n])
        return self.decode(said)


def wide(cache, n):
    """The cache for n rows; what it holds is shared until more is written behind it."""
    from transformers import DynamicCache
    out = DynamicCache()
    for i, layer in enumerate(cache.layers):
        out.update(layer.keys.expand(n, -1, -1, -1), layer.values.expand(n, -1, -1, -1), i)
    return out


def held_mean(model, cache):
    """Entries of a lane that attention still sees, masked ones not counted."""
    heads = model.config.num_key_value_heads
    n = 0
    for layer, block in zip(cache.layers, model.model.layers):
        masked = getattr(block.self_attn, "masked_key_indices", None)
        n += heads * layer.keys.shape[2] - (len(masked[1]) if masked is not None else 0)
    return n / heads / len(cache.layers)


def differ(a, b):
    return max(float((x.keys - y.keys).abs().max()) if x.keys.shape == y.keys.shape else math.inf
               for x, y in zip(a.layers, b.layers))


def cut_by_kvzip(model, ids, budgets):
    """{budget: what its press leaves of the reading}, from one repetition of the text."""
    press, masks = press_of("kvzip", float(budgets[0])), {}
    cut, blocks = press.compress_post, model.model.layers

    def cut_all(of):
        for budget in budgets:
            press.compression_ratio = 1.0 - float(budget) / 100.0
            cut(of)
            masks[budget] = [block.self_attn.masked_key_indices for block in blocks]

    press.compress_post = cut_all
    cache, seconds = read_with(model, ids, press)
    return cache, masks, seconds


def set_masks(model, masks):
    for block, mask in zip(model.model.layers, masks or [None] * len(model.model.layers)):
        block.self_attn.masked_key_indices = mask


class Theirs:
    """Cells of one model, text by text."""

    def __init__(self, path, data):
        self.model, tokenizer = open_model(path)
        check_tokens(tokenizer, data, path)
        self.asker = Asker(self.model, tokenizer)
        self.checked = False

    def cut(self, reading, name, budget):
        """(the cache that the press leaves, seconds)."""
        if name == "full":
            set_masks(self.model, None)
            return reading.copy(), 0.0
        if name == "kvzip":
            if reading.zipped is None:
                reading.zipped = cut_by_kvzip(self.model, reading.ids, BUDGETS)
            cache, masks, seconds = reading.zipped
            set_masks(self.model, masks[budget])
            return cache, seconds - reading.seconds
        cache, seconds = reading.cut(self.model, press_of(name, float(budget)))
        if not self.checked and name != "adakv":
            whole, _ = read_with(self.model, reading.ids, press_of(name, float(budget)))
            print(f"beside_kvpress.py: {name} with the model reading again: keys differ by "
                  f"{differ(cache, whole)}", file=sys.stderr)
            self.checked = True
        return cache, seconds

    def measure(self, reading, rows, name, budget, cell):
        cache, seconds = self.cut(reading, name, budget)
        cell["held"].append(held_mean(self.model, cache) / len(reading.ids))
        cell["bytes"].append(sum(layer.keys.nbytes + layer.values.nbytes
                                 for layer in cache.layers))
        cell["read_s"].append(reading.seconds)
        cell["cut_s"].append(seconds)
        answers = []
        for i in range(0, len(rows), SIDE):
            answers += self.asker.ask(cache, rows[i:i + SIDE])
        for row, (found, logprob, said) in zip(rows, answers):
            cell["rows"].append({"text": row["text"], "depth": row["depth"], "fact": row["fact"],
                                 "found": int(found), "answer_logprob": logprob, "said": said})


def measure_theirs(path, data, out, texts):
    keys = [("full", "100")] + [(p, b) for b in BUDGETS for p in POLICIES]
    theirs = None
    for number, rows in texts.items():
        reading = None
        for name, budget in keys:
            cell = load(out, "theirs", name, budget) or {
                "rows": [], "read_s": [], "cut_s": [], "held": [], "bytes": []}
            if any(row["text"] == number for row in cell["rows"]):
                continue
            theirs = theirs or Theirs(path, data)
            if reading is None:
                reading = Reading(theirs.model, rows[0]["prompt_ids"][:rows[0]["tokens"]])
            print(f"beside_kvpress.py: theirs, text {number}, {name} at {budget} %", file=sys.stderr)
            theirs.measure(reading, rows, name, budget, cell)
            save(out, "theirs", name, budget, cell)


# ---- the same entries ----


def kept_of_ours(model, data, name, budget):
    """[lane] of sets: the positions that pith leaves of N_SAME tokens of plain text."""
    colon = "," if ":" in OURS[name] else ":"
    run = subprocess.run([PITH, "eval", "kept", "-m", model, "-f",
                          os.path.join(data, "text/wiki.test.raw"), "-n", str(N_SAME), "--every",
                          str(N_SAME), "-t", "1", "--keep",
                          f"{OURS[name]}{colon}budget={budget}%,rounds=prompt-end", "--json", "-"],
                         check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    lanes = []
    for row in json.loads(run.stdout)["rows"]:
        ends = [part.split("-") for part in row["kept"].split(",")]
        lanes.append({i for e in ends for i in range(int(e[0]), int(e[-1]) + 1)})
    return lanes


def kept_of_theirs(model, reading, cache):
    """The same of a press, by its masks or by looking for the keys that it left."""
    lanes = []
    for whole, layer, block in zip(reading.cache.layers, cache.layers, model.model.layers):
        taken = getattr(block.self_attn, "masked_key_indices", None)
        for head in range(whole.keys.shape[1]):
            where = {key.numpy().tobytes(): i for i, key in enumerate(whole.keys[0, head])}
            kept = {where[key.numpy().tobytes()] for key in layer.keys[0, head]}
            if taken is not None:
                kept -= {int(i) for i in taken[2][taken[1] == head]}
            lanes.append(kept)
    return lanes


def measure_same(path, data, out):
    keys = [(p, b) for b in BUDGETS for p in POLICIES if load(out, "same", p, b) is None]
    if not keys:
        return
    theirs = Theirs(path, data)
    with open(os.path.join(data, "text/wiki.test.raw")) as file:
        ids = theirs.asker.tokenizer.encode(file.read(16 * N_SAME), add_special_tokens=False)
    reading = Reading(theirs.model, ids[:N_SAME])
    for name, budget in keys:
        cache, _ = theirs.cut(reading, name, budget)
        print(f"beside_kvpress.py: same, {name} at {budget} %", file=sys.stderr)
        a, b = kept_of_theirs(theirs.model, reading, cache), kept_of_ours(path, data, name, budget)
        save(out, "same", name, budget, {
            "shared": sum(len(x & y) for x, y in zip(a, b)), "theirs": sum(map(len, a)),
            "ours": sum(map(len, b)), "lanes": [[len(x & y), len(x), len(y)]
                                                for x, y in zip(a, b)]})


# ---- the table ----


def by_fact(cell):
    return {(row["text"], row["depth"]): row for row in cell["rows"]}


def mean(numbers):
    return sum(numbers) / len(numbers)


def show(value, error, sign=""):
    return f"{100 * value:{sign}.0f} +- {100 * error:.0f}"


def share_of(cell, full, keys):
    """Over some facts: found of those that full finds, its error, nats of log p lost per answer."""
    groups, mine, whole = defaultdict(list), by_fact(cell), by_fact(full)
    for key in keys:
        groups[key[0]].append((mine[key]["found"] * whole[key]["found"], whole[key]["found"]))
    lost = [whole[key]["answer_logprob"] - mine[key]["answer_logprob"] for key in keys]
    return (*ratio(groups), mean(lost))


def difference(ours, our_full, theirs, their_full, keys):
    """Ours less theirs over the facts that both full caches find."""
    groups = defaultdict(list)
    a, b, x, y = by_fact(ours), by_fact(theirs), by_fact(our_full), by_fact(their_full)
    for key in keys:
        both = x[key]["found"] * y[key]["found"]
        groups[key[0]].append(((a[key]["found"] - b[key]["found"]) * both, both))
    return ratio(groups)


def print_full(full):
    x, y = by_fact(full["ours"]), by_fact(full["theirs"])
    keys = x.keys() & y.keys()
    apart = [abs(x[k]["answer_logprob"] - y[k]["answer_logprob"]) for k in keys]
    print(f"\nThe full caches: of {len(keys)} kvpress finds {sum(y[k]['found'] for k in keys)}, "
          f"pith {sum(x[k]['found'] for k in keys)}, both "
          f"{sum(x[k]['found'] * y[k]['found'] for k in keys)}; the same words "
          f"{sum(x[k]['said'] == y[k]['said'] for k in keys)}; log p of the right answers differs "
          f"by {mean(apart):.2f} in the mean.\n")


def facts_cells(ours, theirs, full):
    """What the table says of the texts that all four have."""
    keys = sorted(set.intersection(*(set(by_fact(cell))
                                     for cell in (ours, theirs, *full.values()))))
    a, a_se, a_lost = share_of(ours, full["ours"], keys)
    b, b_se, b_lost = share_of(theirs, full["theirs"], keys)
    d, d_se = difference(ours, full["ours"], theirs, full["theirs"], keys)
    return [len({key[0] for key in keys}), show(b, b_se), show(a, a_se), show(d, d_se, "+"),
            f"{b_lost:.2f}", f"{a_lost:.2f}", f"{max(theirs['bytes']) / 2 ** 21:.1f}",
            f"{ours['summary']['kv_held_bytes'] / 2 ** 20:.1f}"]


def print_table(out):
    full = {side: load(out, side, "full", "100") for side in ("ours", "theirs")}
    if None not in full.values():
        print_full(full)
    print("| policy | at | texts | found: kvpress | pith | pith - kvpress | nats lost: kvpress "
          "| pith | MiB left: kvpress | pith | same entries |")
    print("|---" * 11 + "|")
    for budget in ("75", "50", "25", "10"):
        for name in OURS:
            cells = [load(out, side, name, budget) for side in ("ours", "theirs")]
            same = load(out, "same", name, budget)
            facts = [""] * 8
            if None not in cells + list(full.values()):
                facts = facts_cells(*cells, full)
            shared = f"{100 * same['shared'] / same['theirs']:.0f}" if same else ""
            if same or any(facts):
                print("| " + " | ".join(map(str, [name, f"{budget} %", *facts, shared])) + " |")


def main():
    if len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        return print_table(sys.argv[1])
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    model, data, out = sys.argv[1:]
    unknown = [name for name in POLICIES if name not in OURS]
    if unknown:
        sys.exit(f"beside_kvpress.py: POLICIES: there is no \"{unknown[0]}\", only {', '.join(OURS)}")
    os.makedirs(out, exist_ok=True)
    measure_ours(model, data, out, "full", "100")
    texts = defaultdict(list)
    for row in load(out, "ours", "full", "100")["rows"]:
        texts[row["text"]].append(row)
    for budget in BUDGETS if "ours" in PARTS else []:
        for name in POLICIES:
            measure_ours(model, data, out, name, budget)
    if "theirs" in PARTS:
        measure_theirs(model, data, out, texts)
    if "same" in PARTS:
        measure_same(model, data, out)
    print_table(out)


if __name__ == "__main__":
    main()
