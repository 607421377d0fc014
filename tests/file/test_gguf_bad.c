/*
 * test_gguf_bad.c - hand-made files with one mistake each. Every one must be refused with its own
 * sentence, which stands in the table beside the file, and leave no memory behind.
 */
#include "base/mem.h"
#include "file/gguf.h"
#include "gguf_bytes.h"

/* ---- the header ---- */

static void empty(struct bytes *b)
{
    b->len = 0;
}

static void short_magic(struct bytes *b)
{
    put_raw(b, "GGU", 3);
}

static void wrong_magic(struct bytes *b)
{
    put_header(b, 3, 0, 0);
    memcpy(b->data, "ggj\x01", 4);
}

static void only_magic(struct bytes *b)
{
    put_raw(b, "GGUF", 4);
}

static void version_0(struct bytes *b)
{
    put_header(b, 0, 0, 0);
}
static void version_1(struct bytes *b)
{
    put_header(b, 1, 0, 0);
}
static void version_4(struct bytes *b)
{
    put_header(b, 4, 0, 0);
}

static void big_endian(struct bytes *b)
{
    put_header(b, 0x03000000, 0, 0);
}

static void cut(struct bytes *b, size_t len)
{
    assert_true(len <= b->len);
    b->len = len;
}

static void cut_in_tensor_count(struct bytes *b)
{
    put_header(b, 3, 0, 0);
    cut(b, 15);
}

static void cut_in_key_count(struct bytes *b)
{
    put_header(b, 3, 0, 0);
    cut(b, 16);
}

static void absurd_tensor_count(struct bytes *b)
{
    put_header(b, 3, UINT64_MAX, 0);
}

static void absurd_key_count(struct bytes *b)
{
    put_header(b, 3, 0, 1ull << 60);
}

/* As many tensors as the whole file could hold, but not the bytes after the keys. */
static void tensor_count_after_keys(struct bytes *b)
{
    put_header(b, 3, 2, 1);
    put_key(b, "padding", PI_GGUF_STRING);
    put_text(b, "1234567890123456789012345678901234567890");
}

/* ---- keys ---- */

static void cut_in_key_length(struct bytes *b)
{
    put_header(b, 3, 0, 2);
    put_key(b, "first", PI_GGUF_STRING);
    put_text(b, "as long as a second key");
    put_u32(b, 6);
}

static void long_key(struct bytes *b)
{
    put_header(b, 3, 0, 1);
    put_u64(b, 1ull << 63);
    put_zeros(b, 16);
}

static void empty_key(struct bytes *b)
{
    put_header(b, 3, 0, 1);
    put_key(b, "", PI_GGUF_U32);
    put_u32(b, 7);
}

static void key_above_limit(struct bytes *b)
{
    put_header(b, 3, 0, 1);
    put_u64(b, 65536);
    for (int i = 0; i < 65536; i++)
        put_raw(b, "k", 1);
    put_u32(b, PI_GGUF_U32);
    put_u32(b, 7);
}

static void key_with_zero(struct bytes *b)
{
    put_header(b, 3, 0, 1);
    put_u64(b, 3);
    put_raw(b, "a\0b", 3);
    put_u32(b, PI_GGUF_U32);
    put_u32(b, 7);
}

static void cut_in_value_type(struct bytes *b)
{
    put_header(b, 3, 0, 1);
    put_text(b, "a.long.key");
    put_int(b, 4, 3);
}

static void unknown_value_type(struct bytes *b)
{
    put_header(b, 3, 0, 1);
    put_key(b, "key", 13);
    put_u64(b, 0);
}

static void cut_in_string_length(struct bytes *b)
{
    put_header(b, 3, 0, 1);
    put_key(b, "key", PI_GGUF_STRING);
    put_u32(b, 1);
}

static void long_string(struct bytes *b)
{
    put_header(b, 3, 0, 1);
    put_key(b, "key", PI_GGUF_STRING);
    put_u64(b, 9);
    put_raw(b, "12345678", 8);
}

static void cut_in_value(struct bytes *b)
{
    put_header(b, 3, 0, 1);
    put_key(b, "key", PI_GGUF_F64);
    put_u32(b, 0);
}

static void bad_bool(struct bytes *b)
{
    put_header(b, 3, 0, 1);
    put_key(b, "key", PI_GGUF_BOOL);
    put_int(b, 2, 1);
}

static void duplicate_key(struct bytes *b)
{
    put_header(b, 3, 0, 3);
    for (int i = 0; i < 3; i++) {
        put_key(b, i == 1 ? "between" : "twice", PI_GGUF_U32);
        put_u32(b, 0);
    }
}

/* ---- arrays ---- */

static void put_array(struct bytes *b, uint32_t item_type, uint64_t n_item)
{
    put_header(b, 3, 0, 1);
    put_key(b, "list", PI_GGUF_ARRAY);
    put_u32(b, item_type);
    put_u64(b, n_item);
}

static void cut_in_item_type(struct bytes *b)
{
    put_array(b, PI_GGUF_U32, 0);
    cut(b, b->len - 9);
}

static void cut_in_array_length(struct bytes *b)
{
    put_array(b, PI_GGUF_U32, 0);
    cut(b, b->len - 1);
}

static void unknown_item_type(struct bytes *b)
{
    put_array(b, 4294967295u, 0);
}

static void nested_array(struct bytes *b)
{
    put_array(b, PI_GGUF_ARRAY, 1);
    put_u32(b, PI_GGUF_U8);
    put_u64(b, 0);
}

/* 2^62 items of 4 bytes: the product is 0 in 64 bits. */
static void array_overflow(struct bytes *b)
{
    put_array(b, PI_GGUF_U32, 1ull << 62);
}

static void cut_in_array(struct bytes *b)
{
    put_array(b, PI_GGUF_I16, 3);
    put_u32(b, 0);
}

static void too_many_strings(struct bytes *b)
{
    put_array(b, PI_GGUF_STRING, 3);
    put_text(b, "a");
    put_text(b, "b");
}

static void long_string_in_array(struct bytes *b)
{
    put_array(b, PI_GGUF_STRING, 2);
    put_text(b, "a");
    put_u64(b, UINT64_MAX);
}

/* The count of strings fits by their length fields, but the first one uses the others' bytes up. */
static void cut_in_string_array(struct bytes *b)
{
    put_array(b, PI_GGUF_STRING, 2);
    put_text(b, "12345678");
}

static void bad_bool_in_array(struct bytes *b)
{
    put_array(b, PI_GGUF_BOOL, 3);
    put_raw(b, "\x01\x00\xff", 3);
}

/* ---- alignment ---- */

static void put_alignment(struct bytes *b, uint32_t type, uint32_t v)
{
    put_header(b, 3, 0, 1);
    put_key(b, "general.alignment", type);
    put_int(b, v, type == PI_GGUF_U64 ? 8 : 4);
}

static void alignment_type(struct bytes *b)
{
    put_alignment(b, PI_GGUF_U64, 32);
}
static void alignment_0(struct bytes *b)
{
    put_alignment(b, PI_GGUF_U32, 0);
}
static void alignment_4(struct bytes *b)
{
    put_alignment(b, PI_GGUF_U32, 4);
}
static void alignment_48(struct bytes *b)
{
    put_alignment(b, PI_GGUF_U32, 48);
}

/* ---- tensors ---- */

static void cut_in_tensor(struct bytes *b, size_t size)
{
    put_header(b, 3, 2, 0);
    put_tensor(b, "the.first.tensor.with.a.longer.name", 8, 1, 0, 0);
    put_tensor(b, "second", 8, 1, 0, 32);
    cut(b, b->len - size);
}

static void cut_in_offset(struct bytes *b)
{
    cut_in_tensor(b, 1);
}
static void cut_in_weight_type(struct bytes *b)
{
    cut_in_tensor(b, 9);
}
static void cut_in_dimension(struct bytes *b)
{
    cut_in_tensor(b, 13);
}
static void cut_in_dimension_count(struct bytes *b)
{
    cut_in_tensor(b, 29);
}
static void cut_in_tensor_name(struct bytes *b)
{
    cut_in_tensor(b, 33);
}

static void empty_tensor_name(struct bytes *b)
{
    put_header(b, 3, 1, 0);
    put_tensor(b, "", 8, 1, 0, 0);
}

static void long_tensor_name(struct bytes *b)
{
    put_header(b, 3, 1, 0);
    put_tensor(b, "12345678901234567890123456789012345678901234567890123456789012345", 8, 0, 0, 0);
}

static void tensor_name_with_zero(struct bytes *b)
{
    put_header(b, 3, 1, 0);
    put_tensor(b, "a.weight", 8, 0, 0, 0);
    b->data[24 + 8 + 1] = 0;
}

static void no_dimensions(struct bytes *b)
{
    put_header(b, 3, 1, 0);
    put_tensor(b, "weight", 8, 0, 0, 0);
    b->data[24 + 8 + 6] = 0;
}

static void five_dimensions(struct bytes *b)
{
    put_header(b, 3, 1, 0);
    put_text(b, "weight");
    put_u32(b, 5);
    for (int d = 0; d < 5; d++)
        put_u64(b, 1);
    put_u32(b, 0);
    put_u64(b, 0);
}

static void put_one_tensor(struct bytes *b, uint64_t ne0, uint64_t ne1, uint32_t type,
                           uint64_t offset)
{
    put_header(b, 3, 1, 0);
    put_tensor(b, "weight", ne0, ne1, type, offset);
    put_padding(b, 32);
    put_zeros(b, 64);
}

static void zero_dimension(struct bytes *b)
{
    put_one_tensor(b, 0, 1, 0, 0);
}
static void huge_dimension(struct bytes *b)
{
    put_one_tensor(b, 8, 1ull << 63, 0, 0);
}
static void dimension_product(struct bytes *b)
{
    put_one_tensor(b, 1ull << 32, 1ull << 31, 0, 0);
}
static void size_overflow(struct bytes *b)
{
    put_one_tensor(b, 1, 1ull << 62, 0, 0);
}
static void row_overflow(struct bytes *b)
{
    put_one_tensor(b, 3ull << 61, 1, 0, 0);
}
static void row_q4_0(struct bytes *b)
{
    put_one_tensor(b, 48, 1, 2, 0);
}
static void row_q6_k(struct bytes *b)
{
    put_one_tensor(b, 128, 1, 14, 0);
}
static void misaligned(struct bytes *b)
{
    put_one_tensor(b, 8, 1, 0, 16);
}
static void beyond_file(struct bytes *b)
{
    put_one_tensor(b, 8, 1, 0, 96);
}
static void far_beyond_file(struct bytes *b)
{
    put_one_tensor(b, 8, 1, 0, UINT64_MAX - 31);
}
static void reach_beyond_file(struct bytes *b)
{
    put_one_tensor(b, 8, 3, 0, 32);
}

/* A weight type that Pith does not know has no size to check, but its place is checked. */
static void unknown_type_beyond_file(struct bytes *b)
{
    put_one_tensor(b, 7, 1, 99, 1 << 20);
}

static void no_data_section(struct bytes *b)
{
    put_header(b, 3, 1, 0);
    put_tensor(b, "weight", 8, 1, 0, 0);
}

static void put_two_tensors(struct bytes *b, const char *a, uint64_t offset_a, const char *c,
                            uint64_t offset_c)
{
    put_header(b, 3, 2, 0);
    put_tensor(b, a, 8, 2, 0, offset_a);
    put_tensor(b, c, 8, 2, 0, offset_c);
    put_padding(b, 32);
    put_zeros(b, 128);
}

static void duplicate_tensor(struct bytes *b)
{
    put_two_tensors(b, "same", 0, "same", 64);
}
static void overlap(struct bytes *b)
{
    put_two_tensors(b, "high", 32, "low", 0);
}
static void same_place(struct bytes *b)
{
    put_two_tensors(b, "one", 64, "two", 64);
}

/* ---- the set ---- */

static const struct {
    void (*put)(struct bytes *b);
    const char *sentence;
} files[] = {
    {empty, "not a GGUF file: it has 0 bytes, less than the magic \"GGUF\""},
    {short_magic, "not a GGUF file: it has 3 bytes, less than the magic \"GGUF\""},
    {wrong_magic, "not a GGUF file: the magic is \"ggj?\", not \"GGUF\""},
    {only_magic, "the file ends at byte 4, inside the version"},
    {version_0, "GGUF version 0 is not supported (2 and 3 are)"},
    {version_1, "GGUF version 1 is not supported (2 and 3 are)"},
    {version_4, "GGUF version 4 is not supported (2 and 3 are)"},
    {big_endian, "the file is big-endian (version 0x03000000), which is not supported"},
    {cut_in_tensor_count, "the file ends at byte 15, inside the number of tensors"},
    {cut_in_key_count, "the file ends at byte 16, inside the number of keys"},
    {absurd_tensor_count,
     "the number of tensors 18446744073709551615 is more than the 8 bytes left could hold"},
    {absurd_key_count,
     "the number of keys 1152921504606846976 is more than the 0 bytes left could hold"},
    {tensor_count_after_keys, "2 tensors do not fit into the 0 bytes after the keys"},

    {cut_in_key_length, "key 1: the file ends at byte 76, inside the name"},
    {long_key, "key 0: the name of 9223372036854775808 bytes is longer than the 16 bytes left in "
               "the file"},
    {empty_key, "key 0: the name is empty"},
    {key_above_limit, "key 0: the name has 65536 bytes, more than the 65535 allowed"},
    {key_with_zero, "key 0: the name holds a zero byte"},
    {cut_in_value_type, "key \"a.long.key\": the file ends at byte 45, inside the value's type"},
    {unknown_value_type, "key \"key\": the value's type 13 is unknown"},
    {cut_in_string_length, "key \"key\": the file ends at byte 43, inside the string"},
    {long_string, "key \"key\": the string of 9 bytes is longer than the 8 bytes left in the file"},
    {cut_in_value, "key \"key\": 1 x f64 does not fit into the 4 bytes left"},
    {bad_bool, "key \"key\": a bool has the value 2, not 0 or 1"},
    {duplicate_key, "key \"twice\": the name stands twice in the file"},

    {cut_in_item_type, "key \"list\": the file ends at byte 43, inside the array's item type"},
    {cut_in_array_length, "key \"list\": the file ends at byte 51, inside the array's length"},
    {unknown_item_type, "key \"list\": the array's item type 4294967295 is unknown"},
    {nested_array, "key \"list\": an array of arrays is not supported"},
    {array_overflow, "key \"list\": 4611686018427387904 x u32 does not fit into the 0 bytes left"},
    {cut_in_array, "key \"list\": 3 x i16 does not fit into the 4 bytes left"},
    {too_many_strings, "key \"list\": an array of 3 strings does not fit into the 18 bytes left"},
    {long_string_in_array, "key \"list\": a string of the array of 18446744073709551615 bytes is "
                           "longer than the 0 bytes left in the file"},
    {cut_in_string_array, "key \"list\": the file ends at byte 68, inside a string of the array"},
    {bad_bool_in_array, "key \"list\": a bool has the value 255, not 0 or 1"},

    {alignment_type, "key \"general.alignment\": the type is u64, not u32"},
    {alignment_0, "key \"general.alignment\": the alignment 0 is not a power of two of at least 8"},
    {alignment_4, "key \"general.alignment\": the alignment 4 is not a power of two of at least 8"},
    {alignment_48,
     "key \"general.alignment\": the alignment 48 is not a power of two of at least 8"},

    {cut_in_offset, "tensor \"second\": the file ends at byte 144, inside the offset"},
    {cut_in_weight_type, "tensor \"second\": the file ends at byte 136, inside the weight type"},
    {cut_in_dimension, "tensor \"second\": the file ends at byte 132, inside a dimension"},
    {cut_in_dimension_count,
     "tensor \"second\": the file ends at byte 116, inside the number of dimensions"},
    {cut_in_tensor_name,
     "tensor 1: the name of 6 bytes is longer than the 5 bytes left in the file"},
    {empty_tensor_name, "tensor 0: the name is empty"},
    {long_tensor_name, "tensor 0: the name has 65 bytes, more than the 64 allowed"},
    {tensor_name_with_zero, "tensor 0: the name holds a zero byte"},
    {no_dimensions, "tensor \"weight\": the number of dimensions 0 is not 1 to 4"},
    {five_dimensions, "tensor \"weight\": the number of dimensions 5 is not 1 to 4"},
    {zero_dimension, "tensor \"weight\": dimension 0 is 0"},
    {huge_dimension, "tensor \"weight\": dimension 1 is 9223372036854775808: the number of weights "
                     "overflows"},
    {dimension_product,
     "tensor \"weight\": dimension 1 is 2147483648: the number of weights overflows"},
    {size_overflow, "tensor \"weight\": 4611686018427387904 rows of 1 weights overflow the size"},
    {row_overflow, "tensor \"weight\": 1 rows of 6917529027641081856 weights overflow the size"},
    {row_q4_0,
     "tensor \"weight\": a row of 48 weights is not a multiple of the 32 of a Q4_0 block"},
    {row_q6_k,
     "tensor \"weight\": a row of 128 weights is not a multiple of the 256 of a Q6_K block"},
    {misaligned, "tensor \"weight\": offset 16 is not a multiple of the alignment 32"},
    {beyond_file, "tensor \"weight\": offset 96 lies beyond the end of the file (size 160, data "
                  "from byte 96)"},
    {far_beyond_file, "tensor \"weight\": offset 18446744073709551584 lies beyond the end of the "
                      "file (size 160, data from byte 96)"},
    {reach_beyond_file, "tensor \"weight\": 96 bytes at offset 32 reach beyond the end of the file "
                        "(size 160, data from byte 96)"},
    {unknown_type_beyond_file, "tensor \"weight\": offset 1048576 lies beyond the end of the file "
                               "(size 160, data from byte 96)"},
    {no_data_section, "the data section starts at byte 96, beyond the end of the file (size 70)"},
    {duplicate_tensor, "tensor \"same\": the name stands twice in the file"},
    {overlap, "tensor \"high\": offset 32 lies inside tensor \"low\" (offset 0, 64 bytes)"},
    {same_place, "tensor \"two\": offset 64 lies inside tensor \"one\" (offset 64, 64 bytes)"},
};

/* Parses a copy of exactly the file's size, so that a sanitizer sees the first byte too many. */
static pith_status parse_copy(const struct bytes *b, pith_error *why)
{
    struct pi_gguf g;
    uint8_t *copy = malloc(b->len > 0 ? b->len : 1);
    assert_non_null(copy);
    memcpy(copy, b->data, b->len);
    pith_status status = pi_gguf_parse(&g, copy, b->len, "bad.gguf", why);
    pi_gguf_free(&g);
    free(copy);
    return status;
}

TEST(each_file_has_its_sentence)
{
    static struct bytes b;
    char expected[256];
    const int64_t used = pi_mem_used(PI_MEM_MODEL);
    for (size_t i = 0; i < PI_LEN(files); i++) {
        err = (pith_error){0};
        b.len = 0;
        files[i].put(&b);
        snprintf(expected, sizeof(expected), "bad.gguf: %s", files[i].sentence);
        pith_status status = parse_copy(&b, &err);
        assert_string_equal(err.message, expected);
        assert_int_equal(status, PITH_FORMAT);
        assert_int_equal(err.status, PITH_FORMAT);
        assert_int_equal(pi_mem_used(PI_MEM_MODEL), used);
    }
}

TEST(every_sentence_is_its_own)
{
    assert_true(PI_LEN(files) >= 40);
    for (size_t i = 0; i < PI_LEN(files); i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(files[i].sentence, files[k].sentence);
}

/* A name of any bytes and a path of any length leave a sentence that can be printed. */
TEST(messages_are_printable)
{
    static struct bytes b;
    char path[400] = {0};
    struct pi_gguf g;
    put_header(&b, 3, 0, 1);
    put_key(&b, "esc\x1b[31m\xff and a name that is much longer than fits into a message", 77);
    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1 - 80] = (char)0xbc; /* the message's path would begin inside a letter */
    assert_int_equal(pi_gguf_parse(&g, b.data, b.len, path, &err), PITH_FORMAT);
    for (const char *c = err.message; *c != 0; c++)
        assert_in_range(*c, 0x20, 0x7e);
    assert_non_null(strstr(err.message, "pp: key \"esc?[31m? and a name"));
    assert_non_null(strstr(err.message, "...\": the value's type 77 is unknown"));
}
