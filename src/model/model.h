/*
 * model.h - the weights of one file, packed, and the shape of the network they make. Immutable
 * after load.
 */
#ifndef PI_MODEL_H
#define PI_MODEL_H

#include "cpu/matmul.h"
#include "file/gguf.h"
#include "tensor/rope.h"
#include "text/chat.h"
#include "text/vocab.h"

struct pi_hparams {
    int32_t n_layer;
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
};

/* Vectors are NULL, matrices have data NULL, where the architecture has none. */
struct pi_layer {
    float *attn_norm;        /* [n_embd] */
    struct pi_matrix wq;     /* [n_head * dim_k][n_embd] */
    struct pi_matrix wk;     /* [n_head_kv * dim_k][n_embd] */
    struct pi_matrix wv;     /* [n_head_kv * dim_v][n_embd] */
    float *bq, *bk, *bv;     /* [rows of the matrix] */
    float *q_norm, *k_norm;  /* [dim_k], one for all heads */
    struct pi_matrix wo;     /* [n_embd][n_head * dim_v] */
    float *bo;               /* [n_embd] */
    float *ffn_norm;         /* [n_embd] */
    struct pi_matrix w_gate; /* [n_ff][n_embd] */
    struct pi_matrix w_up;   /* [n_ff][n_embd] */
    struct pi_matrix w_down; /* [n_embd][n_ff] */
};

struct pith_model {
    struct pi_file file; /* stays mapped for the metadata; tensor pages are dropped after packing */
    struct pi_gguf gguf;
    struct pi_vocab *vocab; /* owned */
    const struct pi_arch *arch; /* NULL for a vocab_only load of another architecture */
    struct pi_hparams hp;
    struct pi_rope rope;
    struct pi_layer *layer;   /* [n_layer], owned */
    struct pi_matrix embd;    /* [n_vocab][n_embd] */
    struct pi_matrix output;  /* [n_vocab][n_embd]; the same data as embd when tied */
    float *output_norm;       /* [n_embd] */
    uint8_t *weights;         /* every packed matrix, mapped; owned */
    size_t weights_size;
    float *vectors;           /* every vector, owned */
    char *name;               /* terminated copies for pith_model_info; owned */
    char *arch_name;
    const char *file_type;
    struct pi_chat_template chat; /* text NULL: the file has none; owned */
    char *bos_text, *eos_text;    /* of the tokens, "" where there is none; owned */
    char **meta_key;           /* [n_kv] terminated copies; owned */
    char **meta_type;          /* [n_kv] "u32", "string[151936]"; owned */
    char **tensor_name;        /* [n_tensor] terminated copies; owned */
    int64_t n_param;
};

#endif
