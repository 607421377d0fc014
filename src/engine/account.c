/*
 * account.c - one account of the memory that grows with conversations: its split between pages and
 * what stands beside them, and its parts as they are. It takes no memory and moves nothing.
 * Invariant: the parts that it lists sum to its total, and none is counted twice.
 */
#include "engine/account.h"

#include "engine/draft.h"

#include "base/mem.h"

/* ---- before there is an engine ---- */

/* What the pool knows of a page: its entries in lists, and a table's, which may have room for twice
   as many as it has. */
#define PAGE_TABLE_BYTES 40
#define TOKEN_BYTES 8 /* of a list of tokens, likewise */
#define CENTRE_ROWS 2 /* of head size, that recall's tier takes off a lane's keys */

int64_t pi_account_pages(const struct pi_account *a, int32_t n_token)
{
    return policy_set_bytes(a->policies, a->g, (struct keep_point){.n_token = n_token}) +
           kv_bytes_of_state(a->g);
}

static bool recalls_kv(const struct pi_account *a)
{
    return engine_traits_compute(a->policies).recalls_kv;
}

/* The tier of one sequence. */
static int64_t tier_at(const struct pi_account *a, int32_t n_token)
{
    const struct kv_geometry full = kv_full_lanes(a->g);
    const struct recall_config *recall = &a->policies->recall;
    if (!recalls_kv(a) || full.n_layer == 0)
        return 0;
    return a->ram != RECALL_RAM_AUTO ? a->ram
                                     : recall_tier_bytes_at(recall, &full, a->n_group, n_token);
}

/* Tables, marks, tokens, and the queries that recall remembers. */
static int64_t beside_at(const struct pi_account *a, int32_t n_token)
{
    const struct engine_traits t = engine_traits_compute(a->policies);
    const struct kv_geometry *g = a->g;
    int64_t n_lane = (int64_t)g->n_layer * g->n_head, bytes = TOKEN_BYTES * (int64_t)n_token;
    int64_t n_page = pi_ceil_div(pi_account_pages(a, n_token), (int64_t)kv_page_bytes(g)) + n_lane;
    int64_t mark = (int64_t)sizeof(float) * t.n_mark +
                   ((t.needs & KEEP_NEED_VALUE_NORM) != 0 ? (int64_t)sizeof(uint16_t) : 0);
    bytes += n_page * (PAGE_TABLE_BYTES + 2 * mark * g->page_len);
    if (t.recalls_kv)
        bytes += n_lane * (PAGE_TABLE_BYTES * (n_token / RECALL_PAGE_LEN + 1) +
                           (a->policies->recall.kv.last * (int64_t)a->n_group + CENTRE_ROWS) *
                               g->dim_k * (int64_t)sizeof(float));
    return bytes;
}

int64_t pi_account_whole(const struct pi_account *a, int32_t n_token)
{
    return pi_account_pages(a, n_token) + tier_at(a, n_token) + beside_at(a, n_token);
}

/* The most tokens of one sequence, up to the longest, that take no more than so many bytes. */
static int32_t most_tokens(const struct pi_account *a, int64_t bytes,
                           int64_t (*take)(const struct pi_account *, int32_t))
{
    int32_t low = 0, high = a->n_ctx;
    while (low < high) {
        int32_t mid = low + (high - low + 1) / 2;
        if (take(a, mid) <= bytes)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* part * whole / of, where all are bytes. */
static int64_t in_proportion(int64_t part, int64_t whole, int64_t of)
{
    return of > 0 ? (int64_t)((double)part / (double)of * (double)whole) : part;
}

int64_t pi_account_tier(const struct pi_account *a, int64_t pages)
{
    if (!recalls_kv(a) || a->ram != RECALL_RAM_AUTO)
        return a->ram;
    int32_t n = most_tokens(a, pages, pi_account_pages);
    int64_t one = tier_at(a, n);
    return n < a->n_ctx ? one : in_proportion(pages, one, pi_account_pages(a, n));
}

pith_status pi_account_split(const struct pi_account *a, int64_t budget, int64_t *pages,
                             int64_t *tier, pith_error *err)
{
    bool recalls = recalls_kv(a);
    bool asked = recalls && a->ram != RECALL_RAM_AUTO;
    int64_t ram = asked ? a->ram : 0, least = pi_account_whole(a, 1);
    if (asked && ram >= budget)
        return pi_fail(
            err, PITH_INVALID,
            "recall: ram: %lld bytes leave nothing to lanes of a KV memory of %lld bytes "
            "in all",
            (long long)ram, (long long)budget);
    if (budget < least)
        return pi_fail(err, PITH_INVALID,
                       "memory_bytes: %lld bytes are less than the %lld that one token takes: %lld "
                       "of pages, %lld of recall's tier, %lld of tables and what policies remember",
                       (long long)budget, (long long)least, (long long)pi_account_pages(a, 1),
                       (long long)tier_at(a, 1), (long long)beside_at(a, 1));
    int32_t n = (int32_t)pi_max(1, most_tokens(a, budget, pi_account_whole));
    /* The tier that was asked for does not grow with the budget; all else does. */
    int64_t whole = pi_account_whole(a, n) - ram;
    *pages =
        pi_max(pi_account_pages(a, n), in_proportion(pi_account_pages(a, n), budget - ram, whole));
    if (recalls && !asked)
        *tier = pi_max(tier_at(a, n), in_proportion(tier_at(a, n), budget, whole));
    return PITH_OK;
}

/* ---- of an engine ---- */

int64_t pi_account_remembered(const struct pith_seq *seq)
{
    const struct pith_engine *e = seq->engine;
    const struct pi_seq_recall *r = &seq->recall;
    size_t bytes = pi_mem_size(seq->keep_state) + pi_mem_size(seq->logits) + pi_mem_size(r->asked) +
                   pi_mem_size(r->found) + pi_mem_size(r->seconds);
    bool shares = e->share != NULL && seq->share != NULL;
    return (int64_t)bytes + (shares ? (int64_t)share_seq_bytes(seq->share) : 0);
}

static void add_seq(const struct pith_seq *seq, pith_memory_stats *out)
{
    const struct pi_seq_recall *r = &seq->recall;
    out->table_bytes += (int64_t)(sizeof(*seq) + pi_mem_size(seq->tokens));
    out->policy_bytes += pi_account_remembered(seq);
    out->draft_bytes += pi_draft_bytes(seq->draft);
    if (r->guests != NULL)
        out->guest_bytes += kv_seq_count_bytes(r->guests);
}

void pith_engine_memory_stats(const pith_engine *e, pith_memory_stats *out)
{
    struct kv_parts kv;
    struct recall_parts tier = {0};
    kv_cache_parts(e->kv, &kv);
    *out = (pith_memory_stats){
        .budget_bytes = e->memory_bytes,
        .state_bytes = kv.states,
        .idle_bytes = kv.idle,
        .aside_bytes = kv.aside,
        .table_bytes = kv.tables,
        .mark_bytes = kv.marks,
    };
    for (const struct pith_seq *seq = e->first; seq != NULL; seq = seq->next)
        add_seq(seq, out);
    for (const struct pith_seq *seq = e->first; seq != NULL; seq = seq->next)
        if (seq->recall.guests != NULL)
            kv_seq_uncount(seq->recall.guests);
    out->lane_bytes = kv.held - out->guest_bytes;
    if (e->traits.recalls_kv) {
        recall_tier_parts(e->recall->tier, &tier);
        out->tier_bytes = tier.pages;
        out->table_bytes += tier.tables;
        out->file_bytes = tier.file;
    }
    if (e->traits.recalls_text)
        out->text_bytes = recall_text_bytes(e->recall->text);
    out->work_bytes = tier.work + (int64_t)pi_pass_grown_bytes(e->pass) +
                      (e->keep != NULL ? (int64_t)keep_scratch_bytes(e->keep) : 0);
    out->total_bytes = out->lane_bytes + out->guest_bytes + out->state_bytes + out->idle_bytes +
                       out->tier_bytes + out->text_bytes + out->aside_bytes + out->table_bytes +
                       out->mark_bytes + out->policy_bytes + out->draft_bytes + out->work_bytes;
}
