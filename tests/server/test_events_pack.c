/*
 * test_events_pack.c - changes of the cache as bytes of msgpack, against the format's
 * specification.
 */
#include <string.h>

#include "testing.h"

#include "events_pack.h"

#define PAGE 2

static void note(struct serve_bytes *list, pith_prefix_change change, bool first, uint64_t hash,
                 uint64_t parent, const int32_t *tokens)
{
    pith_prefix_event e = {change, first, hash, parent, tokens, PAGE};
    assert_true(pack_add(list, &e));
}

static void assert_batch(struct serve_bytes *list, const unsigned char *bytes, size_t len)
{
    static const unsigned char head[] = {0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0}; /* 1.5 */
    struct serve_bytes out = {0};
    assert_true(pack_batch(list, PAGE, 1.5, &out));
    assert_int_equal(out.len, sizeof(head) + len + 1);
    assert_memory_equal(out.data, head, sizeof(head));
    assert_memory_equal(out.data + sizeof(head), bytes, len);
    assert_int_equal(out.data[out.len - 1], 0);
    serve_bytes_free(&out);
    serve_bytes_free(list);
}

TEST(pages_of_one_text_are_one_event)
{
    static const int32_t tokens[] = {5, 200, 70000, 1};
    static const unsigned char expected[] = {
        0x91, 0x97, 0xab, 'B', 'l', 'o', 'c', 'k', 'S', 't', 'o', 'r', 'e', 'd',
        /* the hashes, and no parent */
        0x92, 0xcf, 1, 2, 3, 4, 5, 6, 7, 8, 0xcd, 0x12, 0x34, 0xc0,
        /* the tokens */
        0x94, 5, 0xcc, 200, 0xce, 0, 1, 0x11, 0x70, 1, PAGE, 0xc0, 0xc0};
    struct serve_bytes list = {0};
    note(&list, PITH_PREFIX_STORED, true, 0x0102030405060708, 0, tokens);
    note(&list, PITH_PREFIX_STORED, false, 0x1234, 0x0102030405060708, tokens + 2);
    assert_batch(&list, expected, sizeof(expected));
}

TEST(other_texts_and_other_changes_are_events_of_their_own)
{
    static const int32_t tokens[] = {1, 2};
    static const unsigned char expected[] = {
        0x94, 0x97, 0xab, 'B',  'l',  'o', 'c',  'k',  'S',  't',  'o',  'r',  'e', 'd',
        0x91, 9,    7,    0x92, 1,    2,   PAGE, 0xc0, 0xc0, 0x97, 0xab, 'B',  'l', 'o',
        'c',  'k',  'S',  't',  'o',  'r', 'e',  'd',  0x91, 10,   7,    0x92, 1,   2,
        PAGE, 0xc0, 0xc0, 0x93, 0xac, 'B', 'l',  'o',  'c',  'k',  'R',  'e',  'm', 'o',
        'v',  'e',  'd',  0x92, 10,   9,   0xc0, 0x91, 0xb0, 'A',  'l',  'l',  'B', 'l',
        'o',  'c',  'k',  's',  'C',  'l', 'e',  'a',  'r',  'e',  'd'};
    struct serve_bytes list = {0};
    note(&list, PITH_PREFIX_STORED, false, 9, 7, tokens);
    note(&list, PITH_PREFIX_STORED, false, 10, 7, tokens);
    note(&list, PITH_PREFIX_REMOVED, false, 10, 0, NULL);
    note(&list, PITH_PREFIX_REMOVED, false, 9, 0, NULL);
    note(&list, PITH_PREFIX_CLEARED, false, 0, 0, NULL);
    assert_batch(&list, expected, sizeof(expected));
}

TEST(long_lists_have_long_heads)
{
    static const int32_t tokens[] = {1, 1};
    struct serve_bytes list = {0}, out = {0};
    for (uint64_t i = 1; i <= 40000; i++)
        note(&list, PITH_PREFIX_STORED, i == 1, i, i - 1, tokens);
    assert_true(pack_batch(&list, PAGE, 0.0, &out));
    const unsigned char *at = (const unsigned char *)out.data + 10 + 1 + 1 + 12;
    static const unsigned char hashes[] = {0xdc, 40000 >> 8, 40000 & 255, 1, 2};
    assert_memory_equal(at, hashes, sizeof(hashes));
    /* 127 hashes of a byte, 128 of two, 32,512 and above of three or so: then tokens, 80,000 */
    static const unsigned char head[] = {0xc0, 0xdd, 0, 1, 80000 >> 8 & 255, 80000 & 255, 1, 1};
    at += 3 + 127 + 2 * 128 + 3 * (40000 - 255);
    assert_memory_equal(at, head, sizeof(head));
    serve_bytes_free(&list);
    serve_bytes_free(&out);
}
