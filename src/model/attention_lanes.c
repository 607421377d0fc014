/*
 * attention_lanes.c - the part of attention between the projections: keys and values go to the lanes, a
 * writer sees what is new, a recaller brings entries back, a reader chooses what chunks of tokens
 * look at, and every token attends. It knows no policy.
 *
 * A token's attention is a tile of its segment in each KV head's lane. Where the reader chose for a
 * chunk in a lane, its tokens share one call over the chosen entries. Invariant: the bits depend
 * neither on how tokens fall into tiles nor on who takes which.
 */
#include "model/pass.h"

/* Entries per part that there is room for: those of the smallest page. */
#define PART_LEN 16

/* Multiplications below which waking and awaiting other threads costs more than they save. */
#define MIN_WORK 500000

/* Threads for a loop over lanes of the host's own, of policies. */
static int32_t threads_for(const struct pi_pass *pass, int64_t work)
{
    return work < MIN_WORK ? 1 : (int32_t)pi_min(pass->plan.n_thread, pi_thread_count());
}

/* ---- append ---- */

/* Whether the running layer's entries are a policy's: what a window holds, it leaves alone. */
static bool is_governed(const struct pi_pass *pass)
{
    return pass->now.layer->window == 0;
}

/* The rows that a writer sees. */
struct written_rows {
    const struct pi_pass *pass;
    const float *k, *v, *h; /* of the pass's tokens */
};

/* Shows the writer what was appended to lanes. Item index = sequence * n_head_kv + head. */
static void show_written(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct written_rows *rows = ctx;
    const struct pi_pass *pass = rows->pass;
    const struct pi_hparams *hp = &pass->model->hp;
    (void)thread;
    for (int64_t at = begin; at < end; at++) {
        const struct kv_append *done = &pass->lanes.append[at];
        int32_t i = (int32_t)(at / hp->n_head_kv);
        size_t row = (size_t)pass->ids.row0[i];
        struct pi_pass_written w = {
            .item = &pass->now.items[i],
            .layer = done->layer,
            .head = done->head,
            .slot = done->slot,
            .len = kv_lane_len(done->seq, done->layer, done->head),
            .k_stride = done->k_stride,
            .v_stride = done->v_stride,
            .h = rows->h + row * (size_t)hp->n_embd,
        };
        w.k = rows->k + row * w.k_stride + (size_t)done->head * (size_t)hp->dim_k;
        w.v = rows->v + row * w.v_stride + (size_t)done->head * (size_t)hp->dim_v;
        pass->writer.written(pass->writer.user, &w);
    }
}

/* Takes the centre off keys, where there is one. Nobody sees these rows again. */
static void take_centre_off(const struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n = (size_t)hp->n_head_kv * (size_t)hp->dim_k;
    if (!pi_at_some(pass->lanes.centre))
        return;
    const struct pi_centre_rows rows = {
        pass->rows.k, pi_at_item(pass->lanes.centre, (size_t)pass->now.layer->kv_layer * n),
        (int32_t)n};
    pi_pass_rows(pass, PI_ROWS_CENTRE, &rows, rows.n);
}

static void append(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t dim_k = (size_t)hp->dim_k, dim_v = (size_t)hp->dim_v, n_head = (size_t)hp->n_head_kv;
    int32_t n = 0;
    take_centre_off(pass);
    for (int32_t i = 0; i < pass->now.n_item; i++)
        for (size_t h = 0; h < n_head; h++) {
            size_t row = (size_t)pass->ids.row0[i] * n_head + h;
            pass->lanes.append[n++] = (struct kv_append){
                .seq = pass->now.items[i].kv,
                .layer = pass->now.layer->kv_layer,
                .head = (int32_t)h,
                .pos0 = pass->now.items[i].pos0,
                .n = pass->now.items[i].n_tok,
                .k = pi_at_item(pass->rows.k, row * dim_k),
                .k_stride = n_head * dim_k,
                .v = pi_at_item(pass->rows.v, row * dim_v),
                .v_stride = n_head * dim_v,
            };
        }
    kv_append_place(pass->lanes.append, n);
    pass->device->append(pass->stream, pass->lanes.append, n);
    if (pass->writer.written == NULL || !is_governed(pass))
        return;
    const struct written_rows rows = {
        .pass = pass,
        .k = pi_pass_look(pass, pass->rows.k_pre, n_head * dim_k, PI_ROOM_K_PRE),
        .v = pi_pass_look(pass, pass->rows.v, n_head * dim_v, PI_ROOM_V),
        .h = pi_pass_look(pass, pass->rows.h, (size_t)hp->n_embd, PI_ROOM_H),
    };
    pi_parallel_ranges(
        threads_for(pass, pass->now.n_tok * (int64_t)(n_head * (dim_k + dim_v)) * 64), n,
        show_written, (void *)&rows);
}

/* ---- what comes back ---- */

/* A loop over lanes whose queries the host looks at. */
struct lane_loop {
    struct pi_pass *pass;
    const float *q; /* of the pass's tokens */
    float *out;
};

/* Item index = item that recalls * n_head_kv + head. */
static void recall_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct lane_loop *loop = ctx;
    const struct pi_pass *pass = loop->pass;
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n_group = (size_t)(hp->n_head / hp->n_head_kv), dim_k = (size_t)hp->dim_k;
    size_t q_stride = (size_t)hp->n_head * dim_k;
    for (int64_t at = begin; at < end; at++) {
        int32_t i = pass->recalling.items[at / hp->n_head_kv], head = (int32_t)(at % hp->n_head_kv);
        const float *q =
            loop->q + (size_t)pass->ids.row0[i] * q_stride + (size_t)head * n_group * dim_k;
        pass->recalling.fn.choose(pass->recalling.fn.user, &pass->now.items[i],
                                  pass->now.layer->kv_layer, head, q, q_stride, thread);
    }
}

/* ---- what is read ---- */

static bool has_reader(const struct pi_pass *pass)
{
    return pass->reading.fn.select != NULL;
}

/* Chunks that choose what they read. */
static int32_t chunks_of(const struct pi_pass *pass)
{
    return is_governed(pass) ? pass->reading.n_chunk : 0;
}

static size_t unit_of(const struct pi_pass *pass, int32_t chunk, int32_t head)
{
    return (size_t)chunk * (size_t)pass->model->hp.n_head_kv + (size_t)head;
}

static int32_t *slots_of(const struct pi_pass *pass, int32_t chunk, int32_t head)
{
    return pass->reading.slots + unit_of(pass, chunk, head) * (size_t)pass->reading.cap_slot;
}

/* Item index = chunk * n_head_kv + head. The last chunks, whose lanes are longest, come first. */
static void select_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct lane_loop *loop = ctx;
    struct pi_pass *pass = loop->pass;
    const struct pi_hparams *hp = &pass->model->hp;
    int32_t n_head = hp->n_head_kv, n_group = hp->n_head / n_head;
    size_t q_stride = (size_t)hp->n_head * (size_t)hp->dim_k;
    for (int64_t at = begin; at < end; at++) {
        int32_t index = pass->reading.n_chunk - 1 - (int32_t)(at / n_head),
                head = (int32_t)(at % n_head);
        const struct pi_pass_chunk *c = &pass->reading.chunk[index];
        size_t row = (size_t)(pass->ids.row0[c->item - pass->now.items] + c->t0);
        pass->reading.n_slot[unit_of(pass, index, head)] = pass->reading.fn.select(
            pass->reading.fn.user, c, head,
            loop->q + row * q_stride + (size_t)head * (size_t)n_group * (size_t)hp->dim_k, q_stride,
            slots_of(pass, index, head), (int32_t)pass->reading.cap_slot, thread);
    }
}

static void selected_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    for (int64_t at = begin; at < end; at++)
        pass->reading.fn.selected(pass->reading.fn.user, &pass->reading.chunk[at], thread);
}

static void attended_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct lane_loop *loop = ctx;
    struct pi_pass *pass = loop->pass;
    const struct pi_hparams *hp = &pass->model->hp;
    int32_t n_head = hp->n_head_kv, n_group = hp->n_head / n_head;
    size_t stride = (size_t)hp->n_head * (size_t)hp->dim_v;
    for (int64_t at = begin; at < end; at++) {
        int32_t index = (int32_t)(at / n_head), head = (int32_t)(at % n_head);
        const struct pi_pass_chunk *c = &pass->reading.chunk[index];
        size_t row = (size_t)(pass->ids.row0[c->item - pass->now.items] + c->t0);
        if (pass->reading.n_slot[at] >= 0)
            pass->reading.fn.attended(pass->reading.fn.user, c, head,
                                      loop->out + row * stride +
                                          (size_t)head * (size_t)n_group * (size_t)hp->dim_v,
                                      stride, thread);
    }
}

/* ---- attend ---- */

/* The segment whose tiles include tile: the last with tile0 <= tile. */
static int32_t segment_of_tile(const struct pi_pass *pass, int32_t tile)
{
    int32_t lo = 0, hi = pass->lanes.n_segment - 1;
    while (lo < hi) {
        int32_t mid = (lo + hi + 1) / 2;
        if (pass->lanes.tile0[mid] <= tile)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* Attention of n_tok tokens of item i, from token t on, in one KV head's lane. */
static struct kv_attend_job job_of(const struct pi_pass *pass, int32_t i, int32_t head, int32_t t,
                                   int32_t n_tok)
{
    const struct pi_hparams *hp = &pass->model->hp;
    int32_t n_group = hp->n_head / hp->n_head_kv;
    size_t q_stride = (size_t)hp->n_head * hp->dim_k, out_stride = (size_t)hp->n_head * hp->dim_v;
    size_t row = (size_t)(pass->ids.row0[i] + t);
    return (struct kv_attend_job){
        .seq = pass->now.items[i].kv,
        .guests = pass->now.items[i].guests,
        .layer = pass->now.layer->kv_layer,
        .head = head,
        .n_tok = n_tok,
        .n_group = n_group,
        .pos0 = pass->now.items[i].pos0 + t,
        .q_at =
            pi_at_item(pass->rows.q, row * q_stride + (size_t)head * (size_t)(n_group * hp->dim_k)),
        .q_stride = q_stride,
        .scale = hp->attn_scale,
        .cap = hp->attn_cap,
        .out_at = pi_at_item(pass->rows.att,
                             row * out_stride + (size_t)head * (size_t)(n_group * hp->dim_v)),
        .out_stride = out_stride,
        .rope = pass->now.layer->rope,
        .sink = pass->now.layer->attn.sinks != NULL
                    ? pass->now.layer->attn.sinks + (size_t)head * (size_t)n_group
                    : NULL,
    };
}

/* Floats of a thread's watched rows: weights, maxima and sums, and for each part its end and a
   factor of each row. At most (n_row + 1) * (2 * stride + 16). */
static size_t watch_len(size_t n_row, size_t stride)
{
    return pi_align(n_row * (stride + 2) + (stride / PART_LEN + 1) * (n_row + 1), 16);
}

/* What attention gave a watched tile, as the host sees it. */
static const float *look_at_tile(const struct pi_pass *pass, const struct kv_attend_job *job,
                                 int32_t thread)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t row = (size_t)(hp->n_head * hp->dim_v), n = (size_t)(job->n_group * hp->dim_v);
    float *room = pass->watching.out;
    if (room != NULL)
        room += (size_t)thread * (size_t)pass->watching.tile * row;
    return pass->device->download(pass->stream, job->out_at,
                                  ((size_t)(job->n_tok - 1) * row + n) * sizeof(float), room);
}

/* Shows the tokens of a tile, from token t0 of item i on, to the watch. */
static void show_tile(const struct pi_pass *pass, int32_t i, int32_t t0,
                      const struct kv_attend_job *job, int32_t thread)
{
    const struct pi_pass_item *item = &pass->now.items[i];
    const struct kv_attend_tap *tap = job->tap;
    const float *out = look_at_tile(pass, job, thread);
    size_t n_head = (size_t)pass->model->hp.n_head_kv, n_group = (size_t)job->n_group;
    int32_t len = kv_lane_len(item->kv, job->layer, job->head);
    for (int32_t t = t0; t < t0 + job->n_tok; t++) {
        size_t row = (size_t)(t - t0) * n_group;
        struct kv_weight_parts parts = {0};
        if (tap->parts != NULL) {
            parts = *tap->parts;
            parts.factor += row;
        }
        int32_t n = len - (item->n_tok - 1 - t);
        struct pi_pass_attention a = {
            .item = item,
            .layer = job->layer,
            .head = job->head,
            .t = t,
            .n = n,
            .slot =
                t == 0 ? pass->lanes.append[(size_t)i * n_head + (size_t)job->head].slot : n - 1,
            .weight = tap->weight + row * tap->row_stride,
            .stride = tap->row_stride,
            .parts = tap->parts == NULL ? NULL : &parts,
            .max = tap->max + row,
            .sum = tap->sum + row,
            .out = out + (size_t)(t - t0) * job->out_stride,
        };
        pass->watching.fn.attended(pass->watching.fn.user, &a, thread);
    }
}

/* Where a thread's weights go. */
static void place_tap(const struct pi_pass *pass, int32_t thread, struct pi_pass_watched_rows *to)
{
    size_t n_row =
        (size_t)pass->watching.tile * (size_t)(pass->model->hp.n_head / pass->model->hp.n_head_kv);
    size_t stride = pass->watching.stride;
    float *rows = pass->watching.rows + (size_t)thread * watch_len(n_row, stride);
    to->tap = (struct kv_attend_tap){.weight = rows,
                                     .row_stride = stride,
                                     .max = rows + n_row * stride,
                                     .sum = rows + n_row * (stride + 1)};
    to->parts = (struct kv_weight_parts){.room = (int32_t)(stride / PART_LEN) + 1};
    to->parts.factor = rows + n_row * (stride + 2);
    to->parts.end = (int32_t *)(void *)(to->parts.factor + (size_t)to->parts.room * n_row);
    to->tap.parts = pass->watching.fn.parts ? &to->parts : NULL;
}

/* Tile number `part` of a watched item in one lane, whose tokens come in order. Nobody watches a
   window. False: there are no more. */
static bool watched_tile(const struct pi_pass *pass, int32_t i, int32_t head, int32_t part,
                         int32_t thread, struct kv_attend_job *out)
{
    int32_t t = part * pass->watching.tile, n_tok = pass->now.items[i].n_tok;
    if (t >= n_tok)
        return false;
    assert(!is_governed(pass) ||
           (size_t)kv_lane_len(pass->now.items[i].kv, pass->now.layer->kv_layer, head) <=
               pass->watching.stride);
    *out = job_of(pass, i, head, t, (int32_t)pi_min(pass->watching.tile, n_tok - t));
    if (is_governed(pass)) {
        place_tap(pass, thread, &pass->watching.taps[thread]);
        out->tap = &pass->watching.taps[thread].tap;
    }
    return true;
}

/* Calls over a chunk that reads everything, per thread: so that a slow one holds the others up by
   little. */
#define PARTS_PER_THREAD 4

/* Rows of queries of such a call: their sums of values still stay in a cache of the second level.
 */
#define PART_ROWS 1024

/* Tokens of one call for a chunk of n_tok. Over what was chosen mostly all of them, because each
   call gathers the entries anew; everything is decoded anew by each call, which costs less. */
static int32_t part_of(const struct pi_pass *pass, int32_t n_tok, bool sparse)
{
    int64_t n_call = (int64_t)pass->plan.n_thread * (sparse ? 1 : PARTS_PER_THREAD);
    int64_t n_part =
        pi_ceil_div(n_call, (int64_t)pass->reading.n_chunk * pass->model->hp.n_head_kv);
    return (int32_t)pi_max(pass->plan.tile,
                           pi_min(pi_ceil_div(n_tok, n_part), pass->reading.part_most));
}

/* Of the query heads of a call's group the part of that many: a query's bits depend on no other. */
static void take_part(const struct pi_pass *pass, struct kv_attend_job *job, int32_t part)
{
    int32_t begin = job->n_group * part / pass->lanes.n_part;
    int32_t end = job->n_group * (part + 1) / pass->lanes.n_part;
    job->q_at = pi_at_item(job->q_at, (size_t)begin * (size_t)pass->model->hp.dim_k);
    job->out_at = pi_at_item(job->out_at, (size_t)begin * (size_t)pass->model->hp.dim_v);
    job->sink = job->sink != NULL ? job->sink + begin : NULL;
    job->n_group = end - begin;
}

/* False: fewer parts than tiles. */
static bool tile_job(const struct pi_pass *pass, int32_t tile, int32_t head, int32_t part,
                     struct kv_attend_job *job)
{
    int32_t i = segment_of_tile(pass, tile), n_tok = pass->plan.tile, n_slot = -1;
    const struct pi_pass_segment *s = &pass->lanes.segment[i];
    if (s->chunk >= 0) {
        if (is_governed(pass))
            n_slot = pass->reading.n_slot[unit_of(pass, s->chunk, head)];
        n_tok = part_of(pass, s->n_tok, n_slot >= 0);
    }
    int64_t t = (int64_t)(tile - pass->lanes.tile0[i]) * n_tok;
    if (t >= s->n_tok)
        return false;
    *job = job_of(pass, s->item, head, s->t0 + (int32_t)t, (int32_t)pi_min(n_tok, s->n_tok - t));
    if (n_slot >= 0) {
        job->slots = slots_of(pass, s->chunk, head);
        job->n_slot = n_slot;
    }
    take_part(pass, job, part);
    return true;
}

/* What number `at` of the layer's attention is. */
struct attend_unit {
    int32_t rank, head, part;
};

static struct attend_unit unit_at(const struct pi_pass *pass, int64_t at)
{
    int32_t n_head = pass->model->hp.n_head_kv;
    int64_t lane = at / pass->lanes.n_part;
    return (struct attend_unit){(int32_t)(lane / n_head), (int32_t)(lane % n_head),
                                (int32_t)(at % pass->lanes.n_part)};
}

/* Watched items come first, then item index counts tiles down, so that the shortest (the first of a
   prompt) are what threads that are done take from others. The parts of a group are neighbours. */
static bool next_job(void *ctx, int64_t at, int32_t turn, int32_t thread, struct kv_attend_job *out)
{
    const struct pi_pass *pass = ctx;
    struct attend_unit u = unit_at(pass, at);
    int32_t n_tile = pass->lanes.tile0[pass->lanes.n_segment];
    if (u.rank >= pass->watching.n)
        return turn == 0 &&
               tile_job(pass, n_tile - 1 - (u.rank - pass->watching.n), u.head, u.part, out);
    return u.part == 0 &&
           watched_tile(pass, pass->watching.items[u.rank], u.head, turn, thread, out);
}

static void job_done(void *ctx, int64_t at, int32_t turn, const struct kv_attend_job *job,
                     int32_t thread)
{
    const struct pi_pass *pass = ctx;
    struct attend_unit u = unit_at(pass, at);
    if (u.rank < pass->watching.n && is_governed(pass))
        show_tile(pass, pass->watching.items[u.rank], turn * pass->watching.tile, job, thread);
}

static void finish_watched(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    (void)thread;
    for (int64_t at = begin; at < end; at++)
        pass->watching.fn.finished(pass->watching.fn.user,
                                   &pass->now.items[pass->watching.items[at]],
                                   pass->now.layer->kv_layer);
}

/* ---- the layer's attention ---- */

/* The most multiplications of the running layer's attention, by pairs of query and key, and of
   choosing what is read, about. */
static void count_work(const struct pi_pass *pass, int64_t *attend, int64_t *select)
{
    const struct pi_hparams *hp = &pass->model->hp;
    int64_t n_key = 0, n_scored = 0;
    for (int32_t i = 0; i < pass->now.n_item; i++)
        for (int32_t h = 0; h < hp->n_head_kv; h++)
            n_key += (int64_t)pass->now.items[i].n_tok *
                     kv_lane_len(pass->now.items[i].kv, pass->now.layer->kv_layer, h);
    for (int32_t i = 0; i < pass->reading.n_chunk; i++)
        n_scored += kv_lane_len(pass->reading.chunk[i].item->kv, pass->now.layer->kv_layer, 0);
    int64_t n_group = hp->n_head / hp->n_head_kv;
    *attend =
        (n_key + (int64_t)pass->now.n_tok * hp->n_head_kv) * n_group * (hp->dim_k + hp->dim_v);
    *select = n_scored * hp->n_head * hp->dim_k;
}

/* Parts of a group that become calls of their own: more than one where some lane is so much longer
   than others that one thread would be at it while all others wait. Each part reads the lane
   anew. Latent attention has one lane a layer, so that all other threads always would. */
static int32_t count_parts(const struct pi_pass *pass)
{
    int32_t n_head = pass->model->hp.n_head_kv, n_group = pass->model->hp.n_head / n_head;
    int64_t all = 0, longest = 0;
    bool uneven = pass->plan.geometry.v_in_k > 0;
    for (int32_t i = 0; i < pass->lanes.n_segment && pass->plan.n_thread > 1; i++) {
        const struct pi_pass_segment *s = &pass->lanes.segment[i];
        int64_t most = 0, sum = 0;
        for (int32_t h = 0; h < n_head; h++) {
            int64_t len = kv_lane_len(pass->now.items[s->item].kv, pass->now.layer->kv_layer, h);
            most = pi_max(most, len);
            sum += len;
        }
        uneven = uneven || most * n_head > sum + sum / 4;
        longest = pi_max(longest, most * pi_min(s->n_tok, pass->plan.tile));
        all += sum * s->n_tok;
    }
    bool waits = uneven && longest * pass->plan.n_thread > all + all / 4;
    bool apart = pass->reading.n_chunk == 0 && pass->watching.n == 0;
    return waits && apart ? (int32_t)pi_min(pass->plan.n_thread, n_group) : 1;
}

static void attend(struct pi_pass *pass, int64_t work)
{
    const struct kv_attend_list list = {
        .ctx = pass,
        .n = ((int64_t)pass->lanes.tile0[pass->lanes.n_segment] + pass->watching.n) *
             pass->model->hp.n_head_kv * pass->lanes.n_part,
        .work = work,
        .job = next_job,
        .done = pass->watching.n > 0 ? job_done : NULL,
    };
    pass->device->attend(pass->stream, &list);
}

/* The reader chooses for every chunk. */
static void select_all(struct pi_pass *pass, int64_t n_unit, int64_t work)
{
    const struct pi_hparams *hp = &pass->model->hp;
    struct lane_loop loop = {.pass = pass};
    int32_t n_thread = threads_for(pass, work);
    loop.q = pi_pass_look(pass, pass->rows.q, (size_t)(hp->n_head * hp->dim_k), PI_ROOM_Q);
    pi_parallel_items(n_thread, n_unit, select_items, &loop);
    if (pass->reading.fn.selected != NULL)
        pi_parallel_items(n_thread, pass->reading.n_chunk, selected_items, pass);
}

/* The reader has a say in what attention gave its chunks. */
static void show_attended(struct pi_pass *pass, int64_t n_unit, int64_t work)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n = (size_t)(hp->n_head * hp->dim_v);
    struct lane_loop loop = {.pass = pass};
    loop.out = pi_pass_look(pass, pass->rows.att, n, PI_ROOM_ATT);
    pi_parallel_items(threads_for(pass, work), n_unit, attended_items, &loop);
    pass->device->upload(pass->stream, loop.out, (size_t)pass->now.n_tok * n * sizeof(float),
                         pass->rows.att);
}

static void recall(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    struct lane_loop loop = {.pass = pass};
    loop.q = pi_pass_look(pass, pass->rows.q, (size_t)(hp->n_head * hp->dim_k), PI_ROOM_Q);
    pi_parallel_items(pass->plan.n_thread, (int64_t)pass->recalling.n * hp->n_head_kv, recall_items,
                      &loop);
}

void pi_pass_attention_run(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    int64_t n_unit = (int64_t)chunks_of(pass) * hp->n_head_kv, attend_work, select_work;
    append(pass);
    if (pass->recalling.n > 0 && is_governed(pass))
        recall(pass);
    count_work(pass, &attend_work, &select_work);
    for (int32_t i = 0; i < pass->reading.n_chunk; i++)
        pass->reading.chunk[i].layer = pass->now.layer->kv_layer;
    if (n_unit > 0)
        select_all(pass, n_unit, select_work);
    pass->lanes.n_part = count_parts(pass);
    attend(pass, attend_work);
    if (n_unit > 0 && pass->reading.fn.attended != NULL)
        show_attended(pass, n_unit, select_work);
    if (pass->watching.n > 0 && is_governed(pass))
        pi_parallel_items(threads_for(pass, attend_work / hp->dim_v), pass->watching.n,
                          finish_watched, pass);
}

/* ---- the layout of a pass ---- */

static void add_segment(struct pi_pass *pass, int32_t item, int32_t t0, int32_t n_tok,
                        int32_t chunk)
{
    int32_t i = pass->lanes.n_segment++;
    pass->lanes.segment[i] = (struct pi_pass_segment){item, t0, n_tok, chunk};
    pass->lanes.tile0[i + 1] = pass->lanes.tile0[i] + (int32_t)pi_ceil_div(n_tok, pass->plan.tile);
}

/* The reader's chunks of an item; returns the tokens in them. */
static int32_t add_chunks(struct pi_pass *pass, int32_t i)
{
    const struct pi_pass_item *item = &pass->now.items[i];
    int32_t n_read = has_reader(pass) ? item->n_read : 0;
    assert(n_read <= item->n_tok);
    for (int32_t t = 0; t < n_read; t += pass->reading.fn.chunk) {
        int32_t n = (int32_t)pi_min(pass->reading.fn.chunk, n_read - t),
                at = pass->reading.n_chunk++;
        assert(at < pass->reading.cap_chunk);
        pass->reading.chunk[at] =
            (struct pi_pass_chunk){.item = item, .index = at, .t0 = t, .n_tok = n};
        add_segment(pass, i, t, n, at);
    }
    return n_read;
}

/* A watched item has no segment: its tokens attend in order. */
void pi_pass_attention_lay_out(struct pi_pass *pass)
{
    pass->lanes.tile0[0] = 0;
    pass->lanes.n_segment = 0;
    pass->watching.n = 0;
    pass->reading.n_chunk = 0;
    pass->recalling.n = 0;
    for (int32_t i = 0; i < pass->now.n_item; i++) {
        const struct pi_pass_item *item = &pass->now.items[i];
        if (item->recall && pass->recalling.fn.choose != NULL)
            pass->recalling.items[pass->recalling.n++] = i;
        if (item->watched && pass->watching.fn.attended != NULL) {
            assert(!has_reader(pass) || item->n_read == 0);
            pass->watching.items[pass->watching.n++] = i;
            continue;
        }
        int32_t n_read = add_chunks(pass, i);
        if (n_read < item->n_tok)
            add_segment(pass, i, n_read, item->n_tok - n_read, -1);
    }
}

/* ---- scratch ---- */

size_t pi_pass_attention_plan(struct pi_pass *pass)
{
    int32_t n_group = pass->model->hp.n_head / pass->model->hp.n_head_kv;
    pass->plan.tile =
        (int32_t)pi_min(kv_attend_tile(&pass->plan.geometry, n_group), pass->plan.max_tok);
    return kv_attend_scratch_bytes(&pass->plan.geometry, pass->plan.tile * n_group);
}

bool pi_pass_attention_alloc(struct pi_pass *pass)
{
    bool ok = true;
    pass->lanes.segment = pi_pass_alloc(pass->plan.max_tok, 1, sizeof(*pass->lanes.segment), &ok);
    pass->lanes.tile0 = pi_pass_alloc(pass->plan.max_tok + 1, 1, sizeof(*pass->lanes.tile0), &ok);
    pass->recalling.items =
        pi_pass_alloc(pass->plan.max_tok, 1, sizeof(*pass->recalling.items), &ok);
    pass->lanes.append = pi_pass_alloc(pass->plan.max_tok, (size_t)pass->model->hp.n_head_kv,
                                       sizeof(*pass->lanes.append), &ok);
    return ok;
}

void pi_pass_attention_free(struct pi_pass *pass)
{
    void *const parts[] = {pass->lanes.segment, pass->lanes.tile0,    pass->watching.items,
                           pass->lanes.append,  pass->reading.chunk,  pass->watching.rows,
                           pass->watching.taps, pass->reading.slots,  pass->reading.n_slot,
                           pass->watching.out,  pass->recalling.items};
    for (size_t i = 0; i < PI_LEN(parts); i++)
        pi_mem_free(parts[i]);
}

/* ---- the watch ---- */

/* Rows of weights of one attention call: enough that a page of many is decoded for several of them,
   few enough that they stay in a cache beside what they are made of. */
#define WATCH_ROWS 32

pith_status pi_pass_set_watch(struct pi_pass *pass, const struct pi_pass_watch *watch,
                              pith_error *err)
{
    const struct pi_hparams *hp = &pass->model->hp;
    bool ok = true;
    int32_t tile = (int32_t)pi_max(1, WATCH_ROWS / (hp->n_head / hp->n_head_kv));
    pass->watching.tile = (int32_t)pi_min(tile, pass->plan.tile);
    if (watch != NULL && pass->watching.items == NULL) {
        int32_t *watched = pi_pass_alloc(pass->plan.max_tok, 1, sizeof(int32_t), &ok);
        struct pi_pass_watched_rows *rows =
            pi_pass_alloc(pass->plan.n_thread, 1, sizeof(*rows), &ok);
        float *out = NULL;
        if (!pass->device->in_host)
            out = pi_pass_alloc(pass->plan.n_thread * pass->watching.tile,
                                (size_t)(hp->n_head * hp->dim_v), sizeof(*out), &ok);
        if (!ok) {
            pi_mem_free(watched);
            pi_mem_free(rows);
            pi_mem_free(out);
            return pi_fail(err, PITH_NOMEM, "no memory for what is watched of %d tokens",
                           pass->plan.max_tok);
        }
        pass->watching.items = watched;
        pass->watching.taps = rows;
        pass->watching.out = out;
    }
    pass->watching.fn = watch != NULL ? *watch : (struct pi_pass_watch){0};
    return PITH_OK;
}

pith_status pi_pass_reserve_watch(struct pi_pass *pass, int64_t longest, pith_error *err)
{
    const struct pi_hparams *hp = &pass->model->hp;
    int32_t n_row = pass->watching.tile * (hp->n_head / hp->n_head_kv);
    if (longest <= (int64_t)pass->watching.stride)
        return PITH_OK;
    /* Whole pages, and more than asked: a lane may grow with every pass. */
    int64_t stride = pi_ceil_div(longest + longest / 2, 64) * 64;
    size_t len;
    float *rows = NULL;
    if (pi_mul_size((size_t)n_row + 1, (size_t)stride * 2 + 16, &len) &&
        pi_mul_size(len, sizeof(*rows), &len))
        rows = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)pass->plan.n_thread,
                              watch_len((size_t)n_row, (size_t)stride) * sizeof(*rows));
    if (rows == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for attention weights over %lld entries",
                       (long long)longest);
    pi_mem_free(pass->watching.rows);
    pass->watching.rows = rows;
    pass->watching.stride = (size_t)stride;
    return PITH_OK;
}

size_t pi_pass_grown_bytes(const struct pi_pass *pass)
{
    return pi_mem_size(pass->watching.rows) + pi_mem_size(pass->reading.chunk) +
           pi_mem_size(pass->reading.slots) + pi_mem_size(pass->reading.n_slot);
}

/* ---- the reader ---- */

pith_status pi_pass_set_reader(struct pi_pass *pass, const struct pi_pass_reader *reader,
                               pith_error *err)
{
    const struct pi_hparams *hp = &pass->model->hp;
    if (reader == NULL) {
        pass->reading.fn = (struct pi_pass_reader){0};
        return PITH_OK;
    }
    int32_t n_group = hp->n_head / hp->n_head_kv;
    int32_t most = (int32_t)pi_max(pass->plan.tile, PART_ROWS / n_group);
    most = (int32_t)pi_max(pass->plan.tile, pi_min(most, reader->chunk));
    size_t size = kv_attend_scratch_bytes(&pass->plan.geometry, most * n_group);
    if (size > pass->plan.attend_size && pi_pass_open_stream(pass, size, NULL) != PITH_OK)
        return pi_fail(err, PITH_NOMEM, "no memory for the attention of chunks of %d tokens",
                       reader->chunk);
    pass->reading.fn = *reader;
    pass->reading.part_most = most;
    return PITH_OK;
}

pith_status pi_pass_reserve_read(struct pi_pass *pass, int32_t n_chunk, int64_t cap,
                                 pith_error *err)
{
    int32_t n_head = pass->model->hp.n_head_kv;
    size_t n_slot;
    bool ok = true;
    if (n_chunk <= pass->reading.cap_chunk && cap <= pass->reading.cap_slot)
        return PITH_OK;
    /* More than asked: of a share of the lane it grows with every pass. */
    n_chunk = (int32_t)pi_max(n_chunk, pass->reading.cap_chunk);
    cap = cap <= pass->reading.cap_slot ? pass->reading.cap_slot : cap + cap / 2;
    if (cap > INT32_MAX || !pi_mul_size((size_t)cap, (size_t)n_head, &n_slot))
        return pi_fail(err, PITH_NOMEM, "no memory for reading %lld entries", (long long)cap);
    struct pi_pass_chunk *chunk = pi_pass_alloc(n_chunk, 1, sizeof(*chunk), &ok);
    int32_t *slots = pi_pass_alloc(n_chunk, n_slot, sizeof(*slots), &ok);
    int32_t *n = pi_pass_alloc(n_chunk, (size_t)n_head, sizeof(*n), &ok);
    void *const old[] = {pass->reading.chunk, pass->reading.slots, pass->reading.n_slot},
                *const fresh[] = {chunk, slots, n};
    for (size_t i = 0; i < PI_LEN(old); i++)
        pi_mem_free(ok ? old[i] : fresh[i]);
    if (!ok)
        return pi_fail(err, PITH_NOMEM, "no memory for %d chunks that read %lld entries each",
                       n_chunk, (long long)cap);
    pass->reading.chunk = chunk;
    pass->reading.slots = slots;
    pass->reading.n_slot = n;
    pass->reading.cap_chunk = n_chunk;
    pass->reading.cap_slot = cap;
    return PITH_OK;
}

/* ---- the writer ---- */

pith_status pi_pass_set_writer(struct pi_pass *pass, const struct pi_pass_writer *writer,
                               pith_error *err)
{
    const struct pi_hparams *hp = &pass->model->hp;
    bool ok = true;
    if (writer != NULL && !pi_at_some(pass->rows.k_pre)) {
        struct pi_at rows =
            pi_pass_place(pass, pass->plan.max_tok, (size_t)hp->n_head_kv * (size_t)hp->dim_k,
                          sizeof(float), &ok);
        if (!ok)
            return pi_fail(err, PITH_NOMEM, "no memory for the keys of %d tokens",
                           pass->plan.max_tok);
        pass->rows.k_pre = rows;
    }
    if (writer == NULL) {
        pass->device->free(pass->device, pass->rows.k_pre);
        pass->rows.k_pre = (struct pi_at){0};
    }
    pass->writer = writer != NULL ? *writer : (struct pi_pass_writer){0};
    return PITH_OK;
}

/* ---- the recaller ---- */

void pi_pass_set_recaller(struct pi_pass *pass, const struct pi_pass_recaller *recaller)
{
    pass->recalling.fn = recaller != NULL ? *recaller : (struct pi_pass_recaller){0};
}
