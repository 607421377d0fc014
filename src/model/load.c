/*
 * load.c - reads a model's shape and finds its tensors. It trusts no number of the file: each is
 * checked against its range and against the tensors' own shapes before memory is sized by it.
 */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/ranks.h"
#include "model/host.h"
#include "model/load.h"
#include "model/load_ranks.h"
#include "model/load_turned.h"
#include "model/weights_file.h"
#include "tensor/dtype_table.h"

#define MAX_DIM (1 << 24) /* of any width: keeps products of two inside int64 */
#define MAX_LAYER 4096

/* ---- shape ---- */

static pith_status read_heads(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    const char *a = m->arch->name;
    PI_TRY(pi_key_count(m, "attention.head_count", 1, MAX_DIM, true, &hp->n_head, err));
    hp->n_head_kv = hp->n_head;
    PI_TRY(pi_key_count(m, "attention.head_count_kv", 1, MAX_DIM, false, &hp->n_head_kv, err));
    if (hp->n_head % hp->n_head_kv != 0)
        return pi_fail(err, PITH_FORMAT,
                       "%s.attention.head_count_kv: %d does not divide the %d query heads", a,
                       hp->n_head_kv, hp->n_head);
    hp->dim_k = hp->n_embd / hp->n_head;
    PI_TRY(pi_key_count(m, "attention.key_length", 1, MAX_DIM, false, &hp->dim_k, err));
    hp->dim_v = hp->dim_k;
    PI_TRY(pi_key_count(m, "attention.value_length", 1, MAX_DIM, false, &hp->dim_v, err));
    hp->n_rot = hp->dim_k;
    PI_TRY(pi_key_count(m, "rope.dimension_count", 1, MAX_DIM, false, &hp->n_rot, err));
    if (hp->n_rot > hp->dim_k || hp->n_rot % 2 != 0)
        return pi_fail(err, PITH_FORMAT,
                       "%s.rope.dimension_count: %d is odd or above the head size %d", a, hp->n_rot,
                       hp->dim_k);
    if ((int64_t)hp->n_head * pi_max(hp->dim_k, hp->dim_v) > MAX_DIM)
        return pi_fail(err, PITH_FORMAT, "%s.attention: %d heads of %d are more than Pith can hold",
                       a, hp->n_head, hp->dim_k);
    return PITH_OK;
}

struct pi_rope_keys pi_rope_keys_of(const struct pith_model *m)
{
    const struct pi_hparams *hp = &m->hp;
    return (struct pi_rope_keys){
        .base = "freq_base",
        .preset = 10000,
        .adjacent = m->arch->rope_adjacent,
        .n_rot = hp->n_rot,
        .n_ctx_train = hp->n_ctx_train,
        .n_ctx = m->n_ctx > 0 ? m->n_ctx : hp->n_ctx_train,
    };
}

/* Blocks at the end that predict further tokens from the pass's own result are no layers. */
static pith_status skip_heads(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    int32_t n = 0;
    PI_TRY(pi_key_count(m, "nextn_predict_layers", 0, hp->n_layer - 1, false, &n, err));
    hp->n_layer -= n;
    return PITH_OK;
}

/* Keys of the network as a whole. */
static pith_status read_shape(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    PI_TRY(pi_key_count(m, "block_count", 1, MAX_LAYER, true, &hp->n_layer, err));
    PI_TRY(pi_key_count(m, "embedding_length", 1, MAX_DIM, true, &hp->n_embd, err));
    PI_TRY(skip_heads(m, err));
    bool dense = pi_arch_has(m->arch, &pi_block_ffn);
    PI_TRY(pi_key_count(m, "feed_forward_length", dense, MAX_DIM, dense, &hp->n_ff, err));
    PI_TRY(pi_key_count(m, "context_length", 1, INT32_MAX, true, &hp->n_ctx_train, err));
    PI_TRY(read_heads(m, err));
    hp->attn_scale = 1.0f / sqrtf((float)hp->dim_k);
    hp->embd_scale = 1;
    PI_TRY(pi_key_number(m, "attention.layer_norm_rms_epsilon", 0, 1, true, &hp->rms_eps, err));
    struct pi_rope_keys keys = pi_rope_keys_of(m);
    if (m->arch->rope != NULL)
        m->arch->rope(&keys);
    return pi_rope_load(&m->rope, &m->gguf, m->arch->name, &keys, err);
}

/* ---- layers ---- */

/* Every layer with all parts of the family, as pi_arch.read finds it. */
static pith_status make_layers(struct pith_model *model, pith_error *err)
{
    const struct pi_arch *arch = model->arch;
    size_t n = (size_t)model->hp.n_layer;
    assert(arch->n_part <= PI_LAYER_BLOCKS);
    model->layer = pi_mem_alloc_n(PI_MEM_MODEL, n, sizeof(*model->layer));
    if (model->layer == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %zu layers", n);
    for (size_t l = 0; l < n; l++) {
        struct pi_layer *layer = &model->layer[l];
        layer->rope = &model->rope;
        layer->n_block = arch->n_part;
        for (int32_t i = 0; i < arch->n_part; i++)
            layer->block[i].block = arch->part[i].block;
    }
    return PITH_OK;
}

/* Numbers the layers with attention, those without a window first. */
static void number_kv_layers(struct pith_model *model)
{
    struct pi_hparams *hp = &model->hp;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        struct pi_layer *layer = &model->layer[l];
        bool attends = pi_layer_attends(layer);
        layer->kv_layer = attends && layer->window == 0 ? hp->n_layer_kv++ : -1;
    }
    hp->n_layer_full = hp->n_layer_kv;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        struct pi_layer *layer = &model->layer[l];
        if (pi_layer_attends(layer) && layer->window > 0)
            layer->kv_layer = hp->n_layer_kv++;
    }
}

/* A rotation by nothing, in the shape of the model's. */
static pith_status make_rope_none(struct pith_model *model, pith_error *err)
{
    struct pi_rope *none = &model->rope_none;
    *none = model->rope;
    none->magnitude = 1.0f;
    none->freq = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)none->n_pair, sizeof(*none->freq));
    return none->freq != NULL || none->n_pair == 0
               ? PITH_OK
               : pi_fail(err, PITH_NOMEM, "no memory for %d frequencies", none->n_pair);
}

/* Lists the layers with attention, their windows where there are some, and how they rotate. */
static pith_status list_kv_layers(struct pith_model *model, pith_error *err)
{
    struct pi_hparams *hp = &model->hp;
    number_kv_layers(model);
    if (hp->n_layer_kv == 0)
        return pi_fail(err, PITH_UNSUPPORTED, "%s: no layer of %d has attention", model->arch->name,
                       hp->n_layer);
    size_t n = (size_t)hp->n_layer_kv;
    bool windows = hp->n_layer_full < hp->n_layer_kv;
    model->kv_layer = pi_mem_alloc_n(PI_MEM_MODEL, n, sizeof(*model->kv_layer));
    model->kv_rope = pi_mem_alloc_n(PI_MEM_MODEL, n, sizeof(*model->kv_rope));
    if (windows)
        model->kv_window = pi_mem_alloc_n(PI_MEM_MODEL, n, sizeof(*model->kv_window));
    if (model->kv_layer == NULL || model->kv_rope == NULL || (windows && model->kv_window == NULL))
        return pi_fail(err, PITH_NOMEM, "no memory for a list of %zu layers", n);
    PI_TRY(make_rope_none(model, err));
    for (int32_t l = 0; l < hp->n_layer; l++) {
        const struct pi_layer *layer = &model->layer[l];
        if (layer->kv_layer < 0)
            continue;
        model->kv_layer[layer->kv_layer] = l;
        model->kv_rope[layer->kv_layer] = layer->rope != NULL ? layer->rope : &model->rope_none;
        if (windows)
            model->kv_window[layer->kv_layer] = layer->window;
    }
    return PITH_OK;
}

pith_status pi_load_hparams(struct pith_model *model, pith_error *err)
{
    PI_TRY(read_shape(model, err));
    PI_TRY(make_layers(model, err));
    PI_TRY(pi_load_moe(model, err));
    if (model->arch->read != NULL)
        PI_TRY(model->arch->read(model, err));
    PI_TRY(pi_load_ranks_divide(model, err));
    return list_kv_layers(model, err);
}

/* ---- tensors ---- */

#define VECTOR_ALIGN 16 /* floats of a cache line */

/* "[8][32][64]", slowest first; at least two dimensions. */
static const char *shape_text(const int64_t ne[4], char out[96])
{
    size_t len = 0;
    for (int32_t d = 3; d >= 0; d--)
        if (d < 2 || ne[d] != 1 || len > 0)
            len += (size_t)snprintf(out + len, 96 - len, "[%lld]", (long long)ne[d]);
    return out;
}

static pith_status check_shape(const struct pi_gguf_tensor *t, const char *name,
                               const int64_t want[4], pith_error *err)
{
    char has[96], asked[96];
    if (memcmp(t->ne, want, sizeof(t->ne)) != 0)
        return pi_fail(err, PITH_FORMAT, "tensor \"%s\": shape %s where the metadata asks for %s",
                       name, shape_text(t->ne, has), shape_text(want, asked));
    return PITH_OK;
}

/* n_slab matrices [n_row][n_col], each slab_rows rows of the file after the one before. */
static pith_status plan_matrix(struct pi_plan *plan, const struct pi_source *from, const char *name,
                               const int64_t shape[4], struct pi_matrix *out, pith_error *err)
{
    const struct pi_gguf_tensor *t = &from->tensor;
    int64_t n_col = shape[0], n_row = shape[1], n_slab = shape[2];
    const int64_t turned[4] = {n_row, n_col, n_slab, shape[3]};
    PI_TRY(check_shape(t, name, from->turned ? turned : shape, err));
    const struct pi_dtype_traits *traits = pi_dtype_find(t->type);
    if (traits == NULL || pi_matmul_index(traits->type) < 0)
        return pi_fail(err, PITH_UNSUPPORTED, "tensor \"%s\": weight type %u is not supported",
                       name, t->type);
    enum pi_dtype type = from->turned ? pi_turned_type(traits->type) : traits->type;
    size_t group_bytes = pi_matmul_group_bytes(type, (int32_t)n_col);
    if (group_bytes == 0)
        return pi_fail(err, PITH_FORMAT, "tensor \"%s\": rows of %lld do not fit blocks of %s",
                       name, (long long)n_col, traits->name);
    *out = (struct pi_matrix){
        .type = type,
        .n_row = (int32_t)n_row,
        .n_col = (int32_t)n_col,
        .n_group = (int32_t)pi_ceil_div(n_row, PI_GROUP),
        .group_bytes = group_bytes,
    };
    struct pi_plan_matrix *what = &plan->matrix[plan->n_matrix++];
    *what = (struct pi_plan_matrix){.data = t->data, .matrix = out};
    what->n_slab = n_slab;
    what->slab_rows = from->slab_rows;
    what->turned = from->turned;
    what->in_file = traits->type;
    snprintf(what->name, sizeof(what->name), "%s", name);
    /* The tensor's own bytes were checked against the file, so this sum cannot overflow. */
    plan->weights_size += (size_t)n_slab * (size_t)out->n_group * group_bytes;
    return PITH_OK;
}

static pith_status plan_vector(struct pi_plan *plan, const struct pi_gguf_tensor *t,
                               const char *name, const int64_t shape[4], float **out,
                               pith_error *err)
{
    PI_TRY(check_shape(t, name, shape, err));
    if (t->type != PI_DTYPE_F32 && t->type != PI_DTYPE_F16 && t->type != PI_DTYPE_BF16)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "tensor \"%s\": type %u is not supported for a vector (F32, F16, BF16 are)",
                       name, t->type);
    plan->vector[plan->n_vector++] =
        (struct pi_plan_vector){.tensor = *t, .step = t->ne[0], .vector = out};
    plan->vectors_len += pi_align((size_t)(shape[0] * shape[1]), VECTOR_ALIGN);
    return PITH_OK;
}

/* A tensor of the file is read; NULL: there is none. */
static void mark_used(struct pi_plan *plan, const struct pith_model *model,
                      const struct pi_gguf_tensor *t)
{
    if (t != NULL)
        plan->used[t - model->gguf.tensor] = true;
}

static pith_status plan_tensor(struct pi_plan *plan, struct pith_model *model, int32_t l,
                               const struct pi_tensor_spec *spec, pith_error *err)
{
    const struct pi_hparams *hp = &model->hp;
    struct pi_source from;
    int64_t n_row = pi_dim_len(hp, spec->row), n_slab = pi_dim_len(hp, spec->slab);
    int32_t in_file = hp->whole.first_layer + l;
    char name[128];
    snprintf(name, sizeof(name), "blk.%d.%s", in_file, spec->name);
    char *field = (char *)&model->layer[l] + spec->offset;
    if (n_row == 0 || pi_dim_len(hp, spec->col) == 0) /* a part that the model lacks */
        return PITH_OK;
    PI_TRY(pi_find_tensor(model, in_file, spec, &from, err));
    if (!from.there && spec->required)
        return pi_fail(err, PITH_FORMAT, "tensor \"%s\" is missing", name);
    if (!from.there)
        return PITH_OK;
    mark_used(plan, model, from.stored);
    mark_used(plan, model, from.spare);
    if (spec->col == PI_DIM_NONE) {
        PI_TRY(plan_vector(plan, &from.tensor, name, (int64_t[]){n_row, n_slab, 1, 1},
                           (float **)field, err));
        pi_load_ranks_vector(plan, hp, spec);
        return PITH_OK;
    }
    PI_TRY(plan_matrix(plan, &from, name, (int64_t[]){pi_dim_len(hp, spec->col), n_row, n_slab, 1},
                       (struct pi_matrix *)field, err));
    pi_load_ranks_matrix(plan, hp, spec->row, spec->slab);
    return PITH_OK;
}

static pith_status plan_layer(struct pi_plan *plan, struct pith_model *model, int32_t l,
                              pith_error *err)
{
    for (int32_t i = 0; i < model->arch->n_part; i++)
        if (pi_layer_has(&model->layer[l], model->arch->part[i].block))
            for (int32_t t = 0; t < model->arch->part[i].n_tensor; t++)
                PI_TRY(plan_tensor(plan, model, l, &model->arch->part[i].tensor[t], err));
    return PITH_OK;
}

/* Of the embedding a token reads one row. Where the output has a matrix of its own, the embedding
   is not packed, and rows are read from the file. Not so MXFP4, whose scales packing looks at. */
static pith_status plan_embedding(struct pi_plan *plan, const struct pi_gguf_tensor *t, bool tied,
                                  struct pith_model *model, pith_error *err)
{
    const char *name = "token_embd.weight";
    const int64_t shape[4] = {model->hp.n_embd, model->hp.n_vocab, 1, 1};
    const struct pi_source from = {.tensor = *t};
    PI_TRY(plan_matrix(plan, &from, name, shape, &model->embd, err));
    model->embd_rows = t->data;
    if (tied || model->embd.type == PI_DTYPE_MXFP4)
        return PITH_OK;
    const struct pi_plan_matrix *last = &plan->matrix[--plan->n_matrix];
    size_t at = 0;
    const struct pi_file *file = pi_gguf_file(&model->parts, t->data, &at);
    plan->weights_size -= pi_plan_size(last);
    if (file != NULL)
        pi_file_random(file, at, t->size);
    return PITH_OK;
}

/* A tensor that stays unread would make the model another one. Layers after the last, which predict
   more tokens, are left alone, and load_rope.c reads the factors of rotations. */
static pith_status check_unused(struct pi_plan *plan, const struct pith_model *model,
                                pith_error *err)
{
    static const char *const factors[] = {"rope_freqs.weight", "rope_factors_short.weight",
                                          "rope_factors_long.weight"};
    for (size_t i = 0; i < PI_LEN(factors); i++)
        mark_used(plan, model, pi_gguf_find_tensor(&model->gguf, factors[i]));
    for (int64_t i = 0; i < model->gguf.n_tensor; i++) {
        const struct pi_str name = model->gguf.tensor[i].name;
        if (!plan->used[i] && pi_shape_has_layer(&model->hp, pi_gguf_layer(name)))
            return pi_fail(err, PITH_UNSUPPORTED,
                           "tensor \"%.*s\": %s models with such a tensor are not supported",
                           (int)pi_min((int64_t)name.len, 100), name.data, model->arch_name);
    }
    return PITH_OK;
}

static pith_status plan_all(struct pi_plan *plan, struct pith_model *model, pith_error *err)
{
    struct pi_hparams *hp = &model->hp;
    const struct pi_gguf_tensor *embd = pi_gguf_find_tensor(&model->gguf, "token_embd.weight");
    const struct pi_gguf_tensor *norm = pi_gguf_find_tensor(&model->gguf, "output_norm.weight");
    const struct pi_gguf_tensor *output = pi_gguf_find_tensor(&model->gguf, "output.weight");
    if (embd == NULL || norm == NULL)
        return pi_fail(err, PITH_FORMAT, "tensor \"%s\" is missing",
                       embd == NULL ? "token_embd.weight" : "output_norm.weight");
    if (embd->ne[1] > MAX_DIM)
        return pi_fail(err, PITH_FORMAT, "tensor \"token_embd.weight\": %lld tokens are too many",
                       (long long)embd->ne[1]);
    mark_used(plan, model, embd);
    mark_used(plan, model, norm);
    mark_used(plan, model, output);
    hp->n_vocab = (int32_t)embd->ne[1];
    const int64_t ends[4] = {hp->n_embd, hp->n_vocab, 1, 1}, width[4] = {hp->n_embd, 1, 1, 1};
    /* A rank has a part of the output or none, and all rows of the embedding in the file. */
    bool tied = output == NULL && pi_ranks()->n_rank == 1;
    if (pi_shape_begins(hp))
        PI_TRY(plan_embedding(plan, embd, tied, model, err));
    const struct pi_source last = {.tensor = output != NULL ? *output : *embd};
    if (!tied && pi_shape_ends(hp)) {
        PI_TRY(plan_matrix(plan, &last, "output.weight", ends, &model->output, err));
        pi_load_ranks_matrix(plan, hp, PI_DIM_NONE, PI_DIM_NONE);
    }
    PI_TRY(plan_vector(plan, norm, "output_norm.weight", width, &model->output_norm, err));
    for (int32_t l = 0; l < hp->n_layer; l++)
        PI_TRY(plan_layer(plan, model, l, err));
    PI_TRY(check_unused(plan, model, err));
    return pi_load_ranks_shape(model, err);
}

/* Tensors that the model may have. */
static size_t count_tensors(const struct pith_model *model)
{
    size_t n = 0;
    for (int32_t i = 0; i < model->arch->n_part; i++)
        n += (size_t)model->arch->part[i].n_tensor;
    return n * (size_t)model->hp.n_layer + 3;
}

/* The blocks' ways in and out, now that it is known which tensors there are. */
static void plan_blocks(struct pith_model *model)
{
    for (int32_t l = 0; l < model->hp.n_layer; l++)
        for (int32_t i = 0; i < model->layer[l].n_block; i++) {
            struct pi_layer_block *block = &model->layer[l].block[i];
            block->block->plan(&model->layer[l], block);
        }
}

/* Places the matrices of several slabs, or of one slab, after the placed ones. */
static void place(struct pi_plan *plan, bool slabs)
{
    for (int64_t i = 0; i < plan->n_matrix; i++) {
        struct pi_plan_matrix *what = &plan->matrix[i];
        if ((what->n_slab > 1) != slabs)
            continue;
        what->place = plan->places_size;
        plan->places_size = pi_align(what->place + pi_plan_size(what), PI_PLAN_ALIGN);
    }
}

static void load_vectors(const struct pi_plan *plan, float *at)
{
    for (int64_t i = 0, n_side; i < plan->n_vector; i++) {
        const struct pi_plan_vector *what = &plan->vector[i];
        const struct pi_gguf_tensor *t = &what->tensor;
        const struct pi_dtype_traits *type = pi_dtype_find(t->type);
        size_t step = pi_dtype_row_bytes(type, what->step);
        *what->vector = at;
        for (int64_t r = 0; r < t->ne[1]; r++)
            type->decode(t->data + (size_t)pi_plan_row(&what->rows, r, &n_side) * step,
                         at + r * t->ne[0], t->ne[0]);
        at += pi_align((size_t)(t->ne[0] * t->ne[1]), VECTOR_ALIGN);
    }
}

/* Into memory, which is taken as it is touched: later, where weights are packed on demand. */
static pith_status pack_into_memory(const struct pi_plan *plan, struct pith_model *model,
                                    const pith_model_params *params, struct pi_beside *beside,
                                    pith_error *err)
{
    model->weights = pi_mem_map_whole(PI_MEM_WEIGHTS, plan->places_size);
    if (model->weights == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %zu bytes of weights", plan->weights_size);
    struct pi_pack_target target = {.memory = model->weights};
    return params->on_demand ? PITH_OK : pi_pack_all(plan, model, params, &target, beside, err);
}

/* In a file where the caller asks for one and it is possible, else in memory. */
static pith_status load_matrices(const struct pi_plan *plan, struct pith_model *model,
                                 const char *path, const pith_model_params *params,
                                 struct pi_beside *beside, pith_error *err)
{
    if (params->cache_weights != NULL) {
        pith_status status = pi_weights_file(plan, model, path, params, beside, err);
        if (status != PITH_IO)
            return status;
    }
    return pack_into_memory(plan, model, params, beside, err);
}

static pith_status load_planned(struct pi_plan *plan, struct pith_model *model, const char *path,
                                const pith_model_params *params, struct pi_beside *beside,
                                pith_error *err)
{
    PI_TRY(plan_all(plan, model, err));
    place(plan, false);
    model->experts_at = plan->places_size;
    place(plan, true);
    model->weights_size = plan->weights_size;
    model->places_size = plan->places_size;
    model->vectors = pi_mem_alloc_n(PI_MEM_WEIGHTS, plan->vectors_len, sizeof(float));
    if (model->vectors == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %zu vectors", (size_t)plan->n_vector);
    load_vectors(plan, model->vectors);
    PI_TRY(load_matrices(plan, model, path, params, beside, err));
    bool packed = model->weights_file.data != NULL || !params->on_demand;
    PI_TRY(pi_host_create(plan, model, params->n_thread, packed, err));
    if (model->output.data == NULL)
        model->output = model->embd; /* tied */
    plan_blocks(model);
    return PITH_OK;
}

pith_status pi_load_weights(struct pith_model *model, const char *path,
                            const pith_model_params *params, struct pi_beside *beside,
                            pith_error *err)
{
    struct pi_plan plan = {0};
    size_t n_tensor = count_tensors(model);
    pith_status status = PITH_NOMEM;

    plan.matrix = pi_mem_alloc_n(PI_MEM_MODEL, n_tensor, sizeof(*plan.matrix));
    plan.vector = pi_mem_alloc_n(PI_MEM_MODEL, n_tensor, sizeof(*plan.vector));
    plan.used = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)model->gguf.n_tensor, sizeof(*plan.used));
    if (plan.matrix != NULL && plan.vector != NULL && plan.used != NULL)
        status = load_planned(&plan, model, path, params, beside, err);
    else
        pi_fail(err, PITH_NOMEM, "no memory for the table of %zu tensors", n_tensor);
    if (status == PITH_OK && !beside->done)
        beside->fn(beside->ctx);
    pi_mem_free(plan.matrix);
    pi_mem_free(plan.vector);
    pi_mem_free(plan.used);
    return status;
}
