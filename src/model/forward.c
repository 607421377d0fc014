/*
 * forward.c - the pass. Reads top to bottom as the network does: embed, then per layer attention
 * (attention.c) and feed-forward, each a few parallel loops over rows (tokens), over groups of
 * weights, or over lanes. Every loop body writes its own range and sums in a fixed order, so the
 * results depend neither on the number of threads nor on which tokens share the pass.
 */

#include "model/centre.h"
#include "model/pass.h"

/* ---- how many threads ---- */

/* Multiplications below which waking and awaiting other threads costs more than they save. */
#define MIN_WORK 500000

int32_t pi_pass_threads_for(const struct pi_pass *pass, int64_t work)
{
    return work < MIN_WORK ? 1 : pass->n_thread;
}

/* A loop over the rows of the pass, each of about n floats. */
static void run_rows(struct pi_pass *pass, pi_job_fn *fn, int64_t n)
{
    const int64_t work_per_float = 40; /* norms, exponentials and rounding take many operations */
    pi_parallel_ranges(pi_pass_threads_for(pass, pass->n_tok * n * work_per_float), pass->n_tok, fn,
                       pass);
}

/* ---- products with weights ---- */

/* Up to three matrices that share their input, done as one loop. */
struct product {
    struct pi_pass *pass;
    struct pi_act act;
    const struct pi_matrix *w[3];
    float *out[3]; /* [n_tok][n_row] */
    int32_t n;
    int32_t chunk; /* groups of one work item */
};

#define MIN_CHUNKS_PER_THREAD 8 /* so that a slow thread holds the others up by little */

static void product_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct product *p = ctx;
    void *scratch = p->pass->scratch + (size_t)thread * p->pass->scratch_size;
    for (int64_t item = begin; item < end; item++) {
        int64_t rest = item;
        for (int32_t i = 0; i < p->n; i++) {
            const struct pi_matrix *w = p->w[i];
            int64_t n_chunk = pi_ceil_div(w->n_group, p->chunk);
            if (rest < n_chunk) {
                int32_t first = (int32_t)rest * p->chunk;
                int32_t last = (int32_t)pi_min(first + p->chunk, w->n_group);
                p->pass->cpu->matmul.mul[pi_matmul_index(w->type)](
                    w, &p->act, first, last, p->out[i], (size_t)w->n_row, scratch);
                break;
            }
            rest -= n_chunk;
        }
    }
}

/* out[i] = w[i] times the activations x [n_tok][n_col], whose int8 copy is up to date if needed. */
static void product_run(struct pi_pass *pass, const float *x, int32_t n_tok,
                        const struct pi_matrix *const *w, float *const *out, int32_t n)
{
    struct product p = {.pass = pass, .n = n};
    int64_t n_group = 0, n_item = 0;
    p.act = (struct pi_act){.n_tok = n_tok,
                            .n_col = w[0]->n_col,
                            .x = x,
                            .q = pass->act_q,
                            .scale = pass->act_scale,
                            .sum16 = pass->act_sum16,
                            .far = pass->cpu->matmul.far};
    for (int32_t i = 0; i < n; i++) {
        p.w[i] = w[i];
        p.out[i] = out[i];
        n_group += w[i]->n_group;
    }
    int32_t n_thread = pi_pass_threads_for(pass, n_group * PI_GROUP * w[0]->n_col * n_tok);
    p.chunk = (int32_t)(n_thread == 1 ? n_group
                                      : pi_max(1, n_group / (n_thread * MIN_CHUNKS_PER_THREAD)));
    for (int32_t i = 0; i < n; i++)
        n_item += pi_ceil_div(w[i]->n_group, p.chunk);
    pi_parallel_items(n_thread, n_item, product_items, &p);
}

/* The int8 copy of row t of an input of n values; skipped where no matrix reads it. */
static void quantize_row(struct pi_pass *pass, const float *row, int32_t t, int32_t n, bool needed)
{
    size_t n_block = (size_t)pi_ceil_div(n, PI_ACT_BLOCK);
    if (needed)
        pass->cpu->vec.quantize(row, n, pass->act_q + (size_t)t * n_block * PI_ACT_BLOCK,
                                pass->act_scale + (size_t)t * n_block,
                                pass->act_sum16 + (size_t)t * n_block * 2);
}

static bool reads_int8(const struct pi_matrix *w)
{
    return !pi_matmul_is_float(w->type);
}

/* ---- loops over rows ---- */

static void embed_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pith_model *m = pass->model;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const struct pi_pass_item *item = &pass->items[pass->item_of[t]];
        int32_t pos = item->pos0 + (int32_t)t - pass->row0[pass->item_of[t]];
        pi_matmul_unpack_row(&m->embd, pass->token_of[t], pass->x + (size_t)t * m->hp.n_embd);
        pi_rope_fill(&m->rope, pos, pass->rope_cs + (size_t)t * m->rope.n_pair * 2);
    }
}

static void attn_norm_row(struct pi_pass *pass, int64_t t)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *layer = pass->layer;
    float *h = pass->h + t * hp->n_embd;
    pass->cpu->vec.rms_norm(pass->x + t * hp->n_embd, layer->attn_norm, h, hp->n_embd, hp->rms_eps);
    quantize_row(pass, h, (int32_t)t, hp->n_embd,
                 reads_int8(&layer->wq) || reads_int8(&layer->wk) || reads_int8(&layer->wv));
}

static void attn_norm_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        attn_norm_row(ctx, t);
}

/* The heads of one row: norm where the family has one, then rotation. before [n_head][dim_k]
   receives them as they were between the two, unless it is NULL. */
static void turn_heads(struct pi_pass *pass, float *heads, int32_t n_head, const float *norm,
                       const float *cs, float *before)
{
    const struct pith_model *m = pass->model;
    for (int32_t i = 0; i < n_head; i++) {
        float *head = heads + (size_t)i * m->hp.dim_k;
        if (norm != NULL)
            pass->cpu->vec.rms_norm(head, norm, head, m->hp.dim_k, m->hp.rms_eps);
        if (before != NULL)
            memcpy(before + (size_t)i * m->hp.dim_k, head, (size_t)m->hp.dim_k * sizeof(*head));
        pass->cpu->vec.rope(head, cs, m->rope.n_pair, m->rope.adjacent);
    }
}

static void qkv_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *layer = pass->layer;
    int32_t n_q = layer->wq.n_row, n_k = layer->wk.n_row, n_v = layer->wv.n_row;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const float *cs = pass->rope_cs + t * pass->model->rope.n_pair * 2;
        float *q = pass->q + t * n_q, *k = pass->k + t * n_k;
        float *q_pre = pass->q_pre != NULL ? pass->q_pre + t * n_q : NULL;
        float *k_pre = pass->k_pre != NULL ? pass->k_pre + t * n_k : NULL;
        if (layer->bq != NULL)
            pass->cpu->vec.add(q, layer->bq, n_q);
        if (layer->bk != NULL)
            pass->cpu->vec.add(k, layer->bk, n_k);
        if (layer->bv != NULL)
            pass->cpu->vec.add(pass->v + t * n_v, layer->bv, n_v);
        turn_heads(pass, q, hp->n_head, layer->q_norm, cs, q_pre);
        turn_heads(pass, k, hp->n_head_kv, layer->k_norm, cs, k_pre);
    }
}

static void att_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    int32_t n = pass->layer->wo.n_col;
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        quantize_row(pass, pass->att + t * n, (int32_t)t, n, reads_int8(&pass->layer->wo));
}

static void ffn_norm_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *layer = pass->layer;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *x = pass->x + t * hp->n_embd, *h = pass->h + t * hp->n_embd;
        if (layer->bo != NULL)
            pass->cpu->vec.add(h, layer->bo, hp->n_embd);
        pass->cpu->vec.add(x, h, hp->n_embd);
        pass->cpu->vec.rms_norm(x, layer->ffn_norm, h, hp->n_embd, hp->rms_eps);
        quantize_row(pass, h, (int32_t)t, hp->n_embd,
                     reads_int8(&layer->w_gate) || reads_int8(&layer->w_up));
    }
}

static void silu_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    int32_t n = pass->model->hp.n_ff;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        pass->cpu->vec.silu_mul(pass->gate + t * n, pass->up + t * n, n);
        quantize_row(pass, pass->gate + t * n, (int32_t)t, n, reads_int8(&pass->layer->w_down));
    }
}

/* Adds the feed-forward's output; the next layer's norm follows while the row is in cache. */
static void ffn_add_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    int32_t n = pass->model->hp.n_embd;
    bool last = pass->l == pass->model->hp.n_layer; /* already counts the next layer */
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        pass->cpu->vec.add(pass->x + t * n, pass->h + t * n, n);
        if (!last)
            attn_norm_row(pass, t);
    }
}

/* ---- the pass ---- */

/* Shows the running layer's rows to the tap. */
static void call_tap(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n_q = (size_t)hp->n_head * hp->dim_k, n_k = (size_t)hp->n_head_kv * hp->dim_k;
    size_t n_v = (size_t)hp->n_head_kv * hp->dim_v;
    for (int32_t i = 0; i < pass->n_item; i++) {
        size_t row = (size_t)pass->row0[i];
        struct pi_pass_tap_rows rows = {
            .item = &pass->items[i],
            .layer = pass->l,
            .h = pass->h + row * (size_t)hp->n_embd,
            .q_pre = pass->q_pre + row * n_q,
            .q = pass->q + row * n_q,
            .k = pass->k + row * n_k,
            .v = pass->v + row * n_v,
        };
        pass->tap(pass->tap_user, &rows);
    }
}

static void run_layer(struct pi_pass *pass)
{
    const struct pi_layer *w = pass->layer;
    const struct pi_hparams *hp = &pass->model->hp;
    int32_t n_tok = pass->n_tok;

    product_run(pass, pass->h, n_tok, (const struct pi_matrix *const[]){&w->wq, &w->wk, &w->wv},
                (float *const[]){pass->q, pass->k, pass->v}, 3);
    run_rows(pass, qkv_rows, w->wq.n_row + w->wk.n_row);
    if (pass->tap != NULL)
        call_tap(pass);
    pi_pass_attention_run(pass);
    run_rows(pass, att_rows, w->wo.n_col);
    product_run(pass, pass->att, n_tok, (const struct pi_matrix *const[]){&w->wo},
                (float *const[]){pass->h}, 1);

    run_rows(pass, ffn_norm_rows, hp->n_embd);
    product_run(pass, pass->h, n_tok, (const struct pi_matrix *const[]){&w->w_gate, &w->w_up},
                (float *const[]){pass->gate, pass->up}, 2);
    run_rows(pass, silu_rows, hp->n_ff);
    product_run(pass, pass->gate, n_tok, (const struct pi_matrix *const[]){&w->w_down},
                (float *const[]){pass->h}, 1);
}

/* Which row belongs to whom. */
static void lay_out(struct pi_pass *pass)
{
    int32_t n = 0;
    for (int32_t i = 0; i < pass->n_item; i++) {
        const struct pi_pass_item *item = &pass->items[i];
        pass->row0[i] = n;
        for (int32_t t = 0; t < item->n_tok; t++, n++) {
            pass->item_of[n] = i;
            pass->token_of[n] = item->tokens[t];
        }
    }
    pass->n_tok = n;
    assert(n <= pass->max_tok);
    pi_pass_attention_lay_out(pass);
}

void pi_pass_run(struct pi_pass *pass, const struct pi_pass_item *items, int32_t n_item)
{
    const struct pith_model *m = pass->model;
    pass->items = items;
    pass->n_item = n_item;
    lay_out(pass);
    pass->l = 0;
    pass->layer = &m->layer[0];
    run_rows(pass, embed_rows, m->hp.n_embd);
    run_rows(pass, attn_norm_rows, m->hp.n_embd);
    while (pass->l < m->hp.n_layer) {
        run_layer(pass);
        pass->l++;
        pass->layer = pass->l < m->hp.n_layer ? &m->layer[pass->l] : NULL;
        run_rows(pass, ffn_add_rows, m->hp.n_embd);
    }
}

void pi_pass_hidden(const struct pi_pass *pass, const int32_t *rows, int32_t n, float *out)
{
    const struct pith_model *m = pass->model;
    for (int32_t i = 0; i < n; i++)
        pass->cpu->vec.rms_norm(pass->x + (size_t)rows[i] * m->hp.n_embd, m->output_norm,
                                out + (size_t)i * m->hp.n_embd, m->hp.n_embd, m->hp.rms_eps);
}

void pi_pass_logits(struct pi_pass *pass, const int32_t *rows, int32_t n, float *out)
{
    const struct pith_model *m = pass->model;
    const struct pi_hparams *hp = &m->hp;
    for (int32_t i = 0; i < n; i++) {
        float *h = pass->h + (size_t)i * hp->n_embd;
        pi_pass_hidden(pass, &rows[i], 1, h);
        quantize_row(pass, h, i, hp->n_embd, reads_int8(&m->output));
    }
    product_run(pass, pass->h, n, (const struct pi_matrix *const[]){&m->output},
                (float *const[]){out}, 1);
}

/* ---- scratch ---- */

void *pi_pass_alloc(int32_t n_row, size_t row_len, size_t size, bool *ok)
{
    size_t len;
    void *p = pi_mul_size((size_t)n_row, row_len, &len) ? pi_mem_alloc_n(PI_MEM_SCRATCH, len, size)
                                                        : NULL;
    *ok = *ok && p != NULL;
    return p;
}

static bool alloc_rows(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n_q = (size_t)hp->n_head * hp->dim_k, n_k = (size_t)hp->n_head_kv * hp->dim_k;
    size_t n_v = (size_t)hp->n_head_kv * hp->dim_v, n_o = (size_t)hp->n_head * hp->dim_v;
    size_t n_ff = (size_t)hp->n_ff, n_att = n_q + n_k + n_v + n_o;
    size_t widest = (size_t)pi_max(pi_max(hp->n_embd, hp->n_ff), (int64_t)n_o);
    size_t n_block = (size_t)pi_ceil_div((int64_t)widest, PI_ACT_BLOCK);
    int32_t n = pass->max_tok;
    bool ok = true;

    pass->x = pi_pass_alloc(n, (size_t)hp->n_embd, sizeof(float), &ok);
    pass->h = pi_pass_alloc(n, (size_t)hp->n_embd, sizeof(float), &ok);
    pass->block = pi_pass_alloc(n, n_att > 2 * n_ff ? n_att : 2 * n_ff, sizeof(float), &ok);
    pass->act_q = pi_pass_alloc(n, n_block, PI_ACT_BLOCK, &ok);
    pass->act_scale = pi_pass_alloc(n, n_block, sizeof(float), &ok);
    pass->act_sum16 = pi_pass_alloc(n, n_block, 2 * sizeof(int16_t), &ok);
    pass->rope_cs = pi_pass_alloc(n, (size_t)pass->model->rope.n_pair, 2 * sizeof(float), &ok);
    pass->item_of = pi_pass_alloc(n, 1, sizeof(int32_t), &ok);
    pass->token_of = pi_pass_alloc(n, 1, sizeof(int32_t), &ok);
    pass->row0 = pi_pass_alloc(n + 1, 1, sizeof(int32_t), &ok);
    pass->scratch = pi_pass_alloc(pass->n_thread, pass->scratch_size, 1, &ok);
    if (!ok || !pi_pass_attention_alloc(pass))
        return false;
    pass->q = pass->block;
    pass->k = pass->q + (size_t)n * n_q;
    pass->v = pass->k + (size_t)n * n_k;
    pass->att = pass->v + (size_t)n * n_v;
    pass->gate = pass->block;
    pass->up = pass->gate + (size_t)n * n_ff;
    return true;
}

pith_status pi_pass_create(const struct pith_model *model, const struct kv_geometry *geometry,
                           int32_t max_tok, int32_t n_thread, struct pi_pass **out, pith_error *err)
{
    const struct pi_hparams *hp = &model->hp;
    int32_t n_group = hp->n_head / hp->n_head_kv;
    struct pi_pass *pass = pi_mem_alloc(PI_MEM_SCRATCH, sizeof(*pass));
    if (pass == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a pass");
    pass->model = model;
    pass->geometry = *geometry;
    pass->cpu = pi_kernels();
    pass->max_tok = max_tok;
    pass->n_thread = n_thread;
    pass->tile = (int32_t)pi_min(kv_attend_tile(n_group), max_tok);
    int32_t widest = (int32_t)pi_max(pi_max(hp->n_embd, hp->n_ff), (int64_t)hp->n_head * hp->dim_v);
    size_t attend = kv_attend_scratch_bytes(geometry, pass->tile * n_group);
    size_t matmul = pi_matmul_scratch_bytes(widest);
    pass->scratch_size = pi_align(attend > matmul ? attend : matmul, 64);
    if (!alloc_rows(pass)) {
        pi_pass_free(pass);
        return pi_fail(err, PITH_NOMEM, "no memory for the scratch of %d tokens", max_tok);
    }
    *out = pass;
    return PITH_OK;
}

void pi_pass_free(struct pi_pass *pass)
{
    if (pass == NULL)
        return;
    void *const parts[] = {pass->x,         pass->h,         pass->block,   pass->act_q,
                           pass->act_scale, pass->act_sum16, pass->rope_cs, pass->item_of,
                           pass->token_of,  pass->row0,      pass->scratch, pass->q_pre,
                           pass->centre};
    for (size_t i = 0; i < PI_LEN(parts); i++)
        pi_mem_free(parts[i]);
    pi_pass_attention_free(pass);
    pi_mem_free(pass);
}

pith_status pi_pass_centre(struct pi_pass *pass, pith_error *err)
{
    return pi_centre_create(pass->model, &pass->centre, err);
}

pith_status pi_pass_set_tap(struct pi_pass *pass, pi_pass_tap_fn *fn, void *user, pith_error *err)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n_q = (size_t)hp->n_head * (size_t)hp->dim_k;
    bool ok = true;
    if (fn != NULL && pass->q_pre == NULL) {
        float *rows = pi_pass_alloc(pass->max_tok, n_q, sizeof(float), &ok);
        if (!ok)
            return pi_fail(err, PITH_NOMEM, "no memory for the queries of %d tokens",
                           pass->max_tok);
        pass->q_pre = rows;
    }
    if (fn == NULL) {
        pi_mem_free(pass->q_pre);
        pass->q_pre = NULL;
    }
    pass->tap = fn;
    pass->tap_user = user;
    return PITH_OK;
}
