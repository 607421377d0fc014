/*
 * quest.c - pages by what their keys could be. Tang, Zhao, Zhu, Xiao, Kasikci, Han, "Quest:
 * Query-Aware Sparsity for Efficient Long-Context LLM Inference", ICML 2024 (arXiv 2406.10774),
 * and the authors' code (mit-han-lab/Quest): with m and M the least and
 * the largest value of each dimension among a page's keys,
 *
 *   score(page) = sum over d of max(q_d m_d, q_d M_d) >= q.k for every key in it
 *
 * The pages of highest score are read, and the last page always while it is not full; the first two
 * layers read everything. The bounds of a full page lie beside it (KV_INDEX_BOUNDS); the bounds of
 * other pages are taken from their entries.
 *
 * The authors' pages have 16 entries, and so have the cache's unless the engine says otherwise.
 * Bounds over 64 keys are so loose that the right page is missed more often than not.
 *
 * Departures. They choose per query head of models with as many KV heads. Here the heads of a group
 * are averaged, and the queries of a chunk with them. heads=max takes the largest bound, which is
 * still a bound of every head's q.k. All entries of a page have one score, and of equal scores the
 * lower slots are read. So whole pages are read. Where the budget does not end with one, so are the
 * first entries of the next best, which the authors leave out. They leave prompts dense
 * (phase=decode, the default).
 */
#include <math.h>

#include "base/mem.h"
#include "policy/read/together.h"

enum { HEADS_MEAN, HEADS_MAX };

struct params {
    int32_t heads;
};

static uint32_t index_of(const void *params, const struct kv_geometry *g, int32_t *dim)
{
    (void)params;
    (void)g;
    *dim = 0;
    return KV_INDEX_BOUNDS;
}

/* The first slot of the page that slot n - 1 is in, where that page has room behind it; else n. */
static int32_t open_page(const struct read_view *view, const struct read_chunk *c)
{
    int32_t i = kv_lane_runs(view->kv, c->layer, c->head) - 1;
    while (i >= 0) {
        struct kv_run run = kv_lane_run(view->kv, c->layer, c->head, i);
        if (run.slot < c->n)
            return run.slot + view->model->g.page_len > c->n ? run.slot : c->n;
        i--;
    }
    return c->n;
}

static int32_t n_set(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)params;
    (void)model;
    (void)n_tok;
    return 1;
}

static int32_t n_vector(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)params;
    return n_tok * model->n_group;
}

static void ask(const void *params, const struct read_view *view, const struct read_chunk *c,
                struct kv_score_job *jobs)
{
    const struct params *p = params;
    size_t row = (size_t)c->n_group * (size_t)view->model->g.dim_k;
    for (int32_t t = 0; c->q != NULL && t < c->n_tok; t++)
        memcpy(read_vector(view, c, t * c->n_group), c->q + (size_t)t * c->q_stride,
               row * sizeof(float));
    *jobs = (struct kv_score_job){.kind = KV_SCORE_BOUNDS,
                                  .reduce = p->heads == HEADS_MAX ? KV_SCORE_MAX : KV_SCORE_MEAN,
                                  .q = c->vector,
                                  .n_q = c->n_tok * c->n_group};
    if (c->q == NULL) {
        jobs->pick = read_pick(c, KV_PICK_ALL);
        jobs->n_sure = c->n - open_page(view, c);
    }
}

static bool picks(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)params;
    (void)n_tok;
    return model->g.dim_k <= READ_MOST_PICKED_DIM;
}

static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    (void)params;
    read_clean(out, c->n);
    for (int32_t s = open_page(view, c); s < c->n; s++)
        out[s] = INFINITY;
}

static const char *const heads_words[] = {[HEADS_MEAN] = "mean", [HEADS_MAX] = "max", NULL};

static const struct policy_param own_params[] = {
    {"heads", POLICY_TYPE_CHOICE, offsetof(struct params, heads), 0, 0, "mean",
     "the query heads of a KV head score a page by the mean of their bounds, or by the largest "
     "(max)",
     heads_words},
    {0},
};

static const struct policy_preset presets[] = {
    {"quoka", "phase=both,gate=0,budget=1024",
     "as QuoKA's other comparisons are run: prompts, too"},
    {0},
};

const struct read_policy read_quest = {
    .name = "quest",
    .summary = "pages, by bounds on what their keys can give",
    .citation =
        "Tang et al., Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference, "
        "ICML 2024, arXiv 2406.10774",
    .defaults = "dense-layers=2,gate=1,phase=decode",
    .params = own_params,
    .params_size = sizeof(struct params),
    .presets = presets,
    .page_len = 16,
    .index = index_of,
    .n_set = n_set,
    .ask = ask,
    .picks = picks,
    .n_vector = n_vector,
    .score = score,
};
