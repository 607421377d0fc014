/*
 * Attention and stored entries of devices of GPU kind, on the emulation. Attention over every
 * storage type, page length and layout is compared with f64, and its kernels with each other bit by
 * bit. It rounds queries, keys, values and weights to f16, by 2^-11 at most each.
 */
#include <math.h>
#include <string.h>

#include "device/device.h"
#include "gpu_count.h"
#include "gpu_rig.h"
#include "kv/attend.h"
#include "kv/internal.h"
#include "kv/kv.h"
#include "kv/lane_internal.h"
#include "near.h"
#include "status.h"
#include "tensor/rope.h"

#define ATTEND_BOUND 2e-3

TEST_GROUP(NULL, free_gpu);

/* ---- launches ---- */

/* The emulation's are counted. */
static void count_launches(void)
{
    if (gpu_is_own())
        gpu_count(emulated_card());
}

/* Of attend_part, attend_many, attend_copy, attend_wide and attend_tall. */
static int32_t n_general(void)
{
    return gpu_launches_of(GPU_KERNEL_attend_part_4, GPU_KERNEL_attend_part_16);
}
static int32_t n_many(void)
{
    return gpu_launches_of(GPU_KERNEL_attend_many_64_f16, GPU_KERNEL_attend_many_128_codes_1);
}
static int32_t n_copy(void)
{
    return gpu_launches[GPU_KERNEL_attend_copy];
}
static int32_t n_wide(void)
{
    return gpu_launches_of(GPU_KERNEL_attend_wide_128, GPU_KERNEL_attend_wide_512);
}
static int32_t n_tall(void)
{
    return gpu_launches_of(GPU_KERNEL_attend_tall_32, GPU_KERNEL_attend_tall_64);
}

/* ---- a lane ---- */

enum { MOST_LEN = 150, DIM = 64, MOST_DIM = 576, N_GROUP = 3, ATTEND_TOK = 45 };

/* A lane with entries of a type, on a device. */
struct rig {
    struct kv_cache *cache;
    struct kv_seq *seq;
    int32_t dim, dim_v;
    float q[ATTEND_TOK * N_GROUP * MOST_DIM];
    float k[MOST_LEN * MOST_DIM], v[MOST_LEN * MOST_DIM];
    double k_read[MOST_LEN * MOST_DIM], v_read[MOST_LEN * MOST_DIM];
};

/* A lane's form. */
struct form {
    enum kv_type k, v;
    int32_t page_len, dim;
    bool beside;           /* keys lie side by side */
    int32_t dim_v, v_in_k; /* of other values than of the keys' size; of those that are in keys */
};

static void rig_make(struct rig *r, struct pi_device *d, const struct form *form)
{
    const int32_t dim = form->dim, dim_v = form->dim_v > 0 ? form->dim_v : dim;
    const struct kv_geometry g = {.n_layer = 1,
                                  .n_head = 1,
                                  .dim_k = dim,
                                  .dim_v = dim_v,
                                  .v_in_k = form->v_in_k,
                                  .page_len = form->page_len,
                                  .type_k = form->k,
                                  .type_v = form->v,
                                  .index = form->beside ? 0 : KV_INDEX_ROWS,
                                  .device = d};
    uint64_t rng = 3;
    float row[MOST_DIM];
    r->dim = dim;
    r->dim_v = dim_v;
    check(kv_cache_create(&g, 1 << 20, &r->cache, &err), &err);
    check(kv_seq_create(r->cache, &r->seq, &err), &err);
    check(kv_seq_reserve(r->seq, MOST_LEN, &err), &err);
    for (int32_t i = 0; i < ATTEND_TOK * N_GROUP * dim; i++)
        r->q[i] = 2 * rng_float(&rng);
    for (int32_t i = 0; i < MOST_LEN * dim; i++)
        r->k[i] = rng_float(&rng);
    for (int32_t i = 0; i < MOST_LEN * dim_v; i++)
        r->v[i] = rng_float(&rng);
    for (int32_t at = 0, n; at < MOST_LEN; at += n) { /* in stretches */
        n = (int32_t)pi_min(37, MOST_LEN - at);
        kv_seq_append(r->seq, 0, 0, at, n, r->k + at * dim, dim, r->v + at * dim_v, dim_v);
    }
    for (int32_t s = 0; s < MOST_LEN; s++) {
        kv_lane_key(r->seq, 0, 0, s, row);
        for (int32_t i = 0; i < dim; i++)
            r->k_read[s * dim + i] = row[i];
        kv_lane_value(r->seq, 0, 0, s, row);
        for (int32_t i = 0; i < dim_v; i++)
            r->v_read[s * dim_v + i] = row[i];
    }
}

static void rig_open(struct rig *r, struct pi_device *d, enum kv_type k, enum kv_type v,
                     int32_t page_len)
{
    const struct form form = {.k = k, .v = v, .page_len = page_len, .dim = DIM};
    rig_make(r, d, &form);
}

static void rig_close(struct rig *r)
{
    kv_seq_free(r->seq);
    kv_cache_free(r->cache);
}

static struct kv_attend_job job_of(const struct rig *r, int32_t t, int32_t n_tok, float *out)
{
    return (struct kv_attend_job){.seq = r->seq,
                                  .n_tok = n_tok,
                                  .n_group = N_GROUP,
                                  .pos0 = MOST_LEN - ATTEND_TOK + t,
                                  .q = r->q + t * N_GROUP * r->dim,
                                  .q_stride = N_GROUP * r->dim,
                                  .scale = 0.125f,
                                  .out = out,
                                  .out_stride = N_GROUP * r->dim_v};
}

static void run_job(const struct rig *r, const struct kv_attend_job *job)
{
    void *scratch = pi_mem_alloc(
        PI_MEM_SCRATCH, kv_attend_scratch_bytes(kv_cache_geometry(r->cache), ATTEND_TOK * N_GROUP));
    kv_attend(job, scratch);
    pi_mem_free(scratch);
}

/* The exact output of a query, of the entries as they are stored. */
static void attend_exactly(const struct rig *r, const struct kv_attend_job *job, int32_t t,
                           int32_t g, double *out)
{
    const int32_t dim = r->dim, dim_v = r->dim_v;
    const float *q = job->q + (size_t)t * job->q_stride + (size_t)g * dim;
    double x[MOST_LEN], most = job->sink != NULL ? job->sink[g] : -INFINITY, sum;
    int32_t n = job->pos0 + t + 1;
    for (int32_t s = 0; s < n; s++) {
        x[s] = 0;
        for (int32_t i = 0; i < dim; i++)
            x[s] += q[i] * r->k_read[s * dim + i];
        x[s] *= job->scale;
        x[s] = job->cap > 0 ? job->cap * tanh(x[s] / job->cap) : x[s];
        most = fmax(most, x[s]);
    }
    sum = job->sink != NULL ? exp(job->sink[g] - most) : 0;
    memset(out, 0, (size_t)dim_v * sizeof(*out));
    for (int32_t s = 0; s < n; s++) {
        double p = exp(x[s] - most);
        sum += p;
        for (int32_t i = 0; i < dim_v; i++)
            out[i] += p * r->v_read[s * dim_v + i];
    }
    for (int32_t i = 0; i < dim_v; i++)
        out[i] /= sum;
}

enum { OUT_LEN = ATTEND_TOK * N_GROUP * MOST_DIM };

/* Whether attend_few.cuh multiplies codes of the type in an order of their own. */
static bool has_order(enum kv_type type)
{
    return type == KV_TYPE_Q8_0 || type == KV_TYPE_TURBO3 || type == KV_TYPE_TURBO2;
}

/* Whether a form has no kernel of its size. */
static bool is_wide(const struct form *form)
{
    return form->dim_v > 0 || !(form->dim == 64 || form->dim == 128 || form->dim == 256);
}

/* Whether prompts and lists read copies of its pages, of a size that has kernels. */
static bool is_copied(const struct form *form)
{
    return form->v_in_k == 0 && form->dim <= 256 && form->dim_v <= 256;
}

/* All tokens at a time: near exact; one by one, and over a list of all entries: the same bits. */
static void check_form(const struct form *form, float cap, const float *sink)
{
    static struct rig r;
    static float all[OUT_LEN], one[OUT_LEN];
    static double ref[OUT_LEN];
    int32_t slots[MOST_LEN];
    rig_make(&r, gpu(), form);
    count_launches();
    const size_t n = (size_t)ATTEND_TOK * N_GROUP * (size_t)r.dim_v;
    struct kv_attend_job job = job_of(&r, 0, ATTEND_TOK, all);
    job.cap = cap;
    job.sink = sink;
    run_job(&r, &job);
    for (int32_t t = 0; t < ATTEND_TOK; t++)
        for (int32_t g = 0; g < N_GROUP; g++)
            attend_exactly(&r, &job, t, g, ref + (t * N_GROUP + g) * r.dim_v);
    double error = relative_error(all, ref, n);
    if (!(error < ATTEND_BOUND))
        fail_msg("%s, %s: error %.2e", kv_type_name(form->k), kv_type_name(form->v), error);
    const size_t row = (size_t)N_GROUP * (size_t)r.dim_v;
    for (int32_t t = 0; t < ATTEND_TOK; t += TEST_STRIDE) {
        struct kv_attend_job single = job_of(&r, t, 1, one);
        single.cap = cap;
        single.sink = sink;
        run_job(&r, &single);
        assert_memory_equal(one, all + (size_t)t * row, row * sizeof(*all));
    }
    enum { FIRST = 7, SOME = 5 }; /* 15 rows */
    static float q[SOME * (N_GROUP * MOST_DIM + 1)];
    struct kv_attend_job some = job_of(&r, FIRST, SOME, one);
    some.cap = cap;
    some.sink = sink;
    const size_t q_row = (size_t)N_GROUP * (size_t)r.dim;
    for (int32_t way = 0; way < 2; way++) {
        run_job(&r, &some);
        assert_memory_equal(one, all + FIRST * row, SOME * row * sizeof(*all));
        /* where queries lie at odd places attend_decode.cuh takes frequent forms, too */
        some.q_stride = q_row + 1;
        for (int32_t t = 0; t < SOME; t++)
            memcpy(q + t * (q_row + 1), r.q + (FIRST + t) * q_row, q_row * sizeof(*q));
        some.q = q;
    }
    for (int32_t n_tok = 7; n_tok <= 14 && !is_copied(form); n_tok += 7) { /* 21 rows, and 42 */
        struct kv_attend_job more = job_of(&r, FIRST, n_tok, one);
        more.cap = cap;
        more.sink = sink;
        run_job(&r, &more);
        assert_memory_equal(one, all + FIRST * row, (size_t)n_tok * row * sizeof(*all));
    }
    assert_int_equal(n_general(), 0);
    assert_true(!gpu_is_own() || (n_wide() > 0) == is_wide(form));
    assert_int_equal(n_many(), gpu_is_own() && is_copied(form));
    assert_int_equal(n_tall(), gpu_is_own() && !is_copied(form) ? 3 : 0);
    for (int32_t i = 0; i < MOST_LEN; i++)
        slots[i] = i;
    job.slots = slots;
    job.n_slot = MOST_LEN;
    job.out = one;
    count_launches();
    run_job(&r, &job);
    assert_int_equal(n_general(), 0);
    assert_true(!gpu_is_own() || (n_tall() > 0) == !is_copied(form));
    /* else products of codes go in another order */
    if (form->page_len < 64 || !form->beside || !has_order(form->k) ||
        !(has_order(form->v) || form->v == KV_TYPE_F16))
        assert_memory_equal(one, all, n * sizeof(*all));
    assert_true(relative_error(one, ref, n) < ATTEND_BOUND);
    rig_close(&r);
}

static void check_attention(enum kv_type k, enum kv_type v, int32_t page_len, float cap,
                            const float *sink)
{
    const struct form form = {.k = k, .v = v, .page_len = page_len, .dim = DIM};
    check_form(&form, cap, sink);
}

#define HALF (TEST_STRIDE > 1) /* of the forms, or a third: each size and type among them */

TEST(attention_over_every_storage_type)
{
    for (int32_t t = 0; t < KV_N_TYPE; t++)
        check_attention((enum kv_type)t, (enum kv_type)((t * 3 + 1) % KV_N_TYPE), 64, 0, NULL);
}

/* The types and sizes of attend_few.cuh and attend_many.cuh, which take one token and all. A list
   of all entries goes through the same kernels, as a copy of f16. */
TEST(attention_of_frequent_forms_has_the_bits_of_its_copies)
{
    const enum kv_type frequent[] = {KV_TYPE_F16, KV_TYPE_Q8_0, KV_TYPE_TURBO3, KV_TYPE_TURBO2};
    const float sink[N_GROUP] = {0.5f, -1.0f, 3.0f};
    const struct form small[] = {{KV_TYPE_F16, KV_TYPE_F16, 64, 64, true, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 64, 128, false, 0, 0},
                                 {KV_TYPE_Q8_0, KV_TYPE_Q8_0, 64, 64, true, 0, 0},
                                 {KV_TYPE_TURBO3, KV_TYPE_TURBO2, 64, 64, true, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_TURBO3, 64, 64, false, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 64, 256, true, 0, 0},
                                 {KV_TYPE_Q8_0, KV_TYPE_Q8_0, 64, 256, true, 0, 0},
                                 {KV_TYPE_TURBO3, KV_TYPE_TURBO3, 64, 256, true, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 64, 256, false, 0, 0}};
    for (size_t i = 0; i < PI_LEN(small); i++)
        check_form(&small[i], 0, NULL);
    for (size_t k = 0; k < PI_LEN(frequent); k++)
        for (size_t v = HALF ? k % 2 : 0; v < PI_LEN(frequent); v += HALF ? 2 : 1) {
            const struct form form = {frequent[k], frequent[v], 64, 128, true, 0, 0};
            check_form(&form, k == v ? 2.0f : 0, k == v ? sink : NULL);
        }
}

TEST(attention_with_small_pages_caps_and_sinks)
{
    const float sink[N_GROUP] = {0.5f, -1.0f, 3.0f};
    check_attention(KV_TYPE_F16, KV_TYPE_F16, 16, 0, NULL);
    check_attention(KV_TYPE_Q8_0, KV_TYPE_TURBO3, 32, 2.0f, sink);
}

/* Forms that attend_decode.cuh has kernels for. */
TEST(attention_of_any_other_form_has_the_bits_of_its_copies)
{
    const float sink[N_GROUP] = {0.5f, -1.0f, 3.0f};
    for (int32_t t = 0; t < KV_N_TYPE; t++) {
        const enum kv_type k = (enum kv_type)t, v = (enum kv_type)((t * 5 + 3) % KV_N_TYPE);
        const struct form small = {k, v, 16, 64, t % 2 == 0, 0, 0},
                          other = {v, k, t % 2 == 0 ? 32 : 64, 128, t % 4 >= 2, 0, 0};
        if (!HALF || t % 4 < 2)
            check_form(&small, 2.0f, sink);
        if (!HALF || t % 4 >= 2)
            check_form(&other, 0, NULL);
    }
    const struct form wide = {KV_TYPE_Q4_0, KV_TYPE_BF16, 16, 256, true, 0, 0};
    check_form(&wide, 0, NULL);
}

/* Heads of other sizes, and values that are parts of keys: attend_wide.cuh, with one page of values
   in shared memory or two. Prompts and lists read copies with zeros behind them. Copies of lists of
   larger heads, or of values in keys, are attend_wide's. */
TEST(attention_of_uncommon_sizes_has_the_bits_of_other_kernels)
{
    const float sink[N_GROUP] = {0.5f, -1.0f, 3.0f};
    const struct form forms[] = {{KV_TYPE_F16, KV_TYPE_F16, 64, 96, true, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 32, 80, false, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 16, 48, true, 0, 0},
                                 {KV_TYPE_Q8_0, KV_TYPE_Q8_0, 64, 96, true, 0, 0},
                                 {KV_TYPE_Q8_0, KV_TYPE_TURBO4, 16, 96, false, 0, 0},
                                 {KV_TYPE_TURBO3, KV_TYPE_TURBO2, 32, 80, true, 0, 0},
                                 {KV_TYPE_Q4_0, KV_TYPE_TURBO3, 64, 96, true, 0, 0},
                                 {KV_TYPE_BF16, KV_TYPE_F32, 32, 72, true, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_BF16, 64, 72, true, 40, 0},
                                 {KV_TYPE_F32, KV_TYPE_F16, 64, 40, false, 24, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 64, 192, true, 128, 0},
                                 {KV_TYPE_F16, KV_TYPE_Q8_0, 16, 64, true, 160, 0},
                                 {KV_TYPE_F16, KV_TYPE_Q8_0, 64, 288, true, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 64, 96, false, 64, 32},
                                 {KV_TYPE_Q8_0, KV_TYPE_Q8_0, 16, 96, false, 64, 32},
                                 {KV_TYPE_F16, KV_TYPE_F16, 32, 576, false, 512, 64},
                                 {KV_TYPE_Q8_0, KV_TYPE_F16, 64, 288, true, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 32, 512, true, 0, 0}};
    for (size_t i = HALF; i < PI_LEN(forms); i += HALF ? 2 : 1)
        check_form(&forms[i], i % 4 == 1 ? 2.0f : 0, i % 2 == 1 ? sink : NULL);
}

/* Values that are parts of keys of each type, and values of more than 256 dimensions: attend_wide
   takes one token, attend_tall all. Keys lie entry by entry or side by side. */
TEST(attention_of_many_rows_has_the_bits_of_few)
{
    const float sink[N_GROUP] = {0.5f, -1.0f, 3.0f};
    const struct form apart[] = {{KV_TYPE_BF16, KV_TYPE_F32, 16, 40, true, 264, 0},
                                 {KV_TYPE_F32, KV_TYPE_TURBO2, 64, 24, true, 320, 0},
                                 {KV_TYPE_F16, KV_TYPE_Q4_0, 32, 32, true, 288, 0},
                                 {KV_TYPE_TURBO3, KV_TYPE_BF16, 64, 64, true, 264, 0},
                                 {KV_TYPE_Q8_0, KV_TYPE_TURBO4, 16, 32, false, 320, 0}};
    for (int32_t t = HALF; t < KV_N_TYPE; t += HALF ? 2 : 1) {
        const enum kv_type type = (enum kv_type)t;
        const struct form form = {type, type, 16 << t % 3, 192, false, 128, 64};
        check_form(&form, t % 3 == 0 ? 2.0f : 0, t % 2 == 0 ? sink : NULL);
    }
    for (size_t i = 0; i < PI_LEN(apart); i += HALF ? 2 : 1)
        check_form(&apart[i], i == 0 ? 2.0f : 0, i == 2 ? sink : NULL);
}

/* Cards with less shared memory take fewer rows a block, and read queries where they are. Keys and
   values that lie apart then share a room. Calls of 15 rows take attend_wide. Of 500 dimensions all
   take attend_part. */
TEST(attention_of_many_rows_has_the_same_bits_on_any_card)
{
    const struct form forms[] = {{KV_TYPE_F16, KV_TYPE_F16, 64, 576, false, 512, 64},
                                 {KV_TYPE_Q8_0, KV_TYPE_Q8_0, 16, 576, false, 512, 64},
                                 {KV_TYPE_F16, KV_TYPE_Q8_0, 32, 512, true, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 16, 500, false, 0, 0}};
    const struct {
        uint32_t smem;
        int32_t n_tok;          /* of a call */
        enum gpu_kernel kernel; /* of the first two forms */
    } cards[] = {{99 << 10, 5, GPU_KERNEL_attend_wide_512},
                 {99 << 10, ATTEND_TOK, GPU_KERNEL_attend_tall_32},
                 {163 << 10, ATTEND_TOK, GPU_KERNEL_attend_tall_64},
                 {227 << 10, ATTEND_TOK, GPU_KERNEL_attend_tall_64}};
    static struct rig r;
    static float out[2][OUT_LEN];
    if (!gpu_is_own())
        test_skip("the emulation alone has other cards");
    struct gpu_card *card = emulated_other();
    const uint32_t smem = card->smem_all;
    for (size_t f = 0; f < PI_LEN(forms); f += HALF ? 2 : 1)
        for (size_t i = 0; i < PI_LEN(cards); i++) {
            card->smem_all = cards[i].smem;
            struct pi_device *other = gpu_device_make(card);
            rig_make(&r, other, &forms[f]);
            gpu_count(card);
            const int32_t n_tok = cards[i].n_tok;
            for (int32_t t = 0; t < ATTEND_TOK; t += n_tok) {
                const struct kv_attend_job job =
                    job_of(&r, t, n_tok, out[i > 0] + t * N_GROUP * r.dim_v);
                run_job(&r, &job);
            }
            assert_true(f >= 2 || gpu_launches[cards[i].kernel] == ATTEND_TOK / n_tok);
            assert_int_equal(n_tall(), i > 0 && f < 3);
            assert_int_equal(n_general(), f < 3 ? 0 : ATTEND_TOK / n_tok);
            rig_close(&r);
            gpu_device_free(other);
            assert_memory_equal(out[i > 0], out[0],
                                (size_t)ATTEND_TOK * N_GROUP * (size_t)r.dim_v * sizeof(float));
        }
    card->smem_all = smem;
}

/* A prompt whose pages have no room for a copy takes the kernel for few rows. */
TEST(a_prompt_without_memory_for_copies_has_the_same_bits)
{
    static struct rig r[2];
    static float out[2][OUT_LEN];
    const struct form form = {KV_TYPE_Q4_0, KV_TYPE_Q4_0, 64, DIM, true, 0, 0};
    if (!gpu_is_own())
        test_skip("the emulation alone says when its memory ends");
    struct pi_device *other = gpu_device_make(emulated_other());
    gpu_count(emulated_other());
    for (int32_t i = 0; i < 2; i++) {
        rig_make(&r[i], i == 0 ? gpu() : other, &form);
        emulated_limit(i == 0 ? (size_t)1 << 30 : emulated_given());
        const struct kv_attend_job job = job_of(&r[i], 0, ATTEND_TOK, out[i]);
        count_launches();
        run_job(&r[i], &job);
        assert_int_equal(n_copy(), 1 - i);
        assert_int_equal(n_general(), 0);
        emulated_limit((size_t)1 << 30);
        rig_close(&r[i]);
    }
    gpu_device_free(other);
    assert_memory_equal(out[0], out[1], (size_t)ATTEND_TOK * N_GROUP * DIM * sizeof(float));
}

/* ---- pages that are cut, turned, or count more than once ---- */

/* Changes of a lane. */
enum deed { IS_CUT, IS_TURNED, IS_FOLDED, HAS_GUESTS, HAS_WINDOW, N_DEED };

static void change(const struct rig *r, enum deed deed)
{
    struct kv_lane *lane = kv_lane_at(r->seq, 0, 0);
    if (deed == IS_CUT) { /* the page before slot 54 is not full */
        int32_t slots[MOST_LEN], n = 0;
        for (int32_t i = 0; i < MOST_LEN; i++)
            if (i < 10 || i >= 20)
                slots[n++] = i;
        kv_seq_shift(r->seq, 0, 0, 64, -3);
        check(kv_seq_compact(r->seq, 0, 0, slots, n, &err), &err);
        kv_seq_shift(r->seq, 0, 0, 54, 0);
    }
    if (deed == IS_TURNED) /* short pages that are one have two turns */
        kv_seq_shift(r->seq, 0, 0, lane->kind->page_len == 16 ? 16 : 64, -3);
    if (deed == IS_FOLDED)
        kv_lane_edit(lane)[1].n_folded = 2;
    if (deed == HAS_WINDOW)
        lane->window = 20; /* later rows of a prompt see none of the first chunk of pages */
}

/* A list of all entries of a lane that was changed goes through the fast kernels. Calls of all
   tokens and of one give the same bits. near: what they are near to. */
static void check_list(const struct rig *r, struct kv_attend_job job, const double *near)
{
    static float all[OUT_LEN], one[OUT_LEN];
    const int32_t dim = r->dim, dim_v = r->dim_v, len = kv_lane_len(r->seq, 0, 0);
    int32_t slots[MOST_LEN];
    for (int32_t i = 0; i < len; i++)
        slots[i] = i;
    job.slots = slots;
    job.n_slot = len;
    job.out = all;
    count_launches();
    run_job(r, &job);
    assert_int_equal(n_general(), 0);
    assert_true(relative_error(all, near, (size_t)job.n_tok * N_GROUP * (size_t)dim_v) <
                2 * ATTEND_BOUND);
    for (int32_t t = 0; t < job.n_tok; t += HALF ? 20 : 1) {
        struct kv_attend_job single = job;
        single.n_tok = 1;
        single.pos0 += t;
        single.q += t * N_GROUP * dim;
        single.out = one;
        run_job(r, &single);
        assert_memory_equal(one, all + t * N_GROUP * dim_v,
                            N_GROUP * (size_t)dim_v * sizeof(float));
    }
}

/* Calls of all tokens, of one, of two and of seven give the same bits, near the processor's output.
   Under sanitizers a change meets ones in one form, and twos in another. */
static void check_changed(const struct form *form, enum deed deed, bool ones, bool twos)
{
    static struct rig r[2], guests[2];
    enum { N_WAY = 4 };
    static float out[N_WAY][OUT_LEN];
    static double ref[OUT_LEN];
    const bool goes[N_WAY] = {true, ones, twos, !is_copied(form)};
    double freq[MOST_DIM / 2];
    const int32_t dim = form->dim, dim_v = form->dim_v > 0 ? form->dim_v : dim, n_pair = dim / 2,
                  n_tok_of[N_WAY] = {ATTEND_TOK, 1, 2, 7};
    const size_t n = (size_t)ATTEND_TOK * N_GROUP * (size_t)dim_v;
    for (int32_t i = 0; i < n_pair; i++)
        freq[i] = pow(10000, -(double)i / n_pair);
    const struct pi_rope rope = {.n_pair = n_pair, .freq = freq, .magnitude = 1};
    for (int32_t i = 0; i < 2; i++) {
        struct pi_device *d = i == 0 ? gpu() : &pi_device_cpu;
        rig_make(&r[i], d, form);
        change(&r[i], deed);
        if (deed == HAS_GUESTS) {
            check(kv_seq_create(r[i].cache, &guests[i].seq, &err), &err);
            check(kv_seq_reserve(guests[i].seq, MOST_LEN, &err), &err);
            kv_seq_append(guests[i].seq, 0, 0, 0, 100, r[i].v, dim, r[i].k, dim_v);
        }
        for (int32_t way = 0; way < (i == 0 ? N_WAY : 1); way++)
            for (int32_t t = 0, some = n_tok_of[way]; t < ATTEND_TOK && goes[way]; t += some) {
                int32_t n_tok = (int32_t)pi_min(some, ATTEND_TOK - t);
                struct kv_attend_job job = job_of(&r[i], t, n_tok, out[way] + t * N_GROUP * dim_v);
                job.rope = &rope;
                job.guests = deed == HAS_GUESTS ? guests[i].seq : NULL;
                run_job(&r[i], &job);
            }
        for (int32_t way = 1; way < N_WAY && i == 0; way++)
            if (goes[way])
                assert_memory_equal(out[way], out[0], n * sizeof(float));
        for (size_t j = 0; j < n && i == 0; j++)
            ref[j] = out[0][j];
        if (i == 0) {
            struct kv_attend_job job = job_of(&r[i], 0, ATTEND_TOK, NULL);
            job.rope = &rope;
            job.guests = deed == HAS_GUESTS ? guests[i].seq : NULL;
            check_list(&r[i], job, ref);
        }
        if (deed == HAS_GUESTS)
            kv_seq_free(guests[i].seq);
        rig_close(&r[i]);
    }
    double error = relative_error(out[0], ref, n);
    if (!(error < 2 * ATTEND_BOUND))
        fail_msg("%s, pages of %d, deed %d: error %.2e", kv_type_name(form->k), form->page_len,
                 (int)deed, error);
}

TEST(pages_that_were_changed_have_the_same_bits_however_they_are_read)
{
    const struct form forms[] = {{KV_TYPE_F16, KV_TYPE_F16, 16, DIM, true, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 64, DIM, true, 0, 0},
                                 {KV_TYPE_TURBO4, KV_TYPE_Q4_0, 32, DIM, true, 0, 0},
                                 {KV_TYPE_Q8_0, KV_TYPE_Q8_0, 64, DIM, true, 0, 0},
                                 {KV_TYPE_TURBO3, KV_TYPE_TURBO2, 64, DIM, true, 0, 0},
                                 {KV_TYPE_F16, KV_TYPE_F16, 16, 96, true, 0, 0},
                                 {KV_TYPE_Q8_0, KV_TYPE_Q8_0, 16, 96, false, 64, 32},
                                 {KV_TYPE_F16, KV_TYPE_Q4_0, 32, 32, true, 288, 0}};
    for (size_t i = 0; i < PI_LEN(forms); i++)
        for (size_t deed = 0; deed < N_DEED; deed++)
            if (!HALF || (i + deed) % 3 == 0)
                check_changed(&forms[i], (enum deed)deed, !HALF || (i / 3 + deed) % 2 == 0,
                              HALF ? (i / 3 + deed) % 2 == 1 : i < 6);
}

/* A tap shows what the processor's does, and leaves the output's bits alone. */
static void check_watched(const struct form *form)
{
    static struct rig r;
    static float out[OUT_LEN], watched[OUT_LEN], weight[ATTEND_TOK * N_GROUP * 160];
    float max[ATTEND_TOK * N_GROUP], sum[ATTEND_TOK * N_GROUP];
    struct kv_attend_tap tap = {.weight = weight, .row_stride = 160, .max = max, .sum = sum};
    rig_make(&r, gpu(), form);
    count_launches();
    struct kv_attend_job job = job_of(&r, 0, ATTEND_TOK, out);
    run_job(&r, &job);
    job.out = watched;
    job.tap = &tap;
    run_job(&r, &job);
    assert_memory_equal(out, watched, sizeof(out));
    for (int32_t i = 0; i < ATTEND_TOK * N_GROUP; i++) {
        double all = 0;
        for (int32_t s = 0; s < MOST_LEN; s++)
            all += weight[i * 160 + s];
        assert_true(fabs(all - 1) < 1e-4);
    }
    assert_true(!gpu_is_own() || (n_wide() > 0) == is_wide(form));
    rig_close(&r);
}

TEST(watched_attention_has_the_same_bits)
{
    const struct form common = {KV_TYPE_F16, KV_TYPE_F16, 64, DIM, false, 0, 0},
                      wide = {KV_TYPE_F16, KV_TYPE_Q8_0, 32, 96, true, 0, 0},
                      large = {KV_TYPE_Q8_0, KV_TYPE_F16, 64, 512, true, 0, 0};
    check_watched(&common);
    check_watched(&wide);
    check_watched(&large);
}

/* ---- entries ---- */

/* Types without a search are encoded to the same bytes as on the processor; the others to codes
   as good. */
TEST(entries_are_stored_as_on_the_processor)
{
    static struct rig a, b;
    for (int32_t t = 0; t < KV_N_TYPE; t++) {
        enum kv_type type = (enum kv_type)t;
        double off = 0, all = 0;
        rig_open(&a, &pi_device_cpu, type, type, 32);
        rig_open(&b, gpu(), type, type, 32);
        if (!kv_type_is_rotated(type)) {
            assert_memory_equal(a.k_read, b.k_read, sizeof(a.k_read));
            assert_memory_equal(a.v_read, b.v_read, sizeof(a.v_read));
        }
        for (size_t i = 0; i < PI_LEN(a.k_read); i++) {
            off += (a.k_read[i] - b.k_read[i]) * (a.k_read[i] - b.k_read[i]);
            all += a.k_read[i] * a.k_read[i];
        }
        if (!(off <= 1e-4 * all))
            fail_msg("%s: %.2e of the keys is stored differently", kv_type_name(type), off / all);
        rig_close(&a);
        rig_close(&b);
    }
}

/* Keys that were compacted are those that stayed. */
TEST(compaction_moves_entries_as_stored)
{
    static struct rig r;
    int32_t slots[MOST_LEN], n = 0;
    float row[DIM];
    for (int32_t t = 0; t < KV_N_TYPE; t++) {
        rig_open(&r, gpu(), (enum kv_type)t, KV_TYPE_TURBO3, 16);
        n = 0;
        for (int32_t s = 0; s < MOST_LEN; s += 1 + (s * 7 + t) % 3)
            slots[n++] = s;
        check(kv_seq_compact(r.seq, 0, 0, slots, n, &err), &err);
        for (int32_t i = 0; i < n; i++) {
            kv_lane_key(r.seq, 0, 0, i, row);
            for (int32_t j = 0; j < DIM; j++)
                assert_true(row[j] == (float)r.k_read[slots[i] * DIM + j]);
            kv_lane_value(r.seq, 0, 0, i, row);
            for (int32_t j = 0; j < DIM; j++)
                assert_true(row[j] == (float)r.v_read[slots[i] * DIM + j]);
        }
        rig_close(&r);
    }
}
