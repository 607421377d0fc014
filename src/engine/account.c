/*
 * account.c - one account of the memory that grows with conversations: its split between pages and
 * what stands beside them, and its parts as they are. It takes no memory and moves nothing.
 * Invariant: the parts that it lists sum to its total, and none is counted twice. A budget holds
 * the total of one sequence on one device, whatever it reads.
 */
#include "engine/engine.h"

#include "base/mem.h"
#include "engine/over_ranks.h"

/* ---- before there is an engine ---- */

struct policy_model pi_policy_model(const pith_model *model, const struct kv_geometry *lanes)
{
    return (struct policy_model){
        .g = *lanes,
        .n_group = pi_shape_group(&model->hp),
        .scale = model->hp.attn_scale,
        .rope = pi_model_rope(model),
        .lane_rope = model->kv_rope,
        .model = model,
    };
}

#define N_KIND 8 /* forms of pages at most, states' parts included */

/* A list of tokens, which may have room for an eighth more, or for PI_SEQ_GROWTH. */
static int64_t list_at(int64_t n_token)
{
    return 5 * n_token + PI_SEQ_GROWTH * (int64_t)sizeof(int32_t);
}

int64_t pi_account_pages(const struct pi_account *a, int32_t n_token)
{
    return policy_set_bytes(a->policies, a->g, (struct keep_point){.n_token = n_token}) +
           kv_bytes_of_state(a->g);
}

int32_t pi_account_reach(const struct pi_account *a, int32_t n_token)
{
    bool goes_on = pi_account_pages(a, n_token) >= pi_account_pages(a, a->n_ctx);
    return (int32_t)pi_max(n_token, goes_on ? a->n_ctx : 0);
}

int64_t pi_account_page_count(const struct pi_account *a, int32_t n_token)
{
    int64_t n_lane = (int64_t)a->g->n_layer * a->g->n_head;
    return pi_ceil_div(pi_account_pages(a, n_token), (int64_t)kv_page_bytes(a->g)) + n_lane;
}

/* Bytes of a sequence's tables and marks. Lanes with windows follow no budget. */
static int64_t tables_at(const struct pi_account *a, int32_t n_token)
{
    const struct keep_config *keep = &a->policies->keep;
    int64_t longest = keep_longest_at(keep, &a->model->g, n_token);
    int64_t all = keep_together_at(keep, &a->model->g, n_token);
    for (int32_t l = a->model->g.n_layer; l < a->g->n_layer; l++) {
        int64_t most = pi_min(n_token, (int64_t)a->g->window[l] + a->g->step_len);
        longest = pi_max(longest, most);
        all += a->g->n_head * most;
    }
    return kv_seq_bytes_at(a->g, a->mark_size, (int32_t)longest, all);
}

/* Tables, blocks of prefixes, tokens, marks, and what verbs have beside pages. */
static int64_t beside_at(const struct pi_account *a, int32_t n_token)
{
    int64_t n_reach = pi_account_reach(a, n_token);
    return (int64_t)sizeof(struct pith_seq) + list_at(n_reach) + tables_at(a, n_token) +
           kv_cache_bytes_at(N_KIND, pi_account_page_count(a, n_token)) +
           n_token / a->g->page_len * kv_block_head_bytes(a->g) + pi_verbs_beside_at(a, n_token);
}

/* The most threads that have buffers, and the part of the other bytes that buffers may take. One
   buffer may take more. */
enum { WORKERS_MOST = 16, WORKERS_PART = 16 };

static int64_t without_work(const struct pi_account *a, int32_t n_token)
{
    return pi_account_pages(a, n_token) + pi_verbs_tier_at(a, n_token) + beside_at(a, n_token);
}

/* Bytes that are there for the buffers of threads. It grows with the tokens as all its parts do,
   which the bytes of as many buffers as fit would not. */
static int64_t work_at(const struct pi_account *a, int32_t n_token)
{
    int64_t least = pi_verbs_work_at(a, n_token, 1);
    int64_t most = pi_verbs_work_at(a, n_token, WORKERS_MOST);
    return pi_max(least, pi_min(most, without_work(a, n_token) / WORKERS_PART));
}

int64_t pi_account_own(const struct pi_account *a, int32_t n_token)
{
    return (int64_t)sizeof(struct pith_seq) + list_at(n_token) + tables_at(a, n_token) +
           pi_verbs_own_at(a, n_token);
}

int64_t pi_account_shared(const struct pi_account *a, int32_t n_token)
{
    return beside_at(a, n_token) + work_at(a, n_token) - pi_account_own(a, n_token);
}

int64_t pi_account_whole(const struct pi_account *a, int32_t n_token)
{
    return without_work(a, n_token) + work_at(a, n_token);
}

/* The most tokens of one sequence, up to the longest, that take no more than `bytes`. */
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

int32_t pi_account_workers(const struct pi_account *a, int64_t budget, int64_t pages)
{
    int32_t n = budget > 0 ? most_tokens(a, budget, pi_account_whole)
                           : most_tokens(a, pages, pi_account_pages);
    int64_t bytes = work_at(a, n);
    int32_t n_worker = WORKERS_MOST;
    while (n_worker > 1 && pi_verbs_work_at(a, n, n_worker) > bytes)
        n_worker--;
    return n_worker;
}

/* part * whole / of, where all are bytes. */
static int64_t in_proportion(int64_t part, int64_t whole, int64_t of)
{
    return of > 0 ? (int64_t)((double)part / (double)of * (double)whole) : part;
}

int64_t pi_account_tier(const struct pi_account *a, int64_t pages)
{
    if (!pi_verbs_have_tier(a) || a->ram != RECALL_RAM_AUTO)
        return a->ram;
    int32_t n = most_tokens(a, pages, pi_account_pages);
    int64_t one = pi_verbs_tier_at(a, n);
    return n < a->n_ctx ? one : in_proportion(pages, one, pi_account_pages(a, n));
}

pith_status pi_account_split(const struct pi_account *a, int64_t budget, int64_t *pages,
                             int64_t *tier, pith_error *err)
{
    bool has_tier = pi_verbs_have_tier(a);
    bool asked = has_tier && a->ram != RECALL_RAM_AUTO;
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
                       "of pages, %lld of recall's tier, %lld of tables and policies",
                       (long long)budget, (long long)least, (long long)pi_account_pages(a, 1),
                       (long long)pi_verbs_tier_at(a, 1),
                       (long long)(beside_at(a, 1) + work_at(a, 1)));
    int32_t n = (int32_t)pi_max(1, most_tokens(a, budget, pi_account_whole));
    /* The tier that was asked for does not grow with the budget; all else does. */
    int64_t whole = pi_account_whole(a, n) - ram;
    *pages =
        pi_max(pi_account_pages(a, n), in_proportion(pi_account_pages(a, n), budget - ram, whole));
    if (has_tier && !asked)
        *tier =
            pi_max(pi_verbs_tier_at(a, n), in_proportion(pi_verbs_tier_at(a, n), budget, whole));
    return PITH_OK;
}

/* ---- of an engine ---- */

/* Text is of the engine's store. Another's end may leave it less than was noted. */
static void count_away(const struct pi_own *own, pith_memory_stats *out)
{
    int64_t text = pi_min(own->text, out->text_bytes);
    out->table_bytes -= own->tables;
    out->text_bytes -= text;
    out->aside_bytes += own->tables + own->list + own->policy + text;
}

static void add_seq(const struct pith_seq *seq, pith_memory_stats *out)
{
    if (seq->is_away) {
        count_away(&seq->away, out);
    } else {
        out->table_bytes += (int64_t)(sizeof(*seq) + pi_mem_size(seq->tokens));
        out->policy_bytes += pi_verbs_remembered(seq);
    }
    out->logits_bytes += (int64_t)pi_mem_size(seq->logits);
    out->draft_bytes += pi_verbs_draft_bytes(seq);
    for (int32_t i = 0; i < seq->engine->n_verb; i++)
        if (pi_verbs_beside(seq, i) != NULL)
            out->guest_bytes += kv_seq_count_bytes(pi_verbs_beside(seq, i));
}

static void uncount_beside(const struct pith_seq *seq)
{
    for (int32_t i = 0; i < seq->engine->n_verb; i++)
        if (pi_verbs_beside(seq, i) != NULL)
            kv_seq_uncount(pi_verbs_beside(seq, i));
}

struct pi_own pi_seq_own(const struct pith_seq *seq)
{
    if (seq->is_away)
        return seq->away;
    struct pi_own own = {
        .tables = kv_seq_beside_bytes(seq->memory.kv),
        .list = (int64_t)(sizeof(*seq) + pi_mem_size(seq->tokens)),
        .policy = pi_verbs_remembered(seq),
        .text = pi_verbs_text_bytes(seq),
    };
    for (int32_t i = 0; i < seq->engine->n_verb; i++)
        if (pi_verbs_beside(seq, i) != NULL)
            own.tables += kv_seq_beside_bytes(pi_verbs_beside(seq, i));
    return own;
}

int64_t pi_engine_room(const struct pith_engine *e)
{
    int64_t tier = e->traits.recalls_kv ? e->policies.recall.kv.ram : 0;
    return e->memory_bytes > 0 ? pi_over_ranks_part(e->model, e->memory_bytes) - tier : 0;
}

int64_t pi_engine_beside(const struct pith_engine *e)
{
    pith_memory_stats of = {0};
    pi_verbs_count(e, &of);
    return kv_cache_beside_bytes(e->kv) + of.table_bytes + of.text_bytes + of.work_bytes +
           (int64_t)pi_pass_watched_bytes(e->pass);
}

/* The account that an engine was made by. */
static int64_t ask_account(const struct pith_engine *e, int32_t n_token,
                           int64_t (*ask)(const struct pi_account *, int32_t))
{
    const struct policy_model model = pi_engine_policy_model(e);
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    const struct pi_account a = {
        .g = g,
        .policies = &e->policies,
        .n_group = model.n_group,
        .n_ctx = e->model->hp.n_ctx_train,
        .ram = e->policies.recall.kv.ram,
        .mark_size = pi_keep_mark_size(&e->policies, g),
        .model = &model,
        .keep = e->keep.handle,
    };
    return ask(&a, n_token);
}

int64_t pi_engine_own_at(const struct pith_engine *e, int32_t n_token)
{
    return ask_account(e, n_token, pi_account_own);
}

int64_t pi_engine_shared_at(const struct pith_engine *e, int32_t n_token)
{
    return ask_account(e, n_token, pi_account_shared);
}

void pith_engine_memory_stats(const pith_engine *e, pith_memory_stats *out)
{
    struct kv_parts kv;
    kv_cache_parts(e->kv, &kv);
    *out = (pith_memory_stats){
        .budget_bytes = e->memory_bytes,
        .state_bytes = kv.states,
        .idle_bytes = kv.idle,
        .aside_bytes = kv.aside,
        .table_bytes = kv.tables,
        .mark_bytes = kv.marks,
        .work_bytes = (int64_t)pi_pass_watched_bytes(e->pass),
    };
    pi_verbs_count(e, out);
    for (const struct pith_seq *seq = e->first; seq != NULL; seq = seq->next)
        add_seq(seq, out);
    for (const struct pith_seq *seq = e->first; seq != NULL; seq = seq->next)
        uncount_beside(seq);
    out->lane_bytes = kv.held - out->guest_bytes;
    out->total_bytes = out->lane_bytes + out->guest_bytes + out->state_bytes + out->idle_bytes +
                       out->tier_bytes + out->text_bytes + out->aside_bytes + out->table_bytes +
                       out->mark_bytes + out->policy_bytes + out->work_bytes;
}
