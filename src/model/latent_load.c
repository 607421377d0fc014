/*
 * latent_load.c - keys of families with multi-head latent attention: the sizes of heads and lanes,
 * and the scale of scores. Files say them in two ways. Newer files name the heads' sizes
 * key_length_mla and value_length_mla, and the lane's sizes key_length and value_length. Older ones
 * have no sizes of lanes.
 */
#include <math.h>

#include "model/latent.h"

#define MOST_HEADS (1 << 24) /* dimensions of all together, as load.c has it */
#define MOST_DIM (1 << 14)   /* of one head: the KV store's */
#define MOST_LOG 1e3f
#define MOST_TEMPERATURE 1e3f
#define LOG_UNIT 0.1f /* files have YaRN's log multiplier times this */

/* If a newer file states a size of the lane, it must be the size that follows from the other
   keys. */
static pith_status check_stated(const struct pith_model *m, const char *name, int32_t want,
                                pith_error *err)
{
    int32_t stated = want;
    PI_TRY(pi_key_count(m, name, 1, MOST_DIM, false, &stated, err));
    if (stated != want)
        return pi_fail(err, PITH_FORMAT, "%s.%s: %d, where the lane of latent attention has %d",
                       m->arch->name, name, stated, want);
    return PITH_OK;
}

static pith_status check_lane(const struct pith_model *m, pith_error *err)
{
    const struct pi_hparams *hp = &m->hp;
    PI_TRY(check_stated(m, "attention.key_length", hp->latent.n_rank + hp->n_rot, err));
    PI_TRY(check_stated(m, "attention.value_length", hp->latent.n_rank, err));
    return check_stated(m, "attention.head_count_kv", 1, err);
}

/* The sizes of a head, *key with its rotated part. */
static pith_status read_heads(const struct pith_model *m, int32_t *key, int32_t *value,
                              pith_error *err)
{
    int32_t k = 0, v = 0;
    const char *a = m->arch->name;
    PI_TRY(pi_key_count(m, "attention.key_length_mla", 1, MOST_DIM, false, &k, err));
    PI_TRY(pi_key_count(m, "attention.value_length_mla", 1, MOST_DIM, false, &v, err));
    if ((k == 0) != (v == 0))
        return pi_fail(err, PITH_FORMAT, "%s.attention.%s_length_mla is missing beside %s", a,
                       k == 0 ? "key" : "value", k == 0 ? "value_length_mla" : "key_length_mla");
    *key = k > 0 ? k : m->hp.dim_k;
    *value = v > 0 ? v : m->hp.dim_v;
    return k > 0 ? check_lane(m, err) : PITH_OK;
}

/* Queries are compressed, too, but in files that have the matrix which makes them at once. */
static pith_status read_query(struct pith_model *m, pith_error *err)
{
    if (pi_gguf_find_tensor(&m->gguf, "blk.0.attn_q.weight") != NULL)
        return PITH_OK;
    return pi_key_count(m, "attention.q_lora_rank", 1, MOST_DIM, true, &m->hp.latent.n_query, err);
}

static pith_status read_sizes(struct pith_model *m, int32_t *key, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    struct pi_latent_shape *s = &hp->latent;
    int32_t n_rot = 0;
    PI_TRY(pi_key_count(m, "attention.kv_lora_rank", 1, MOST_DIM, true, &s->n_rank, err));
    PI_TRY(pi_key_count(m, "rope.dimension_count", 2, MOST_DIM, true, &n_rot, err));
    PI_TRY(read_heads(m, key, &s->dim_out, err));
    if (n_rot >= *key)
        return pi_fail(err, PITH_FORMAT,
                       "%s.rope.dimension_count: %d leaves nothing of a head size of %d",
                       m->arch->name, n_rot, *key);
    s->dim_key = *key - n_rot;
    int64_t widest = pi_max(pi_max(s->n_rank + (int64_t)n_rot, *key), s->dim_out);
    if (widest * hp->n_head > MOST_HEADS)
        return pi_fail(err, PITH_FORMAT,
                       "%s.attention: %d heads of up to %lld are more than Pith can hold",
                       m->arch->name, hp->n_head, (long long)widest);
    return read_query(m, err);
}

/* Scores are divided by the root of a head's size before compression of keys. With YaRN they are
   multiplied by its factor of magnitudes, twice. They are also multiplied by the square of 1 + 0.1
   u ln s, where u is its log multiplier and s its factor. llama.cpp does so with linear scaling,
   too. */
static pith_status read_scale(struct pith_model *m, int32_t key, pith_error *err)
{
    const struct pi_rope *rope = &m->rope;
    float log_mul = 0;
    PI_TRY(pi_key_number(m, "rope.scaling.yarn_log_multiplier", 0, MOST_LOG, false, &log_mul, err));
    double length = rope->factor > 1 ? log((double)rope->factor) : 0;
    double magnitude = (double)rope->magnitude * (1 + 0.1 * (double)(log_mul / LOG_UNIT) * length);
    if (rope->linear)
        magnitude *= 1 + 0.1 * length;
    m->hp.attn_scale = (float)(magnitude * magnitude / sqrt((double)key));
    return PITH_OK;
}

static pith_status read_temperature(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    PI_TRY(pi_key_number(m, "attention.temperature_scale", 0, MOST_TEMPERATURE, false,
                         &hp->temp_scale, err));
    return hp->temp_scale == 0 ? PITH_OK
                               : pi_key_count(m, "attention.temperature_length", 1, INT32_MAX, true,
                                              &hp->temp_len, err);
}

pith_status pi_latent_read(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    int32_t key = 0;
    PI_TRY(read_sizes(m, &key, err));
    PI_TRY(read_scale(m, key, err));
    PI_TRY(read_temperature(m, err));
    hp->dim_k = hp->latent.n_rank + hp->n_rot;
    hp->dim_v = hp->latent.n_rank;
    hp->n_head_kv = 1;
    return PITH_OK;
}
