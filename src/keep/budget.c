/*
 * budget.c - the rules that every keep policy shares: how many entries go, when, and which never
 * do. The only file that decides this; what an entry is worth is the policy's opinion, and only kv/
 * changes the cache.
 *
 * Invariant: a lane never holds more than budget + slack entries, and after a round none holds more
 * than its budget. When a round is due depends on the number of tokens and the lanes' lengths
 * alone, and what it drops on the entries alone: not on chunks, threads or other sequences.
 */
#include "base/mem.h"
#include "base/os.h"
#include "keep/keep.h"

struct keep {
    struct keep_config config;
    struct kv_geometry g;
    size_t state_size;
    int32_t cap;    /* entries that the scratch has room for */
    int32_t *pos;   /* [cap] positions of the lane, then the slots that stay; owned */
    float *score;   /* [cap] owned */
    uint32_t *rank; /* [cap] scores as integers in the same order; owned */
};

/* ---- the options ---- */

#define AT(member) .offset = offsetof(struct keep_rules, member)
const struct keep_param keep_rule_params[] = {
    {"budget", KEEP_TYPE_BUDGET, AT(budget), 1, KEEP_COUNT_MAX, "1024",
     "entries of a lane after a round, their share of the tokens so far (50%), or the size of the "
     "sequence's pages (64MiB)"},
    {"slack", KEEP_TYPE_COUNT, AT(slack), 1, KEEP_COUNT_MAX, "128",
     "entries above the budget at which a round runs: they are what it drops"},
    {"prefix", KEEP_TYPE_COUNT, AT(prefix), 0, KEEP_COUNT_MAX, "0",
     "positions at the beginning whose entries always stay"},
    {"sinks", KEEP_TYPE_COUNT, AT(sinks), 0, KEEP_COUNT_MAX, "0",
     "oldest entries of a lane that always stay"},
    {"window", KEEP_TYPE_COUNT, AT(window), 0, KEEP_COUNT_MAX, "0",
     "positions at the end whose entries always stay"},
    {0},
};
#undef AT

/* Entries that stay whatever they score. The prefix and the sinks are both the oldest entries, so
   the larger includes the other. */
static int32_t count_protected(const struct keep_rules *r)
{
    return (int32_t)pi_max(r->prefix, r->sinks) + r->window;
}

pith_status keep_rules_check(const struct keep_rules *r, int32_t n_budget, pith_error *err)
{
    if (n_budget < count_protected(r))
        return pi_fail(
            err, PITH_INVALID,
            "keep: a budget of %d entries is smaller than the %d that are protected: the "
            "first %d and the last %d",
            n_budget, count_protected(r), (int32_t)pi_max(r->prefix, r->sinks), r->window);
    return PITH_OK;
}

/* Bytes of pages are full at budget + slack, so that the size is kept between rounds, too. */
static pith_status fit_bytes(struct keep_config *c, const struct kv_geometry *g, pith_error *err)
{
    int64_t n_lane = (int64_t)g->n_layer * g->n_head;
    int64_t n_page = c->rules.budget.value / (n_lane * (int64_t)kv_page_bytes(g));
    int64_t n = pi_min(n_page, KEEP_COUNT_MAX / g->page_len) * g->page_len;
    if (n <= c->rules.slack)
        return pi_fail(err, PITH_INVALID,
                       "keep: a budget of %lld bytes holds %lld entries in each of %lld lanes, not "
                       "more than the slack of %d",
                       (long long)c->rules.budget.value, (long long)n, (long long)n_lane,
                       c->rules.slack);
    c->n_budget = (int32_t)n - c->rules.slack;
    return PITH_OK;
}

pith_status keep_config_fit(struct keep_config *c, const struct kv_geometry *g, pith_error *err)
{
    if (c->policy == NULL || c->rules.budget.unit != KEEP_UNIT_BYTES)
        return PITH_OK;
    PI_TRY(fit_bytes(c, g, err));
    return keep_rules_check(&c->rules, c->n_budget, err);
}

/* ---- how many, and when ---- */

int32_t keep_budget_at(const struct keep_config *c, int32_t n_token)
{
    if (c->n_budget > 0)
        return c->n_budget;
    /* A share means that of the entries which the full cache would have. Of those that are live it
       would compound from round to round, down to slack * share / (1 - share) whatever the length.
     */
    int64_t share = (int64_t)n_token * c->rules.budget.value / 1000000;
    return (int32_t)pi_max(pi_max(share, count_protected(&c->rules)), 1);
}

/* Entries at which a lane is due. */
static int64_t due_at(const struct keep_config *c, int32_t n_token)
{
    return (int64_t)keep_budget_at(c, n_token) + c->rules.slack;
}

int32_t keep_most_at(const struct keep_config *c, int32_t n_token)
{
    return c->policy != NULL ? (int32_t)pi_min(n_token, due_at(c, n_token)) : n_token;
}

static int32_t longest_lane(const struct keep *k, const struct kv_seq *kv)
{
    int64_t longest = 0;
    for (int32_t l = 0; l < k->g.n_layer; l++)
        for (int32_t h = 0; h < k->g.n_head; h++)
            longest = pi_max(longest, kv_lane_len(kv, l, h));
    return (int32_t)longest;
}

int32_t keep_room(const struct keep *k, const struct kv_seq *kv, int32_t n_token, int32_t most)
{
    int64_t len = longest_lane(k, kv);
    /* The smallest n with len + n >= due_at(n_token + n). A budget grows by at most one per token,
       so that what is short only falls. */
    int32_t low = 0, high = most;
    while (low < high) {
        int32_t n = low + (high - low) / 2;
        if (len + n >= due_at(&k->config, n_token + n))
            high = n;
        else
            low = n + 1;
    }
    return low;
}

/* ---- memory ---- */

pith_status keep_create(const struct keep_config *config, const struct kv_geometry *g,
                        struct keep **out, pith_error *err)
{
    *out = NULL;
    if (config->policy == NULL)
        return PITH_OK;
    struct keep *k = pi_mem_alloc(PI_MEM_OTHER, sizeof(*k));
    if (k == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a keep policy");
    k->config = *config;
    k->g = *g;
    if (config->policy->state_size != NULL)
        k->state_size = config->policy->state_size(&config->params, g);
    *out = k;
    return PITH_OK;
}

void keep_free(struct keep *k)
{
    if (k == NULL)
        return;
    pi_mem_free(k->pos);
    pi_mem_free(k->score);
    pi_mem_free(k->rank);
    pi_mem_free(k);
}

const struct keep_config *keep_get_config(const struct keep *k)
{
    return &k->config;
}
size_t keep_state_size(const struct keep *k)
{
    return k->state_size;
}

static bool grow_scratch(struct keep *k, int32_t cap)
{
    if (cap <= k->cap)
        return true;
    /* A block that grew before another failed stays, with more room than cap says. */
    int32_t *pos = pi_mem_grow(PI_MEM_SCRATCH, k->pos, (size_t)cap, sizeof(*pos));
    if (pos == NULL)
        return false;
    k->pos = pos;
    float *score = pi_mem_grow(PI_MEM_SCRATCH, k->score, (size_t)cap, sizeof(*score));
    if (score == NULL)
        return false;
    k->score = score;
    uint32_t *rank = pi_mem_grow(PI_MEM_SCRATCH, k->rank, (size_t)cap, sizeof(*rank));
    if (rank == NULL)
        return false;
    k->rank = rank;
    k->cap = cap;
    return true;
}

/* The most entries that a lane of len entries reaches while n tokens follow. */
static int64_t most_of_lane(const struct keep *k, int32_t len, int32_t n_token, int32_t n)
{
    return pi_max(len, pi_min((int64_t)len + n, due_at(&k->config, n_token + n)));
}

/* What is short of a round only falls, so that the last token decides. */
static bool round_within(const struct keep *k, const struct kv_seq *kv, int32_t n_token, int32_t n)
{
    return longest_lane(k, kv) + (int64_t)n >= due_at(&k->config, n_token + n);
}

pith_status keep_prepare(struct keep *k, struct kv_seq *kv, int32_t n_token, int32_t n,
                         pith_error *err)
{
    if (!round_within(k, kv, n_token, n))
        return PITH_OK;
    int32_t len = longest_lane(k, kv);
    int64_t most = most_of_lane(k, len, n_token, n);
    if (most > INT32_MAX)
        return pi_fail(err, PITH_CONTEXT, "%lld entries are more than a lane can hold",
                       (long long)most);
    /* Room for more than asked, where the budget is a share and rises with the text. */
    int64_t cap = k->config.n_budget > 0 ? most : pi_min(most + most / 2, INT32_MAX);
    if (!grow_scratch(k, (int32_t)cap))
        return pi_fail(err, PITH_NOMEM, "no memory for a keep round over %lld entries",
                       (long long)cap);
    return kv_seq_reserve_table(kv, (int32_t)(most - len), err);
}

int64_t keep_lacks(const struct keep *k, struct kv_seq *kv, int32_t n_token, int32_t n)
{
    int64_t lacks = 0;
    if (!round_within(k, kv, n_token, n))
        return 0;
    for (int32_t l = 0; l < k->g.n_layer; l++)
        for (int32_t h = 0; h < k->g.n_head; h++) {
            int32_t len = kv_lane_len(kv, l, h);
            int64_t most = most_of_lane(k, len, n_token, n);
            lacks += kv_lane_lacks(kv, l, h, (int32_t)(most - len));
        }
    return lacks + kv_seq_charge_copies(kv);
}

/* ---- which ---- */

/* Integers in the order of the floats; both zeros are one. */
static uint32_t rank_of(float score)
{
    float x = score + 0.0f;
    uint32_t bits;
    assert(x == x);
    memcpy(&bits, &x, sizeof(bits));
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/* Ranks the lane's entries; those that always stay stand above every score. */
static void rank_entries(const struct keep *k, int32_t n, int32_t n_token)
{
    const struct keep_rules *r = &k->config.rules;
    for (int32_t i = 0; i < n; i++) {
        bool stays =
            i < r->sinks || k->pos[i] < r->prefix || k->pos[i] >= (int64_t)n_token - r->window;
        k->rank[i] = stays ? UINT32_MAX : rank_of(k->score[i]);
    }
}

/* The k-th lowest of n ranks (k >= 1), found byte by byte from the top; *n_tie receives how many of
   those that equal it are among the k lowest. Takes the same time for every input. */
static uint32_t find_rank(const uint32_t *rank, int32_t n, int32_t k, int32_t *n_tie)
{
    uint32_t found = 0, known = 0; /* bits of the answer so far, and which they are */
    for (int32_t shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = {0};
        uint32_t byte = 0;
        for (int32_t i = 0; i < n; i++)
            if ((rank[i] & known) == found)
                count[rank[i] >> shift & 0xff]++;
        while (k > count[byte])
            k -= count[byte++];
        found |= byte << shift;
        known |= 0xffu << shift;
    }
    *n_tie = k;
    return found;
}

/* Writes the slots that stay, ascending, over the positions: all but the n_evict lowest, of equals
   the older first. Returns their number. */
static int32_t choose(const struct keep *k, int32_t n, int32_t n_evict, int32_t *slots)
{
    int32_t n_tie, n_kept = 0;
    uint32_t last = find_rank(k->rank, n, n_evict, &n_tie);
    for (int32_t i = 0; i < n; i++) {
        bool goes = k->rank[i] < last || (k->rank[i] == last && n_tie-- > 0);
        if (!goes)
            slots[n_kept++] = i;
    }
    return n_kept;
}

/* ---- a round ---- */

static pith_status round_of_lane(struct keep *k, struct kv_seq *kv, const struct keep_view *view,
                                 int32_t layer, int32_t head, int64_t *n_evicted, pith_error *err)
{
    struct keep_lane lane = {layer, head, kv_lane_len(kv, layer, head), k->pos};
    int32_t n_evict = lane.n - keep_budget_at(&k->config, view->n_token);
    if (n_evict <= 0)
        return PITH_OK;
    assert(lane.n <= k->cap);
    kv_lane_positions(kv, layer, head, k->pos, lane.n);
    k->config.policy->score(&k->config.params, view, &lane, k->score);
    rank_entries(k, lane.n, view->n_token);
    int32_t n_kept = choose(k, lane.n, n_evict, k->pos);
    PI_TRY(kv_seq_compact(kv, layer, head, k->pos, n_kept, err));
    *n_evicted += lane.n - n_kept;
    return PITH_OK;
}

pith_status keep_round(struct keep *k, struct kv_seq *kv, const struct keep_view *view,
                       struct keep_tally *tally, pith_error *err)
{
    double start = pi_time_s();
    kv_seq_trim(kv);
    int64_t n_free = kv_seq_free_pages(kv), n_evicted = 0;
    pith_status status = PITH_OK;
    for (int32_t l = 0; l < k->g.n_layer && status == PITH_OK; l++)
        for (int32_t h = 0; h < k->g.n_head && status == PITH_OK; h++)
            status = round_of_lane(k, kv, view, l, h, &n_evicted, err);
    if (tally->n_round++ == 0)
        tally->first_at = view->n_token;
    tally->n_evicted += n_evicted;
    tally->bytes_freed += (kv_seq_free_pages(kv) - n_free) * (int64_t)kv_page_bytes(&k->g);
    tally->seconds += pi_time_s() - start;
    return status;
}
