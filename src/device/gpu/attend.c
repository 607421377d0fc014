/*
 * attend.c - attention over lanes: calls become lists of pages and of pieces of work for
 * attend.cuh. Pages that every row of a call sees whole need no positions. Pages that no row sees
 * are left out. Both change no bit. The host makes weights and logits (kv_attend_tap) by the
 * processor's operation. Outputs are the device's all the same, so that watching changes no bit.
 *
 * Invariant: where chunks of pages begin depends on the page's place in its lane, of lanes with a
 * window on its first position.
 */
#include <math.h>

#include "device/cpu/pages.h"
#include "device/gpu/host.h"

enum {
    ROWS = 16,
    TILE_ROWS = 128,         /* rows of a call at full speed */
    PART_BYTES = 64 << 20,   /* of the sums of chunks of one launch */
    DIM_MOST = 512,          /* of a value */
    KERNEL_SMEM = 2048 + 256 /* of a block, beside the tiles and queries */
};

static int32_t up16(int32_t n)
{
    return (n + 15) / 16 * 16;
}

int32_t gpu_attend_tile(int32_t n_group)
{
    return n_group >= TILE_ROWS ? 1 : TILE_ROWS / n_group;
}

/* ---- the list of a launch ---- */

/* Calls that share a launch: their lanes are of one class, their numbers the same. */
struct launch {
    struct gpu_device *d;
    const struct kv_attend_job *job; /* [n] */
    int32_t n;
    struct gpu_attend_args args;
    uint8_t *host; /* the list, and where it will be */
    gpu_at at;
    size_t used, size;
    struct gpu_attend_work *work; /* [n_part] a piece for each part of the sums */
    int32_t n_part, n_done;
    int32_t most_rows, most_queries;
    size_t q_used, scale_used; /* of GPU_ROOM_QUERY: elements of 2 and of 4 bytes */
};

/* The next n elements of the list, and where they will be. */
static void *take(struct launch *l, size_t n, size_t size, gpu_at *at)
{
    void *part = l->host + l->used;
    *at = l->at + l->used;
    l->used += pi_align(n * size, 16);
    assert(l->used <= l->size);
    return part;
}

/* One call's pages on their way to the list. */
struct call {
    const struct kv_attend_job *job;
    struct gpu_attend_page *page;
    int32_t *chunk;                      /* [n_page] the number of each one's chunk */
    int32_t *delta;                      /* [n_variant] */
    float *turn;                         /* [n_variant][n_pair][2] */
    int32_t n_page, n_variant, n_before; /* table entries of lanes before */
};

/* First page of a chunk: 4 pages each, then 8, then 16. */
static int32_t chunk_of(int32_t page)
{
    return page < 64 ? page / 4 : page < 256 ? 16 + (page - 64) / 8 : 40 + (page - 256) / 16;
}

/* The variant of queries that meets pages with a delta. */
static int32_t variant_of(struct call *c, int32_t delta)
{
    const struct pi_rope *rope = c->job->rope;
    int32_t i = 0;
    while (i < c->n_variant && c->delta[i] != delta)
        i++;
    if (i == c->n_variant) {
        c->delta[c->n_variant++] = delta;
        if (delta != 0)
            pi_rope_fill_delta(rope, -delta, c->turn + (size_t)i * (size_t)rope->n_pair * 2);
    }
    return i;
}

/* Adds entries with these positions as written, unless no row sees one. */
static void add_page(struct launch *l, struct call *c, const struct kv_lane *lane,
                     struct gpu_attend_page page, const struct kv_page_ref *ref, const int32_t *pos,
                     int32_t index)
{
    const struct kv_attend_job *job = c->job;
    int32_t n = page.n < 0 ? -page.n : page.n, least = pos[0], most = pos[n - 1];
    int64_t first = job->pos0, last = (int64_t)job->pos0 + job->n_tok - 1, window = lane->window;
    for (int32_t i = 0; lane->unordered && i < n; i++) {
        least = (int32_t)pi_min(least, pos[i]);
        most = (int32_t)pi_max(most, pos[i]);
    }
    int64_t low = (int64_t)least + ref->delta, high = (int64_t)most + ref->delta;
    if (low > last || (window > 0 && high <= first - window))
        return;
    if (high > first || (window > 0 && low <= last - window)) {
        int32_t *copy = take(l, (size_t)n, sizeof(*pos), &page.pos);
        memcpy(copy, pos, (size_t)n * sizeof(*pos));
    }
    page.delta = ref->delta;
    page.variant = variant_of(c, ref->delta);
    page.log_count = ref->n_folded > 0 ? (float)log(1.0 + ref->n_folded) : 0.0f;
    c->chunk[c->n_page] = window > 0 ? chunk_of(pos[0] / l->args.page_len) : chunk_of(index);
    c->page[c->n_page++] = page;
}

static void add_lane(struct launch *l, struct call *c, const struct kv_seq *seq)
{
    const struct kv_lane *lane = kv_lane_at(seq, c->job->layer, c->job->head);
    for (int32_t i = 0; i < lane->n_live; i++) {
        const struct kv_page_ref *ref = &lane->table[i];
        const struct gpu_attend_page page = {.page = gpu_page_at(lane->kind, ref->page),
                                             .n = ref->n};
        if (ref->n > 0)
            add_page(l, c, lane, page, ref, kv_page_pos(lane->kind, ref->page), c->n_before + i);
    }
    c->n_before += lane->n_live;
}

/* The entries that the call lists, in tiles as the processor's gather.c has them. */
static void add_slots(struct launch *l, struct call *c)
{
    const struct kv_attend_job *job = c->job;
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    int32_t tile_index = c->n_before, index = 0, begin = 0;
    for (int32_t at = 0; at < job->n_slot;) {
        struct gpu_attend_page page = {.n = 0};
        struct gpu_attend_entry *entry = take(l, KV_GATHER_LEN, sizeof(*entry), &page.page);
        int32_t pos[KV_GATHER_LEN], n = 0;
        const struct kv_page_ref *first = NULL;
        for (; n < KV_GATHER_LEN && at < job->n_slot; n++, at++) {
            int32_t slot = job->slots[at];
            while (slot >= begin + lane->table[index].n)
                begin += lane->table[index++].n;
            const struct kv_page_ref *ref = &lane->table[index];
            pos[n] = kv_page_pos(lane->kind, ref->page)[slot - begin];
            bool falls = !lane->unordered && n > 0 && pos[n] <= pos[n - 1];
            if (n > 0 && (ref->delta != first->delta || ref->n_folded != first->n_folded || falls))
                break;
            first = n == 0 ? ref : first;
            entry[n] =
                (struct gpu_attend_entry){gpu_page_at(lane->kind, ref->page), slot - begin, 0};
        }
        page.n = -n;
        add_page(l, c, lane, page, first, pos, tile_index++);
    }
}

/* Pages of a call, at most. */
static size_t count_pages(const struct kv_attend_job *job)
{
    size_t n = job->slots != NULL ? (size_t)job->n_slot
                                  : (size_t)kv_lane_at(job->seq, job->layer, job->head)->n_live;
    if (job->guests != NULL)
        n += (size_t)kv_lane_at(job->guests, job->layer, job->head)->n_live;
    return n;
}

static int32_t row_tiles(const struct kv_attend_job *job)
{
    return (job->n_tok * job->n_group + ROWS - 1) / ROWS;
}

/* Bytes that a call takes of the list, at most. */
static size_t list_bytes(const struct kv_attend_job *job)
{
    size_t n_page = count_pages(job),
           n_len = (size_t)pi_max(job->seq->cache->g.page_len, KV_GATHER_LEN);
    size_t entry = job->slots != NULL ? sizeof(struct gpu_attend_entry) : 0;
    size_t turn = job->rope != NULL ? (size_t)job->rope->n_pair * 2 * sizeof(float) : 0;
    return sizeof(struct gpu_attend_job) + (size_t)job->n_group * sizeof(float) + 256 +
           n_page * (sizeof(struct gpu_attend_page) + n_len * (sizeof(int32_t) + entry) + 64) +
           (n_page + 1) * (turn + 2 * sizeof(int32_t));
}

/* Pieces of work of a call, at most. */
static size_t count_parts(const struct kv_attend_job *job)
{
    return count_pages(job) * (size_t)row_tiles(job);
}

static void add_call(struct launch *l, const struct kv_attend_job *job, struct gpu_attend_job *to,
                     const struct pi_rope *rope)
{
    size_t n_page = count_pages(job), n_pair = rope != NULL ? (size_t)rope->n_pair : 0;
    gpu_at at;
    struct call c = {.job = job};
    *to = (struct gpu_attend_job){.q = job->q_at.at,
                                  .out = job->out_at.at,
                                  .q_stride = job->q_stride,
                                  .out_stride = job->out_stride,
                                  .n_tok = job->n_tok,
                                  .n_group = job->n_group,
                                  .pos0 = job->pos0};
    c.page = take(l, n_page, sizeof(*c.page), &to->pages);
    c.chunk = take(l, n_page, sizeof(*c.chunk), &at);
    c.delta = take(l, n_page + 1, sizeof(*c.delta), &at);
    c.turn = take(l, (n_page + 1) * n_pair * 2, sizeof(*c.turn), &to->turn);
    c.delta[c.n_variant++] = 0;
    if (job->sink != NULL)
        memcpy(take(l, (size_t)job->n_group, sizeof(float), &to->sink), job->sink,
               (size_t)job->n_group * sizeof(float));
    if (job->guests != NULL)
        add_lane(l, &c, job->guests);
    if (job->slots != NULL)
        add_slots(l, &c);
    else
        add_lane(l, &c, job->seq);
    to->n_page = c.n_page;
    to->n_variant = c.n_variant;
    to->n_chunk = 0;
    for (int32_t i = 0; i < c.n_page; i++)
        to->n_chunk += i == 0 || c.chunk[i] != c.chunk[i - 1];
    /* first pages of chunks take the place of their numbers */
    for (int32_t i = 0, n = 0, last = -1; i < c.n_page; i++) {
        int32_t chunk = c.chunk[i];
        if (i == 0 || chunk != last)
            c.chunk[n++] = i;
        last = chunk;
    }
    to->part0 = l->n_part;
    for (int32_t tile = 0; tile < row_tiles(job); tile++)
        for (int32_t i = 0; i < to->n_chunk; i++)
            l->work[l->n_part++] = (struct gpu_attend_work){
                l->n_done, tile, c.chunk[i], i + 1 < to->n_chunk ? c.chunk[i + 1] : c.n_page};
    l->n_done++;
    int32_t n_q = c.n_variant * up16(job->n_tok * job->n_group);
    to->packed = l->q_used * sizeof(uint16_t);
    to->scale = l->scale_used * sizeof(float);
    l->q_used += (size_t)n_q * (size_t)up16(l->args.dim_k);
    l->scale_used += (size_t)n_q;
    l->most_queries = (int32_t)pi_max(l->most_queries, n_q);
    l->most_rows = (int32_t)pi_max(l->most_rows, job->n_tok * job->n_group);
}

static size_t tile_smem(const struct gpu_attend_args *a)
{
    size_t row = (size_t)up16(a->dim_k) * 2,
           values = a->v_in_k >= 0 ? 0 : (size_t)up16(a->dim_v) * 2;
    return ROWS * row + KV_GATHER_LEN * (row + values) + KERNEL_SMEM;
}

/* Whether kernels take the class; else the processor does. */
static bool has_kernel(const struct gpu_device *d, const struct gpu_attend_args *a)
{
    return a->dim_v <= DIM_MOST && tile_smem(a) <= d->driver->smem_most;
}

static struct gpu_attend_args args_of(const struct kv_attend_job *job)
{
    const struct kv_geometry *g = &job->seq->cache->g;
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    const struct kv_class *kind = lane->kind;
    bool shared = g->v_in_k > 0 && g->v_in_k % 8 == 0 && g->dim_v % 16 == 0;
    return (struct gpu_attend_args){
        .page_len = g->page_len,
        .window = lane->window,
        .v_in_k = shared ? g->v_in_k : -1,
        .dim_k = kind->k.dim,
        .dim_v = kind->value.dim,
        .n_pair = job->rope != NULL ? job->rope->n_pair : 0,
        .adjacent = job->rope != NULL && job->rope->adjacent,
        .factor = job->scale,
        .cap = job->cap,
        .k = gpu_part_of(kind, &kind->k, true),
        .v = gpu_part_of(kind, &kind->value, g->v_in_k > 0),
    };
}

/* Whether two calls may share a launch. */
static bool alike(const struct kv_attend_job *a, const struct kv_attend_job *b)
{
    const struct kv_lane *x = kv_lane_at(a->seq, a->layer, a->head);
    const struct kv_lane *y = kv_lane_at(b->seq, b->layer, b->head);
    return x->kind == y->kind && x->window == y->window && a->scale == b->scale &&
           a->cap == b->cap && a->rope == b->rope;
}

static size_t part_bytes(const struct gpu_attend_args *a)
{
    return (size_t)ROWS * (size_t)up16(a->dim_v) * sizeof(float);
}

static void run_launch(struct launch *l, struct gpu_attend_job *jobs)
{
    struct gpu_device *d = l->d;
    struct gpu_attend_args *a = &l->args;
    size_t queries = pi_align(l->q_used * sizeof(uint16_t), 256);
    gpu_at room = gpu_room(d, GPU_ROOM_QUERY, queries + l->scale_used * sizeof(float));
    a->o = gpu_room(d, GPU_ROOM_PART, (size_t)l->n_part * part_bytes(a));
    a->ml = gpu_room(d, GPU_ROOM_ML, (size_t)l->n_part * ROWS * 2 * sizeof(float));
    if (room == 0 || a->o == 0 || a->ml == 0)
        return;
    for (int32_t i = 0; i < l->n; i++) {
        jobs[i].packed += room;
        jobs[i].scale += room + queries;
    }
    gpu_send(d, l->at, l->used);
    gpu_run(d, GPU_KERNEL_attend_queries, l->most_queries, l->n, 1,
            (size_t)up16(a->dim_k) * sizeof(float) + 64, a);
    enum gpu_kernel part = a->dim_v <= 128   ? GPU_KERNEL_attend_part_4
                           : a->dim_v <= 256 ? GPU_KERNEL_attend_part_8
                                             : GPU_KERNEL_attend_part_16;
    gpu_run(d, part, l->n_part, 1, 1, tile_smem(a), a);
    gpu_run(d, GPU_KERNEL_attend_join, l->most_rows, l->n, 1,
            (size_t)up16(a->dim_v) * sizeof(float), a);
}

/* Calls that are alike and have a kernel, as many as share a launch; returns how many. */
static int32_t attend_some(struct gpu_device *d, const struct kv_attend_job *jobs, int32_t n)
{
    struct launch l = {.d = d, .job = jobs, .args = args_of(jobs)};
    size_t n_part = 0;
    while (l.n < n && alike(jobs, jobs + l.n) &&
           (l.n == 0 || (n_part + count_parts(&jobs[l.n])) * part_bytes(&l.args) <= PART_BYTES)) {
        n_part += count_parts(&jobs[l.n]);
        l.size += list_bytes(&jobs[l.n++]);
    }
    l.size += n_part * sizeof(*l.work) + 64;
    void *host;
    l.at = gpu_list(d, l.size, &host);
    if (l.at == 0)
        return l.n;
    l.host = host;
    struct gpu_attend_job *to = take(&l, (size_t)l.n, sizeof(*to), &l.args.jobs);
    l.work = take(&l, n_part, sizeof(*l.work), &l.args.work);
    for (int32_t i = 0; i < l.n; i++)
        add_call(&l, &jobs[i], &to[i], jobs[i].rope);
    run_launch(&l, to);
    return l.n;
}

/* ---- over the host ---- */

size_t gpu_attend_scratch(const struct kv_geometry *g, int32_t n_row)
{
    return cpu_attend_scratch(g, n_row);
}

/* Rows of a call, stride floats from token to token. */
static size_t row_bytes(const struct kv_attend_job *job, size_t stride, int32_t dim)
{
    return ((size_t)(job->n_tok - 1) * stride + (size_t)job->n_group * (size_t)dim) * sizeof(float);
}

/* The processor's operation over what was staged: queries and output are the host's. */
static void attend_staged(struct gpu_device *d, const struct kv_attend_job *job, void *scratch)
{
    struct kv_attend_job own = *job;
    if (!gpu_stage_lane(d, 0, job->seq, job->layer, job->head) ||
        (job->guests != NULL && !gpu_stage_lane(d, 1, job->guests, job->layer, job->head)))
        return;
    own.seq = &d->stage[0].seq;
    own.guests = job->guests != NULL ? &d->stage[1].seq : NULL;
    cpu_attend_one(&own, scratch);
}

/* Watches a call, whose output is another's matter, or makes all of one that has no kernel. */
static void attend_on_host(struct gpu_device *d, const struct kv_attend_job *job, bool output,
                           void *scratch)
{
    const struct kv_class *kind = kv_lane_at(job->seq, job->layer, job->head)->kind;
    size_t q_size = row_bytes(job, job->q_stride, kind->k.dim);
    size_t out_size = output ? row_bytes(job, job->out_stride, kind->value.dim) : 0;
    struct kv_attend_job own = *job;
    own.out_at = (struct pi_at){0};
    own.out = output ? job->out : NULL;
    bool out_there = output && job->out == NULL && pi_at_some(job->out_at);
    if (!gpu_host_room(d, (void **)&d->list, pi_align(q_size, 64) + out_size))
        return;
    if (own.q == NULL) {
        d->driver->get(d->driver, d->list, job->q_at.at, q_size);
        own.q = (const float *)(const void *)d->list;
    }
    if (out_there) { /* what lies between rows stays */
        own.out = (float *)(void *)(d->list + pi_align(q_size, 64));
        d->driver->get(d->driver, own.out, job->out_at.at, out_size);
    }
    attend_staged(d, &own, scratch);
    if (out_there)
        d->driver->put(d->driver, job->out_at.at, own.out, out_size);
}

/* ---- the table's ---- */

static void *host_scratch(struct gpu_device *d, const struct kv_attend_job *job)
{
    size_t size = cpu_attend_scratch(&job->seq->cache->g, job->n_tok * job->n_group);
    return gpu_host_room(d, &d->scratch, size) ? d->scratch : NULL;
}

/* A call whose queries and output are on the device, and its tap. scratch NULL: the device's. */
static void attend_call(struct gpu_device *d, const struct kv_attend_job *job, void *scratch)
{
    const struct gpu_attend_args args = args_of(job);
    bool kernel = has_kernel(d, &args), output = pi_at_some(job->out_at);
    if (job->tap != NULL || (output && !kernel)) {
        void *room = scratch != NULL ? scratch : host_scratch(d, job);
        if (room != NULL)
            attend_on_host(d, job, output && !kernel, room);
    }
    if (output && kernel)
        attend_some(d, job, 1);
}

void gpu_attend_one(const struct kv_attend_job *job, void *scratch)
{
    struct gpu_device *d = gpu_of_lane(job->seq, job->layer, job->head);
    const struct kv_class *kind = kv_lane_at(job->seq, job->layer, job->head)->kind;
    struct kv_attend_job own = *job;
    size_t q_size = row_bytes(job, job->q_stride, kind->k.dim);
    size_t out_size = job->out != NULL ? row_bytes(job, job->out_stride, kind->value.dim) : 0;
    gpu_enter(d);
    gpu_at room = gpu_room(d, GPU_ROOM_HOST, pi_align(q_size, 256) + out_size);
    if (room != 0) {
        if (job->q != NULL) {
            d->driver->put(d->driver, room, job->q, q_size);
            own.q_at = (struct pi_at){(uintptr_t)room};
        }
        if (job->out != NULL) { /* what lies between rows stays */
            own.out_at = (struct pi_at){(uintptr_t)(room + pi_align(q_size, 256))};
            own.out = NULL;
            d->driver->put(d->driver, own.out_at.at, job->out, out_size);
        }
        attend_call(d, &own, scratch);
        if (job->out != NULL)
            d->driver->get(d->driver, job->out, own.out_at.at, out_size);
    }
    gpu_leave(d);
}

/* Calls without a tap are collected, and made together. */
static void attend_collected(struct gpu_device *d, const struct kv_attend_job *jobs, int32_t n)
{
    for (int32_t i = 0; i < n;) {
        const struct gpu_attend_args args = args_of(&jobs[i]);
        if (has_kernel(d, &args))
            i += attend_some(d, jobs + i, n - i);
        else
            attend_call(d, &jobs[i++], NULL);
    }
}

void gpu_attend(struct pi_stream *s, const struct kv_attend_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct kv_attend_job job;
    int32_t n = 0;
    for (int64_t i = 0; i < list->n; i++)
        for (int32_t turn = 0; list->job(list->ctx, i, turn, 0, &job); turn++) {
            bool alone = list->done != NULL || job.tap != NULL;
            gpu_enter(d);
            if (n > 0 && (alone || n == GPU_JOBS)) {
                attend_collected(d, d->job, n);
                n = 0;
            }
            if (alone)
                attend_call(d, &job, NULL);
            else
                d->job[n++] = job;
            gpu_leave(d);
            if (list->done != NULL)
                list->done(list->ctx, i, turn, &job, 0);
        }
    gpu_enter(d);
    attend_collected(d, d->job, n);
    gpu_leave(d);
}
