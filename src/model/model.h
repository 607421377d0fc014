/*
 * model.h - the packed weights of one file, and the other data that is read from it. Immutable
 * after load.
 */
#ifndef PI_MODEL_H
#define PI_MODEL_H

#include "file/gguf_parts.h"
#include "model/layer.h"
#include "model/shape.h"
#include "text/template/chat.h"
#include "text/vocab/vocab.h"

struct pi_placed_list;
struct pi_host;

struct pith_model {
    _Atomic int32_t n_holder;   /* engines over it */
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
    struct pi_matrix embd;          /* [n_vocab][n_embd]; data NULL: it is not packed */
    const uint8_t *embd_rows;       /* its rows as the file has them */
    struct pi_matrix output;        /* [n_vocab][n_embd]; the same data as embd when tied */
    float *output_norm;             /* [n_embd] */
    struct pi_file weights_file;    /* has the packed matrices; data NULL: memory has; owned */
    uint8_t *weights;              /* places of the packed matrices; owned where no file has them */
    size_t weights_size;           /* bytes of all */
    size_t places_size;            /* the same including the gaps between them */
    size_t experts_at;             /* where the first of the matrices with slabs lies */
    float *vectors;                /* every vector, owned */
    int64_t counted;               /* bytes of both that the processor's account has */
    struct pi_host *host;          /* what of the weights is packed (host.h); owned */
    struct pi_placed_list *placed; /* the weights on devices (placed.h); owned */
    char *name;                    /* terminated copies for pith_model_info; owned */
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

/* Holds a model, which pith_model_free lets go. Thread-safe. */
void pi_model_hold(const struct pith_model *m);

/* INTERNAL, with the reason why a model computes infinities or NaN (finite.c). */
pith_status pi_model_not_finite(const struct pith_model *m, pith_error *err);

#endif
