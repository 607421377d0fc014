/*
 * text_rank.c - words and scores. The rules are longctx-svc 0.3.1's (words of [a-z0-9], BM25
 * brought to 0..1, cosine and words fused), but letters outside of ASCII count as letters here.
 * With them left out, most languages would have no words.
 */
#include "policy/recall/text_rank.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/utf8.h"

pith_status text_hits_add(struct text_hits *hits, struct text_hit hit, pith_error *err)
{
    if (hits->n == hits->cap) {
        int32_t cap = hits->cap > 0 ? 2 * hits->cap : 16;
        struct text_hit *grown = pi_mem_grow(PI_MEM_OTHER, hits->hit, (size_t)cap, sizeof(*grown));
        if (grown == NULL) {
            pi_mem_free(hit.text);
            return pi_fail(err, PITH_NOMEM, "no memory for a list of %d spans", cap);
        }
        hits->hit = grown;
        hits->cap = cap;
    }
    hits->hit[hits->n++] = hit;
    return PITH_OK;
}

void text_hits_free(struct text_hits *hits)
{
    for (int32_t i = 0; i < hits->n; i++)
        pi_mem_free(hits->hit[i].text);
    pi_mem_free(hits->hit);
    *hits = (struct text_hits){0};
}

/* ---- words ---- */

enum letter { LETTER_NONE, LETTER_PART, LETTER_WORD };

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Ranges of code points outside of ASCII that are no letters, or words of their own; what is in
   none of them is a letter. */
static const struct {
    uint32_t first, last;
    enum letter kind;
} ranges[] = {
    {0x80, 0xa9, LETTER_NONE}, /* Latin-1's controls and signs, but for its ordinals */
    {0xab, 0xb4, LETTER_NONE},       {0xb6, 0xb9, LETTER_NONE},
    {0xbb, 0xbf, LETTER_NONE},       {0xd7, 0xd7, LETTER_NONE},
    {0xf7, 0xf7, LETTER_NONE},       {0x2000, 0x206f, LETTER_NONE}, /* general punctuation */
    {0x20a0, 0x20cf, LETTER_NONE},                                  /* currencies */
    {0x2190, 0x2bff, LETTER_NONE}, /* arrows, mathematics, boxes, symbols */
    {0x2e00, 0x2e7f, LETTER_NONE}, /* more punctuation */
    {0x2e80, 0x2fdf, LETTER_WORD}, /* radicals */
    {0x3000, 0x303f, LETTER_NONE}, /* East Asian punctuation */
    {0x3040, 0x30ff, LETTER_WORD}, /* kana */
    {0x3100, 0x312f, LETTER_WORD}, /* bopomofo */
    {0x31f0, 0x31ff, LETTER_WORD}, /* kana */
    {0x3400, 0x4dbf, LETTER_WORD}, /* ideographs */
    {0x4e00, 0x9fff, LETTER_WORD},   {0xac00, 0xd7af, LETTER_WORD}, /* Hangul syllables */
    {0xe000, 0xf8ff, LETTER_NONE},                                  /* private use */
    {0xf900, 0xfaff, LETTER_WORD},                                  /* ideographs */
    {0xfe00, 0xfe6f, LETTER_NONE}, /* selectors, forms of punctuation */
    {0xff00, 0xff0f, LETTER_NONE}, /* full-width punctuation */
    {0xff1a, 0xff20, LETTER_NONE},   {0xff3b, 0xff40, LETTER_NONE},
    {0xff5b, 0xff65, LETTER_NONE},   {0xff66, 0xff9f, LETTER_WORD},   /* half-width kana */
    {0xfff0, 0xffff, LETTER_NONE},   {0x1f000, 0x1faff, LETTER_NONE}, /* pictures */
    {0x20000, 0x3ffff, LETTER_WORD},                                  /* ideographs */
};

static enum letter letter_of(uint32_t c)
{
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
                   ? LETTER_PART
                   : LETTER_NONE;
    for (size_t i = 0; i < PI_LEN(ranges) && ranges[i].first <= c; i++)
        if (c <= ranges[i].last)
            return ranges[i].kind;
    return LETTER_PART;
}

char *text_words(const char *text, size_t len)
{
    /* Each character gives its bytes and at most two spaces. */
    size_t n = 0, size;
    if (!pi_mul_size(len, 3, &size) || size == SIZE_MAX)
        return NULL;
    char *out = pi_mem_alloc(PI_MEM_OTHER, size + 2);
    for (size_t i = 0; out != NULL && i < len;) {
        struct pi_utf8_char c = pi_utf8_next(text + i, len - i);
        enum letter kind = c.valid ? letter_of(pi_utf8_decode(text + i, c.len)) : LETTER_NONE;
        if (kind != LETTER_PART && n > 0 && out[n - 1] != ' ')
            out[n++] = ' ';
        if (kind != LETTER_NONE) {
            for (size_t k = 0; k < c.len; k++)
                out[n++] = lower(text[i + k]);
        }
        if (kind == LETTER_WORD)
            out[n++] = ' ';
        i += c.len;
    }
    if (out != NULL && n > 0 && out[n - 1] != ' ')
        out[n++] = ' ';
    return out;
}

/* Whether the word is one of those in the first n_kept bytes of words. */
static bool is_among(const char *words, size_t n_kept, const char *word, size_t len)
{
    for (size_t i = 0; i < n_kept;) {
        size_t n = (size_t)(strchr(words + i, ' ') - (words + i));
        if (n == len && memcmp(words + i, word, len) == 0)
            return true;
        i += n + 1;
    }
    return false;
}

char *text_query(const char *text, size_t len)
{
    char *words = text_words(text, len);
    /* "WORD" OR "WORD": at most eight bytes more than the word and its space. */
    size_t size = words != NULL ? strlen(words) * 5 + 8 : 0, n = 0;
    char *out = words != NULL ? pi_mem_alloc(PI_MEM_OTHER, size) : NULL;
    size_t n_kept = 0; /* bytes at the front of words, which are the different ones so far */
    int32_t n_word = 0;
    for (size_t i = 0; out != NULL && words[i] != '\0' && n_word < TEXT_QUERY_WORDS;) {
        size_t word = (size_t)(strchr(words + i, ' ') - (words + i));
        if (!is_among(words, n_kept, words + i, word)) {
            n += (size_t)snprintf(out + n, size - n, "%s\"%.*s\"", n > 0 ? " OR " : "", (int)word,
                                  words + i);
            memmove(words + n_kept, words + i, word + 1);
            n_kept += word + 1;
            n_word++;
        }
        i += word + 1;
    }
    pi_mem_free(words);
    return out;
}

/* ---- ranks ---- */

static int better(const void *a, const void *b)
{
    const struct text_score *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

int32_t text_rank(struct text_score *spans, int32_t n, const struct text_ranking *r)
{
    double min = 0, max = 0;
    int32_t n_found = 0;
    for (int32_t i = 0; i < n; i++) {
        min = i == 0 || spans[i].words < min ? spans[i].words : min;
        max = i == 0 || spans[i].words > max ? spans[i].words : max;
    }
    for (int32_t i = 0; i < n; i++) {
        struct text_score s = spans[i];
        double words = max > min ? (s.words - min) / (max - min) : 1;
        if (!r->embedded)
            s.score = words;
        else
            s.score = max > min ? r->alpha * s.cosine + (1 - r->alpha) * words : s.cosine;
        if ((r->embedded || s.matched) && s.score >= r->floor)
            spans[n_found++] = s;
    }
    if (n_found > 1)
        qsort(spans, (size_t)n_found, sizeof(*spans), better);
    return (int32_t)pi_min(n_found, r->top);
}
