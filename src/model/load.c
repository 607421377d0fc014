/*
 * load.c - reads a model's shape and packs its weights. It trusts no number of the file: each is
 * checked against its range and against the tensors' own shapes before memory is sized by it.
 *
 * Packing reads the file's mapping in order and gives its pages back behind it, so that one copy of
 * the weights is in memory at the end and little more on the way.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/threads.h"
#include "model/load.h"
#include "model/load_turned.h"
#include "tensor/dtype_table.h"

#define MAX_DIM (1 << 24) /* of any width: keeps products of two inside int64 */
#define MAX_LAYER 4096
#define PACK_GROUPS 12 /* groups that one work item packs */
#define DROP_ITEMS                                                                                 \
    32 /* items after which their source is given back: each time costs a stop
                               of all threads */

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

#define NAME_LEN 128

/* What goes where: filled before anything is packed, so that memory is sized once. */
struct plan {
    struct plan_matrix {
        const uint8_t *data; /* of the first row, in the file */
        struct pi_matrix *matrix;
        int64_t n_slab;        /* matrices, one behind the other in memory */
        int64_t slab_rows;     /* of the file, from the first row of one to that of the next */
        bool turned;           /* the file has its rows as columns, */
        enum pi_dtype in_file; /* in this type */
        char name[NAME_LEN];
    } * matrix; /* [n_matrix], owned */
    int64_t n_matrix;
    struct plan_vector {
        struct pi_gguf_tensor tensor;
        float **vector;
    } * vector; /* [n_vector], owned */
    int64_t n_vector;
    size_t weights_size; /* bytes of all packed matrices */
    size_t vectors_len;  /* floats of all vectors, each rounded up to a cache line */
};

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

/* n_slab matrices [n_row][n_col], each slab_rows rows of the file behind the one before. */
static pith_status plan_matrix(struct plan *plan, const struct pi_source *from, const char *name,
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
    struct plan_matrix *what = &plan->matrix[plan->n_matrix++];
    *what = (struct plan_matrix){.data = t->data, .matrix = out};
    what->n_slab = n_slab;
    what->slab_rows = from->slab_rows;
    what->turned = from->turned;
    what->in_file = traits->type;
    snprintf(what->name, sizeof(what->name), "%s", name);
    /* The tensor's own bytes were checked against the file, so this sum cannot overflow. */
    plan->weights_size += (size_t)n_slab * (size_t)out->n_group * group_bytes;
    return PITH_OK;
}

static pith_status plan_vector(struct plan *plan, const struct pi_gguf_tensor *t, const char *name,
                               const int64_t shape[4], float **out, pith_error *err)
{
    PI_TRY(check_shape(t, name, shape, err));
    if (t->type != PI_DTYPE_F32 && t->type != PI_DTYPE_F16 && t->type != PI_DTYPE_BF16)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "tensor \"%s\": type %u is not supported for a vector (F32, F16, BF16 are)",
                       name, t->type);
    plan->vector[plan->n_vector++] = (struct plan_vector){*t, out};
    plan->vectors_len += pi_align((size_t)(shape[0] * shape[1]), VECTOR_ALIGN);
    return PITH_OK;
}

static pith_status plan_tensor(struct plan *plan, struct pith_model *model, int32_t l,
                               const struct pi_tensor_spec *spec, pith_error *err)
{
    const struct pi_hparams *hp = &model->hp;
    struct pi_source from;
    int64_t n_row = pi_dim_len(hp, spec->row), n_slab = pi_dim_len(hp, spec->slab);
    char name[128];
    snprintf(name, sizeof(name), "blk.%d.%s", l, spec->name);
    char *field = (char *)&model->layer[l] + spec->offset;
    if (n_row == 0 || pi_dim_len(hp, spec->col) == 0) /* of what the model does without */
        return PITH_OK;
    PI_TRY(pi_find_tensor(model, l, spec, &from, err));
    if (!from.there && spec->required)
        return pi_fail(err, PITH_FORMAT, "tensor \"%s\" is missing", name);
    if (!from.there)
        return PITH_OK;
    if (spec->col == PI_DIM_NONE)
        return plan_vector(plan, &from.tensor, name, (int64_t[]){n_row, n_slab, 1, 1},
                           (float **)field, err);
    return plan_matrix(plan, &from, name, (int64_t[]){pi_dim_len(hp, spec->col), n_row, n_slab, 1},
                       (struct pi_matrix *)field, err);
}

static pith_status plan_layer(struct plan *plan, struct pith_model *model, int32_t l,
                              pith_error *err)
{
    for (int32_t i = 0; i < model->arch->n_part; i++)
        if (pi_layer_has(&model->layer[l], model->arch->part[i].block))
            for (int32_t t = 0; t < model->arch->part[i].n_tensor; t++)
                PI_TRY(plan_tensor(plan, model, l, &model->arch->part[i].tensor[t], err));
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
    const int64_t ends[4] = {hp->n_embd, hp->n_vocab, 1, 1}, width[4] = {hp->n_embd, 1, 1, 1};
    const struct pi_source first = {.tensor = *embd};
    PI_TRY(plan_matrix(plan, &first, "token_embd.weight", ends, &model->embd, err));
    const struct pi_source last = {.tensor = output != NULL ? *output : *embd};
    if (output != NULL)
        PI_TRY(plan_matrix(plan, &last, "output.weight", ends, &model->output, err));
    PI_TRY(plan_vector(plan, norm, "output_norm.weight", width, &model->output_norm, err));
    for (int32_t l = 0; l < hp->n_layer; l++)
        PI_TRY(plan_layer(plan, model, l, err));
    return PITH_OK;
}

/* ---- packing ---- */

struct pack_job {
    const struct pith_model *model;
    const struct plan_matrix *what;
    size_t row_bytes;   /* in the file */
    atomic_bool *sound; /* false once scales were found that are none */
};

static int32_t items_of_slab(const struct pack_job *job)
{
    return (int32_t)pi_ceil_div(job->what->matrix->n_group, PACK_GROUPS);
}

/* Where a slab's row begins, counted from the tensor's first. */
static size_t source_of(const struct pack_job *job, int64_t slab, int64_t row)
{
    return (size_t)(slab * job->what->slab_rows + row) * job->row_bytes;
}

/* Gives the file's pages back from an item's first group to group `last` of its slab. Whoever still
   reads there gets them from the file again. */
static void drop_source(const struct pack_job *job, int64_t item, int32_t last)
{
    const struct plan_matrix *what = job->what;
    int64_t slab = item / items_of_slab(job), first = item % items_of_slab(job) * PACK_GROUPS;
    size_t from = source_of(job, slab, first * PI_GROUP);
    int64_t end = pi_min((int64_t)last * PI_GROUP, what->matrix->n_row);
    pi_gguf_drop(&job->model->parts, what->data + from, source_of(job, slab, end) - from);
}

static void pack_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct pack_job *job = ctx;
    const struct pi_matrix *m = job->what->matrix;
    int32_t n_item = items_of_slab(job);
    (void)thread;
    for (int64_t at = begin; at < end; at++) {
        int64_t slab = at / n_item, item = at % n_item;
        struct pi_matrix w = pi_matrix_slab(m, (int32_t)slab);
        int32_t first = (int32_t)item * PACK_GROUPS;
        int32_t last = (int32_t)pi_min(first + PACK_GROUPS, m->n_group);
        for (int32_t g = first; g < last; g++) {
            const uint8_t *rows = job->what->data + source_of(job, slab, (int64_t)g * PI_GROUP);
            int32_t n_row = (int32_t)pi_min(PI_GROUP, m->n_row - g * PI_GROUP);
            if (m->type == PI_DTYPE_MXFP4 && !pi_mxfp4_is_sound(rows, (int64_t)n_row * m->n_col))
                atomic_store(job->sound, false);
            pi_matmul_pack_group(m->type, m->n_col, rows, n_row,
                                 w.data + (size_t)g * m->group_bytes);
        }
        if ((item + 1) % DROP_ITEMS == 0 || last == m->n_group)
            drop_source(job, at - item % DROP_ITEMS, last);
    }
}

static void load_vector(const struct pi_gguf_tensor *t, float *out)
{
    const struct pi_dtype_traits *traits = pi_dtype_find(t->type);
    traits->decode(t->data, out, t->ne[0] * t->ne[1]);
}

static pith_status fail_scale(const struct plan_matrix *what, pith_error *err)
{
    return pi_fail(err, PITH_FORMAT, "tensor \"%s\": a scale of MXFP4 is above 2^%d, no weight's",
                   what->name, PI_MXFP4_MOST - 128);
}

/* Packs matrices whose rows are columns in the file. */
static pith_status pack_turned(const struct plan_matrix *what, const struct pith_model *model,
                               int32_t n_thread, pith_error *err)
{
    struct pi_turned turned = {.data = what->data,
                               .in_file = what->in_file,
                               .slab_rows = what->slab_rows,
                               .n_slab = what->n_slab,
                               .matrix = what->matrix};
    size_t row = pi_dtype_row_bytes(pi_dtype_find(what->in_file), what->matrix->n_row);
    for (int64_t i = 0; what->in_file == PI_DTYPE_MXFP4 && i < what->n_slab; i++)
        if (!pi_mxfp4_is_sound(what->data + (size_t)(i * what->slab_rows) * row,
                               (int64_t)what->matrix->n_col * what->matrix->n_row))
            return fail_scale(what, err);
    PI_TRY(pi_turned_pack(&turned, n_thread, what->name, err));
    pi_gguf_drop(&model->parts, what->data,
                 (size_t)((what->n_slab - 1) * what->slab_rows + what->matrix->n_col) * row);
    return PITH_OK;
}

/* Packs every slab of a matrix at *weights, and moves that behind it. */
static pith_status pack_matrix(const struct plan_matrix *what, const struct pith_model *model,
                               int32_t n_thread, uint8_t **weights, pith_error *err)
{
    struct pi_matrix *m = what->matrix;
    atomic_bool sound = true;
    struct pack_job job = {model, what, pi_dtype_row_bytes(pi_dtype_find(m->type), m->n_col),
                           &sound};
    m->data = *weights;
    *weights += (size_t)what->n_slab * (size_t)m->n_group * m->group_bytes;
    if (what->turned)
        return pack_turned(what, model, n_thread, err);
    pi_parallel_items(n_thread, items_of_slab(&job) * what->n_slab, pack_items, &job);
    /* What was read again after it had been given back. */
    for (int64_t slab = 0; slab < what->n_slab; slab++)
        drop_source(&job, slab * items_of_slab(&job), m->n_group);
    if (!atomic_load(&sound))
        return fail_scale(what, err);
    return PITH_OK;
}

static pith_status pack_all(const struct plan *plan, struct pith_model *model,
                            const pith_model_params *params, pith_error *err)
{
    int32_t n_thread = params->n_thread > 0 ? params->n_thread : pi_thread_count();
    uint8_t *weights = model->weights;
    float *vectors = model->vectors;
    for (int64_t i = 0; i < plan->n_vector; i++) {
        *plan->vector[i].vector = vectors;
        load_vector(&plan->vector[i].tensor, vectors);
        const int64_t *ne = plan->vector[i].tensor.ne;
        vectors += pi_align((size_t)(ne[0] * ne[1]), VECTOR_ALIGN);
    }
    for (int64_t i = 0; i < plan->n_matrix; i++) {
        PI_TRY(pack_matrix(&plan->matrix[i], model, n_thread, &weights, err));
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
