/*
 * attention_lanes.c - the part of attention between the projections. It stores keys and values in
 * the lanes and shows the new entries to a writer. A recaller brings entries back, a reader chooses
 * the entries for chunks of tokens, and every token attends. It knows no policy.
 *
 * A token's attention is a tile of its segment in each KV head's lane. Where the reader chose for a
 * chunk in a lane, its tokens share one call over the chosen entries. Invariant: the bits do not
 * depend on the split of tokens into tiles, nor on the thread that computes a tile.
 */
#include "model/pass.h"

/* ---- append ---- */

/* Whether policies govern the running layer's entries: they leave the entries of a window alone. */
static bool is_governed(const struct pi_pass *pass)
{
    return pass->now.layer->window == 0;
}

/* Takes the centre off keys, where there is one. These rows are not used again. */
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
    if (pass->writer.fn.written != NULL && is_governed(pass))
        pi_pass_show_written(pass, n);
}

/* ---- reading a part ---- */

static bool has_reader(const struct pi_pass *pass)
{
    return pass->reading.fn.select != NULL;
}

/* The number of chunks that choose their entries. */
static int32_t chunks_of(const struct pi_pass *pass)
{
    return is_governed(pass) ? pass->reading.n_chunk : 0;
}

size_t pi_pass_read_unit(const struct pi_pass *pass, int32_t chunk, int32_t head)
{
    return (size_t)chunk * (size_t)pass->model->hp.n_head_kv + (size_t)head;
}

int32_t *pi_pass_read_slots(const struct pi_pass *pass, int32_t chunk, int32_t head)
{
    return pass->reading.slots +
           pi_pass_read_unit(pass, chunk, head) * (size_t)pass->reading.cap_slot;
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

/* Number `at` of the layer's attention. */
struct attend_unit {
    int32_t rank, head, part;
};

static const struct pi_pass_watched *watched_lane(const struct pi_pass *pass, struct attend_unit u)
{
    return &pass->watching.lanes[u.rank * pass->model->hp.n_head_kv + u.head];
}

/* Tile number `part` of a watched item in one lane, whose tokens come in order. A layer with a
   window is not watched. False: there are no more. */
static bool watched_tile(const struct pi_pass *pass, struct attend_unit u, int32_t part,
                         int32_t thread, struct kv_attend_job *out)
{
    int32_t i = pass->watching.items[u.rank], t = part * pass->watching.tile;
    int32_t n_tok = pass->now.items[i].n_tok;
    if (t >= n_tok)
        return false;
    *out = job_of(pass, i, u.head, t, (int32_t)pi_min(pass->watching.tile, n_tok - t));
    if (is_governed(pass))
        pi_pass_watch_job(pass, watched_lane(pass, u), n_tok - t - out->n_tok, thread, out);
    return true;
}

/* Calls over a chunk that reads everything, per thread: so that a slow one holds the others up by
   little. */
#define PARTS_PER_THREAD 4

/* Tokens of one call for a chunk of n_tok. Over chosen entries it is mostly all of them, because
   each call gathers the entries anew. Over everything, each call decodes the entries anew, which
   costs less. A device that is not the host's cuts calls by itself. */
static int32_t part_of(const struct pi_pass *pass, int32_t n_tok, bool sparse)
{
    int64_t n_thread = pass->device->in_host ? pass->plan.n_thread : 1;
    int64_t n_call = n_thread * (sparse ? 1 : PARTS_PER_THREAD);
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
            n_slot = pass->reading.n_slot[pi_pass_read_unit(pass, s->chunk, head)];
        n_tok = part_of(pass, s->n_tok, n_slot >= 0);
    }
    int64_t t = (int64_t)(tile - pass->lanes.tile0[i]) * n_tok;
    if (t >= s->n_tok)
        return false;
    *job = job_of(pass, s->item, head, s->t0 + (int32_t)t, (int32_t)pi_min(n_tok, s->n_tok - t));
    if (n_slot >= 0) {
        job->chosen = pass->reading.chosen[pi_pass_read_unit(pass, s->chunk, head)];
        if (!pi_at_some(job->chosen.at))
            job->slots = pi_pass_read_slots(pass, s->chunk, head);
        job->n_slot = n_slot;
    }
    take_part(pass, job, part);
    return true;
}

static struct attend_unit unit_at(const struct pi_pass *pass, int64_t at)
{
    int32_t n_head = pass->model->hp.n_head_kv;
    int64_t lane = at / pass->lanes.n_part;
    return (struct attend_unit){(int32_t)(lane / n_head), (int32_t)(lane % n_head),
                                (int32_t)(at % pass->lanes.n_part)};
}

/* Watched items come first. Then the item index counts tiles down, so that threads without work
   take the shortest tiles (the first of a prompt) from others. The parts of a group are
   neighbours. */
static bool next_job(void *ctx, int64_t at, int32_t turn, int32_t thread, struct kv_attend_job *out)
{
    const struct pi_pass *pass = ctx;
    struct attend_unit u = unit_at(pass, at);
    int32_t n_tile = pass->lanes.tile0[pass->lanes.n_segment];
    if (u.rank >= pass->watching.n)
        return turn == 0 &&
               tile_job(pass, n_tile - 1 - (u.rank - pass->watching.n), u.head, u.part, out);
    return u.part == 0 && watched_tile(pass, u, turn, thread, out);
}

static void job_done(void *ctx, int64_t at, int32_t turn, const struct kv_attend_job *job,
                     int32_t thread)
{
    const struct pi_pass *pass = ctx;
    struct attend_unit u = unit_at(pass, at);
    if (u.rank < pass->watching.n && is_governed(pass) && watched_lane(pass, u)->rows)
        pi_pass_show_tile(pass, watched_lane(pass, u), turn * pass->watching.tile, job, thread);
}

/* ---- the layer's attention ---- */

/* The most multiplications of the running layer's attention, by pairs of query and key, about. */
static int64_t count_work(const struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    int64_t n_key = 0, n_group = hp->n_head / hp->n_head_kv;
    for (int32_t i = 0; i < pass->now.n_item; i++)
        for (int32_t h = 0; h < hp->n_head_kv; h++)
            n_key += (int64_t)pass->now.items[i].n_tok *
                     kv_lane_len(pass->now.items[i].kv, pass->now.layer->kv_layer, h);
    return (n_key + (int64_t)pass->now.n_tok * hp->n_head_kv) * n_group * (hp->dim_k + hp->dim_v);
}

/* Parts of a group that become calls of their own. There is more than one where some lane is much
   longer than others: one thread would work on it while all others wait. Each part reads the lane
   anew. Latent attention has one lane a layer, so all other threads would always wait. */
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
        .n_thread = pass->watching.n > 0 ? pass->watching.n_thread : 0,
        .job = next_job,
        .done = pass->watching.n > 0 && pass->watching.fn.attended != NULL ? job_done : NULL,
    };
    pass->device->attend(pass->stream, &list);
}

void pi_pass_attention_run(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    int64_t attend_work;
    append(pass);
    if (pass->recalling.n > 0 && is_governed(pass))
        pi_pass_recall(pass);
    attend_work = count_work(pass);
    if (chunks_of(pass) > 0)
        pi_pass_select(pass);
    if (pass->watching.n > 0 && is_governed(pass))
        pi_pass_plan_watch(pass);
    pass->lanes.n_part = count_parts(pass);
    attend(pass, attend_work);
    if (chunks_of(pass) > 0 && pass->reading.fn.attended != NULL)
        pi_pass_show_attended(pass);
    if (pass->watching.n > 0 && is_governed(pass) && pass->watching.fn.finished != NULL)
        pass->watching.fn.finished(pass->watching.fn.user, pass->stream, pass->watching.lanes,
                                   pass->watching.n * hp->n_head_kv);
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
            pass->recalling.items[pass->recalling.n++].item = item;
        if (item->watched && pass->watching.fn.plan != NULL) {
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
    void *const parts[] = {pass->lanes.segment,  pass->lanes.tile0,    pass->watching.items,
                           pass->lanes.append,   pass->reading.chunk,  pass->watching.rows,
                           pass->watching.taps,  pass->reading.slots,  pass->reading.n_slot,
                           pass->reading.chosen, pass->watching.lanes, pass->writer.lanes,
                           pass->watching.out,   pass->recalling.items};
    for (size_t i = 0; i < PI_LEN(parts); i++)
        pi_mem_free(parts[i]);
}
