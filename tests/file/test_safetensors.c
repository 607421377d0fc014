/*
 * Safetensors files: every type is read back as it was written. Each fault of a file has its
 * sentence, and a file that cannot be written leaves nothing behind.
 */
#define _POSIX_C_SOURCE 200809L

#include <string.h>

#include "folder.h"

#include "base/half.h"
#include "file/safetensors.h"

TEST_GROUP(make_folder, remove_folder);

/* A file in memory: header text and n bytes of data. A copy without slack, so that a sanitizer sees
   a read beyond the end. */
static pith_status parse(const char *header, size_t n_data, struct safetensors *out,
                         pith_error *why)
{
    size_t len = strlen(header), size = 8 + len + n_data;
    static uint8_t *bytes;
    free(bytes);
    bytes = calloc(size, 1);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)len >> (8 * i));
    memcpy(bytes + 8, header, len);
    for (size_t i = 0; i < n_data; i++)
        bytes[8 + len + i] = (uint8_t)(i + 1);
    return safetensors_parse("file", bytes, size, out, why);
}

#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(refuses_bad_headers)
{
    static const struct {
        const char *header;
        size_t n_data;
        pith_status status;
        const char *word;
    } cases[] = {
        {"[]", 0, PITH_FORMAT, "does not begin with {"},
        {" {}", 0, PITH_FORMAT, "does not begin with {"},
        {"", 0, PITH_FORMAT, "does not begin with {"},
        {"{\"a\":}", 0, PITH_FORMAT, "is no JSON"},
        {"{} {}", 0, PITH_FORMAT, "is no JSON"},
        {"{\"a\":1,\"a\":1}", 0, PITH_FORMAT, "duplicate"},
        {"{\"a\":1}", 0, PITH_FORMAT, "\"a\" is no object"},
        {"{\"a\":{}}", 0, PITH_FORMAT, "dtype is missing"},
        {"{\"a\":{\"dtype\":7}}", 0, PITH_FORMAT, "dtype is missing or no text"},
        {"{\"a\":" ENTRY("F12", "[1]", "[0,4]") "}", 4, PITH_UNSUPPORTED, "\"F12\" is not known"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, PITH_FORMAT, "shape is missing"},
        {"{\"a\":" ENTRY("F32", "4", "[0,4]") "}", 4, PITH_FORMAT, "shape is missing or no list"},
        {"{\"a\":" ENTRY("F32", "[-1]", "[0,4]") "}", 4, PITH_FORMAT, "shape[0] is no count"},
        {"{\"a\":" ENTRY("F32", "[1,1.0]", "[0,4]") "}", 4, PITH_FORMAT, "shape[1] is no count"},
        {"{\"a\":" ENTRY("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, PITH_UNSUPPORTED,
         "9 dimensions are more than 8"},
        {"{\"a\":" ENTRY("F32", "[4294967296,4294967296]", "[0,4]") "}", 4, PITH_FORMAT,
         "more than memory can hold"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, PITH_FORMAT, "data_offsets is missing"},
        {"{\"a\":" ENTRY("F32", "[1]", "[0]") "}", 4, PITH_FORMAT, "no [begin, end]"},
        {"{\"a\":" ENTRY("F32", "[1]", "[0,\"4\"]") "}", 4, PITH_FORMAT, "no [begin, end]"},
        {"{\"a\":" ENTRY("F32", "[1]", "[0,5]") "}", 4, PITH_FORMAT, "leave the 4 bytes of data"},
        {"{\"a\":" ENTRY("F32", "[1]", "[4,0]") "}", 4, PITH_FORMAT, "[4, 0] leave the 4 bytes"},
        {"{\"a\":" ENTRY("F32", "[1]", "[-4,0]") "}", 4, PITH_FORMAT, "[-4, 0] leave the 4 bytes"},
        {"{\"a\":" ENTRY("F32", "[2]", "[0,4]") "}", 4, PITH_FORMAT,
         "give 4 bytes, dtype and shape "
         "need 8"},
        {"{\"a\":" ENTRY("U8", "[4]", "[0,4]") ",\"b\":" ENTRY("U8", "[4]", "[2,6]") "}", 6,
         PITH_FORMAT, "\"b\" begins at byte 2, within \"a\""},
        {"{\"a\":" ENTRY("U8", "[4]", "[0,4]") ",\"b\":" ENTRY("U8", "[4]", "[6,10]") "}", 10,
         PITH_FORMAT, "the 2 bytes of data before \"b\" belong to no array"},
        {"{\"a\":" ENTRY("U8", "[4]", "[0,4]") "}", 7, PITH_FORMAT,
         "the last 3 bytes belong to no"},
        {"{\"__metadata__\":[]}", 0, PITH_FORMAT, "__metadata__ is no object"},
        {"{\"__metadata__\":{\"x\":1}}", 0, PITH_FORMAT, "__metadata__: \"x\" is no text"},
        {"{\"a\\nb\":1}", 0, PITH_FORMAT, "\"a?b\" is no object"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct safetensors st;
        err = (pith_error){0};
        expect(parse(cases[i].header, cases[i].n_data, &st, &err), &err, cases[i].status,
               cases[i].word);
        assert_null(st.tensor);
        assert_null(st.header);
    }
}

TEST(refuses_lengths_that_do_not_fit)
{
    static const uint8_t seven[7], huge[10] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    static const uint8_t most[9] = {255, 255, 255, 255, 255, 255, 255, 255, '{'};
    struct safetensors st;
    expect(safetensors_parse("f", seven, 7, &st, &err), &err, PITH_FORMAT, "7 bytes are too short");
    expect(safetensors_parse("f", huge, 10, &st, &err), &err, PITH_FORMAT,
           "a header of 3 bytes does not fit a file of 10");
    expect(safetensors_parse("f", most, 9, &st, &err), &err, PITH_FORMAT,
           "a header of 18446744073709551615 bytes does not fit a file of 9");
}

/* A long name is cut within the sentence, never within a character. */
TEST(cuts_long_names_between_characters)
{
    char header[512] = "{\"";
    struct safetensors st;
    for (int i = 0; i < 100; i++)
        strcat(header, "\xc3\xa9");
    strcat(header, "\":0}");
    expect(parse(header, 0, &st, &err), &err, PITH_FORMAT, "\xc3\xa9\" is no object");
}

TEST(reads_good_headers)
{
    struct safetensors st;
    check(parse("{}   ", 0, &st, &err), &err);
    assert_int_equal(st.n_tensor, 0);
    assert_null(safetensors_find(&st, "a"));
    assert_null(safetensors_meta(&st, "a"));
    safetensors_free(&st);
    /* A scalar, an empty array where another begins, and the data in another order than the
       names. */
    check(parse("{\"z\":" ENTRY("U8", "[]", "[0,1]") ",\"e\":" ENTRY(
                    "F32", "[0,7]",
                    "[1,1]") ",\"a\":" ENTRY("I16", "[2]",
                                             "[1,5]") ",\"__metadata__\":{\"k\":\"v\"}}",
                5, &st, &err),
          &err);
    assert_int_equal(st.n_tensor, 3);
    const struct safetensor *z = safetensors_find(&st, "z"), *a = safetensors_find(&st, "a");
    int64_t n[2];
    float x;
    assert_int_equal(z->n_dim, 0);
    assert_true(safetensor_read_i64(z, 0, 1, n));
    assert_int_equal(n[0], 1);
    assert_true(safetensor_read_i64(a, 0, 2, n));
    assert_int_equal(n[0], 0x0302);
    assert_int_equal(n[1], 0x0504);
    assert_false(safetensor_read_i64(a, 1, 2, n));
    assert_false(safetensor_read_i64(a, -1, 1, n));
    assert_false(safetensor_read_f32(a, 0, 1, &x));
    assert_int_equal(safetensors_find(&st, "e")->size, 0);
    assert_string_equal(safetensors_meta(&st, "k"), "v");
    safetensors_free(&st);
    safetensors_free(&st);
}

/* Every dtype, written and read back. */
TEST(writes_and_reads_every_type)
{
    static const float f32[] = {1.5f, -0.0f, 3e38f, 1e-45f};
    static const double f64[] = {0.1, -1e300};
    static const int32_t i32[] = {-1, INT32_MIN, INT32_MAX};
    static const int64_t i64[] = {-1, INT64_MIN, INT64_MAX};
    static const uint64_t u64[] = {5, UINT64_MAX};
    static const int8_t i8[] = {-128, 127, -1};
    const uint16_t f16[] = {pi_f16_from_f32(0.5f), pi_f16_from_f32(-65504.0f)};
    const uint16_t bf16[] = {pi_bf16_from_f32(1.0f), pi_bf16_from_f32(-3.0f)};
    const struct safetensor in[] = {
        {"i8", SAFETENSORS_I8, 1, {3}, i8, 3},
        {"f32", SAFETENSORS_F32, 2, {2, 2}, f32, 16},
        {"f64", SAFETENSORS_F64, 1, {2}, f64, 16},
        {"i32", SAFETENSORS_I32, 1, {3}, i32, 12},
        {"i64", SAFETENSORS_I64, 1, {3}, i64, 24},
        {"u64", SAFETENSORS_U64, 1, {2}, u64, 16},
        {"f16", SAFETENSORS_F16, 1, {2}, f16, 4},
        {"bf16", SAFETENSORS_BF16, 3, {1, 2, 1}, bf16, 4},
        {"none", SAFETENSORS_F32, 2, {0, 3}, NULL, 0},
        {"caf\xc3\xa9 \"\n", SAFETENSORS_U8, 0, {0}, "x", 1},
    };
    const struct safetensors_pair meta[] = {{"a", "b"}, {"q\"", "\xe2\x82\xac"}};
    size_t n = sizeof(in) / sizeof(*in);
    struct safetensors st;
    float x[4];
    double d[2];
    int64_t i[3];
    const char *path = in_folder("all.safetensors");
    check(safetensors_write(path, in, n, meta, 2, &err), &err);
    FILE *file = fopen(path, "rb");
    static uint8_t bytes[4096];
    size_t size = fread(bytes, 1, sizeof(bytes), file);
    fclose(file);
    assert_int_equal(bytes[0] % 8, 0); /* the data begin aligned */
    check(safetensors_parse(path, bytes, size, &st, &err), &err);
    assert_int_equal(st.n_tensor, n);
    for (size_t t = 0; t < n; t++) {
        const struct safetensor *out = safetensors_find(&st, in[t].name);
        assert_non_null(out);
        assert_int_equal(out->dtype, in[t].dtype);
        assert_int_equal(out->n_dim, in[t].n_dim);
        assert_memory_equal(out->dim, in[t].dim, sizeof(in[t].dim));
        assert_int_equal(out->size, in[t].size);
        if (out->size > 0)
            assert_memory_equal(out->data, in[t].data, out->size);
    }
    assert_true(safetensor_read_f32(safetensors_find(&st, "f32"), 0, 4, x));
    assert_memory_equal(x, f32, sizeof(f32));
    assert_true(safetensor_read_f64(safetensors_find(&st, "f64"), 0, 2, d));
    assert_memory_equal(d, f64, sizeof(f64));
    assert_true(safetensor_read_f32(safetensors_find(&st, "f16"), 0, 2, x));
    assert_true(x[0] == 0.5f && x[1] == -65504.0f);
    assert_true(safetensor_read_f32(safetensors_find(&st, "bf16"), 1, 1, x));
    assert_true(x[0] == -3.0f);
    assert_true(safetensor_read_i64(safetensors_find(&st, "i8"), 0, 3, i));
    assert_true(i[0] == -128 && i[1] == 127 && i[2] == -1);
    assert_true(safetensor_read_i64(safetensors_find(&st, "i32"), 0, 3, i));
    assert_true(i[0] == -1 && i[1] == INT32_MIN && i[2] == INT32_MAX);
    assert_true(safetensor_read_i64(safetensors_find(&st, "i64"), 0, 3, i));
    assert_memory_equal(i, i64, sizeof(i64));
    assert_true(safetensor_read_i64(safetensors_find(&st, "u64"), 0, 1, i));
    assert_false(safetensor_read_i64(safetensors_find(&st, "u64"), 0, 2, i));
    assert_string_equal(safetensors_meta(&st, "q\""), "\xe2\x82\xac");
    safetensors_free(&st);
}

TEST(refuses_writes_that_cannot_be_read)
{
    static const uint8_t data[8];
    const struct safetensor twice[] = {{"a", SAFETENSORS_U8, 1, {1}, data, 1},
                                       {"a", SAFETENSORS_U8, 1, {1}, data, 1}};
    const struct safetensor size = {"a", SAFETENSORS_I16, 1, {3}, data, 5};
    const struct safetensor meta = {"__metadata__", SAFETENSORS_U8, 1, {1}, data, 1};
    static const char *const not_utf8[] = {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xe2\x82",
                                           "\xf4\x90\x80\x80"};
    const char *path = in_folder("refused");
    expect(safetensors_write(path, twice, 2, NULL, 0, &err), &err, PITH_INVALID, "name is taken");
    expect(safetensors_write(path, &meta, 1, NULL, 0, &err), &err, PITH_INVALID, "name is taken");
    expect(safetensors_write(path, &size, 1, NULL, 0, &err), &err, PITH_INVALID, "5 bytes are not");
    for (size_t i = 0; i < sizeof(not_utf8) / sizeof(*not_utf8); i++) {
        const struct safetensor name = {not_utf8[i], SAFETENSORS_U8, 1, {1}, data, 1};
        const struct safetensors_pair text = {"key", not_utf8[i]};
        expect(safetensors_write(path, &name, 1, NULL, 0, &err), &err, PITH_INVALID, "not UTF-8");
        expect(safetensors_write(path, NULL, 0, &text, 1, &err), &err, PITH_INVALID, "not UTF-8");
    }
    expect(safetensors_write("/dev/full", twice, 1, NULL, 0, &err), &err, PITH_IO,
           "/dev/full: cannot write");
    expect(safetensors_write(in_folder("no/such"), twice, 1, NULL, 0, &err), &err, PITH_IO,
           "cannot create");
    assert_int_equal(count_files("refused"), 0);
}
