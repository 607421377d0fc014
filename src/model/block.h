/*
 * block.h - the blocks of a layer. A block takes the residual stream, normalised, and leaves its
 * addition to it. There are three: attention.c, delta.c and ffn.c. forward.c runs a layer's list of
 * blocks, and the norms and sums between them. A block knows neither its neighbours nor its family.
 */
#ifndef PI_BLOCK_H
#define PI_BLOCK_H

#include "base/base.h"
#include "device/device.h"

struct pi_hparams;
struct pi_layer;
struct pi_layer_block;
struct pi_pass;

/* The scratch of a running block. */
struct pi_block_scratch {
    size_t row;    /* floats of a token; blocks run one after the other and share the memory */
    size_t widest; /* values of the widest input of its products, the stream's aside */
};

struct pi_block {
    const char *name;
    /* The way in and out in a layer whose tensors were found: all but `block` of *out. */
    void (*plan)(const struct pi_layer *layer, struct pi_layer_block *out);
    void (*scratch)(const struct pi_hparams *hp, struct pi_block_scratch *out);
    /* Points the pass's rows of this block into memory [max_tok][row]. */
    void (*place)(struct pi_pass *pass, struct pi_at memory);
    /* Runs the block of the running layer: from pass->h, and its int8 copy where plan needs one, to
       pass->h. */
    void (*run)(struct pi_pass *pass);
};

/* A block in a layer, and the steps before and after it: x += post_norm(run(norm(x)) + bias). */
struct pi_layer_block {
    const struct pi_block *block;
    const float *norm;      /* [n_embd] */
    const float *bias;      /* [n_embd]; NULL: none */
    const float *post_norm; /* [n_embd]; NULL: none */
    bool reads_int8;        /* some matrix reads the normalised stream as int8 */
};

#define PI_LAYER_BLOCKS 4 /* of a layer, at most */

extern const struct pi_block pi_block_attention;
extern const struct pi_block pi_block_latent;
extern const struct pi_block pi_block_ffn;
extern const struct pi_block pi_block_delta;
extern const struct pi_block pi_block_moe;

#endif
