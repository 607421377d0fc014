/*
 * fuzz_stats.c - the readers of calibration statistics on any bytes: Pith's own format, as it is
 * and with size and checksum made right, and TRIA. A finding is a sanitizer's report, a leak or a
 * refusal without a sentence. So are accepted statistics that break stats.h's promises or are
 * written differently from the input.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "file/sum.h"
#include "policy/keep/stats/stats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef pith_status parse_fn(const uint8_t *data, size_t size, struct pith_stats **out,
                             pith_error *err);

/* Writes and reads the statistics again. */
static void check_round_trip(const struct pith_stats *s)
{
    struct pith_stats *again = NULL;
    uint8_t *bytes = NULL, *bytes_again = NULL;
    size_t n, n_again;
    if (stats_format(s, &bytes, &n, NULL) != PITH_OK ||
        stats_parse_own(bytes, n, &again, NULL) != PITH_OK ||
        stats_format(again, &bytes_again, &n_again, NULL) != PITH_OK || n != n_again ||
        memcmp(bytes, bytes_again, n) != 0)
        abort();
    pith_stats_free(again);
    pi_mem_free(bytes);
    pi_mem_free(bytes_again);
}

static void check_row(const struct pith_stats *s, const struct stats_row *row)
{
    for (int32_t f = 0; f < s->n_pair; f++) {
        double r = stats_resultant(row, f);
        if (!(r >= 0.0 && r <= 1.0) || !isfinite(row->abs[f]))
            abort();
    }
}

/* The centres of a head: rows as all are, and shares that are 1 together. */
static void check_centres(const struct pith_stats *s, int32_t l, int32_t h)
{
    pith_stats_head head;
    double sum = 0.0;
    if (pith_stats_get_head(s, l, h, &head) != PITH_OK)
        abort();
    for (int32_t c = 0; s->centre != NULL && c < s->n_centre; c++) {
        struct stats_row row = stats_centre(s, l, h, c);
        check_row(s, &row);
        sum += (double)head.weight[c];
    }
    if (s->centre != NULL && head.n_query != 0 && !(fabs(sum - 1.0) < 0.01))
        abort();
}

/* Shares of lanes are shares, and their mean is the wanted one. */
static void check_importance(const struct stats_importance *m)
{
    double *share = malloc((size_t)m->n_lane * sizeof(*share)), sum = 0.0;
    if (share == NULL)
        return;
    stats_lane_shares(m, 0.3, share);
    for (int32_t i = 0; i < m->n_lane; i++) {
        if (!(share[i] >= -1e-9 && share[i] <= 1.0 + 1e-9))
            abort();
        sum += share[i];
    }
    if (!(fabs(sum / m->n_lane - 0.3) < 1e-9))
        abort();
    free(share);
}

static void check(const struct pith_stats *s)
{
    bool any = false;
    for (int32_t l = 0; l < s->n_layer; l++) {
        any |= s->count[l] != 0;
        for (int32_t h = 0; h < s->n_head; h++) {
            struct stats_row row = stats_q(s, l, h);
            check_row(s, &row);
            if (s->k != NULL) {
                row = stats_k(s, l, h);
                check_row(s, &row);
            }
            check_centres(s, l, h);
        }
    }
    if (!any)
        abort();
    if (s->importance != NULL)
        check_importance(s->importance);
    check_round_trip(s);
}

static void try_parse(parse_fn *parse, const uint8_t *data, size_t size)
{
    struct pith_stats *s = NULL;
    pith_error err = {0};
    pith_status status = parse(data, size, &s, &err);
    if (status == PITH_OK)
        check(s);
    else if (err.message[0] == '\0' || err.status != status || s != NULL)
        abort();
    pith_stats_free(s);
}

static void put_le(uint8_t *p, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_parse(stats_parse, data, size);
    try_parse(stats_parse_tria, data, size);
    if (size >= 96) {
        uint8_t *sealed = malloc(size);
        if (sealed == NULL)
            return 0;
        memcpy(sealed, data, size);
        memcpy(sealed, "PITHSTAT", 8);
        put_le(sealed + 16, size);
        put_le(sealed + size - 8, pi_sum_of(sealed, size - 8));
        try_parse(stats_parse_own, sealed, size);
        free(sealed);
    }
    if (pi_mem_used(PI_MEM_OTHER) != 0)
        abort();
    return 0;
}
