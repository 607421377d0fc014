/*
 * forward.c - the pass: embed, then each layer's list of blocks, then logits. What lies between two
 * blocks is here: the output of the one joins the residual stream, and the norm of the next follows
 * while the row is in the cache. It knows no block from inside.
 */

#include "model/centre.h"
#include "model/pass.h"

/* ---- loops over rows ---- */

static void embed_row(const struct pith_model *m, int32_t token, float *out)
{
    const struct pi_dtype_traits *traits = pi_dtype_find(m->embd.type);
    size_t size = pi_dtype_row_bytes(traits, m->embd.n_col);
    if (m->embd_rows == NULL)
        pi_matmul_unpack_row(&m->embd, token, out);
    else
        traits->decode(m->embd_rows + (size_t)token * size, out, m->embd.n_col);
}

static void embed_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pith_model *m = pass->model;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const struct pi_pass_item *item = &pass->items[pass->item_of[t]];
        int32_t pos = item->pos0 + (int32_t)t - pass->row0[pass->item_of[t]];
        float *x = pass->x + (size_t)t * m->hp.n_embd;
        embed_row(m, pass->token_of[t], x);
        for (int32_t i = 0; m->hp.embd_scale != 1.0f && i < m->hp.n_embd; i++)
            x[i] *= m->hp.embd_scale;
        pi_rope_fill(&m->rope, pos, pass->rope_cs + (size_t)t * m->rope.n_pair * 2);
        if (m->rope_local.n_pair > 0)
            pi_rope_fill(&m->rope_local, pos,
                         pass->rope_local_cs + (size_t)t * m->rope_local.n_pair * 2);
    }
}

/* What a block left in h joins the stream. */
static void add_row(const struct pi_pass *pass, const struct pi_layer_block *from, float *x,
                    float *h)
{
    const struct pi_hparams *hp = &pass->model->hp;
    if (from->bias != NULL)
        pass->cpu->vec.add(h, from->bias, hp->n_embd);
    if (from->post_norm != NULL)
        pass->cpu->vec.rms_norm(h, from->post_norm, h, hp->n_embd, hp->rms_eps);
    pass->cpu->vec.add(x, h, hp->n_embd);
}

static void between_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer_block *from = pass->from, *to = pass->to;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *x = pass->x + t * hp->n_embd, *h = pass->h + t * hp->n_embd;
        if (from != NULL)
            add_row(pass, from, x, h);
        if (to != NULL)
            pass->cpu->vec.rms_norm(x, to->norm, h, hp->n_embd, hp->rms_eps);
        if (to != NULL && to->reads_int8)
            pi_pass_quantize(pass, h, t, hp->n_embd);
    }
}

/* ---- the pass ---- */

/* Leaves the block that ran last, if one did, and enters `to`; NULL: the layers are done. */
static void go_on(struct pi_pass *pass, const struct pi_layer_block *to)
{
    pass->from = pass->to;
    pass->to = to;
    pi_pass_rows(pass, between_rows, pass->model->hp.n_embd);
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

void pi_pass_set_ask(struct pi_pass *pass, pi_pass_ask_fn *fn, void *user)
{
    pass->ask = fn;
    pass->ask_user = user;
}

static int32_t count_blocks(const struct pith_model *m)
{
    int32_t n = 0;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        n += m->layer[l].n_block;
    return n;
}

bool pi_pass_run(struct pi_pass *pass, const struct pi_pass_item *items, int32_t n_item)
{
    const struct pith_model *m = pass->model;
    int32_t n_done = 0, n_block = count_blocks(m);
    pass->items = items;
    pass->n_item = n_item;
    pass->to = NULL;
    lay_out(pass);
    pi_pass_rows(pass, embed_rows, m->hp.n_embd);
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        pass->layer = &m->layer[l];
        for (int32_t i = 0; i < pass->layer->n_block; i++, n_done++) {
            if (pass->ask != NULL && !pass->ask(pass->ask_user, n_done, n_block))
                return false;
            go_on(pass, &pass->layer->block[i]);
            pass->to->block->run(pass);
        }
    }
    go_on(pass, NULL);
    return true;
}

void pi_pass_hidden(const struct pi_pass *pass, const int32_t *rows, int32_t n, float *out)
{
    const struct pith_model *m = pass->model;
    for (int32_t i = 0; i < n; i++)
        pass->cpu->vec.rms_norm(pass->x + (size_t)rows[i] * m->hp.n_embd, m->output_norm,
                                out + (size_t)i * m->hp.n_embd, m->hp.n_embd, m->hp.rms_eps);
}

struct cap_job {
    const struct pi_pass *pass;
    float *logits; /* [n][n_vocab] */
};

static void cap_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct cap_job *job = ctx;
    const struct pi_hparams *hp = &job->pass->model->hp;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        job->pass->cpu->vec.soft_cap(job->logits + i * hp->n_vocab, hp->logit_cap, hp->n_vocab);
}

void pi_pass_logits(struct pi_pass *pass, const int32_t *rows, int32_t n, float *out)
{
    const struct pith_model *m = pass->model;
    for (int32_t i = 0; i < n; i++) {
        float *h = pass->h + (size_t)i * m->hp.n_embd;
        pi_pass_hidden(pass, &rows[i], 1, h);
        if (pi_matrix_reads_int8(&m->output))
            pi_pass_quantize(pass, h, i, m->hp.n_embd);
    }
    struct pi_matrix w = m->output;
    if (pass->n_logit > 0)
        w.n_group = (int32_t)pi_min(w.n_group, pi_ceil_div(pass->n_logit, PI_GROUP));
    pi_pass_product(pass, pass->h, n, (const struct pi_matrix *const[]){&w}, (float *const[]){out},
                    1);
    int64_t work_per_row = 16 * (int64_t)m->hp.n_vocab;
    if (m->hp.logit_cap > 0)
        pi_parallel_ranges(pi_pass_threads_for(pass, n * work_per_row), n, cap_rows,
                           &(struct cap_job){pass, out});
}

void pi_pass_limit_logits(struct pi_pass *pass, int32_t n)
{
    pass->n_logit = n;
}

/* ---- scratch ---- */

/* The most that any block of any layer asks for. */
static struct pi_block_scratch count_scratch(const struct pith_model *m)
{
    struct pi_block_scratch most = {.widest = (size_t)m->hp.n_embd}, one;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        for (int32_t i = 0; i < m->layer[l].n_block; i++) {
            m->layer[l].block[i].block->scratch(&m->hp, &one);
            most.row = one.row > most.row ? one.row : most.row;
            most.widest = one.widest > most.widest ? one.widest : most.widest;
        }
    return most;
}

static void place_blocks(struct pi_pass *pass)
{
    const struct pith_model *m = pass->model;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        for (int32_t i = 0; i < m->layer[l].n_block; i++)
            m->layer[l].block[i].block->place(pass, pass->block);
}

static bool alloc_rows(struct pi_pass *pass, const struct pi_block_scratch *most)
{
    const struct pith_model *m = pass->model;
    size_t n_block = (size_t)pi_ceil_div((int64_t)most->widest, PI_ACT_BLOCK);
    size_t cs_size = 2 * sizeof(float), n_local = (size_t)m->rope_local.n_pair;
    int32_t n = pass->max_tok;
    bool ok = true;

    pass->x = pi_pass_alloc(n, (size_t)m->hp.n_embd, sizeof(float), &ok);
    pass->h = pi_pass_alloc(n, (size_t)m->hp.n_embd, sizeof(float), &ok);
    pass->block = pi_pass_alloc(n, most->row, sizeof(float), &ok);
    pass->act_q = pi_pass_alloc(n, n_block, PI_ACT_BLOCK, &ok);
    pass->act_scale = pi_pass_alloc(n, n_block, sizeof(float), &ok);
    pass->act_sum16 = pi_pass_alloc(n, n_block, 2 * sizeof(int16_t), &ok);
    pass->rope_cs = pi_pass_alloc(n, (size_t)m->rope.n_pair, cs_size, &ok);
    if (n_local > 0)
        pass->rope_local_cs = pi_pass_alloc(n, n_local, cs_size, &ok);
    pass->item_of = pi_pass_alloc(n, 1, sizeof(int32_t), &ok);
    pass->token_of = pi_pass_alloc(n, 1, sizeof(int32_t), &ok);
    pass->row0 = pi_pass_alloc(n + 1, 1, sizeof(int32_t), &ok);
    pass->scratch = pi_pass_alloc(pass->n_thread, pass->scratch_size, 1, &ok);
    if (!ok || !pi_pass_attention_alloc(pass))
        return false;
    place_blocks(pass);
    return true;
}

pith_status pi_pass_create(const struct pith_model *model, const struct kv_geometry *geometry,
                           int32_t max_tok, int32_t n_thread, struct pi_pass **out, pith_error *err)
{
    struct pi_block_scratch most = count_scratch(model);
    struct pi_pass *pass = pi_mem_alloc(PI_MEM_SCRATCH, sizeof(*pass));
    if (pass == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a pass");
    pass->model = model;
    pass->geometry = *geometry;
    pass->cpu = pi_kernels();
    pass->max_tok = max_tok;
    pass->n_thread = n_thread;
    size_t attend = pi_pass_attention_plan(pass);
    size_t matmul = pi_matmul_scratch_bytes((int32_t)most.widest);
    pass->scratch_size = pi_align(attend > matmul ? attend : matmul, 64);
    if (!alloc_rows(pass, &most)) {
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
                           pass->act_scale, pass->act_sum16, pass->rope_cs, pass->rope_local_cs,
                           pass->item_of,   pass->token_of,  pass->row0,    pass->scratch,
                           pass->q_pre,     pass->centre};
    for (size_t i = 0; i < PI_LEN(parts); i++)
        pi_mem_free(parts[i]);
    pi_pass_attention_free(pass);
    pi_mem_free(pass);
}

pith_status pi_pass_centre(struct pi_pass *pass, pith_error *err)
{
    return pi_centre_create(pass->model, &pass->centre, err);
}
