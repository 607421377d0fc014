/*
 * Loki's bases: eigenvectors of symmetric matrices, and the file, whole and damaged. The bases of a
 * model's keys are compared with a covariance that the test computes itself.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <unistd.h>

#include "keep_engine.h"
#include "near.h"
#include "file/sum.h"
#include "policy/read/eigen.h"
#include "policy/read/projection.h"

/* ---- eigenvectors ---- */

#define MAX_DIM 48

/* Asserts that vectors and values are the eigenvectors and eigenvalues of the matrix. */
static void check_eigen(const double *a, int32_t n)
{
    double work[MAX_DIM * MAX_DIM], value[MAX_DIM], vector[MAX_DIM * MAX_DIM], size = 1e-300;
    memcpy(work, a, (size_t)(n * n) * sizeof(*a));
    eigen_symmetric(work, n, value, vector);
    for (int32_t i = 0; i < n * n; i++)
        size = fmax(size, fabs(a[i]));
    for (int32_t i = 0; i < n; i++) {
        int32_t largest = 0;
        assert_true(i == 0 || value[i] <= value[i - 1]);
        for (int32_t r = 0; r < n; r++) {
            double sum = 0.0;
            for (int32_t c = 0; c < n; c++)
                sum += a[r * n + c] * vector[i * n + c];
            near(sum / size, value[i] * vector[i * n + r] / size, 1e-12);
            if (fabs(vector[i * n + r]) > fabs(vector[i * n + largest]))
                largest = r;
        }
        assert_true(vector[i * n + largest] > 0.0);
        for (int32_t j = 0; j <= i; j++) {
            double dot = 0.0;
            for (int32_t c = 0; c < n; c++)
                dot += vector[i * n + c] * vector[j * n + c];
            near(dot, i == j, 1e-12);
        }
    }
}

TEST(finds_eigenvectors_of_symmetric_matrices)
{
    uint64_t rng = 5;
    double a[MAX_DIM * MAX_DIM];
    for (int32_t n = 1; n <= MAX_DIM; n += n < 6 ? 1 : 7)
        for (int32_t form = 0; form < 5; form++) {
            memset(a, 0, sizeof(a));
            double scale = form == 4 ? 1e-200 : 1.0;
            for (int32_t i = 0; i < n; i++)
                for (int32_t j = 0; j <= i; j++) {
                    double x = form == 1   ? i == j                /* all alike */
                               : form == 2 ? (i + 1.0) * (j + 1.0) /* of rank 1 */
                               : form == 3 ? 0.0
                                           : (double)rng_float(&rng);
                    a[i * n + j] = a[j * n + i] = x * scale;
                }
            check_eigen(a, n);
        }
    /* 2 and 1 by hand: [[1.5, 0.5], [0.5, 1.5]]. */
    double two[] = {1.5, 0.5, 0.5, 1.5}, value[2], vector[4];
    eigen_symmetric(two, 2, value, vector);
    near(value[0], 2.0, 1e-15);
    near(value[1], 1.0, 1e-15);
    near(vector[0], sqrt(0.5), 1e-15);
    near(vector[1], sqrt(0.5), 1e-15);
    near(vector[2], sqrt(0.5), 1e-15);
    near(vector[3], -sqrt(0.5), 1e-15);
}

/* ---- the file ---- */

/* Two layers of one head of two dimensions, turned by an angle of their own. */
static struct pith_projection *small(void)
{
    struct pith_projection shape = {.n_layer = 2,
                                    .n_head = 1,
                                    .dim = 2,
                                    .keys = PITH_KEYS_PLAIN,
                                    .fingerprint = 0x123456789abcdef0u,
                                    .n_token = 77};
    struct pith_projection *p;
    check(projection_new(&shape, "a model", "a text", &p, &err), &err);
    for (int32_t l = 0; l < 2; l++) {
        float *vector = projection_vector(p, l, 0), *value = projection_value(p, l, 0);
        vector[0] = vector[3] = cosf((float)l + 1.0f);
        vector[1] = sinf((float)l + 1.0f);
        vector[2] = -vector[1];
        value[0] = 3.0f;
        value[1] = 1.0f;
    }
    return p;
}

static void put_le(uint8_t *at, uint64_t value, int32_t n_byte)
{
    for (int32_t i = 0; i < n_byte; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static void seal(uint8_t *data, size_t size)
{
    put_le(data + size - 8, pi_sum_of(data, size - 8), 8);
}

static void refused(const uint8_t *data, size_t size, pith_status status, const char *word)
{
    struct pith_projection *p = NULL;
    expect(projection_parse(data, size, &p, &err), &err, status, word);
    assert_null(p);
}

TEST(a_file_comes_back_as_it_was)
{
    struct pith_projection *p = small(), *again = NULL;
    pith_projection_info i;
    uint8_t *data, *twice;
    size_t size, size_twice;
    check(projection_format(p, &data, &size, &err), &err);
    assert_int_equal(size, 72 + 7 + 6 + 4 * 2 * 2 * 3 + 8);
    check(projection_parse(data, size, &again, &err), &err);
    check(projection_format(again, &twice, &size_twice, &err), &err);
    assert_int_equal(size, size_twice);
    assert_memory_equal(data, twice, size);
    pith_projection_get_info(again, &i);
    assert_string_equal(i.model, "a model");
    assert_string_equal(i.text, "a text");
    assert_int_equal(i.keys, PITH_KEYS_PLAIN);
    assert_int_equal(i.n_token, 77);
    assert_true(i.fingerprint == 0x123456789abcdef0u);
    assert_int_equal(pith_projection_rank(again, 0, 0, 0.75), 1);
    assert_int_equal(pith_projection_rank(again, -1, -1, 0.76), 2);
    assert_int_equal(pith_projection_rank(again, 0, 0, 0.0), 1);
    assert_int_equal(pith_projection_rank(again, 2, 0, 0.5), 0);
    pi_mem_free(data);
    pi_mem_free(twice);
    pith_projection_free(p);
    pith_projection_free(again);
}

/* The sentence about a wrong field has the field's name and value. */
TEST(a_damaged_field_is_named)
{
    static const struct {
        int32_t at, n_byte;
        uint64_t value;
        pith_status status;
        const char *word;
    } field[] = {
        {0, 1, 'X', PITH_FORMAT, "PITHLOKI"},
        {8, 4, 2, PITH_UNSUPPORTED, "version 2"},
        {12, 4, 80, PITH_FORMAT, "header size: 80"},
        {16, 8, 12345, PITH_FORMAT, "its header says 12345 bytes, the file has "},
        {32, 8, UINT64_MAX, PITH_FORMAT, "tokens: 18446744073709551615"},
        {40, 4, 0, PITH_FORMAT, "layers: 0"},
        {40, 4, 5000, PITH_FORMAT, "layers: 5000"},
        {44, 4, 0, PITH_FORMAT, "KV heads: 0"},
        {48, 4, 9000, PITH_FORMAT, "dimensions: 9000"},
        {48, 4, 3, PITH_FORMAT, "its counts make"},
        {52, 4, 3, PITH_FORMAT, "keys: 3"},
        {56, 4, 5000, PITH_FORMAT, "model's name: 5000"},
        {60, 4, 4097, PITH_FORMAT, "text's name: 4097"},
        {60, 4, 7, PITH_FORMAT, "its counts make"},
        {64, 8, 1, PITH_FORMAT, "reserved: 1"},
        {73, 1, 0, PITH_FORMAT, "zero byte"},
        {85, 4, 0x7f800000, PITH_FORMAT, "layer 0, head 0: eigenvalue 0 is inf"},
        {89, 4, 0x40800000, PITH_FORMAT, "eigenvalue 1 is 4"},
        {89, 4, 0xbf800000, PITH_FORMAT, "eigenvalue 1 is -1"},
        {101, 4, 0x40000000, PITH_FORMAT, "layer 0, head 0: the product"},
        {125, 4, 0x7fc00000, PITH_FORMAT, "layer 1, head 0: the product"},
    };
    struct pith_projection *p = small();
    uint8_t *data, *bad;
    size_t size;
    check(projection_format(p, &data, &size, &err), &err);
    bad = test_malloc(size + 1);
    for (size_t i = 0; i < PI_LEN(field); i++) {
        memcpy(bad, data, size);
        put_le(bad + field[i].at, field[i].value, field[i].n_byte);
        seal(bad, size);
        refused(bad, size, field[i].status, field[i].word);
    }
    for (size_t n = 0; n < size; n++) /* cut off */
        refused(data, n, PITH_FORMAT, "");
    for (size_t i = 0; i < size; i++) { /* one byte changed, unsealed */
        memcpy(bad, data, size);
        bad[i] ^= 0x10;
        struct pith_projection *out = NULL;
        assert_int_not_equal(projection_parse(bad, size, &out, &err), PITH_OK);
        assert_null(out);
    }
    bad[size] = 0;
    memcpy(bad, data, size);
    refused(bad, size + 1, PITH_FORMAT, "its header says ");
    test_free(bad);
    pi_mem_free(data);
    pith_projection_free(p);
}

TEST(saves_and_loads)
{
    char path[] = "/tmp/pith-test-XXXXXX";
    struct pith_projection *p = small(), *again = NULL;
    close(mkstemp(path));
    check(pith_projection_save(p, path, &err), &err);
    check(pith_projection_load(path, &again, &err), &err);
    expect(pith_projection_check(again, model, &err), &err, PITH_INVALID, "2 layers");
    again->n_layer = info.n_layer;
    expect(pith_projection_check(again, model, &err), &err, PITH_INVALID, "1 KV heads");
    again->n_head = info.n_head_kv;
    expect(pith_projection_check(again, model, &err), &err, PITH_INVALID, "2 dimensions");
    again->dim = info.head_dim_k;
    expect(pith_projection_check(again, model, &err), &err, PITH_INVALID, "123456789abcdef0");
    pith_projection_free(p);
    pith_projection_free(again);
    assert_int_equal(truncate(path, 60), 0);
    expect(pith_projection_load(path, &again, &err), &err, PITH_FORMAT, path);
    unlink(path);
    assert_int_equal(pith_projection_load(path, &again, &err), PITH_IO);
    expect(pith_projection_load(NULL, &again, &err), &err, PITH_INVALID, "NULL");
}

/* ---- from a model ---- */

#define N_TOKEN 300

/* Sums of the keys of one layer and KV head, in the test's own way. */
struct sums {
    int32_t layer, head, n;
    bool plain;
    double key[N_TOKEN][MAX_DIM];
};

static bool gather(void *user, const pith_tap_rows *rows)
{
    struct sums *s = user;
    int32_t dim = info.head_dim_k;
    if (rows->layer != s->layer)
        return true;
    for (int32_t t = 0; t < rows->n_token; t++) {
        const float *k = rows->k + (t * info.n_head_kv + s->head) * dim;
        for (int32_t d = 0; d < dim; d++)
            s->key[s->n][d] = (double)k[d];
        const struct pi_rope *rope = &model->rope;
        for (int32_t f = 0; s->plain && f < rope->n_pair; f++) {
            int32_t a = rope->adjacent ? 2 * f : f, b = rope->adjacent ? a + 1 : f + rope->n_pair;
            double angle = (rows->pos0 + t) * rope->freq[f], x = s->key[s->n][a],
                   y = s->key[s->n][b];
            s->key[s->n][a] = x * cos(angle) + y * sin(angle);
            s->key[s->n][b] = y * cos(angle) - x * sin(angle);
        }
        s->n++;
    }
    return true;
}

/* In the basis the covariance is diagonal, with the eigenvalues. */
static void check_basis(const struct pith_projection *p, const struct sums *s)
{
    const float *vector = projection_vector(p, s->layer, s->head);
    const float *value = projection_value(p, s->layer, s->head);
    int32_t dim = p->dim;
    static double x[N_TOKEN][MAX_DIM];
    double mean[MAX_DIM] = {0}, total = 0.0;
    assert_int_equal(s->n, N_TOKEN);
    for (int32_t t = 0; t < N_TOKEN; t++)
        for (int32_t i = 0; i < dim; i++) {
            x[t][i] = 0.0;
            for (int32_t d = 0; d < dim; d++)
                x[t][i] += (double)vector[i * dim + d] * s->key[t][d];
            mean[i] += x[t][i] / N_TOKEN;
        }
    for (int32_t i = 0; i < dim; i++)
        total += (double)value[i];
    assert_true(total > 0.0);
    for (int32_t i = 0; i < dim; i++)
        for (int32_t j = 0; j <= i; j++) {
            double sum = 0.0;
            for (int32_t t = 0; t < N_TOKEN; t++)
                sum += (x[t][i] - mean[i]) * (x[t][j] - mean[j]) / N_TOKEN;
            near(sum / total, i == j ? (double)value[i] / total : 0.0, 1e-6);
        }
}

static void fit_bytes(pith_engine *e, pith_projection_keys keys, int32_t n_ctx, uint8_t **data,
                      size_t *size)
{
    struct pith_projection *p = NULL;
    pith_projection_params params;
    pith_projection_params_default(&params);
    params.keys = keys;
    params.n_ctx = n_ctx;
    check(pith_projection_fit(e, tokens, N_TOKEN, &params, &p, &err), &err);
    check(pith_projection_check(p, model, &err), &err);
    assert_int_equal(p->n_token, N_TOKEN);
    check(projection_format(p, data, size, &err), &err);
    pith_projection_free(p);
}

TEST(fits_the_covariance_of_keys)
{
    static struct sums sums;
    pith_engine *e = engine_make(NULL, 64, 2, 512);
    for (int32_t keys = PITH_KEYS_ROTATED; keys <= PITH_KEYS_PLAIN; keys++) {
        struct pith_projection *p = NULL;
        pith_projection_params params;
        pith_projection_params_default(&params);
        params.keys = (pith_projection_keys)keys;
        check(pith_projection_fit(e, tokens, N_TOKEN, &params, &p, &err), &err);
        for (int32_t lane = 0; lane < n_lane; lane++) {
            sums.layer = lane / info.n_head_kv;
            sums.head = lane % info.n_head_kv;
            sums.n = 0;
            sums.plain = keys == PITH_KEYS_PLAIN;
            check(pith_engine_set_tap(e, gather, &sums, &err), &err);
            pith_seq *seq = seq_make(e);
            eval(seq, 0, N_TOKEN);
            pith_seq_free(seq);
            check(pith_engine_set_tap(e, NULL, NULL, &err), &err);
            check_basis(p, &sums);
        }
        pith_projection_free(p);
    }
    pith_engine_free(e);
}

/* The same bytes for any chunk and number of threads; other ones for other keys and pieces. */
TEST(chunks_and_threads_change_no_bit)
{
    static const struct {
        int32_t chunk, n_thread;
    } way[] = {{512, 1}, {7, 2}, {64, 3}};
    uint8_t *first = NULL, *data;
    size_t size, n;
    for (size_t i = 0; i < PI_LEN(way); i++) {
        pith_engine *e = engine_make(NULL, way[i].chunk, way[i].n_thread, 512);
        fit_bytes(e, PITH_KEYS_ROTATED, 0, &data, &n);
        if (i == 0) {
            first = data;
            size = n;
            fit_bytes(e, PITH_KEYS_PLAIN, 0, &data, &n);
            assert_memory_not_equal(first + 96, data + 96, size - 96);
            pi_mem_free(data);
            fit_bytes(e, PITH_KEYS_ROTATED, 100, &data, &n);
            assert_memory_not_equal(first + 96, data + 96, size - 96);
        } else {
            assert_int_equal(n, size);
            assert_memory_equal(first, data, size);
        }
        pi_mem_free(data);
        pith_engine_free(e);
    }
    pi_mem_free(first);
}

static bool stop_half_way(void *user, double fraction)
{
    *(double *)user = fraction;
    return fraction < 0.5;
}

static bool stop_at_bases(void *user, double fraction)
{
    *(double *)user = fraction;
    return fraction <= 0.9;
}

TEST(refuses_texts_and_policies_that_do_not_fit)
{
    struct pith_projection *p = NULL;
    pith_projection_params params;
    double reached = 0.0;
    pith_projection_params_default(&params);
    pith_engine *e = engine_make(NULL, 64, 1, 512);
    expect(pith_projection_fit(e, tokens, 1, &params, &p, &err), &err, PITH_INVALID, "1 tokens");
    expect(pith_projection_fit(NULL, tokens, 9, &params, &p, &err), &err, PITH_INVALID, "NULL");
    params.keys = (pith_projection_keys)7;
    expect(pith_projection_fit(e, tokens, 9, &params, &p, &err), &err, PITH_INVALID, "keys: 7");
    params.keys = PITH_KEYS_PLAIN;
    params.n_ctx = -1;
    expect(pith_projection_fit(e, tokens, 9, &params, &p, &err), &err, PITH_INVALID, "n_ctx: -1");
    params.n_ctx = 0;
    params.progress = stop_half_way;
    params.progress_user = &reached;
    expect(pith_projection_fit(e, tokens, N_TOKEN, &params, &p, &err), &err, PITH_CANCELLED, "");
    assert_true(reached >= 0.5 && reached < 0.9);
    params.progress = stop_at_bases;
    expect(pith_projection_fit(e, tokens, N_TOKEN, &params, &p, &err), &err, PITH_CANCELLED, "");
    assert_true(reached > 0.9);
    assert_null(p);
    assert_int_equal(used_pages(e), 0);
    pith_engine_free(e);
    e = engine_make("streaming:budget=64,slack=16", 64, 1, 0);
    params.progress = NULL;
    expect(pith_projection_fit(e, tokens, 9, &params, &p, &err), &err, PITH_INVALID, "keep policy");
    pith_engine_free(e);
    e = engine_with(model, (pith_engine_params){.read = "quest"});
    expect(pith_projection_fit(e, tokens, 9, &params, &p, &err), &err, PITH_INVALID, "read policy");
    pith_engine_free(e);
}

/* Whichever allocation fails, it is said, and nothing is left. */
TEST(failing_memory_loses_nothing)
{
    struct pith_projection *p = NULL;
    pith_engine *e = engine_make(NULL, 64, 1, 128);
    int64_t before = pi_mem_used(PI_MEM_OTHER);
    pi_mem_fail_at(0, false);
    check(pith_projection_fit(e, tokens, 40, NULL, &p, &err), &err);
    int64_t n = pi_mem_fail_at(0, false);
    pith_projection_free(p);
    p = NULL;
    assert_true(n >= 10);
    for (int64_t i = 1; i <= n; i++) {
        pi_mem_fail_at(i, false);
        pith_status status = pith_projection_fit(e, tokens, 40, NULL, &p, &err);
        pi_mem_fail_at(0, false);
        if (status != PITH_OK)
            expect(status, &err, PITH_NOMEM, "no memory");
        pith_projection_free(p);
        p = NULL;
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), before);
    }
    pith_engine_free(e);
}

static void set_up(void)
{
    model_load(11);
}

TEST_GROUP(set_up, model_free);
