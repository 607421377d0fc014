/*
 * account.h - the memory that grows with conversations as one account: how a budget is split before
 * there is an engine, and where it went afterwards.
 */
#ifndef PI_ACCOUNT_H
#define PI_ACCOUNT_H

#include "policy/traits/traits.h"

/* The shape of a conversation's memory. Borrowed, fitted. */
struct pi_account {
    const struct kv_geometry *g;
    const struct policy_set *policies;
    int32_t n_group;  /* query heads of a KV head */
    int32_t n_ctx;    /* tokens of the longest conversation */
    int64_t ram;      /* of the tier, as it was asked for */
    size_t mark_size; /* bytes beside an entry */
    const struct policy_model *model;
    struct keep *keep; /* made for its sizes; NULL: there is no keep policy, or pages alone count */
};

/* The model as policies see it; lanes as kv_full_lanes gives them. */
struct policy_model pi_policy_model(const struct pith_model *model,
                                    const struct kv_geometry *lanes);

/* Bytes that one sequence of n_token tokens takes: of pages, and of everything. */
int64_t pi_account_pages(const struct pi_account *a, int32_t n_token);
int64_t pi_account_whole(const struct pi_account *a, int32_t n_token);

/* Tokens that a sequence may come to whose first n_token fill the pages. Where a policy's budget
   bounds these, the sequence goes on behind them, up to the longest. */
int32_t pi_account_reach(const struct pi_account *a, int32_t n_token);
/* Bytes beside pages and tier: those that the sequence has of its own, and the engine's. The latter
   are buffers and lists of pages, once for all sequences. With pages and tier the two sum to
   pi_account_whole. */
int64_t pi_account_own(const struct pi_account *a, int32_t n_token);
int64_t pi_account_shared(const struct pi_account *a, int32_t n_token);

/* Pages of such a sequence, counting one more of each lane. */
int64_t pi_account_page_count(const struct pi_account *a, int32_t n_token);

/* Threads that rounds and recalls run on, whatever their processor has. Each has buffers as long as
   the lanes. There are as many as a part of the sequence's other bytes pays for, and one at least.
   So the bytes that a budget leaves to entries are the same on any machine. The sequence is the
   longest that the budget holds; budget 0: that fills pages of `pages` bytes. */
int32_t pi_account_workers(const struct pi_account *a, int64_t budget, int64_t pages);

/* Bytes of recall's tier beside pages of `pages` bytes: the size that was asked for. Without one
   it is as much as sequences evict that fill those pages. 0 without a tier. */
int64_t pi_account_tier(const struct pi_account *a, int64_t pages);

/* Of a budget for everything the bytes of pages and of the tier (left alone where there is none).
   INVALID, with the numbers: it holds no token, or less than the tier that was asked for. */
pith_status pi_account_split(const struct pi_account *a, int64_t budget, int64_t *pages,
                             int64_t *tier, pith_error *err);

/* ---- of an engine ---- */

struct pith_engine;
struct pith_seq;

/* Bytes of one sequence beside pages, as they are. Nothing of it is another's, and all of it comes
   free with the sequence. */
struct pi_own {
    int64_t tables; /* of its lanes, with marks, which the cache counts, too */
    int64_t list;   /* itself, and its tokens */
    int64_t policy; /* what verbs remember */
    int64_t text;   /* its share of recall's text */
};

static inline int64_t pi_own_sum(const struct pi_own *own)
{
    return own->tables + own->list + own->policy + own->text;
}

struct pi_own pi_seq_own(const struct pith_seq *seq);

/* Bytes of a common budget for pages and what stands beside them, recall's tier left out; 0: pages
   alone have a budget. */
int64_t pi_engine_room(const struct pith_engine *e);
/* Bytes of the engine's buffers and lists, and of the tables and the text of all its sequences,
   swapped ones included. */
int64_t pi_engine_beside(const struct pith_engine *e);
/* pi_account_own and pi_account_shared of an engine that is there. */
int64_t pi_engine_own_at(const struct pith_engine *e, int32_t n_token);
int64_t pi_engine_shared_at(const struct pith_engine *e, int32_t n_token);

#endif
