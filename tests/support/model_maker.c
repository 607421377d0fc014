/*
 * model_maker.c - the tensors and metadata of a random model, in the order of a real file.
 *
 * A matrix of n_col input features has weights of standard deviation gain / sqrt(n_col). So an
 * input of variance 1 gives an output of variance gain^2. Every tensor has its own stream of random
 * numbers, named by the seed and the tensor. So a tensor's bytes do not depend on the other tensors
 * of the file.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "file/gguf.h"
#include "model_blocks.h"
#include "model_maker_family.h"
#include "tensor/dtype.h"

#define GAIN_LOGITS 3.0 /* of the output projection: the spread of the logits */

static const struct maker_group *const groups[] = {
    &maker_dense,
    &maker_experts,
    &maker_recurrent,
    &maker_latent,
};

/* NULL: made like Llama's. */
static const struct maker_family *family_of(const struct model_spec *s)
{
    for (size_t g = 0; g < PI_LEN(groups); g++)
        for (int32_t i = 0; i < groups[g]->n_family; i++)
            if (strcmp(groups[g]->family[i].arch, s->arch) == 0)
                return &groups[g]->family[i];
    return NULL;
}

/* ---- the words of a spec ---- */

enum word_kind { WORD_TEXT, WORD_INT, WORD_NUMBER };

#define FIELD(key) #key, offsetof(struct model_spec, key)
#define ROOM(key) (sizeof(((struct model_spec *)0)->key) - 1)

static const struct word {
    const char *key;
    size_t offset;
    enum word_kind kind;
    double low, high; /* of a number; of the length of a text */
} words_known[] = {
    {FIELD(arch), WORD_TEXT, 1, ROOM(arch)},
    {FIELD(type), WORD_TEXT, 1, ROOM(type)},
    {FIELD(scaling), WORD_TEXT, 1, ROOM(scaling)},
    {FIELD(vocab_file), WORD_TEXT, 0, ROOM(vocab_file)},
    {FIELD(layers), WORD_INT, 1, 1000},
    {FIELD(width), WORD_INT, 1, 1 << 20},
    {FIELD(heads), WORD_INT, 1, 1 << 16},
    {FIELD(kv_heads), WORD_INT, 1, 1 << 16},
    {FIELD(head_dim), WORD_INT, 2, 1 << 16},
    {FIELD(rot), WORD_INT, 0, 1 << 16},
    {FIELD(ff), WORD_INT, 1, 1 << 20},
    {FIELD(vocab), WORD_INT, 1, 1 << 24},
    {FIELD(pad), WORD_INT, 0, 1 << 24},
    {FIELD(ctx), WORD_INT, 1, 1 << 30},
    {FIELD(ctx_orig), WORD_INT, 0, 1 << 30},
    {FIELD(tied), WORD_INT, 0, 1},
    {FIELD(bias), WORD_INT, 0, 1},
    {FIELD(seed), WORD_INT, 0, 1 << 30},
    {FIELD(pooling), WORD_INT, 0, 9},
    {FIELD(both), WORD_INT, 0, 1},
    {FIELD(theta), WORD_NUMBER, 1, 1e12},
    {FIELD(eps), WORD_NUMBER, 0, 1},
    {FIELD(factor), WORD_NUMBER, 1, 1e6},
};

void model_spec_default(struct model_spec *spec)
{
    *spec = (struct model_spec){
        .arch = "llama",
        .type = "F32",
        .scaling = "none",
        .layers = 2,
        .width = 128,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 64,
        .ff = 352,
        .vocab = 333,
        .ctx = 2048,
        .theta = 10000,
        .eps = 1e-5,
        .factor = 1,
    };
}

static bool is_text(const char *name, const char *text, size_t len)
{
    return strlen(name) == len && !memcmp(name, text, len);
}

static const struct maker_word *group_word(const char *key, size_t key_len)
{
    for (size_t g = 0; g < PI_LEN(groups); g++)
        for (int32_t i = 0; i < groups[g]->n_word; i++)
            if (is_text(groups[g]->word[i].key, key, key_len))
                return &groups[g]->word[i];
    return NULL;
}

/* A word that only some group's families know. */
static pith_status set_extra(struct model_spec *spec, const char *key, size_t key_len,
                             const char *value, pith_error *why)
{
    const struct maker_word *w = group_word(key, key_len);
    char *end = NULL;
    if (w == NULL || spec->n_extra == (int32_t)PI_LEN(spec->extra))
        return pi_fail(why, PITH_INVALID, "%.*s is no known key, or one too many", (int)key_len,
                       key);
    double number = strtod(value, &end);
    if (end == value || *end != '\0' || !(number >= w->low && number <= w->high))
        return pi_fail(why, PITH_INVALID, "%s: \"%s\" is not in %g..%g", w->key, value, w->low,
                       w->high);
    spec->extra[spec->n_extra++] = (struct model_extra){w->key, number};
    return PITH_OK;
}

static pith_status set_word(struct model_spec *spec, const char *key, size_t key_len,
                            const char *value, pith_error *why)
{
    const struct word *w = NULL;
    for (size_t i = 0; i < PI_LEN(words_known) && w == NULL; i++)
        if (is_text(words_known[i].key, key, key_len))
            w = &words_known[i];
    if (w == NULL)
        return set_extra(spec, key, key_len, value, why);
    char *field = (char *)spec + w->offset, *end = NULL;
    if (w->kind == WORD_TEXT) {
        double len = (double)strlen(value);
        if (len < w->low || len > w->high)
            return pi_fail(why, PITH_INVALID, "%s: \"%s\" is empty or too long", w->key, value);
        strcpy(field, value);
        return PITH_OK;
    }
    double number = strtod(value, &end);
    if (end == value || *end != '\0' || !(number >= w->low && number <= w->high))
        return pi_fail(why, PITH_INVALID, "%s: \"%s\" is not in %g..%g", w->key, value, w->low,
                       w->high);
    if (w->kind == WORD_INT) {
        int32_t n = (int32_t)number;
        memcpy(field, &n, sizeof(n));
    } else {
        memcpy(field, &number, sizeof(number));
    }
    return PITH_OK;
}

pith_status model_spec_parse(struct model_spec *spec, const char *words, pith_error *why)
{
    while (*(words += strspn(words, " ")) != '\0') {
        size_t len = strcspn(words, " ");
        const char *equals = memchr(words, '=', len);
        char value[512];
        if (equals == NULL)
            return pi_fail(why, PITH_INVALID, "\"%.*s\" is not KEY=VALUE", (int)len, words);
        snprintf(value, sizeof(value), "%.*s", (int)(words + len - equals - 1), equals + 1);
        PI_TRY(set_word(spec, words, (size_t)(equals - words), value, why));
        words += len;
    }
    return PITH_OK;
}

/* ---- the tensors ---- */

struct maker {
    const struct model_spec *spec;
    const struct maker_family *family; /* NULL: like Llama's */
    char key[96];
    int32_t n_file; /* tokens of the vocabulary file; 0: there is none */
    struct pi_gguf_writer writer;
    struct pi_new_file file;
    bool writing; /* the second walk over the tensors: heads are out, data follows */
    pith_status status;
    pith_error *err;
};

/* FNV-1a of the name, started from the seed. */
static uint64_t stream_of(const struct maker *m, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u ^ ((uint64_t)m->spec->seed * 0x9e3779b97f4a7c15u);
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return hash;
}

static void declare(struct maker *m, const char *name, const int64_t *ne, int32_t n_dim,
                    enum pi_dtype type, size_t size)
{
    struct pi_str text = {name, strlen(name)};
    m->status = pi_gguf_add_tensor(&m->writer, text, n_dim, ne, type, size);
    if (m->status != PITH_OK)
        pi_fail(m->err, m->status, "no memory for the head of tensor %s", name);
}

static void write_data(struct maker *m, void *data, size_t size)
{
    m->status = pi_gguf_write_tensor(&m->writer, &m->file, data, size, m->err);
    pi_mem_free(data);
}

/* The weight type of a matrix. Q4_K_M is llama.cpp's mix. It has Q6_K for the output matrix. It has
   Q6_K for v and down in the first and last eighth of the layers and every third between. The rest
   is Q4_K. */
static const char *type_of(const struct model_spec *s, const char *name, int32_t layer)
{
    if (strcmp(name, "ffn_gate_inp") == 0) /* no quantiser touches routers */
        return "F32";
    if (strcmp(s->type, "Q4_K_M") != 0)
        return s->type;
    int32_t eighth = s->layers / 8;
    bool more = layer < eighth || layer >= 7 * s->layers / 8 || (layer - eighth) % 3 == 2;
    bool wide = strcmp(name, "attn_v") == 0 || strcmp(name, "ffn_down") == 0;
    bool output = strcmp(name, "output") == 0 || (strcmp(name, "token_embd") == 0 && s->tied);
    return output || (wide && layer >= 0 && more) ? "Q6_K" : "Q4_K";
}

/* layer -1: a tensor of the whole model. */
static void full_name(char out[64], const char *name, int32_t layer)
{
    if (layer < 0)
        snprintf(out, 64, "%s", name);
    else
        snprintf(out, 64, "blk.%d.%s", layer, name);
}

void maker_slabs(struct maker *m, const char *name, int32_t layer, int64_t n_slab, int64_t n_row,
                 int64_t n_col, double gain)
{
    char weight[48], full[64];
    if (m->status != PITH_OK)
        return;
    snprintf(weight, sizeof(weight), "%s.weight", name);
    full_name(full, weight, layer);
    const struct pi_dtype_traits *type = pi_dtype_find_name(type_of(m->spec, name, layer));
    if (type == NULL || n_col % type->block_len != 0) {
        m->status = pi_fail(m->err, PITH_INVALID, "%s: rows of %lld do not fit blocks of %s", full,
                            (long long)n_col, type_of(m->spec, name, layer));
        return;
    }
    size_t size = (size_t)(n_slab * n_row) * pi_dtype_row_bytes(type, n_col);
    if (!m->writing) {
        declare(m, full, (int64_t[]){n_col, n_row, n_slab, 1}, n_slab > 1 ? 3 : 2, type->type,
                size);
        return;
    }
    uint8_t *data = pi_mem_alloc(PI_MEM_OTHER, size);
    if (data == NULL) {
        m->status = pi_fail(m->err, PITH_NOMEM, "no memory for tensor %s", full);
        return;
    }
    blocks_fill(type, stream_of(m, full), gain / sqrt((double)n_col), data, size);
    write_data(m, data, size);
}

void maker_matrix(struct maker *m, const char *name, int32_t layer, int64_t n_row, int64_t n_col,
                  double gain)
{
    maker_slabs(m, name, layer, 1, n_row, n_col, gain);
}

/* n_slab 0: a vector without a second dimension. */
static float *vectors_begin(struct maker *m, const char *full, int32_t n_slab, int32_t n)
{
    size_t len = (size_t)n * (size_t)pi_max(n_slab, 1);
    if (m->status != PITH_OK)
        return NULL;
    if (!m->writing) {
        declare(m, full, (int64_t[]){n, pi_max(n_slab, 1), 1, 1}, n_slab > 0 ? 2 : 1, PI_DTYPE_F32,
                len * sizeof(float));
        return NULL;
    }
    float *data = pi_mem_alloc_n(PI_MEM_OTHER, len, sizeof(float));
    if (data == NULL)
        m->status = pi_fail(m->err, PITH_NOMEM, "no memory for tensor %s", full);
    return data;
}

static float *vector_begin(struct maker *m, const char *full, int32_t n)
{
    return vectors_begin(m, full, 0, n);
}

void maker_vectors(struct maker *m, const char *name, int32_t layer, int32_t n_slab, int32_t n,
                   double mean, double std)
{
    char full[64];
    full_name(full, name, layer);
    int32_t n_all = n * (int32_t)pi_max(n_slab, 1);
    float *data = vectors_begin(m, full, n_slab, n);
    if (data == NULL)
        return;
    blocks_vector(stream_of(m, full), mean, std, data, n_all);
    write_data(m, data, (size_t)n_all * sizeof(float));
}

void maker_vector(struct maker *m, const char *name, int32_t layer, int32_t n, double mean,
                  double std)
{
    maker_vectors(m, name, layer, 0, n, mean, std);
}

static int32_t rot_of(const struct model_spec *s)
{
    return s->rot > 0 ? s->rot : s->head_dim;
}

/* The values of rope_freqs.weight in Llama 3.1 and later: divisors of the rotary frequencies
   (transformers' rope_type "llama3"). Wavelengths beyond ctx_orig are stretched by the factor.
   Wavelengths below a quarter of it are kept, and between them the frequency is interpolated. */
static void rope_factors(struct maker *m)
{
    const struct model_spec *s = m->spec;
    int32_t n = rot_of(s) / 2;
    float *data = vector_begin(m, "rope_freqs.weight", n);
    if (data == NULL)
        return;
    for (int32_t i = 0; i < n; i++) {
        double wavelength = 6.283185307179586 * pow(s->theta, (double)i / n);
        double smooth = fmin(fmax((s->ctx_orig / wavelength - 1) / 3, 0), 1);
        data[i] = (float)(1 / ((1 - smooth) / s->factor + smooth));
    }
    write_data(m, data, (size_t)n * sizeof(float));
}

void maker_attention(struct maker *m, int32_t l)
{
    const struct model_spec *s = m->spec;
    int32_t n_q = s->heads * s->head_dim, n_kv = s->kv_heads * s->head_dim;
    maker_vector(m, "attn_norm.weight", l, s->width, 1, MAKER_STD_NORM);
    maker_matrix(m, "attn_q", l, n_q, s->width, MAKER_GAIN_SCORE);
    maker_matrix(m, "attn_k", l, n_kv, s->width, MAKER_GAIN_SCORE);
    maker_matrix(m, "attn_v", l, n_kv, s->width, 1);
    if (s->bias || strcmp(s->arch, "qwen2") == 0) {
        maker_vector(m, "attn_q.bias", l, n_q, 0, MAKER_STD_BIAS);
        maker_vector(m, "attn_k.bias", l, n_kv, 0, MAKER_STD_BIAS);
        maker_vector(m, "attn_v.bias", l, n_kv, 0, MAKER_STD_BIAS);
    }
    if (strcmp(s->arch, "qwen3") == 0 || strcmp(s->arch, "qwen3moe") == 0) {
        maker_vector(m, "attn_q_norm.weight", l, s->head_dim, MAKER_GAIN_SCORE, MAKER_STD_NORM);
        maker_vector(m, "attn_k_norm.weight", l, s->head_dim, MAKER_GAIN_SCORE, MAKER_STD_NORM);
    }
    maker_matrix(m, "attn_output", l, s->width, n_q, 1);
}

void maker_ffn(struct maker *m, int32_t l)
{
    const struct model_spec *s = m->spec;
    maker_vector(m, "ffn_norm.weight", l, s->width, 1, MAKER_STD_NORM);
    maker_matrix(m, "ffn_gate", l, s->ff, s->width, 1);
    maker_matrix(m, "ffn_up", l, s->ff, s->width, 1);
    maker_matrix(m, "ffn_down", l, s->width, s->ff, 1);
}

static void layer_tensors(struct maker *m, int32_t l)
{
    if (m->family != NULL) {
        m->family->layer(m, l);
        return;
    }
    maker_attention(m, l);
    maker_ffn(m, l);
}

/* Called twice: once to declare the tensors, once to write their data in the same order. */
static void all_tensors(struct maker *m)
{
    const struct model_spec *s = m->spec;
    bool tied = s->tied || (m->family != NULL && m->family->no_output);
    /* A tied embedding is the output projection as well, and takes its scale. */
    maker_matrix(m, "token_embd", -1, s->vocab, s->width, tied ? GAIN_LOGITS : sqrt(s->width));
    if (strcmp(s->scaling, "factors") == 0)
        rope_factors(m);
    if (m->family != NULL && m->family->whole != NULL)
        m->family->whole(m);
    for (int32_t l = 0; l < s->layers; l++)
        layer_tensors(m, l);
    maker_vector(m, "output_norm.weight", -1, s->width, 1, MAKER_STD_NORM);
    if (!tied)
        maker_matrix(m, "output", -1, s->vocab, s->width, GAIN_LOGITS);
}

/* ---- what families ask ---- */

const struct model_spec *maker_spec(const struct maker *m)
{
    return m->spec;
}

int32_t maker_rot(const struct maker *m)
{
    return rot_of(m->spec);
}

double maker_number(const struct maker *m, const char *word)
{
    const struct model_spec *s = m->spec;
    for (int32_t i = 0; i < s->n_extra; i++)
        if (strcmp(s->extra[i].key, word) == 0)
            return s->extra[i].value;
    return group_word(word, strlen(word))->preset;
}

int32_t maker_count(const struct maker *m, const char *word)
{
    return (int32_t)maker_number(m, word);
}

/* ---- the metadata ---- */

/* "ARCH.NAME" in a buffer of the maker's. */
static const char *key_of(struct maker *m, const char *name)
{
    snprintf(m->key, sizeof(m->key), "%s.%s", m->spec->arch, name);
    return m->key;
}

pith_status maker_key_count(struct maker *m, const char *name, int32_t value)
{
    return pi_gguf_add_u32(&m->writer, key_of(m, name), (uint32_t)value);
}

pith_status maker_key_number(struct maker *m, const char *name, double value)
{
    return pi_gguf_add_f32(&m->writer, key_of(m, name), (float)value);
}

pith_status maker_key_text(struct maker *m, const char *name, const char *value)
{
    return pi_gguf_add_str(&m->writer, key_of(m, name), value);
}

/* n values of one size; a scalar where item_type is the type itself. */
static pith_status add_values(struct maker *m, const char *name, enum pi_gguf_type type,
                              enum pi_gguf_type item_type, const void *data, int32_t n, size_t size)
{
    const char *key = key_of(m, name);
    struct pi_gguf_kv kv = {.key = {key, strlen(key)},
                            .type = type,
                            .item_type = item_type,
                            .n_item = (uint64_t)n,
                            .data = data,
                            .size = (size_t)n * size};
    return pi_gguf_add_kv(&m->writer, &kv);
}

pith_status maker_key_bool(struct maker *m, const char *name, bool value)
{
    const uint8_t byte = value;
    return add_values(m, name, PI_GGUF_BOOL, PI_GGUF_BOOL, &byte, 1, 1);
}

pith_status maker_key_bools(struct maker *m, const char *name, const bool *value, int32_t n)
{
    return add_values(m, name, PI_GGUF_ARRAY, PI_GGUF_BOOL, value, n, sizeof(*value));
}

pith_status maker_key_counts(struct maker *m, const char *name, const int32_t *value, int32_t n)
{
    return add_values(m, name, PI_GGUF_ARRAY, PI_GGUF_U32, value, n, sizeof(*value));
}

static pith_status add_scaling(struct maker *m)
{
    const struct model_spec *s = m->spec;
    if (strcmp(s->scaling, "none") == 0 || strcmp(s->scaling, "factors") == 0)
        return PITH_OK;
    PI_TRY(maker_key_text(m, "rope.scaling.type", s->scaling));
    PI_TRY(maker_key_number(m, "rope.scaling.factor", s->factor));
    if (s->ctx_orig > 0)
        PI_TRY(maker_key_count(m, "rope.scaling.original_context_length", s->ctx_orig));
    return PITH_OK;
}

/* The keys of an embedding model. */
static pith_status add_embedding(struct maker *m)
{
    if (m->spec->pooling > 0)
        PI_TRY(maker_key_count(m, "pooling_type", m->spec->pooling));
    return m->spec->both ? maker_key_bool(m, "attention.causal", false) : PITH_OK;
}

/* Whether files of the family carry a key that others have. */
static bool writes(const struct maker *m, const char *name)
{
    const char *without = m->family != NULL ? m->family->without : NULL;
    for (; without != NULL && *without != '\0'; without += strspn(without, " ")) {
        size_t len = strcspn(without, " ");
        if (is_text(name, without, len))
            return false;
        without += len;
    }
    return true;
}

/* An array of the vocabulary with as many items as the model has tokens. Items after the file's own
   are names that occur in no text, or zeros. */
static pith_status add_padded(struct maker *m, const struct pi_gguf_kv *kv)
{
    size_t n_more = (size_t)m->spec->vocab - kv->n_item, item = kv->size / kv->n_item;
    struct pi_gguf_kv more = *kv;
    bool text = kv->item_type == PI_GGUF_STRING;
    uint8_t *data = pi_mem_alloc(PI_MEM_OTHER, kv->size + n_more * (text ? 32 : item));
    if (data == NULL)
        return PITH_NOMEM;
    memcpy(data, kv->data, kv->size);
    for (size_t i = 0; i < n_more; i++) {
        uint8_t *at = data + more.size;
        char name[24];
        uint64_t len = (uint64_t)snprintf(name, sizeof(name), "[unused %zu]", i);
        for (int b = 0; b < 8 && text; b++)
            at[b] = (uint8_t)(len >> 8 * b);
        if (text)
            memcpy(at + 8, name, (size_t)len);
        else
            memset(at, 0, item);
        more.size += text ? 8 + (size_t)len : item;
    }
    more.n_item += n_more;
    more.data = data;
    pith_status status = pi_gguf_add_kv(&m->writer, &more);
    pi_mem_free(data);
    return status;
}

static pith_status add_vocab(struct maker *m, const struct pi_gguf *vocab)
{
    if (vocab->n_kv == 0)
        return pi_gguf_add_str(&m->writer, "tokenizer.ggml.model", "none");
    for (int64_t i = 0; i < vocab->n_kv; i++) {
        const struct pi_gguf_kv *kv = &vocab->kv[i];
        bool of_tokens = kv->type == PI_GGUF_ARRAY && kv->n_item == (uint64_t)m->n_file;
        if (kv->key.len <= 10 || memcmp(kv->key.data, "tokenizer.", 10) != 0)
            continue;
        if (of_tokens && m->n_file < m->spec->vocab)
            PI_TRY(add_padded(m, kv));
        else
            PI_TRY(pi_gguf_add_kv(&m->writer, kv));
    }
    return PITH_OK;
}

static pith_status add_metadata(struct maker *m, const struct pi_gguf *vocab)
{
    const struct model_spec *s = m->spec;
    const struct {
        const char *name;
        int32_t value;
    } counts[] = {
        {"block_count", s->layers},
        {"context_length", s->ctx},
        {"embedding_length", s->width},
        {"feed_forward_length", s->ff},
        {"attention.head_count", s->heads},
        {"attention.head_count_kv", s->kv_heads},
        {"attention.key_length", s->head_dim},
        {"attention.value_length", s->head_dim},
        {"rope.dimension_count", rot_of(s)},
        {"vocab_size", s->vocab},
    };
    char name[96];
    snprintf(name, sizeof(name), "random %s %s %d", s->arch, s->type, s->seed);
    PI_TRY(pi_gguf_add_str(&m->writer, "general.architecture", s->arch));
    PI_TRY(pi_gguf_add_str(&m->writer, "general.name", name));
    for (size_t i = 0; i < PI_LEN(counts); i++)
        if (writes(m, counts[i].name))
            PI_TRY(maker_key_count(m, counts[i].name, counts[i].value));
    PI_TRY(maker_key_number(m, "attention.layer_norm_rms_epsilon", s->eps));
    if (writes(m, "rope.freq_base"))
        PI_TRY(maker_key_number(m, "rope.freq_base", s->theta));
    PI_TRY(add_scaling(m));
    PI_TRY(add_embedding(m));
    if (m->family != NULL && m->family->keys != NULL)
        PI_TRY(m->family->keys(m));
    return add_vocab(m, vocab);
}

/* ---- the file ---- */

static pith_status write_file(struct maker *m, const struct pi_gguf *vocab, const char *path)
{
    if (add_metadata(m, vocab) != PITH_OK)
        return pi_fail(m->err, PITH_NOMEM, "no memory for the metadata of %s", path);
    all_tensors(m);
    PI_TRY(m->status);
    PI_TRY(pi_new_file_open(path, &m->file, m->err));
    m->status = pi_gguf_write_head(&m->writer, &m->file, m->err);
    m->writing = true;
    all_tensors(m);
    PI_TRY(m->status);
    return pi_new_file_commit(&m->file, m->err);
}

/* Sets *n to the number of tokens of the vocabulary file. */
static pith_status read_vocab(const char *path, struct pi_file *file, struct pi_gguf *vocab,
                              int32_t *n, pith_error *why)
{
    const struct pi_gguf_kv *tokens;
    PI_TRY(pi_file_map(path, file, why));
    PI_TRY(pi_gguf_parse(vocab, file->data, file->size, path, why));
    PI_TRY(pi_gguf_array(vocab, "tokenizer.ggml.tokens", PI_GGUF_STRING, &tokens, why));
    *n = (int32_t)tokens->n_item;
    return PITH_OK;
}

pith_status model_make(const struct model_spec *spec, const char *path, pith_error *why)
{
    struct model_spec own = *spec;
    struct maker m = {.spec = &own, .family = family_of(spec), .err = why};
    struct pi_file file = {0};
    struct pi_gguf vocab = {0};
    pith_status status = PITH_OK;
    if (spec->rot > spec->head_dim || spec->rot % 2 != 0)
        return pi_fail(why, PITH_INVALID, "rot: %d is odd or above the head size %d", spec->rot,
                       spec->head_dim);
    m.writer.alignment = 32;
    if (spec->vocab_file[0] != '\0')
        status = read_vocab(spec->vocab_file, &file, &vocab, &m.n_file, why);
    if (m.n_file > 0)
        own.vocab = m.n_file > spec->pad ? m.n_file : spec->pad;
    if (status == PITH_OK)
        status = write_file(&m, &vocab, path);
    pi_new_file_discard(&m.file);
    pi_gguf_writer_free(&m.writer);
    pi_gguf_free(&vocab);
    pi_file_unmap(&file);
    return status;
}

pith_status model_make_of(const char *words, const char *path, pith_error *why)
{
    struct model_spec spec;
    model_spec_default(&spec);
    PI_TRY(model_spec_parse(&spec, words, why));
    return model_make(&spec, path, why);
}
