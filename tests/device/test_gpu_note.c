/*
 * Notes of attention's weights on a device of GPU kind: every word against the processor's, while
 * lanes grow, are cut and overwritten. Weights have the rounding of f16 there. So a
 * threshold may fall between two numbers that are nearly equal: these are counted. Other cuts
 * of the same tokens have the same bits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "kv/attend.h"
#include "kv/internal.h"
#include "kv/marks_internal.h"
#include "gpu_rig.h"
#include "near.h"
#include "status.h"
#include "testing.h"

enum { N_HEAD = 2, N_GROUP = 3, DIM = 128, MOST = 400, N_MARK = 9, MOST_TOK = 48 };

TEST_GROUP(NULL, free_gpu);

/* ---- a sequence and its notes ---- */

/* Marks of a lane: what each word writes to. */
enum { SUM, SEEN, MOST_OF, LAST, TIME, GAPS, LOW = 7 };

struct rig {
    struct kv_cache *cache;
    struct kv_seq *seq;
    int32_t n; /* tokens so far */
};

static void rig_open(struct rig *r, struct pi_device *d, enum kv_type type, int32_t page_len)
{
    struct kv_geometry g = {.n_layer = 1,
                            .n_head = N_HEAD,
                            .dim_k = DIM,
                            .dim_v = DIM,
                            .page_len = page_len,
                            .type_k = type,
                            .type_v = type,
                            .device = d};
    *r = (struct rig){.n = 0};
    check(kv_cache_create(&g, 16 << 20, &r->cache, NULL), NULL);
    kv_cache_set_marks(r->cache, N_MARK, true);
    kv_cache_note_marks(r->cache);
    check(kv_seq_create(r->cache, &r->seq, NULL), NULL);
}

static void rig_close(struct rig *r)
{
    kv_seq_free(r->seq);
    kv_cache_free(r->cache);
}

/* The words of a lane's notes, in three calls' worth. */
static int32_t notes_of(const struct rig *r, int32_t h, int32_t which, struct kv_note *out)
{
    const struct kv_note all[] = {
        {.word = KV_NOTE_SUM, .group = KV_GROUP_MEAN},
        {.word = KV_NOTE_SEEN, .group = KV_GROUP_MEAN},
        {.word = KV_NOTE_MOST, .group = KV_GROUP_MAX},
        {.word = KV_NOTE_LAST, .group = KV_GROUP_MEAN},
        {.word = KV_NOTE_TIME, .group = KV_GROUP_SUM, .threshold = 0.01f, .from = 9},
        {.word = KV_NOTE_GAPS, .group = KV_GROUP_MAX, .threshold = 0.005f},
        {.word = KV_NOTE_LOW, .group = KV_GROUP_MEAN, .window = 40},
    };
    static const int32_t mark[] = {SUM, SEEN, MOST_OF, LAST, TIME, GAPS, LOW};
    int32_t n = 0;
    for (int32_t i = which; i < (int32_t)PI_LEN(all); i += 3) {
        out[n] = all[i];
        out[n].newest = -1;
        out[n].to = kv_lane_marks_place(r->seq, 0, h, mark[i]);
        out[n++].stride =
            (size_t)(kv_lane_marks_place(r->seq, 0, h, 1) - kv_lane_marks_place(r->seq, 0, h, 0));
    }
    return n;
}

static void fill(float *x, size_t n, uint64_t seed)
{
    uint64_t rng = seed;
    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(&rng);
}

/* Row t of something that belongs to the token at a position, the same however it comes. */
static void fill_rows(float *x, int32_t n, size_t row, int32_t pos, uint64_t salt)
{
    for (int32_t t = 0; t < n; t++)
        fill(x + (size_t)t * row, row, ((uint64_t)(pos + t) << 20) + salt);
}

/* The next n tokens: their entries, then all notes of their weights; out of NORM [MOST] for the
   last. */
static void step(struct rig *r, int32_t n, float norm[N_HEAD][MOST], bool plain,
                 float log_scale[N_HEAD])
{
    static float k[MOST_TOK * DIM], q[MOST_TOK * N_GROUP * DIM];
    static float rows[MOST_TOK * N_GROUP * (MOST + 64)], max[MOST_TOK * N_GROUP],
        sum[MOST_TOK * N_GROUP];
    size_t size = kv_attend_scratch_bytes(&r->cache->g, MOST_TOK * N_GROUP);
    void *scratch = test_malloc(size);
    check(kv_seq_reserve(r->seq, n, NULL), NULL);
    for (int32_t h = 0; h < N_HEAD; h++) {
        fill_rows(k, n, DIM, r->n, (uint64_t)h + 1);
        kv_seq_append(r->seq, 0, h, r->n, n, k, DIM, k, DIM);
    }
    for (int32_t h = 0; h < N_HEAD; h++) {
        struct kv_attend_tap tap = {
            .weight = rows, .row_stride = MOST + 64, .max = max, .sum = sum};
        struct kv_note note[4] = {0};
        fill_rows(q, n, N_GROUP * DIM, r->n, (uint64_t)h + 77);
        struct kv_attend_job job = {.seq = r->seq,
                                    .head = h,
                                    .n_tok = n,
                                    .n_group = N_GROUP,
                                    .pos0 = r->n,
                                    .q = q,
                                    .q_stride = N_GROUP * DIM,
                                    .scale = 0.6f,
                                    .tap = &tap,
                                    .notes = note,
                                    .notes_only = true};
        for (int32_t i = 0; i < 3; i++) {
            job.n_note = notes_of(r, h, i, note);
            kv_attend(&job, scratch);
        }
        job.n_note = 1;
        note[0] = (struct kv_note){.word = KV_NOTE_NORM,
                                   .group = KV_GROUP_MEAN,
                                   .norm = kv_lane_norms_place(r->seq, 0, h),
                                   .to = norm[h],
                                   .stride = MOST,
                                   .newest = plain ? 3 : -1,
                                   .log_scale = plain ? &log_scale[h] : NULL};
        kv_attend(&job, scratch);
    }
    r->n += n;
    test_free(scratch);
}

/* ---- comparisons ---- */

struct differences {
    int32_t n, n_tie; /* numbers that thresholds decide, and those that differ */
};

static void compare_lane(const struct rig *got, const struct rig *want, int32_t h, float tolerance,
                         struct differences *d)
{
    int32_t n = kv_lane_len(want->seq, 0, h);
    assert_int_equal(kv_lane_len(got->seq, 0, h), n);
    for (int32_t m = 0; m < N_MARK; m++) {
        const float *a = kv_lane_read_marks(got->seq, 0, h, m);
        const float *b = kv_lane_read_marks(want->seq, 0, h, m);
        for (int32_t i = 0; i < n; i++) {
            if (m >= TIME) {
                d->n++;
                d->n_tie += memcmp(&a[i], &b[i], sizeof(*a)) != 0;
            } else if (!(fabsf(a[i] - b[i]) <= tolerance * fabsf(b[i]) + 1e-6f)) {
                fail_msg("mark %d of entry %d: %g instead of %g", m, i, (double)a[i], (double)b[i]);
            }
        }
    }
    const uint16_t *x = kv_lane_norms(got->seq, 0, h), *y = kv_lane_norms(want->seq, 0, h);
    for (int32_t i = 0; i < n; i++)
        if (x[i] != y[i] && x[i] + 1 != y[i] && x[i] != y[i] + 1)
            fail_msg("norm %d: %04x instead of %04x", i, x[i], y[i]);
}

static void compare(const struct rig *got, const struct rig *want, float tolerance,
                    struct differences *d)
{
    for (int32_t h = 0; h < N_HEAD; h++)
        compare_lane(got, want, h, tolerance, d);
}

static void cut(struct rig *r, uint64_t seed, int32_t one_of)
{
    int32_t slots[MOST];
    for (int32_t h = 0; h < N_HEAD; h++) {
        uint64_t rng = seed + (uint64_t)h;
        int32_t n = 0;
        for (int32_t i = 0; i < kv_lane_len(r->seq, 0, h); i++)
            if (rng_next(&rng) % (uint64_t)one_of != 0)
                slots[n++] = i;
        check(kv_seq_compact(r->seq, 0, h, slots, n, NULL), NULL);
    }
}

/* tolerance: of the weights; the processor rounds queries to int8 where keys are q8_0. */
static void run_case(enum kv_type type, int32_t page_len, float tolerance)
{
    static float a[N_HEAD][MOST], b[N_HEAD][MOST];
    float x[N_HEAD] = {0}, y[N_HEAD] = {0};
    struct rig got, want;
    struct differences d = {0};
    rig_open(&got, gpu(), type, page_len);
    rig_open(&want, &pi_device_cpu, type, page_len);
    struct rig *both[] = {&got, &want};
    for (int32_t round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++) {
            step(both[i], 40, i == 0 ? a : b, false, i == 0 ? x : y);
            step(both[i], 1, i == 0 ? a : b, round == 1, i == 0 ? x : y);
        }
        for (int32_t h = 0; h < N_HEAD; h++)
            for (int32_t j = 0; j < kv_lane_len(want.seq, 0, h); j++) {
                float scale = round == 1 ? expf(x[h] - y[h]) : 1.0f;
                if (!(fabsf(a[h][j] * scale - b[h][j]) <= 2.0f * tolerance * b[h][j] + 1e-4f) &&
                    a[h][j] != b[h][j])
                    fail_msg("contribution %d: %g instead of %g", j, (double)a[h][j],
                             (double)b[h][j]);
            }
        compare(&got, &want, tolerance, &d);
        for (int i = 0; i < 2; i++) {
            cut(both[i], 5 + (uint64_t)round, round == 1 ? 2 : 9);
            if (round == 2) /* the host writes, and the next entry takes that along */
                kv_lane_marks(both[i]->seq, 0, 1, SUM)[4] = 3.0f;
            for (int32_t h = 0; h < N_HEAD; h++)
                kv_seq_set_victim(both[i]->seq, 0, h, 7);
            step(both[i], 1, i == 0 ? a : b, false, i == 0 ? x : y);
        }
        compare(&got, &want, tolerance, &d);
    }
    struct kv_seq *fork;
    check(kv_seq_fork(got.seq, &fork, NULL), NULL);
    assert_memory_equal(kv_lane_read_marks(fork, 0, 0, SUM), kv_lane_read_marks(got.seq, 0, 0, SUM),
                        (size_t)kv_lane_len(fork, 0, 0) * sizeof(float));
    kv_seq_free(fork);
    printf("%d of %d numbers behind thresholds differ\n", d.n_tie, d.n);
    assert_true(d.n_tie * 50 <= d.n);
    rig_close(&got);
    rig_close(&want);
}

/* A kernel for frequent forms, the one for all, and pages of another length. */
TEST(notes_are_those_of_the_processor)
{
    run_case(KV_TYPE_F16, 64, 4e-3f);
}

TEST(notes_of_other_forms_are_those_of_the_processor)
{
    run_case(KV_TYPE_Q8_0, 64, 3e-2f);
    run_case(KV_TYPE_F32, 16, 4e-3f);
}

TEST(cuts_of_tokens_change_no_bit_of_notes)
{
    static float a[N_HEAD][MOST];
    float x[N_HEAD];
    struct rig whole, parts;
    rig_open(&whole, gpu(), KV_TYPE_F16, 64);
    rig_open(&parts, gpu(), KV_TYPE_F16, 64);
    step(&whole, 40, a, false, x);
    step(&whole, 33, a, false, x);
    static const int32_t cuts[] = {1, 30, 2, 20, 20};
    for (size_t i = 0; i < PI_LEN(cuts); i++)
        step(&parts, cuts[i], a, false, x);
    for (int32_t h = 0; h < N_HEAD; h++)
        for (int32_t m = 0; m < N_MARK; m++)
            assert_memory_equal(kv_lane_read_marks(whole.seq, 0, h, m),
                                kv_lane_read_marks(parts.seq, 0, h, m),
                                (size_t)whole.n * sizeof(float));
    rig_close(&whole);
    rig_close(&parts);
}

/* Rows for the host, of calls that are not for notes alone. */
TEST(rows_are_those_of_the_processor)
{
    static float q[N_GROUP * DIM], w[2][N_GROUP * (MOST + 64)], x[2][N_GROUP * (MOST + 64)];
    static float norm[N_HEAD][MOST];
    float scale[N_HEAD], max[2][N_GROUP], sum[2][N_GROUP];
    void *scratch = NULL;
    fill(q, PI_LEN(q), 8);
    for (int i = 0; i < 2; i++) {
        struct rig r;
        rig_open(&r, i == 0 ? gpu() : &pi_device_cpu, KV_TYPE_F16, 64);
        step(&r, 48, norm, false, scale);
        step(&r, 48, norm, false, scale);
        scratch = test_malloc(kv_attend_scratch_bytes(&r.cache->g, N_GROUP));
        struct kv_attend_tap tap = {
            .weight = w[i], .logits = x[i], .row_stride = MOST + 64, .max = max[i], .sum = sum[i]};
        struct kv_attend_job job = {.seq = r.seq,
                                    .head = 1,
                                    .n_tok = 1,
                                    .n_group = N_GROUP,
                                    .pos0 = 90,
                                    .q = q,
                                    .q_stride = N_GROUP * DIM,
                                    .scale = 0.6f,
                                    .tap = &tap};
        kv_attend(&job, scratch);
        test_free(scratch);
        rig_close(&r);
    }
    for (int32_t g = 0; g < N_GROUP; g++) {
        near(max[0][g] + logf(sum[0][g]), max[1][g] + logf(sum[1][g]), 2e-3);
        for (int32_t i = 0; i < 96; i++) {
            size_t at = (size_t)g * (MOST + 64) + (size_t)i;
            near(w[0][at], w[1][at], 4e-3 * (double)w[1][at] + 1e-6);
            if (x[1][at] != x[0][at])
                near(x[0][at], x[1][at], 3e-3);
        }
    }
}
