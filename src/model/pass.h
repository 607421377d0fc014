/* pass.h - the inside of a pass, for forward.c and the blocks alone. */
#ifndef PI_PASS_H
#define PI_PASS_H

#include "base/mem.h"
#include "base/threads.h"
#include "cpu/kernels.h"
#include "model/forward.h"

/* Tokens of an item that attend together: a chunk of the reader's, or what is neither read nor
   watched of an item. Its attention is a number of tiles. */
struct pi_pass_segment {
    int32_t item;
    int32_t t0; /* its first token, of the item's */
    int32_t n_tok;
    int32_t chunk; /* -1: not the reader's */
};

/* What a delta net has of each token (delta.c). mix is the width of its convolution. */
struct pi_pass_delta {
    float *u;            /* [max_tok][mix] what is projected */
    float *z;            /* [max_tok][n_value][dim] the gate, then the gated output */
    float *c;            /* [max_tok][mix + n_value * dim] rows of both together as a file has them,
                           then, [max_tok][mix], what the convolution gives */
    float *beta, *decay; /* [max_tok][n_value] */
    float *beta_alpha;   /* [max_tok][2 n_value] the rows of both together */
    float *kq;           /* [max_tok][n_key] */
};

/* Of the experts' block (moe.c). A row is a token's place with one of its experts; rows are sorted by
   expert. */
struct pi_pass_moe {
    float *x;         /* [n_row][n_embd] inputs, then outputs */
    float *gate, *up; /* [n_row][n_ff] */
    int8_t *q;        /* [n_row][input, padded to 32], as pi_pass's act_q */
    float *scale;     /* [n_row][... / 32] */
    int16_t *sum16;   /* [n_row][... / 16] */
    float *weight;    /* [n_tok][n_used], a token's best expert first */
    int32_t *chosen;  /* [n_tok][n_used] experts */
    int32_t *row;     /* [n_tok][n_used] where they stand */
    int32_t *token;   /* [n_row] */
    int32_t *first;   /* [n_expert + 1] first row of an expert */
    int32_t *busy;    /* [n_busy] experts with rows, ascending */
    int32_t n_busy, n_row;
    float *logit;                   /* [n_tok][n_expert] of the router */
    float *rank;                    /* [n_tok][n_expert] */
    float *shared_weight;           /* [n_tok] of the shared expert, where it has one */
    float *shared_gate, *shared_up; /* [n_tok][n_ff_shared] */
};

/* Of latent attention (latent.c), beside q, k, v and att, which are those of its lane. */
struct pi_pass_latent {
    float *head; /* [max_tok][n_head][dim_key + n_rot] queries, then [max_tok][n_head][dim_out] */
    float *raw;  /* [max_tok][n_rank + n_rot] the lane's vectors as they are projected */
    float *low;  /* [max_tok][n_query] */
};

struct pi_pass {
    const struct pith_model *model;
    struct kv_geometry geometry; /* of the cache */
    const struct pi_kernels *cpu;
    int32_t max_tok;
    int32_t n_thread;
    int32_t tile; /* query tokens of one attention call */

    const struct pi_pass_item *items; /* of the running pass; borrowed */
    int32_t n_item;
    int32_t n_tok;
    const struct pi_layer *layer;      /* the running layer */
    const struct pi_layer_block *from; /* of the stream: the block that ran, NULL: none did */
    const struct pi_layer_block *to;   /* the one that runs next, NULL: none does */

    float *x;        /* [max_tok][n_embd] the residual stream */
    float *h;        /* [max_tok][n_embd] normed input of a block, then its output */
    float *q;        /* [max_tok][n_head][dim_k] */
    float *k;        /* [max_tok][n_head_kv][dim_k] */
    float *v;        /* [max_tok][n_head_kv][dim_v] */
    int32_t n_logit; /* of a row that are made; 0: all */
    float *centre;   /* [kv_layer][n_head_kv][dim_k] of stored keys (centre.h); NULL: 0 */
    float *att;      /* [max_tok][n_head][dim_v] */
    float *q_gate;   /* [max_tok][n_head][2][dim_k] of gated attention: query and gate */
    float *gate;     /* [max_tok][n_ff] */
    float *up;       /* [max_tok][n_ff] */
    struct pi_pass_moe moe;
    struct pi_pass_delta delta;
    struct pi_pass_latent latent;
    float *block;        /* [max_tok][the most of all blocks] owns q..moe, a block's at a time */
    float *q_pre;        /* [max_tok][n_head][dim_k] queries before rope; NULL without a tap */
    float *k_pre;        /* [max_tok][n_head_kv][dim_k] keys before rope; NULL without a writer */
    pi_pass_tap_fn *tap; /* NULL: nobody listens */
    void *tap_user;
    pi_pass_ask_fn *ask; /* NULL: nobody is asked */
    void *ask_user;

    int8_t *act_q;      /* [max_tok][widest input, padded to 32] */
    float *act_scale;   /* [max_tok][... / 32] */
    int16_t *act_sum16; /* [max_tok][... / 16] */

    float *rope_cs;       /* [max_tok][n_pair][2] */
    float *rope_local_cs; /* the same of model->rope_local; NULL: there is none */
    int32_t *item_of;     /* [max_tok] item of a token */
    int32_t *token_of;    /* [max_tok] id of a token */
    int32_t *row0;        /* [max_tok + 1] first row of an item */

    uint8_t *scratch; /* [n_thread][scratch_size] of kernels */
    size_t scratch_size;

    struct pi_pass_segment *segment; /* [max_tok] */
    int32_t n_segment;
    int32_t *tile0; /* [max_tok + 1] first attention tile of a segment */

    struct pi_pass_watch watch; /* attended NULL: nobody watches */
    int32_t
        n_part; /* of the query heads of a group in the running layer's attention, a call each */
    int32_t watch_tile; /* tokens of a watched item in one attention call */
    int32_t *watched;   /* [max_tok] items that are watched; NULL without a watch */
    int32_t n_watched;
    int32_t *slot;     /* [max_tok][n_head_kv] of an item's first token in the running layer */
    float *watch_rows; /* [n_thread][rows of a tile][watch_stride + numbers beside] */
    size_t watch_stride;

    struct pi_pass_writer writer; /* written NULL: nobody looks */

    struct pi_pass_reader reader; /* select NULL: everything is read */
    struct pi_pass_chunk *chunk;  /* [cap_chunk] of the running pass */
    int32_t n_chunk;
    int32_t part_most; /* most tokens of a chunk in one attention call */
    int32_t *slots;    /* [cap_chunk][n_head_kv][cap_slot] of the running layer, ascending */
    int32_t *n_slot;   /* [cap_chunk][n_head_kv] -1: everything */
    int32_t cap_chunk;
    int64_t cap_slot;

    struct pi_pass_recaller recaller; /* choose NULL: nobody recalls */
    int32_t *recalls;                 /* [max_tok] items that recall */
    int32_t n_recall;
};

/* Threads for a loop of this many multiplications. */
int32_t pi_pass_threads_for(const struct pi_pass *pass, int64_t work);

/* n_row * row_len elements of scratch; NULL, and *ok false, without memory or when any part of the
   size overflows. */
void *pi_pass_alloc(int32_t n_row, size_t row_len, size_t size, bool *ok);

/* ---- product.c ---- */

/* A loop over the rows of the pass, each of about n floats; its context is the pass. */
void pi_pass_rows(struct pi_pass *pass, pi_job_fn *fn, int64_t n);

/* out[i] = w[i] times the activations x [n_tok][n_col], n <= 3, whose int8 copy is up to date where
   a matrix reads it. */
void pi_pass_product(struct pi_pass *pass, const float *x, int32_t n_tok,
                     const struct pi_matrix *const *w, float *const *out, int32_t n);

/* Makes the int8 copy of row t of an input of n values. */
void pi_pass_quantize(struct pi_pass *pass, const float *row, int64_t t, int32_t n);
bool pi_matrix_reads_int8(const struct pi_matrix *w);

/* ---- fetch.c ---- */

/* Asks for experts of the running layer, [n] of them, where a file has them. */
void pi_pass_fetch_experts(const struct pi_pass *pass, const int32_t *expert, int32_t n);

/* ---- attention.c ---- */

/* Shows the running layer's rows to the tap. */
void pi_pass_call_tap(struct pi_pass *pass);

/* What the query of row t is multiplied by: texts longer than those of training are read with
   sharper attention. */
float pi_pass_temperature(const struct pi_pass *pass, int64_t t);

/* ---- attention_lanes.c ---- */

/* Chooses how many tokens attend together; returns the scratch of a thread. */
size_t pi_pass_attention_plan(struct pi_pass *pass);

/* What attention of up to max_tok tokens needs beside kernels' scratch; freed by the other. */
bool pi_pass_attention_alloc(struct pi_pass *pass);
void pi_pass_attention_free(struct pi_pass *pass);

/* After the items' rows were laid out: which tokens attend together. */
void pi_pass_attention_lay_out(struct pi_pass *pass);

/* The running layer: keys and values to the lanes, attention to att. */
void pi_pass_attention_run(struct pi_pass *pass);

#endif
