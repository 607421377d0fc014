/*
 * load_ranks.c - see load_ranks.h. It leaves a rank its layers, or cuts the rows that load.c
 * planned. It must not know how rows are packed or sent.
 */
#include "model/load_ranks.h"

#include "base/ranks.h"
#include "cpu/matmul.h"
#include "model/delta.h"
#include "model/load.h"
#include "model/pass.h"
#include "tensor/dtype_table.h"

/* Bytes of a desktop's memory that are read in a second, about. */
#define MEMORY_RATE 60e9

/* ---- layers ---- */

/* Layers with attention among some; *n_full gets those without a window. */
static int32_t count_kv(const struct pith_model *m, int32_t begin, int32_t end, int32_t *n_full)
{
    int32_t n = 0;
    *n_full = 0;
    for (int32_t l = begin; l < end; l++)
        if (pi_layer_attends(&m->layer[l])) {
            n++;
            *n_full += m->layer[l].window == 0;
        }
    return n;
}

/* Passes end where a recurrent state is kept, and all ranks have the same passes. So each has such
   a layer, and lanes. */
static pith_status check_layers(const struct pith_model *m, pith_error *err)
{
    const struct pi_hparams *hp = &m->hp;
    int32_t n_rank = pi_ranks()->n_rank, n_full;
    if (n_rank > hp->n_layer)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%d ranks are more than the %d layers of the model: each rank needs one",
                       n_rank, hp->n_layer);
    for (int32_t r = 0; r < n_rank; r++) {
        int32_t begin = pi_ranks_from(hp->n_layer, r), end = pi_ranks_from(hp->n_layer, r + 1);
        int32_t n = count_kv(m, begin, end, &n_full);
        if (n == 0 || (hp->delta.n_layer > 0 && n == end - begin))
            return pi_fail(err, PITH_UNSUPPORTED,
                           "layers %d to %d, which rank %d would have, are without %s, of which "
                           "each rank needs one",
                           begin, end - 1, r, n == 0 ? "attention" : "recurrent layers");
    }
    return PITH_OK;
}

/* From here on the model has this rank's layers alone. */
static pith_status keep_layers(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    PI_TRY(check_layers(m, err));
    int32_t first = pi_ranks_from(hp->n_layer, pi_ranks()->rank), n = pi_ranks_own(hp->n_layer);
    hp->whole.first_layer = first;
    hp->whole.first_kv = count_kv(m, 0, first, &hp->whole.first_full);
    memmove(m->layer, m->layer + first, (size_t)n * sizeof(*m->layer));
    hp->n_layer = n;
    if (hp->delta.n_layer == 0)
        return PITH_OK;
    hp->delta.n_layer = 0;
    for (int32_t l = 0; l < n; l++)
        if (m->layer[l].delta_layer >= 0)
            m->layer[l].delta_layer = hp->delta.n_layer++;
    return PITH_OK;
}

/* ---- rows ---- */

static pith_status check_width(const struct pith_model *model, const char *key, int32_t n_ff,
                               pith_error *err)
{
    int32_t n = pi_ranks()->n_rank;
    if (n_ff % PI_ACT_BLOCK == 0 && n_ff / PI_ACT_BLOCK >= n)
        return PITH_OK;
    return pi_fail(err, PITH_UNSUPPORTED, "%s.%s: %d cannot be split over %d ranks in parts of %d",
                   model->arch->name, key, n_ff, n, PI_ACT_BLOCK);
}

/* As many key heads, with their value heads, go with each KV head. So a state is the same part of
   all ranks' bytes as lanes are, and ranks run out of memory together. */
static pith_status check_delta(const struct pith_model *model, pith_error *err)
{
    const struct pi_delta_shape *s = &model->hp.delta;
    if (s->n_key % model->hp.n_head_kv != 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s.ssm.group_count: %d key heads are not as many for each of %d KV heads, "
                       "which ranks divide",
                       model->arch->name, s->n_key, model->hp.n_head_kv);
    if (s->dim % PI_ACT_BLOCK != 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s.ssm.state_size: %d is no multiple of %d, so that heads cannot be split "
                       "over ranks",
                       model->arch->name, s->dim, PI_ACT_BLOCK);
    return PITH_OK;
}

/* Whether every rank has the lanes of all heads. */
static bool is_latent(const struct pi_hparams *hp)
{
    return hp->latent.n_rank > 0;
}

static pith_status check_rows(const struct pith_model *model, pith_error *err)
{
    const struct pi_hparams *hp = &model->hp;
    int32_t n = pi_ranks()->n_rank, n_head = is_latent(hp) ? hp->n_head : hp->n_head_kv;
    if (n > n_head)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%d ranks are more than the %d %s heads of the model, of which each rank "
                       "needs one",
                       n, n_head, is_latent(hp) ? "query" : "KV");
    if (hp->delta.n_layer > 0)
        PI_TRY(check_delta(model, err));
    if (pi_arch_has(model->arch, &pi_block_ffn))
        PI_TRY(check_width(model, "feed_forward_length", hp->n_ff, err));
    if (hp->moe.n_ff_shared > 0)
        PI_TRY(check_width(model, "expert_shared_feed_forward_length", hp->moe.n_ff_shared, err));
    if (!pi_arch_has(model->arch, &pi_block_moe))
        return PITH_OK;
    return check_width(model, "expert_feed_forward_length", hp->moe.n_ff, err);
}

/* Seconds in which a layer's weights are read, where their rows can be divided; else 0. */
static double layer_s(const struct pith_model *m)
{
    int64_t bytes = 0;
    if (check_rows(m, NULL) != PITH_OK)
        return 0;
    for (int64_t i = 0; i < m->gguf.n_tensor; i++)
        if (pi_gguf_layer(m->gguf.tensor[i].name) >= 0)
            bytes += (int64_t)m->gguf.tensor[i].size;
    return (double)bytes / m->hp.n_layer / MEMORY_RATE;
}

pith_status pi_load_ranks_divide(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    struct pi_whole_shape *all = &hp->whole;
    *all = (struct pi_whole_shape){
        .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv,
        .n_ff = hp->n_ff,
        .n_ff_expert = hp->moe.n_ff,
        .n_ff_shared = hp->moe.n_ff_shared,
        .n_layer = hp->n_layer,
    };
    all->n_layer_kv = count_kv(m, 0, hp->n_layer, &all->n_layer_full);
    if (pi_ranks()->n_rank == 1)
        return PITH_OK;
    pi_ranks_choose(layer_s(m));
    return pi_ranks_by_layers() ? keep_layers(m, err) : check_rows(m, err);
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
    case PI_DIM_MIX:
    case PI_DIM_VALUES:
    case PI_DIM_VALUE_HEADS:
    case PI_DIM_MIX_VALUES:
    case PI_DIM_2_VALUE_HEADS:
        return n_row / hp->n_head_kv;
    case PI_DIM_QUERIES:
    case PI_DIM_QUERIES_ONCE:
        return hp->latent.dim_key + hp->n_rot;
    case PI_DIM_FF:
    case PI_DIM_FF_EXPERT:
    case PI_DIM_FF_SHARED:
        return PI_ACT_BLOCK;
    default:
        return pi_ranks_row_unit(n_row);
    }
}

/* This rank's rows of n_row: the first of them, how many, and where the others stand behind it. */
struct part {
    int64_t first;
    int32_t n;
    struct pi_plan_rows rows;
};

/* Rows of a recurrent layer are of all heads' queries, then keys, then values. Tiled, value head h
   has key head h mod n_key: then values are like n_value / n_key more parts of that kind. */
static void take_apart(const struct pi_hparams *hp, enum pi_dim row, struct part *part)
{
    const struct pi_delta_shape *s = &hp->delta;
    bool values = row == PI_DIM_VALUES || row == PI_DIM_VALUE_HEADS;
    if (!(s->tiled && values) && row != PI_DIM_MIX)
        return;
    int64_t all = row == PI_DIM_VALUE_HEADS ? s->n_key : (int64_t)s->n_key * s->dim;
    int64_t unit = all / hp->n_head_kv, n_shared = s->n_value / s->n_key;
    part->first = pi_ranks_from(hp->n_head_kv, pi_ranks()->rank) * unit;
    part->rows = (struct pi_plan_rows){
        .n_side = pi_ranks_own(hp->n_head_kv) * unit,
        .step = all,
        .n_apart = part->n,
    };
    if (s->tiled)
        return;
    part->rows.n_apart = 2 * part->rows.n_side;
    part->rows.rest = 2 * all + part->first * (n_shared - 1);
}

static struct part part_of(const struct pi_hparams *hp, enum pi_dim row, int32_t n_row)
{
    int32_t unit = unit_of(hp, row, n_row), n_unit = n_row / unit;
    struct part part = {
        .first = (int64_t)pi_ranks_from(n_unit, pi_ranks()->rank) * unit,
        .n = pi_ranks_own(n_unit) * unit,
    };
    take_apart(hp, row, &part);
    return part;
}

/* Whether each rank has all such rows: of the router, of latent attention what all heads share, and
   vectors of one head's length. */
static bool is_whole(enum pi_dim row)
{
    return row == PI_DIM_EXPERT || row == PI_DIM_LOW || row == PI_DIM_LATENT ||
           row == PI_DIM_RANK || row == PI_DIM_HEAD_K || row == PI_DIM_DELTA;
}

/* Of matrices of a head each, this rank's heads'. */
static void cut_slabs(struct pi_plan_matrix *what)
{
    const struct pi_matrix *m = what->matrix;
    int32_t n_head = (int32_t)what->n_slab;
    what->data +=
        (size_t)pi_ranks_from(n_head, pi_ranks()->rank) * (size_t)what->slab_rows *
        pi_dtype_row_bytes(pi_dtype_find(what->in_file), what->turned ? m->n_row : m->n_col);
    what->n_slab = pi_ranks_own(n_head);
}

static void cut_rows(struct pi_plan_matrix *what, const struct pi_hparams *hp, enum pi_dim row)
{
    struct pi_matrix *m = what->matrix;
    struct part part = part_of(hp, row, m->n_row);
    what->data += (size_t)part.first * pi_dtype_row_bytes(pi_dtype_find(m->type), m->n_col);
    what->rows = part.rows;
    m->n_row = part.n;
    m->n_group = (int32_t)pi_ceil_div(m->n_row, PI_GROUP);
}

void pi_load_ranks_matrix(struct pi_plan *plan, const struct pi_hparams *hp, enum pi_dim row,
                          enum pi_dim slab)
{
    struct pi_plan_matrix *what = &plan->matrix[plan->n_matrix - 1];
    if (!pi_ranks_by_rows())
        return;
    plan->weights_size -= pi_plan_size(what);
    if (slab == PI_DIM_HEADS)
        cut_slabs(what);
    else if (!is_whole(row))
        cut_rows(what, hp, row);
    plan->weights_size += pi_plan_size(what);
}

/* Of vectors [n_row][ne[0]] this rank has some rows. */
static void cut_vectors(struct pi_plan_vector *what, const struct pi_hparams *hp, enum pi_dim row)
{
    struct pi_gguf_tensor *t = &what->tensor;
    struct part part = part_of(hp, row, (int32_t)t->ne[1]);
    t->data += (size_t)part.first * pi_dtype_row_bytes(pi_dtype_find(t->type), what->step);
    t->ne[1] = part.n;
    what->rows = part.rows;
}

void pi_load_ranks_vector(struct pi_plan *plan, const struct pi_hparams *hp,
                          const struct pi_tensor_spec *spec)
{
    struct pi_plan_vector *what = &plan->vector[plan->n_vector - 1];
    struct pi_gguf_tensor *t = &what->tensor;
    if (!pi_ranks_by_rows() || spec->row == PI_DIM_EMBD || is_whole(spec->row))
        return;
    if (spec->row == PI_DIM_VALUE_HEADS) { /* a row for each */
        t->ne[1] = t->ne[0];
        t->ne[0] = what->step = 1;
    }
    if (spec->row == PI_DIM_VALUE_HEADS || spec->row == PI_DIM_CONV) {
        cut_vectors(what, hp, spec->row == PI_DIM_CONV ? spec->slab : spec->row);
        return;
    }
    struct part part = part_of(hp, spec->row, (int32_t)t->ne[0]);
    t->data += (size_t)part.first * pi_dtype_row_bytes(pi_dtype_find(t->type), 1);
    t->ne[0] = part.n;
}

/* A block of 32 values has one scale. One that reached into another rank's heads would have one on
   each. */
static pith_status check_heads(const struct pith_model *model, pith_error *err)
{
    const struct pi_hparams *hp = &model->hp;
    bool latent = is_latent(hp), int8 = false;
    int32_t len = latent ? hp->latent.dim_out : hp->n_head / hp->n_head_kv * hp->dim_v;
    for (int32_t l = 0; l < hp->n_layer; l++)
        int8 = int8 || pi_matrix_reads_int8(latent ? &model->layer[l].latent.out
                                                   : &model->layer[l].attn.wo);
    if (int8 && len % PI_ACT_BLOCK != 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: the %d values of %s are no multiple of %d, so that quantised weights "
                       "cannot be split over ranks",
                       model->arch->name, len, latent ? "a head" : "a KV head's query heads",
                       PI_ACT_BLOCK);
    return PITH_OK;
}

pith_status pi_load_ranks_shape(struct pith_model *model, pith_error *err)
{
    struct pi_hparams *hp = &model->hp;
    int32_t n_group = hp->n_head / hp->n_head_kv;
    if (!pi_ranks_by_rows())
        return PITH_OK;
    PI_TRY(check_heads(model, err));
    if (is_latent(hp)) {
        hp->n_head = pi_ranks_own(hp->n_head);
    } else {
        hp->whole.first_head_kv = pi_ranks_from(hp->n_head_kv, pi_ranks()->rank);
        hp->n_head_kv = pi_ranks_own(hp->n_head_kv);
        hp->n_head = hp->n_head_kv * n_group;
    }
    hp->delta.n_key = hp->delta.n_key / hp->whole.n_head_kv * hp->n_head_kv;
    hp->delta.n_value = hp->delta.n_value / hp->whole.n_head_kv * hp->n_head_kv;
    hp->n_ff = pi_ranks_own(hp->n_ff / PI_ACT_BLOCK) * PI_ACT_BLOCK;
    hp->moe.n_ff = pi_ranks_own(hp->moe.n_ff / PI_ACT_BLOCK) * PI_ACT_BLOCK;
    hp->moe.n_ff_shared = pi_ranks_own(hp->moe.n_ff_shared / PI_ACT_BLOCK) * PI_ACT_BLOCK;
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

/* Bytes of the heads' outputs of a layer. */
static int64_t sent_heads(const struct pith_model *m, const struct pi_layer *layer)
{
    const struct pi_hparams *hp = &m->hp;
    if (pi_layer_has(layer, &pi_block_delta))
        return read_bytes(&layer->delta.out, (int64_t)hp->delta.n_value * hp->delta.dim);
    if (pi_layer_has(layer, &pi_block_latent))
        return read_bytes(&layer->latent.out, (int64_t)hp->n_head * hp->latent.dim_out);
    return read_bytes(&layer->attn.wo, (int64_t)hp->n_head * hp->dim_v);
}

/* Bytes of a layer's feed-forward that a rank sends to each other for a token. */
static int64_t sent_forward(const struct pith_model *m, const struct pi_layer *layer)
{
    const struct pi_hparams *hp = &m->hp;
    if (!pi_layer_has(layer, &pi_block_moe))
        return read_bytes(&layer->ffn.down, hp->n_ff) + row_bytes(hp->n_embd);
    int64_t sent =
        hp->moe.n_used * (read_bytes(&layer->moe.down, hp->moe.n_ff) + row_bytes(hp->n_embd));
    if (hp->moe.n_ff_shared > 0)
        sent += read_bytes(&layer->moe.shared_down, hp->moe.n_ff_shared) + row_bytes(hp->n_embd);
    return sent;
}

/* Bytes that a rank sends for a token. By layers one row goes to the next rank, and the best tokens
   to all others (logits_ranks.h). */
static int64_t sent_bytes(const struct pith_model *m)
{
    const struct pi_hparams *hp = &m->hp;
    int32_t n_other = pi_ranks()->n_rank - 1;
    int64_t sent = sizeof(struct pi_best);
    if (pi_ranks_by_layers())
        return pi_shape_ends(hp) ? sent * n_other : hp->n_embd * (int64_t)sizeof(float);
    for (int32_t l = 0; l < hp->n_layer; l++)
        sent += sent_heads(m, &m->layer[l]) + row_bytes(hp->n_embd) + sent_forward(m, &m->layer[l]);
    return sent * n_other;
}

static void describe(const struct pith_model *m, pith_ranks_plan *out)
{
    const struct pi_hparams *hp = &m->hp;
    int32_t dim = hp->dim_k + (is_latent(hp) ? 0 : hp->dim_v);
    *out = (pith_ranks_plan){
        .n_head_kv = hp->n_head_kv,
        .first_layer = hp->whole.first_layer,
        .n_layer = hp->n_layer,
        .weight_bytes = (int64_t)m->weights_size,
        .kv_token_bytes = (int64_t)hp->n_layer_kv * hp->n_head_kv * dim * 2,
        .state_bytes = (int64_t)pi_delta_state_bytes(&hp->delta),
        .sent_token_bytes = sent_bytes(m),
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
    if (as->split == PITH_SPLIT_AUTO)
        return pi_fail(err, PITH_INVALID, "split: auto is measured between ranks that there are");
    PI_TRY(pi_ranks_check_parts(as->split, as->weight, n_weight, as->n_rank, err));
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
