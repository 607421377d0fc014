/*
 * stats_part.c - a part of a model's statistics, of some layers and KV heads, in the same memory.
 * It does not say which: ranks that share a model have each their own.
 */
#include "policy/keep/stats/stats.h"

/* Rows [n_layer][n_head][size] become the part's. size: bytes of a KV head; NULL rows: nothing. */
static void keep_heads(void *rows, const struct stats_part *p, size_t size)
{
    uint8_t *at = rows;
    size_t n_all = (size_t)p->n_head_all, n = (size_t)p->n_head * size;
    for (int32_t l = 0; rows != NULL && l < p->n_layer; l++)
        memmove(at + (size_t)l * n,
                at + ((size_t)(p->first_layer + l) * n_all + (size_t)p->first_head) * size, n);
}

/* The same of rows [n_layer][size]. */
static void keep_layers(void *rows, const struct stats_part *p, size_t size)
{
    uint8_t *at = rows;
    if (rows != NULL)
        memmove(at, at + (size_t)p->first_layer * size, (size_t)p->n_layer * size);
}

static void keep_importance(struct stats_importance *m, const struct stats_part *p)
{
    size_t feature = (size_t)m->n_feature * sizeof(float), one = sizeof(float);
    size_t embd = (size_t)m->n_embd * sizeof(float);
    keep_heads(m->mean, p, one);
    keep_heads(m->deviation, p, one);
    keep_heads(m->quantile, p, (size_t)m->n_quantile * sizeof(float));
    keep_heads(m->key_weight, p, feature + one);
    keep_heads(m->key_low, p, feature);
    keep_heads(m->key_high, p, feature);
    keep_heads(m->key_r2, p, one);
    keep_heads(m->hidden_weight, p, embd + one);
    keep_layers(m->hidden_low, p, embd);
    keep_layers(m->hidden_high, p, embd);
    keep_heads(m->hidden_r2, p, one);
    keep_layers(m->net_in, p, (size_t)m->n_hidden * (embd + one));
    keep_heads(m->net_out, p, (size_t)m->n_hidden * sizeof(float) + one);
    for (int32_t i = 0; i < m->n_map; i++) {
        keep_heads(m->map[i].slope, p, one);
        keep_heads(m->map[i].intercept, p, one);
        keep_heads(m->map[i].correlation, p, one);
    }
    m->n_layer = p->n_layer;
    m->n_lane = p->n_layer * p->n_head;
}

pith_status stats_keep_part(struct pith_stats *s, const struct stats_part *p, pith_error *err)
{
    if (s->n_layer != p->n_layer_all || s->n_head % p->n_head_all != 0 ||
        s->n_head_kv % p->n_head_all != 0)
        return pi_fail(err, PITH_INVALID,
                       "the statistics are of %d layers and %d query heads, and the model of %d "
                       "layers and %d KV heads",
                       s->n_layer, s->n_head, p->n_layer_all, p->n_head_all);
    size_t row = stats_row_len(s) * sizeof(float), n_centre = (size_t)s->n_centre;
    size_t n_query = (size_t)(s->n_head / p->n_head_all);
    size_t n_key = (size_t)(s->n_head_kv / p->n_head_all); /* above 1: a row for each query head */
    if (s->importance != NULL)
        keep_importance(s->importance, p);
    keep_layers(s->count, p, sizeof(*s->count));
    keep_heads(s->q, p, n_query * row);
    keep_heads(s->k, p, n_key * row);
    keep_heads(s->centre, p, n_query * n_centre * row);
    keep_heads(s->weight, p, n_query * n_centre * sizeof(float));
    s->n_layer = p->n_layer;
    s->n_head = (int32_t)n_query * p->n_head;
    s->n_head_kv = (int32_t)n_key * p->n_head;
    return PITH_OK;
}
