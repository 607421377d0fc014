/*
 * kv_pages.h - for tests of pages that lanes share: small lanes, and the contents of their pages.
 * For one file of a test program, linked with kv_check.c.
 */
#ifndef PI_TEST_KV_PAGES_H
#define PI_TEST_KV_PAGES_H

#include <string.h>

#include "kv_by_page.h"
#include "kv_check.h"
#include "testing.h"

/* Four small lanes of two types. */
static const struct kv_geometry two_layers = {
    2,   2,    32, 32, 16, KV_TYPE_F16, KV_TYPE_F32, 0, 0, {KV_TYPE_Q8_0, 1, 0},
    {0}, NULL, 0,  0,  0,  NULL,        {0}};

static inline struct kv_seq *open_seq(struct kv_cache *cache)
{
    struct kv_seq *seq;
    assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
    return seq;
}

/* The entries of each page of lane (0, 0), as many as `n` lists up to -1; all lanes alike. */
static inline void assert_pages(const struct kv_seq *seq, const int32_t *n)
{
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++) {
        const struct kv_lane *lane = &seq->lane[l];
        int32_t i = 0;
        for (; n[i] >= 0; i++) {
            assert_true(i < lane->n_live);
            assert_int_equal(lane->table[i].n, n[i]);
        }
        assert_int_equal(lane->n_live, i);
    }
    kv_check_account(seq->cache, 0);
}

#define PAGES(...) ((const int32_t[]){__VA_ARGS__, -1})

static inline void must_fail(pith_status status, const pith_error *why, const char *says)
{
    assert_int_equal(status, PITH_INVALID);
    if (strstr(why->message, says) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", why->message, says);
}

#endif
