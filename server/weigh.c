/*
 * weigh.c - a walk over bytes that knows of JSON only what strings are and where values begin.
 *
 * Invariant: bytes is at least the memory that serve/json.h and Jansson 2.14 allocate for the
 * values on a 64-bit glibc. For each kind it is at most about twice that
 * (tests/serve/test_weigh.c). Text that is no JSON weighs something, too.
 */
#include "weigh.h"

enum {
    WEIGHT_SLOT = 24, /* a place in an array, which grows by doubling and copies */
    WEIGHT_WORD = 32, /* a number; true and its like take less */
    /* Its text, its place in a table, and a copy of the body's, where the text is kept. That is so
       for fractions, and for more digits than 64 bits hold. */
    WEIGHT_DIGITS = 208,
    WEIGHT_TABLE = 512, /* of their texts */
    WEIGHT_TEXT = 112,  /* a string, or a key with its place in a table; and its bytes */
    WEIGHT_ARRAY = 160, /* with eight places */
    WEIGHT_OBJECT = 288,
    DIGITS_MAX = 19,
    LONG_COPIES = 4, /* of each digit behind them */
    TEXT_COPIES = 2, /* more of the longest string, which grows by doubling while it is read */
};

/* A byte outside of strings. */
static void weigh_byte(struct body_weight *w, char c)
{
    bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                c == '-' || c == '+' || c == '.';
    if (c == '"') {
        w->in_text = true;
        w->text = 0;
    }
    w->bytes += c == ','              ? WEIGHT_SLOT
                : c == '['            ? WEIGHT_ARRAY
                : c == '{'            ? WEIGHT_OBJECT
                : c == '"'            ? WEIGHT_TEXT
                : word && !w->in_word ? WEIGHT_WORD
                                      : 0;
    w->word = word ? w->word + 1 : 0;
    if (w->word == 1) {
        w->number = c == '-' || (c >= '0' && c <= '9');
        w->kept = false;
    }
    if (w->word > 0 && w->number) {
        bool kept = w->kept || c == '.' || c == 'e' || c == 'E' || w->word == DIGITS_MAX;
        w->bytes += kept && !w->kept ? WEIGHT_DIGITS : w->word > DIGITS_MAX ? LONG_COPIES : 0;
        w->kept = kept;
        w->any_kept = w->any_kept || kept;
    }
    w->in_word = word;
}

void body_weigh(struct body_weight *w, const char *data, size_t len)
{
    w->len += (int64_t)len;
    for (size_t i = 0; i < len; i++) {
        if (!w->in_text) {
            weigh_byte(w, data[i]);
            continue;
        }
        if (!w->escaped && data[i] == '"') {
            w->in_text = false;
            w->bytes += w->text;
            w->letter = w->text > w->letter ? w->text : w->letter;
        }
        w->escaped = !w->escaped && data[i] == '\\';
        w->text++;
    }
}

int64_t body_weight_most(const struct body_weight *w)
{
    int64_t open = w->in_text ? w->text : 0;
    int64_t copy = w->any_kept ? w->len + WEIGHT_TABLE : 0; /* in which such numbers are marked */
    return w->bytes + open + copy + TEXT_COPIES * (open > w->letter ? open : w->letter);
}
