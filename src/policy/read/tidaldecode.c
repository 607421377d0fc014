/*
 * tidaldecode.c - positions that one layer chooses and the next ones read. Yang, Zhang, Chen, Li,
 * Jia, "TidalDecode: Fast and Accurate LLM Decoding with Position Persistent Sparse Attention",
 * ICLR 2025 (arXiv 2410.05076), and the authors' code (DerrickYLJ/TidalDecode,
 * src/tidal_build/modify_llama.py): tokens that matter are much the same from layer to layer, so
 *
 *   layers 0, 1    read everything
 *   layer 2        reads everything, and chooses the k keys of largest q.k
 *   layers 3 ..    read those positions
 *   layer 13 of 32 (9 in other scripts) reads everything and chooses anew, for those behind it
 *
 * A choosing layer costs dense attention; the reusing ones score nothing at all.
 *
 * Departures. The authors choose per query head, which would gather a KV head's entries once for
 * each of its query heads. Here the query heads of a KV head choose together, by the mean of their
 * q.k, or by the largest with heads=max. They leave prompts dense (phase=decode, the default). In a
 * chunk the queries are averaged, as QuoKA's comparison did, by their logits or with rank=softmax
 * by their weights. Of a layer's lane those positions are read that it still has, where a keep
 * policy evicts by layer.
 */
#include "base/mem.h"
#include "cpu/kernels.h"
#include "policy/read/relay.h"
#include "policy/read/together.h"

enum { HEADS_MEAN, HEADS_MAX };

struct params {
    struct relay_form relay; /* first: relay.h */
    int32_t heads;
    int32_t rank;
};

/* A call's scratch. */
struct work {
    struct read_soft soft;
    float *head; /* [n] of one query head */
};

static size_t lay_out(const struct policy_model *model, int32_t n, int32_t n_tok, void *base,
                      struct work *w)
{
    size_t used = 0;
    read_soft_place(model, n, n_tok, base, &used, &w->soft);
    w->head = pi_mem_part(base, &used, (size_t)n, sizeof(float));
    return used;
}

static size_t scratch_size(const void *params, const struct policy_model *model, int32_t n,
                           int32_t n_tok)
{
    struct work w;
    (void)params;
    return lay_out(model, n, n_tok, NULL, &w);
}

/* Query heads that score by themselves: all, or their mean. */
static int32_t rows_of(const struct params *p, int32_t n_group)
{
    return p->heads == HEADS_MAX ? n_group : 1;
}

static int32_t n_set(const void *params, const struct policy_model *model, int32_t n_tok)
{
    const struct params *p = params;
    (void)n_tok;
    return p->rank == READ_RANK_LOGITS ? rows_of(p, model->n_group) : 0;
}

static int32_t n_vector(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)n_tok;
    return rows_of(params, model->n_group);
}

static void ask(const void *params, const struct read_view *view, const struct read_chunk *c,
                struct kv_score_job *jobs)
{
    const struct params *p = params;
    bool most = p->heads == HEADS_MAX;
    if (c->q != NULL) {
        read_ask_means(view, c, KV_SCORE_DOT, rows_of(p, c->n_group), jobs);
    } else if (p->rank == READ_RANK_SOFTMAX) {
        *jobs = read_soft_job(view, c, KV_SCORE_DOT, 0, c->n_group);
    } else {
        *jobs = (struct kv_score_job){.kind = KV_SCORE_DOT,
                                      .reduce = most ? KV_SCORE_MAX : KV_SCORE_MEAN,
                                      .n_q = most ? c->n_group : 1,
                                      .pick = read_pick(c, most ? KV_PICK_HEADS : KV_PICK_MEAN)};
    }
}

static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    const struct params *p = params;
    struct work w;
    int32_t n_row = rows_of(p, c->n_group), n_g = c->n_group / n_row;
    bool soft = p->rank == READ_RANK_SOFTMAX;
    lay_out(view->model, c->n, c->n_tok, c->scratch, &w);
    for (int32_t i = 0; i < n_row; i++) {
        float *row = !soft ? out + (size_t)i * (size_t)c->n : i == 0 ? out : w.head;
        if (soft)
            read_mean_weights(view, c, KV_SCORE_DOT, i * n_g, n_g, &w.soft, row);
        else
            read_clean(row, c->n);
        if (i > 0)
            pi_kernels()->vec.take_max(out, row, c->n);
    }
}

static bool picks(const void *params, const struct policy_model *model, int32_t n_tok)
{
    const struct params *p = params;
    bool soft = p->rank == READ_RANK_SOFTMAX;
    return !(soft && p->heads == HEADS_MAX) && read_can_pick(model, n_tok * model->n_group, soft);
}

static const char *const heads_words[] = {[HEADS_MEAN] = "mean", [HEADS_MAX] = "max", NULL};

static const struct policy_param own_params[] = {
    RELAY_PARAMS,
    {"heads", POLICY_TYPE_CHOICE, offsetof(struct params, heads), 0, 0, "mean",
     "the query heads of a KV head score a key by the mean of their q.k, or by the largest (max)",
     heads_words},
    {"rank", POLICY_TYPE_CHOICE, offsetof(struct params, rank), 0, 0, "logits",
     "the queries of a chunk and the heads of a group average logits, or their softmax",
     read_rank_words},
    {0},
};

static const struct policy_preset presets[] = {
    {"quoka", "phase=both,gate=0,budget=1024,rank=softmax",
     "as QuoKA compares with it: prompts, too"},
    {0},
};

const struct read_policy read_tidaldecode = {
    .name = "tidaldecode",
    .summary = "entries that one layer chose, in the layers behind it",
    .citation = "Yang et al., TidalDecode: Fast and Accurate LLM Decoding with Position Persistent "
                "Sparse Attention, ICLR 2025, arXiv 2410.05076",
    .defaults = "budget=256,gate=1,phase=decode",
    .params = own_params,
    .params_size = sizeof(struct params),
    .presets = presets,
    .check = relay_check,
    .role = relay_role,
    .scratch_size = scratch_size,
    .n_set = n_set,
    .ask = ask,
    .n_vector = n_vector,
    .picks = picks,
    .score = score,
};
