/*
 * read.c - scores of lanes by vectors, and the index of pages. A call's lanes go in one launch. The
 * host makes lists of pages and of rotations; vectors are turned, picked and coded on the device.
 *
 * Invariant: a score depends on the vectors and its entry alone, of bounds on its page, of softmax
 * on its lane.
 */
#include <math.h>
#include <stdlib.h>

#include "device/gpu/host.h"
#include "kv/read.h"

static_assert(KV_SCORE_DOT == 0 && KV_SCORE_COSINE == 1 && KV_SCORE_UNIT8 == 2 &&
                  KV_SCORE_COLUMNS == 3 && KV_SCORE_PROJ == 4 && KV_SCORE_BOUNDS == 5,
              "kinds of read.cuh");
static_assert(KV_TAKE_MEAN == 0 && KV_TAKE_LOGITS == 1 && KV_TAKE_SUM == 2 && KV_TAKE_MOST == 3,
              "ways to take of soft.cuh");
static_assert(KV_PICK_UNUSUAL == 1 && KV_PICK_MEAN == 2 && KV_PICK_HEADS == 3 && KV_PICK_ALL == 4 &&
                  KV_PICK_LARGE == 5,
              "ways to pick of read.cuh");

enum { SMEM_MOST = 90 << 10, VECTORS = 16, NOT_THERE = -1 };

/* Where a part of the index is in a page, or that it is not there. */
static uint32_t part_at(const struct kv_geometry *g, uint32_t part, size_t at)
{
    return (g->index & part) != 0 ? (uint32_t)at : (uint32_t)NOT_THERE;
}

/* ---- the list of a call ---- */

struct call {
    struct gpu_device *d;
    const struct kv_score_job *jobs; /* [n] of one class, kind and number of dimensions */
    int32_t n;
    const struct gpu_lane_list *lists; /* [n] */
    struct gpu_score_args args;
    uint8_t *host; /* NULL: sizes are counted alone */
    gpu_at at;
    size_t used;
    gpu_at room; /* of vectors and picks */
    size_t room_used;
    gpu_at projection; /* of PROJ */
    gpu_at scores;     /* [job][n] */
    size_t scores_used;
    struct gpu_score_job *job;
    struct gpu_pick *pick;
    gpu_at picks;
    int32_t n_pick, most_page, most_vector, most_group, most_n, most_tok, most_large, most_vote;
    bool no_memory;                   /* of the host */
    const struct gpu_soft_rows *rows; /* NULL: rows are the call's own */
    size_t rows_used;
};

/* Entries that some vector sees. */
static int32_t seen_of(const struct kv_score_job *job)
{
    if (job->reduce != KV_SCORE_SOFTMAX)
        return job->n;
    return job->soft.n_seen + (job->soft.grows ? job->pick.n_tok - 1 : 0);
}

/* Entries that have scores, or means that scores are made of. */
static int32_t votes_of(const struct kv_score_job *job)
{
    return job->soft.n_vote > 0 ? job->soft.n_vote : job->n;
}

/* Bytes of a job's scores, and of weights behind them. */
static size_t score_bytes(const struct kv_score_job *job)
{
    return pi_align((size_t)votes_of(job) * sizeof(float), 256);
}
static size_t kept_bytes(const struct kv_score_job *job)
{
    size_t n = job->soft.keeps ? (size_t)job->n_q * (size_t)job->soft.n_seen : 0;
    return pi_align(n * sizeof(float), 256);
}

static void *take(struct call *c, size_t n, size_t size, gpu_at *at)
{
    size_t from = c->used;
    c->used += pi_align(n * size, 16);
    *at = c->at + from;
    return c->host != NULL ? c->host + from : NULL;
}

static gpu_at take_room(struct call *c, size_t n)
{
    size_t from = c->room_used;
    c->room_used += pi_align(n * sizeof(float), 256);
    return c->room + from;
}

/* Whether the device's list of a lane's pages will do: they are full but the last, and not
   turned. */
static bool is_listed(const struct call *c, int32_t i)
{
    const struct kv_score_job *job = &c->jobs[i];
    return !c->lists[i].is_turned && !kv_lane_at(job->seq, job->layer, job->head)->ragged;
}

/* The pages of the entries that are seen, and the variant of vectors that meets each. deltas has
   the variants' deltas, of which there are *n_variant. */
static void add_pages(struct call *c, const struct kv_score_job *job, struct gpu_score_job *to,
                      int32_t *deltas, int32_t *variant_of)
{
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    struct gpu_weigh_page *page = take(c, (size_t)lane->n_live, sizeof(*page), &to->pages);
    int32_t n = 0, n_seen = seen_of(job);
    to->n_variant = 1;
    if (deltas != NULL)
        deltas[0] = 0;
    for (int32_t i = 0, slot = 0, last = 0, variant = 0; slot < n_seen; i++) {
        const struct kv_page_ref *ref = &lane->table[i];
        int32_t n_here = (int32_t)pi_min(ref->n, n_seen - slot);
        if (ref->delta != last)
            variant = ref->delta == 0 ? 0 : to->n_variant++;
        if (ref->delta != last && deltas != NULL)
            deltas[variant] = ref->delta;
        last = ref->delta;
        if (n_here == 0)
            continue;
        if (page != NULL) {
            page[n] = (struct gpu_weigh_page){gpu_page_at(lane->kind, ref->page), 0, slot, n_here};
            variant_of[n] = variant;
        }
        slot += n_here;
        n++;
    }
    to->n_page = n;
    c->most_page = (int32_t)pi_max(c->most_page, n);
}

/* The same of pages as the device has listed them. */
static void point_list(struct call *c, int32_t i, struct gpu_score_job *to)
{
    to->refs = c->lists[i].refs;
    to->n_all = seen_of(&c->jobs[i]);
    to->n_variant = 1;
    to->n_page = (int32_t)pi_ceil_div(to->n_all, c->args.page_len);
    c->most_page = (int32_t)pi_max(c->most_page, to->n_page);
}

/* Each page's vectors. */
static void point_pages(const struct call *c, const struct gpu_score_job *to,
                        const int32_t *variant_of)
{
    struct gpu_weigh_page *page = (void *)(c->host + (to->pages - c->at));
    size_t variant = (size_t)to->n_vector * (size_t)(c->args.len + 1) * sizeof(float);
    for (int32_t i = 0; i < to->n_page; i++)
        page[i].turn = to->vectors + (size_t)variant_of[i] * variant;
}

/* Floats that a pick makes beside its vectors. */
static size_t unit_floats(const struct call *c, const struct kv_score_job *job)
{
    const struct kv_score_pick *p = &job->pick;
    size_t dim = (size_t)c->args.k.dim, n_group = (size_t)p->n_group;
    if (p->how == KV_PICK_ALL)
        return 0;
    if (p->how == KV_PICK_LARGE)
        return (size_t)p->n_tok * n_group * dim;
    return (p->how == KV_PICK_HEADS ? 1 : (size_t)job->n_q) * n_group * dim;
}

static void add_pick(struct call *c, const struct kv_score_job *job, struct gpu_score_job *to)
{
    const struct kv_score_pick *p = &job->pick;
    bool large = p->how == KV_PICK_LARGE, joined = p->how < KV_PICK_ALL;
    gpu_at unit = take_room(c, unit_floats(c, job));
    to->q = unit; /* of LARGE all, where one vector is not made of them */
    if (!large || job->n_q == 1)
        to->q = take_room(c, (size_t)job->n_q * (size_t)c->args.k.dim);
    if (large)
        to->dims = take_room(c, (size_t)job->n_dim);
    if (c->host != NULL)
        c->pick[c->n_pick] = (struct gpu_pick){.q = p->q.at,
                                               .unit = unit,
                                               .out = to->q,
                                               .stride = p->stride,
                                               .n_tok = p->n_tok,
                                               .n_group = p->n_group,
                                               .n = job->n_q,
                                               .scaled = p->scaled,
                                               .how = (int32_t)p->how,
                                               .n_sample = p->n,
                                               .factor = p->factor,
                                               .n_dim = p->n_dim,
                                               .dims = to->dims,
                                               .n_list = job->n_dim};
    c->n_pick++;
    c->most_group = (int32_t)pi_max(c->most_group, joined ? p->n_group : 0);
    c->most_n = (int32_t)pi_max(c->most_n, large ? 0 : job->n_q);
    c->most_large = (int32_t)pi_max(c->most_large, large ? p->n_tok : 0);
    c->most_tok = (int32_t)pi_max(c->most_tok, p->how == KV_PICK_UNUSUAL ? p->n_tok : 0);
}

struct placed {
    int32_t pos, slot;
};

static int by_place(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (x->pos != y->pos)
        return x->pos < y->pos ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

/* The order in the text of a lane whose positions do not ascend slot by slot. */
static void add_order(struct call *c, const struct kv_score_job *job, struct gpu_score_job *to)
{
    int32_t n = votes_of(job);
    if (kv_lane_is_plain(job->seq, job->layer, job->head))
        return;
    int32_t *order = take(c, (size_t)n, sizeof(*order), &to->order);
    struct placed *room =
        order != NULL ? pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)n * 3 / 2 + 1, sizeof(*room)) : NULL;
    if (room == NULL) {
        c->no_memory = c->no_memory || order != NULL;
        return;
    }
    int32_t *pos = (int32_t *)(void *)(room + n);
    kv_lane_positions(job->seq, job->layer, job->head, pos, n);
    for (int32_t i = 0; i < n; i++)
        room[i] = (struct placed){pos[i], i};
    qsort(room, (size_t)n, sizeof(*room), by_place);
    for (int32_t i = 0; i < n; i++)
        order[i] = room[i].slot;
    pi_mem_free(room);
}

static void add_soft(struct call *c, const struct kv_score_job *job, struct gpu_score_job *to)
{
    const struct kv_score_soft *s = &job->soft;
    size_t n_vector = (size_t)to->n_vector;
    size_t n_part = (size_t)to->n_page * (size_t)(c->args.page_len / c->args.n_entry);
    bool pools = s->kernel > 1;
    to->n_vote = votes_of(job);
    to->n_seen = s->n_seen;
    to->n_per_token = job->pick.n_group;
    to->grows = s->grows;
    to->kernel = s->kernel;
    to->most = s->most;
    to->take = (int32_t)s->take;
    to->parts = take_room(c, n_part * n_vector * 2);
    to->rows = c->rows != NULL ? c->rows->at + c->rows_used : take_room(c, n_vector * 2);
    c->rows_used += gpu_rows_bytes(job->n_q);
    to->votes = pools ? take_room(c, (size_t)to->n_vote) : 0;
    to->kept = s->keeps ? to->out + score_bytes(job) : 0;
    if (pools)
        add_order(c, job, to);
    c->most_vote = (int32_t)pi_max(c->most_vote, pools ? to->n_vote : 0);
}

/* The rotations of variants behind the first. */
static void add_turns(struct call *c, const struct kv_score_job *job, struct gpu_score_job *to,
                      const int32_t *deltas)
{
    size_t n_pair = (size_t)c->args.n_pair;
    float *turn = take(c, (size_t)to->n_variant * n_pair * 2, sizeof(*turn), &to->turn);
    for (int32_t v = 1; turn != NULL && v < to->n_variant; v++)
        pi_rope_fill_delta(job->rope, -deltas[v], turn + (size_t)v * n_pair * 2);
}

static void add_job(struct call *c, int32_t i)
{
    const struct kv_score_job *job = &c->jobs[i];
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    size_t n_live = (size_t)lane->n_live, dim = (size_t)c->args.k.dim;
    struct gpu_score_job to = {
        .n_q = job->n_q, .mean = job->reduce == KV_SCORE_MEAN, .out = c->scores + c->scores_used};
    gpu_at at;
    bool listed = is_listed(c, i);
    int32_t *deltas = listed ? NULL : take(c, n_live + 1, sizeof(*deltas), &at);
    int32_t *variant_of = listed ? NULL : take(c, n_live + 1, sizeof(*variant_of), &at);
    to.n_vector = to.mean && job->kind != KV_SCORE_BOUNDS ? 1 : job->n_q;
    c->scores_used += score_bytes(job) + kept_bytes(job);
    if (listed)
        point_list(c, i, &to);
    else
        add_pages(c, job, &to, deltas, variant_of);
    to.sure = job->n_sure > 0 ? job->n - job->n_sure : INT32_MAX;
    if (job->pick.how != KV_PICK_NONE) {
        add_pick(c, job, &to);
    } else {
        float *q = take(c, (size_t)job->n_q * dim, sizeof(*q), &to.q);
        if (q != NULL)
            memcpy(q, job->q, (size_t)job->n_q * dim * sizeof(*q));
    }
    add_turns(c, job, &to, deltas);
    if (job->kind == KV_SCORE_COLUMNS && job->pick.how != KV_PICK_LARGE) {
        int32_t *dims = take(c, (size_t)job->n_dim, sizeof(*dims), &to.dims);
        if (dims != NULL)
            memcpy(dims, job->dims, (size_t)job->n_dim * sizeof(*dims));
    }
    if (job->kind == KV_SCORE_PROJ) {
        const struct kv_cache *cache = job->seq->cache;
        size_t row = (size_t)cache->g.index_dim * dim * sizeof(float);
        to.matrix = c->projection + (size_t)kv_lane_number(job->seq, lane) * row;
    }
    to.vectors =
        take_room(c, (size_t)to.n_variant * (size_t)to.n_vector * (size_t)(c->args.len + 1));
    if (job->reduce == KV_SCORE_SOFTMAX)
        add_soft(c, job, &to);
    c->most_vector = (int32_t)pi_max(c->most_vector, to.n_vector);
    c->args.most_variant = (int32_t)pi_max(c->args.most_variant, to.n_variant);
    if (c->host == NULL)
        return;
    if (!listed)
        point_pages(c, &to, variant_of);
    c->job[i] = to;
}

static void lay_out(struct call *c)
{
    c->used = c->room_used = c->scores_used = c->rows_used = 0;
    c->n_pick = 0;
    c->job = take(c, (size_t)c->n, sizeof(*c->job), &c->args.jobs);
    c->pick = take(c, (size_t)c->n, sizeof(*c->pick), &c->picks);
    for (int32_t i = 0; i < c->n; i++)
        add_job(c, i);
}

/* ---- launches ---- */

static struct gpu_index_parts index_parts(const struct kv_geometry *g,
                                          const struct kv_page_layout *at)
{
    return (struct gpu_index_parts){
        .norm = part_at(g, KV_INDEX_NORM, at->norm),
        .unit = part_at(g, KV_INDEX_UNIT8, at->unit),
        .unit_scale = part_at(g, KV_INDEX_UNIT8, at->unit_scale),
        .columns = part_at(g, KV_INDEX_COLUMNS, at->columns),
        .proj = part_at(g, KV_INDEX_PROJ, at->proj),
        .bounds = part_at(g, KV_INDEX_BOUNDS, at->bounds),
        .value_sum = part_at(g, KV_INDEX_VALUE_SUM, at->value_sum),
    };
}

static struct gpu_score_args args_of(const struct kv_score_job *job)
{
    const struct kv_geometry *g = &job->seq->cache->g;
    const struct kv_class *kind = kv_lane_at(job->seq, job->layer, job->head)->kind;
    struct gpu_score_args a = {
        .pool = kind->pool.at,
        .stride = kind->layout.stride,
        .kind = (int32_t)job->kind,
        .page_len = kind->page_len,
        .n_entry = kind->page_len,
        .n_pair = job->rope != NULL ? job->rope->n_pair : 0,
        .adjacent = job->rope != NULL && job->rope->adjacent,
        .turned =
            kind->k.codec->rotated && (job->kind == KV_SCORE_DOT || job->kind == KV_SCORE_COSINE),
        .unit_dim = (int32_t)kv_unit_dim(g),
        .index_dim = g->index_dim,
        .at = index_parts(g, &kind->layout),
        .k = gpu_part_of(kind, &kind->k, true),
    };
    a.len = job->kind == KV_SCORE_COLUMNS  ? job->n_dim
            : job->kind == KV_SCORE_PROJ   ? g->index_dim
            : job->kind == KV_SCORE_BOUNDS ? 2 * kind->k.dim
                                           : kind->k.dim;
    return a;
}

/* Floats of a block of score_page or score_bounds. */
static size_t block_floats(const struct gpu_score_args *a, int32_t n_entry)
{
    size_t n = (size_t)n_entry, len = (size_t)a->len, dim = (size_t)a->k.dim;
    if (a->kind == KV_SCORE_BOUNDS)
        return 2 * dim + 4 + n * (dim + 1);
    bool whole = a->kind == KV_SCORE_COLUMNS && a->at.columns == (uint32_t)NOT_THERE;
    return len * VECTORS + VECTORS + n * (len + 1) + (whole ? n * (dim + 1) : 0) +
           (size_t)pi_max(128, VECTORS * (n_entry + 1)); /* of score_page, of soft.cuh */
}

static void run_soft(struct call *c, int64_t n_part, size_t smem)
{
    struct gpu_device *d = c->d;
    gpu_run(d, GPU_KERNEL_soft_parts, n_part, c->n, 1, smem, &c->args);
    gpu_run(d, GPU_KERNEL_soft_rows, c->most_vector, c->n, 1,
            128 * (sizeof(double) + sizeof(float)), &c->args);
    if (c->rows != NULL && c->rows->asked != 0) {
        const struct gpu_asked_args asked = {c->rows->asked, c->args.k.dim, 0};
        gpu_run(d, GPU_KERNEL_asked, c->most_vector, c->n, 1, 128 * sizeof(double), &asked);
    }
    if (c->rows != NULL && c->rows->only)
        return;
    gpu_run(d, GPU_KERNEL_soft_take, n_part, c->n, 1, smem, &c->args);
    gpu_run(d, GPU_KERNEL_soft_pool, pi_ceil_div(c->most_vote, 128), c->n, 1, 0, &c->args);
}

static void run_call(struct call *c)
{
    struct gpu_device *d = c->d;
    struct gpu_score_args *a = &c->args;
    size_t dim = (size_t)a->k.dim;
    if (c->n_pick > 0) {
        const struct gpu_pick_args picks = {c->picks, a->k.dim, 0};
        size_t floats = 9 * dim + 2 * (size_t)c->most_tok;
        floats += c->most_tok > 0 ? (size_t)c->most_n : 0;

        gpu_run(d, GPU_KERNEL_pick_head, c->most_group, c->n_pick, 1, floats * sizeof(float),
                &picks);
        gpu_run(d, GPU_KERNEL_pick_join, pi_ceil_div((int64_t)c->most_n * a->k.dim, 128), c->n_pick,
                1, 0, &picks);
        gpu_run(d, GPU_KERNEL_pick_large, c->most_large, c->n_pick, 1, 2 * dim * sizeof(float),
                &picks);
        gpu_run(d, GPU_KERNEL_pick_dims, c->most_large > 0 ? c->n_pick : 0, 1, 1,
                dim * sizeof(int32_t), &picks);
    }
    gpu_run(d, GPU_KERNEL_score_vectors, c->most_vector, a->most_variant, c->n,
            (dim + 128) * sizeof(float), a);
    size_t smem = block_floats(a, a->n_entry) * sizeof(float);
    int64_t n_part = (int64_t)c->most_page * (a->page_len / a->n_entry);
    if (a->kind == KV_SCORE_BOUNDS)
        gpu_run(d, GPU_KERNEL_score_bounds, c->most_page, c->n, 1, smem, a);
    else if (c->jobs->reduce == KV_SCORE_SOFTMAX)
        run_soft(c, n_part, smem);
    else
        gpu_run(d, GPU_KERNEL_score_page, n_part, c->n, 1, smem, a);
}

/* The lists of the jobs' lanes, which are freed with the block; NULL: no memory. */
static struct gpu_lane_list *lists_of(struct gpu_device *d, const struct kv_score_job *jobs,
                                      int32_t n)
{
    struct gpu_lane_list *lists =
        pi_mem_alloc(PI_MEM_SCRATCH, (size_t)n * (sizeof(*lists) + sizeof(void *)));
    if (lists == NULL)
        return NULL;
    const struct kv_lane **lanes = (const struct kv_lane **)(void *)(lists + n);
    for (int32_t i = 0; i < n; i++)
        lanes[i] = kv_lane_at(jobs[i].seq, jobs[i].layer, jobs[i].head);
    if (gpu_attend_lists(d, lanes, n, lists))
        return lists;
    pi_mem_free(lists);
    return NULL;
}

/* Jobs that a launch can have together; their scores from `at` on. Returns the bytes they take; 0:
   no memory. */
static size_t score_alike(struct gpu_device *d, const struct kv_score_job *jobs, int32_t n,
                          gpu_at at, const struct gpu_soft_rows *rows)
{
    struct gpu_lane_list *lists = lists_of(d, jobs, n);
    struct call c = {.d = d,
                     .jobs = jobs,
                     .n = n,
                     .lists = lists,
                     .args = args_of(jobs),
                     .scores = at,
                     .rows = rows};
    void *host;
    if (lists == NULL) {
        d->driver->failure = "no memory for lists of pages";
        return 0;
    }
    while (c.args.n_entry > 1 && block_floats(&c.args, c.args.n_entry) > SMEM_MOST / sizeof(float))
        c.args.n_entry /= 2;
    if (jobs->kind == KV_SCORE_PROJ)
        c.projection = gpu_projection(d, jobs->seq->cache);
    lay_out(&c);
    c.room = gpu_room(d, GPU_ROOM_PART, c.room_used);
    c.at = c.room != 0 ? gpu_list(d, c.used, &host) : 0;
    if (c.at == 0) {
        pi_mem_free(lists);
        return 0;
    }
    c.host = host;
    lay_out(&c);
    pi_mem_free(lists);
    gpu_send(d, c.at, c.used);
    if (c.no_memory)
        d->driver->failure = "no memory of the host";
    run_call(&c);
    return c.scores_used;
}

static bool alike(const struct kv_score_job *a, const struct kv_score_job *b)
{
    return kv_lane_at(a->seq, a->layer, a->head)->kind ==
               kv_lane_at(b->seq, b->layer, b->head)->kind &&
           a->kind == b->kind && a->n_dim == b->n_dim && a->rope == b->rope &&
           (a->reduce == KV_SCORE_SOFTMAX) == (b->reduce == KV_SCORE_SOFTMAX);
}

bool gpu_score_jobs(struct gpu_device *d, struct kv_score_job *jobs, int32_t n,
                    const struct gpu_soft_rows *rows)
{
    struct gpu_soft_rows part = rows != NULL ? *rows : (struct gpu_soft_rows){0};
    size_t size = 0, used = 0;
    for (int32_t i = 0; i < n; i++) {
        jobs[i].at.at = size;
        size += score_bytes(&jobs[i]) + kept_bytes(&jobs[i]);
    }
    gpu_at room = gpu_room(d, GPU_ROOM_SCORE, size + 256);
    for (int32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && alike(&jobs[i], &jobs[end]);)
            end++;
        if (room == 0)
            return false;
        used += score_alike(d, jobs + i, end - i, room + used, rows != NULL ? &part : NULL);
        for (int32_t k = i; k < end; k++)
            part.at += gpu_rows_bytes(jobs[k].n_q);
        part.asked += part.asked != 0 ? (size_t)(end - i) * sizeof(struct gpu_asked_job) : 0;
    }
    for (int32_t i = 0; i < n; i++) {
        jobs[i].at.at += (uintptr_t)room;
        jobs[i].soft.kept = pi_at_add(jobs[i].at, score_bytes(&jobs[i]));
    }
    return used == size;
}

void gpu_score_fetch(struct gpu_device *d, const struct kv_score_job *jobs, int32_t n)
{
    size_t size = 0;
    for (int32_t i = 0; i < n; i++)
        size += score_bytes(&jobs[i]) + kept_bytes(&jobs[i]);
    if (size == 0 || !gpu_host_room(d, (void **)&d->list, size))
        return;
    d->driver->get(d->driver, d->list, jobs[0].at.at, size);
    for (int32_t i = 0; i < n; i++)
        memcpy(jobs[i].out, d->list + (jobs[i].at.at - jobs[0].at.at),
               (size_t)jobs[i].n * sizeof(float));
}

size_t gpu_score_scratch(const struct kv_geometry *g, int32_t n_q)
{
    (void)g;
    (void)n_q;
    return 64;
}

void gpu_score(struct pi_stream *s, const struct kv_score_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    gpu_enter(d);
    if (list->n > 0 && gpu_score_jobs(d, list->jobs, list->n, NULL) && !list->there)
        gpu_score_fetch(d, list->jobs, list->n);
    gpu_leave(d);
}

void gpu_score_one(const struct kv_score_job *job, void *scratch)
{
    struct gpu_device *d = gpu_of_lane(job->seq, job->layer, job->head);
    struct kv_score_job own = *job;
    (void)scratch;
    gpu_enter(d);
    if (gpu_score_jobs(d, &own, 1, NULL))
        gpu_score_fetch(d, &own, 1);
    gpu_leave(d);
}

/* ---- the index ---- */

gpu_at gpu_projection(struct gpu_device *d, const struct kv_cache *cache)
{
    const struct kv_geometry *g = &cache->g;
    int32_t n_layer = kv_full_lanes(g).n_layer;
    size_t n = (size_t)n_layer * (size_t)g->n_head * (size_t)g->index_dim * (size_t)g->dim_k;
    if (d->projection.of == cache->projection && d->projection.at != 0)
        return d->projection.at;
    gpu_forget_projection(d);
    d->projection = (struct gpu_projection){
        cache->projection, d->driver->alloc(d->driver, n * sizeof(float)), n * sizeof(float)};
    if (d->projection.at == 0)
        d->driver->failure = "no memory for what is computed";
    else
        d->driver->put(d->driver, d->projection.at, cache->projection, n * sizeof(float));
    return d->projection.at;
}

void gpu_forget_projection(struct gpu_device *d)
{
    if (d->projection.at != 0)
        d->driver->free(d->driver, d->projection.at, d->projection.size);
    d->projection = (struct gpu_projection){NULL, 0, 0};
}

static struct gpu_index_args index_args(const struct kv_cache *cache, const struct kv_class *kind)
{
    const struct kv_geometry *g = &cache->g;
    struct gpu_index_args a = {
        .page_len = kind->page_len,
        .unit_dim = (int32_t)kv_unit_dim(g),
        .index_dim = g->index_dim,
        .n_entry = kind->page_len,
        .at = index_parts(g, &kind->layout),
        .k = gpu_part_of(kind, &kind->k, true),
        .value = gpu_part_of(kind, &kind->value, g->v_in_k > 0),
    };
    return a;
}

/* Floats that a block has for entries. */
static size_t entry_floats(const struct gpu_index_args *a, int32_t n_entry)
{
    return (size_t)n_entry * (size_t)(pi_max(a->k.dim, a->value.dim) + 1);
}

/* Parts of pages that entries have: none in a lane with a window, of which nothing is chosen. */
static bool has_entry_parts(const struct kv_cache *cache, int32_t lane)
{
    const uint32_t parts = KV_INDEX_NORM | KV_INDEX_UNIT8 | KV_INDEX_COLUMNS | KV_INDEX_PROJ;
    return (cache->g.index & parts) != 0 && kv_layer_window(&cache->g, lane / cache->g.n_head) == 0;
}

void gpu_index_rows(struct gpu_device *d, const struct kv_cache *cache, const struct kv_class *kind,
                    const struct gpu_index_row *rows, int32_t n, uint16_t *norms)
{
    struct gpu_index_args a = index_args(cache, kind);
    void *host;
    size_t size = (size_t)n * sizeof(*rows);
    if (n == 0)
        return;
    if (!has_entry_parts(cache, rows->lane))
        a.at.norm = a.at.unit = a.at.columns = a.at.proj = (uint32_t)NOT_THERE;
    if (a.at.proj != (uint32_t)NOT_THERE)
        a.matrix = gpu_projection(d, cache);
    if (norms != NULL)
        a.norms = gpu_room(d, GPU_ROOM_HOST, (size_t)n * sizeof(*norms));
    a.rows = gpu_list(d, size, &host);
    if (a.rows == 0)
        return;
    memcpy(host, rows, size);
    gpu_send(d, a.rows, size);
    gpu_run(d, GPU_KERNEL_index_entries, n, 1, 1,
            128 * sizeof(double) + (128 + entry_floats(&a, 1)) * sizeof(float), &a);
    if (norms != NULL && a.norms != 0)
        d->driver->get(d->driver, norms, a.norms, (size_t)n * sizeof(*norms));
}

void gpu_index_full(struct gpu_device *d, const struct kv_cache *cache, const struct kv_class *kind,
                    const struct gpu_index_row *rows, int32_t n)
{
    struct gpu_index_args a = index_args(cache, kind);
    void *host;
    size_t size = (size_t)n * sizeof(*rows), bounds = 2 * (size_t)kind->k.dim;
    if ((cache->g.index & (KV_INDEX_BOUNDS | KV_INDEX_VALUE_SUM)) == 0)
        return;
    a.rows = n > 0 ? gpu_list(d, size, &host) : 0;
    if (a.rows == 0)
        return;
    while (a.n_entry > 1 &&
           (bounds + entry_floats(&a, a.n_entry)) * sizeof(float) > (size_t)SMEM_MOST)
        a.n_entry /= 2;
    memcpy(host, rows, size);
    gpu_send(d, a.rows, size);
    gpu_run(d, GPU_KERNEL_index_pages, n, 1, 1,
            (bounds + entry_floats(&a, a.n_entry)) * sizeof(float), &a);
}

void gpu_index(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
               int32_t page, int32_t slot, int32_t n)
{
    struct gpu_device *d = gpu_of_class(kind);
    struct gpu_index_row row[KV_PAGE_LEN_MAX];
    if (!has_entry_parts(cache, lane))
        return;
    pi_lock_take(&d->lock);
    bool waits = gpu_index_later(d, cache, kind, lane, page, slot, n);
    pi_lock_give(&d->lock);
    if (waits)
        return;
    gpu_enter(d);
    gpu_touch_page(d, kind, page);
    for (int32_t i = 0; i < n; i++)
        row[i] = (struct gpu_index_row){gpu_page_at(kind, page), 0, slot + i, lane};
    gpu_index_rows(d, cache, kind, row, n, NULL);
    gpu_leave(d);
}

void gpu_finish(const struct kv_cache *cache, const struct kv_class *kind, int32_t page)
{
    struct gpu_device *d = gpu_of_class(kind);
    const struct gpu_index_row row = {.page = gpu_page_at(kind, page)};
    if ((cache->g.index & (KV_INDEX_BOUNDS | KV_INDEX_VALUE_SUM)) == 0)
        return;
    gpu_enter(d);
    gpu_index_full(d, cache, kind, &row, 1);
    gpu_leave(d);
}

void gpu_norms(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
               int32_t slot, int32_t n, uint16_t *out)
{
    struct gpu_device *d = gpu_of_class(kind);
    struct gpu_index_row row[KV_PAGE_LEN_MAX];
    gpu_enter(d);
    for (int32_t i = 0; i < n; i++)
        row[i] = (struct gpu_index_row){gpu_page_at(kind, page), 0, slot + i, 0};
    gpu_index_rows(d, cache, kind, row, n, out);
    gpu_leave(d);
}
