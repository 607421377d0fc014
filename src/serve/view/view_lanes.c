/*
 * view_lanes.c - what is known of the followed sequence's lanes. It reads positions and writes
 * nothing but its own notes. view.c says when to look, and knows rounds.
 *
 * Invariant: after a scan an entry's note is VIEW_HELD exactly where pith_seq_lane lists its
 * position.
 */
#include "serve/view/view_lanes.h"

#include <stdlib.h>
#include <string.h>

#define CAP_MIN 512

static int32_t lane_count(const struct view_lanes *v)
{
    return v->n_layer * v->n_head;
}

bool view_lanes_create(struct view_lanes *v, int32_t n_layer, int32_t n_head)
{
    *v = (struct view_lanes){.n_layer = n_layer, .n_head = n_head};
    v->lane = calloc((size_t)lane_count(v), sizeof(*v->lane));
    return v->lane != NULL;
}

void view_lanes_free(struct view_lanes *v)
{
    free(v->tokens);
    free(v->went);
    free(v->positions);
    free(v->seen);
    free(v->lane);
    *v = (struct view_lanes){0};
}

void view_lanes_reset(struct view_lanes *v)
{
    v->n_token = 0;
    memset(v->lane, 0, (size_t)lane_count(v) * sizeof(*v->lane));
}

bool view_lanes_continue(const struct view_lanes *v, const pith_seq *seq)
{
    return pith_seq_length(seq) >= v->n_token &&
           (v->n_token == 0 ||
            memcmp(pith_seq_tokens(seq), v->tokens, (size_t)v->n_token * sizeof(*v->tokens)) == 0);
}

/* ---- growing ---- */

/* Gives the rows of `went` a new length. */
static bool grow_rows(struct view_lanes *v, int32_t cap)
{
    uint16_t *went = malloc((size_t)lane_count(v) * (size_t)cap * sizeof(*went));
    if (went == NULL)
        return false;
    for (int32_t i = 0; v->n_token > 0 && i < lane_count(v); i++)
        memcpy(went + (size_t)i * (size_t)cap, v->went + (size_t)i * (size_t)v->cap,
               (size_t)v->n_token * sizeof(*went));
    free(v->went);
    v->went = went;
    return true;
}

static bool reserve(struct view_lanes *v, int32_t n)
{
    int64_t cap = v->cap < CAP_MIN ? CAP_MIN : v->cap;
    while (cap < n)
        cap *= 2;
    if (cap == v->cap)
        return true;
    if (cap * lane_count(v) * (int64_t)sizeof(*v->went) > VIEW_LANES_BYTES)
        return false;
    int32_t *tokens = realloc(v->tokens, (size_t)cap * sizeof(*tokens));
    v->tokens = tokens != NULL ? tokens : v->tokens;
    int32_t *positions = realloc(v->positions, (size_t)cap * sizeof(*positions));
    v->positions = positions != NULL ? positions : v->positions;
    uint8_t *seen = realloc(v->seen, (size_t)cap);
    v->seen = seen != NULL ? seen : v->seen;
    if (tokens == NULL || positions == NULL || seen == NULL || !grow_rows(v, (int32_t)cap))
        return false;
    v->cap = (int32_t)cap;
    return true;
}

bool view_lanes_grow(struct view_lanes *v, const pith_seq *seq)
{
    int32_t n = pith_seq_length(seq), from = v->n_token;
    if (n == from)
        return true;
    if (!reserve(v, n))
        return false;
    memcpy(v->tokens + from, pith_seq_tokens(seq) + from, (size_t)(n - from) * sizeof(*v->tokens));
    for (int32_t i = 0; i < lane_count(v); i++)
        memset(v->went + (size_t)i * (size_t)v->cap + from, 0xff,
               (size_t)(n - from) * sizeof(*v->went));
    v->n_token = n;
    return true;
}

/* ---- looking ---- */

bool view_lanes_differ(struct view_lanes *v, const pith_seq *seq, int32_t n_new)
{
    bool differ = false;
    for (int32_t i = 0; i < lane_count(v); i++) {
        pith_lane_info info = {0};
        pith_seq_lane(seq, i / v->n_head, i % v->n_head, &info, NULL, 0);
        differ = differ || info.n_entry != v->lane[i].n_entry + n_new;
        v->lane[i].n_entry = info.n_entry;
    }
    return differ;
}

static void scan_lane(struct view_lanes *v, const pith_seq *seq, int32_t i, uint16_t round,
                      struct view_found *found)
{
    uint16_t *went = v->went + (size_t)i * (size_t)v->cap;
    pith_lane_info info = {0};
    int64_t n_gone = 0, n_back = 0;
    pith_seq_lane(seq, i / v->n_head, i % v->n_head, &info, v->positions, v->cap);
    int32_t n = info.n_entry < v->cap ? info.n_entry : v->cap;
    memset(v->seen, 0, (size_t)v->n_token);
    for (int32_t e = 0; e < n; e++)
        if (v->positions[e] >= 0 && v->positions[e] < v->n_token)
            v->seen[v->positions[e]] = 1;
    for (int32_t p = 0; p < v->n_token; p++) {
        if ((went[p] == VIEW_HELD) == (v->seen[p] != 0))
            continue;
        if (v->seen[p]) {
            went[p] = VIEW_HELD;
            n_back++;
            continue;
        }
        went[p] = round;
        n_gone++;
        found->from = found->from < 0 || p < found->from ? p : found->from;
        found->to = p > found->to ? p : found->to;
    }
    v->lane[i].n_entry = info.n_entry;
    v->lane[i].changed = v->lane[i].changed || n_gone > 0;
    v->lane[i].back = v->lane[i].back || n_back > 0;
    found->n_lane += n_gone > 0;
    found->n_gone += n_gone;
    found->n_back += n_back;
}

void view_lanes_scan(struct view_lanes *v, const pith_seq *seq, int32_t round,
                     struct view_found *found)
{
    uint16_t number = (uint16_t)(round < VIEW_ROUND_MAX ? round : VIEW_ROUND_MAX);
    *found = (struct view_found){.from = -1, .to = -1};
    for (int32_t i = 0; v->n_token > 0 && i < lane_count(v); i++)
        scan_lane(v, seq, i, number, found);
}

/* ---- writing ---- */

/* Where the run of equal notes that begins at a position ends. */
static int32_t run_end(const uint16_t *went, int32_t from, int32_t n)
{
    int32_t to = from + 1;
    while (to < n && went[to] == went[from])
        to++;
    return to;
}

void view_lanes_write(const struct view_lanes *v, int32_t lane, struct view_text *out)
{
    const uint16_t *went = v->went + (size_t)lane * (size_t)v->cap;
    for (int32_t p = 0, end; p < v->n_token; p = end) {
        end = run_end(went, p, v->n_token);
        view_text_gap(out);
        view_text_number(out, (uint32_t)(end - p));
        if (went[p] == VIEW_HELD)
            continue;
        view_text_char(out, ':');
        view_text_number(out, went[p]);
    }
}

void view_lanes_write_gone(const struct view_lanes *v, int32_t lane, int32_t round,
                           struct view_text *out)
{
    const uint16_t *went = v->went + (size_t)lane * (size_t)v->cap;
    int32_t first = round < VIEW_ROUND_MAX ? round : VIEW_ROUND_MAX;
    for (int32_t p = 0, end; p < v->n_token; p = end) {
        end = run_end(went, p, v->n_token);
        if (went[p] == VIEW_HELD || went[p] < first)
            continue;
        view_text_gap(out);
        view_text_number(out, (uint32_t)p);
        view_text_char(out, '+');
        view_text_number(out, (uint32_t)(end - p));
        view_text_char(out, ':');
        view_text_number(out, went[p]);
    }
}

bool view_lanes_write_held(const struct view_lanes *v, struct view_text *out)
{
    int32_t *held = calloc((size_t)v->n_token + 1, sizeof(*held));
    if (held == NULL)
        return false;
    for (int32_t i = 0; i < lane_count(v); i++) {
        const uint16_t *went = v->went + (size_t)i * (size_t)v->cap;
        for (int32_t p = 0; p < v->n_token; p++)
            held[p] += went[p] == VIEW_HELD;
    }
    for (int32_t p = 0, end; p < v->n_token; p = end) {
        for (end = p + 1; end < v->n_token && held[end] == held[p];)
            end++;
        view_text_gap(out);
        view_text_number(out, (uint32_t)held[p]);
        view_text_char(out, '*');
        view_text_number(out, (uint32_t)(end - p));
    }
    free(held);
    return true;
}
