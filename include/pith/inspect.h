/*
 * inspect.h - looking inside: a file's metadata and tensors (and their conversion), the model's
 * attention, the machine's bounds. Also the entries of a lane, and the rows that a pass computes.
 */
#ifndef PITH_INSPECT_H
#define PITH_INSPECT_H

#include "pith/pith.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- machine ------------------------------------------------------------------------------ */

/* The bounds that speeds are judged against, measured on this machine. */
typedef struct pith_machine {
    double read_bytes_per_s; /* streaming read of a buffer far larger than the caches */
    double copy_bytes_per_s; /* memcpy of its one half to the other, bytes read plus written */
    double f32_flop_per_s;   /* fused multiply-add, both operations counted, best kernel level */
    double int8_op_per_s;    /* int8 dot products, both operations counted, best kernel level */
    int32_t n_thread;        /* threads that measured together */
    uint32_t reserved[5];
    double f16_flop_per_s; /* f16 products of a GPU's tensor cores with sums in f32; 0: it has none,
                              and products take the two above */
} pith_machine;

/* Measures for about a second with n_thread threads (0: all processors). Its buffer is a few
   times the last level of cache, at most 512 MiB and half of free memory. NOMEM. */
PITH_API pith_status pith_machine_measure(int32_t n_thread, pith_machine *out, pith_error *err);
/* The same of a device, by a name that pith_device_find takes. A GPU's reading and copying are
   measured, its arithmetic is what its driver says of clock and processors, and n_thread of out is
   0. INVALID: there is no such device. NOMEM: there is no room for a buffer. */
PITH_API pith_status pith_device_measure(const char *device, int32_t n_thread, pith_machine *out,
                                         pith_error *err);

/* ---- model -------------------------------------------------------------------------------- */

/* How queries and keys meet: logit = attn_scale * q . k, both rotated by their positions. Pair i of
   a head at position p is turned by the angle p * freq[i] and multiplied by magnitude. Dimensions 2
   * n_pair and above are left alone. All zero for a vocab_only load whose file says no shape. */
typedef struct pith_attention_info {
    const double *freq; /* [n_pair] radians per position, scaling included; owned by the model */
    int32_t n_pair;
    bool adjacent;   /* pairs are dimensions (2i, 2i + 1); otherwise (i, i + n_pair) */
    float magnitude; /* 1 but for YaRN */
    float attn_scale;
    int32_t v_in_k; /* 0: values are stored beside keys; else they are the dimensions of keys from
                       this one on (latent attention), and take no memory */
    uint32_t reserved[7];
} pith_attention_info;

PITH_API void pith_model_get_attention(const pith_model *model, pith_attention_info *out);

/* The properties in which layers of a model differ. */
typedef struct pith_layer_info {
    int32_t lanes;  /* its number among the layers with attention, which have lanes; -1: none */
    int32_t window; /* tokens that a token sees, itself included; 0: all before it */
    int32_t n_rot;  /* rotated dimensions of a head; 0: none */
    float base;     /* of its rotation, before scaling; 0: none */
    uint32_t reserved[8];
} pith_layer_info;

/* RANGE when there is no such layer, or the file of a vocab_only load says no shape. */
PITH_API pith_status pith_model_layer(const pith_model *model, int32_t layer, pith_layer_info *out);

/* INTERNAL, with the reason, when one of a row's logits [n_vocab] is NaN or infinite. The reason is
   the first such weight in the model's file, or that no weight is. The search takes as long as
   reading the file. */
PITH_API pith_status pith_logits_check(const pith_model *model, const float *logits,
                                       pith_error *err);

/* Metadata of the file, in file order. */
PITH_API int64_t pith_model_meta_count(const pith_model *model);

/* Writes "value" as text (arrays abridged) into buf, always terminated when cap > 0. Points *key
   and *type ("u32", "string", "string[151936]" is written by the caller from type) to strings owned
   by the model. key and type may be NULL. RANGE when i is out of range. */
PITH_API pith_status pith_model_meta(const pith_model *model, int64_t i, const char **key,
                                     const char **type, char *buf, size_t cap);

/* One tensor as the file has it. */
typedef struct pith_tensor_info {
    const char *name; /* owned by the model */
    const char *type; /* "Q4_K" */
    int32_t n_dim;
    int64_t dim[4]; /* slowest first, as the docs write shapes: [n_row][n_col] */
    int64_t bytes;
} pith_tensor_info;

/* Tensor number i, from 0; NOT_FOUND when i is out of range. */
PITH_API pith_status pith_model_tensor(const pith_model *model, int64_t i, pith_tensor_info *out);

/* Rewrites a GGUF file with its matrices in another type. The types are "F32", "F16", "BF16",
   "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K" and "Q6_K", and the mix
   "Q4_K_M". Vectors and norms stay as they are. A matrix whose row length does not fit the type
   falls back to one that does, which the log says. The bytes do not depend on n_thread (0: all
   processors). out_path is written beside and renamed at the end, so a failure leaves no half file.
   progress may be NULL. IO, FORMAT, INVALID (unknown type, the output is the input), UNSUPPORTED (a
   tensor of a type that Pith does not know), NOMEM, CANCELLED. */
PITH_API pith_status pith_quantize(const char *in_path, const char *out_path, const char *type,
                                   int32_t n_thread, pith_progress_fn *progress, void *user,
                                   pith_error *err);

/* ---- KV memory ---------------------------------------------------------------------------- */

/* The length and the budget of one lane, the cache of one layer and KV head. positions receives at
   most cap of the stored positions, in slot order, and may be NULL when cap is 0. They ascend, but
   in a lane that was overwritten. INVALID. */
typedef struct pith_lane_info {
    int32_t n_entry;
    int32_t n_page;
    int64_t bytes;
} pith_lane_info;

PITH_API pith_status pith_seq_lane(const pith_seq *seq, int32_t layer, int32_t head,
                                   pith_lane_info *out, int32_t *positions, int32_t cap);

/* ---- evaluation --------------------------------------------------------------------------- */

/* The rows of heads that one pass computed in one layer for the tokens of one sequence. Every
   pointer is valid during the call only. */
typedef struct pith_tap_rows {
    const pith_seq *seq; /* its length is that before the evaluation */
    int32_t layer;
    int32_t n_token;
    int32_t pos0;          /* position of the first; the others follow one by one */
    const int32_t *tokens; /* [n_token] */
    const float *q_pre;    /* [n_token][n_head][head_dim_k] after bias and norm, before rotation */
    const float *q;        /* [n_token][n_head][head_dim_k] after rotation, not yet scaled */
    const float *k;        /* [n_token][n_head_kv][head_dim_k] after rotation */
    const float *v;        /* [n_token][n_head_kv][head_dim_v] */
    const float *h;        /* [n_token][n_embd] the layer's input after its norm */
    const float *out;      /* [n_token][n_head][head_dim_v] what attention gave each head, before
                              gates and the output projection; NULL where type_k has a centre */
    uint32_t reserved[4];
} pith_tap_rows;

/* Called on the thread that evaluates, which must not call the engine or its sequences meanwhile.
   Return false to stop: the evaluation then fails as CANCELLED. */
typedef bool pith_tap_fn(void *user, const pith_tap_rows *rows);

/* From now on fn sees every layer of every evaluation: in a pass layers ascend, and within a layer
   the items of the batch. Each token is seen once per layer, however the batch is cut into passes,
   and nothing that is computed changes. Of an evaluation that fails, rows that were seen no longer
   count. NULL ends it. Without a tap there is no cost; with one, the memory of `chunk` rows of
   queries and a copy of them. INVALID; NOMEM leaves what was set. */
PITH_API pith_status pith_engine_set_tap(pith_engine *engine, pith_tap_fn *fn, void *user,
                                         pith_error *err);

/* The natural logarithm of a token's probability by a row of logits [n], at temperature 1, summed
   in double. best (may be NULL) receives whether no token has a larger logit. -INFINITY, and false,
   for a token that is not in 0 .. n - 1. */
PITH_API double pith_logits_logprob(const float *logits, int32_t n, int32_t token, bool *best);

/* Stored keys and values of a lane's entries from .. from + n - 1, in slot order, decoded to f32. k
   [n][head_dim_k] are after rotation by their positions, v is [n][head_dim_v]. Either may be NULL.
   These are the numbers that attention reads, but for its own rounding. INVALID, NOMEM. */
PITH_API pith_status pith_seq_lane_entries(const pith_seq *seq, int32_t layer, int32_t head,
                                           int32_t from, int32_t n, float *k, float *v);

/* The form of a lane's entries as they are stored. */
typedef struct pith_lane_form {
    const char *type_k; /* storage types, constant strings */
    const char *type_v;
    int32_t k_bytes; /* of one entry's key */
    int32_t v_bytes; /* of its value; 0: values are parts of keys (latent attention) */
    int32_t group_k; /* dimensions that share a scale; 1: the type has no scales */
    int32_t group_v;
    bool rotated_k; /* the codes are of rotated groups (docs/store.md) */
    bool rotated_v;
    uint32_t reserved[8];
} pith_lane_form;

/* The same entries as their bytes lie in the store, k [n][k_bytes] and v [n][v_bytes]. A row is the
   entry's codes, for turbo3 then the third bits of its codes, and then its scales in f16.
   docs/snapshot.md has the bits. Keys are rotated by the positions that they were written at. Where
   a page is shared they may be read at others. k, v and out may be NULL.
   INVALID, NOMEM. */
PITH_API pith_status pith_seq_lane_raw(const pith_seq *seq, int32_t layer, int32_t head,
                                       int32_t from, int32_t n, pith_lane_form *out, uint8_t *k,
                                       uint8_t *v);

/* Returns a 64-bit FNV-1a hash of a logits row, so that two builds can be compared by eye. */
PITH_API uint64_t pith_logits_hash(const float *logits, int32_t n);

#ifdef __cplusplus
}
#endif

#endif
