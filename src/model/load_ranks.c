/*
 * load_ranks.c - see load_ranks.h. It cuts what load.c planned. It must not know how rows are
 * packed or gathered.
 */
#include "model/load_ranks.h"

#include "base/ranks.h"
#include "cpu/matmul.h"
#include "model/load.h"
#include "tensor/dtype_table.h"

pith_status pi_load_ranks_check(const struct pith_model *model, pith_error *err)
{
    const struct pi_hparams *hp = &model->hp;
    int32_t n = pi_ranks()->n_rank;
    if (n == 1)
        return PITH_OK;
    for (int32_t i = 0; i < model->arch->n_part; i++)
        if (model->arch->part[i].block != &pi_block_attention &&
            model->arch->part[i].block != &pi_block_ffn)
            return pi_fail(err, PITH_UNSUPPORTED,
                           "%s: its block \"%s\" cannot be split over ranks; only families of "
                           "attention and dense feed-forward blocks can",
                           model->arch->name, model->arch->part[i].block->name);
    if (n > hp->n_head_kv)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%d ranks are more than the %d KV heads of the model, of which each rank "
                       "needs one",
                       n, hp->n_head_kv);
    if (hp->n_ff % PI_ACT_BLOCK != 0 || hp->n_ff / PI_ACT_BLOCK < n)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s.feed_forward_length: %d cannot be split over %d ranks in parts of %d",
                       model->arch->name, hp->n_ff, n, PI_ACT_BLOCK);
    return PITH_OK;
}

int32_t pi_ranks_row_unit(int32_t n)
{
    return n % PI_GROUP == 0 ? PI_GROUP : 1;
}

/* Rows that stay together. */
static int32_t unit_of(const struct pi_hparams *hp, enum pi_dim row, int32_t n_row)
{
    int32_t n_group = hp->n_head / hp->n_head_kv;
    switch (row) {
    case PI_DIM_Q:
        return n_group * hp->dim_k * (hp->attn_gated ? 2 : 1);
    case PI_DIM_K:
        return hp->dim_k;
    case PI_DIM_V:
        return hp->dim_v;
    case PI_DIM_HEADS:
        return n_group;
    case PI_DIM_FF:
        return PI_ACT_BLOCK;
    default:
        return pi_ranks_row_unit(n_row);
    }
}

void pi_load_ranks_matrix(struct pi_plan *plan, const struct pi_hparams *hp, enum pi_dim row)
{
    struct pi_plan_matrix *what = &plan->matrix[plan->n_matrix - 1];
    struct pi_matrix *m = what->matrix;
    if (pi_ranks()->n_rank == 1)
        return;
    int32_t unit = unit_of(hp, row, m->n_row), n_unit = m->n_row / unit;
    plan->weights_size -= pi_plan_size(what);
    what->data += (size_t)pi_ranks_from(n_unit, pi_ranks()->rank) * (size_t)unit *
                  pi_dtype_row_bytes(pi_dtype_find(m->type), m->n_col);
    m->n_row = pi_ranks_own(n_unit) * unit;
    m->n_group = (int32_t)pi_ceil_div(m->n_row, PI_GROUP);
    plan->weights_size += pi_plan_size(what);
}

void pi_load_ranks_vector(struct pi_plan *plan, const struct pi_hparams *hp,
                          const struct pi_tensor_spec *spec)
{
    struct pi_gguf_tensor *t = &plan->vector[plan->n_vector - 1].tensor;
    if (pi_ranks()->n_rank == 1 || spec->row == PI_DIM_EMBD || spec->row == PI_DIM_HEAD_K)
        return;
    int32_t n_row = (int32_t)t->ne[0], unit = unit_of(hp, spec->row, n_row), n_unit = n_row / unit;
    t->data += (size_t)pi_ranks_from(n_unit, pi_ranks()->rank) *
               pi_dtype_row_bytes(pi_dtype_find(t->type), unit);
    t->ne[0] = (int64_t)pi_ranks_own(n_unit) * unit;
}

/* A block of 32 values has one scale. One that reached into another rank's heads would have one on
   each. */
static pith_status check_heads(const struct pith_model *model, pith_error *err)
{
    const struct pi_hparams *hp = &model->hp;
    int32_t len = hp->n_head / hp->n_head_kv * hp->dim_v;
    bool int8 = false;
    for (int32_t l = 0; l < hp->n_layer; l++)
        int8 = int8 || !pi_matmul_is_float(model->layer[l].attn.wo.type);
    if (int8 && len % PI_ACT_BLOCK != 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: the %d values of a KV head's query heads are no multiple of %d, so "
                       "that quantised weights cannot be split over ranks",
                       model->arch->name, len, PI_ACT_BLOCK);
    return PITH_OK;
}

pith_status pi_load_ranks_shape(struct pith_model *model, pith_error *err)
{
    struct pi_hparams *hp = &model->hp;
    int32_t n_group = hp->n_head / hp->n_head_kv;
    if (pi_ranks()->n_rank == 1)
        return PITH_OK;
    PI_TRY(check_heads(model, err));
    hp->n_head_kv = pi_ranks_own(hp->n_head_kv);
    hp->n_head = hp->n_head_kv * n_group;
    hp->n_ff = pi_ranks_own(hp->n_ff / PI_ACT_BLOCK) * PI_ACT_BLOCK;
    return PITH_OK;
}

/* ---- estimates ---- */

/* Bytes of n values that a matrix reads: 40 for 32 of int8. */
static int64_t read_bytes(const struct pi_matrix *w, int64_t n)
{
    return pi_matmul_is_float(w->type) ? 4 * n : n / PI_ACT_BLOCK * 40;
}

static int64_t row_bytes(int32_t n)
{
    int32_t unit = pi_ranks_row_unit(n);
    return (int64_t)pi_ranks_own(n / unit) * unit * (int64_t)sizeof(float);
}

static void describe(const struct pith_model *m, pith_ranks_plan *out)
{
    const struct pi_hparams *hp = &m->hp;
    int64_t sent = row_bytes(hp->n_vocab);
    for (int32_t l = 0; l < hp->n_layer; l++)
        sent += read_bytes(&m->layer[l].attn.wo, (int64_t)hp->n_head * hp->dim_v) +
                read_bytes(&m->layer[l].ffn.down, hp->n_ff) + 2 * row_bytes(hp->n_embd);
    *out = (pith_ranks_plan){
        .n_head_kv = hp->n_head_kv,
        .weight_bytes = (int64_t)m->weights_size,
        .kv_token_bytes = (int64_t)hp->n_layer_kv * hp->n_head_kv * (hp->dim_k + hp->dim_v) * 2,
        .sent_token_bytes = sent * (pi_ranks()->n_rank - 1),
    };
}

pith_status pith_ranks_estimate(const char *path, const pith_ranks_info *as, pith_ranks_plan *out,
                                pith_error *err)
{
    pith_model_params params;
    pith_model *m = NULL;
    int32_t n_weight = as->weight != NULL ? as->n_rank : 0;
    PI_TRY(pi_check_range("n_rank", as->n_rank, 1, PI_RANKS_MOST, err));
    PI_TRY(pi_check_range("rank", as->rank, 0, (int64_t)as->n_rank - 1, err));
    PI_TRY(pi_ranks_check_weights(as->weight, n_weight, as->n_rank, err));
    pith_model_params_default(&params);
    params.on_demand = true;
    pi_ranks_pretend(as);
    pith_status status = pith_model_load(path, &params, &m, err);
    if (status == PITH_OK)
        describe(m, out);
    pith_model_free(m);
    pi_ranks_pretend(NULL);
    return status;
}
