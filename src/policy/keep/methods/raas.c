/*
 * raas.c - milestones: a page of tokens stays while queries look at it, and goes when none has for
 * the longest time. Junhao Hu, Wenrui Huang, Weidong Wang, Zhenwen Li, Tiancheng Hu, Zhixia Liu,
 * Xusheng Chen, Tao Xie, Yizhou Shan, "RaaS: Reasoning-Aware Attention Sparsity for Efficient LLM
 * Reasoning", Findings of ACL 2025, arXiv 2502.11147.
 *
 *   stamp(i) = the last token of which a query looked at entry i; its own token looks at it
 *   score(page) = the latest stamp of its entries
 *
 *   looks=threshold   alpha_i >= threshold (1e-4)
 *   looks=top         i is in one of the half (`top`) of the pages whose highest alpha is highest
 *
 * The prompt stays (the rule pin-prompt), and pages of 16 positions are counted from its end. A
 * round drops one page (slack=16): its entries have one score, of equal pages the older goes. The
 * authors' code was not to be found: the threshold and the half are unverified. The paper scores a
 * page by a key that stands for it. This takes the exact weights that attention computed, of which
 * a page has its highest. Stamps are floats, exact below 2^24 tokens.
 *
 * A threshold is a word of attention's. looks=top compares the pages of a lane with each other,
 * which no word says: it looks at rows.
 */
#include "policy/keep/rules/attention.h"

enum { LOOKS_THRESHOLD, LOOKS_TOP };

struct params {
    double threshold;
    double top;
    int32_t looks;
    int32_t page;
    int32_t group;
    int32_t prompt;
};

/* MARK_STAMP is the position of the query's token + 1: 0 in an entry that none looked at. With
   looks=top MARK_PAGE is scratch of one call: what the page got, at its first entry, and -1 at the
   others. */
enum { MARK_STAMP, MARK_PAGE };

static uint32_t needs(const void *params)
{
    return keep_prompt_need(((const struct params *)params)->prompt);
}

static int32_t n_mark(const void *params)
{
    return ((const struct params *)params)->looks == LOOKS_TOP ? 2 : 1;
}

/* Pages end where the prompt does; the one before may be shorter. */
static int32_t page_of(const struct params *p, const struct keep_view *view, int32_t pos)
{
    return (int32_t)(((int64_t)pos + p->page - view->n_prompt % p->page) / p->page);
}

/* ---- who is looked at ---- */

static int32_t words(const void *params, struct keep_word *out)
{
    const struct params *p = params;
    out[0] = (struct keep_word){.word = KV_NOTE_TIME,
                                .group = (enum kv_group)p->group,
                                .mark = MARK_STAMP,
                                .threshold = (float)p->threshold};
    return p->looks == LOOKS_THRESHOLD ? 1 : 0;
}

/* Finds the pages' highest weights, the prompt's left out, and returns the pages' number. */
static int32_t find_pages(const struct params *p, const struct keep_view *view,
                          const struct keep_attention *a, float *highest)
{
    float weight[KV_GROUP_BLOCK];
    int32_t first = -1, page = -1, n_page = 0;
    for (int32_t i = 0; i < a->n; i++) {
        int32_t j = i % KV_GROUP_BLOCK, n = (int32_t)pi_min(a->n - i, KV_GROUP_BLOCK);
        if (j == 0)
            kv_group_weights(a->weight + i, a->stride, a->n_group, (enum kv_group)p->group, n,
                             weight);
        highest[i] = -1.0f;
        int32_t pos = kv_lane_pos(view->kv, a->layer, a->head, i);
        if (pos < view->n_prompt)
            continue;
        if (page_of(p, view, pos) != page) {
            page = page_of(p, view, pos);
            first = i;
            n_page++;
        }
        highest[first] = weight[j] > highest[first] ? weight[j] : highest[first];
    }
    return n_page;
}

/* The k-th highest of the numbers >= 0 among n, byte by byte from the top. Floats that are not
   negative are in the order of their bits. At least k of them are there. */
static float find_highest(const float *x, int32_t n, int32_t k)
{
    uint32_t found = 0, known = 0;
    float value;
    for (int32_t shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = {0}, byte = 255;
        for (int32_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof(bits));
            if (x[i] >= 0.0f && (bits & known) == found)
                count[bits >> shift & 0xff]++;
        }
        while (k > count[byte])
            k -= count[byte--];
        found |= (uint32_t)byte << shift;
        known |= 0xffu << shift;
    }
    memcpy(&value, &found, sizeof(value));
    return value;
}

/* Of pages that got the same, all are looked at where one is. Every entry of a page is stamped, as
   a round may cut a page. */
static void stamp_top(const struct params *p, const struct keep_view *view,
                      const struct keep_attention *a, float *stamp, float *highest)
{
    int32_t n_page = find_pages(p, view, a, highest);
    int32_t k = (int32_t)pi_max(1, (int64_t)(p->top * n_page + 0.5));
    if (n_page == 0)
        return;
    float least = find_highest(highest, a->n, k);
    bool at_top = false;
    for (int32_t i = 0; i < a->n; i++) {
        at_top = highest[i] >= 0.0f ? highest[i] >= least : at_top;
        stamp[i] = at_top ? (float)(a->pos + 1) : stamp[i];
    }
}

static void attended(const void *params, const struct keep_view *view,
                     const struct keep_attention *a)
{
    stamp_top(params, view, a, keep_marks_to_write(view, a->layer, a->head, MARK_STAMP),
              keep_marks_to_write(view, a->layer, a->head, MARK_PAGE));
}

/* ---- scores ---- */

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct params *p = params;
    const float *stamp = keep_marks(view, lane->layer, lane->head, MARK_STAMP);
    for (int32_t begin = 0, end; begin < lane->n; begin = end) {
        int32_t page = page_of(p, view, lane->pos[begin]);
        float latest = 0.0f;
        for (end = begin; end < lane->n && page_of(p, view, lane->pos[end]) == page; end++) {
            float own = (float)(lane->pos[end] + 1);
            latest = own > latest ? own : latest;
            latest = stamp[end] > latest ? stamp[end] : latest;
        }
        for (int32_t i = begin; i < end; i++)
            out[i] = latest;
    }
}

static const char *const looks_words[] = {
    [LOOKS_THRESHOLD] = "threshold", [LOOKS_TOP] = "top", NULL};

static const struct policy_param own_params[] = {
    {"looks", POLICY_TYPE_CHOICE, offsetof(struct params, looks), 0, 0, "threshold",
     "threshold: a query looks at entries that it gives threshold or more. top: at the best pages "
     "behind the prompt",
     looks_words},
    {"threshold", POLICY_TYPE_REAL, offsetof(struct params, threshold), 0, 1000, "1e-4",
     "the weight from which on a query looks at an entry; unverified", NULL},
    {"top", POLICY_TYPE_REAL, offsetof(struct params, top), 0, 1000, "0.5",
     "the part of the pages that a query looks at under looks=top; unverified", NULL},
    {"page", POLICY_TYPE_COUNT, offsetof(struct params, page), 1, 65536, "16",
     "positions of a page", NULL},
    KEEP_GROUP_PARAM(struct params, "max"),
    KEEP_PROMPT_PARAM(struct params, "off"),
    {0},
};

const struct keep_policy keep_raas = {
    .name = "raas",
    .summary = "the prompt, and pages that a query attended to last",
    .citation = "Hu, Huang, Wang, Li, Hu, Liu, Chen, Xie, Shan, RaaS: Reasoning-Aware Attention "
                "Sparsity for Efficient LLM Reasoning, Findings of ACL 2025, arXiv 2502.11147",
    .defaults = "pin-prompt=on,slack=16",
    .params = own_params,
    .params_size = sizeof(struct params),
    .needs = needs,
    .n_mark = n_mark,
    .words = words,
    .attended = attended,
    .score = score,
};
