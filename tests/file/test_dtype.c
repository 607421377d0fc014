/*
 * test_dtype.c - weight types against golden blocks of llama.cpp's reference
 * (scripts/golden/dtype.py), the error of encoding against bounds measured there, the edges of
 * rows, and odd numbers.
 */
#include <math.h>
#include <string.h>

#include "tensor/dtype.h"
#include "testing.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/dtype.txt"
#define MAX_LEN 512                     /* weights of a golden record */
#define MAX_LINE (2 * 4 * MAX_LEN + 64) /* its longest line */
#define ERROR_LEN (256 * 512)           /* weights of an error measurement */

static const char *const names[] = {"F32",  "F16",  "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0",
                                    "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"};

#define N_READ 3 /* types that are only read: IQ4_NL, IQ4_XS, MXFP4 */

/* ---- golden records ---- */

struct record {
    char act[8], name[8];
    int n;
    uint8_t bytes[4 * MAX_LEN];
    size_t n_byte;
    float x[MAX_LEN];
};

static size_t parse_hex(const char *text, uint8_t *out, size_t cap)
{
    size_t n = 0;
    for (; text[2 * n] != '\n' && text[2 * n] != 0; n++) {
        unsigned byte;
        assert_true(n < cap);
        assert_int_equal(sscanf(text + 2 * n, "%2x", &byte), 1);
        out[n] = (uint8_t)byte;
    }
    return n;
}

/* Floats are printed as numbers, the highest byte first. */
static void parse_floats(const char *text, struct record *r)
{
    uint8_t bytes[4 * MAX_LEN];
    assert_int_equal(parse_hex(text, bytes, sizeof(bytes)), 4 * r->n);
    for (int i = 0; i < r->n; i++) {
        uint32_t bits = 0;
        for (int k = 0; k < 4; k++)
            bits = bits << 8 | bytes[4 * i + k];
        memcpy(&r->x[i], &bits, sizeof(bits));
    }
}

/* Reads the next record; false at the end of the file. */
static bool read_record(FILE *file, struct record *r)
{
    static char first[MAX_LINE], second[MAX_LINE];
    if (fgets(first, sizeof(first), file) == NULL)
        return false;
    assert_int_equal(sscanf(first, "%7s %7s %d", r->act, r->name, &r->n), 3);
    assert_in_range(r->n, 1, MAX_LEN);
    assert_non_null(fgets(first, sizeof(first), file));
    assert_non_null(fgets(second, sizeof(second), file));
    const bool decode = strcmp(r->act, "decode") == 0;
    r->n_byte = parse_hex(decode ? first : second, r->bytes, sizeof(r->bytes));
    parse_floats(decode ? second : first, r);
    return true;
}

static void check_decode(const struct pi_dtype_traits *t, const struct record *r)
{
    float x[MAX_LEN];
    uint8_t unaligned[4 * MAX_LEN + 1];
    memcpy(unaligned + 1, r->bytes, r->n_byte);
    t->decode(unaligned + 1, x, r->n);
    for (int i = 0; i < r->n; i++)
        if (memcmp(&x[i], &r->x[i], sizeof(x[i])) != 0)
            fail_msg("%s: weight %d decodes to %a, expected %a", t->name, i, (double)x[i],
                     (double)r->x[i]);
}

static void check_encode(const struct pi_dtype_traits *t, const struct record *r)
{
    uint8_t bytes[4 * MAX_LEN];
    t->encode(r->x, bytes, r->n);
    for (size_t i = 0; i < r->n_byte; i++)
        if (bytes[i] != r->bytes[i])
            fail_msg("%s: byte %zu encodes to %02x, expected %02x", t->name, i, bytes[i],
                     r->bytes[i]);
}

TEST(decodes_and_encodes_golden_blocks_of_llama_cpp)
{
    static struct record r;
    FILE *file = fopen(GOLDEN, "r");
    int n_decode = 0, n_encode = 0;
    assert_non_null(file);
    while (read_record(file, &r)) {
        const struct pi_dtype_traits *t = pi_dtype_find_name(r.name);
        assert_non_null(t);
        assert_int_equal(r.n % t->block_len, 0);
        assert_int_equal(r.n_byte, pi_dtype_row_bytes(t, r.n));
        if (strcmp(r.act, "decode") == 0) {
            check_decode(t, &r);
            n_decode++;
        } else {
            check_encode(t, &r);
            n_encode++;
        }
    }
    fclose(file);
    assert_int_equal(n_decode, PI_LEN(names) + N_READ);
    assert_int_equal(n_encode, 7);
}

/* ---- the table ---- */

TEST(finds_types_by_name_and_number)
{
    for (size_t i = 0; i < PI_LEN(names); i++) {
        const struct pi_dtype_traits *t = pi_dtype_find_name(names[i]);
        assert_non_null(t);
        assert_string_equal(t->name, names[i]);
        assert_ptr_equal(pi_dtype_find(t->type), t);
    }
    assert_ptr_equal(pi_dtype_find_name("q4_k"), pi_dtype_find(PI_DTYPE_Q4_K));
    assert_null(pi_dtype_find_name("Q4_K_M"));
    assert_null(pi_dtype_find_name(""));
    assert_null(pi_dtype_find(4)); /* a type that was given up */
    assert_null(pi_dtype_find(UINT32_MAX));
}

/* ---- errors ---- */

/* Normal, by the central limit of twelve uniforms. */
static float normal(uint64_t *rng)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += rng_float(rng);
    return sum / 2;
}

/* |decode(encode(x)) - x| / |x| over ERROR_LEN weights. */
static double relative_error(const struct pi_dtype_traits *t, const float *x)
{
    static float y[ERROR_LEN];
    static uint8_t bytes[4 * ERROR_LEN];
    double error = 0, norm = 0;
    t->encode(x, bytes, ERROR_LEN);
    t->decode(bytes, y, ERROR_LEN);
    for (int i = 0; i < ERROR_LEN; i++) {
        error += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
        norm += (double)x[i] * x[i];
    }
    return sqrt(error / norm);
}

/* The bounds are the errors of llama.cpp's own encoders (ggml_quantize_chunk without importance
   matrix) on weights of the same distributions, plus 2 %. */
TEST(encodes_with_no_more_error_than_llama_cpp)
{
    static const struct {
        const char *name;
        double normal, heavy; /* exp(normal) times normal */
    } bounds[] = {
        {"F32", 0, 0},
        {"F16", 0.000212, 0.000216},
        {"BF16", 0.00171, 0.00173},
        {"Q8_0", 0.0055, 0.0101},
        {"Q4_0", 0.0876, 0.135},
        {"Q4_1", 0.0798, 0.115},
        {"Q5_0", 0.0436, 0.0745},
        {"Q5_1", 0.0387, 0.0555},
        {"Q2_K", 0.303, 0.374},
        {"Q3_K", 0.154, 0.182},
        {"Q4_K", 0.0728, 0.1025},
        {"Q5_K", 0.0369, 0.053},
        {"Q6_K", 0.0181, 0.029},
    };
    static float x[ERROR_LEN], heavy[ERROR_LEN];
    uint64_t rng = 5;
    for (int i = 0; i < ERROR_LEN; i++) {
        x[i] = 0.02f * normal(&rng);
        heavy[i] = 0.02f * normal(&rng) * expf(normal(&rng));
    }
    for (size_t i = 0; i < PI_LEN(bounds); i++) {
        const struct pi_dtype_traits *t = pi_dtype_find_name(bounds[i].name);
        const double a = relative_error(t, x), b = relative_error(t, heavy);
        if (a > bounds[i].normal || b > bounds[i].heavy)
            fail_msg("%s: errors %.6f and %.6f are above %.6f and %.6f", t->name, a, b,
                     bounds[i].normal, bounds[i].heavy);
    }
}

/* A type with more bits has the smaller error. */
TEST(more_bits_are_better)
{
    static const char *const order[] = {"Q2_K", "Q3_K", "Q4_K", "Q5_K",
                                        "Q6_K", "Q8_0", "F16",  "F32"};
    static float x[ERROR_LEN];
    uint64_t rng = 6;
    double last = 1;
    for (int i = 0; i < ERROR_LEN; i++)
        x[i] = normal(&rng);
    for (size_t i = 0; i < PI_LEN(order); i++) {
        const double error = relative_error(pi_dtype_find_name(order[i]), x);
        assert_true(error < last);
        last = error;
    }
}

/* ---- edges ---- */

/* Any number of blocks, not one byte or float beyond; each block on its own. */
TEST(writes_no_byte_beyond_a_row)
{
    enum { N_BLOCK = 5, CANARY = 0xa5 };
    float x[N_BLOCK * 256], y[N_BLOCK * 256 + 1];
    uint8_t bytes[4 * N_BLOCK * 256 + 1], single[4 * 256];
    uint64_t rng = 7;
    for (size_t i = 0; i < PI_LEN(x); i++)
        x[i] = normal(&rng);
    for (size_t i = 0; i < PI_LEN(names); i++) {
        const struct pi_dtype_traits *t = pi_dtype_find_name(names[i]);
        for (int n = 0; n <= N_BLOCK; n++) {
            const int len = n * t->block_len;
            const size_t size = pi_dtype_row_bytes(t, len);
            memset(bytes, CANARY, sizeof(bytes));
            y[len] = 12345.0f;
            t->encode(x, bytes, len);
            t->decode(bytes, y, len);
            assert_int_equal(bytes[size], CANARY);
            assert_true(y[len] == 12345.0f);
            if (n == 0)
                continue;
            t->encode(x + len - t->block_len, single, t->block_len);
            assert_memory_equal(single, bytes + size - t->block_bytes, (size_t)t->block_bytes);
        }
    }
}

/* Zeros stay zeros; one large weight among zeros stays the largest. */
TEST(zeros_and_spikes_survive)
{
    float x[256] = {0}, y[256];
    uint8_t bytes[4 * 256];
    for (size_t i = 0; i < PI_LEN(names); i++) {
        const struct pi_dtype_traits *t = pi_dtype_find_name(names[i]);
        t->encode(x, bytes, 256);
        t->decode(bytes, y, 256);
        for (int k = 0; k < 256; k++)
            assert_true(y[k] == 0.0f);
        for (float sign = -1; sign <= 1; sign += 2) {
            float spike[256] = {0};
            spike[77] = 3 * sign;
            t->encode(spike, bytes, 256);
            t->decode(bytes, y, 256);
            assert_true(fabsf(y[77] - spike[77]) < 0.1f);
            for (int k = 0; k < 256; k++)
                assert_true(k == 77 || fabsf(y[k]) < 0.1f);
        }
    }
}

/* Infinities, NaN and numbers beyond the scales' range do no harm; K types keep finite numbers
   finite. */
TEST(numbers_that_are_none_do_no_harm)
{
    static const float odd[] = {NAN,    -NAN,   INFINITY, -INFINITY, 3e38f,
                                -3e38f, 1e-45f, -1e-40f,  1e9f};
    float x[256], y[256];
    uint8_t bytes[4 * 256];
    uint64_t rng = 8;
    for (size_t i = 0; i < PI_LEN(names); i++) {
        const struct pi_dtype_traits *t = pi_dtype_find_name(names[i]);
        for (int round = 0; round < 200; round++) {
            bool finite = true;
            for (int k = 0; k < 256; k++) {
                x[k] = rng_below(&rng, 4) ? normal(&rng) : odd[rng_below(&rng, PI_LEN(odd))];
                if (round % 2 == 1 && !isfinite(x[k]))
                    x[k] = 1;
                finite = finite && isfinite(x[k]);
            }
            t->encode(x, bytes, 256);
            t->decode(bytes, y, 256);
            for (int k = 0; finite && t->block_len == 256 && k < 256; k++)
                assert_true(isfinite(y[k]));
        }
    }
}
