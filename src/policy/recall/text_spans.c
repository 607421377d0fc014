/*
 * text_spans.c - from lanes to spans to text. A token is named by the position that it was written
 * at: entries that are read elsewhere (a page's delta) are still that token's. The spans follow
 * from what is gone alone, so that storing them is a difference of two lists.
 */
#include "policy/recall/text_spans.h"

#include <math.h>

#include "base/mem.h"
#include "base/utf8.h"

void text_spans_free(struct text_spans *spans)
{
    pi_mem_free(spans->span);
    *spans = (struct text_spans){0};
}

static pith_status add_span(struct text_spans *spans, int32_t first, int32_t last, pith_error *err)
{
    if (spans->n == spans->cap) {
        int32_t cap = spans->cap > 0 ? 2 * spans->cap : 32;
        struct text_span *span = pi_mem_grow(PI_MEM_OTHER, spans->span, (size_t)cap, sizeof(*span));
        if (span == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for a list of %d spans", cap);
        spans->span = span;
        spans->cap = cap;
    }
    spans->span[spans->n++] = (struct text_span){first, last};
    return PITH_OK;
}

/* ---- what is gone ---- */

int64_t text_missing(const struct kv_seq *kv, const struct kv_geometry *g, int32_t n_token)
{
    int64_t n = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            n += n_token - kv_lane_len(kv, l, h);
    return n;
}

/* have[p] += the lane's entries written at p, one at most for each p. */
static void count_lane(const struct kv_seq *kv, int32_t layer, int32_t head, int32_t n_token,
                       int32_t *have, int32_t *written)
{
    int32_t n = kv_lane_len(kv, layer, head);
    kv_lane_written(kv, layer, head, written, n);
    for (int32_t i = 0; i < n; i++)
        if (written[i] >= 0 && written[i] < n_token)
            have[written[i]]++;
}

pith_status text_evicted(const struct kv_seq *kv, const struct kv_geometry *g, int32_t n_token,
                         double lost, uint8_t *gone, pith_error *err)
{
    int32_t n_lane = g->n_layer * g->n_head, longest = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            longest = (int32_t)pi_max(longest, kv_lane_len(kv, l, h));
    int32_t *have = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_token, sizeof(*have));
    int32_t *written = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)longest, sizeof(*written));
    if (have == NULL || written == NULL) {
        pi_mem_free(have);
        pi_mem_free(written);
        return pi_fail(err, PITH_NOMEM, "no memory to count the lanes of %d tokens", n_token);
    }
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            count_lane(kv, l, h, n_token, have, written);
    /* The rounding of a share like 0.1 must not ask for a lane more than it says. */
    int32_t least = (int32_t)pi_max(1, (int64_t)ceil(lost * n_lane - 1e-6));
    for (int32_t p = 0; p < n_token; p++)
        gone[p] = n_lane - have[p] >= least;
    pi_mem_free(have);
    pi_mem_free(written);
    return PITH_OK;
}

/* ---- spans ---- */

/* Runs of evicted tokens between first and last, which are evicted, widened to one span or
   pieces. */
static pith_status add_pieces(int32_t first, int32_t last, int32_t n_token, int32_t bleed,
                              struct text_spans *out, pith_error *err)
{
    int32_t begin = (int32_t)pi_max(0, (int64_t)first - bleed);
    int32_t end = (int32_t)pi_min(n_token, (int64_t)last + bleed);
    if (end - begin <= TEXT_PIECE + 2 * (int64_t)bleed)
        return add_span(out, begin, end, err);
    int32_t before = -1; /* where the piece before ends: one that ends there, too, lies in it */
    while (first < last) {
        int32_t stop = (int32_t)pi_min(last, ((int64_t)first / TEXT_PIECE + 1) * TEXT_PIECE);
        begin = (int32_t)pi_max(0, (int64_t)first - bleed);
        end = (int32_t)pi_min(n_token, (int64_t)stop + bleed);
        bool covers = before >= 0 && out->span[out->n - 1].first == begin;
        if (covers) /* the piece before lies in this one, at the very beginning of the tokens */
            out->span[out->n - 1].last = end;
        else if (end != before)
            PI_TRY(add_span(out, begin, end, err));
        before = end;
        first = stop;
    }
    return PITH_OK;
}

pith_status text_cut(const uint8_t *gone, int32_t n_token, int32_t bleed, struct text_spans *out,
                     pith_error *err)
{
    int32_t first = -1, last = -1; /* of the runs that are one so far */
    for (int32_t p = 0; p < n_token; p++) {
        if (!gone[p])
            continue;
        if (first >= 0 && p - last > 2 * (int64_t)bleed) {
            PI_TRY(add_pieces(first, last, n_token, bleed, out, err));
            first = -1;
        }
        if (first < 0)
            first = p;
        last = p + 1;
    }
    return first >= 0 ? add_pieces(first, last, n_token, bleed, out, err) : PITH_OK;
}

static bool precedes(struct text_span a, struct text_span b)
{
    return a.first != b.first ? a.first < b.first : a.last < b.last;
}

pith_status text_spans_minus(const struct text_spans *a, const struct text_spans *b,
                             struct text_spans *out, pith_error *err)
{
    int32_t j = 0;
    for (int32_t i = 0; i < a->n; i++) {
        while (j < b->n && precedes(b->span[j], a->span[i]))
            j++;
        if (j == b->n || precedes(a->span[i], b->span[j]))
            PI_TRY(add_span(out, a->span[i].first, a->span[i].last, err));
    }
    return PITH_OK;
}

/* ---- text ---- */

size_t text_clean(char *text, size_t len)
{
    size_t begin = 0, n = 0;
    /* The rest of a character that began before: at most three continuation bytes. */
    while (begin < len && begin < 3 && ((uint8_t)text[begin] & 0xc0) == 0x80)
        begin++;
    for (size_t i = begin; i < len;) {
        struct pi_utf8_char c = pi_utf8_next(text + i, len - i);
        if (c.cut) /* the text ends inside of a character */
            break;
        bool control = c.len == 1 && ((uint8_t)text[i] < 0x20 || text[i] == 0x7f);
        bool kept = c.valid && (!control || text[i] == '\n' || text[i] == '\t');
        memmove(text + n, kept ? text + i : " ", kept ? c.len : 1);
        n += kept ? c.len : 1;
        i += c.len;
    }
    while (n > 0 && pi_is_space(text[n - 1]))
        n--;
    size_t blank = 0;
    while (blank < n && pi_is_space(text[blank]))
        blank++;
    memmove(text, text + blank, n - blank);
    return n - blank;
}

pith_status text_of_tokens(const struct pith_model *model, const int32_t *tokens, int32_t n,
                           char **out, pith_error *err)
{
    size_t len = 0;
    pith_status status = pith_detokenize(model, tokens, n, false, NULL, 0, &len, err);
    if (status != PITH_OK && status != PITH_RANGE)
        return status;
    char *text = pi_mem_alloc(PI_MEM_OTHER, len + 1);
    if (text == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %zu bytes of text", len);
    status = pith_detokenize(model, tokens, n, false, text, len, &len, err);
    if (status != PITH_OK) {
        pi_mem_free(text);
        return status;
    }
    text[text_clean(text, len)] = '\0';
    *out = text;
    return PITH_OK;
}
