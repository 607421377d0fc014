"""Checks grammars of JSON schemas against jsonschema and llguidance (both from PyPI, MIT).

    python3 scripts/golden/grammar.py GRAMMAR_WALK MODEL [SCHEMAS] [SEED]

Makes SCHEMAS schemas of the kinds that JSONSchemaBench collects (function calls, configurations,
nested records, recursive types, combinations), lets grammar_walk choose random tokens under each
schema's masks, and validates every text with jsonschema, formats included. Then it compares masks
with llguidance's behind random beginnings of these texts, where both mean the same: compact JSON,
closed objects. Exits with 0 (all is well), 1, or 77 where a package is missing.
"""
import json
import random
import subprocess
import sys

try:
    import jsonschema
    import llguidance
except ImportError as e:
    print(f"skipped: {e}; to fetch it: pip install llguidance jsonschema")
    sys.exit(77)

WORDS = ["name", "id", "city", "count", "tags", "unit", "price", "email", "user", "kind", "value",
         "items", "active", "notes", "zip code", "größe", "a\"b", "x-y", "created_at", "nested"]
PATTERNS = ["^[a-z]+$", "^[A-Z]{2,3}-[0-9]{4}$", "^\\d{3}-\\d{2}$", "ab?c", "^(foo|bar)+$", "^.{2,5}$",
            "^[^,\"]*$", "^\\w+\\s\\w+$", "\\.json$", "^#[0-9a-fA-F]{6}$", "^$|^x"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "duration"]


def string(r):
    kind = r.randrange(6)
    if kind == 0:
        low = r.randrange(4)
        return {"type": "string", "minLength": low, "maxLength": low + r.randrange(30)}
    if kind == 1:
        return {"type": "string", "pattern": r.choice(PATTERNS)}
    if kind == 2:
        return {"type": "string", "format": r.choice(FORMATS)}
    if kind == 3:
        return {"enum": r.sample(WORDS, r.randrange(1, 5))}
    if kind == 4:
        return {"type": "string", "pattern": "^[a-z_]*$", "minLength": 2, "maxLength": 9}
    return {"type": "string"}


def number(r):
    s = {"type": r.choice(["integer", "number"])}
    scale = r.choice([1, 10, 1000, 123457, 0.5, 0.01])
    low = r.randrange(-100, 100) * scale
    if s["type"] == "integer":
        low = int(low)
    if r.random() < 0.5:
        s[r.choice(["minimum", "exclusiveMinimum"])] = low
    if r.random() < 0.5:
        width = r.randrange(1, 1000) * scale
        s[r.choice(["maximum", "exclusiveMaximum"])] = int(low + width) + 1 \
            if s["type"] == "integer" else low + width
    return s


def array(r, depth):
    s = {"type": "array"}
    if r.random() < 0.2:
        s["prefixItems"] = [schema(r, depth + 1) for _ in range(r.randrange(1, 4))]
        if r.random() < 0.6:
            s["items"] = r.choice([False, schema(r, depth + 1)])
    else:
        s["items"] = schema(r, depth + 1)
    if r.random() < 0.5:
        s["minItems"] = r.randrange(3)
    if r.random() < 0.6:
        s["maxItems"] = s.get("minItems", 0) + r.randrange(5)
    return s


def obj(r, depth):
    keys = r.sample(WORDS, r.randrange(0, 6))
    s = {"type": "object", "properties": {k: schema(r, depth + 1) for k in keys}}
    s["required"] = [k for k in keys if r.random() < 0.6]
    kind = r.randrange(8)
    if kind < 4:
        s["additionalProperties"] = False
    elif kind == 4:
        s["additionalProperties"] = schema(r, depth + 1)
    elif kind == 5:
        s["additionalProperties"] = True
    elif kind == 6 and not keys:
        return {"type": "object", "patternProperties": {"^x-[a-z]+$": schema(r, depth + 1)},
                "additionalProperties": False}
    if r.random() < 0.15 and not s["required"] and s.get("additionalProperties") is False and keys:
        s["minProperties"] = 1
    if r.random() < 0.1:
        s["required"].append("extra")
        s.pop("additionalProperties", None)
    return s


def combined(r, depth):
    kind = r.randrange(6)
    if kind == 0:
        return {"anyOf": [schema(r, depth + 1) for _ in range(r.randrange(1, 4))]}
    if kind == 1:
        return {"oneOf": [{"type": "null"}, string(r)]}
    if kind == 2:
        return {"allOf": [obj(r, depth), {"type": "object", "required": ["id"],
                                          "properties": {"id": number(r)}}]}
    if kind == 3:
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, k: string(r)},
                           "required": ["kind"], "additionalProperties": r.random() < 0.5}
                          for k in ("circle", "square")]}
    if kind == 4:
        return {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 40}]}
    return {"const": r.choice([1, "x", None, True, [1, "a"], {"a": 1, "b": [2.5]}])}


def schema(r, depth=0):
    x = r.random()
    if depth > 3 or x < 0.3:
        return r.choice([string, number])(r)
    if x < 0.4:
        return {"type": r.choice(["boolean", "null", ["string", "null"], ["integer", "boolean"]])}
    if x < 0.55:
        return array(r, depth)
    if x < 0.7:
        return combined(r, depth)
    return obj(r, depth)


def recursive(r):
    return {"$defs": {"node": {"type": "object",
                               "properties": {"value": schema(r, 3), "next": {"anyOf": [
                                   {"$ref": "#/$defs/node"}, {"type": "null"}]},
                                   "children": {"type": "array", "maxItems": 2,
                                                "items": {"$ref": "#/$defs/node"}}},
                               "required": ["value"], "additionalProperties": False}},
            "$ref": "#/$defs/node"}


def make(r, i):
    return recursive(r) if i % 12 == 0 else obj(r, 0) if i % 3 == 0 else schema(r)


def run(tool, model, args, lines):
    p = subprocess.run([tool, model, *map(str, args)], input="\n".join(lines) + "\n", text=True,
                       capture_output=True, check=True)
    sys.stderr.write(p.stderr)
    return p.stdout.split("\n")[:-1]


def check_texts(tool, model, schemas, seed, n):
    """Texts of each schema (None: refused), and the number that jsonschema rejects."""
    lines = run(tool, model, ["walk", n, seed, 0], [json.dumps(s) for s in schemas])
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    texts, bad, refused, cut, at = [], 0, {}, 0, 0
    for s in schemas:
        if lines[at].startswith("no "):
            why = lines[at].split(": ", 2)[-1]
            refused[why] = refused.get(why, 0) + 1
            texts.append(None)
            at += 1
            continue
        v = jsonschema.Draft202012Validator(s, format_checker=checker)
        mine = []
        for line in lines[at:at + n]:
            kind, _, rest = line.partition(" ")
            if kind == "bad":
                print("stuck:", rest, json.dumps(s))
                bad += 1
                continue
            if kind == "cut":
                cut += 1
                continue
            text = bytes.fromhex(rest).decode("utf-8")
            error = None
            try:
                error = jsonschema.exceptions.best_match(v.iter_errors(json.loads(text)))
            except ValueError as e:
                error = e
            if error is not None:
                print("invalid:", json.dumps(s), "->", text, "->", str(error)[:200])
                bad += 1
            mine.append(text)
        texts.append(mine)
        at += n
    n_text = sum(len(t) for t in texts if t)
    print(f"{len(schemas)} schemas, {sum(t is None for t in texts)} refused, {n_text} texts, {cut} "
          f"cut off, {bad} bad")
    for why, count in sorted(refused.items(), key=lambda x: -x[1])[:12]:
        print(f"  refused {count}: {why}")
    return texts, bad


class Vocabulary:
    """What llguidance wants to know of a tokenizer."""

    def __init__(self, lines):
        self.tokens = []
        self.special_token_ids = []
        self.eos_token_id = next(i for i, l in enumerate(lines) if l == "end")
        self.bos_token_id = None
        for i, line in enumerate(lines):
            if line.startswith("token "):
                self.tokens.append(bytes.fromhex(line[6:]))
            else:
                self.tokens.append(b"\xff<|%d|>" % i)
                self.special_token_ids.append(i)
        self.ends = [i for i, l in enumerate(lines) if l == "end"]
        self.byte = {t: i for i, t in reversed(list(enumerate(self.tokens)))}

    def __call__(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        return [self.byte[bytes([b])] for b in data if bytes([b]) in self.byte]


def plain(r, depth=0):
    """Schemas that both read alike: closed objects, bounded counts, no free strings or numbers."""
    kind = r.randrange(7 if depth < 3 else 4)
    if kind == 0:
        return {"type": r.choice(["boolean", "null"])}
    if kind == 1:
        return {"enum": r.sample([w for w in WORDS if '"' not in w], r.randrange(1, 5))}
    if kind == 2:
        low = r.randrange(-300, 300)
        high = low + r.randrange(1, 2000)
        return {"type": "integer", "minimum": low, # "-0" is none here
                "maximum": min(high, -1) if low < 0 else high}
    if kind == 3:
        return {"type": "string", "pattern": r.choice(
            ["^[a-z]{1,5}$", "^[A-Z]{2,3}-[0-9]{4}$", "^(foo|bar)+$", "^[0-9a-f]{6}$", "^a*b$"])}
    if kind == 4:
        low = r.randrange(3)
        return {"type": "array", "items": plain(r, depth + 1), "minItems": low,
                "maxItems": low + r.randrange(4)}
    if kind == 5:
        return {"anyOf": [plain(r, depth + 1) for _ in range(2)]}
    keys = r.sample([w for w in WORDS if '"' not in w], r.randrange(1, 6))
    return {"type": "object", "properties": {k: plain(r, depth + 1) for k in keys},
            "required": [k for k in keys if r.random() < 0.5], "additionalProperties": False}


def check_masks(tool, model, seed, n):
    vocab = Vocabulary(run(tool, model, ["vocab", 0, 0, 0], [""]))
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocab),
                                       n_vocab=len(vocab.tokens))
    r = random.Random(seed)
    schemas = [plain(r) for _ in range(n)]
    walked = run(tool, model, ["walk", 2, seed, 1], [json.dumps(s) for s in schemas])
    lines, places, at = [], [], 0
    for s in schemas:
        if walked[at].startswith("no "):
            print("refused:", walked[at], json.dumps(s))
            at += 1
            continue
        for line in walked[at:at + 2]:
            data = bytes.fromhex(line.partition(" ")[2])
            for cut in {0, len(data), *(r.randrange(len(data) + 1) for _ in range(3))}:
                lines.append(f"{data[:cut].hex()} {json.dumps(s)}")
                places.append((s, data[:cut]))
        at += 2
    masks = run(tool, model, ["mask", 0, 0, 1], lines)
    differ = n_forced = 0
    for (s, data), line in zip(places, masks):
        if not line.startswith("mask"):
            print("no mask behind", data, "of", json.dumps(s), line)
            differ += 1
            continue
        words = [int(w, 16) for w in line.split()[1:]]
        mine = {i for i in range(len(vocab.tokens)) if words[i // 64] >> (i % 64) & 1}
        mine = {i for i in mine if i not in vocab.ends or i == vocab.eos_token_id}
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(s), {"whitespace_flexible": False, "item_separator": ",",
                            "key_separator": ":"})
        m = llguidance.LLMatcher(tokenizer, grammar)
        if not m.consume_tokens(vocab(data)) or m.get_error():
            print("llguidance does not take", data, json.dumps(s), m.get_error()[:200])
            differ += 1
            continue
        bits = m.compute_bitmask() if not m.is_stopped() else b""
        theirs = {i for i in range(len(vocab.tokens)) if bits and bits[i // 8] >> (i % 8) & 1} \
            if not m.is_stopped() else {vocab.eos_token_id}
        # Where only certain bytes can follow, llguidance allows one way to cut them into tokens.
        forced = m.compute_ff_bytes() if not m.is_stopped() else b""
        if forced:
            as_tokens = {i for i, t in enumerate(vocab.tokens) if forced.startswith(t)}
            beyond = {i for i in mine if vocab.tokens[i].startswith(forced)}
            same = theirs <= mine and as_tokens <= mine and mine <= as_tokens | beyond
        else:
            same = mine == theirs
        n_forced += bool(forced)
        if not same:
            differ += 1
            print("masks differ behind", data, "of", json.dumps(s), "only here",
                  [vocab.tokens[i] for i in sorted(mine - theirs)[:5]], "only there",
                  [vocab.tokens[i] for i in sorted(theirs - mine)[:5]])
    print(f"{len(places)} masks of {len(schemas)} schemas compared ({n_forced} where the next bytes "
          f"are certain), {differ} differ")
    return differ


def main():
    tool, model = sys.argv[1:3]
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 500
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    r = random.Random(seed)
    texts, bad = check_texts(tool, model, [make(r, i) for i in range(n)], seed, 4)
    bad += sum(t is None for t in texts) > n // 4 # most must be understood
    bad += check_masks(tool, model, seed, n // 2)
    return 1 if bad else 0


sys.exit(main())
