#!/usr/bin/env python3
"""Writes src/text/vocab/nfc_table.h, the tables for composing a text (Unicode's form NFC).

    python3 scripts/nfc.py > src/text/vocab/nfc_table.h

The source is Python's unicodedata. Characters that later versions of Unicode add are left as they
are. Earlier characters never change (Unicode's stability policy).
"""
import sys
import unicodedata

END = 0x30000  # nothing at or above this decomposes, composes or has a class
BLOCK = 128
CHANGES = 255  # a starter that is another one composed, or may join the character before it


def pairs():
    """Each canonical decomposition as it is listed: one character or two."""
    found = {}
    for c in range(sys.maxunicode + 1):
        text = unicodedata.decomposition(chr(c))
        if text and not text.startswith("<"):
            found[c] = [int(x, 16) for x in text.split()]
    return found


def main():
    listed = pairs()
    composed = {}
    for c, parts in listed.items():
        if len(parts) == 2 and unicodedata.normalize("NFC", chr(c)) == chr(c):
            composed[tuple(parts)] = c
    joins = {second for _, second in composed}
    joins.update(range(0x1161, 0x1176), range(0x11A8, 0x11C3))  # vowels and tails of Hangul
    classes = []
    for c in range(END):
        ccc = unicodedata.combining(chr(c))
        other = unicodedata.normalize("NFC", chr(c)) != chr(c)
        classes.append(ccc or (CHANGES if other or c in joins else 0))
    for c in range(END, sys.maxunicode + 1):
        assert not unicodedata.combining(chr(c)) and c not in listed and c not in joins
    assert all(c < END for c in listed) and CHANGES not in map(unicodedata.combining,
                                                               map(chr, range(END)))
    blocks, index = [], []
    for at in range(0, END, BLOCK):
        block = tuple(classes[at:at + BLOCK])
        if block not in blocks:
            blocks.append(block)
        index.append(blocks.index(block))
    assert len(blocks) < 256
    write(blocks, index, listed, composed)


def rows(items, per_row):
    for i in range(0, len(items), per_row):
        print("    " + " ".join(f"{x}," for x in items[i:i + per_row]))


def write(blocks, index, listed, composed):
    print("/*\n * nfc_table.h - made by scripts/nfc.py from Unicode " + unicodedata.unidata_version
          + "; for nfc.c alone.\n */")
    print("#ifndef PI_NFC_TABLE_H\n#define PI_NFC_TABLE_H\n\n#include <stdint.h>\n")
    print("/* clang-format off */\n")
    print(f"#define NFC_END {END:#x} /* characters at and above it never change */")
    print(f"#define NFC_BLOCK {BLOCK}\n")
    print("/* [NFC_END / NFC_BLOCK] the row of nfc_class of a block of characters */")
    print("static const uint8_t nfc_block[] = {")
    rows(index, 20)
    print("};\n")
    print("/* The combining class; 255: a starter that is another one composed,\n   or joins the one before it */")
    print(f"static const uint8_t nfc_class[][NFC_BLOCK] = {{")
    for block in blocks:
        print("    {")
        rows(block, 20)
        print("    },")
    print("};\n")
    print("/* Canonical decompositions by character; second 0: of one. Hangul is computed. */")
    print("static const struct nfc_parts {\n    uint32_t whole, first, second;\n} nfc_parts[] = {")
    rows([f"{{{c:#x}, {p[0]:#x}, {p[1] if len(p) > 1 else 0:#x}}}" for c, p in
          sorted(listed.items())], 3)
    print("};\n")
    print("/* The pairs that compose, by first and second */")
    print("static const struct nfc_parts nfc_pairs[] = {")
    rows([f"{{{c:#x}, {a:#x}, {b:#x}}}" for (a, b), c in sorted(composed.items())], 3)
    print("};\n\n/* clang-format on */\n\n#endif")


if __name__ == "__main__":
    main()
