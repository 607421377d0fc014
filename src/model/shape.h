/*
 * shape.h - a model as seen by code that needs no weights: sizes, rotations, and the few numbers
 * that policies compute from weights. The model itself is model.h, for src/model and the engine.
 */
#ifndef PI_SHAPE_H
#define PI_SHAPE_H

#include "device/device.h"
#include "tensor/rope.h"
#include "pith/pith.h"

/* The shape of multi-head latent attention (latent.c). A lane holds one vector for all heads, and
   the values are a part of it. hp's dim_k, dim_v and n_head_kv describe the lane: n_rot + n_rank,
   n_rank, 1. Projected heads have other sizes. */
struct pi_latent_shape {
    int32_t n_rank;  /* dimensions of the compressed keys and values; 0: the rest says nothing */
    int32_t n_query; /* of the compressed queries; 0: queries are projected at once */
    int32_t dim_key; /* of a head's key without the rotated part */
    int32_t dim_out; /* of a head's value */
};

/* Counts of all ranks together (base/ranks.h), where hp's own are this rank's; and which of the
   file's layers these are. */
struct pi_whole_shape {
    int32_t n_head;
    int32_t n_head_kv;
    int32_t n_ff;
    int32_t n_ff_expert;
    int32_t n_ff_shared;
    int32_t n_layer;
    int32_t n_layer_kv;
    int32_t n_layer_full;
    int32_t first_head_kv; /* of the rank's own */
    int32_t first_layer;   /* in the file, of the rank's own */
    int32_t first_kv;      /* layers with attention before it */
    int32_t first_full;    /* of them: those without a window */
};

struct pi_hparams {
    int32_t n_layer;
    int32_t n_layer_kv;   /* layers with attention, which have lanes */
    int32_t n_layer_full; /* of them: those without a window, which policies work on */
    int32_t n_embd;
    int32_t n_ff;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t dim_k; /* of one head */
    int32_t dim_v;
    int32_t n_rot; /* rotated dimensions of a head, even */
    int32_t n_vocab;
    int32_t n_ctx_train;
    float rms_eps;
    float attn_scale; /* multiplies q.k */
    bool attn_gated;  /* in wq, the rows of a head's query are followed by the rows of its output
                         gate */
    struct pi_delta_shape delta;
    struct pi_latent_shape latent;
    struct pi_moe_rule moe;
    float embd_scale; /* multiplies embeddings */
    float attn_cap;   /* scores are attn_cap * tanh(score / attn_cap); 0: as they come */
    float logit_cap;  /* logits are logit_cap * tanh(logit / logit_cap); 0: as they come */
    float temp_scale; /* queries at p times 1 + temp_scale * ln(floor(p / temp_len) + 1); 0: none */
    int32_t temp_len;
    struct pi_whole_shape whole; /* of all ranks together */
    bool gelu;                   /* the feed-forward's gate is a GELU, not a SiLU */
};

/* Query heads of a lane: of all ranks, where each holds the lane. */
static inline int32_t pi_shape_group(const struct pi_hparams *hp)
{
    return hp->whole.n_head / hp->whole.n_head_kv;
}

/* Whether other ranks have layers; and whether the first one is here, or the last one with the
   output. */
static inline bool pi_shape_is_part(const struct pi_hparams *hp)
{
    return hp->n_layer < hp->whole.n_layer;
}
static inline bool pi_shape_begins(const struct pi_hparams *hp)
{
    return hp->whole.first_layer == 0;
}
static inline bool pi_shape_ends(const struct pi_hparams *hp)
{
    return hp->whole.first_layer + hp->n_layer >= hp->whole.n_layer;
}

/* Whether a layer of the file is here; -1, which is none, is. */
static inline bool pi_shape_has_layer(const struct pi_hparams *hp, int32_t layer)
{
    int32_t own = layer - hp->whole.first_layer;
    return layer < 0 || (own >= 0 && own < hp->n_layer);
}

const struct pi_hparams *pi_model_hparams(const struct pith_model *m);
const char *pi_model_name(const struct pith_model *m); /* "" where the file has none */
/* False where only the vocabulary was loaded, of a family that Pith does not know. */
bool pi_model_has_layers(const struct pith_model *m);

/* How the keys of a layer of the KV store are rotated. A shape alone has one rotation. */
const struct pi_rope *pi_model_kv_rope(const struct pith_model *m, int32_t kv_layer);
/* The rotation of keys in the layers without a window that rotate them. */
const struct pi_rope *pi_model_rope(const struct pith_model *m);

/* UNSUPPORTED where no layer holds the whole text: the policy of `field` would have no lanes to
   work on. */
pith_status pi_model_check_full(const struct pith_model *m, const char *field, pith_error *err);

/* Identifies a model for any types of its weights: shape, frequencies and norms, which quantising
   leaves alone. Never 0. */
uint64_t pi_model_fingerprint(const struct pith_model *m);

/* Row r, below n_embd, of the matrix that ends attention in a layer of the KV store. out has n_head
   * dim_v floats; with latent attention n_head * latent.dim_out. */
void pi_model_output_row(const struct pith_model *m, int32_t kv_layer, int32_t r, float *out);
/* With latent attention, row r, below latent.dim_out, of the matrix that makes a head's values of a
   lane's. out [dim_v] */
void pi_model_expand_row(const struct pith_model *m, int32_t kv_layer, int32_t head, int32_t r,
                         float *out);

#endif
