/*
 * latent.c - the rows of latent attention on the processor (model/latent.c has the formulas). They
 * go from projections to the lane's vectors and to queries, and from attention's output to its
 * heads.
 */
#include "device/cpu/cpu.h"

static size_t len_q(const struct pi_latent_rows *a)
{
    return (size_t)a->n_head * (size_t)a->dim_k;
}

void cpu_latent_low_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_latent_rows *a = args;
    for (int64_t t = begin; t < end; t++) {
        float *low = pi_cpu_floats(a->low) + t * a->n_query;
        s->cpu->vec.rms_norm(low, pi_cpu_floats(a->query_a_norm), low, a->n_query, a->eps);
        cpu_quantize(s, &a->act, low, t, a->n_query);
    }
}

/* Row t's vector of the lane. Observers of values get a copy. */
static void make_key(const struct cpu_stream *s, const struct pi_latent_rows *a, int64_t t,
                     const float *cs)
{
    const float *raw = pi_cpu_floats(a->raw) + t * a->dim_k;
    float *k = pi_cpu_floats(a->k) + t * a->dim_k;
    memcpy(k, raw + a->dim_v, (size_t)a->n_rot * sizeof(*k));
    s->cpu->vec.rms_norm(raw, pi_cpu_floats(a->latent_norm), k + a->n_rot, a->dim_v, a->eps);
    if (pi_at_some(a->k_pre))
        memcpy(pi_cpu_floats(a->k_pre) + t * a->dim_k, k, (size_t)a->dim_k * sizeof(*k));
    if (a->wants_v)
        memcpy(pi_cpu_floats(a->v) + t * a->dim_v, k + a->n_rot, (size_t)a->dim_v * sizeof(*k));
    s->cpu->vec.rope(k, cs, a->rope->n_pair, a->rope->adjacent);
}

/* Row t's heads: the rotated dimensions go to the query, the rest to the next product's input. */
static void split_heads(const struct cpu_stream *s, const struct pi_latent_rows *a, int64_t t,
                        const float *cs)
{
    size_t n = (size_t)a->dim_key, n_rot = (size_t)a->n_rot;
    const float *head = pi_cpu_floats(a->head) + (size_t)t * (size_t)a->n_head * (n + n_rot);
    for (int32_t h = 0; h < a->n_head; h++, head += n + n_rot) {
        int64_t row = (int64_t)h * a->n_tok + t;
        size_t at = (size_t)t * len_q(a) + (size_t)h * (size_t)a->dim_k;
        float *q = pi_cpu_floats(a->q) + at;
        if (pi_at_some(a->act.q))
            cpu_quantize(s, &a->act, head, row, (int32_t)n);
        else
            memcpy(pi_cpu_floats(a->att) + (size_t)row * n, head, n * sizeof(*head));
        memcpy(q, head + n, n_rot * sizeof(*q));
        if (pi_at_some(a->q_pre))
            memcpy(pi_cpu_floats(a->q_pre) + at, q, n_rot * sizeof(*q));
        s->cpu->vec.rope(q, cs, a->rope->n_pair, a->rope->adjacent);
    }
}

void cpu_latent_in_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_latent_rows *a = args;
    for (int64_t t = begin; t < end; t++) {
        const float *cs = pi_cpu_floats(a->cs) + t * a->rope->n_pair * 2;
        make_key(s, a, t, cs);
        split_heads(s, a, t, cs);
    }
}

/* The last step of queries: a copy for observers, and a factor that grows with the position. */
void cpu_latent_query_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_latent_rows *a = args;
    float *q_pre = pi_cpu_floats(a->q_pre);
    (void)s;
    for (int64_t t = begin; t < end; t++) {
        float *q = pi_cpu_floats(a->q) + (size_t)t * len_q(a);
        for (int32_t h = 0; h < a->n_head && q_pre != NULL; h++) {
            size_t at = (size_t)h * (size_t)a->dim_k + (size_t)a->n_rot;
            memcpy(q_pre + (size_t)t * len_q(a) + at, q + at, (size_t)a->dim_v * sizeof(*q));
        }
        if (a->temp.scale == 0.0f)
            continue;
        float factor = cpu_temperature(&a->temp, pi_cpu_ints(a->pos), t);
        for (size_t i = 0; i < len_q(a); i++)
            q[i] *= factor;
    }
}

/* Gathers the output of attention head by head, into the memory of the queries, which are no longer
   needed. */
void cpu_latent_gather_rows(const struct cpu_stream *s, const void *args, int64_t begin,
                            int64_t end)
{
    const struct pi_latent_rows *a = args;
    size_t n = (size_t)a->dim_v;
    for (int64_t t = begin; t < end; t++)
        for (int32_t h = 0; h < a->n_head; h++) {
            const float *att =
                pi_cpu_floats(a->att) + ((size_t)t * (size_t)a->n_head + (size_t)h) * n;
            int64_t row = (int64_t)h * a->n_tok + t;
            if (pi_at_some(a->act.q))
                cpu_quantize(s, &a->act, att, row, a->dim_v);
            else
                memcpy(pi_cpu_floats(a->q) + (size_t)row * n, att, n * sizeof(*att));
        }
}
