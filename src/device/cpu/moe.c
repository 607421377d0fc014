/*
 * moe.c - the rows of a mixture of experts, on the processor: the choice of experts for tokens, the
 * steps between an expert's products, and the sum. Which experts a token takes is route.c's.
 * Invariant: a token's sum is formed in the order of its own router.
 */
#include <math.h>

#include "cpu/expf.h"
#include "device/cpu/cpu.h"
#include "device/cpu/route.h"

/* ---- the choice of experts ---- */

static float sigmoid_of(const float *w, const float *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)w[i] * (double)x[i];
    return 1 / (1 + pi_expf(fminf(fmaxf((float)-sum, PI_EXP_MIN), PI_EXP_MAX)));
}

void cpu_moe_choose_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_moe_choose_rows *a = args;
    const struct pi_moe_rule *rule = &a->rule;
    for (int64_t t = begin; t < end; t++) {
        float *logit = pi_cpu_floats(a->logit) + t * rule->n_expert;
        if (pi_at_some(a->b_router))
            s->cpu->vec.add(logit, pi_cpu_floats(a->b_router), rule->n_expert);
        pi_moe_route(rule, pi_cpu_floats(a->b_choice), logit,
                     pi_cpu_floats(a->rank) + t * rule->n_expert,
                     pi_cpu_ints(a->places.chosen) + t * rule->n_used,
                     pi_cpu_floats(a->places.weight) + t * rule->n_used);
        if (pi_at_some(a->shared_gate))
            pi_cpu_floats(a->shared_weight)[t] = sigmoid_of(
                pi_cpu_floats(a->shared_gate), pi_cpu_floats(a->h) + t * a->n_embd, a->n_embd);
    }
}

/* Gives every choice its row among the rows of its expert, tokens in order. */
void cpu_moe_sort(struct pi_stream *s, const struct pi_moe_rule *rule,
                  const struct pi_moe_places *places, int32_t n_tok)
{
    const int32_t *chosen = pi_cpu_ints(places->chosen);
    int32_t *row = pi_cpu_ints(places->row), *token = pi_cpu_ints(places->token);
    int32_t *first = pi_cpu_ints(places->first), *busy = pi_cpu_ints(places->busy);
    int32_t n_expert = rule->n_expert, n_used = rule->n_used, n_row = n_tok * n_used, n_busy = 0;
    (void)s;
    memset(first, 0, (size_t)(n_expert + 1) * sizeof(*first));
    for (int32_t i = 0; i < n_row; i++)
        first[chosen[i] + 1]++;
    for (int32_t e = 0; e < n_expert; e++) {
        if (first[e + 1] > 0)
            busy[n_busy++] = e;
        first[e + 1] += first[e];
    }
    /* Each start moves to its end, where the next one's was. */
    for (int32_t i = 0; i < n_row; i++) {
        row[i] = first[chosen[i]]++;
        token[row[i]] = i / n_used;
    }
    for (int32_t e = n_expert; e > 0; e--)
        first[e] = first[e - 1];
    first[0] = 0;
    *pi_cpu_ints(places->n_busy) = n_busy;
}

/* The expert of a row: the last with first <= row. */
static int32_t expert_of(const struct pi_moe_places *places, int64_t row)
{
    const int32_t *first = pi_cpu_ints(places->first), *busy = pi_cpu_ints(places->busy);
    int32_t lo = 0, hi = *pi_cpu_ints(places->n_busy) - 1;
    while (lo < hi) {
        int32_t mid = (lo + hi + 1) / 2;
        if (first[busy[mid]] <= row)
            lo = mid;
        else
            hi = mid - 1;
    }
    return busy[lo];
}

/* ---- rows of experts ---- */

/* The int8 copy of a row. */
static void copy_act(const struct pi_int8 *from, size_t from_row, const struct pi_int8 *to,
                     size_t to_row, size_t n_block)
{
    memcpy((int8_t *)pi_cpu_ptr(to->q) + to_row * n_block * PI_ACT_BLOCK,
           (const int8_t *)pi_cpu_ptr(from->q) + from_row * n_block * PI_ACT_BLOCK,
           n_block * PI_ACT_BLOCK);
    memcpy(pi_cpu_floats(to->scale) + to_row * n_block,
           pi_cpu_floats(from->scale) + from_row * n_block, n_block * sizeof(float));
    memcpy((int16_t *)pi_cpu_ptr(to->sum16) + to_row * n_block * 2,
           (const int16_t *)pi_cpu_ptr(from->sum16) + from_row * n_block * 2,
           n_block * 2 * sizeof(int16_t));
}

void cpu_moe_gather_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_moe_gather_rows *a = args;
    const int32_t *token = pi_cpu_ints(a->places.token);
    size_t n = (size_t)a->n, n_block = (size_t)pi_ceil_div(a->n, PI_ACT_BLOCK);
    (void)s;
    for (size_t r = (size_t)begin; r < (size_t)end; r++) {
        size_t from = (size_t)token[r];
        if (pi_at_some(a->x))
            memcpy(pi_cpu_floats(a->x) + r * n, pi_cpu_floats(a->h) + from * n, n * sizeof(float));
        if (pi_at_some(a->act.q))
            copy_act(&a->from, from, &a->act, r, n_block);
    }
}

void cpu_moe_hidden_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_moe_hidden_rows *a = args;
    const float *b_gate = pi_cpu_floats(a->b_gate), *b_up = pi_cpu_floats(a->b_up);
    int32_t n = a->n;
    for (int64_t r = begin; r < end; r++) {
        float *gate = pi_cpu_floats(a->gate) + r * n, *up = pi_cpu_floats(a->up) + r * n;
        size_t expert = (size_t)expert_of(&a->places, r);
        if (b_gate != NULL)
            s->cpu->vec.add(gate, b_gate + expert * (size_t)n, n);
        if (b_up != NULL)
            s->cpu->vec.add(up, b_up + expert * (size_t)n, n);
        if (a->fn == PI_MOE_OAI)
            s->cpu->vec.oai_mul(gate, up, n);
        else
            s->cpu->vec.silu_mul(gate, up, n);
        cpu_quantize(s, &a->act, gate, r, n);
    }
}

/* ---- the sum ---- */

/* out = w * (y + bias) for the first, otherwise added to out. */
static void add_weighted(const float *bias, float w, const float *y, bool first, float *out,
                         int32_t n)
{
    for (int32_t i = 0; i < n && first; i++)
        out[i] = w * (bias != NULL ? y[i] + bias[i] : y[i]);
    for (int32_t i = 0; i < n && !first; i++)
        out[i] += w * (bias != NULL ? y[i] + bias[i] : y[i]);
}

void cpu_moe_sum_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_moe_sum_rows *a = args;
    const int32_t *row = pi_cpu_ints(a->places.row), *chosen = pi_cpu_ints(a->places.chosen);
    const float *weight = pi_cpu_floats(a->places.weight), *b_down = pi_cpu_floats(a->b_down);
    float *x = pi_cpu_floats(a->x);
    int32_t n = a->n, n_used = a->n_used;
    (void)s;
    for (int64_t t = begin; t < end; t++) {
        /* The row of the first choice takes the sum where h has the shared expert's. */
        float *h = pi_cpu_floats(a->h) + t * n;
        float *sum = a->shared ? x + (size_t)row[t * n_used] * (size_t)n : h;
        for (int64_t i = t * n_used; i < (t + 1) * n_used; i++) {
            const float *bias = b_down != NULL ? b_down + (size_t)chosen[i] * (size_t)n : NULL;
            add_weighted(bias, weight[i], x + (size_t)row[i] * (size_t)n, i == t * n_used, sum, n);
        }
        float w = pi_at_some(a->shared_weight) ? pi_cpu_floats(a->shared_weight)[t] : 1;
        for (int32_t i = 0; i < n && a->shared; i++)
            h[i] = sum[i] + h[i] * w;
    }
}
