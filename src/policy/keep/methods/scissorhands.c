/*
 * scissorhands.c - the persistence of importance: an entry that late queries ignored will not
 * be of use to the next. Zichang Liu, Aditya Desai, Fangshuo Liao, Weitao Wang, Victor Xie,
 * Zhaozhuo Xu, Anastasios Kyrillidis, Anshumali Shrivastava, "Scissorhands: Exploiting the
 * Persistence of Importance Hypothesis for LLM KV Cache Compression at Test Time", NeurIPS 2023,
 * arXiv 2305.17118, Algorithm 2.
 *
 *   count=low    score(i) = - #{ t among the last w queries: alpha_ti < 1 / n_t }
 *                with n_t the entries that query t saw; what came after t is not counted against i
 *   count=sum    score(i) = sum of alpha_ti over the queries of the last w tokens of the prompt and
 *                all after it, which is what VATP's authors run under this name
 *
 * The last 10 positions stay (the rule window). The authors' code was not to be found: w = 400,
 * 10, and that a full buffer loses half (slack = budget) are unverified. The paper knows one query
 * head per KV head: `group`. Many counts are equal, and of equals the older go first.
 *
 * An entry's marks hold one bit for each of the last w queries. Bit t mod w says that query t gave
 * it less than an even share. The time of the next round is not known beforehand, so nothing less
 * gives the exact count over the last w. A query changes one word per entry, and a round counts
 * bits. At w = 400 that is 13 words per entry, a tenth of f16 keys and values of 128 dimensions.
 */
#include "policy/keep/rules/attention.h"

#define WORD_BITS 32

enum { COUNT_LOW, COUNT_SUM };

struct params {
    int32_t history;
    int32_t count;
    int32_t group;
};

/* Bits live in floats' places: read and written by memcpy alone. */
static_assert(sizeof(float) == sizeof(uint32_t), "a mark holds a word of bits");

static uint32_t needs(const void *params)
{
    (void)params;
    return KEEP_NEED_WEIGHTS;
}

static int32_t n_mark(const void *params)
{
    const struct params *p = params;
    return p->count == COUNT_LOW ? (p->history + WORD_BITS - 1) / WORD_BITS : 1;
}

/* Tokens have consecutive positions, and every one is shown: the bit that a query takes is that of
   the query w before it. */
static int32_t words(const void *params, struct keep_word *out)
{
    const struct params *p = params;
    out[0] = (struct keep_word){.group = (enum kv_group)p->group};
    if (p->count == COUNT_LOW) {
        out[0].word = KV_NOTE_LOW;
        out[0].window = p->history;
    } else {
        out[0].word = KV_NOTE_SUM;
        out[0].last = p->history;
    }
    return 1;
}

/* Bits that are set, by adding neighbours: pairs, fours, eights, and the four bytes. */
static uint32_t count_bits(uint32_t x)
{
    x -= x >> 1 & 0x55555555u;
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0fu;
    return x * 0x01010101u >> 24;
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct params *p = params;
    int32_t n_word = n_mark(params);
    if (p->count == COUNT_SUM) {
        memcpy(out, keep_marks(view, lane->layer, lane->head, 0), (size_t)lane->n * sizeof(*out));
        return;
    }
    memset(out, 0, (size_t)lane->n * sizeof(*out));
    for (int32_t w = 0; w < n_word; w++) {
        const float *mark = keep_marks(view, lane->layer, lane->head, w);
        for (int32_t i = 0; i < lane->n; i++) {
            uint32_t word;
            memcpy(&word, &mark[i], sizeof(word));
            out[i] -= (float)count_bits(word);
        }
    }
}

static const char *const count_words[] = {[COUNT_LOW] = "low", [COUNT_SUM] = "sum", NULL};

static const struct policy_param own_params[] = {
    {"history", POLICY_TYPE_COUNT, offsetof(struct params, history), 1, 4096, "400",
     "the last queries that count; unverified", NULL},
    {"count", POLICY_TYPE_CHOICE, offsetof(struct params, count), 0, 0, "low",
     "low: how many of the last queries gave an entry less than an even share. sum: the sum of "
     "attention since the prompt's last history tokens, which VATP's authors compare with",
     count_words},
    KEEP_GROUP_PARAM(struct params, "mean"),
    {0},
};

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    const struct params *p = params;
    (void)view;
    (void)room;
    job->kind = p->count == COUNT_LOW ? KV_WEIGH_MARK_BITS : KV_WEIGH_MARK;
}

const struct keep_policy keep_scissorhands = {
    .name = "scissorhands",
    .summary = "entries that few of the last queries ignored",
    .citation = "Liu, Desai, Liao, Wang, Xie, Xu, Kyrillidis, Shrivastava, Scissorhands: "
                "Exploiting the Persistence of Importance Hypothesis for LLM KV Cache Compression "
                "at Test Time, NeurIPS 2023, arXiv 2305.17118",
    .defaults = "window=10",
    .params = own_params,
    .params_size = sizeof(struct params),
    .needs = needs,
    .n_mark = n_mark,
    .words = words,
    .score = score,
    .weigh = weigh,
};
