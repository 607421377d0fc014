/*
 * forward.c - the pass: embed, then each layer's list of blocks, then logits. It owns the steps
 * between two blocks. The output of one joins the residual stream, and the norm of the next follows
 * while the row is in the cache. From one stage to the next the residual stream goes from device to
 * device where these can, else over the host.
 * It must not know the inside of a block.
 */

#include "base/ranks.h"
#include "model/centre.h"
#include "model/logits_ranks.h"
#include "model/step.h"

static const struct pi_at none;

/* ---- the pass ---- */

/* Leaves the block that ran last, if one did, and enters `to`; NULL: the layers are done. */
static void go_on(struct pi_pass *pass, const struct pi_layer_block *to)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer_block *from = pass->now.block;
    struct pi_between_rows rows = {
        .x = pass->rows.x, .h = pass->rows.h, .n = hp->n_embd, .eps = hp->rms_eps};
    if (from != NULL) {
        rows.leave = true;
        rows.bias = pi_pass_vector(pass, from->bias);
        rows.post_norm = pi_pass_vector(pass, from->post_norm);
    }
    if (to != NULL) {
        rows.norm = pi_pass_vector(pass, to->norm);
        rows.act = to->reads_int8 ? pass->rows.act : (struct pi_int8){none, none, none};
    }
    pass->now.block = to;
    pi_pass_rows(pass, PI_ROWS_BETWEEN, &rows, hp->n_embd);
}

/* Which row belongs to whom, and where it stands. */
static void lay_out(struct pi_pass *pass)
{
    int32_t n = 0;
    for (int32_t i = 0; i < pass->now.n_item; i++) {
        const struct pi_pass_item *item = &pass->now.items[i];
        pass->ids.row0[i] = n;
        for (int32_t t = 0; t < item->n_tok; t++, n++) {
            pass->ids.token_of[n] = item->tokens[t];
            pass->ids.pos_of[n] = item->pos0 + t;
        }
    }
    pass->now.n_tok = n;
    assert(n <= pass->plan.max_tok);
    size_t size = (size_t)n * sizeof(int32_t);
    pass->device->upload(pass->stream, pass->ids.token_of, size, pass->ids.token);
    pass->device->upload(pass->stream, pass->ids.pos_of, size, pass->ids.pos);
    pi_pass_attention_lay_out(pass);
}

static void embed(struct pi_pass *pass)
{
    const struct pith_model *m = pass->model;
    bool first = pass->stage.begin == 0 && pi_shape_begins(&m->hp);
    const struct pi_embed_rows rows = {
        .embd = pass->placed->embd,
        .file = first ? m->embd_rows : NULL,
        .token = pass->ids.token,
        .tokens = pass->ids.token_of,
        .pos = pass->ids.pos,
        .scale = m->hp.embd_scale,
        .rope = {&m->rope, m->rope_local.n_pair > 0 ? &m->rope_local : NULL},
        .x = first ? pass->rows.x : none,
        .cs = {pass->rows.cs, pass->rows.local_cs},
    };
    pi_pass_rows(pass, PI_ROWS_EMBED, &rows, m->hp.n_embd);
}

void pi_pass_set_collect(struct pi_pass *pass)
{
    PI_EACH_STAGE(s, pass)
    s->collects = true;
}

void pi_pass_set_ask(struct pi_pass *pass, pi_pass_ask_fn *fn, void *user)
{
    PI_EACH_STAGE(s, pass)
    {
        s->ask.fn = fn;
        s->ask.user = user;
    }
}

static int32_t count_blocks(const struct pith_model *m)
{
    int32_t n = 0;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        n += m->layer[l].n_block;
    return n;
}

/* Bytes of the residual stream of a pass. */
static size_t stream_bytes(const struct pi_pass *pass)
{
    return (size_t)pass->now.n_tok * (size_t)pass->model->hp.n_embd * sizeof(float);
}

/* The residual stream to where another stage has it. */
static void hand_over(const struct pi_pass *from, const struct pi_pass *to)
{
    size_t n = (size_t)from->model->hp.n_embd, size = stream_bytes(from);
    if (to->device->fetch != NULL &&
        to->device->fetch(to->stream, to->rows.x, from->stream, from->rows.x, size))
        return;
    const float *x = pi_pass_look(from, from->rows.x, n, PI_ROOM_H);
    to->device->upload(to->stream, x, size, to->rows.x);
}

/* The residual stream from the rank before this one, and to the next: ranks have processors alone,
   whose memory is the host's. */
static void receive_rows(const struct pi_pass *pass)
{
    if (!pi_shape_begins(&pass->model->hp))
        pi_ranks_receive((void *)pass->rows.x.at, stream_bytes(pass));
}

static void hand_rows_on(const struct pi_pass *pass)
{
    if (!pi_shape_ends(&pass->model->hp))
        pi_ranks_hand_on((const void *)pass->rows.x.at, stream_bytes(pass));
}

/* Whether the pass goes on. Over ranks rank 0 is asked once a pass, and all do as it says. Ranks
   that have layers are in different passes: there none is stopped. */
static bool goes_on(const struct pi_pass *pass, int32_t n_done, int32_t n_block)
{
    bool several = pi_ranks()->n_rank > 1;
    if (pass->ask.fn == NULL || (several && n_done > 0))
        return true;
    bool on = pass->ask.fn(pass->ask.user, n_done, n_block);
    if (pi_shape_is_part(&pass->model->hp))
        return true;
    pi_ranks_tell(&on, sizeof(on));
    return on;
}

/* The layers of a stage, of whose pass n_done blocks of n_block are done; false: it was stopped. */
static bool run_stage(struct pi_pass *pass, int32_t *n_done, int32_t n_block)
{
    pass->now.block = NULL;
    pass->step.has_logits = false;
    if (pi_step_may(pass)) {
        if (!goes_on(pass, *n_done, n_block))
            return false;
        if (pi_step_run(pass))
            return true;
    }
    for (int32_t l = pass->stage.begin; l < pass->stage.end; l++) {
        pass->now.layer = &pass->model->layer[l];
        pass->now.w = &pass->placed->layer[l - pass->stage.begin];
        for (int32_t i = 0; i < pass->now.layer->n_block; i++, ++*n_done) {
            if (!goes_on(pass, *n_done, n_block))
                return false;
            pi_ranks_move();
            go_on(pass, &pass->now.layer->block[i]);
            pass->now.block->block->run(pass);
        }
    }
    go_on(pass, NULL);
    return true;
}

bool pi_pass_run(struct pi_pass *pass, const struct pi_pass_item *items, int32_t n_item)
{
    int32_t n_done = 0, n_block = count_blocks(pass->model);
    PI_EACH_STAGE(s, pass)
    {
        s->now.items = items;
        s->now.n_item = n_item;
        lay_out(s);
        embed(s);
    }
    receive_rows(pass);
    PI_EACH_STAGE(s, pass)
    {
        if (!run_stage(s, &n_done, n_block))
            return false;
        if (s->next != NULL)
            hand_over(s, s->next);
        else
            hand_rows_on(s);
    }
    return true;
}

void pi_pass_wait(struct pi_pass *pass)
{
    PI_EACH_STAGE(s, pass)
    s->device->wait(s->stream);
}

/* ---- what the last stage leaves ---- */

static struct pi_pass *last_of(struct pi_pass *pass)
{
    while (pass->next != NULL)
        pass = pass->next;
    return pass;
}

pith_status pi_pass_check(const struct pi_pass *pass, pith_error *err)
{
    for (const struct pi_pass *s = pass; s != NULL; s = s->next)
        PI_TRY(s->device->check(s->device, err));
    return PITH_OK;
}

/* The hidden states of some rows to h, from the first on. */
static void pick(struct pi_pass *pass, const int32_t *rows, int32_t n, const struct pi_int8 *act)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_pick_rows args = {
        .x = pass->rows.x,
        .index = pass->ids.index,
        .norm = pi_pass_vector(pass, pass->model->output_norm),
        .out = pass->rows.h,
        .act = *act,
        .n = hp->n_embd,
        .eps = hp->rms_eps,
    };
    pass->device->upload(pass->stream, rows, (size_t)n * sizeof(*rows), pass->ids.index);
    pass->device->rows(pass->stream, PI_ROWS_PICK, &args, n, hp->n_embd);
}

/* Where the last rank has the output, all who need it get what it made. */
static void tell_rows(const struct pi_pass *pass, float *rows, size_t size)
{
    if (pi_shape_is_part(&pass->model->hp) && pass->collects)
        pi_ranks_give_first(rows, size);
    else if (pi_shape_is_part(&pass->model->hp))
        pi_ranks_tell_last(rows, size);
}

void pi_pass_hidden(struct pi_pass *pass, const int32_t *rows, int32_t n, float *out)
{
    const struct pi_int8 unread = {none, none, none};
    pass = last_of(pass);
    size_t size = (size_t)n * (size_t)pass->model->hp.n_embd * sizeof(*out);
    if (pass->stage.output) {
        pick(pass, rows, n, &unread);
        pi_download_to(pass->device, pass->stream, pass->rows.h, size, out);
    }
    tell_rows(pass, out, size);
}

struct pi_weight pi_pass_head(const struct pi_pass *pass)
{
    struct pi_weight w = pass->placed->output;
    if (pass->plan.n_logit > 0 && !pi_ranks_by_rows())
        w.n_group = (int32_t)pi_min(w.n_group, pi_ceil_div(pass->plan.n_logit, PI_GROUP));
    return w;
}

/* n rows of logits of some rows, from h, where they are not there; over ranks this one's part. */
static void make_own_logits(struct pi_pass *pass, int32_t n, struct pi_at out)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_weight w = pi_pass_head(pass);
    const struct pi_cap_rows cap = {out, hp->logit_cap, pi_logits_own(pass)};
    int64_t work_per_row = 16 * (int64_t)cap.n;
    if (!pass->step.has_logits)
        pi_pass_product(pass, pass->rows.h, n, (const struct pi_weight *const[]){&w},
                        (const struct pi_at[]){out}, 1);
    pass->step.has_logits = false;
    if (hp->logit_cap > 0)
        pass->device->rows(pass->stream, PI_ROWS_CAP, &cap, n, work_per_row);
}

static void make_logits(struct pi_pass *pass, int32_t n, struct pi_at out)
{
    make_own_logits(pass, n, out);
    pi_pass_gather_logits(pass, out, n);
}

/* Straight to the host's memory where the device can write to it. */
static void make_host_logits(struct pi_pass *pass, const int32_t *rows, int32_t n, float *out)
{
    size_t row = (size_t)pass->model->hp.n_vocab * sizeof(*out);
    const struct pi_int8 act = pi_pass_act(pass, &pass->placed->output);
    if (!pass->step.has_logits)
        pick(pass, rows, n, &act);
    struct pi_at to = pass->device->lend_out(pass->device, out, pass->rows.logits);
    make_logits(pass, n, to);
    pass->device->download(pass->stream, to, (size_t)n * row, out);
}

void pi_pass_logits(struct pi_pass *pass, const int32_t *rows, int32_t n, float *out)
{
    pass = last_of(pass);
    if (pass->stage.output)
        make_host_logits(pass, rows, n, out);
    tell_rows(pass, out, (size_t)n * (size_t)pass->model->hp.n_vocab * sizeof(*out));
}

bool pi_pass_finds_best(struct pi_pass *pass)
{
    pass = last_of(pass);
    return (pass->device->best != NULL || pi_logits_stay(pass)) && pass->plan.n_logit == 0;
}

/* Ranks have processors alone, whose memory is the host's. */
static void find_over_ranks(struct pi_pass *pass, const struct pi_best_rows *b, const int32_t *rows)
{
    size_t own = (size_t)pi_logits_own(pass);
    const float *logits = (const float *)b->x.at;
    const struct pi_int8 act = pi_pass_act(pass, &pass->placed->output);
    if (pass->stage.output) {
        pick(pass, rows, b->n_row, &act);
        make_own_logits(pass, b->n_row, b->x);
    }
    for (int32_t i = 0; i < b->n_row; i++)
        memcpy((float *)b->keep[i].at, logits + (size_t)i * own, own * sizeof(*logits));
    pi_logits_find_best(pass, logits, b->n_row, b->out);
}

void pi_pass_best(struct pi_pass *pass, const int32_t *rows, int32_t n, float *room,
                  const struct pi_at *keep, struct pi_best *const *out)
{
    pass = last_of(pass);
    const struct pi_int8 act = pi_pass_act(pass, &pass->placed->output);
    struct pi_best_rows best = {pass->rows.logits, keep, out, n, pass->model->hp.n_vocab};
    if (pi_logits_stay(pass)) {
        best.x = pass->device->lend_out(pass->device, room, pass->rows.logits);
        find_over_ranks(pass, &best, rows);
        return;
    }
    if (!pass->step.has_logits)
        pick(pass, rows, n, &act);
    make_logits(pass, n, pass->rows.logits);
    pass->device->best(pass->stream, &best);
}

void pi_pass_fetch_row(struct pi_pass *pass, struct pi_at row, float *out)
{
    size_t size = (size_t)pass->model->hp.n_vocab * sizeof(*out);
    pass = last_of(pass);
    if (pi_logits_stay(pass))
        pi_logits_gather(pass, (const float *)row.at, out);
    else
        pass->device->download(NULL, row, size, out);
}

struct pi_device *pi_pass_device(struct pi_pass *pass)
{
    return last_of(pass)->device;
}

void pi_pass_limit_logits(struct pi_pass *pass, int32_t n)
{
    last_of(pass)->plan.n_logit = n;
}

/* ---- scratch ---- */

/* The most scratch that any block of a stage's layers needs. */
static struct pi_block_scratch count_scratch(const struct pith_model *m,
                                             const struct pi_stage *stage)
{
    struct pi_block_scratch most = {.row = 1, .widest = (size_t)m->hp.n_embd}, one;
    for (int32_t l = stage->begin; l < stage->end; l++)
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
    for (int32_t l = pass->stage.begin; l < pass->stage.end; l++)
        for (int32_t i = 0; i < m->layer[l].n_block; i++)
            m->layer[l].block[i].block->place(pass, pass->rows.block);
}

static bool alloc_rows(struct pi_pass *pass, const struct pi_block_scratch *most)
{
    const struct pith_model *m = pass->model;
    size_t n_block = (size_t)pi_ceil_div((int64_t)most->widest, PI_ACT_BLOCK);
    size_t cs_size = 2 * sizeof(float), n_local = (size_t)m->rope_local.n_pair;
    int32_t n = pass->plan.max_tok;
    bool ok = true;

    pass->rows.x = pi_pass_place(pass, n, (size_t)m->hp.n_embd, sizeof(float), &ok);
    pass->rows.h = pi_pass_place(pass, n, (size_t)m->hp.n_embd, sizeof(float), &ok);
    pass->rows.block = pi_pass_place(pass, n, most->row, sizeof(float), &ok);
    pass->rows.act.q = pi_pass_place(pass, n, n_block, PI_ACT_BLOCK, &ok);
    pass->rows.act.scale = pi_pass_place(pass, n, n_block, sizeof(float), &ok);
    pass->rows.act.sum16 = pi_pass_place(pass, n, n_block, 2 * sizeof(int16_t), &ok);
    pass->rows.cs = pi_pass_place(pass, n, (size_t)m->rope.n_pair, cs_size, &ok);
    if (n_local > 0)
        pass->rows.local_cs = pi_pass_place(pass, n, n_local, cs_size, &ok);
    pass->ids.token = pi_pass_place(pass, n, 1, sizeof(int32_t), &ok);
    pass->ids.pos = pi_pass_place(pass, n, 1, sizeof(int32_t), &ok);
    pass->ids.index = pi_pass_place(pass, n, 1, sizeof(int32_t), &ok);
    pass->ids.token_of = pi_pass_alloc(n, 1, sizeof(int32_t), &ok);
    pass->ids.pos_of = pi_pass_alloc(n, 1, sizeof(int32_t), &ok);
    pass->ids.row0 = pi_pass_alloc(n + 1, 1, sizeof(int32_t), &ok);
    if (m->hp.delta.n_layer > 0)
        pass->delta.item = pi_pass_alloc(n, 1, sizeof(*pass->delta.item), &ok);
    if (!ok || !pi_pass_attention_alloc(pass) || !pi_step_create(pass))
        return false;
    place_blocks(pass);
    return true;
}

/* Rows on their way to a host that cannot look into the device. */
static bool alloc_rooms(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n_q = (size_t)hp->n_head * (size_t)hp->dim_k, n_kv = (size_t)hp->n_head_kv;
    const size_t len[PI_N_ROOM] = {
        [PI_ROOM_H] = (size_t)hp->n_embd,
        [PI_ROOM_Q] = n_q,
        [PI_ROOM_Q_PRE] = n_q,
        [PI_ROOM_K] = n_kv * (size_t)hp->dim_k,
        [PI_ROOM_K_PRE] = n_kv * (size_t)hp->dim_k,
        [PI_ROOM_V] = n_kv * (size_t)hp->dim_v,
        [PI_ROOM_ATT] = (size_t)hp->n_head * (size_t)hp->dim_v,
    };
    bool ok = true;
    if (pass->device->in_host)
        return true;
    for (int i = 0; i < PI_N_ROOM; i++)
        pass->rows.room[i] = pi_pass_alloc(pass->plan.max_tok, len[i], sizeof(float), &ok);
    if (pass->stage.output)
        pass->rows.logits = pi_pass_place(pass, (int32_t)pi_min(pass->plan.max_tok, PI_PASS_LOGITS),
                                          (size_t)hp->n_vocab, sizeof(float), &ok);
    return ok;
}

pith_status pi_pass_open_stream(struct pi_pass *pass, size_t attend_size, pith_error *err)
{
    struct pi_device *d = pass->device;
    const struct pi_stream_shape shape = {
        .n_thread = pass->plan.n_thread, .widest = pass->plan.widest, .attend_size = attend_size};
    struct pi_stream *stream = d->open(d, &shape);
    if (stream == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the scratch of %d tokens",
                       pass->plan.max_tok);
    d->close(pass->stream);
    pass->stream = stream;
    pass->plan.attend_size = attend_size;
    return PITH_OK;
}

static pith_status stage_create(const struct pith_model *model, const struct kv_geometry *geometry,
                                const struct pi_stage *stage, int32_t max_tok, int32_t n_thread,
                                struct pi_packing *packing, struct pi_pass **out, pith_error *err)
{
    struct pi_block_scratch most = count_scratch(model, stage);
    struct pi_pass *pass = pi_mem_alloc(PI_MEM_SCRATCH, sizeof(*pass));
    if (pass == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a pass");
    *out = pass;
    pass->model = model;
    pass->stage = *stage;
    pass->device = stage->device;
    pass->plan.geometry = *geometry;
    pass->plan.geometry.device = stage->device;
    pass->plan.geometry.devices.n = 0;
    pass->plan.max_tok = max_tok;
    pass->plan.n_thread = n_thread;
    pass->plan.widest = most.widest;
    PI_TRY(pi_pass_open_stream(pass, pi_pass_attention_plan(pass), err));
    if (!alloc_rows(pass, &most) || !alloc_rooms(pass))
        return pi_fail(err, PITH_NOMEM, "no memory for the scratch of %d tokens", max_tok);
    return pi_placed_take(model, stage, packing, &pass->placed, err);
}

pith_status pi_pass_create(const struct pith_model *model, const struct kv_geometry *geometry,
                           const struct pi_stages *stages, int32_t max_tok, int32_t n_thread,
                           struct pi_pass **out, pith_error *err)
{
    const struct pi_stages one = {
        .n = 1,
        .stage = {{kv_geometry_device(geometry), 0, model->hp.n_layer, pi_shape_ends(&model->hp)}}};
    struct pi_pass *pass = NULL, **end = &pass;
    if (stages == NULL)
        stages = &one;
    struct pi_packing packing = {.fn = stages->progress, .user = stages->progress_user};
    for (int32_t i = 0; i < stages->n; i++)
        packing.n += pi_placed_missing(model, &stages->stage[i]);
    for (int32_t i = 0; i < stages->n; i++) {
        pith_status status =
            stage_create(model, geometry, &stages->stage[i], max_tok, n_thread, &packing, end, err);
        if (status != PITH_OK) {
            pi_pass_free(pass);
            return status;
        }
        end = &(*end)->next;
    }
    *out = pass;
    return PITH_OK;
}

/* Two more of the widest rows, for copies that a device makes. */
int64_t pi_pass_stage_bytes(const struct pith_model *model, const struct pi_stage *stage,
                            int32_t max_tok)
{
    struct pi_block_scratch most = count_scratch(model, stage);
    size_t n = 2 * (size_t)model->hp.n_embd + most.row + 3 * most.widest;
    n += 2 * (size_t)(model->rope.n_pair + model->rope_local.n_pair);
    n += stage->output && !stage->device->in_host ? (size_t)model->hp.n_vocab : 0;
    return (int64_t)(n * sizeof(float)) * max_tok;
}

static void stage_free(struct pi_pass *pass)
{
    struct pi_device *d = pass->device;
    const struct pi_at placed[] = {pass->rows.x,         pass->rows.h,         pass->rows.block,
                                   pass->rows.act.q,     pass->rows.act.scale, pass->rows.cs,
                                   pass->ids.token,      pass->ids.pos,        pass->ids.index,
                                   pass->rows.act.sum16, pass->rows.q_pre,     pass->rows.k_pre,
                                   pass->lanes.centre,   pass->rows.logits,    pass->rows.local_cs};
    void *const parts[] = {pass->ids.token_of, pass->ids.pos_of, pass->ids.row0, pass->delta.item};
    d->close(pass->stream);
    for (size_t i = 0; i < PI_LEN(placed); i++)
        d->free(d, placed[i]);
    for (size_t i = 0; i < PI_LEN(parts); i++)
        pi_mem_free(parts[i]);
    for (int i = 0; i < PI_N_ROOM; i++)
        pi_mem_free(pass->rows.room[i]);
    pi_pass_attention_free(pass);
    pi_step_free(pass);
    pi_placed_give(pass->placed);
    pi_mem_free(pass);
}

void pi_pass_free(struct pi_pass *pass)
{
    while (pass != NULL) {
        struct pi_pass *next = pass->next;
        stage_free(pass);
        pass = next;
    }
}

/* The centres of all layers, to a stage's device. */
static bool place_centre(struct pi_pass *pass, const float *centre, size_t n)
{
    bool ok = true;
    pass->lanes.centre = pi_pass_place(pass, 1, n, sizeof(float), &ok);
    if (ok)
        pass->device->upload(pass->stream, centre, n * sizeof(float), pass->lanes.centre);
    return ok;
}

pith_status pi_pass_centre(struct pi_pass *pass, pith_error *err)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n = (size_t)hp->n_layer_kv * (size_t)hp->n_head_kv * (size_t)hp->dim_k;
    float *centre = NULL;
    bool ok = true;
    PI_TRY(pi_centre_create(pass->model, &centre, err));
    PI_EACH_STAGE(s, pass)
    ok = ok && place_centre(s, centre, n);
    pi_mem_free(centre);
    return ok ? PITH_OK
              : pi_fail(err, PITH_NOMEM, "no memory for the centres of %d layers", hp->n_layer_kv);
}
