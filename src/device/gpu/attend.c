/*
 * attend.c - attention over lanes: calls become jobs of attend.cuh. attend_plan.c has the pages of
 * each, attend_way.c its kernel. Calls that are alike share a launch. Kernels keep the logits of
 * calls whose weights are looked at, which note.c goes on with. Where a call has no kernel, the
 * processor's operation works on its pages.
 */
#include "device/gpu/attend_plan.h"

enum {
    PART_BYTES = 64 << 20,   /* of the sums of chunks of one launch */
    COPY_BYTES = 128 << 20,  /* of copies of pages, likewise */
    LOGIT_BYTES = 256 << 20, /* of logits that are kept */
    JOIN_SMEM = 256          /* of a block, beside a row */
};

int32_t gpu_attend_tile(int32_t n_group)
{
    return n_group >= GPU_TILE_ROWS ? 1 : GPU_TILE_ROWS / n_group;
}

/* ---- a launch ---- */

/* Rows of outputs. */
struct rows {
    gpu_at at;
    int32_t n_tok, n_col;
};

/* Calls that share a launch: their lanes are of one class, their numbers the same. */
struct launch {
    struct gpu_device *d;
    struct gpu_attend_args args;
    const struct kv_class *kind;
    int32_t n;                     /* calls */
    bool is_listed;                /* their entries are */
    struct gpu_gather_job *gather; /* [n] then */
    gpu_at gather_at;
    struct gpu_attend_job *copies; /* [n] of GPU_WAY_COPY, as kernels read the copies */
    gpu_at copies_at;
    struct gpu_attend_args form; /* of args, as pages are stored */
    struct gpu_listing list;
    size_t n_sum;
    int32_t most_rows, most_queries, most_chunks;
    struct rows rows;          /* that the calls make */
    size_t q_used, scale_used; /* of GPU_ROOM_QUERY: elements of 2 and of 4 bytes */
    size_t logit_used;         /* floats of GPU_ROOM_LOGITS */
};

/* Positions of the n-th 64 of entries that the device chose, the last of which the host knows. Of
   the others all queries see all: 0. */
static void chosen_positions(const struct kv_attend_job *job, int32_t n, int32_t *out)
{
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    const struct kv_attend_chosen *chosen = &job->chosen;
    int32_t index = 0, begin = 0;
    for (int32_t e = 0, i = n * GPU_TILE; e < GPU_TILE; e++, i++) {
        out[e] = 0;
        if (i >= job->n_slot || i < job->n_slot - chosen->n_last)
            continue;
        int32_t slot = chosen->end - job->n_slot + i;
        if (begin == 0) {
            index = slot / lane->kind->page_len;
            begin = index * lane->kind->page_len;
        }
        while (slot >= begin + lane->table[index].n)
            begin += lane->table[index++].n;
        out[e] = kv_page_pos(lane->kind, lane->table[index].page)[slot - begin];
    }
}

/* Positions of the entries that a call lists, of its n-th tile. */
static void listed_positions(const struct gpu_plan *p, const struct gpu_gathered *listed, int32_t n,
                             int32_t *out)
{
    const struct kv_attend_job *job = p->job;
    const int32_t own = n - (int32_t)pi_ceil_div(p->n_guest, GPU_TILE);
    if (listed->entries == NULL && own >= 0) {
        chosen_positions(job, own, out);
        return;
    }
    if (listed->entries == NULL) {
        for (int32_t e = 0, i = n * GPU_TILE; e < GPU_TILE; e++, i++)
            out[e] = i < p->n_guest ? kv_lane_pos(job->guests, job->layer, job->head, i) : 0;
        return;
    }
    const struct gpu_attend_ref *tile = &listed->tiles[n];
    for (int32_t e = 0; e < GPU_TILE; e++)
        out[e] = e < tile->n ? listed->entries[tile->page + e].pos : 0;
}

/* Positions of the entries of page `at`; where there is none 0. */
static void page_positions(const struct gpu_plan *p, int32_t at, int32_t *out)
{
    const struct kv_attend_job *job = p->job;
    memset(out, 0, GPU_TILE * sizeof(*out));
    for (int32_t s = 0; s < p->per; s++) {
        int32_t i = at * p->per + s;
        if (i >= p->guests.n + p->own.n)
            return;
        const struct kv_lane *lane =
            kv_lane_at(i < p->guests.n ? job->guests : job->seq, job->layer, job->head);
        const struct kv_page_ref *ref = &lane->table[i < p->guests.n ? i : i - p->guests.n];
        memcpy(out + s * lane->kind->page_len, kv_page_pos(lane->kind, ref->page),
               ref->n * sizeof(*out));
    }
}

static void take_positions(struct launch *l, const struct gpu_plan *p,
                           const struct gpu_gathered *listed, struct gpu_attend_job *to)
{
    const struct kv_attend_job *job = p->job;
    int32_t n_high = p->end - p->high;
    if (p->n_low + n_high == 0)
        return;
    int32_t *pos =
        gpu_take(&l->list, (size_t)(p->n_low + n_high) * GPU_TILE, sizeof(*pos), &to->pos);
    for (int32_t i = 0; i < p->n_low + n_high; i++, pos += GPU_TILE) {
        int32_t at = i < p->n_low ? p->first + i : p->high + i - p->n_low;
        if (gpu_is_listed(job) && at >= p->guests.n)
            listed_positions(p, listed, at - p->guests.n, pos);
        else
            page_positions(p, at, pos);
    }
}

static void take_variants(struct launch *l, const struct gpu_plan *p, struct gpu_attend_job *to)
{
    const struct pi_rope *rope = p->job->rope;
    size_t n = (size_t)p->n_variant, n_pair = rope != NULL ? (size_t)rope->n_pair : 0;
    if (n == 1)
        return;
    int32_t *delta = gpu_take(&l->list, n, sizeof(*delta), &to->delta);
    float *turn = gpu_take(&l->list, n * n_pair * 2, sizeof(*turn), &to->turn);
    memcpy(delta, l->d->attend->delta + p->delta0, n * sizeof(*delta));
    for (size_t i = 1; i < n; i++)
        pi_rope_fill_delta(rope, -delta[i], turn + i * n_pair * 2);
}

static size_t row_count(const struct kv_attend_job *job)
{
    return (size_t)job->n_tok * (size_t)job->n_group;
}

/* Of a watched call's logits, and of its rows' maxima and sums. */
static size_t logit_floats(const struct kv_attend_job *job)
{
    return pi_align(row_count(job) * (gpu_logits_stride(job) + 2), 64);
}

static bool guests_unordered(const struct kv_attend_job *job)
{
    return job->guests != NULL && kv_lane_at(job->guests, job->layer, job->head)->unordered;
}

/* Call number `number` of the launch. */
static void add_call(struct launch *l, const struct gpu_plan *p, int32_t number,
                     struct gpu_attend_job *to)
{
    const struct kv_attend_job *job = p->job;
    const struct kv_lane *own = kv_lane_at(job->seq, job->layer, job->head);
    int32_t most = 0;
    *to = (struct gpu_attend_job){.q = job->q_at.at,
                                  .out = job->out_at.at,
                                  .packed = l->q_used * sizeof(uint16_t),
                                  .scale = l->scale_used * sizeof(float),
                                  .guests = p->guests,
                                  .own = p->own,
                                  .q_stride = job->q_stride,
                                  .out_stride = job->out_stride,
                                  .part0 = l->n_sum,
                                  .n_tok = job->n_tok,
                                  .n_group = job->n_group,
                                  .pos0 = job->pos0,
                                  .n_variant = p->n_variant,
                                  .first = p->first,
                                  .end = p->end,
                                  .n_low = p->n_low,
                                  .high = p->high,
                                  .n_chunk = p->n_chunk,
                                  .per = p->per,
                                  .ordered = !own->unordered && !guests_unordered(job)};
    if (l->rows.n_tok > 0)
        to->token0 = (int32_t)((job->out_at.at - l->rows.at) / sizeof(float) / job->out_stride);
    to->chunk0 = gpu_chunk_of(p->first);
    if (gpu_is_watched(job)) {
        to->logits_stride = gpu_logits_stride(job);
        to->logits = l->logit_used * sizeof(float);
        l->logit_used += logit_floats(job);
        to->ml = (l->logit_used - 2 * row_count(job)) * sizeof(float);
    }
    if (job->sink != NULL)
        memcpy(gpu_take(&l->list, (size_t)job->n_group, sizeof(float), &to->sink), job->sink,
               (size_t)job->n_group * sizeof(float));
    take_variants(l, p, to);
    struct gpu_gathered listed = {0};
    if (l->is_listed)
        listed = gpu_gather_add(&l->list, p, &l->gather[number], to);
    take_positions(l, p, &listed, to);
    if (l->is_listed)
        l->gather[number].pos = to->pos;
    else if (own->window > 0)
        gpu_plan_chunks(p, gpu_take(&l->list, (size_t)p->n_chunk + 1, sizeof(int32_t), &to->chunks),
                        &most);
    bool packs = p->way != GPU_WAY_FEW ||
                 (l->is_listed && (l->args.k.wht_scale != 0.0f || l->args.k.dim != l->args.dim_k));
    int32_t n_q = packs ? p->n_variant * gpu_up16(job->n_tok * job->n_group) : 0;
    l->q_used += (size_t)n_q * (size_t)l->args.row_k;
    l->scale_used += (size_t)n_q;
    l->n_sum += gpu_plan_sums(p);
    l->most_queries = (int32_t)pi_max(l->most_queries, n_q);
    l->most_rows = (int32_t)pi_max(l->most_rows, job->n_tok * job->n_group);
    l->most_chunks = (int32_t)pi_max(l->most_chunks, p->n_chunk);
}

float gpu_cap_by(float cap)
{
    return cap > 0.0f ? (float)(1.0 / ((double)cap * 1.4426950408889634)) : 0.0f;
}

static struct gpu_attend_args args_of(const struct kv_attend_job *job)
{
    const struct kv_geometry *g = &job->seq->cache->g;
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    const struct kv_class *kind = lane->kind;
    bool shared = g->v_in_k > 0 && g->v_in_k % 8 == 0 && g->dim_v % 16 == 0;
    struct gpu_attend_args a = {
        .pool = kind->pool.at,
        .stride = kind->layout.stride,
        .page_len = g->page_len,
        .window = lane->window,
        .v_in_k = shared ? g->v_in_k : -1,
        .dim_k = kind->k.dim,
        .dim_v = kind->value.dim,
        .row_k = gpu_up16(kind->k.dim),
        .row_v = gpu_up16(kind->value.dim),
        .is_in_keys = g->v_in_k > 0,
        .n_pair = job->rope != NULL ? job->rope->n_pair : 0,
        .adjacent = job->rope != NULL && job->rope->adjacent,
        .factor = job->scale,
        .cap = job->cap,
        .cap_by = gpu_cap_by(job->cap),
        .k = gpu_part_of(kind, &kind->k, true),
        .v = gpu_part_of(kind, &kind->value, g->v_in_k > 0),
    };
    a.order = g->v_in_k > 0 || gpu_is_listed(job) ? (int32_t)GPU_ORDER_PLAIN
                                                  : gpu_order_of(&a.k, &a.v, a.page_len);
    return a;
}

/* Whether two calls may share a launch. */
static bool alike(const struct kv_attend_job *a, const struct kv_attend_job *b)
{
    const struct kv_lane *x = kv_lane_at(a->seq, a->layer, a->head);
    const struct kv_lane *y = kv_lane_at(b->seq, b->layer, b->head);
    return x->kind == y->kind && x->window == y->window && a->scale == b->scale &&
           a->cap == b->cap && a->rope == b->rope && gpu_is_listed(a) == gpu_is_listed(b);
}

static size_t sum_bytes(const struct gpu_attend_args *a)
{
    return (size_t)a->row_v * sizeof(float);
}

/* The rows of outputs that calls make together: rows [n_tok][n_col] of heads side by side. With
   n_tok 0 there is none, or more than counts are for. */
static struct rows rows_of(const struct kv_attend_job *jobs, int32_t n, int32_t dim)
{
    struct rows out = {.at = jobs->out_at.at, .n_col = (int32_t)jobs->out_stride};
    int64_t numbers = 0, n_tok = 0;
    for (int32_t i = 1; i < n; i++)
        out.at = pi_min(out.at, jobs[i].out_at.at);
    for (int32_t i = 0; i < n; i++) {
        const struct kv_attend_job *job = &jobs[i];
        int64_t width = (int64_t)job->n_group * dim,
                at = (int64_t)((job->out_at.at - out.at) / sizeof(float));
        if (!pi_at_some(job->out_at) || (int32_t)job->out_stride != out.n_col ||
            at % out.n_col + width > out.n_col)
            return (struct rows){0};
        numbers += job->n_tok * width;
        n_tok = pi_max(n_tok, at / out.n_col + job->n_tok);
    }
    if (numbers == n_tok * out.n_col && n_tok < GPU_COUNTS - 1)
        out.n_tok = (int32_t)n_tok;
    return out;
}

/* The join leaves rows packed, too, for the product that comes next. */
static void join_packs(struct launch *l)
{
    struct gpu_attend_args *a = &l->args;
    a->count = gpu_counts(l->d);
    if (a->count == 0)
        return;
    a->count += sizeof(uint32_t); /* the first is that of step.cuh's barrier */
    a->rows = l->rows.at;
    a->n_col = l->rows.n_col;
    a->n_head = a->n_col / a->dim_v;
    a->packed = gpu_packs(l->d, l->rows.at, l->rows.n_tok, a->n_col);
}

static void run_parts(struct launch *l, const struct gpu_plan *plan)
{
    struct gpu_attend_args *a = &l->args;
    const struct gpu_extent extent = {l->n, l->most_rows, l->most_chunks};
    gpu_way_run(l->d, a, plan, &extent);
    if (gpu_is_many(plan->way))
        return;
    if (l->rows.n_tok > 0)
        join_packs(l);
    gpu_run(l->d, GPU_KERNEL_attend_join, l->most_rows, l->n, 1,
            (size_t)a->row_v * sizeof(float) + JOIN_SMEM, a);
}

static void run_launch(struct launch *l, const struct gpu_plan *plan, struct gpu_attend_job *jobs)
{
    struct gpu_device *d = l->d;
    struct gpu_attend_args *a = &l->args;
    struct gpu_gather_args gather;
    bool pages = plan->way != GPU_WAY_ANY, copies = plan->way == GPU_WAY_COPY;
    size_t queries = pi_align(l->q_used * sizeof(uint16_t), 256);
    gpu_at room = gpu_room(d, GPU_ROOM_QUERY, queries + l->scale_used * sizeof(float) + 1);
    a->o = gpu_room(d, GPU_ROOM_PART, l->n_sum * sum_bytes(a));
    a->ml = gpu_room(d, GPU_ROOM_ML, l->n_sum * 2 * sizeof(float));
    gpu_at logits = gpu_room(d, GPU_ROOM_LOGITS, l->logit_used * sizeof(float) + 1);
    if (room == 0 || a->o == 0 || a->ml == 0 || logits == 0)
        return;
    if (l->is_listed &&
        !gpu_gather_place(d, &l->form, plan->way, l->gather, l->gather_at, jobs, l->n, &gather))
        return;
    for (int32_t i = 0; i < l->n; i++) {
        bool watched = gpu_is_watched(plan[i].job);
        jobs[i].packed += room;
        jobs[i].scale += room + queries;
        jobs[i].logits += watched ? logits : 0;
        jobs[i].ml += watched ? logits : 0;
    }
    if (copies && !gpu_copy_place(d, &l->form, jobs, l->copies, l->n, &gather))
        return;
    if (l->logit_used > 0)
        memcpy(d->attend->there, jobs, (size_t)l->n * sizeof(*jobs));
    gpu_send(d, l->list.at, l->list.used);
    gpu_run(d, GPU_KERNEL_attend_refs, (int64_t)d->attend->n_patch, 1, 1, 0, a);
    if (l->is_listed) {
        gpu_gather_run(d, &gather, pages, l->n);
        a->pool = pages ? gather.to : a->pool;
    }
    if (copies) {
        gather.jobs = a->jobs;
        gpu_run(d, GPU_KERNEL_attend_copy, gather.most_tile, l->n, 1,
                4 * sizeof(struct gpu_attend_ref), &gather);
        a->jobs = l->copies_at;
        a->pool = gather.to;
    }
    gpu_run(d, GPU_KERNEL_attend_queries, l->most_queries, l->n, 1,
            (size_t)a->row_k * sizeof(float) + 64, a);
    run_parts(l, plan);
    d->attend->n_patch = 0;
}

/* Whether there is memory for copies of pages; their room grows by half more than it must. */
static bool copies_fit(const struct gpu_device *d, size_t bytes)
{
    size_t have = d->room[GPU_ROOM_GATHER].size, unused, total;
    if (bytes <= have)
        return true;
    d->card->memory(d->card, &unused, &total);
    return 2 * bytes <= have + unused;
}

/* Plans of the first calls that may share a launch; their number, 0 where memory is out. */
static int32_t plan_some(struct gpu_device *d, const struct gpu_attend_args *a,
                         const struct kv_attend_job *jobs, int32_t n)
{
    struct gpu_attend *s = d->attend;
    size_t want = 0, n_sum = 0, n_logit = 0, n_copy = 0;
    int32_t i;
    for (i = 0; i < n; i++)
        want += gpu_plan_want(jobs[i].seq, &jobs[i]) + gpu_plan_want(jobs[i].guests, &jobs[i]);
    for (i = 0; i < n && i < GPU_JOBS && alike(jobs, jobs + i); i++) {
        struct gpu_plan *p = &s->plan[i];
        gpu_plan_ask(s, jobs + i, n - i);
        if (!gpu_plan_make(d, &jobs[i], want, p))
            return 0;
        if (s->forgot) { /* what was planned is void */
            s->forgot = false;
            s->n_delta = 0;
            i = -1;
            n_sum = n_logit = n_copy = 0;
            continue;
        }
        p->way = gpu_way_of(d, a, p, n, true);
        if (p->way == GPU_WAY_COPY && !copies_fit(d, n_copy + gpu_copy_bytes(a, p)))
            p->way = gpu_way_of(d, a, p, n, false);
        n_sum += gpu_plan_sums(p);
        n_logit += gpu_is_watched(&jobs[i]) ? logit_floats(&jobs[i]) * sizeof(float) : 0;
        n_copy += p->way == GPU_WAY_COPY ? gpu_copy_bytes(a, p) : 0;
        if (i > 0 && (n_logit > LOGIT_BYTES || p->way != s->plan[0].way || n_copy > COPY_BYTES ||
                      n_sum * sum_bytes(a) > PART_BYTES ||
                      (gpu_is_many(p->way) && gpu_many_tiles(p->job) != gpu_many_tiles(jobs))))
            break;
    }
    return i;
}

/* Calls that are alike and have a kernel, as many as share a launch; returns how many. Whole: they
   are all calls of an operation. */
static int32_t attend_some(struct gpu_device *d, const struct kv_attend_job *jobs, int32_t n,
                           bool whole)
{
    struct launch l = {.d = d, .args = args_of(jobs), .is_listed = gpu_is_listed(jobs)};
    l.form = l.args;
    if (l.is_listed)
        l.args = gpu_gather_form(&l.form, false);
    if (d->attend == NULL)
        d->attend = pi_mem_alloc(PI_MEM_DEVICE, sizeof(*d->attend));
    struct gpu_attend *s = d->attend;
    if (s != NULL) {
        s->n_launch++;
        s->n_delta = 0;
        l.n = plan_some(d, &l.args, jobs, n);
    }
    if (l.n == 0) {
        d->driver->failure = "no memory for lists of pages";
        return n;
    }
    if (s->plan[0].way == GPU_WAY_ANY)
        l.args = l.form;
    if (l.is_listed && gpu_is_wide(s->plan[0].way))
        l.args = gpu_gather_form(&l.form, true);
    if (s->plan[0].way == GPU_WAY_COPY)
        l.args = gpu_copy_form(&l.form);
    l.args.is_joined = s->plan[0].way == GPU_WAY_TALL;
    for (int32_t i = 0; i < l.n; i++)
        l.list.size += 2 * sizeof(struct gpu_attend_job) + s->plan[i].bytes;
    l.list.size += gpu_patches_size(s) + 256;
    if (whole && l.n == n)
        l.rows = rows_of(jobs, n, l.args.dim_v);
    void *host;
    l.list.at = gpu_list(d, l.list.size, &host);
    if (l.list.at == 0)
        return l.n;
    l.list.host = host;
    struct gpu_attend_job *to = gpu_take(&l.list, (size_t)l.n, sizeof(*to), &l.args.jobs);
    if (l.is_listed)
        l.gather = gpu_take(&l.list, (size_t)l.n, sizeof(*l.gather), &l.gather_at);
    if (s->plan[0].way == GPU_WAY_COPY)
        l.copies = gpu_take(&l.list, (size_t)l.n, sizeof(*l.copies), &l.copies_at);
    gpu_patches_take(s, &l.list, &l.args.patches);
    for (int32_t i = 0; i < l.n; i++)
        add_call(&l, &s->plan[i], i, &to[i]);
    run_launch(&l, s->plan, to);
    if (l.logit_used > 0 && d->driver->failure == NULL)
        gpu_note_calls(d, jobs, s->there, l.n);
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
    if (job->n_note > 0)
        gpu_marks_down(d, job->seq, kv_lane_at(job->seq, job->layer, job->head));
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

bool gpu_sees(const struct kv_seq *seq, int32_t layer)
{
    const struct gpu_attend_args args =
        args_of(&(struct kv_attend_job){.seq = seq, .layer = layer});
    return gpu_way_exists(gpu_of_lane(seq, layer, 0), &args);
}

static void *host_scratch(struct gpu_device *d, const struct kv_attend_job *job)
{
    size_t size = cpu_attend_scratch(&job->seq->cache->g, job->n_tok * job->n_group);
    return gpu_host_room(d, &d->scratch, size) ? d->scratch : NULL;
}

/* A call whose queries and output are on the device, and its tap. scratch NULL: the device's. */
static void attend_call(struct gpu_device *d, const struct kv_attend_job *job, void *scratch)
{
    const struct gpu_attend_args args = args_of(job);
    bool kernel = gpu_way_exists(d, &args), output = pi_at_some(job->out_at);
    bool there = kernel && (job->slots == NULL || job->tap == NULL);
    if (!there && (job->tap != NULL || (output && !kernel))) {
        void *room = scratch != NULL ? scratch : host_scratch(d, job);
        if (room != NULL)
            attend_on_host(d, job, output && !kernel, room);
    }
    struct kv_attend_job own = *job;
    own.tap = there ? job->tap : NULL;
    own.n_note = there ? job->n_note : 0;
    if ((output || own.tap != NULL) && kernel)
        attend_some(d, &own, 1, false);
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

/* Calls are collected, and made together, but those with rows that the host looks at. */
static void attend_collected(struct gpu_device *d, const struct kv_attend_job *jobs, int32_t n,
                             bool whole)
{
    gpu_enter_pass(d);
    for (int32_t i = 0; i < n;) {
        const struct gpu_attend_args args = args_of(&jobs[i]);
        if (gpu_way_exists(d, &args))
            i += attend_some(d, jobs + i, n - i, whole && i == 0);
        else
            attend_call(d, &jobs[i++], NULL);
    }
    gpu_leave(d);
}

static bool is_alone(const struct kv_attend_job *job)
{
    return gpu_is_watched(job) && !(job->notes_only && job->slots == NULL);
}

/* Whether a call must come in a later launch than the one before: notes for the same array of the
   host come down between. */
static bool comes_later(const struct kv_attend_job *before, const struct kv_attend_job *job)
{
    return job->n_note > 0 && before->seq == job->seq && before->head == job->head &&
           gpu_notes_host(job);
}

void gpu_attend(struct pi_stream *s, const struct kv_attend_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct kv_attend_job *jobs = ((struct gpu_stream *)s)->job;
    int32_t n = 0;
    bool whole = true;
    for (int64_t i = 0; i < list->n; i++)
        for (int32_t turn = 0; list->job(list->ctx, i, turn, 0, &jobs[n]); turn++) {
            bool alone = is_alone(&jobs[n]);
            if (n > 0 && (alone || n == GPU_JOBS || comes_later(&jobs[n - 1], &jobs[n]))) {
                attend_collected(d, jobs, n, false);
                jobs[0] = jobs[n];
                n = 0;
                whole = false;
            }
            whole = whole && !alone;
            if (alone) {
                gpu_enter_pass(d);
                attend_call(d, &jobs[n], NULL);
                gpu_leave(d);
            }
            if (list->done != NULL)
                list->done(list->ctx, i, turn, &jobs[n], 0);
            n += !alone;
        }
    attend_collected(d, jobs, n, whole);
}
