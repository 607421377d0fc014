"""Prints eval/words.c: the word lists of language.py as C, so that `pith eval` writes its texts
in the words that the models of this repository were trained on.

    python3 scripts/train/words_c.py > eval/words.c
"""

import language

LISTS = (
    ("names", language.NAMES),
    ("adjectives", language.ADJECTIVES),
    ("things", language.THINGS),
    ("places", language.PLACES),
    ("roles", language.ROLES),
    ("onsets", language.ONSETS),
    ("vowels", language.VOWELS),
    ("codas", language.CODAS),
)
WIDTH = 100

HEAD = """\
/*
 * words.c - the word lists of the small English that the models of this repository are trained on.
 * Written by scripts/train/words_c.py from scripts/train/language.py; not edited by hand.
 */
#include "words.h"
"""


def table(name, words):
    """One list: its strings, filled to the width of a line, and the pair that words.h declares."""
    lines, line = [], "   "
    for word in words:
        item = f' "{word}",'
        if len(line) + len(item) > WIDTH:
            lines.append(line)
            line = "   "
        line += item
    body = "\n".join(lines + [line])
    return (
        f"\nstatic const char *const {name}[] = {{\n{body}\n}};\n"
        f"const struct eval_word_list eval_{name} = {{{name}, {len(words)}}};\n"
    )


if __name__ == "__main__":
    print("/* clang-format off */\n" + HEAD + "".join(table(n, w) for n, w in LISTS), end="")
