#!/usr/bin/env python3
"""Writes tests/golden/pre.txt: a text cut into words by every pre-tokenizer that Pith knows.

    python3 scripts/golden/pre.py > tests/golden/pre.txt      (needs the package "regex")

The patterns are those that the tokenizers' authors publish in tokenizer.json, run by another
engine than the library's. A list of patterns cuts one after the other, each the pieces that the
ones before it left.

Format of the output: "text |...|" once, then "pre NAME" and one line "w |WORD|" per word. Backslash
and line end are written \\\\ and \\n, carriage return \\r, tabulator \\t.
"""
import regex

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
QWEN2 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
QWEN35 = (CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          + TAIL)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = (f"{LEAD}{UPPER}*{LOWER}+|{LEAD}{UPPER}+{LOWER}*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)
GPT4O = (f"{LEAD}{UPPER}*{LOWER}+{CONTRACTION}?|{LEAD}{UPPER}+{LOWER}*{CONTRACTION}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)
HAN_UPPER, HAN_LOWER = (c.replace("[", r"[[") + r"--\p{Script=Han}]" for c in (UPPER, LOWER))
KIMI = (r"[\p{Script=Han}]+" f"|{LEAD}{HAN_UPPER}*{HAN_LOWER}+{CONTRACTION}?"
        f"|{LEAD}{HAN_UPPER}+{HAN_LOWER}*{CONTRACTION}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL)
SEED_CODER = (CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
              + TAIL)
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    "\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-"
    "\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
    "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"
    "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183"
    "\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-"
    "\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")
DEEPSEEK_LLM = [r"[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+",
                r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+\Z", CJK,
                r"\p{N}+"]
DEEPSEEK_CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"]
DEEPSEEK3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
             r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + TAIL]
DIGITS3 = "[0-9][0-9][0-9]"

PRE = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", DIGITS3],
    "gpt-2": [GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "qwen35": [QWEN35],
    "deepseek-llm": DEEPSEEK_LLM,
    "deepseek-coder": DEEPSEEK_CODER,
    "deepseek-r1-qwen": [QWEN2],
    "deepseek-v3": DEEPSEEK3,
    "gpt-4o": [GPT4O],
    "smollm": [r"\p{N}", GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "refact": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, DIGITS3],
    "mpt": [GPT2],
    "tekken": [TEKKEN],
    "kimi-k2": [KIMI],
    "seed-coder": [SEED_CODER],
}

TEXT = (
    "Hello, World! It's 12345 o'clock; WE'LL see you'RE HelloWORLDagain éCOLE École ÉCOLE\n"
    "\n  indented\tcode(x) == {y: 3.14159};  // trailing   \r\n\r\n\r\n"
    "naïve caf\u0301e \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947 "
    "你好，世界。１２３ ひらがな カタカナ 한국어 \u3000\u3000全角　空白\u3000。 "
    "1,000.50€ $5+3=8 <a|b>^~`c` ½ Ⅷ ²³ 😀👍🏽 a\u200bb x\u00a0y \u2028z \u2003 w "
    "'S 'Tis don't 'd don’t path/to/file.txt#!?/\n/ \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac "
    "Привет ЁЖ ǅ ªº ʰ 中文English混合's 々〇〡a ⺀b 𠀀x   end  \t ")


def cut(pieces, pattern):
    out, compiled = [], regex.compile(pattern, regex.V1)
    for piece in pieces:
        done = 0
        for match in compiled.finditer(piece):
            if match.start() > done:
                out.append(piece[done:match.start()])
            out.append(match.group())
            done = match.end()
        if done < len(piece):
            out.append(piece[done:])
    return out


def escape(text):
    for char, name in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(char, name)
    return text


def main():
    print(f"text |{escape(TEXT)}|")
    for name, patterns in PRE.items():
        words = [TEXT]
        for pattern in patterns:
            words = cut(words, pattern)
        assert "".join(words) == TEXT
        print(f"pre {name}")
        for word in words:
            print(f"w |{escape(word)}|")


if __name__ == "__main__":
    main()
