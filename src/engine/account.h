/*
 * account.h - the memory that grows with conversations as one account: how a budget is split before
 * there is an engine, and where it went afterwards.
 */
#ifndef PI_ACCOUNT_H
#define PI_ACCOUNT_H

#include "policy/traits/traits.h"

/* The sizes that decide a conversation's memory. Borrowed, fitted. */
struct pi_account {
    const struct kv_geometry *g;
    const struct policy_set *policies;
    int32_t n_group; /* query heads of a KV head */
    int32_t n_ctx;   /* tokens of the longest conversation */
    int64_t ram;     /* of the tier, as it was asked for */
};

/* The pool's share of a page: its entries in lists, and a table's, which may have room for twice as
   many as it has. */
#define PI_TABLE_PAGE_BYTES 40

/* A policy's state of a sequence, and its row of logits. */
int64_t pi_account_remembered(const struct pith_seq *seq);

/* Bytes that one sequence of n_token tokens takes: of pages, and of everything. */
int64_t pi_account_pages(const struct pi_account *a, int32_t n_token);
int64_t pi_account_whole(const struct pi_account *a, int32_t n_token);

/* Pages of such a sequence, counting one more of each lane. */
int64_t pi_account_page_count(const struct pi_account *a, int32_t n_token);

/* Bytes of recall's tier beside pages of `pages` bytes. It is the size that was asked for, or where
   there is none, as much as sequences evict that fill those pages. 0 without a tier. */
int64_t pi_account_tier(const struct pi_account *a, int64_t pages);

/* Of a budget for everything the bytes of pages and of the tier (left alone where there is none).
   INVALID, with the numbers: it holds no token, or less than the tier that was asked for. */
pith_status pi_account_split(const struct pi_account *a, int64_t budget, int64_t *pages,
                             int64_t *tier, pith_error *err);

#endif
