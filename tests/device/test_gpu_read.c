/*
 * Reading a part on a device of GPU kind. Entries that the device chose are read as those that the
 * host lists, bit for bit, whatever pages they lie in.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "kv/apart.h"
#include "kv/choose.h"
#include "kv/copy.h"
#include "kv/internal.h"
#include "kv/read.h"
#include "kv/score.h"
#include "gpu_count.h"
#include "gpu_rig.h"
#include "near.h"
#include "status.h"
#include "testing.h"

enum { N_HEAD = 2, N_GROUP = 2, N_BEFORE = 230, N_TOK = 40, MOST = N_BEFORE + N_TOK, DIM = 128 };
enum {
    N_GUEST = 100,
    N_FIRST = 3,
    N_CHOOSE = 97,
    N_LAST = 5,
    N_READ = N_FIRST + N_CHOOSE + N_LAST
};

TEST_GROUP(NULL, free_gpu);

/* ---- lanes ---- */

struct rig {
    struct pi_device *d;
    struct pi_stream *stream;
    struct kv_cache *cache;
    struct kv_seq *seq, *guests; /* guests: read as well, or NULL */
    int32_t dim;
    struct pi_at q, out, slots; /* [N_TOK][N_HEAD][N_GROUP][dim] twice, [N_HEAD][N_CHOOSE] */
};

static size_t rows_size(const struct rig *r)
{
    return (size_t)N_TOK * N_HEAD * N_GROUP * (size_t)r->dim * sizeof(float);
}

static void rig_open(struct rig *r, enum kv_type type, uint32_t index, int32_t page_len,
                     int32_t dim)
{
    static float k[MOST * DIM], v[MOST * DIM], q[N_TOK * N_HEAD * N_GROUP * DIM];
    uint64_t rng = 5;
    *r = (struct rig){.d = gpu(), .dim = dim};
    const struct kv_geometry g = {.n_layer = 1,
                                  .n_head = N_HEAD,
                                  .dim_k = dim,
                                  .dim_v = dim,
                                  .page_len = page_len,
                                  .type_k = type,
                                  .type_v = type,
                                  .index = index,
                                  .device = r->d};
    check(kv_cache_create(&g, 8 << 20, &r->cache, NULL), NULL);
    check(kv_seq_create(r->cache, &r->seq, NULL), NULL);
    check(kv_seq_reserve(r->seq, MOST, NULL), NULL);
    for (int32_t h = 0; h < N_HEAD; h++) {
        for (int32_t i = 0; i < MOST * dim; i++)
            k[i] = rng_float(&rng), v[i] = rng_float(&rng);
        kv_seq_append(r->seq, 0, h, 0, MOST, k, (size_t)dim, v, (size_t)dim);
    }
    r->stream = r->d->open(r->d, &(struct pi_stream_shape){.n_thread = 1});
    r->q = r->d->alloc(r->d, PI_MEM_OTHER, rows_size(r));
    r->out = r->d->alloc(r->d, PI_MEM_OTHER, rows_size(r));
    r->slots = r->d->alloc(r->d, PI_MEM_OTHER, (size_t)N_HEAD * N_CHOOSE * sizeof(int32_t));
    for (size_t i = 0; i < rows_size(r) / sizeof(float); i++)
        q[i] = rng_float(&rng);
    r->d->upload(r->stream, q, rows_size(r), r->q);
}

/* Entries that came back, from position pos on. */
static void rig_invite(struct rig *r, int32_t pos)
{
    static float k[N_GUEST * DIM], v[N_GUEST * DIM];
    uint64_t rng = 7;
    check(kv_seq_create(r->cache, &r->guests, NULL), NULL);
    check(kv_seq_reserve(r->guests, N_GUEST, NULL), NULL);
    for (int32_t h = 0; h < N_HEAD; h++) {
        for (int32_t i = 0; i < N_GUEST * r->dim; i++)
            k[i] = rng_float(&rng), v[i] = rng_float(&rng);
        kv_seq_append(r->guests, 0, h, pos, N_GUEST, k, (size_t)r->dim, v, (size_t)r->dim);
    }
}

static void rig_close(struct rig *r)
{
    r->d->free(r->d, r->slots);
    r->d->free(r->d, r->out);
    r->d->free(r->d, r->q);
    r->d->close(r->stream);
    kv_seq_free(r->guests);
    kv_seq_free(r->seq);
    kv_cache_free(r->cache);
}

/* ---- reading ---- */

/* Calls of tokens [t0, t0 + n_tok), a head each. */
struct calls {
    const struct rig *r;
    int32_t t0, n_tok;
    const int32_t *slots[N_HEAD]; /* NULL: what the device chose */
    const struct kv_attend_chosen *chosen;
    int32_t n_slot;
};

static bool call_of(void *ctx, int64_t i, int32_t turn, int32_t thread, struct kv_attend_job *out)
{
    const struct calls *c = ctx;
    size_t row = (size_t)N_HEAD * N_GROUP * (size_t)c->r->dim;
    size_t at = (size_t)c->t0 * row + (size_t)i * N_GROUP * (size_t)c->r->dim;
    (void)thread;
    *out = (struct kv_attend_job){.seq = c->r->seq,
                                  .guests = c->r->guests,
                                  .head = (int32_t)i,
                                  .n_tok = c->n_tok,
                                  .n_group = N_GROUP,
                                  .pos0 = N_BEFORE + c->t0,
                                  .q_at = pi_at_item(c->r->q, at),
                                  .q_stride = row,
                                  .scale = 0.1f,
                                  .out_at = pi_at_item(c->r->out, at),
                                  .out_stride = row,
                                  .slots = c->slots[i],
                                  .n_slot = c->n_slot};
    if (c->chosen != NULL)
        out->chosen = c->chosen[i];
    return turn == 0;
}

static void attend(const struct calls *c, float *out)
{
    struct calls own = *c;
    const struct kv_attend_list list = {.ctx = &own, .n = N_HEAD, .job = call_of};
    static float zeros[N_TOK * N_HEAD * N_GROUP * DIM];
    c->r->d->upload(c->r->stream, zeros, rows_size(c->r), c->r->out);
    c->r->d->attend(c->r->stream, &list);
    memcpy(out, c->r->d->download(c->r->stream, c->r->out, rows_size(c->r), out), rows_size(c->r));
}

static struct kv_score_pick pick_of(const struct rig *r, int32_t head, enum kv_pick how)
{
    size_t group = (size_t)N_GROUP * (size_t)r->dim;
    return (struct kv_score_pick){.how = how,
                                  .q = pi_at_item(r->q, (size_t)head * group),
                                  .stride = N_HEAD * group,
                                  .n_tok = N_TOK,
                                  .n_group = N_GROUP,
                                  .n = N_TOK,
                                  .scaled = true,
                                  .factor = 1.0f};
}

/* Scores by the queries that the device picks, and the choice among them: to the host, or left. */
static void choose(const struct rig *r, bool there, int32_t slots[N_HEAD][N_CHOOSE])
{
    struct kv_score_job score[N_HEAD];
    struct kv_choose_job jobs[N_HEAD];
    for (int32_t h = 0; h < N_HEAD; h++)
        score[h] = (struct kv_score_job){.seq = r->seq,
                                         .head = h,
                                         .n = N_BEFORE,
                                         .kind = KV_SCORE_DOT,
                                         .n_q = 4,
                                         .pick = pick_of(r, h, KV_PICK_UNUSUAL)};
    r->d->score(r->stream, &(struct kv_score_list){.jobs = score, .n = N_HEAD, .there = true});
    for (int32_t h = 0; h < N_HEAD; h++) {
        jobs[h] = (struct kv_choose_job){.at = pi_at_item(score[h].at, N_FIRST),
                                         .n = N_BEFORE - N_FIRST - N_LAST,
                                         .k = N_CHOOSE,
                                         .slots = slots[h]};
        if (there)
            jobs[h].there = pi_at_item(r->slots, (size_t)h * N_CHOOSE);
    }
    r->d->choose(r->stream, &(struct kv_choose_list){.jobs = jobs, .n = N_HEAD});
}

/* guests: from which position on there are guests; -1: there are none. */
static void check_chosen(enum kv_type type, uint32_t index, int32_t page_len, int32_t dim,
                         int32_t guests)
{
    static float want[N_TOK * N_HEAD * N_GROUP * DIM], got[N_TOK * N_HEAD * N_GROUP * DIM];
    int32_t slots[N_HEAD][N_CHOOSE], all[N_HEAD][N_READ + N_TOK];
    struct kv_attend_chosen chosen[N_HEAD];
    struct rig r;
    rig_open(&r, type, index, page_len, dim);
    if (guests >= 0)
        rig_invite(&r, guests);
    choose(&r, false, slots);
    for (int32_t h = 0; h < N_HEAD; h++) {
        assert_true(kv_lane_is_plain(r.seq, 0, h));
        for (int32_t i = 0; i < N_READ + N_TOK; i++)
            all[h][i] = i < N_FIRST              ? i
                        : i < N_FIRST + N_CHOOSE ? slots[h][i - N_FIRST] + N_FIRST
                                                 : MOST - N_READ - N_TOK + i;
        chosen[h] = (struct kv_attend_chosen){pi_at_item(r.slots, (size_t)h * N_CHOOSE), N_FIRST,
                                              N_CHOOSE, N_LAST + N_TOK, MOST};
    }
    struct calls listed = {.r = &r, .n_tok = N_TOK, .slots = {all[0], all[1]}},
                 left = {.r = &r, .n_tok = N_TOK, .chosen = chosen};
    listed.n_slot = left.n_slot = N_READ + N_TOK;
    attend(&listed, want);
    choose(&r, true, slots);
    attend(&left, got);
    assert_memory_equal(got, want, rows_size(&r));
    left.t0 = 17, left.n_tok = 1; /* a token by itself */
    choose(&r, true, slots);
    attend(&left, got);
    size_t row = rows_size(&r) / N_TOK / sizeof(float);
    assert_memory_equal(got + 17 * row, want + 17 * row, row * sizeof(float));
    rig_close(&r);
}

TEST(choices_that_stay_on_the_device_are_read_as_lists_of_the_host)
{
    check_chosen(KV_TYPE_F16, KV_INDEX_NORM, 64, 128, -1);
    check_chosen(KV_TYPE_F16, 0, 16, 64, 0);
    check_chosen(KV_TYPE_F16, 0, 64, 128, N_BEFORE - N_GUEST / 2); /* the last ones are later */
    check_chosen(KV_TYPE_TURBO3, KV_INDEX_UNIT8, 32, 128, -1);
    check_chosen(KV_TYPE_Q8_0, 0, 64, 96, 0); /* a size of no frequent kernel */
}

/* ---- vectors ---- */

/* The host's vectors for a pick of a head. */
static int32_t make_vectors(const struct rig *r, const struct kv_score_pick *p, int32_t head,
                            float *out)
{
    static float q[N_TOK * N_HEAD * N_GROUP * DIM];
    size_t dim = (size_t)r->dim, stride = p->stride;
    const float *from = r->d->download(r->stream, r->q, rows_size(r), q);
    bool mean = p->how == KV_PICK_MEAN;
    int32_t n = mean ? p->n : N_TOK;
    memset(out, 0, dim * sizeof(*out));
    for (int32_t j = 0; j < n; j++)
        for (size_t i = 0; i < N_GROUP * dim; i++) {
            float x = from[(size_t)(j * N_TOK / n) * stride + (size_t)head * N_GROUP * dim + i];
            if (mean)
                out[i % dim] += x * p->factor / (float)(n * N_GROUP);
            else
                out[(size_t)j * N_GROUP * dim + i] = x;
        }
    return mean ? 1 : N_TOK * N_GROUP;
}

/* Scores by vectors that the device makes are near those by the host's. The last n_sure are above
   all others. */
static void check_vectors(enum kv_score_kind kind, enum kv_pick how, int32_t n, float factor,
                          int32_t n_sure)
{
    static float vector[N_TOK * N_GROUP * DIM], want[N_BEFORE], got[N_BEFORE];
    struct rig r;
    rig_open(&r, KV_TYPE_F16, 0, 64, DIM);
    for (int32_t h = 0; h < N_HEAD; h++) {
        struct kv_score_job job = {.seq = r.seq,
                                   .head = h,
                                   .n = N_BEFORE,
                                   .kind = kind,
                                   .reduce = KV_SCORE_MEAN,
                                   .q = vector,
                                   .out = want};
        struct kv_score_pick pick = pick_of(&r, h, how);
        pick.n = n;
        pick.factor = factor;
        job.n_q = make_vectors(&r, &pick, h, vector);
        r.d->score(r.stream, &(struct kv_score_list){.jobs = &job, .n = 1});
        job.q = NULL;
        job.pick = pick;
        job.n_sure = n_sure;
        job.out = got;
        r.d->score(r.stream, &(struct kv_score_list){.jobs = &job, .n = 1});
        for (int32_t i = 0; i < N_BEFORE - n_sure; i++)
            near(got[i], want[i], 1e-4);
        for (int32_t i = N_BEFORE - n_sure; i < N_BEFORE; i++)
            assert_true(got[i] == INFINITY);
    }
    rig_close(&r);
}

TEST(vectors_that_the_device_makes_score_as_those_of_the_host)
{
    check_vectors(KV_SCORE_DOT, KV_PICK_MEAN, N_TOK, 1.0f, 0);
    check_vectors(KV_SCORE_DOT, KV_PICK_MEAN, 7, 0.25f, 0);
    check_vectors(KV_SCORE_BOUNDS, KV_PICK_ALL, N_TOK, 1.0f, 38);
    check_vectors(KV_SCORE_DOT, KV_PICK_ALL, N_TOK, 1.0f, 0);
}

/* ---- single entries ---- */

enum { N_COPY = 6 };
static const int32_t copied[N_COPY] = {3, 64, 65, 66, 200, 201}, first[N_COPY] = {0, 1, 2, 3, 4, 5};

/* A sequence with room for copies, on a device. */
static struct kv_seq *target(struct pi_device *d, enum kv_type type, uint32_t index,
                             struct kv_cache **cache)
{
    const struct kv_geometry g = {.n_layer = 1,
                                  .n_head = N_HEAD,
                                  .dim_k = DIM,
                                  .dim_v = DIM,
                                  .page_len = 64,
                                  .type_k = type,
                                  .type_v = type,
                                  .index = index,
                                  .device = d};
    struct kv_seq *seq;
    check(kv_cache_create(&g, 8 << 20, cache, NULL), NULL);
    check(kv_seq_create(*cache, &seq, NULL), NULL);
    check(kv_seq_reserve(seq, MOST, NULL), NULL);
    return seq;
}

/* The lane has copies of entries of `from` [N_COPY], within an error of numbers below 1. */
static void check_copies(const struct kv_seq *from, const struct kv_seq *to, int32_t head,
                         float shift, float error)
{
    float want[DIM], got[DIM];
    for (int32_t i = 0; i < N_COPY; i++)
        for (int side = 0; side < 2; side++) {
            (side == 0 ? kv_lane_key : kv_lane_value)(from, 0, head, copied[i], want);
            (side == 0 ? kv_lane_key : kv_lane_value)(to, 0, head, i, got);
            for (int32_t d = 0; d < DIM; d++)
                near(got[d], want[d] + (side == 0 ? shift : 0.0f), error);
        }
}

/* Copies from one sequence to a new one of a device. */
static void check_copy(const struct kv_seq *from, struct pi_device *d, enum kv_type type,
                       float shift, float error)
{
    float moved[DIM];
    struct kv_cache *cache;
    struct kv_seq *to = target(d, type, KV_INDEX_NORM, &cache);
    for (int32_t i = 0; i < DIM; i++)
        moved[i] = shift;
    for (int32_t h = 0; h < N_HEAD; h++) {
        const struct kv_copy c = {.from = from,
                                  .from_head = h,
                                  .to = to,
                                  .to_head = h,
                                  .shift = shift != 0.0f ? moved : NULL};
        kv_seq_copy(&c, copied, N_COPY);
    }
    for (int32_t h = 0; h < N_HEAD; h++)
        check_copies(from, to, h, shift, error);
    kv_seq_free(to);
    kv_cache_free(cache);
}

TEST(copies_of_entries_wait_and_are_there_when_they_are_asked_for)
{
    struct rig r;
    rig_open(&r, KV_TYPE_F16, KV_INDEX_NORM, 64, DIM);
    check_copy(r.seq, gpu(), KV_TYPE_F16, 0.0f, 0.0f);
    check_copy(r.seq, gpu(), KV_TYPE_F16, 0.5f, 1e-3f);
    check_copy(r.seq, gpu(), KV_TYPE_Q8_0, 0.0f, 1e-2f);
    struct kv_cache *cache; /* to the processor, and back: the store of recall is there */
    struct kv_seq *host = target(&pi_device_cpu, KV_TYPE_F16, 0, &cache);
    int32_t all[MOST];
    for (int32_t i = 0; i < MOST; i++)
        all[i] = i;
    for (int32_t h = 0; h < N_HEAD; h++)
        kv_seq_copy(&(struct kv_copy){.from = r.seq, .from_head = h, .to = host, .to_head = h}, all,
                    MOST);
    check_copy(host, gpu(), KV_TYPE_F16, 0.0f, 0.0f);
    check_copy(host, gpu(), KV_TYPE_TURBO4, 0.25f, 0.3f);
    kv_seq_free(host);
    kv_cache_free(cache);
    rig_close(&r);
}

/* Launches of copies from a to b and from c to d, which then have entries of `from`. */
static int32_t launches(const struct kv_seq *from, struct kv_seq *a, struct kv_seq *b,
                        struct kv_seq *c, struct kv_seq *d)
{
    gpu_count(emulated_card());
    kv_seq_copy(&(struct kv_copy){.from = a, .to = b}, a == from ? copied : first, N_COPY);
    kv_seq_copy(&(struct kv_copy){.from = c, .to = d}, c == from ? copied : first, N_COPY);
    check_copies(from, d, 0, 0.0f, 0.0f);
    check_copies(from, b, 0, 0.0f, 0.0f);
    return gpu_launches[GPU_KERNEL_entry_copy];
}

TEST(copies_share_launches_unless_one_reads_what_another_writes)
{
    struct rig r;
    struct kv_cache *cache[4];
    struct kv_seq *to[4];
    if (!gpu_is_own())
        test_skip("launches of the emulation alone are counted");
    rig_open(&r, KV_TYPE_F16, 0, 64, DIM);
    for (int32_t i = 0; i < 4; i++)
        to[i] = target(gpu(), KV_TYPE_F16, 0, &cache[i]);
    assert_int_equal(launches(r.seq, r.seq, to[0], r.seq, to[1]), 2); /* keys, and values */
    assert_int_equal(launches(r.seq, r.seq, to[2], to[2], to[3]), 4);
    for (int32_t i = 0; i < 4; i++) {
        kv_seq_free(to[i]);
        kv_cache_free(cache[i]);
    }
    rig_close(&r);
}

TEST(sums_of_values_are_those_of_the_entries)
{
    const uint32_t index[] = {0, KV_INDEX_VALUE_SUM};
    for (size_t i = 0; i < PI_LEN(index); i++) {
        struct rig r;
        double want[DIM] = {0};
        float got[DIM], row[DIM];
        rig_open(&r, KV_TYPE_Q8_0, index[i], 64, DIM);
        for (int32_t s = 0; s < 200; s++) {
            kv_lane_value(r.seq, 0, 1, s, row);
            for (int32_t d = 0; d < DIM; d++)
                want[d] += (double)row[d];
        }
        kv_lane_value_sum(r.seq, 0, 1, 200, got);
        for (int32_t d = 0; d < DIM; d++)
            near(got[d], want[d], 1e-4);
        rig_close(&r);
    }
}

/* ---- distances ---- */

/* Sums of squares over entries [a, a + n) and [b, b + n) of a lane. */
static void apart_exactly(const struct rig *r, struct kv_apart_job *job, int32_t n,
                          const struct pi_rope *rope, const float *cs)
{
    float x[DIM], y[DIM];
    for (int32_t i = 0; i < 2 * n; i++) {
        bool key = i < n;
        (key ? kv_lane_key : kv_lane_value)(r->seq, 0, job->head, job->a + i % n, x);
        (key ? kv_lane_key : kv_lane_value)(r->seq, 0, job->head, job->b + i % n, y);
        for (int32_t f = 0; key && job->turned && f < rope->n_pair; f++) {
            float re = x[f], im = x[rope->n_pair + f];
            x[f] = re * cs[2 * f] - im * cs[2 * f + 1];
            x[rope->n_pair + f] = re * cs[2 * f + 1] + im * cs[2 * f];
        }
        for (int32_t d = 0; d < DIM; d++) {
            bool scaled = key && job->turned && d < 2 * rope->n_pair;
            double by = scaled ? 1.0 / (rope->magnitude * rope->magnitude) : 1.0;
            *(key ? &job->k : &job->v) += by * ((double)x[d] - y[d]) * ((double)x[d] - y[d]);
            job->size += by * 0.5 * ((double)x[d] * x[d] + (double)y[d] * y[d]);
        }
    }
}

static void check_apart(enum kv_type type, uint32_t index)
{
    struct rig r;
    const struct pi_rope rope = {.n_pair = 48, .magnitude = 1.25f};
    float cs[96];
    rig_open(&r, type, index, 32, DIM);
    for (int32_t f = 0; f < 48; f++) {
        cs[2 * f] = cosf(0.1f * (float)f);
        cs[2 * f + 1] = sinf(0.1f * (float)f);
    }
    struct kv_apart_job jobs[4];
    for (int32_t i = 0; i < 4; i++)
        jobs[i] = (struct kv_apart_job){.seq_a = r.seq,
                                        .seq_b = r.seq,
                                        .head = i % 2,
                                        .a = 7 + 20 * i,
                                        .b = 130,
                                        .turned = i < 2};
    r.d->apart(
        &(struct kv_apart_list){.jobs = jobs, .n_job = 4, .n = 31, .rope = &rope, .turn = cs});
    for (int32_t i = 0; i < 4; i++) {
        struct kv_apart_job want = jobs[i];
        want.k = want.v = want.size = 0.0;
        apart_exactly(&r, &want, 31, &rope, cs);
        near(jobs[i].k, want.k, 1e-5 * want.k);
        near(jobs[i].v, want.v, 1e-5 * want.v);
        near(jobs[i].size, want.size, 1e-5 * want.size);
    }
    rig_close(&r);
}

TEST(distances_are_those_of_the_entries)
{
    check_apart(KV_TYPE_F16, 0);
    check_apart(KV_TYPE_TURBO3, KV_INDEX_NORM);
}

/* ---- entries that are more than their type holds ---- */

TEST(who_asks_learns_at_once_that_a_number_was_clipped)
{
    struct rig r;
    int32_t layer;
    bool value;
    float x[2 * DIM] = {[5] = 1e6f};
    rig_open(&r, KV_TYPE_F16, 0, 64, DIM);
    assert_false(kv_cache_clipped(r.cache, &layer, &value));
    check(kv_seq_reserve(r.seq, 1, NULL), NULL);
    kv_seq_append(r.seq, 0, 1, MOST, 1, x + DIM, DIM, x, DIM);
    assert_true(kv_cache_clipped(r.cache, &layer, &value));
    assert_int_equal(layer, 0);
    assert_true(value);
    rig_close(&r);
}
