/*
 * score.c - scores of a lane's entries. It walks the lane's pages, rotates the vectors for pages
 * with a delta, and prepares them for a kind of score. It hands each page to the kernels of
 * cpu/score.h. It knows no policy. Invariant: a slot's score depends on its entry (of bounds: on
 * its page) and on the vectors, and on nothing else.
 */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/pages.h"
#include "device/cpu/wht.h"

enum { BOUNDS_BATCH = 16 }; /* pages whose bounds are scored in one call */

/* One call's working memory, parts of the caller's scratch. */
struct score {
    const struct kv_score_job *job;
    const struct kv_cache *cache;
    const struct kv_lane *lane;
    const struct pi_score_kernels *cpu;
    bool ready; /* the vectors are prepared, for pages with this delta: */
    int32_t delta;
    int32_t n_q;   /* vectors that are left of the job's */
    int32_t dim;   /* theirs */
    float *cs;     /* [dim_k + 1] cosines and sines of a rotation */
    float *row;    /* [dim_k] */
    float *q;      /* [n_q][2 * dim_k] the vectors */
    float *packed; /* the same as kernels take them */
    int8_t *code;
    float *code_scale;    /* [n_q up to a multiple of 16] */
    int32_t *code_offset; /* [likewise] */
    float *x;             /* [KV_PAGE_LEN_MAX] results of a call */
    float *key;           /* [dim_k][page_len] decoded keys side by side, or bounds
                             [BOUNDS_BATCH][2][dim_k] */
};

/* Places the parts into scratch (NULL: counts alone) and returns the bytes they take. */
static size_t place(struct score *s, const struct kv_geometry *g, int32_t n_q, uint8_t *scratch)
{
    size_t used = 0, n = (size_t)n_q, dim = (size_t)g->dim_k, padded = pi_align(n, 16);
    size_t len = (size_t)pi_max(g->page_len, 2 * BOUNDS_BATCH);
    s->cs = pi_mem_part(scratch, &used, dim + 1, sizeof(float));
    s->row = pi_mem_part(scratch, &used, dim, sizeof(float));
    s->q = pi_mem_part(scratch, &used, n * 2 * dim, sizeof(float));
    s->packed = pi_mem_part(scratch, &used, pi_score_pack_len(n_q, 2 * g->dim_k), sizeof(float));
    s->code = pi_mem_part(scratch, &used, pi_score_pack_codes_len(n_q, g->dim_k), 1);
    s->code_scale = pi_mem_part(scratch, &used, padded, sizeof(float));
    s->code_offset = pi_mem_part(scratch, &used, padded, sizeof(int32_t));
    s->x = pi_mem_part(scratch, &used, KV_PAGE_LEN_MAX, sizeof(float));
    s->key = pi_mem_part(scratch, &used, dim * len, sizeof(float));
    return used;
}

size_t cpu_score_scratch(const struct kv_geometry *g, int32_t n_q)
{
    struct score s;
    return place(&s, g, n_q, NULL) + 64;
}

/* ---- vectors ------------------------------------------------------------------------------ */

/* Whether the vectors meet keys as they are stored, which some types rotate first. */
static bool meets_rotated(const struct score *s)
{
    return s->lane->kind->k.codec->rotated &&
           (s->job->kind == KV_SCORE_DOT || s->job->kind == KV_SCORE_COSINE);
}

/* Vector j of the job as pages with a delta are to meet it (attend.c: queries_fill). */
static void take_vector(struct score *s, int32_t j, int32_t delta)
{
    size_t dim = (size_t)s->cache->g.dim_k;
    memcpy(s->row, s->job->q + (size_t)j * dim, dim * sizeof(float));
    if (delta != 0)
        kv_rotate(s->job->rope, s->cs, s->row);
    if (meets_rotated(s))
        kv_wht(s->row, (int32_t)dim, s->lane->kind->group_k, false);
}

/* Prepares a vector for the keys, for a kind of score. Bounds: for keys between least and most, the
   largest product with q[d] is q[d] * most where q[d] is positive, else q[d] * least. */
static void keep_vector(struct score *s, const float *x, float *out)
{
    const struct kv_score_job *job = s->job;
    int32_t dim = s->cache->g.dim_k;
    switch (job->kind) {
    case KV_SCORE_COLUMNS:
        for (int32_t i = 0; i < job->n_dim; i++)
            out[i] = x[job->dims[i]];
        break;
    case KV_SCORE_PROJ:
        kv_index_project(s->cache, (int32_t)(s->lane - job->seq->lane), x, out);
        break;
    case KV_SCORE_BOUNDS:
        for (int32_t d = 0; d < dim; d++) {
            out[d] = x[d] < 0.0f ? x[d] : 0.0f;
            out[dim + d] = x[d] < 0.0f ? 0.0f : x[d];
        }
        break;
    default:
        memcpy(out, x, (size_t)dim * sizeof(*out));
        break;
    }
}

static int32_t kept_dim(const struct score *s)
{
    int32_t dim = s->cache->g.dim_k;
    return s->job->kind == KV_SCORE_COLUMNS  ? s->job->n_dim
           : s->job->kind == KV_SCORE_PROJ   ? s->cache->g.index_dim
           : s->job->kind == KV_SCORE_BOUNDS ? 2 * dim
                                             : dim;
}

/* The mean of scores that are linear in q is the score of the mean. */
static void take_mean(struct score *s, int32_t delta)
{
    size_t dim = (size_t)s->cache->g.dim_k;
    float *mean = s->q + dim, share = 1.0f / (float)s->job->n_q;
    memset(mean, 0, dim * sizeof(*mean));
    for (int32_t j = 0; j < s->job->n_q; j++) {
        take_vector(s, j, delta);
        for (size_t d = 0; d < dim; d++)
            mean[d] += s->row[d];
    }
    for (size_t d = 0; d < dim; d++)
        s->row[d] = mean[d] * share;
    s->n_q = 1;
    keep_vector(s, s->row, s->q);
}

static void prepare(struct score *s, int32_t delta)
{
    const struct kv_score_job *job = s->job;
    if (s->ready && s->delta == delta)
        return;
    assert(delta == 0 || job->rope != NULL);
    if (delta != 0)
        pi_rope_fill_delta(job->rope, -delta, s->cs);
    s->ready = true;
    s->delta = delta;
    s->n_q = job->n_q;
    s->dim = kept_dim(s);
    if (job->reduce == KV_SCORE_MEAN && job->kind != KV_SCORE_BOUNDS) {
        take_mean(s, delta);
    } else {
        for (int32_t j = 0; j < job->n_q; j++) {
            take_vector(s, j, delta);
            keep_vector(s, s->row, s->q + (size_t)j * (size_t)s->dim);
        }
    }
    if (job->kind == KV_SCORE_UNIT8)
        pi_score_pack_codes(s->q, s->n_q, s->dim, s->code, s->code_scale, s->code_offset);
    else if (job->kind != KV_SCORE_COLUMNS)
        pi_score_pack(s->q, s->n_q, s->dim, s->packed);
}

/* ---- entries ------------------------------------------------------------------------------ */

/* Bytes from the page at table index i to the one that is read next; 0 at the end. */
static ptrdiff_t next_page(const struct score *s, int32_t i)
{
    const struct kv_page_ref *ref = &s->lane->table[i];
    if (i + 1 >= s->lane->n_live)
        return 0;
    return kv_page_at(s->lane->kind, ref[1].page) - kv_page_at(s->lane->kind, ref->page);
}

/* Keys, or their replacement in the index, n of the page at table index i, one after the other. */
static struct pi_score_keys keys_of(const struct score *s, int32_t i, int32_t n)
{
    const struct kv_page_layout *at = &s->lane->kind->layout;
    const uint8_t *page = kv_page_at(s->lane->kind, s->lane->table[i].page);
    enum kv_score_kind kind = s->job->kind;
    size_t offset = kind == KV_SCORE_UNIT8 ? at->unit : kind == KV_SCORE_PROJ ? at->proj : at->k;
    return (struct pi_score_keys){
        .k = page + offset,
        .high = page + at->k_high,
        .scale = (const uint16_t *)(const void *)(page + at->k_scale),
        .table = kv_codec_table(s->lane->kind->type_k, s->lane->kind->group_k),
        .group = s->lane->kind->group_k,
        .n = n,
        .dim = kind == KV_SCORE_UNIT8 ? (int32_t)kv_unit_dim(&s->cache->g) : s->dim,
        .next = next_page(s, i),
    };
}

/* Asks for the small parts of the page after that at table index i; kernels ask for the others as
   they go. */
static void ask_for_next(const struct score *s, int32_t i)
{
    const struct kv_page_layout *at = &s->lane->kind->layout;
    const uint8_t *next = kv_page_at(s->lane->kind, s->lane->table[i].page) + next_page(s, i);
    size_t factors = (size_t)s->cache->g.page_len * sizeof(float);
    void (*prefetch)(const void *, size_t) = pi_kernels()->attend.prefetch;
    if (s->job->kind == KV_SCORE_UNIT8)
        prefetch(next + at->unit_scale, factors);
    if (s->job->kind == KV_SCORE_COSINE)
        prefetch(next + at->norm, factors);
    if (s->job->kind == KV_SCORE_COSINE || s->job->kind == KV_SCORE_DOT)
        prefetch(next + at->k_high, at->k_end - at->k_high);
}

static void score_columns(struct score *s, int32_t i, int32_t n)
{
    const struct kv_score_job *job = s->job;
    bool stored = (s->cache->g.index & KV_INDEX_COLUMNS) != 0;
    const uint8_t *page = kv_page_at(s->lane->kind, s->lane->table[i].page);
    if (!stored)
        cpu_decode_run(job->seq, job->layer, job->head, i, KV_SIDE_K, s->key);
    const struct pi_score_columns c = {
        .k = stored ? (const void *)(page + s->lane->kind->layout.columns) : s->key,
        .stride = s->cache->g.page_len,
        .n = n,
        .dims = job->dims,
        .n_dim = job->n_dim,
        .n_q = s->n_q,
        .q = s->q,
        .next = stored ? next_page(s, i) : 0,
    };
    s->cpu->columns[stored ? PI_ATTEND_F16 : PI_ATTEND_F32](&c, s->x);
}

/* out [n] of the first n entries at table index i. */
static void score_page(struct score *s, int32_t i, int32_t n, float *out)
{
    const struct kv_page_layout *at = &s->lane->kind->layout;
    const uint8_t *page = kv_page_at(s->lane->kind, s->lane->table[i].page);
    const float *factor = NULL;
    struct pi_score_keys keys = keys_of(s, i, n);
    const struct pi_score_vectors q = {s->n_q, s->packed};
    const struct pi_score_codes codes = {s->n_q, s->code, s->code_scale, s->code_offset};
    ask_for_next(s, i);
    switch (s->job->kind) {
    case KV_SCORE_COLUMNS:
        score_columns(s, i, n);
        break;
    case KV_SCORE_UNIT8:
        s->cpu->unit8(&keys, &codes, s->x);
        factor = (const float *)(const void *)(page + at->unit_scale);
        break;
    case KV_SCORE_PROJ:
        s->cpu->dot[PI_ATTEND_F16](&keys, &q, s->x);
        break;
    default:
        s->cpu->dot[s->lane->kind->k.codec->kernel](&keys, &q, s->x);
        factor =
            s->job->kind == KV_SCORE_COSINE ? (const float *)(const void *)(page + at->norm) : NULL;
        break;
    }
    for (int32_t e = 0; e < n; e++)
        out[e] = factor != NULL ? s->x[e] * factor[e] : s->x[e];
}

static void score_entries(struct score *s)
{
    for (int32_t i = 0, slot = 0; slot < s->job->n; slot += s->lane->table[i++].n) {
        const struct kv_page_ref *ref = &s->lane->table[i];
        prepare(s, ref->delta);
        score_page(s, i, (int32_t)pi_min(ref->n, s->job->n - slot), s->job->out + slot);
    }
}

/* ---- pages -------------------------------------------------------------------------------- */

/* Pages that wait for the call that scores them. */
struct batch {
    int32_t n;
    int32_t slot[BOUNDS_BATCH]; /* their first ones */
    int32_t len[BOUNDS_BATCH];  /* and how many of them */
};

static void score_batch(struct score *s, struct batch *b)
{
    const struct kv_score_job *job = s->job;
    const struct pi_score_keys keys = {.k = s->key, .n = b->n, .dim = s->dim};
    struct pi_score_vectors q = {s->n_q, s->packed};
    float sum[BOUNDS_BATCH] = {0};
    bool mean = job->reduce == KV_SCORE_MEAN;
    for (int32_t j = 0; j < (mean && b->n > 0 ? job->n_q : 0); j++) {
        q.n = 1;
        pi_score_pack(s->q + (size_t)j * (size_t)s->dim, 1, s->dim, s->packed);
        s->cpu->dot[PI_ATTEND_F32](&keys, &q, s->x);
        for (int32_t i = 0; i < b->n; i++)
            sum[i] += s->x[i];
    }
    if (!mean && b->n > 0)
        s->cpu->dot[PI_ATTEND_F32](&keys, &q, s->x);
    for (int32_t i = 0; i < b->n; i++) {
        float x = mean ? sum[i] * (1.0f / (float)job->n_q) : s->x[i];
        for (int32_t e = 0; e < b->len[i]; e++)
            job->out[b->slot[i] + e] = x;
    }
    b->n = 0;
}

static void score_bounds(struct score *s)
{
    const struct kv_geometry *g = &s->cache->g;
    struct batch b = {0};
    for (int32_t i = 0, slot = 0; slot < s->job->n; slot += s->lane->table[i++].n) {
        const struct kv_page_ref *ref = &s->lane->table[i];
        const uint8_t *page = kv_page_at(s->lane->kind, ref->page);
        int32_t n = (int32_t)pi_min(ref->n, s->job->n - slot);
        if (b.n == BOUNDS_BATCH || !s->ready || s->delta != ref->delta) {
            score_batch(s, &b);
            prepare(s, ref->delta);
        }
        float *row = s->key + (size_t)b.n * (size_t)s->dim;
        if ((g->index & KV_INDEX_BOUNDS) != 0 && n == g->page_len)
            memcpy(row, page + s->lane->kind->layout.bounds, (size_t)s->dim * sizeof(*row));
        else
            kv_index_bounds(s->cache, s->lane->kind, page, n, row);
        b.slot[b.n] = slot;
        b.len[b.n++] = n;
    }
    score_batch(s, &b);
}

/* ---- the call ----------------------------------------------------------------------------- */

/* The part of a page that a kind cannot do without. */
static inline uint32_t needed(enum kv_score_kind kind)
{
    return kind == KV_SCORE_COSINE  ? KV_INDEX_NORM
           : kind == KV_SCORE_UNIT8 ? KV_INDEX_UNIT8
           : kind == KV_SCORE_PROJ  ? KV_INDEX_PROJ
                                    : 0;
}

void cpu_score_one(const struct kv_score_job *job, void *scratch)
{
    struct score s = {
        .job = job,
        .cache = job->seq->cache,
        .lane = kv_lane_at(job->seq, job->layer, job->head),
        .cpu = &pi_kernels()->score,
    };
    assert(job->n >= 0 && job->n <= s.lane->len && job->n_q >= 1);
    uint32_t lacking = needed(job->kind) & ~s.cache->g.index;
    assert(!s.lane->kind->layout.side_by_side && lacking == 0);
    (void)lacking;
    place(&s, &s.cache->g, job->n_q, (uint8_t *)scratch + (64 - (uintptr_t)scratch % 64) % 64);
    if (job->kind == KV_SCORE_BOUNDS)
        score_bounds(&s);
    else
        score_entries(&s);
}

static void score_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct kv_score_list *list = ctx;
    for (int64_t i = begin; i < end; i++)
        cpu_score_one(&list->jobs[i], list->scratch + (size_t)thread * list->scratch_size);
}

void cpu_score(struct pi_stream *stream, const struct kv_score_list *list)
{
    const struct cpu_stream *s = cpu_stream_of(stream);
    cpu_items(s, cpu_threads_for(s, list->work), list->n, score_items, (void *)list);
}
