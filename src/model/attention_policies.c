/*
 * attention_policies.c - the calls between policies and a layer's attention, once a layer with all
 * lanes. The writer sees new entries, the recaller brings some back, the reader chooses the entries
 * of chunks, and the watch decides the notes of weights. It knows no policy.
 */
#include "model/pass.h"

/* The room for parts of weights is one part for this many entries, the smallest page. */
#define PART_LEN 16

/* ---- the writer ---- */

static void show_entries(struct pi_pass *pass)
{
    const struct pi_pass_entries entries = {
        .items = pass->now.items,
        .n_item = pass->now.n_item,
        .row0 = pass->ids.row0,
        .append = pass->lanes.append,
        .k_pre = pass->rows.k_pre,
        .h = pass->rows.h,
    };
    pass->writer.fn.entries(pass->writer.fn.user, pass->stream, &entries);
}

static void show_written(struct pi_pass *pass, int32_t n)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t dim_k = (size_t)hp->dim_k, dim_v = (size_t)hp->dim_v, n_head = (size_t)hp->n_head_kv;
    const float *k = pi_pass_look(pass, pass->rows.k_pre, n_head * dim_k, PI_ROOM_K_PRE);
    const float *v = pi_pass_look(pass, pass->rows.v, n_head * dim_v, PI_ROOM_V);
    const float *h = pi_pass_look(pass, pass->rows.h, (size_t)hp->n_embd, PI_ROOM_H);
    for (int32_t at = 0; at < n; at++) {
        const struct kv_append *done = &pass->lanes.append[at];
        int32_t i = at / hp->n_head_kv;
        size_t row = (size_t)pass->ids.row0[i], head = (size_t)done->head;
        pass->writer.lanes[at] = (struct pi_pass_written){
            .item = &pass->now.items[i],
            .layer = done->layer,
            .head = done->head,
            .slot = done->slot,
            .len = kv_lane_len(done->seq, done->layer, done->head),
            .k = k + row * done->k_stride + head * dim_k,
            .k_stride = done->k_stride,
            .v = v + row * done->v_stride + head * dim_v,
            .v_stride = done->v_stride,
            .h = h + row * (size_t)hp->n_embd,
        };
    }
    pass->writer.fn.written(pass->writer.fn.user, pass->writer.lanes, n);
}

void pi_pass_show_written(struct pi_pass *pass, int32_t n)
{
    if (pass->writer.fn.entries != NULL)
        show_entries(pass);
    else
        show_written(pass, n);
}

/* ---- the recaller ---- */

void pi_pass_recall(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n = (size_t)(hp->n_head * hp->dim_k);
    const struct pi_pass_recaller *fn = &pass->recalling.fn;
    struct pi_pass_asked *items = pass->recalling.items;
    const float *q = NULL;
    for (int32_t i = 0; i < pass->recalling.n; i++) {
        size_t row = (size_t)pass->ids.row0[items[i].item - pass->now.items] * n;
        items[i].layer = pass->now.layer->kv_layer;
        items[i].q_at = pi_at_item(pass->rows.q, row);
        items[i].q_stride = n;
    }
    if (fn->looks == NULL || fn->looks(fn->user, items, pass->recalling.n))
        q = pi_pass_look(pass, pass->rows.q, n, PI_ROOM_Q);
    for (int32_t i = 0; i < pass->recalling.n; i++) {
        size_t row = (size_t)pass->ids.row0[items[i].item - pass->now.items] * n;
        items[i].q = q != NULL ? q + row : NULL;
    }
    fn->choose(fn->user, items, pass->recalling.n);
}

/* ---- the reader ---- */

/* The rows of a chunk's first token, of n floats each. */
static size_t row_of_chunk(const struct pi_pass *pass, const struct pi_pass_chunk *c, size_t n)
{
    return (size_t)(pass->ids.row0[c->item - pass->now.items] + c->t0) * n;
}

/* The reader chooses for every chunk. */
void pi_pass_select(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n = (size_t)(hp->n_head * hp->dim_k);
    const struct pi_pass_reader *reader = &pass->reading.fn;
    const float *q = NULL;
    for (int32_t i = 0; i < pass->reading.n_chunk; i++) {
        struct pi_pass_chunk *c = &pass->reading.chunk[i];
        c->layer = pass->now.layer->kv_layer;
        c->q_at = pi_at_item(pass->rows.q, row_of_chunk(pass, c, n));
    }
    if (reader->looks == NULL ||
        reader->looks(reader->user, pass->reading.chunk, pass->reading.n_chunk))
        q = pi_pass_look(pass, pass->rows.q, n, PI_ROOM_Q);
    for (int32_t i = 0; i < pass->reading.n_chunk; i++) {
        struct pi_pass_chunk *c = &pass->reading.chunk[i];
        c->q = q != NULL ? q + row_of_chunk(pass, c, n) : NULL;
        c->q_stride = n;
        c->cap = (int32_t)pass->reading.cap_slot;
        c->slots = pi_pass_read_slots(pass, i, 0);
        c->n_slot = &pass->reading.n_slot[pi_pass_read_unit(pass, i, 0)];
        c->chosen = &pass->reading.chosen[pi_pass_read_unit(pass, i, 0)];
        memset(c->chosen, 0, (size_t)hp->n_head_kv * sizeof(*c->chosen));
    }
    reader->select(reader->user, pass->reading.chunk, pass->reading.n_chunk);
}

/* Whether some lane of the layer reads a part. */
static bool reads_part(const struct pi_pass *pass)
{
    for (int32_t i = 0; i < pass->reading.n_chunk; i++)
        for (int32_t h = 0; h < pass->model->hp.n_head_kv; h++)
            if (pass->reading.chunk[i].n_slot[h] >= 0)
                return true;
    return false;
}

/* The reader may change the output of its chunks' attention. */
void pi_pass_show_attended(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n = (size_t)(hp->n_head * hp->dim_v);
    const struct pi_pass_reader *reader = &pass->reading.fn;
    struct pi_pass_chunk *chunk = pass->reading.chunk;
    int32_t n_chunk = pass->reading.n_chunk;
    if (!reads_part(pass))
        return;
    for (int32_t i = 0; i < n_chunk; i++)
        chunk[i].out_at = pi_at_item(pass->rows.att, row_of_chunk(pass, &chunk[i], n));
    if (reader->blended != NULL && !reader->blended(reader->user, chunk, n_chunk))
        return;
    float *out = pi_pass_look(pass, pass->rows.att, n, PI_ROOM_ATT);
    for (int32_t i = 0; i < n_chunk; i++) {
        chunk[i].out = out + row_of_chunk(pass, &chunk[i], n);
        chunk[i].out_stride = n;
    }
    reader->attended(reader->user, chunk, n_chunk);
    pass->device->upload(pass->stream, out, (size_t)pass->now.n_tok * n * sizeof(float),
                         pass->rows.att);
}

/* ---- the watch ---- */

void pi_pass_plan_watch(struct pi_pass *pass)
{
    int32_t n_head = pass->model->hp.n_head_kv, n = pass->watching.n * n_head;
    for (int32_t at = 0; at < n; at++) {
        int32_t i = pass->watching.items[at / n_head], head = at % n_head;
        struct pi_pass_watched *lane = &pass->watching.lanes[at];
        lane->item = &pass->now.items[i];
        lane->layer = pass->now.layer->kv_layer;
        lane->head = head;
        lane->slot = pass->lanes.append[i * n_head + head].slot;
        lane->n_note = 0;
        lane->rows = false;
    }
    pass->watching.fn.plan(pass->watching.fn.user, pass->watching.lanes, n);
}

size_t pi_pass_watch_len(size_t n_row, size_t stride)
{
    return pi_align(n_row * (stride + 2) + (stride / PART_LEN + 1) * (n_row + 1), 16);
}

/* Where a thread's weights go. The host's rows are finished. */
static struct kv_attend_tap *place_tap(const struct pi_pass *pass, int32_t thread, bool finished)
{
    struct pi_pass_watched_rows *to = &pass->watching.taps[thread];
    size_t n_row =
        (size_t)pass->watching.tile * (size_t)(pass->model->hp.n_head / pass->model->hp.n_head_kv);
    size_t stride = pass->watching.stride;
    float *rows = pass->watching.rows + (size_t)thread * pi_pass_watch_len(n_row, stride);
    to->tap = (struct kv_attend_tap){.weight = rows,
                                     .row_stride = stride,
                                     .max = rows + n_row * stride,
                                     .sum = rows + n_row * (stride + 1)};
    to->parts = (struct kv_weight_parts){.room = (int32_t)(stride / PART_LEN) + 1};
    to->parts.factor = rows + n_row * (stride + 2);
    to->parts.end = (int32_t *)(void *)(to->parts.factor + (size_t)to->parts.room * n_row);
    to->tap.parts = finished ? NULL : &to->parts;
    return &to->tap;
}

void pi_pass_watch_job(const struct pi_pass *pass, const struct pi_pass_watched *lane,
                       int32_t n_later, int32_t thread, struct kv_attend_job *job)
{
    assert((size_t)kv_lane_len(job->seq, job->layer, job->head) <= pass->watching.stride);
    job->tap = place_tap(pass, thread, lane->rows);
    job->notes = lane->note;
    job->n_note = lane->n_note;
    job->n_later = n_later;
    job->notes_only = !lane->rows;
}

/* The output of attention for a watched tile, as the host sees it. */
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

void pi_pass_show_tile(const struct pi_pass *pass, const struct pi_pass_watched *lane, int32_t t0,
                       const struct kv_attend_job *job, int32_t thread)
{
    const struct kv_attend_tap *tap = job->tap;
    const float *out = look_at_tile(pass, job, thread);
    int32_t len = kv_lane_len(lane->item->kv, lane->layer, lane->head);
    for (int32_t t = t0; t < t0 + job->n_tok; t++) {
        int32_t n = len - (lane->item->n_tok - 1 - t);
        const struct pi_pass_attention a = {
            .item = lane->item,
            .layer = lane->layer,
            .head = lane->head,
            .t = t,
            .n = n,
            .slot = t == 0 ? lane->slot : n - 1,
            .weight = tap->weight + (size_t)((t - t0) * job->n_group) * tap->row_stride,
            .stride = tap->row_stride,
            .out = out + (size_t)(t - t0) * job->out_stride,
        };
        pass->watching.fn.attended(pass->watching.fn.user, &a, thread);
    }
}
