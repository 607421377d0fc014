/*
 * grammar_number.c - numbers between two bounds as expressions. Bounds are decimals, not doubles.
 * Digits are compared with the bounds' digits from the left. As long as the digits so far are a
 * bound's, the bound counts ("tight").
 *
 * Invariant: a number has at most 16 digits in front of the point. Its digits behind it are few
 * enough that two different numbers are different doubles, too. So a number above a bound stays
 * above it for a reader.
 */
#include "text/grammar/grammar_schema.h"

#define WHOLE_MAX 18  /* digits of integers: all of them fit in 64 bits */
#define DIGITS_MAX 15 /* of a number with a fraction, all together */
#define UNTIED_MAX 16

/* A decimal without sign: digits in front of the point, without leading zeros but for "0", and
   digits behind it, without trailing ones. */
struct decimal {
    char whole[48], part[48];
};

struct bounds {
    struct grammar_tree *t;
    struct decimal lo, hi;
    bool has_hi, above, below, integer;
    size_t n_whole; /* digits in front of the point now */
    size_t n_part;  /* most behind it */
};

static void read_decimal(const char *text, struct decimal *out)
{
    size_t n = 0;
    memset(out, 0, sizeof(*out));
    while (*text == '0' && text[1] >= '0' && text[1] <= '9')
        text++;
    while (*text >= '0' && *text <= '9' && n < sizeof(out->whole) - 1)
        out->whole[n++] = *text++;
    if (n == 0)
        out->whole[0] = '0';
    n = 0;
    if (*text == '.')
        for (text++; *text >= '0' && *text <= '9' && n < sizeof(out->part) - 1; text++)
            out->part[n++] = *text;
    while (n > 0 && out->part[n - 1] == '0')
        out->part[--n] = '\0';
}

static grammar_expr *digit(struct grammar_tree *t, int lo, int hi)
{
    const struct grammar_range range = {(uint32_t)('0' + lo), (uint32_t)('0' + hi)};
    return lo <= hi ? grammar_chars(t, &range, 1, false) : grammar_never(t);
}

static int digit_of(const char *digits, size_t i, size_t len)
{
    return i < len ? digits[i] - '0' : 0;
}

/* ---- behind the point ---- */

/* The digits that may follow i digits behind the point; tight where these are a bound's so far. */
static grammar_expr *fraction(struct bounds *b, size_t i, bool lo, bool hi)
{
    struct grammar_tree *t = b->t;
    size_t n_lo = strlen(b->lo.part), n_hi = strlen(b->hi.part);
    struct grammar_parts list = {0};
    lo = lo && (i < n_lo || b->above); /* else it holds, whatever follows */
    if (!lo && !hi) {
        int32_t min = i == 0 ? 1 : 0, max = (int32_t)b->n_part - (int32_t)i;
        return max < min ? grammar_never(t) : grammar_repeat(t, digit(t, 0, 9), min, max);
    }
    /* Ending here is a number with zeros behind it. */
    bool below_lo = lo && (i < n_lo || b->above);
    bool above_hi = hi && i >= n_hi && b->below;
    if (i > 0 && !below_lo && !above_hi)
        grammar_add(t, &list, grammar_empty(t));
    if (i < b->n_part && jinja_enter(&b->t->heap)) {
        int dl = lo ? digit_of(b->lo.part, i, n_lo) : 0;
        int dh = hi ? digit_of(b->hi.part, i, n_hi) : 9;
        for (int d = dl; d <= dh; d++) {
            bool l = lo && d == dl, h = hi && d == dh;
            int same = d; /* digits that are tight on neither side go together */
            while (!l && !h && same < dh && !(hi && same + 1 == dh))
                same++;
            grammar_expr *rest = fraction(b, i + 1, l, h);
            grammar_add(t, &list, grammar_seq2(t, digit(t, d, same), rest));
            d = same;
        }
        jinja_leave(&b->t->heap);
    }
    return grammar_alt(t, &list);
}

/* Behind the last digit in front of the point. */
static grammar_expr *behind_whole(struct bounds *b, bool lo, bool hi)
{
    struct grammar_tree *t = b->t;
    bool lo_part = b->lo.part[0] != '\0', hi_part = b->hi.part[0] != '\0';
    bool stop = !(lo && (lo_part || b->above)) && !(hi && !hi_part && b->below);
    grammar_expr *end = stop ? grammar_empty(t) : grammar_never(t);
    if (b->integer || b->n_part == 0)
        return end;
    return grammar_alt2(t, end, grammar_seq2(t, grammar_text(t, "."), fraction(b, 0, lo, hi)));
}

/* ---- in front of it ---- */

/* The digits that may follow i of n_whole digits. */
static grammar_expr *whole(struct bounds *b, size_t i, bool lo, bool hi)
{
    struct grammar_tree *t = b->t;
    struct grammar_parts list = {0};
    if (i == b->n_whole)
        return behind_whole(b, lo, hi);
    if (!lo && !hi) {
        int32_t n = (int32_t)(b->n_whole - i);
        return grammar_seq2(t, grammar_repeat(t, digit(t, 0, 9), n, n),
                            behind_whole(b, false, false));
    }
    int dl = lo ? b->lo.whole[i] - '0' : 0, dh = hi ? b->hi.whole[i] - '0' : 9;
    if (i == 0 && b->n_whole > 1 && dl == 0)
        dl = 1;
    for (int d = dl; d <= dh; d++) {
        bool l = lo && d == b->lo.whole[i] - '0', h = hi && d == dh;
        int same = d;
        while (!l && !h && same < dh && !(hi && same + 1 == dh))
            same++;
        grammar_add(t, &list, grammar_seq2(t, digit(t, d, same), whole(b, i + 1, l, h)));
        d = same;
    }
    return grammar_alt(t, &list);
}

/* Numbers of n_whole digits without tight bounds. */
static grammar_expr *free_whole(struct bounds *b)
{
    struct grammar_tree *t = b->t;
    int32_t n = (int32_t)b->n_whole - 1;
    return grammar_seq3(t, digit(t, n > 0 ? 1 : 0, 9), grammar_repeat(t, digit(t, 0, 9), n, n),
                        behind_whole(b, false, false));
}

/* Not negative, between lo and hi. */
static grammar_expr *positive(struct bounds *b)
{
    size_t n_lo = strlen(b->lo.whole), n_hi = b->has_hi ? strlen(b->hi.whole) : 0;
    size_t most = b->integer ? WHOLE_MAX : UNTIED_MAX;
    struct grammar_parts list = {0};
    if (!b->has_hi)
        n_hi = n_lo > most ? n_lo : most;
    for (size_t n = n_lo; n <= n_hi && !jinja_failed(&b->t->heap); n++) {
        b->n_whole = n;
        b->n_part = b->integer || n >= DIGITS_MAX ? 0 : DIGITS_MAX - n;
        bool lo = n == n_lo, hi = b->has_hi && n == n_hi;
        grammar_add(b->t, &list, lo || hi ? whole(b, 0, lo, hi) : free_whole(b));
    }
    return grammar_alt(b->t, &list);
}

static bool is_zero(const char *text)
{
    for (text += *text == '-'; *text != '\0'; text++)
        if (*text != '0' && *text != '.')
            return false;
    return true;
}

static bool is_negative(const char *text)
{
    return text[0] == '-' && !is_zero(text);
}

/* The part of the range that is at or above 0, or with mirrored the negative part without sign. */
static grammar_expr *half(struct grammar_tree *t, const struct schema_range *r, bool integer,
                          bool mirrored)
{
    const char *lo = mirrored ? (r->has_max ? r->max : NULL) : (r->has_min ? r->min : NULL);
    const char *hi = mirrored ? (r->has_min ? r->min : NULL) : (r->has_max ? r->max : NULL);
    bool above = mirrored ? r->below : r->above, below = mirrored ? r->above : r->below;
    struct bounds b = {.t = t, .integer = integer, .below = below};
    if (mirrored ? lo != NULL && !is_negative(lo) : lo != NULL && is_negative(lo))
        lo = NULL; /* the bound is in the other half */
    if (hi != NULL && (mirrored ? !is_negative(hi) : is_negative(hi)))
        return grammar_never(t);
    b.above = lo != NULL ? above : mirrored; /* minus zero is not written */
    read_decimal(lo != NULL ? lo + (*lo == '-') : "0", &b.lo);
    b.has_hi = hi != NULL;
    if (hi != NULL)
        read_decimal(hi + (*hi == '-'), &b.hi);
    size_t n_lo = strlen(b.lo.whole), n_hi = strlen(b.hi.whole);
    if (b.has_hi && (n_hi < n_lo || (n_hi == n_lo && strcmp(b.hi.whole, b.lo.whole) < 0)))
        return grammar_never(t);
    return positive(&b);
}

grammar_expr *schema_range(struct grammar_tree *t, const struct schema_range *r, bool integer)
{
    grammar_expr *negative = half(t, r, integer, true);
    return grammar_alt2(t, half(t, r, integer, false),
                        grammar_seq2(t, grammar_text(t, "-"), negative));
}
