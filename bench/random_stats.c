/*
 * random_stats.c - see random_stats.h.
 */
#define _POSIX_C_SOURCE 200809L

#include "random_stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "rig.h"
#include "policy/keep/stats/stats.h"

static void fill_rows(struct pith_stats *s)
{
    size_t n_lane = (size_t)s->n_layer * (size_t)s->n_head, n = (size_t)s->n_pair;
    for (int32_t l = 0; l < s->n_layer; l++)
        s->count[l] = 1;
    for (size_t i = 0; i < n_lane; i++) {
        float *row = s->q + i * stats_row_len(s);
        fill_random(row, 2 * n, (uint32_t)i + 1);
        for (size_t f = 0; f < n; f++)
            row[2 * n + f] = 1.5f; /* above the modulus of any mean */
    }
}

pith_status random_stats_write(const pith_model *model, char *path, size_t cap, pith_error *err)
{
    struct pith_stats *s = NULL;
    pith_model_info info;
    pith_model_get_info(model, &info);
    snprintf(path, cap, "/tmp/pith-bench-XXXXXX");
    int file = mkstemp(path);
    if (file < 0)
        return pi_fail(err, PITH_IO, "/tmp: no file for the statistics can be made");
    close(file);
    PI_TRY(stats_new(&s, err));
    s->n_layer = info.n_layer;
    s->n_head = info.n_head;
    s->n_head_kv = info.n_head_kv;
    s->n_pair = info.n_rot / 2;
    s->fingerprint = pi_model_fingerprint(model);
    pith_status status = stats_alloc(s, false, false, err);
    if (status == PITH_OK) {
        fill_rows(s);
        status = pith_stats_save(s, path, err);
    }
    pith_stats_free(s);
    return status;
}
