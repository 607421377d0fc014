/*
 * moe.c - the block of a mixture of experts: a router chooses some experts for each token, and what
 * these make of it is added up with the router's weights. A shared expert, where there is one, takes
 * every token.
 *
 * The rows of a pass are sorted by expert, each token standing there once for each of its experts.
 * So a matrix is read once for all of its rows, and those of experts that nobody chose are not read.
 * Invariant: a token's sum is formed in the order of its own router, from products whose bits do not
 * depend on rows beside them. So its bits depend on that token alone.
 */
#include <math.h>

#include "cpu/expf.h"
#include "model/pass.h"

static const struct pi_moe_rule *rule_of(const struct pi_pass *pass)
{
    return &pass->model->hp.moe;
}

static void plan(const struct pi_layer *layer, struct pi_layer_block *out)
{
    out->norm = layer->ffn_norm;
    out->bias = NULL;
    out->post_norm = layer->ffn_post_norm;
    out->reads_int8 =
        pi_matrix_reads_int8(&layer->w_router) || pi_matrix_reads_int8(&layer->w_gate_exps) ||
        pi_matrix_reads_int8(&layer->w_up_exps) ||
        (layer->w_gate_shared.data != NULL && (pi_matrix_reads_int8(&layer->w_gate_shared) ||
                                               pi_matrix_reads_int8(&layer->w_up_shared)));
}

/* ---- scratch ---- */

/* Floats of n values, to the next cache line. */
static size_t line_len(size_t n)
{
    return pi_align(n, 16);
}

static size_t blocks_of(const struct pi_hparams *hp)
{
    return (size_t)pi_ceil_div(pi_max(hp->n_embd, hp->moe.n_ff), PI_ACT_BLOCK);
}

/* The parts of the memory, in the order in which they lie there: floats of a token. */
enum { AT_X, AT_GATE, AT_UP, AT_Q, AT_SCALE, AT_SUM, AT_PLACES, AT_ROUTER, AT_SHARED, N_PART };

static void count_parts(const struct pi_hparams *hp, size_t part[N_PART])
{
    const struct pi_moe_rule *m = &hp->moe;
    size_t n = (size_t)m->n_used, n_expert = (size_t)m->n_expert;
    part[AT_X] = line_len(n * (size_t)hp->n_embd);
    part[AT_GATE] = part[AT_UP] = line_len(n * (size_t)m->n_ff);
    part[AT_Q] = line_len(n * blocks_of(hp) * PI_ACT_BLOCK / sizeof(float));
    part[AT_SCALE] = part[AT_SUM] = line_len(n * blocks_of(hp));
    part[AT_PLACES] = line_len(4 * n + 2 * n_expert + 2); /* as much as one token needs */
    part[AT_ROUTER] = line_len(2 * n_expert + 1);
    part[AT_SHARED] = line_len(2 * (size_t)m->n_ff_shared);
}

static void scratch(const struct pi_hparams *hp, struct pi_block_scratch *out)
{
    size_t part[N_PART];
    count_parts(hp, part);
    *out = (struct pi_block_scratch){.widest = (size_t)pi_max(hp->moe.n_ff, hp->moe.n_ff_shared)};
    for (int32_t i = 0; i < N_PART; i++)
        out->row += part[i];
}

static void place(struct pi_pass *pass, float *memory)
{
    const struct pi_moe_rule *rule = rule_of(pass);
    struct pi_pass_moe *m = &pass->moe;
    size_t part[N_PART], n_tok = (size_t)pass->max_tok, n_row = n_tok * (size_t)rule->n_used;
    float *at[N_PART];
    count_parts(&pass->model->hp, part);
    for (int32_t i = 0; i < N_PART; i++) {
        at[i] = memory;
        memory += n_tok * part[i];
    }
    m->x = at[AT_X];
    m->gate = at[AT_GATE];
    m->up = at[AT_UP];
    m->q = (int8_t *)(void *)at[AT_Q];
    m->scale = at[AT_SCALE];
    m->sum16 = (int16_t *)(void *)at[AT_SUM];
    m->weight = at[AT_PLACES];
    m->chosen = (int32_t *)(void *)(m->weight + n_row);
    m->row = m->chosen + n_row;
    m->token = m->row + n_row;
    m->first = m->token + n_row;
    m->busy = m->first + rule->n_expert + 1;
    m->logit = at[AT_ROUTER];
    m->rank = m->logit + n_tok * (size_t)rule->n_expert;
    m->shared_weight = m->rank + n_tok * (size_t)rule->n_expert;
    m->shared_gate = at[AT_SHARED];
    m->shared_up = m->shared_gate + n_tok * (size_t)rule->n_ff_shared;
}

/* ---- who takes which token ---- */

static float sigmoid_of(const float *w, const float *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)w[i] * (double)x[i];
    return 1 / (1 + pi_expf(fminf(fmaxf((float)-sum, PI_EXP_MIN), PI_EXP_MAX)));
}

static void choose_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    struct pi_pass_moe *m = &pass->moe;
    const struct pi_layer *layer = pass->layer;
    const struct pi_moe_rule *rule = rule_of(pass);
    int32_t n_embd = pass->model->hp.n_embd;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *logit = m->logit + t * rule->n_expert;
        if (layer->b_router != NULL)
            pass->cpu->vec.add(logit, layer->b_router, rule->n_expert);
        pi_moe_route(rule, layer->b_choice, logit, m->rank + t * rule->n_expert,
                     m->chosen + t * rule->n_used, m->weight + t * rule->n_used);
        if (layer->shared_gate != NULL)
            m->shared_weight[t] = sigmoid_of(layer->shared_gate, pass->h + t * n_embd, n_embd);
    }
}

/* Gives every choice its row among those of its expert, tokens in order. */
static void sort_rows(struct pi_pass *pass)
{
    struct pi_pass_moe *m = &pass->moe;
    int32_t n_expert = rule_of(pass)->n_expert, n_used = rule_of(pass)->n_used;
    m->n_row = pass->n_tok * n_used;
    m->n_busy = 0;
    memset(m->first, 0, (size_t)(n_expert + 1) * sizeof(*m->first));
    for (int32_t i = 0; i < m->n_row; i++)
        m->first[m->chosen[i] + 1]++;
    for (int32_t e = 0; e < n_expert; e++) {
        if (m->first[e + 1] > 0)
            m->busy[m->n_busy++] = e;
        m->first[e + 1] += m->first[e];
    }
    /* Each start moves to its end, where the next one's was. */
    for (int32_t i = 0; i < m->n_row; i++) {
        m->row[i] = m->first[m->chosen[i]]++;
        m->token[m->row[i]] = i / n_used;
    }
    for (int32_t e = n_expert; e > 0; e--)
        m->first[e] = m->first[e - 1];
    m->first[0] = 0;
}

/* The expert of a row: the last with first <= row. */
static int32_t expert_of(const struct pi_pass_moe *m, int64_t row)
{
    int32_t lo = 0, hi = m->n_busy - 1;
    while (lo < hi) {
        int32_t mid = (lo + hi + 1) / 2;
        if (m->first[m->busy[mid]] <= row)
            lo = mid;
        else
            hi = mid - 1;
    }
    return m->busy[lo];
}

/* ---- rows of experts ---- */

/* A loop over the sorted rows, each of about n floats that cost so many operations. */
static void expert_rows(struct pi_pass *pass, pi_job_fn *fn, int64_t n)
{
    pi_parallel_ranges(pi_pass_threads_for(pass, pass->moe.n_row * n), pass->moe.n_row, fn, pass);
}

static void gather_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    struct pi_pass_moe *m = &pass->moe;
    size_t n = (size_t)pass->model->hp.n_embd;
    size_t n_block = (size_t)pi_ceil_div((int64_t)n, PI_ACT_BLOCK);
    bool gate_int8 = pi_matrix_reads_int8(&pass->layer->w_gate_exps);
    bool up_int8 = pi_matrix_reads_int8(&pass->layer->w_up_exps);
    (void)thread;
    for (size_t r = (size_t)begin; r < (size_t)end; r++) {
        size_t from = (size_t)m->token[r];
        if (!gate_int8 || !up_int8)
            memcpy(m->x + r * n, pass->h + from * n, n * sizeof(*m->x));
        if (!gate_int8 && !up_int8)
            continue;
        memcpy(m->q + r * n_block * PI_ACT_BLOCK, pass->act_q + from * n_block * PI_ACT_BLOCK,
               n_block * PI_ACT_BLOCK);
        memcpy(m->scale + r * n_block, pass->act_scale + from * n_block,
               n_block * sizeof(*m->scale));
        memcpy(m->sum16 + r * n_block * 2, pass->act_sum16 + from * n_block * 2,
               n_block * 2 * sizeof(*m->sum16));
    }
}

static void activate(const struct pi_pass *pass, float *gate, const float *up, int32_t n)
{
    if (rule_of(pass)->act == PI_MOE_OAI)
        pass->cpu->vec.oai_mul(gate, up, n);
    else
        pass->cpu->vec.silu_mul(gate, up, n);
}

static void hidden_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    struct pi_pass_moe *m = &pass->moe;
    const struct pi_layer *layer = pass->layer;
    int32_t n = rule_of(pass)->n_ff;
    size_t n_block = (size_t)pi_ceil_div(n, PI_ACT_BLOCK);
    bool reads_int8 = pi_matrix_reads_int8(&layer->w_down_exps);
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        float *gate = m->gate + r * n, *up = m->up + r * n;
        size_t expert = (size_t)expert_of(m, r), at = (size_t)r * n_block;
        if (layer->b_gate_exps != NULL)
            pass->cpu->vec.add(gate, layer->b_gate_exps + expert * (size_t)n, n);
        if (layer->b_up_exps != NULL)
            pass->cpu->vec.add(up, layer->b_up_exps + expert * (size_t)n, n);
        activate(pass, gate, up, n);
        if (reads_int8)
            pass->cpu->vec.quantize(gate, n, m->q + at * PI_ACT_BLOCK, m->scale + at,
                                    m->sum16 + at * 2);
    }
}

/* ---- products ---- */

/* One or two matrices of every expert that has rows, as one loop. */
struct product {
    struct pi_pass *pass;
    const float *x; /* [n_row][n_col] */
    const struct pi_matrix *w[2];
    float *out[2]; /* [n_row][rows of the matrix] */
    int32_t n;
    int32_t chunk;   /* groups of one work item */
    int32_t n_chunk; /* work items of a matrix; all have the same shape */
};

static void product_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct product *p = ctx;
    struct pi_pass *pass = p->pass;
    const struct pi_pass_moe *m = &pass->moe;
    void *room = pass->scratch + (size_t)thread * pass->scratch_size;
    for (int64_t item = begin; item < end; item++) {
        int32_t expert = m->busy[item / (p->n * p->n_chunk)];
        int32_t i = (int32_t)(item / p->n_chunk % p->n), part = (int32_t)(item % p->n_chunk);
        struct pi_matrix w = pi_matrix_slab(p->w[i], expert);
        size_t row = (size_t)m->first[expert];
        size_t n_block = (size_t)pi_ceil_div(w.n_col, PI_ACT_BLOCK);
        struct pi_act act = {.n_tok = m->first[expert + 1] - m->first[expert],
                             .n_col = w.n_col,
                             .x = p->x + row * (size_t)w.n_col,
                             .q = m->q + row * n_block * PI_ACT_BLOCK,
                             .scale = m->scale + row * n_block,
                             .sum16 = m->sum16 + row * n_block * 2,
                             .far = pass->cpu->matmul.far};
        int32_t last = (int32_t)pi_min((part + 1) * p->chunk, w.n_group);
        pass->cpu->matmul.mul[pi_matmul_index(w.type)](&w, &act, part * p->chunk, last,
                                                       p->out[i] + row * (size_t)w.n_row,
                                                       (size_t)w.n_row, room);
    }
}

#define MIN_CHUNKS_PER_THREAD 8 /* so that a slow thread holds the others up by little */

static void run_product(struct product *p)
{
    const struct pi_pass_moe *m = &p->pass->moe;
    int64_t n_group = p->w[0]->n_group, n_all = n_group * p->n * m->n_busy;
    int64_t work = n_group * PI_GROUP * p->w[0]->n_col * m->n_row * p->n;
    int32_t n_thread = pi_pass_threads_for(p->pass, work);
    int64_t chunk = n_thread == 1 ? n_group : n_all / (n_thread * MIN_CHUNKS_PER_THREAD);
    p->chunk = (int32_t)pi_min(pi_max(1, chunk), n_group);
    p->n_chunk = (int32_t)pi_ceil_div(n_group, p->chunk);
    pi_parallel_items(n_thread, (int64_t)p->n_chunk * p->n * m->n_busy, product_items, p);
}

/* ---- the shared expert ---- */

static void shared_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    int32_t n = rule_of(pass)->n_ff_shared;
    bool reads_int8 = pi_matrix_reads_int8(&pass->layer->w_down_shared);
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *gate = pass->moe.shared_gate + t * n;
        activate(pass, gate, pass->moe.shared_up + t * n, n);
        if (reads_int8)
            pi_pass_quantize(pass, gate, t, n);
    }
}

/* From the stream, which still has its int8 copy, to shared_gate. */
static void enter_shared(struct pi_pass *pass)
{
    const struct pi_layer *w = pass->layer;
    pi_pass_product(pass, pass->h, pass->n_tok,
                    (const struct pi_matrix *const[]){&w->w_gate_shared, &w->w_up_shared},
                    (float *const[]){pass->moe.shared_gate, pass->moe.shared_up}, 2);
}

/* To h, whose rows nobody reads any more. */
static void leave_shared(struct pi_pass *pass)
{
    pi_pass_rows(pass, shared_rows, rule_of(pass)->n_ff_shared);
    pi_pass_product(pass, pass->moe.shared_gate, pass->n_tok,
                    (const struct pi_matrix *const[]){&pass->layer->w_down_shared},
                    (float *const[]){pass->h}, 1);
}

/* ---- the sum ---- */

/* out = w * (y + bias), added to what is there unless it is the first. */
static void add_weighted(const struct pi_layer *layer, int32_t expert, float w, const float *y,
                         bool first, float *out, int32_t n)
{
    const float *bias = layer->b_down_exps;
    bias = bias != NULL ? bias + (size_t)expert * (size_t)n : NULL;
    for (int32_t i = 0; i < n && first; i++)
        out[i] = w * (bias != NULL ? y[i] + bias[i] : y[i]);
    for (int32_t i = 0; i < n && !first; i++)
        out[i] += w * (bias != NULL ? y[i] + bias[i] : y[i]);
}

static void sum_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_pass_moe *m = &pass->moe;
    const struct pi_layer *layer = pass->layer;
    int32_t n = pass->model->hp.n_embd, n_used = rule_of(pass)->n_used;
    bool shared = layer->w_down_shared.data != NULL;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        /* The row of the first choice takes the sum where h has the shared expert's. */
        float *h = pass->h + t * n, *first = m->x + (size_t)m->row[t * n_used] * (size_t)n;
        float *sum = shared ? first : h;
        for (int64_t i = t * n_used; i < (t + 1) * n_used; i++)
            add_weighted(layer, m->chosen[i], m->weight[i], m->x + (size_t)m->row[i] * (size_t)n,
                         i == t * n_used, sum, n);
        float w = layer->shared_gate != NULL ? m->shared_weight[t] : 1;
        for (int32_t i = 0; i < n && shared; i++)
            h[i] = sum[i] + h[i] * w;
    }
}

/* ---- the block ---- */

static void run(struct pi_pass *pass)
{
    const struct pi_layer *w = pass->layer;
    struct pi_pass_moe *m = &pass->moe;
    bool shared = w->w_gate_shared.data != NULL;
    pi_pass_product(pass, pass->h, pass->n_tok, (const struct pi_matrix *const[]){&w->w_router},
                    (float *const[]){m->logit}, 1);
    if (shared)
        enter_shared(pass);
    pi_pass_rows(pass, choose_rows, pass->model->hp.moe.n_expert);
    sort_rows(pass);
    pi_pass_fetch_experts(pass, m->busy, m->n_busy);
    expert_rows(pass, gather_rows, pass->model->hp.n_embd);
    struct product in = {.pass = pass,
                         .x = m->x,
                         .w = {&w->w_gate_exps, &w->w_up_exps},
                         .out = {m->gate, m->up},
                         .n = 2};
    run_product(&in);
    expert_rows(pass, hidden_rows, (int64_t)pass->model->hp.moe.n_ff * 40);
    struct product out = {
        .pass = pass, .x = m->gate, .w = {&w->w_down_exps}, .out = {m->x}, .n = 1};
    run_product(&out);
    if (shared)
        leave_shared(pass);
    pi_pass_rows(pass, sum_rows, pass->model->hp.n_embd);
}

const struct pi_block pi_block_moe = {
    .name = "experts",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};
