#!/usr/bin/env python3
"""Writes tests/golden/nfc.txt: texts and their composed form, by Python's unicodedata.

    python3 scripts/golden/nfc.py > tests/golden/nfc.txt      (with the Python of scripts/nfc.py)

Lines: "case HEX HEX" (UTF-8 of a text and of its form NFC) and "sum BEFORE BEHIND FNV": FNV-1a (64
bits) of the forms of BEFORE + c + BEHIND for every character c, in order. "-" is an empty text.
"""
import random
import sys
import unicodedata

CONTEXTS = [("", ""), ("a", "\u0301"), ("\u0327", "\u0323\u0301"), ("\u1100", "\u11a8"),
            ("\u0915", "\u093c"), ("\u09c7", "\u0345")]
TEXTS = ["", "plain", "e\u0301", "\u00e9\u0323", "a\u0323\u0307", "a\u0307\u0323", "\u212b", "\u2126",
         "\u1112\u1161\u11ab\u1100\u1173\u11af", "\uac00\u11a8", "\u0958", "\ufb2c", "\U0001d160",
         "\U0002f800", "\u0344", "\u1e9b\u0323", "\u0301a", "\u0b47\u0b3e\u0b56",
         "o\u0302\u0301\u1ed1 Vie\u0323\u0302t", "\u0374;\u037e", "\u0f71\u0f72\u0f74\u0f80\u0f71"]


def hexed(text):
    return text.encode().hex() or "-"


def main():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    for text in TEXTS:
        print("case", hexed(text), hexed(unicodedata.normalize("NFC", text)))
    rng = random.Random(41)
    chars = [chr(c) for c in range(0x30000) if not 0xD800 <= c < 0xE000
             and (unicodedata.combining(chr(c)) or unicodedata.decomposition(chr(c)))]
    plain = [chr(c) for c in list(range(0x20, 0x250)) + list(range(0x1100, 0x1200))
             + list(range(0x900, 0xE00)) + list(range(0xAC00, 0xAC40))]
    for i in range(600):
        n = rng.randrange(1, 12 if i < 590 else 90)
        text = "".join(rng.choice(chars if rng.random() < 0.6 else plain) for _ in range(n))
        print("case", hexed(text), hexed(unicodedata.normalize("NFC", text)))
    for before, behind in CONTEXTS:
        value = 0xCBF29CE484222325
        for c in range(sys.maxunicode + 1):
            if 0xD800 <= c < 0xE000:
                continue
            for byte in unicodedata.normalize("NFC", before + chr(c) + behind).encode():
                value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        print(f"sum {hexed(before)} {hexed(behind)} {value:016x}")


if __name__ == "__main__":
    main()
