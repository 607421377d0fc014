/*
 * quantize.c - pith_quantize: a GGUF file with its matrices in another weight type. It decides
 * which tensor gets which type, then streams. All threads decode a slab of weights to f32 and
 * encode it again; it is written, and its source given back. Invariants: memory does not grow with
 * the model. The bytes written do not depend on the number of threads (every piece is encoded on
 * its own). The new file appears whole or not at all.
 */
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <strings.h>

#include "base/mem.h"
#include "base/new_file.h"
#include "base/os.h"
#include "base/threads.h"
#include "file/gguf_parts.h"
#include "pith/inspect.h"
#include "tensor/dtype.h"
#include "tensor/finite.h"

/* Weights that one work item converts: whole blocks of every type. */
#define PIECE_LEN 16384
/* Pieces between two writes: enough for the threads to share, 8 MiB of f32. */
#define SLAB_PIECES 128
/* general.quantization_version: the layout of the block types, unchanged since 2023. */
#define QUANTIZATION_VERSION 2

/* The types that a type name asks for. file_type is the number that llama.cpp gives to a file of
   that type (general.file_type). */
static const struct target {
    const char *name;
    enum pi_dtype type;
    uint32_t file_type;
    bool mix; /* some matrices get Q6_K: see mix_type */
} targets[] = {
    {"F32", PI_DTYPE_F32, 0, false},    {"F16", PI_DTYPE_F16, 1, false},
    {"BF16", PI_DTYPE_BF16, 32, false}, {"Q8_0", PI_DTYPE_Q8_0, 7, false},
    {"Q4_0", PI_DTYPE_Q4_0, 2, false},  {"Q4_1", PI_DTYPE_Q4_1, 3, false},
    {"Q5_0", PI_DTYPE_Q5_0, 8, false},  {"Q5_1", PI_DTYPE_Q5_1, 9, false},
    {"Q2_K", PI_DTYPE_Q2_K, 10, false}, {"Q3_K", PI_DTYPE_Q3_K, 11, false},
    {"Q4_K", PI_DTYPE_Q4_K, 14, false}, {"Q5_K", PI_DTYPE_Q5_K, 16, false},
    {"Q6_K", PI_DTYPE_Q6_K, 18, false}, {"Q4_K_M", PI_DTYPE_Q4_K, 15, true},
};

/* Names of matrices that no type makes smaller without harm: small, or read as they are. */
static const char *const kept_names[] = {
    "_norm.weight", "ffn_gate_inp.weight", "position_embd", "token_types", "ssm_conv1d", ".rel_pos",
};

/* One run. Zeroed; freed by quantizer_free at any stage. */
struct quantizer {
    const struct target *target;
    struct pi_gguf_parts parts;
    struct pi_gguf gguf;
    struct pi_gguf_writer writer;
    struct pi_new_file out;
    const struct pi_dtype_traits **to; /* [n_tensor] the new types, owned */
    int32_t n_layer;                   /* as the names of the tensors count them */
    bool tied;                         /* no output.weight: token_embd.weight is the output too */
    int32_t n_thread;
    uint8_t *slab;  /* [SLAB_PIECES] pieces, encoded; owned */
    float *scratch; /* [n_thread][PIECE_LEN], owned */
    pith_progress_fn *progress;
    void *progress_user;
    uint64_t size, size_done; /* bytes of all source tensors, and of those that are converted */
    pith_error *err;
};

static void quantizer_free(struct quantizer *q)
{
    pi_new_file_discard(&q->out);
    pi_gguf_writer_free(&q->writer);
    pi_mem_free(q->to);
    pi_mem_free(q->slab);
    pi_mem_free(q->scratch);
    pi_gguf_free(&q->gguf);
    pi_gguf_parts_free(&q->parts);
}

/* ---- which type ---- */

static bool name_is(struct pi_str name, const char *text)
{
    return name.len == strlen(text) && memcmp(name.data, text, name.len) == 0;
}

static bool name_has(struct pi_str name, const char *text)
{
    const size_t len = strlen(text);
    for (size_t i = 0; i + len <= name.len; i++)
        if (memcmp(name.data + i, text, len) == 0)
            return true;
    return false;
}

static bool name_ends(struct pi_str name, const char *text)
{
    const size_t len = strlen(text);
    return name.len >= len && memcmp(name.data + name.len - len, text, len) == 0;
}

static bool is_converted(const struct pi_gguf_tensor *t)
{
    if (t->ne[1] * t->ne[2] * t->ne[3] == 1 || !name_ends(t->name, "weight"))
        return false;
    for (size_t i = 0; i < PI_LEN(kept_names); i++)
        if (name_has(t->name, kept_names[i]))
            return false;
    return true;
}

/* The layers whose attn_v and ffn_down get more bits in a mix: the first and the last eighth and
   every third between (llama.cpp, src/llama-quant.cpp). */
static bool is_more_bits(int32_t layer, int32_t n_layer)
{
    return layer < n_layer / 8 || layer >= 7 * n_layer / 8 || (layer - n_layer / 8) % 3 == 2;
}

/* Q4_K_M as llama.cpp mixes it: the output matrix and, in the layers above, attn_v and ffn_down are
   Q6_K. Models of 80 layers share few V heads among many queries and give the others' attn_v
   Q5_K. */
static enum pi_dtype mix_type(const struct quantizer *q, const struct pi_gguf_tensor *t)
{
    const int32_t layer = pi_gguf_layer(t->name);
    const bool attn_v = name_has(t->name, "attn_v.weight");
    if (name_is(t->name, "output.weight") || (q->tied && name_is(t->name, "token_embd.weight")))
        return PI_DTYPE_Q6_K;
    if (layer < 0 || !(attn_v || name_has(t->name, "ffn_down")))
        return PI_DTYPE_Q4_K;
    if (is_more_bits(layer, q->n_layer))
        return PI_DTYPE_Q6_K;
    return attn_v && q->n_layer == 80 && t->ne[1] < t->ne[0] ? PI_DTYPE_Q5_K : PI_DTYPE_Q4_K;
}

/* The type that stands in where a row is no whole number of super-blocks; F16 where it is no whole
   number of blocks either. The pairs are llama.cpp's. */
static enum pi_dtype fallback_type(enum pi_dtype type, int64_t row_len)
{
    static const struct {
        enum pi_dtype type, fallback;
    } pairs[] = {
        {PI_DTYPE_Q2_K, PI_DTYPE_Q4_0}, {PI_DTYPE_Q3_K, PI_DTYPE_Q4_0},
        {PI_DTYPE_Q4_K, PI_DTYPE_Q5_0}, {PI_DTYPE_Q5_K, PI_DTYPE_Q5_1},
        {PI_DTYPE_Q6_K, PI_DTYPE_Q8_0},
    };
    for (size_t i = 0; i < PI_LEN(pairs); i++)
        if (type == pairs[i].type && row_len % pi_dtype_find(pairs[i].fallback)->block_len == 0)
            return pairs[i].fallback;
    return PI_DTYPE_F16;
}

static const struct pi_dtype_traits *choose_type(const struct quantizer *q,
                                                 const struct pi_gguf_tensor *t)
{
    if (!is_converted(t))
        return pi_dtype_find(t->type);
    enum pi_dtype type = q->target->mix ? mix_type(q, t) : q->target->type;
    const struct pi_dtype_traits *traits = pi_dtype_find(type);
    if (t->ne[0] % traits->block_len == 0)
        return traits;
    const struct pi_dtype_traits *other = pi_dtype_find(fallback_type(type, t->ne[0]));
    pi_log(PITH_LOG_WARN, "quantize tensor=%.*s row=%" PRId64 " wanted=%s type=%s",
           (int)t->name.len, t->name.data, t->ne[0], traits->name, other->name);
    return other;
}

/* ---- the plan ---- */

static int64_t tensor_len(const struct pi_gguf_tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

static pith_status no_memory(const struct quantizer *q, const char *what)
{
    return pi_fail(q->err, PITH_NOMEM, "no memory for %s", what);
}

static pith_status plan_tensor(struct quantizer *q, int64_t i)
{
    const struct pi_gguf_tensor *t = &q->gguf.tensor[i];
    if (pi_dtype_find(t->type) == NULL)
        return pi_fail(q->err, PITH_UNSUPPORTED,
                       "tensor \"%.*s\": weight type %" PRIu32 " is not supported",
                       (int)t->name.len, t->name.data, t->type);
    q->to[i] = choose_type(q, t);
    const size_t n_block = (size_t)(tensor_len(t) / q->to[i]->block_len);
    size_t size;
    pith_status status = PITH_INVALID;
    if (pi_mul_size(n_block, (size_t)q->to[i]->block_bytes, &size))
        status = pi_gguf_add_tensor(&q->writer, t->name, t->n_dim, t->ne, q->to[i]->type, size);
    if (status == PITH_INVALID)
        return pi_fail(q->err, PITH_UNSUPPORTED,
                       "tensor \"%.*s\": %" PRId64 " weights are too many for %s", (int)t->name.len,
                       t->name.data, tensor_len(t), q->to[i]->name);
    q->size += t->size;
    return status == PITH_OK ? PITH_OK : no_memory(q, "the heads of the tensors");
}

/* Copies the metadata in order; the two keys that speak of the weight types are rewritten in their
   place, or added at the end. */
static pith_status plan_metadata(struct quantizer *q)
{
    struct {
        const char *key;
        uint32_t value;
        bool written;
    } own[] = {{"general.file_type", q->target->file_type, false},
               {"general.quantization_version", QUANTIZATION_VERSION, false}};
    for (int64_t i = 0; i < q->gguf.n_kv; i++) {
        const struct pi_gguf_kv *kv = &q->gguf.kv[i];
        size_t k = 0;
        if (kv->key.len > 6 && memcmp(kv->key.data, "split.", 6) == 0)
            continue; /* the output is one file, whatever the input is */
        while (k < PI_LEN(own) && !name_is(kv->key, own[k].key))
            k++;
        pith_status status = k < PI_LEN(own) ? pi_gguf_add_u32(&q->writer, own[k].key, own[k].value)
                                             : pi_gguf_add_kv(&q->writer, kv);
        if (k < PI_LEN(own))
            own[k].written = true;
        if (status != PITH_OK)
            return no_memory(q, "the metadata");
    }
    for (size_t k = 0; k < PI_LEN(own); k++)
        if (!own[k].written && pi_gguf_add_u32(&q->writer, own[k].key, own[k].value) != PITH_OK)
            return no_memory(q, "the metadata");
    return PITH_OK;
}

static pith_status plan(struct quantizer *q)
{
    q->to = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)q->gguf.n_tensor, sizeof(q->to[0]));
    if (q->to == NULL)
        return no_memory(q, "the plan");
    q->tied = pi_gguf_find_tensor(&q->gguf, "output.weight") == NULL;
    for (int64_t i = 0; i < q->gguf.n_tensor; i++)
        q->n_layer = (int32_t)pi_max(q->n_layer, pi_gguf_layer(q->gguf.tensor[i].name) + 1);
    PI_TRY(plan_metadata(q));
    for (int64_t i = 0; i < q->gguf.n_tensor; i++)
        PI_TRY(plan_tensor(q, i));
    return PITH_OK;
}

/* ---- converting ---- */

/* A run of pieces of one tensor. Rows are whole blocks of both types, so a tensor is one long
   row. */
struct slab {
    const struct pi_dtype_traits *from, *to;
    const uint8_t *src;
    uint8_t *dst;
    int64_t len;              /* weights */
    float *scratch;           /* [n_thread][PIECE_LEN] */
    _Atomic int64_t bad;      /* the first weight that is not finite; len: all are */
    _Atomic int64_t overflow; /* the first that the new type makes infinite; len: none */
};

static void note_first(_Atomic int64_t *first, int64_t at)
{
    int64_t was = atomic_load(first);
    while (at < was && !atomic_compare_exchange_weak(first, &was, at)) {
    }
}

#define F16_MAX_BITS 0x477fe000u /* of 65504, the largest number of f16, which scales have, too */

static void convert_pieces(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct slab *s = ctx;
    float *x = s->scratch + (size_t)thread * PIECE_LEN;
    for (int64_t p = begin; p < end; p++) {
        const int64_t first = p * PIECE_LEN, n = pi_min(PIECE_LEN, s->len - first);
        uint8_t *dst = s->dst + pi_dtype_row_bytes(s->to, first);
        s->from->decode(s->src + pi_dtype_row_bytes(s->from, first), x, n);
        const uint32_t most = pi_max_magnitude(x, n);
        if (most >= PI_FINITE_END)
            note_first(&s->bad, first + pi_find_not_finite(x, n));
        if (s->from == s->to)
            continue; /* the bytes are copied */
        s->to->encode(x, dst, n);
        if (most <= F16_MAX_BITS || most >= PI_FINITE_END)
            continue;
        s->to->decode(dst, x, n);
        const int64_t at = pi_find_not_finite(x, n);
        if (at >= 0)
            note_first(&s->overflow, first + at);
    }
}

static pith_status report(struct quantizer *q, size_t size)
{
    q->size_done += size;
    if (q->progress != NULL &&
        !q->progress(q->progress_user, (double)q->size_done / (double)q->size))
        return pi_fail(q->err, PITH_CANCELLED, "quantizing was cancelled");
    return PITH_OK;
}

/* A weight that is no number is named, not copied: a model with it is of no use. */
static pith_status check_slab(const struct quantizer *q, const struct pi_gguf_tensor *t,
                              const struct slab *s, int64_t first)
{
    const int64_t bad = atomic_load(&s->bad), overflow = atomic_load(&s->overflow);
    if (bad < s->len)
        return pi_fail(q->err, PITH_FORMAT,
                       "tensor \"%.*s\": weight %" PRId64
                       " is NaN or infinite; the file is damaged, "
                       "and nothing was written",
                       (int)t->name.len, t->name.data, first + bad);
    if (overflow < s->len)
        return pi_fail(q->err, PITH_INVALID,
                       "tensor \"%.*s\": weight %" PRId64 " is too large for %s, and nothing was "
                       "written; BF16 and F32 hold it",
                       (int)t->name.len, t->name.data, first + overflow, s->to->name);
    return PITH_OK;
}

static pith_status convert_tensor(struct quantizer *q, int64_t i)
{
    const struct pi_gguf_tensor *t = &q->gguf.tensor[i];
    struct slab s = {.from = pi_dtype_find(t->type), .to = q->to[i], .scratch = q->scratch};
    const int64_t n = tensor_len(t);
    for (int64_t first = 0; first < n; first += s.len) {
        s.src = t->data + pi_dtype_row_bytes(s.from, first);
        s.len = pi_min((int64_t)SLAB_PIECES * PIECE_LEN, n - first);
        const size_t src_size = pi_dtype_row_bytes(s.from, s.len);
        s.dst = q->slab;
        atomic_store(&s.bad, s.len);
        atomic_store(&s.overflow, s.len);
        pi_parallel_items(q->n_thread, pi_ceil_div(s.len, PIECE_LEN), convert_pieces, &s);
        PI_TRY(check_slab(q, t, &s, first));
        PI_TRY(pi_new_file_write(&q->out, s.from == s.to ? s.src : s.dst,
                                 pi_dtype_row_bytes(s.to, s.len), q->err));
        pi_gguf_drop(&q->parts, s.src, src_size);
        PI_TRY(report(q, src_size));
    }
    return pi_gguf_write_padding(&q->writer, &q->out, pi_dtype_row_bytes(s.to, n), q->err);
}

static pith_status run(struct quantizer *q, const char *in_path, const char *out_path)
{
    PI_TRY(pi_gguf_open(in_path, &q->gguf, &q->parts, q->err));
    if (pi_file_same(in_path, out_path))
        return pi_fail(q->err, PITH_INVALID, "%s: the output is the input; name another file",
                       out_path);
    PI_TRY(plan(q));
    q->slab = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)SLAB_PIECES * PIECE_LEN, sizeof(float));
    q->scratch =
        pi_mem_alloc_n(PI_MEM_OTHER, (size_t)q->n_thread * PIECE_LEN, sizeof(q->scratch[0]));
    if (q->slab == NULL || q->scratch == NULL)
        return no_memory(q, "a slab of weights");
    PI_TRY(pi_new_file_open(out_path, &q->out, q->err));
    PI_TRY(pi_gguf_write_head(&q->writer, &q->out, q->err));
    for (int64_t i = 0; i < q->gguf.n_tensor; i++)
        PI_TRY(convert_tensor(q, i));
    return pi_new_file_commit(&q->out, q->err);
}

pith_status pith_quantize(const char *in_path, const char *out_path, const char *type,
                          int32_t n_thread, pith_progress_fn *progress, void *user, pith_error *err)
{
    struct quantizer q = {.progress = progress, .progress_user = user, .err = err};
    if (in_path == NULL || out_path == NULL || type == NULL)
        return pi_fail(err, PITH_INVALID,
                       "pith_quantize: in_path, out_path and type must be given");
    PI_TRY(pi_check_range("n_thread", n_thread, 0, PI_THREADS_MOST, err));
    for (size_t i = 0; i < PI_LEN(targets) && q.target == NULL; i++)
        if (strcasecmp(targets[i].name, type) == 0)
            q.target = &targets[i];
    if (q.target == NULL)
        return pi_fail(err, PITH_INVALID,
                       "type: \"%.40s\" is unknown (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                       "Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q4_K_M are known)",
                       type);
    q.n_thread = n_thread > 0 ? n_thread : pi_thread_count();
    pith_status status = run(&q, in_path, out_path);
    quantizer_free(&q);
    return status;
}
