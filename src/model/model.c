/*
 * model.c - pith_model: loading in order, and the public description of a loaded file. It knows
 * neither the KV store nor the pass.
 */
#include <stdio.h>

#include "base/mem.h"
#include "base/ranks.h"
#include "base/threads.h"
#include "model/host.h"
#include "model/load.h"
#include "model/placed.h"
#include "model/plan.h"
#include "text/template/chat.h"
#include "pith/inspect.h"
#include "pith/plan.h"

void pith_model_params_default(pith_model_params *out)
{
    *out = (pith_model_params){0};
}

/* ---- loading ---- */

/* Terminated copies of the names that the public interface hands out. */
static pith_status copy_names(struct pith_model *m, pith_error *err)
{
    const struct pi_gguf *g = &m->gguf;
    m->meta_key = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)g->n_kv, sizeof(char *));
    m->meta_type = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)g->n_kv, sizeof(char *));
    m->tensor_name = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)g->n_tensor, sizeof(char *));
    bool whole = m->meta_key != NULL && m->meta_type != NULL && m->tensor_name != NULL;
    for (int64_t i = 0; whole && i < g->n_kv; i++) {
        const struct pi_gguf_kv *kv = &g->kv[i];
        char type[64];
        if (kv->type == PI_GGUF_ARRAY)
            snprintf(type, sizeof(type), "%s[%llu]", pi_gguf_type_name(kv->item_type),
                     (unsigned long long)kv->n_item);
        else
            snprintf(type, sizeof(type), "%s", pi_gguf_type_name(kv->type));
        m->meta_key[i] = pi_mem_strndup(PI_MEM_MODEL, kv->key.data, kv->key.len);
        m->meta_type[i] = pi_mem_strndup(PI_MEM_MODEL, type, strlen(type));
        whole = m->meta_key[i] != NULL && m->meta_type[i] != NULL;
    }
    for (int64_t i = 0; whole && i < g->n_tensor; i++) {
        m->tensor_name[i] =
            pi_mem_strndup(PI_MEM_MODEL, g->tensor[i].name.data, g->tensor[i].name.len);
        whole = m->tensor_name[i] != NULL;
    }
    return whole ? PITH_OK : pi_fail(err, PITH_NOMEM, "no memory for the names of the file");
}

static pith_status copy_string(const struct pi_gguf *g, const char *key, char **out,
                               pith_error *err)
{
    struct pi_str text = {"", 0};
    pith_status status = pi_gguf_str(g, key, &text, err);
    if (status != PITH_OK && status != PITH_NOT_FOUND)
        return status;
    *out = pi_mem_strndup(PI_MEM_MODEL, text.data, text.len);
    return *out != NULL ? PITH_OK : pi_fail(err, PITH_NOMEM, "no memory for %s", key);
}

/* The text of a token, "" where there is none. */
static pith_status copy_token(const struct pi_vocab *v, int32_t id, char **out, pith_error *err)
{
    size_t len = 0;
    if (id >= 0)
        pi_vocab_token_bytes(v, id, true, NULL, 0, &len);
    *out = pi_mem_alloc(PI_MEM_MODEL, len + 1);
    if (*out == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a token of %zu bytes", len);
    return len > 0 ? pi_vocab_token_bytes(v, id, true, *out, len, &len) : PITH_OK;
}

/* The type with the most weight bytes, and the count of weights. The count is the largest number
   where tensors of unknown types, and so of any size, exceed it. */
static void sum_tensors(struct pith_model *m)
{
    size_t bytes[64] = {0}, most = 0; /* by type; types that Pith knows are below 64 */
    m->file_type = "none";
    for (int64_t i = 0; i < m->gguf.n_tensor; i++) {
        const struct pi_gguf_tensor *t = &m->gguf.tensor[i];
        const struct pi_dtype_traits *traits = pi_dtype_find(t->type);
        int64_t n_weight = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        m->n_param += pi_min(n_weight, INT64_MAX - m->n_param);
        if (traits == NULL || traits->type >= (int)PI_LEN(bytes))
            continue;
        bytes[traits->type] += t->size;
        if (bytes[traits->type] > most) {
            most = bytes[traits->type];
            m->file_type = traits->name;
        }
    }
}

static void free_shape(struct pith_model *m)
{
    pi_mem_free(m->layer);
    pi_mem_free(m->kv_layer);
    pi_mem_free(m->kv_window);
    pi_mem_free(m->kv_rope);
    m->layer = NULL;
    m->kv_layer = m->kv_window = NULL;
    m->kv_rope = NULL;
    pi_rope_free(&m->rope);
    pi_rope_free(&m->rope_local);
    pi_rope_free(&m->rope_none);
    m->hp = (struct pi_hparams){0};
}

static pith_status refuse_arch(const struct pith_model *m, const char *path, pith_error *err)
{
    char list[256];
    pi_arch_list(list, sizeof(list));
    return pi_fail(err, PITH_UNSUPPORTED,
                   "%s: general.architecture \"%.40s\" is not supported (%s are)", path,
                   m->arch_name, list);
}

/* The vocabulary, while others pack weights. */
struct vocab_job {
    struct pith_model *model;
    pith_status status;
    pith_error err;
};

static void load_vocab(void *ctx)
{
    struct vocab_job *job = ctx;
    struct pith_model *m = job->model;
    job->status = pi_vocab_load(&m->gguf, m->hp.n_vocab, &m->vocab, &job->err);
}

/* A vocab_only load takes the shape from the file as far as the file has one. */
static pith_status load_both(struct pith_model *m, const char *path,
                             const pith_model_params *params, pith_error *err)
{
    struct vocab_job job = {.model = m};
    struct pi_beside beside = {.fn = load_vocab, .ctx = &job};
    if (params->vocab_only) {
        if (m->arch != NULL && pi_load_hparams(m, NULL) != PITH_OK)
            free_shape(m);
        load_vocab(&job);
        m->hp.n_vocab = job.status == PITH_OK ? pi_vocab_size(m->vocab) : 0;
    } else {
        if (m->arch == NULL)
            return refuse_arch(m, path, err);
        PI_TRY(pi_load_hparams(m, err));
        PI_TRY(pi_load_weights(m, path, params, &beside, err));
    }
    if (job.status != PITH_OK && err != NULL)
        *err = job.err;
    return job.status;
}

static pith_status load_file(struct pith_model *m, const char *path,
                             const pith_model_params *params, pith_error *err)
{
    PI_TRY(pi_gguf_open(path, &m->gguf, &m->parts, err));
    PI_TRY(copy_names(m, err));
    PI_TRY(copy_string(&m->gguf, "general.name", &m->name, err));
    PI_TRY(copy_string(&m->gguf, "general.architecture", &m->arch_name, err));
    sum_tensors(m);

    struct pi_str template = {0};
    pith_status status = pi_gguf_str(&m->gguf, "tokenizer.chat_template", &template, err);
    if (status == PITH_OK)
        status = pi_chat_template_load(template.data, template.len, &m->chat, err);
    if (status != PITH_OK && status != PITH_NOT_FOUND)
        return status;

    if (m->arch == NULL)
        m->arch = pi_arch_find(m->arch_name, strlen(m->arch_name));
    PI_TRY(load_both(m, path, params, err));
    PI_TRY(copy_token(m->vocab, pi_vocab_bos(m->vocab), &m->bos_text, err));
    return copy_token(m->vocab, pi_vocab_eos(m->vocab), &m->eos_text, err);
}

pith_status pith_model_load(const char *path, const pith_model_params *params, pith_model **out,
                            pith_error *err)
{
    return pi_model_load(path, params, NULL, out, err);
}

pith_status pi_model_load(const char *path, const pith_model_params *params,
                          const struct pi_arch *arch, pith_model **out, pith_error *err)
{
    pith_model_params defaults;
    pith_model_params_default(&defaults);
    if (params == NULL)
        params = &defaults;
    if (path == NULL || out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_model_load: path and out must not be NULL");
    PI_TRY(pi_check_range("n_thread", params->n_thread, 0, PI_THREADS_MOST, err));
    if (params->n_ctx < 0)
        return pi_fail(err, PITH_INVALID, "n_ctx: %d is negative", params->n_ctx);
    struct pith_model *m = pi_mem_alloc(PI_MEM_MODEL, sizeof(*m));
    if (m == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a model");
    m->arch = arch;
    m->n_ctx = params->n_ctx;
    pith_status status = pi_placed_list_create(&m->placed, err);
    if (status == PITH_OK)
        status = load_file(m, path, params, err);
    pi_ranks_choose(0); /* where it was not reached on the way */
    status = pi_ranks_agree(status, err);
    if (status == PITH_OK)
        status = pi_ranks_same("models", pi_model_fingerprint(m), err);
    if (status != PITH_OK) {
        pith_model_free(m);
        return status;
    }
    *out = m;
    return PITH_OK;
}

static void free_names(char **names, int64_t n)
{
    for (int64_t i = 0; names != NULL && i < n; i++)
        pi_mem_free(names[i]);
    pi_mem_free(names);
}

void pi_model_hold(const struct pith_model *m)
{
    atomic_fetch_add(&((struct pith_model *)(uintptr_t)m)->n_holder, 1);
}

void pith_model_free(pith_model *m)
{
    if (m == NULL || atomic_fetch_sub(&m->n_holder, 1) > 0)
        return;
    pi_placed_list_free(m->placed);
    pi_vocab_free(m->vocab);
    pi_host_free(m);
    pi_mem_free(m->vectors);
    if (m->weights_file.data != NULL)
        pi_file_unmap(&m->weights_file);
    else
        pi_mem_unmap(PI_MEM_WEIGHTS, m->weights, m->places_size);
    free_shape(m);
    pi_chat_template_free(&m->chat);
    pi_mem_free(m->bos_text);
    pi_mem_free(m->eos_text);
    pi_mem_free(m->name);
    pi_mem_free(m->arch_name);
    free_names(m->meta_key, m->gguf.n_kv);
    free_names(m->meta_type, m->gguf.n_kv);
    free_names(m->tensor_name, m->gguf.n_tensor);
    pi_gguf_free(&m->gguf);
    pi_gguf_parts_free(&m->parts);
    pi_mem_free(m);
}

/* ---- the file's description ---- */

/* Whether a tensor has a matrix for each expert: "..._exps.weight". */
static bool is_experts(const struct pi_gguf_tensor *t)
{
    static const char end[] = "_exps.weight";
    size_t n = sizeof(end) - 1;
    return t->n_dim == 3 && t->name.len > n && memcmp(t->name.data + t->name.len - n, end, n) == 0;
}

/* All but the embedding, of which a row is read, and the experts that a token does not choose. */
static int64_t count_token_bytes(const struct pith_model *m)
{
    const struct pi_hparams *hp = &m->hp;
    bool tied = pi_gguf_find_tensor(&m->gguf, "output.weight") == NULL;
    int64_t sum = 0;
    for (int64_t i = 0; i < m->gguf.n_tensor && hp->n_layer > 0; i++) {
        const struct pi_gguf_tensor *t = &m->gguf.tensor[i];
        bool embedding = t->name.len == 17 && memcmp(t->name.data, "token_embd.weight", 17) == 0;
        bool experts = is_experts(t) && hp->moe.n_expert > 0 && t->ne[2] == hp->moe.n_expert;
        if ((embedding && !tied) || !pi_shape_has_layer(hp, pi_gguf_layer(t->name)))
            continue;
        sum += experts ? (int64_t)t->size / hp->moe.n_expert * hp->moe.n_used : (int64_t)t->size;
    }
    return sum;
}

/* Where a vocabulary-only load found no shape, the fields that need one are 0. */
uint64_t pith_model_fingerprint(const pith_model *model)
{
    return pi_model_fingerprint(model);
}

void pith_model_get_info(const pith_model *m, pith_model_info *out)
{
    const struct pi_hparams *hp = &m->hp;
    *out = (pith_model_info){
        .name = m->name,
        .architecture = m->arch_name,
        .file_type = m->file_type,
        .tokenizer = pi_vocab_kind(m->vocab),
        .n_param = m->n_param,
        .file_bytes = (int64_t)m->parts.size,
        .weight_bytes = m->weights != NULL ? (int64_t)m->weights_size : 0,
        .n_layer = hp->n_layer,
        .n_layer_kv = hp->n_layer_kv,
        .n_embd = hp->n_embd,
        .n_ff = m->arch == NULL || pi_arch_has(m->arch, &pi_block_ffn) ? hp->n_ff : 0,
        .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv,
        .head_dim_k = hp->dim_k,
        .head_dim_v = hp->dim_v,
        .n_vocab = pi_vocab_size(m->vocab),
        .n_ctx_train = hp->n_ctx_train,
        .n_rot = hp->n_rot,
        .runnable = m->weights != NULL,
        .n_expert = hp->moe.n_expert,
        .n_expert_used = hp->moe.n_used,
        .n_ff_expert = hp->moe.n_ff,
        .n_ff_shared = hp->moe.n_ff_shared,
        .token_bytes = count_token_bytes(m),
        .weights_mapped = m->weights_file.data != NULL,
    };
    if (m->rope.n_pair > 1)
        out->rope_theta = m->rope.base;
}

pith_status pith_model_text(const pith_model *m, int32_t i, const char **key, char *buf, size_t cap,
                            size_t *len)
{
    const struct {
        const char *key, *text;
    } all[] = {
        {"name", m->name},
        {"architecture", m->arch_name},
        {"file_type", m->file_type},
        {"tokenizer", pi_vocab_kind(m->vocab)},
        {"template", pith_chat_template(m)},
    };
    if (i < 0 || (size_t)i >= PI_LEN(all))
        return PITH_NOT_FOUND;
    const char *text = all[i].text != NULL ? all[i].text : "";
    size_t n = strlen(text);
    if (key != NULL)
        *key = all[i].key;
    if (len != NULL)
        *len = n;
    if (cap <= n)
        return PITH_RANGE;
    memcpy(buf, text, n + 1);
    return PITH_OK;
}

void pith_model_get_attention(const pith_model *m, pith_attention_info *out)
{
    *out = (pith_attention_info){
        .freq = m->rope.freq,
        .n_pair = m->rope.n_pair,
        .adjacent = m->rope.adjacent,
        .magnitude = m->rope.magnitude,
        .attn_scale = m->hp.attn_scale,
        .v_in_k = m->hp.latent.n_rank > 0 ? m->hp.n_rot : 0,
    };
}

pith_status pith_model_layer(const pith_model *m, int32_t layer, pith_layer_info *out)
{
    if (m->layer == NULL || layer < 0 || layer >= m->hp.n_layer)
        return PITH_RANGE;
    const struct pi_layer *l = &m->layer[layer];
    bool turns = l->kv_layer >= 0 && l->rope != NULL;
    *out = (pith_layer_info){.lanes = l->kv_layer,
                             .window = l->window,
                             .n_rot = turns ? 2 * l->rope->n_pair : 0,
                             .base = turns ? l->rope->base : 0.0f};
    return PITH_OK;
}

int64_t pith_model_meta_count(const pith_model *m)
{
    return m->gguf.n_kv;
}

/* One item as text; returns the length it has, which may be above cap. */
static size_t format_item(const struct pi_gguf_kv *kv, enum pi_gguf_type type, uint64_t i,
                          char *buf, size_t cap)
{
    int n;
    switch (type) {
    case PI_GGUF_STRING: {
        struct pi_str s = pi_gguf_item_str(kv, i);
        n = snprintf(buf, cap, "%.*s", (int)pi_min((int64_t)s.len, INT32_MAX), s.data);
        break;
    }
    case PI_GGUF_F32:
        n = snprintf(buf, cap, "%g", (double)pi_gguf_item_f32(kv, i));
        break;
    case PI_GGUF_F64: {
        double value;
        memcpy(&value, kv->data + i * sizeof(value), sizeof(value));
        n = snprintf(buf, cap, "%g", value);
        break;
    }
    case PI_GGUF_BOOL:
        n = snprintf(buf, cap, "%s", pi_gguf_item_int(kv, i) ? "true" : "false");
        break;
    default:
        n = snprintf(buf, cap, "%lld", (long long)pi_gguf_item_int(kv, i));
    }
    return n > 0 ? (size_t)n : 0;
}

#define ARRAY_SHOWN 6 /* items of an array that are written out */

static void format_value(const struct pi_gguf_kv *kv, char *buf, size_t cap)
{
    if (cap == 0)
        return;
    if (kv->type != PI_GGUF_ARRAY) {
        format_item(kv, kv->type, 0, buf, cap);
        return;
    }
    size_t len = 0;
    for (uint64_t i = 0; i < kv->n_item && i < ARRAY_SHOWN && len < cap; i++) {
        len += (size_t)snprintf(buf + len, cap - len, i == 0 ? "[" : ", ");
        if (len < cap)
            len += format_item(kv, kv->item_type, i, buf + len, cap - len);
    }
    if (len < cap)
        snprintf(buf + len, cap - len,
                 kv->n_item == 0            ? "[]"
                 : kv->n_item > ARRAY_SHOWN ? ", ...]"
                                            : "]");
}

pith_status pith_model_meta(const pith_model *m, int64_t i, const char **key, const char **type,
                            char *buf, size_t cap)
{
    if (i < 0 || i >= m->gguf.n_kv)
        return PITH_RANGE;
    if (key != NULL)
        *key = m->meta_key[i];
    if (type != NULL)
        *type = m->meta_type[i];
    if (buf != NULL)
        format_value(&m->gguf.kv[i], buf, cap);
    return PITH_OK;
}

pith_status pith_model_tensor(const pith_model *m, int64_t i, pith_tensor_info *out)
{
    if (i < 0 || i >= m->gguf.n_tensor)
        return PITH_NOT_FOUND;
    const struct pi_gguf_tensor *t = &m->gguf.tensor[i];
    const struct pi_dtype_traits *traits = pi_dtype_find(t->type);
    *out = (pith_tensor_info){
        .name = m->tensor_name[i],
        .type = traits != NULL ? traits->name : "unknown",
        .n_dim = t->n_dim,
        .bytes = (int64_t)t->size,
    };
    for (int32_t d = 0; d < t->n_dim; d++)
        out->dim[d] = t->ne[t->n_dim - 1 - d];
    return PITH_OK;
}

/* ---- tokens ---- */

pith_status pith_tokenize(const pith_model *m, const char *text, size_t text_len, uint32_t flags,
                          int32_t *out, int32_t cap, int32_t *n_id, pith_error *err)
{
    return pi_vocab_tokenize(m->vocab, text, text_len, flags, out, cap, n_id, err);
}

pith_status pith_token_bytes(const pith_model *m, int32_t id, bool special, char *out, size_t cap,
                             size_t *len)
{
    return pi_vocab_token_bytes(m->vocab, id, special, out, cap, len);
}

pith_status pith_detokenize(const pith_model *m, const int32_t *ids, int32_t n_id, bool special,
                            char *out, size_t cap, size_t *len, pith_error *err)
{
    return pi_vocab_detokenize(m->vocab, ids, n_id, special, out, cap, len, err);
}

bool pith_token_is_end(const pith_model *m, int32_t id)
{
    return pi_vocab_is_end(m->vocab, id);
}

bool pith_model_gap_tokens(const pith_model *m, pith_gap_tokens *out)
{
    return pi_vocab_gap_tokens(m->vocab, out);
}

int32_t pith_token_bos(const pith_model *m)
{
    return pi_vocab_bos(m->vocab);
}
int32_t pith_token_eos(const pith_model *m)
{
    return pi_vocab_eos(m->vocab);
}
