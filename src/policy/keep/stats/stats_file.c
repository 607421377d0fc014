/*
 * stats_file.c - Pith's own file of calibration statistics; docs/stats.md describes the bytes. The
 * section of importance is stats_importance.c's and may be empty. put_header and get_header,
 * put_body and get_body take the parts in the same order. Invariant: size and checksum of a file
 * are checked before anything is allocated for its parts, and a written file reads back as it was.
 */
#include "base/cursor.h"
#include "base/mem.h"
#include "file/sum.h"
#include "policy/keep/stats/stats.h"

#define MAGIC "PITHSTAT"
#define VERSION 2 /* a reader refuses every other */
#define HEADER_SIZE 88
#define LENGTH_SIZE 8 /* of the section's length before it */
#define SUM_SIZE 8

enum { FLAG_FREQ = 1, FLAG_KEYS = 2, FLAG_ALL = 3 };

static void put_doubles(struct pi_cursor *c, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        pi_put(c, bits, 8);
    }
}

static void get_doubles(struct pi_cursor *c, double *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = pi_get(c, 8);
        memcpy(&x[i], &bits, sizeof(bits));
    }
}

/* ---- sizes ---- */

/* Bytes of the whole file without importance. The counts are within the limits of stats_check_shape
   and the texts within STATS_MAX_TEXT, so that nothing overflows 64 bits. */
static uint64_t file_size(const struct pith_stats *s, bool has_freq, bool has_k, uint64_t n_model,
                          uint64_t n_text)
{
    uint64_t row = stats_row_len(s), n_lane = (uint64_t)s->n_layer * (uint64_t)s->n_head;
    uint64_t size = HEADER_SIZE + n_model + n_text + 8 * (uint64_t)s->n_range;
    size += 8 * (uint64_t)s->n_layer + (has_freq ? 8 * (uint64_t)s->n_pair : 0);
    size += 4 * n_lane * row;
    if (has_k)
        size += 4 * (uint64_t)s->n_layer * (uint64_t)s->n_head_kv * row;
    if (s->n_centre > 1)
        size += 4 * n_lane * (uint64_t)s->n_centre * (row + 1);
    return size + LENGTH_SIZE + SUM_SIZE;
}

static size_t text_len(const char *text)
{
    return text != NULL ? strlen(text) : 0;
}

/* ---- writing ---- */

static void put_header(struct pi_cursor *c, const struct pith_stats *s, uint64_t size)
{
    uint32_t magnitude;
    memcpy(&magnitude, &s->magnitude, sizeof(magnitude));
    pi_put_bytes(c, MAGIC, 8);
    pi_put(c, VERSION, 4);
    pi_put(c, HEADER_SIZE, 4);
    pi_put(c, size, 8);
    pi_put(c, s->fingerprint, 8);
    pi_put(c, (uint64_t)s->n_token, 8);
    pi_put(c, (uint64_t)s->n_layer, 4);
    pi_put(c, (uint64_t)s->n_head, 4);
    pi_put(c, (uint64_t)s->n_head_kv, 4);
    pi_put(c, (uint64_t)s->n_pair, 4);
    pi_put(c, (uint64_t)s->n_flat, 4);
    pi_put(c, (uint64_t)s->n_centre, 4);
    pi_put(c, (uint64_t)s->n_range, 4);
    pi_put(c, (uint64_t)s->pairing, 2);
    pi_put(c, (uint64_t)s->select, 2);
    pi_put(c, (s->freq != NULL ? FLAG_FREQ : 0) | (s->k != NULL ? FLAG_KEYS : 0), 4);
    pi_put(c, magnitude, 4);
    pi_put(c, text_len(s->model), 4);
    pi_put(c, text_len(s->text), 4);
}

static void put_body(struct pi_cursor *c, const struct pith_stats *s)
{
    size_t row = stats_row_len(s), n_lane = (size_t)s->n_layer * (size_t)s->n_head;
    pi_put_bytes(c, s->model, text_len(s->model));
    pi_put_bytes(c, s->text, text_len(s->text));
    for (int32_t i = 0; i < s->n_range; i++) {
        pi_put(c, (uint32_t)s->range[i].begin, 4);
        pi_put(c, (uint32_t)s->range[i].end, 4);
    }
    for (int32_t l = 0; l < s->n_layer; l++)
        pi_put(c, (uint64_t)s->count[l], 8);
    if (s->freq != NULL)
        put_doubles(c, s->freq, (size_t)s->n_pair);
    pi_put_floats(c, s->q, n_lane * row);
    if (s->k != NULL)
        pi_put_floats(c, s->k, (size_t)s->n_layer * (size_t)s->n_head_kv * row);
    if (s->n_centre > 1) {
        pi_put_floats(c, s->weight, n_lane * (size_t)s->n_centre);
        pi_put_floats(c, s->centre, n_lane * (size_t)s->n_centre * row);
    }
}

pith_status stats_format(const struct pith_stats *s, uint8_t **out, size_t *size, pith_error *err)
{
    struct pi_cursor c = {0};
    uint64_t n = file_size(s, s->freq != NULL, s->k != NULL, text_len(s->model), text_len(s->text));
    uint64_t n_section = stats_importance_size(s->importance);
    n += n_section;
    c.out = n <= SIZE_MAX ? pi_mem_alloc(PI_MEM_OTHER, (size_t)n) : NULL;
    if (c.out == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %llu bytes of statistics",
                       (unsigned long long)n);
    put_header(&c, s, n);
    put_body(&c, s);
    pi_put(&c, n_section, LENGTH_SIZE);
    if (s->importance != NULL)
        stats_importance_put(&c, s->importance);
    pi_put(&c, pi_sum_of(c.out, c.at), SUM_SIZE);
    assert(c.at == n);
    *out = c.out;
    *size = (size_t)n;
    return PITH_OK;
}

/* ---- reading ---- */

struct header {
    uint64_t size;
    uint64_t n_section; /* bytes of the section of importance; 0: there is none */
    uint64_t n_token;
    uint32_t count[7]; /* layers, query heads, KV heads, pairs, flat, centres, ranges */
    uint32_t pairing;
    uint32_t select;
    uint32_t flags;
    uint32_t n_model;
    uint32_t n_text;
};

static pith_status check_field(const char *name, uint64_t value, uint64_t max, pith_error *err)
{
    return value <= max ? PITH_OK
                        : pi_fail(err, PITH_FORMAT, "%s: %llu is not in 0..%llu", name,
                                  (unsigned long long)value, (unsigned long long)max);
}

static pith_status get_header(struct pi_cursor *c, size_t size, struct pith_stats *s,
                              struct header *h, pith_error *err)
{
    c->at = 8;
    uint32_t version = size >= HEADER_SIZE + SUM_SIZE ? (uint32_t)pi_get(c, 4) : VERSION;
    if (version != VERSION)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "version %u of the statistics; this Pith reads version %d", version,
                       VERSION);
    s->format = "pith 2";
    if (size < HEADER_SIZE + SUM_SIZE)
        return pi_fail(err, PITH_FORMAT, "%zu bytes are too few for statistics", size);
    uint64_t header_size = pi_get(c, 4);
    h->size = pi_get(c, 8);
    s->fingerprint = pi_get(c, 8);
    h->n_token = pi_get(c, 8);
    for (size_t i = 0; i < PI_LEN(h->count); i++)
        h->count[i] = (uint32_t)pi_get(c, 4);
    h->pairing = (uint32_t)pi_get(c, 2);
    h->select = (uint32_t)pi_get(c, 2);
    h->flags = (uint32_t)pi_get(c, 4);
    pi_get_floats(c, &s->magnitude, 1);
    h->n_model = (uint32_t)pi_get(c, 4);
    h->n_text = (uint32_t)pi_get(c, 4);
    if (header_size != HEADER_SIZE)
        return pi_fail(err, PITH_FORMAT, "header size: %llu is not %d",
                       (unsigned long long)header_size, HEADER_SIZE);
    if (h->size != size)
        return pi_fail(err, PITH_FORMAT, "the file has %zu bytes and should have %llu", size,
                       (unsigned long long)h->size);
    PI_TRY(check_field("tokens", h->n_token, INT64_MAX, err));
    PI_TRY(check_field("pairing", h->pairing, PITH_PAIRING_ADJACENT, err));
    PI_TRY(check_field("selection", h->select, PITH_SELECT_RANGES, err));
    PI_TRY(check_field("flags", h->flags, FLAG_ALL, err));
    PI_TRY(check_field("bytes of the model's name", h->n_model, STATS_MAX_TEXT, err));
    return check_field("bytes of the text's name", h->n_text, STATS_MAX_TEXT, err);
}

/* Takes the header's counts as those that *s has, within the limits and right for the size of the
   file. */
static pith_status take_counts(struct pith_stats *s, struct header *h, pith_error *err)
{
    int32_t *to[] = {&s->n_layer, &s->n_head,   &s->n_head_kv, &s->n_pair,
                     &s->n_flat,  &s->n_centre, &s->n_range};
    for (size_t i = 0; i < PI_LEN(to); i++)
        *to[i] = h->count[i] <= INT32_MAX ? (int32_t)h->count[i] : INT32_MAX;
    PI_TRY(stats_check_shape(s, err));
    s->n_token = (int64_t)h->n_token;
    s->pairing = (pith_pairing)h->pairing;
    s->select = (pith_select)h->select;
    if ((s->select == PITH_SELECT_RANGES) != (s->n_range > 0))
        return pi_fail(err, PITH_FORMAT, "selection: %u does not go with %d ranges of tokens",
                       h->select, s->n_range);
    if ((h->flags & FLAG_KEYS) != 0 && s->n_head_kv == 0)
        return pi_fail(err, PITH_FORMAT, "statistics of the keys of no KV head");
    uint64_t want = file_size(s, h->flags & FLAG_FREQ, h->flags & FLAG_KEYS, h->n_model, h->n_text);
    h->n_section = h->size > want ? h->size - want : 0;
    if (want + h->n_section != h->size)
        return pi_fail(err, PITH_FORMAT, "its counts make %llu bytes, the file has %llu",
                       (unsigned long long)want, (unsigned long long)h->size);
    return PITH_OK;
}

static pith_status get_ranges(struct pi_cursor *c, struct pith_stats *s, pith_error *err)
{
    for (int32_t i = 0; i < s->n_range; i++) {
        uint32_t begin = (uint32_t)pi_get(c, 4), end = (uint32_t)pi_get(c, 4);
        if (begin > INT32_MAX || end > INT32_MAX || end <= begin ||
            (i > 0 && (int32_t)begin < s->range[i - 1].end))
            return pi_fail(err, PITH_FORMAT,
                           "range %d: tokens %u to %u are no range after the one "
                           "before",
                           i, begin, end);
        s->range[i] = (pith_range){(int32_t)begin, (int32_t)end};
    }
    return PITH_OK;
}

static pith_status get_body(struct pi_cursor *c, struct pith_stats *s, const struct header *h,
                            pith_error *err)
{
    size_t row = stats_row_len(s), n_lane = (size_t)s->n_layer * (size_t)s->n_head;
    s->model = policy_name((const char *)c->in + c->at, h->n_model);
    c->at += h->n_model;
    s->text = policy_name((const char *)c->in + c->at, h->n_text);
    c->at += h->n_text;
    if (s->model == NULL || s->text == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the names of model and text");
    if (strlen(s->model) != h->n_model || strlen(s->text) != h->n_text)
        return pi_fail(err, PITH_FORMAT, "the name of the model or the text holds a zero byte");
    PI_TRY(get_ranges(c, s, err));
    for (int32_t l = 0; l < s->n_layer; l++) {
        uint64_t count = pi_get(c, 8);
        memcpy(&s->count[l], &count, sizeof(count));
    }
    if (s->freq != NULL)
        get_doubles(c, s->freq, (size_t)s->n_pair);
    pi_get_floats(c, s->q, n_lane * row);
    if (s->k != NULL)
        pi_get_floats(c, s->k, (size_t)s->n_layer * (size_t)s->n_head_kv * row);
    if (s->n_centre > 1) {
        pi_get_floats(c, s->weight, n_lane * (size_t)s->n_centre);
        pi_get_floats(c, s->centre, n_lane * (size_t)s->n_centre * row);
    }
    uint64_t n = pi_get(c, LENGTH_SIZE);
    if (n != h->n_section)
        return pi_fail(err, PITH_FORMAT,
                       "importance: a section of %llu bytes, the file has %llu for it",
                       (unsigned long long)n, (unsigned long long)h->n_section);
    if (n > 0)
        PI_TRY(stats_importance_get(c, n, s, &s->importance, err));
    return stats_check(s, err);
}

pith_status stats_parse_own(const uint8_t *data, size_t size, struct pith_stats **out,
                            pith_error *err)
{
    struct pi_cursor c = {.in = data}, sum = {.in = data, .at = size - SUM_SIZE};
    struct pith_stats *s = NULL;
    struct header h = {0};
    if (size < 12 || memcmp(data, MAGIC, 8) != 0)
        return pi_fail(err, PITH_FORMAT, "the file does not begin with " MAGIC);
    PI_TRY(stats_new(&s, err));
    pith_status status = get_header(&c, size, s, &h, err);
    if (status == PITH_OK && pi_get(&sum, SUM_SIZE) != pi_sum_of(data, size - SUM_SIZE))
        status = pi_fail(err, PITH_FORMAT, "the checksum is wrong: the file is damaged");
    if (status == PITH_OK)
        status = take_counts(s, &h, err);
    if (status == PITH_OK)
        status = stats_alloc(s, h.flags & FLAG_FREQ, h.flags & FLAG_KEYS, err);
    if (status == PITH_OK)
        status = get_body(&c, s, &h, err);
    if (status != PITH_OK) {
        pith_stats_free(s);
        return status;
    }
    *out = s;
    return PITH_OK;
}
