/*
 * load.c - reads a model's shape and packs its weights. It trusts no number of the file: each is
 * checked against its range and against the tensors' own shapes before memory is sized by it.
 *
 * Packing reads the file's mapping in order and gives its pages back behind it, so that one copy of
 * the weights is in memory at the end and little more on the way.
 */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/threads.h"
#include "model/load.h"

#define MAX_DIM (1 << 24) /* of any width: keeps products of two inside int64 */
#define MAX_LAYER 4096
#define PACK_GROUPS 12 /* groups that one work item packs */
#define DROP_ITEMS                                                                                 \
    32 /* items after which their source is given back: each time costs a stop
                               of all threads */

/* ---- shape ---- */

static pith_status read_count(const struct pi_gguf *g, const char *arch, const char *name,
                              int32_t max, bool required, int32_t *out, pith_error *err)
{
    char key[128];
    uint32_t value;
    snprintf(key, sizeof(key), "%s.%s", arch, name);
    pith_status status = pi_gguf_u32(g, key, &value, err);
    if (status == PITH_NOT_FOUND)
        return required ? pi_fail(err, PITH_FORMAT, "%s is missing", key) : PITH_OK;
    PI_TRY(status);
    if (value == 0 || value > (uint32_t)max)
        return pi_fail(err, PITH_FORMAT, "%s: %u is not in 1..%d", key, value, max);
    *out = (int32_t)value;
    return PITH_OK;
}

static pith_status read_heads(const struct pi_gguf *g, const char *a, struct pi_hparams *hp,
                              pith_error *err)
{
    PI_TRY(read_count(g, a, "attention.head_count", MAX_DIM, true, &hp->n_head, err));
    hp->n_head_kv = hp->n_head;
    PI_TRY(read_count(g, a, "attention.head_count_kv", MAX_DIM, false, &hp->n_head_kv, err));
    if (hp->n_head % hp->n_head_kv != 0)
        return pi_fail(err, PITH_FORMAT,
                       "%s.attention.head_count_kv: %d does not divide the %d query heads", a,
                       hp->n_head_kv, hp->n_head);
    hp->dim_k = hp->n_embd / hp->n_head;
    PI_TRY(read_count(g, a, "attention.key_length", MAX_DIM, false, &hp->dim_k, err));
    hp->dim_v = hp->dim_k;
    PI_TRY(read_count(g, a, "attention.value_length", MAX_DIM, false, &hp->dim_v, err));
    hp->n_rot = hp->dim_k;
    PI_TRY(read_count(g, a, "rope.dimension_count", MAX_DIM, false, &hp->n_rot, err));
    if (hp->n_rot > hp->dim_k || hp->n_rot % 2 != 0)
        return pi_fail(err, PITH_FORMAT,
                       "%s.rope.dimension_count: %d is odd or above the head size %d", a, hp->n_rot,
                       hp->dim_k);
    if ((int64_t)hp->n_head * pi_max(hp->dim_k, hp->dim_v) > MAX_DIM)
        return pi_fail(err, PITH_FORMAT, "%s.attention: %d heads of %d are more than Pith can hold",
                       a, hp->n_head, hp->dim_k);
    return PITH_OK;
}

/* Keys of the network as a whole. */
static pith_status read_shape(struct pith_model *model, pith_error *err)
{
    const struct pi_gguf *g = &model->gguf;
    const char *a = model->arch->name;
    struct pi_hparams *hp = &model->hp;
    char key[128];
    uint32_t n_expert = 0;

    PI_TRY(read_count(g, a, "block_count", MAX_LAYER, true, &hp->n_layer, err));
    PI_TRY(read_count(g, a, "embedding_length", MAX_DIM, true, &hp->n_embd, err));
    PI_TRY(read_count(g, a, "feed_forward_length", MAX_DIM, true, &hp->n_ff, err));
    PI_TRY(read_count(g, a, "context_length", INT32_MAX, true, &hp->n_ctx_train, err));
    PI_TRY(read_heads(g, a, hp, err));
    hp->attn_scale = 1.0f / sqrtf((float)hp->dim_k);

    snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", a);
    pith_status status = pi_gguf_f32(g, key, &hp->rms_eps, err);
    if (status == PITH_NOT_FOUND)
        return pi_fail(err, PITH_FORMAT, "%s is missing", key);
    PI_TRY(status);
    if (!(hp->rms_eps >= 0) || hp->rms_eps > 1)
        return pi_fail(err, PITH_FORMAT, "%s: %g is not in 0..1", key, (double)hp->rms_eps);

    snprintf(key, sizeof(key), "%s.expert_count", a);
    status = pi_gguf_u32(g, key, &n_expert, err);
    if (status != PITH_NOT_FOUND)
        PI_TRY(status);
    if (n_expert > 0)
        return pi_fail(err, PITH_UNSUPPORTED, "%s: a mixture of %u experts is not supported", key,
                       n_expert);
    return pi_rope_load(&model->rope, g, a, hp->n_rot, hp->n_ctx_train, model->arch->rope_adjacent,
                        err);
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
        bool attends = pi_layer_has(layer, &pi_block_attention);
        layer->kv_layer = attends && layer->window == 0 ? hp->n_layer_kv++ : -1;
    }
    hp->n_layer_full = hp->n_layer_kv;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        struct pi_layer *layer = &model->layer[l];
        if (pi_layer_has(layer, &pi_block_attention) && layer->window > 0)
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
    if (model->arch->read != NULL)
        PI_TRY(model->arch->read(model, err));
    return list_kv_layers(model, err);
}

const struct pi_rope *pi_model_rope(const struct pith_model *m)
{
    for (int32_t l = 0; m->layer != NULL && l < m->hp.n_layer_full; l++)
        if (m->kv_rope[l] != &m->rope_none)
            return m->kv_rope[l];
    return &m->rope;
}

pith_status pi_model_check_full(const struct pith_model *m, const char *field, pith_error *err)
{
    if (m->layer != NULL && m->hp.n_layer_full == 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: all %d layers with attention see a window, which policies leave alone",
                       field, m->hp.n_layer_kv);
    for (int32_t l = 0; m->layer != NULL && l < m->hp.n_layer_full; l++)
        if (m->kv_rope[l] != pi_model_rope(m) && m->kv_rope[l] != &m->rope_none)
            return pi_fail(err, PITH_UNSUPPORTED,
                           "%s: the model's layer %d has a rotation of its own, which policies and "
                           "statistics do not know",
                           field, m->kv_layer[l]);
    return PITH_OK;
}

/* ---- tensors ---- */

static int64_t dim_len(const struct pi_hparams *hp, enum pi_dim dim)
{
    const struct pi_delta_shape *delta = &hp->delta;
    switch (dim) {
    case PI_DIM_NONE:
        return 1;
    case PI_DIM_EMBD:
        return hp->n_embd;
    case PI_DIM_FF:
        return hp->n_ff;
    case PI_DIM_Q:
        return (int64_t)hp->n_head * hp->dim_k * (hp->attn_gated ? 2 : 1);
    case PI_DIM_K:
        return (int64_t)hp->n_head_kv * hp->dim_k;
    case PI_DIM_V:
        return (int64_t)hp->n_head_kv * hp->dim_v;
    case PI_DIM_O:
        return (int64_t)hp->n_head * hp->dim_v;
    case PI_DIM_HEAD_K:
        return hp->dim_k;
    case PI_DIM_MIX:
        return (int64_t)delta->dim * (2 * delta->n_key + delta->n_value);
    case PI_DIM_CONV:
        return delta->n_conv;
    case PI_DIM_VALUES:
        return (int64_t)delta->dim * delta->n_value;
    case PI_DIM_VALUE_HEADS:
        return delta->n_value;
    case PI_DIM_DELTA:
        return delta->dim;
    }
    return 0;
}

/* What goes where: filled before anything is packed, so that memory is sized once. */
struct plan {
    struct plan_matrix {
        const struct pi_gguf_tensor *tensor;
        struct pi_matrix *matrix;
    } * matrix; /* [n_matrix], owned */
    int64_t n_matrix;
    struct plan_vector {
        const struct pi_gguf_tensor *tensor;
        float **vector;
    } * vector; /* [n_vector], owned */
    int64_t n_vector;
    size_t weights_size; /* bytes of all packed matrices */
    size_t vectors_len;  /* floats of all vectors, each rounded up to a cache line */
};

#define VECTOR_ALIGN 16 /* floats of a cache line */

static pith_status check_shape(const struct pi_gguf_tensor *t, const char *name, int64_t n_row,
                               int64_t n_col, pith_error *err)
{
    bool vector = n_col == 1;
    int64_t want0 = vector ? n_row : n_col, want1 = vector ? 1 : n_row;
    if (t->ne[0] != want0 || t->ne[1] != want1 || t->ne[2] != 1 || t->ne[3] != 1)
        return pi_fail(err, PITH_FORMAT,
                       "tensor \"%s\": shape [%lld][%lld] where the metadata asks for [%lld][%lld]",
                       name, (long long)t->ne[1], (long long)t->ne[0], (long long)want1,
                       (long long)want0);
    return PITH_OK;
}

static pith_status plan_matrix(struct plan *plan, const struct pi_gguf_tensor *t, const char *name,
                               int64_t n_row, int64_t n_col, struct pi_matrix *out, pith_error *err)
{
    PI_TRY(check_shape(t, name, n_row, n_col, err));
    const struct pi_dtype_traits *traits = pi_dtype_find(t->type);
    if (traits == NULL || pi_matmul_index(traits->type) < 0)
        return pi_fail(err, PITH_UNSUPPORTED, "tensor \"%s\": weight type %u is not supported",
                       name, t->type);
    size_t group_bytes = pi_matmul_group_bytes(traits->type, (int32_t)n_col);
    if (group_bytes == 0)
        return pi_fail(err, PITH_FORMAT, "tensor \"%s\": rows of %lld do not fit blocks of %s",
                       name, (long long)n_col, traits->name);
    *out = (struct pi_matrix){
        .type = traits->type,
        .n_row = (int32_t)n_row,
        .n_col = (int32_t)n_col,
        .n_group = (int32_t)pi_ceil_div(n_row, PI_GROUP),
        .group_bytes = group_bytes,
    };
    plan->matrix[plan->n_matrix++] = (struct plan_matrix){t, out};
    /* The tensor's own bytes were checked against the file, so this sum cannot overflow. */
    plan->weights_size += pi_align((size_t)out->n_group * group_bytes, 64);
    return PITH_OK;
}

/* n_slab vectors of n floats. */
static pith_status plan_vector(struct plan *plan, const struct pi_gguf_tensor *t, const char *name,
                               int64_t n, int64_t n_slab, float **out, pith_error *err)
{
    PI_TRY(n_slab > 1 ? check_shape(t, name, n_slab, n, err) : check_shape(t, name, n, 1, err));
    if (t->type != PI_DTYPE_F32 && t->type != PI_DTYPE_F16 && t->type != PI_DTYPE_BF16)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "tensor \"%s\": type %u is not supported for a vector (F32, F16, BF16 are)",
                       name, t->type);
    plan->vector[plan->n_vector++] = (struct plan_vector){t, out};
    plan->vectors_len += pi_align((size_t)(n * n_slab), VECTOR_ALIGN);
    return PITH_OK;
}

/* The tensors of one block of a layer. */
static pith_status plan_part(struct plan *plan, struct pith_model *model, int32_t l,
                             const struct pi_arch_part *part, pith_error *err)
{
    for (int32_t i = 0; i < part->n_tensor; i++) {
        const struct pi_tensor_spec *spec = &part->tensor[i];
        char name[128];
        snprintf(name, sizeof(name), "blk.%d.%s", l, spec->name);
        const struct pi_gguf_tensor *t = pi_gguf_find_tensor(&model->gguf, name);
        char *field = (char *)&model->layer[l] + spec->offset;
        if (t == NULL && spec->required)
            return pi_fail(err, PITH_FORMAT, "tensor \"%s\" is missing", name);
        if (t == NULL)
            continue;
        int64_t n_row = dim_len(&model->hp, spec->row), n_col = dim_len(&model->hp, spec->col);
        if (spec->col == PI_DIM_NONE)
            PI_TRY(plan_vector(plan, t, name, n_row, dim_len(&model->hp, spec->slab),
                               (float **)field, err));
        else
            PI_TRY(plan_matrix(plan, t, name, n_row, n_col, (struct pi_matrix *)field, err));
    }
    return PITH_OK;
}

static pith_status plan_layer(struct plan *plan, struct pith_model *model, int32_t l,
                              pith_error *err)
{
    for (int32_t i = 0; i < model->arch->n_part; i++)
        if (pi_layer_has(&model->layer[l], model->arch->part[i].block))
            PI_TRY(plan_part(plan, model, l, &model->arch->part[i], err));
    return PITH_OK;
}

static pith_status plan_all(struct plan *plan, struct pith_model *model, pith_error *err)
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
    hp->n_vocab = (int32_t)embd->ne[1];
    PI_TRY(
        plan_matrix(plan, embd, "token_embd.weight", hp->n_vocab, hp->n_embd, &model->embd, err));
    if (output != NULL)
        PI_TRY(plan_matrix(plan, output, "output.weight", hp->n_vocab, hp->n_embd, &model->output,
                           err));
    PI_TRY(plan_vector(plan, norm, "output_norm.weight", hp->n_embd, 1, &model->output_norm, err));
    for (int32_t l = 0; l < hp->n_layer; l++)
        PI_TRY(plan_layer(plan, model, l, err));
    return PITH_OK;
}

/* ---- packing ---- */

struct pack_job {
    const struct pith_model *model;
    const struct pi_gguf_tensor *tensor;
    struct pi_matrix *matrix;
    size_t row_bytes; /* in the file */
};

/* Gives the file's pages back from an item's first group to group `last`. Whoever still reads there
   gets them from the file again. */
static void drop_source(const struct pack_job *job, int64_t item, int32_t last)
{
    size_t base = (size_t)(job->tensor->data - job->model->file.data);
    size_t from = (size_t)item * PACK_GROUPS * PI_GROUP * job->row_bytes;
    size_t to = (size_t)pi_min((int64_t)last * PI_GROUP, job->matrix->n_row) * job->row_bytes;
    pi_file_drop(&job->model->file, base + from, to - from);
}

static void pack_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct pack_job *job = ctx;
    struct pi_matrix *m = job->matrix;
    (void)thread;
    for (int64_t item = begin; item < end; item++) {
        int32_t first = (int32_t)item * PACK_GROUPS;
        int32_t last = (int32_t)pi_min(first + PACK_GROUPS, m->n_group);
        for (int32_t g = first; g < last; g++) {
            const uint8_t *rows = job->tensor->data + (size_t)g * PI_GROUP * job->row_bytes;
            int32_t n_row = (int32_t)pi_min(PI_GROUP, m->n_row - g * PI_GROUP);
            pi_matmul_pack_group(m->type, m->n_col, rows, n_row,
                                 m->data + (size_t)g * m->group_bytes);
        }
        if ((item + 1) % DROP_ITEMS == 0 || last == m->n_group)
            drop_source(job, item - item % DROP_ITEMS, last);
    }
}

static void load_vector(const struct pi_gguf_tensor *t, float *out)
{
    const struct pi_dtype_traits *traits = pi_dtype_find(t->type);
    traits->decode(t->data, out, t->ne[0] * t->ne[1]);
}

static pith_status pack_all(const struct plan *plan, struct pith_model *model,
                            const pith_model_params *params, pith_error *err)
{
    int32_t n_thread = params->n_thread > 0 ? params->n_thread : pi_thread_count();
    uint8_t *weights = model->weights;
    float *vectors = model->vectors;
    for (int64_t i = 0; i < plan->n_vector; i++) {
        *plan->vector[i].vector = vectors;
        load_vector(plan->vector[i].tensor, vectors);
        const struct pi_gguf_tensor *t = plan->vector[i].tensor;
        vectors += pi_align((size_t)(t->ne[0] * t->ne[1]), VECTOR_ALIGN);
    }
    for (int64_t i = 0; i < plan->n_matrix; i++) {
        struct pi_matrix *m = plan->matrix[i].matrix;
        const struct pi_dtype_traits *traits = pi_dtype_find(m->type);
        struct pack_job job = {model, plan->matrix[i].tensor, m,
                               pi_dtype_row_bytes(traits, m->n_col)};
        m->data = weights;
        pi_parallel_items(n_thread, pi_ceil_div(m->n_group, PACK_GROUPS), pack_items, &job);
        drop_source(&job, 0, m->n_group); /* what was read again after it had been given back */
        weights += pi_align((size_t)m->n_group * m->group_bytes, 64);
        if (params->progress != NULL &&
            !params->progress(params->progress_user,
                              (double)(weights - model->weights) / (double)plan->weights_size))
            return pi_fail(err, PITH_CANCELLED, "loading was cancelled");
    }
    return PITH_OK;
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

pith_status pi_load_weights(struct pith_model *model, const pith_model_params *params,
                            pith_error *err)
{
    struct plan plan = {0};
    size_t n_tensor = count_tensors(model);
    pith_status status = PITH_NOMEM;

    plan.matrix = pi_mem_alloc_n(PI_MEM_MODEL, n_tensor, sizeof(*plan.matrix));
    plan.vector = pi_mem_alloc_n(PI_MEM_MODEL, n_tensor, sizeof(*plan.vector));
    if (plan.matrix == NULL || plan.vector == NULL) {
        pi_fail(err, PITH_NOMEM, "no memory for the table of %zu tensors", n_tensor);
        goto done;
    }
    status = plan_all(&plan, model, err);
    if (status != PITH_OK)
        goto done;
    model->weights_size = plan.weights_size;
    model->weights = pi_mem_map(PI_MEM_WEIGHTS, plan.weights_size);
    model->vectors = pi_mem_alloc_n(PI_MEM_WEIGHTS, plan.vectors_len, sizeof(float));
    if (model->weights == NULL || model->vectors == NULL) {
        status = pi_fail(err, PITH_NOMEM, "no memory for %zu bytes of weights", plan.weights_size);
        goto done;
    }
    status = pack_all(&plan, model, params, err);
    if (model->output.data == NULL)
        model->output = model->embd; /* tied */
    plan_blocks(model);
done:
    pi_mem_free(plan.matrix);
    pi_mem_free(plan.vector);
    return status;
}
