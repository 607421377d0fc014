/*
 * model.h - the weights of one file, packed, and the shape of the network they make. Immutable
 * after load.
 */
#ifndef PI_MODEL_H
#define PI_MODEL_H

#include "device/device.h"
#include "file/gguf_parts.h"
#include "model/layer.h"
#include "text/template/chat.h"
#include "text/vocab/vocab.h"

/* The shape of multi-head latent attention (latent.c). A lane holds one vector for all heads, and
   the values are a part of it. hp's dim_k, dim_v and n_head_kv describe the lane: n_rot + n_rank,
   n_rank, 1. Projected heads have other sizes. */
struct pi_latent_shape {
    int32_t n_rank;  /* dimensions of the compressed keys and values; 0: the rest says nothing */
    int32_t n_query; /* of the compressed queries; 0: queries are projected at once */
    int32_t dim_key; /* of a head's key without the rotated part */
    int32_t dim_out; /* of a head's value */
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
    bool gelu; /* the feed-forward's gate is a GELU, not a SiLU */
};

struct pith_model {
    struct pi_gguf_parts parts; /* stay mapped for the metadata and the rows of an embedding */
    struct pi_gguf gguf;
    struct pi_vocab *vocab;     /* owned */
    const struct pi_arch *arch; /* NULL for a vocab_only load of another architecture */
    struct pi_hparams hp;
    int32_t n_ctx; /* as pith_model_params */
    struct pi_rope rope;
    struct pi_rope rope_local;      /* of layers that rotate otherwise; n_pair 0: there are none */
    struct pi_rope rope_none;       /* of layers that do not: as many pairs, of frequency 0 */
    struct pi_layer *layer;         /* [n_layer], owned */
    int32_t *kv_layer;              /* [n_layer_kv] the layers with attention, owned */
    int32_t *kv_window;             /* [n_layer_kv] their windows, owned; NULL: none has one */
    const struct pi_rope **kv_rope; /* [n_layer_kv] how their keys are rotated, never NULL; owned */
    struct pi_matrix embd;          /* [n_vocab][n_embd]; data NULL: */
    const uint8_t *embd_rows;       /* the rows as the file has them */
    struct pi_matrix output;        /* [n_vocab][n_embd]; the same data as embd when tied */
    float *output_norm;             /* [n_embd] */
    struct pi_file weights_file;    /* has the packed matrices; data NULL: memory has; owned */
    uint8_t *weights;               /* every packed matrix; owned where no file has them */
    size_t weights_size;            /* bytes of all */
    size_t places_size;             /* the same including the gaps between them */
    size_t experts_at;              /* where the first of the matrices with slabs lies */
    float *vectors;                 /* every vector, owned */
    char *name;                     /* terminated copies for pith_model_info; owned */
    char *arch_name;
    const char *file_type;
    struct pi_chat_template chat; /* text NULL: the file has none; owned */
    char *bos_text, *eos_text;    /* of the tokens, "" where there is none; owned */
    char **meta_key;              /* [n_kv] terminated copies; owned */
    char **meta_type;             /* [n_kv] "u32", "string[151936]"; owned */
    char **tensor_name;           /* [n_tensor] terminated copies; owned */
    int64_t n_param;
};

/* The layer that owns the lanes of a KV layer. */
static inline const struct pi_layer *pi_model_kv_layer(const struct pith_model *m, int32_t kv_layer)
{
    return &m->layer[m->kv_layer[kv_layer]];
}

/* How the keys of a layer of the KV store are rotated. A shape alone has one rotation. */
static inline const struct pi_rope *pi_model_kv_rope(const struct pith_model *m, int32_t kv_layer)
{
    return m->kv_rope != NULL ? m->kv_rope[kv_layer] : &m->rope;
}

/* The rotation of keys in the layers without a window that rotate them. */
const struct pi_rope *pi_model_rope(const struct pith_model *m);

/* UNSUPPORTED where no layer holds the whole text: what `field` asks for would have nothing to work
   on. */
pith_status pi_model_check_full(const struct pith_model *m, const char *field, pith_error *err);

/* INTERNAL, with the reason: what makes a model's numbers no numbers (finite.c). */
pith_status pi_model_not_finite(const struct pith_model *m, pith_error *err);

#endif
