/*
 * read_store.c - random lanes, and a read policy on them through pi_pass_reader, as a pass calls
 * it. All KV heads select, then the common step runs, then tiles of queries attend. It times and
 * knows no policy.
 */
#define _POSIX_C_SOURCE 200809L

#include "read_store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"
#include "policy/read/projection.h"

#define NOISE (1 << 22)

static uint32_t next_random(uint32_t *state)
{
    return random_u32(state) >> 8;
}

/* Two independent normal numbers from two uniform ones (Box and Muller 1958). */
static void fill_normal(float *x, size_t n, uint32_t *state)
{
    for (size_t i = 0; i + 1 < n; i += 2) {
        float u = ((float)next_random(state) + 0.5f) * 0x1p-24f;
        float angle = (float)next_random(state) * (6.28318531f * 0x1p-24f);
        float radius = sqrtf(-2.0f * logf(u));
        x[i] = radius * cosf(angle);
        x[i + 1] = radius * sinf(angle);
    }
}

/* ---- policies ---- */

static struct kv_geometry shape(int32_t n_layer)
{
    return (struct kv_geometry){.n_layer = n_layer,
                                .n_head = SHAPE_HEADS,
                                .dim_k = SHAPE_DIM,
                                .dim_v = SHAPE_DIM,
                                .page_len = 64,
                                .type_k = KV_TYPE_F16,
                                .type_v = KV_TYPE_F16};
}

static struct policy_model model_of(const struct kv_geometry *g)
{
    return (struct policy_model){
        .g = *g, .n_group = SHAPE_GROUP, .scale = 1.0f / sqrtf((float)SHAPE_DIM)};
}

void side_open(struct side *s, const char *read, int32_t n_layer, int32_t longest, int32_t n_thread)
{
    pith_error err = {0};
    *s = (struct side){.g = shape(n_layer)};
    check(read_config_parse(read, &s->config, &err), &err);
    check(read_config_fit(&s->config, &s->g, &err), &err);
    const struct policy_model model = model_of(&s->g);
    check(read_create(&s->config, &model, n_thread, &s->read, &err), &err);
    check(read_reserve(s->read, 1, longest, &err), &err);
    read_reader(s->read, &s->reader);
    s->cap = (int32_t)read_most(s->read, longest);
    s->slots = memory((size_t)SHAPE_HEADS * (size_t)s->cap * sizeof(*s->slots));
}

void write_basis(char *path, size_t cap)
{
    pith_error err = {0};
    struct pith_projection *p = NULL;
    const struct pith_projection wanted = {.n_layer = 1,
                                           .n_head = SHAPE_HEADS,
                                           .dim = SHAPE_DIM,
                                           .keys = PITH_KEYS_ROTATED,
                                           .n_token = 1};
    snprintf(path, cap, "/tmp/pith-bench-XXXXXX");
    int file = mkstemp(path);
    if (file < 0)
        stop(&(pith_error){.message = "no file can be made in /tmp"});
    close(file);
    check(projection_new(&wanted, NULL, NULL, &p, &err), &err);
    for (int32_t h = 0; h < SHAPE_HEADS; h++)
        for (int32_t d = 0; d < SHAPE_DIM; d++) {
            projection_value(p, 0, h)[d] = 1.0f;
            projection_vector(p, 0, h)[d * SHAPE_DIM + d] = 1.0f;
        }
    check(pith_projection_save(p, path, &err), &err);
    pith_projection_free(p);
}

void side_close(struct side *s)
{
    read_free(s->read);
    pi_mem_free(s->slots);
}

/* ---- lanes ---- */

static void fill(struct store *st, int32_t n_fill, int32_t n)
{
    pith_error err = {0};
    uint32_t state = 1;
    size_t rows = (size_t)APPEND * SHAPE_DIM;
    float *k = memory(rows * sizeof(*k)), *v = memory(NOISE * sizeof(*v));
    fill_normal(v, NOISE, &state);
    fill_normal(st->q, (size_t)SHAPE_CHUNK * SHAPE_HEADS * SHAPE_GROUP * SHAPE_DIM, &state);
    for (int32_t pos = 0; pos < n; pos += APPEND) {
        check(kv_seq_reserve(st->seq, APPEND, &err), &err);
        for (int32_t i = 0; i < n_fill * SHAPE_HEADS; i++) {
            fill_normal(k, rows, &state);
            kv_seq_append(st->seq, i / SHAPE_HEADS, i % SHAPE_HEADS, pos, APPEND, k, SHAPE_DIM,
                          v + next_random(&state) % (NOISE - rows), SHAPE_DIM);
        }
    }
    pi_mem_free(k);
    pi_mem_free(v);
}

void store_open(struct store *st, const struct side *s, int32_t n_fill, int32_t n, int32_t n_thread)
{
    pith_error err = {0};
    *st = (struct store){.model = model_of(&s->g), .n_thread = n_thread};
    size_t row = (size_t)SHAPE_HEADS * SHAPE_GROUP * SHAPE_DIM * sizeof(float);
    st->q = memory(SHAPE_CHUNK * row);
    st->out = memory(SHAPE_CHUNK * row);
    st->scratch_size = pi_align(kv_attend_scratch_bytes(&s->g, SHAPE_CHUNK * SHAPE_GROUP), 64);
    st->scratch = memory((size_t)n_thread * st->scratch_size);
    check(kv_cache_create(&s->g, kv_bytes_for_tokens(&s->g, n), &st->cache, &err), &err);
    if (read_projection(s->read) != NULL)
        kv_cache_set_projection(st->cache, read_projection(s->read));
    check(kv_seq_create(st->cache, &st->seq, &err), &err);
    fill(st, n_fill, n);
}

void store_close(struct store *st)
{
    kv_seq_free(st->seq);
    kv_cache_free(st->cache);
    pi_mem_free(st->q);
    pi_mem_free(st->out);
    pi_mem_free(st->scratch);
}

struct kv_seq *store_cut(const struct store *st, int32_t n)
{
    pith_error err = {0};
    struct kv_seq *seq;
    check(kv_seq_fork(st->seq, &seq, &err), &err);
    kv_seq_truncate(seq, n);
    return seq;
}

/* ---- one chunk ---- */

/* A call of one of the functions below, for the threads. */
struct turn {
    struct store *st;
    struct side *s; /* NULL: everything is read */
    const struct place *p;
    int32_t tile;
    int32_t n_tile;
    struct pi_pass_item item;
    struct pi_pass_chunk chunk;
};

static size_t q_stride(void)
{
    return (size_t)SHAPE_HEADS * SHAPE_GROUP * SHAPE_DIM;
}

static struct turn turn_of(struct store *st, struct side *s, const struct place *p)
{
    struct turn t = {.st = st, .s = s, .p = p};
    t.item =
        (struct pi_pass_item){.kv = p->seq, .n_tok = p->n_tok, .pos0 = p->n, .n_read = p->n_tok};
    t.chunk = (struct pi_pass_chunk){.layer = p->layer,
                                     .n_tok = p->n_tok,
                                     .q = st->q,
                                     .q_stride = q_stride(),
                                     .out = st->out,
                                     .out_stride = q_stride()};
    if (s != NULL) {
        t.chunk.cap = s->cap;
        t.chunk.slots = s->slots;
        t.chunk.n_slot = s->n_slot;
    }
    return t;
}

/* The longest tiles, the last, begin. */
static void attend_tiles(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct turn *t = ctx;
    for (int64_t at = begin; at < end; at++) {
        int32_t head = (int32_t)(at % SHAPE_HEADS);
        int32_t first = (t->n_tile - 1 - (int32_t)(at / SHAPE_HEADS)) * t->tile;
        size_t from = (size_t)first * q_stride() + (size_t)head * SHAPE_GROUP * SHAPE_DIM;
        struct kv_attend_job job = {
            .seq = t->p->seq,
            .layer = t->p->layer,
            .head = head,
            .n_tok = (int32_t)pi_min(t->tile, t->p->n_tok - first),
            .n_group = SHAPE_GROUP,
            .pos0 = t->p->n + first,
            .q = t->st->q + from,
            .q_stride = q_stride(),
            .scale = t->st->model.scale,
            .out = t->st->out + from,
            .out_stride = q_stride(),
        };
        if (t->s != NULL && t->s->n_slot[head] >= 0) {
            job.slots = t->s->slots + (size_t)head * (size_t)t->s->cap;
            job.n_slot = t->s->n_slot[head];
        }
        kv_attend(&job, t->st->scratch + (size_t)thread * t->st->scratch_size);
    }
}

double store_heads(const struct store *st, pi_job_fn *fn, void *ctx)
{
    double start = pi_time_s();
    pi_parallel_items(st->n_thread, SHAPE_HEADS, fn, ctx);
    return pi_time_s() - start;
}

static void set_tile(struct turn *t, bool whole)
{
    int32_t n = t->p->n_tok;
    int64_t n_part = pi_ceil_div(t->st->n_thread, SHAPE_HEADS);
    int64_t tile = pi_min(kv_attend_tile(&t->st->model.g, SHAPE_GROUP), n);
    t->tile = (int32_t)(whole ? pi_max(tile, pi_ceil_div(n, n_part)) : tile);
    t->n_tile = (int32_t)pi_ceil_div(n, t->tile);
}

double store_dense(struct store *st, const struct place *p, bool whole)
{
    struct turn t = turn_of(st, NULL, p);
    set_tile(&t, whole);
    double start = pi_time_s();
    pi_parallel_items(st->n_thread, (int64_t)t.n_tile * SHAPE_HEADS, attend_tiles, &t);
    return pi_time_s() - start;
}

struct spent store_read(struct store *st, struct side *s, const struct place *p)
{
    struct turn t = turn_of(st, s, p);
    struct spent spent;
    t.chunk.item = &t.item;
    double start = pi_time_s();
    s->reader.select(s->reader.user, &t.chunk, 1);
    spent.choose = pi_time_s() - start;
    set_tile(&t, s->n_slot[0] >= 0);
    start = pi_time_s();
    pi_parallel_items(st->n_thread, (int64_t)t.n_tile * SHAPE_HEADS, attend_tiles, &t);
    if (s->reader.attended != NULL)
        s->reader.attended(s->reader.user, &t.chunk, 1);
    spent.attend = pi_time_s() - start;
    return spent;
}

struct read_chunk store_chunk(const struct store *st, const struct place *p, int32_t head)
{
    return (struct read_chunk){
        .layer = p->layer,
        .head = head,
        .n = p->n,
        .n_tok = p->n_tok,
        .n_group = SHAPE_GROUP,
        .pos0 = p->n,
        .q = st->q + (size_t)head * SHAPE_GROUP * SHAPE_DIM,
        .q_stride = q_stride(),
    };
}
