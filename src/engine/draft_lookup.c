/*
 * draft_lookup.c - n-grams of a text (draft_lookup.h). Each place is linked to the last one before
 * it with the same last one, two and three tokens, by a table of hashes. The tokens are then
 * compared one by one, so that a hash may lie. A text that is edited follows its source with gaps.
 * So the places around the one that the last draft would have come to are looked at first.
 *
 * Invariant: a search looks at a bounded number of places in any text.
 */
#include "engine/draft_lookup.h"

#include <stdlib.h>

#include "base/mem.h"
#include "engine/draft_gauge.h"

#define CAP_FIRST 1024
#define MATCH_MOST 16 /* tokens that are compared backwards */
#define CHAIN_MOST 24 /* places of an n-gram that are looked at */
#define NEAR 12       /* places around the one that is expected */
#define NEAR_WORTH 6  /* tokens of a match that being there is worth */

void draft_lookup_free(struct draft_lookup *l)
{
    pi_mem_free(l->token);
    for (int g = 0; g < DRAFT_GRAM_MOST; g++) {
        pi_mem_free(l->link[g]);
        pi_mem_free(l->head[g]);
    }
    *l = (struct draft_lookup){.source = -1};
}

/* ---- the index ---- */

static uint32_t hash_gram(const struct draft_lookup *l, int32_t at, int g)
{
    uint64_t h = 0;
    for (int i = 0; i <= g; i++)
        h = (h ^ (uint32_t)l->token[at - i]) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32) & l->mask;
}

/* Place `at` is the last one. */
static void add_place(struct draft_lookup *l, int32_t at)
{
    for (int g = 0; g < DRAFT_GRAM_MOST; g++) {
        l->link[g][at] = -1;
        if (at < g)
            continue;
        int32_t *head = &l->head[g][hash_gram(l, at, g)];
        l->link[g][at] = *head;
        *head = at;
    }
}

static void clear(struct draft_lookup *l)
{
    l->n = 0;
    l->source = -1;
    for (int g = 0; g < DRAFT_GRAM_MOST && l->head[g] != NULL; g++)
        for (uint32_t i = 0; i <= l->mask; i++)
            l->head[g][i] = -1;
}

size_t draft_lookup_bytes(const struct draft_lookup *l)
{
    size_t bytes = pi_mem_size(l->token);
    for (int g = 0; g < DRAFT_GRAM_MOST; g++)
        bytes += pi_mem_size(l->link[g]) + pi_mem_size(l->head[g]);
    return bytes;
}

/* Room for n tokens; the index is made anew. */
static bool grow(struct draft_lookup *l, int32_t n)
{
    struct draft_lookup made = {.cap = CAP_FIRST, .source = -1};
    while (made.cap < n)
        made.cap *= 2;
    made.mask = 2 * (uint32_t)made.cap - 1;
    bool ok = (made.token = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)made.cap, 4)) != NULL;
    for (int g = 0; g < DRAFT_GRAM_MOST; g++) {
        made.link[g] = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)made.cap, 4);
        made.head[g] = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)made.mask + 1, 4);
        ok = ok && made.link[g] != NULL && made.head[g] != NULL;
    }
    if (!ok) {
        draft_lookup_free(&made);
        return false;
    }
    clear(&made);
    made.source = l->source;
    made.source_at = l->source_at;
    for (; made.n < l->n; made.n++) {
        made.token[made.n] = l->token[made.n];
        add_place(&made, made.n);
    }
    draft_lookup_free(l);
    *l = made;
    return true;
}

pith_status draft_lookup_set(struct draft_lookup *l, const int32_t *tokens, int32_t n)
{
    if (n < l->n || (l->n > 0 && memcmp(l->token, tokens, (size_t)l->n * sizeof(*tokens)) != 0))
        clear(l);
    if (n > INT32_MAX / 4 || (n > l->cap && !grow(l, n))) {
        draft_lookup_free(l);
        return PITH_NOMEM;
    }
    for (; l->n < n; l->n++) {
        l->token[l->n] = tokens[l->n];
        add_place(l, l->n);
    }
    return PITH_OK;
}

/* ---- the search ---- */

struct match {
    int32_t at; /* the place that is like the last one; -1: none */
    int32_t len;
    bool near;
};

static int32_t match_len(const struct draft_lookup *l, int32_t at)
{
    int32_t len = 0, last = l->n - 1;
    while (len < MATCH_MOST && at - len >= 0 && l->token[at - len] == l->token[last - len])
        len++;
    return len;
}

static int32_t worth(const struct match *m)
{
    return m->at < 0 ? -1 : m->len + (m->near ? NEAR_WORTH : 0);
}

static void consider(const struct draft_lookup *l, int32_t at, int32_t expected, struct match *best)
{
    bool near = expected >= 0 && at >= expected - NEAR && at <= expected + NEAR;
    struct match m = {at, match_len(l, at), near};
    if (m.len == 0 && at != expected) /* that one may be a word that was put in another's place */
        return;
    int32_t better = worth(&m) - worth(best);
    bool closer = near && better == 0 && abs(at - expected) < abs(best->at - expected);
    if (better > 0 || closer)
        *best = m;
}

static int kind_of(const struct match *m)
{
    int len = m->len >= 8 ? 5 : m->len >= 4 ? 4 : m->len;
    return len + (m->near ? DRAFT_N_LOOKUP_KIND / 2 : 0);
}

int32_t draft_lookup_find(struct draft_lookup *l, int32_t most, int32_t *out, int *kind)
{
    struct match best = {.at = -1};
    int32_t last = l->n - 1, expected = -1;
    if (last < 1)
        return 0;
    if (l->source >= 0 && l->source + (last - l->source_at) < last)
        expected = l->source + (last - l->source_at);
    for (int32_t at = (int32_t)pi_max(0, expected - NEAR);
         expected >= 0 && at <= expected + NEAR && at < last; at++)
        consider(l, at, expected, &best);
    for (int g = DRAFT_GRAM_MOST - 1; g >= 0 && best.len <= g; g--) {
        int32_t at = l->link[g][last];
        for (int32_t i = 0; at >= 0 && i < CHAIN_MOST; i++, at = l->link[g][at])
            consider(l, at, expected, &best);
    }
    if (best.at < 0)
        return 0;
    l->source = best.at;
    l->source_at = last;
    *kind = kind_of(&best);
    /* Behind the text's end the draft goes on with itself: what repeats goes on repeating. */
    for (int32_t i = 0; i < most; i++) {
        int32_t at = best.at + 1 + i;
        out[i] = at <= last ? l->token[at] : out[at - l->n];
    }
    return most;
}
