/*
 * layer.h - a layer of a model: which blocks run in it, and the weights of each kind of block.
 * Vectors are NULL, matrices have data NULL, where the layer has none.
 */
#ifndef PI_LAYER_H
#define PI_LAYER_H

#include "cpu/matmul.h"
#include "model/block.h"
#include "tensor/rope.h"

struct pi_attention_weights {
    float *norm;            /* [n_embd] */
    struct pi_matrix wq;    /* [n_head * dim_k][n_embd]; where attention is gated twice the rows */
    struct pi_matrix wk;    /* [n_head_kv * dim_k][n_embd] */
    struct pi_matrix wv;    /* [n_head_kv * dim_v][n_embd] */
    float *bq, *bk, *bv;    /* [rows of the matrix] */
    float *q_norm, *k_norm; /* [dim_k], one for all heads */
    struct pi_matrix wo;    /* [n_embd][n_head * dim_v] */
    float *bo;              /* [n_embd] */
    float *sinks;           /* [n_head] logits of sinks, beside the entries' logits
                               (kv_attend_job) */
    float *post_norm;       /* [n_embd] of the block's output */
};

struct pi_ffn_weights {
    float *norm;           /* [n_embd] */
    struct pi_matrix gate; /* [n_ff][n_embd] */
    struct pi_matrix up;   /* [n_ff][n_embd] */
    struct pi_matrix down; /* [n_embd][n_ff] */
    float *post_norm;      /* [n_embd] of the block's output */
};

struct pi_latent_weights {
    float *norm;               /* [n_embd] */
    struct pi_matrix query;    /* [n_head * (dim_key + n_rot)][n_embd]; no data: in two steps, */
    struct pi_matrix query_a;  /* [n_query][n_embd] */
    float *query_a_norm;       /* [n_query] */
    struct pi_matrix query_b;  /* [n_head * (dim_key + n_rot)][n_query] */
    struct pi_matrix compress; /* [n_rank + n_rot][n_embd] the compressed vector, then its key */
    float *compress_norm;      /* [n_rank] */
    struct pi_matrix absorb;   /* n_head slabs [n_rank][dim_key] */
    struct pi_matrix expand;   /* n_head slabs [dim_out][n_rank] */
    struct pi_matrix out;      /* [n_embd][n_head * dim_out] */
};

struct pi_delta_weights {
    float *norm;            /* [n_embd] */
    struct pi_matrix mix;   /* [mix][n_embd] queries, keys, values: dim * (2 n_key + n_value) */
    struct pi_matrix z;     /* [dim * n_value][n_embd] the gate of the output */
    struct pi_matrix mix_z; /* the rows of both, a key head at a time, in their place */
    struct pi_matrix beta;  /* [n_value][n_embd] */
    struct pi_matrix alpha; /* [n_value][n_embd] */
    struct pi_matrix beta_alpha; /* the rows of both, a key head at a time, in their place */
    float *conv;                 /* [mix][n_conv] */
    float *dt, *a;               /* [n_value] */
    float *head_norm;            /* [dim] of a head's output */
    struct pi_matrix out;        /* [n_embd][dim * n_value] */
};

struct pi_moe_weights {
    float *norm;                             /* [n_embd] */
    struct pi_matrix router;                 /* [n_expert][n_embd] */
    float *router_bias;                      /* [n_expert] */
    float *choice_bias;                      /* [n_expert] counts in choosing alone */
    struct pi_matrix gate, up;               /* n_expert slabs [n_ff][n_embd] */
    struct pi_matrix down;                   /* n_expert slabs [n_embd][n_ff] */
    float *gate_bias, *up_bias;              /* [n_expert][n_ff] */
    float *down_bias;                        /* [n_expert][n_embd] */
    struct pi_matrix shared_gate, shared_up; /* [n_ff_shared][n_embd] of the shared expert */
    struct pi_matrix shared_down;            /* [n_embd][n_ff_shared] */
    float *shared_weight;                    /* [n_embd] makes its weight; NULL: that is 1 */
};

struct pi_layer {
    struct pi_layer_block block[PI_LAYER_BLOCKS]; /* [n_block] in the order in which they run */
    int32_t n_block;
    int32_t kv_layer; /* its number among layers with attention, as the KV store counts them: layers
                         with a window come last; -1: none */
    int32_t delta_layer;        /* its number among layers with a delta net */
    int32_t window;             /* tokens that a token sees, itself included; 0: all before it */
    const struct pi_rope *rope; /* one of the model's; NULL: queries and keys are not rotated */

    struct pi_attention_weights attn;
    struct pi_ffn_weights ffn;
    struct pi_latent_weights latent;
    struct pi_delta_weights delta;
    struct pi_moe_weights moe;
};

#endif
