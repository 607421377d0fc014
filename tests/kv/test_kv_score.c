/*
 * test_kv_score.c - scores of a lane's entries. Every kind is compared with a reference in double
 * precision, and every processor level with scalar bit for bit. Cases: all storage types, deltas,
 * partial pages, few vectors and many.
 */
#include "attend_check.h"
#include "base/half.h"

enum { FIRST = 300, N_ENTRY = 187, P = 16, MOST_Q = 40 };

/* A vector turned back by delta positions, kept while the delta stays. */
struct turned {
    bool known;
    int32_t delta;
    double x[256];
};

struct world {
    struct fixture f;
    struct kv_geometry g;
    struct pi_rope rope;
    double freq[64];
    float *matrix; /* [index_dim][dim_k] */
    float *q;      /* [MOST_Q][dim_k] */
    float *key;    /* [N_ENTRY][dim_k] as stored */
    int32_t *page; /* [N_ENTRY] first slot of the entry's page */
    int32_t *delta;
    struct turned *turned; /* [MOST_Q] */
};

static void world_close(struct world *w)
{
    test_free(w->q);
    test_free(w->key);
    test_free(w->page);
    test_free(w->delta);
    test_free(w->turned);
    close_all(&w->f);
    test_free(w->matrix);
}

/* Entries at positions from FIRST on, of which the first 96 are read earlier, in two ways, and one
   is a key of zeros. The last page holds 11 entries. */
static void world_open(struct world *w, enum kv_type type, int32_t dim, uint32_t index)
{
    uint64_t rng = (uint64_t)dim * 7 + (uint64_t)type;
    *w = (struct world){
        .g = {1, 1, dim, 32, P, type, KV_TYPE_F16, index | KV_INDEX_ROWS, 0, {0}, {0}}};
    if ((index & KV_INDEX_PROJ) != 0)
        w->g.index_dim = dim / 2 - 3;
    w->rope = (struct pi_rope){.n_pair = dim / 2 - 2, .freq = w->freq, .magnitude = 1};
    for (int32_t i = 0; i < w->rope.n_pair; i++)
        w->freq[i] = pow(10000, -(double)i / w->rope.n_pair);
    cache_open(&w->f, &w->g, N_ENTRY);
    w->matrix = random_rows(&rng, (size_t)(w->g.index_dim * dim), 0.3f);
    kv_seq_free(w->f.seq);
    if ((index & KV_INDEX_PROJ) != 0)
        kv_cache_set_projection(w->f.cache, w->matrix);
    assert_int_equal(kv_seq_create(w->f.cache, &w->f.seq, NULL), PITH_OK);
    float *k = random_rows(&rng, (size_t)(N_ENTRY * dim), 1.5f);
    float *v = random_rows(&rng, (size_t)N_ENTRY * 32, 1.0f);
    memset(k + 5 * dim, 0, (size_t)dim * sizeof(*k));
    append(w->f.seq, FIRST, N_ENTRY, k, v);
    kv_seq_shift(w->f.seq, 0, 0, 96, -40);
    kv_seq_shift(w->f.seq, 0, 0, 32, -299);
    w->q = random_rows(&rng, (size_t)(MOST_Q * dim), 2.0f);
    w->key = k;
    w->page = test_calloc(N_ENTRY, sizeof(*w->page));
    w->delta = test_calloc(N_ENTRY, sizeof(*w->delta));
    w->turned = test_calloc(MOST_Q, sizeof(*w->turned));
    for (int32_t s = 0; s < N_ENTRY; s++)
        kv_lane_key(w->f.seq, 0, 0, s, w->key + s * dim);
    for (int32_t i = 0; i < kv_lane_runs(w->f.seq, 0, 0); i++) {
        struct kv_run run = kv_lane_run(w->f.seq, 0, 0, i);
        for (int32_t s = run.slot; s < run.slot + run.n; s++) {
            w->page[s] = run.slot;
            w->delta[s] = run.delta;
        }
    }
    test_free(v);
}

/* ---- the reference ---- */

/* Vector j turned back by delta positions. */
static const double *turned(const struct world *w, int32_t j, int32_t delta)
{
    int32_t n = w->rope.n_pair;
    struct turned *kept = &w->turned[j];
    double *out = kept->x;
    if (kept->known && kept->delta == delta)
        return out;
    kept->known = true;
    kept->delta = delta;
    for (int32_t d = 0; d < w->g.dim_k; d++)
        out[d] = (double)w->q[j * w->g.dim_k + d];
    for (int32_t i = 0; i < n; i++) {
        double c = cos(-delta * w->freq[i]), s = sin(-delta * w->freq[i]), a = out[i];
        out[i] = a * c - out[i + n] * s;
        out[i + n] = a * s + out[i + n] * c;
    }
    return out;
}

/* A score and how far a right result may be from it. */
struct bounded {
    double x;
    double error;
};

static struct bounded dot_of(const double *q, const float *k, const int32_t *dims, int32_t n)
{
    struct bounded b = {0, 0};
    for (int32_t i = 0; i < n; i++) {
        int32_t d = dims == NULL ? i : dims[i];
        b.x += q[d] * (double)k[d];
        b.error += fabs(q[d] * (double)k[d]);
    }
    b.error *= 1e-5; /* roundings of the sum and of the rotation */
    return b;
}

static double length_of(const float *k, int32_t n)
{
    double square = 0;
    for (int32_t d = 0; d < n; d++)
        square += (double)k[d] * (double)k[d];
    return sqrt(square);
}

/* Codes of q and of k / |k| are off by half a scale at most. */
static struct bounded unit8_of(const double *q, const float *k, int32_t n)
{
    double length = length_of(k, n), q_max = 0, q_sum = 0, u_max = 0, u_sum = 0;
    struct bounded b = dot_of(q, k, NULL, n);
    if (length == 0)
        return (struct bounded){0, 0};
    for (int32_t d = 0; d < n; d++) {
        double u = fabs((double)k[d]) / length;
        q_max = fmax(q_max, fabs(q[d]));
        q_sum += fabs(q[d]);
        u_max = fmax(u_max, u);
        u_sum += u;
    }
    double half_q = q_max / 254 * 1.001, half_u = u_max / 254 * 1.001;
    return (struct bounded){b.x / length,
                            half_u * q_sum + half_q * u_sum + n * half_q * half_u + 1e-4};
}

static struct bounded proj_of(const struct world *w, const double *q, const float *k)
{
    struct bounded b = {0, 0};
    int32_t dim = w->g.dim_k;
    for (int32_t r = 0; r < w->g.index_dim; r++) {
        double x = 0, y = 0;
        for (int32_t d = 0; d < dim; d++) {
            x += (double)w->matrix[r * dim + d] * q[d];
            y += (double)w->matrix[r * dim + d] * (double)k[d];
        }
        b.x += x * y;
        b.error += fabs(x) * (fabs(y) * 0x1p-11 + 1e-4);
    }
    return b;
}

/* Of the entries from slot first on, up to the page's end or slot n. */
static struct bounded bounds_of(const struct world *w, const double *q, int32_t first, int32_t n)
{
    struct bounded b = {0, 0};
    for (int32_t d = 0; d < w->g.dim_k; d++) {
        double most = -INFINITY;
        for (int32_t s = first; s < n && w->page[s] == first; s++)
            most = fmax(most, q[d] * (double)w->key[s * w->g.dim_k + d]);
        b.x += most;
        b.error += fabs(most) * 1e-5 + 1e-6;
    }
    return b;
}

static struct bounded score_of(const struct world *w, const struct kv_score_job *job, int32_t j,
                               int32_t s)
{
    const double *q = turned(w, j, w->delta[s]);
    int32_t dim = w->g.dim_k;
    const float *k = w->key + s * dim;
    struct bounded b = dot_of(q, k, NULL, dim);
    switch (job->kind) {
    case KV_SCORE_DOT:
        return b;
    case KV_SCORE_COSINE:
        b.x = length_of(k, dim) > 0 ? b.x / length_of(k, dim) : 0;
        b.error += 1e-6;
        return b;
    case KV_SCORE_UNIT8:
        return unit8_of(q, k, dim);
    case KV_SCORE_COLUMNS:
        b = dot_of(q, k, job->dims, job->n_dim);
        b.error += (w->g.index & KV_INDEX_COLUMNS) != 0 ? b.error * 1e5 * 0x1p-11 : 0;
        return b;
    case KV_SCORE_PROJ:
        return proj_of(w, q, k);
    default:
        return bounds_of(w, q, w->page[s], job->n);
    }
}

static void assert_reference(const struct world *w, const struct kv_score_job *job)
{
    for (int32_t s = 0; s < job->n; s++) {
        double max = -INFINITY, mean = 0, error = 0;
        for (int32_t j = 0; j < job->n_q; j++) {
            struct bounded b = score_of(w, job, j, s);
            max = fmax(max, b.x);
            mean += b.x / job->n_q;
            error = fmax(error, b.error);
        }
        double want = job->reduce == KV_SCORE_MAX ? max : mean;
        if (!(fabs((double)job->out[s] - want) <= error))
            fail_msg("kind %d, %d vectors, type %d, dim %d, slot %d: %.9g, expected %.9g +- %.3g",
                     (int)job->kind, job->n_q, (int)w->g.type_k, w->g.dim_k, s, (double)job->out[s],
                     want, error);
    }
}

/* ---- the checks ---- */

/* The scratch has exactly the size that was promised, starts anywhere and holds NaN. */
static void score(const struct world *w, struct kv_score_job job, float *out)
{
    size_t size = kv_score_scratch_bytes(&w->g, job.n_q);
    uint8_t *scratch = test_malloc(size + 4);
    memset(scratch, 0xff, size);
    job.out = out;
    kv_score(&job, scratch);
    test_free(scratch);
}

/* Against the reference, all levels alike, and no score depends on how many follow. */
static void check(const struct world *w, struct kv_score_job job)
{
    float *want = test_calloc(N_ENTRY, sizeof(*want)), *got = test_calloc(N_ENTRY, sizeof(*got));
    assert_int_equal(pith_cpu_level_set("scalar", NULL), PITH_OK);
    score(w, job, want);
    job.out = want;
    assert_reference(w, &job);
    for (int level = 0; level < PI_CPU_N_LEVEL; level++) {
        const char *name = pi_cpu_level_name((enum pi_cpu_level)level);
        if (pith_cpu_level_set(name, NULL) != PITH_OK)
            continue;
        memset(got, 0xff, N_ENTRY * sizeof(*got));
        score(w, job, got);
        assert_same_bits(got, want, (size_t)job.n, name);
        struct kv_score_job part = job;
        part.n = job.kind == KV_SCORE_BOUNDS ? job.n / P * P : job.n * 2 / 3;
        score(w, part, got);
        assert_same_bits(got, want, (size_t)part.n, "the first ones alone");
    }
    assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
    test_free(want);
    test_free(got);
}

static struct kv_score_job job_of(const struct world *w, enum kv_score_kind kind, int32_t n_q)
{
    static const int32_t dims[] = {0, 3, 4, 5, 17, 31, 32, 40, 50, 62, 63};
    return (struct kv_score_job){.seq = w->f.seq,
                                 .n = N_ENTRY,
                                 .kind = kind,
                                 .q = w->q,
                                 .n_q = n_q,
                                 .dims = dims,
                                 .n_dim = 11,
                                 .rope = &w->rope};
}

static void check_all(enum kv_type type, int32_t dim, uint32_t index)
{
    const int32_t n_q[] = {1, 2, 4, 5, 16, 17, MOST_Q}; /* the last in every build */
    struct world w;
    world_open(&w, type, dim, index);
    for (int kind = KV_SCORE_DOT; kind <= KV_SCORE_BOUNDS; kind++)
        for (size_t i = (PI_LEN(n_q) - 1) % TEST_STRIDE; i < PI_LEN(n_q); i += TEST_STRIDE)
            for (int reduce = KV_SCORE_MAX; reduce <= KV_SCORE_MEAN; reduce++) {
                struct kv_score_job job = job_of(&w, (enum kv_score_kind)kind, n_q[i]);
                const uint32_t need[] = {0, KV_INDEX_NORM, KV_INDEX_UNIT8, 0, KV_INDEX_PROJ, 0};
                job.reduce = (enum kv_score_reduce)reduce;
                if ((need[kind] & ~index) == 0)
                    check(&w, job);
            }
    world_close(&w);
}

static const uint32_t all_parts = KV_INDEX_NORM | KV_INDEX_UNIT8 | KV_INDEX_COLUMNS |
                                  KV_INDEX_PROJ | KV_INDEX_BOUNDS | KV_INDEX_VALUE_SUM;

TEST(scores_of_f16_agree_with_doubles)
{
    check_all(KV_TYPE_F16, 128, all_parts);
    check_all(KV_TYPE_F16, 80, all_parts);
    check_all(KV_TYPE_F16, 64, 0);
}

TEST(scores_of_f32_agree_with_doubles)
{
    check_all(KV_TYPE_F32, 64, all_parts);
    check_all(KV_TYPE_F32, 78, all_parts);
}

TEST(scores_of_q8_0_agree_with_doubles)
{
    check_all(KV_TYPE_Q8_0, 128, all_parts);
    check_all(KV_TYPE_Q8_0, 64, 0);
}

/* Codes of 4, 3 and 2 bits, most of them rotated: products with the stored keys equal products with
   the keys. */
TEST(scores_of_codes_agree_with_doubles)
{
    for (enum kv_type type = KV_TYPE_Q4_0; type < KV_N_TYPE; type++) {
        check_all(type, type == KV_TYPE_TURBO3 ? 128 : 96, all_parts);
        check_all(type, 64, 0);
    }
}

/* Every head size that a kernel's stretches of a key may end at, with few vectors and many: all
   levels alike. */
static void check_dim(int32_t dim)
{
    enum { N = 21 };
    const int32_t n_q[] = {1, 3, 4, 5, 16, 33};
    const uint32_t index = KV_INDEX_UNIT8 | KV_INDEX_COLUMNS;
    struct world w = {.g = {1, 1, dim, 1, 16, KV_TYPE_F16, KV_TYPE_F16, index, 0, {0}, {0}}};
    uint64_t rng = (uint64_t)dim;
    float want[N], got[N];
    cache_open(&w.f, &w.g, N);
    append_random(w.f.seq, &rng, 0, N);
    w.q = random_rows(&rng, (size_t)(MOST_Q * dim), 2.0f);
    for (size_t i = 0; i < sizeof(n_q) / sizeof(n_q[0]); i++)
        for (int kind = KV_SCORE_DOT; kind <= KV_SCORE_COLUMNS; kind++) {
            struct kv_score_job job = job_of(&w, (enum kv_score_kind)kind, n_q[i]);
            job.n = N;
            job.n_dim = dim < 64 ? 1 : 11;
            if (kind == KV_SCORE_COSINE)
                continue;
            assert_int_equal(pith_cpu_level_set("scalar", NULL), PITH_OK);
            score(&w, job, want);
            for (int level = 0; level < PI_CPU_N_LEVEL; level++) {
                const char *name = pi_cpu_level_name((enum pi_cpu_level)level);
                if (pith_cpu_level_set(name, NULL) != PITH_OK)
                    continue;
                score(&w, job, got);
                assert_same_bits(got, want, N, name);
            }
        }
    assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
    test_free(w.q);
    close_all(&w.f);
}

TEST(scores_agree_for_every_head_size)
{
    const int32_t large[] = {192, 255, 256, 257, 300, 520};
    for (int32_t dim = 1; dim <= 130; dim += TEST_STRIDE)
        check_dim(dim);
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++)
        check_dim(large[i]);
}

/* Products beyond the range of floats give no NaN. */
TEST(products_beyond_floats_give_no_nan)
{
    struct world w;
    world_open(&w, KV_TYPE_F32, 64, KV_INDEX_NORM | KV_INDEX_BOUNDS);
    for (int32_t i = 0; i < MOST_Q * 64; i++)
        w.q[i] *= 1.6e38f; /* no reference is asked for them */
    for (int kind = KV_SCORE_DOT; kind <= KV_SCORE_BOUNDS; kind++)
        for (int32_t n_q = 1; n_q <= 16; n_q += 15) {
            struct kv_score_job job = job_of(&w, (enum kv_score_kind)kind, n_q);
            float want[N_ENTRY], got[N_ENTRY];
            if (kind == KV_SCORE_UNIT8 || kind == KV_SCORE_PROJ)
                continue;
            assert_int_equal(pith_cpu_level_set("scalar", NULL), PITH_OK);
            score(&w, job, want);
            for (int32_t s = 0; s < N_ENTRY; s++)
                assert_false(isnan(want[s]));
            assert_int_equal(pith_cpu_level_set(NULL, NULL), PITH_OK);
            score(&w, job, got);
            assert_same_bits(got, want, N_ENTRY, "overflow");
        }
    world_close(&w);
}

/* Sums of values: with the index and without, to the bit; against a sum in double. */
TEST(sums_of_values_agree_with_doubles)
{
    const enum kv_type types[] = {KV_TYPE_F32, KV_TYPE_F16, KV_TYPE_Q8_0};
    for (int t = 0; t < 3; t++)
        for (int32_t n = 0; n <= 150; n += 25) {
            float sum[2][160], row[160];
            double want[160] = {0};
            for (int with = 0; with < 2; with++) {
                struct kv_geometry g = {
                    1,  1,   32,  160,  32, types[t], types[t], with ? KV_INDEX_VALUE_SUM : 0,
                    0,  {0}, {0}, NULL, 0,  0,        0,        NULL,
                    {0}};
                struct fixture f;
                uint64_t rng = 3;
                cache_open(&f, &g, 150);
                append_random(f.seq, &rng, 0, 150);
                kv_lane_value_sum(f.seq, 0, 0, n, sum[with]);
                for (int32_t s = 0; s < n && with; s++) {
                    kv_lane_value(f.seq, 0, 0, s, row);
                    for (int32_t d = 0; d < 160; d++)
                        want[d] += (double)row[d];
                }
                close_all(&f);
            }
            assert_same_bits(sum[0], sum[1], 160, "sum of values");
            for (int32_t d = 0; d < 160; d++)
                assert_true(fabs((double)sum[0][d] - want[d]) <= 1e-4);
        }
}
