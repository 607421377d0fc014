/*
 * model_maker_family.h - how a group of families joins model_maker.c: their words, their keys and
 * their tensors, in one file model_maker_GROUP.c and one line of model_maker.c's table. Families
 * that are not listed here are made like Llama's.
 */
#ifndef MODEL_MAKER_FAMILY_H
#define MODEL_MAKER_FAMILY_H

#include "model_maker.h"

#define MAKER_GAIN_SCORE 1.5 /* of q and k: attention scores then spread by its square */
#define MAKER_STD_BIAS 0.3
#define MAKER_STD_NORM 0.15 /* of norm weights, about 1 */

struct maker; /* a file that is being written */

/* A word of a group's families, beside the words of struct model_spec. */
struct maker_word {
    const char *key;
    double preset, low, high;
};

struct maker_family {
    const char *arch;
    const char *without; /* keys behind "ARCH." that other files have, but not these; separated by
                            spaces, NULL: none */
    pith_status (*keys)(struct maker *m); /* metadata of its own; NULL: none */
    void (*whole)(struct maker *m); /* tensors beside embedding, output norm, output; NULL: none */
    void (*layer)(struct maker *m, int32_t l); /* a layer's tensors */
    bool no_output;                            /* the output projection is always the embedding */
};

struct maker_group {
    const struct maker_family *family; /* [n_family] */
    int32_t n_family;
    const struct maker_word *word; /* [n_word] */
    int32_t n_word;
};

extern const struct maker_group maker_dense;
extern const struct maker_group maker_experts;
extern const struct maker_group maker_recurrent;
extern const struct maker_group maker_latent;

/* ---- what families ask ---- */

const struct model_spec *maker_spec(const struct maker *m);
int32_t maker_rot(const struct maker *m); /* rotated dimensions of a head */
/* The spec's value, or the default. */
double maker_number(const struct maker *m, const char *word);
int32_t maker_count(const struct maker *m, const char *word);

/* ---- metadata: ARCH.NAME ---- */

pith_status maker_key_count(struct maker *m, const char *name, int32_t value);
pith_status maker_key_number(struct maker *m, const char *name, double value);
pith_status maker_key_text(struct maker *m, const char *name, const char *value);
pith_status maker_key_bool(struct maker *m, const char *name, bool value);
pith_status maker_key_bools(struct maker *m, const char *name, const bool *value, int32_t n);
pith_status maker_key_counts(struct maker *m, const char *name, const int32_t *value, int32_t n);

/* ---- tensors: blk.L.NAME, or NAME where layer is -1 ---- */

/* NAME.weight [n_row][n_col] of the spec's type. */
void maker_matrix(struct maker *m, const char *name, int32_t layer, int64_t n_row, int64_t n_col,
                  double gain);
/* NAME.weight [n_slab][n_row][n_col] */
void maker_slabs(struct maker *m, const char *name, int32_t layer, int64_t n_slab, int64_t n_row,
                 int64_t n_col, double gain);
/* n values of F32, mean + std * (uniform of variance 1); the name is the whole one. */
void maker_vector(struct maker *m, const char *name, int32_t layer, int32_t n, double mean,
                  double std);
/* The same, [n_slab][n]. */
void maker_vectors(struct maker *m, const char *name, int32_t layer, int32_t n_slab, int32_t n,
                   double mean, double std);
/* The tensors that most families share with Llama: norm, q, k, v, output; the feed-forward. */
void maker_attention(struct maker *m, int32_t l);
void maker_ffn(struct maker *m, int32_t l);

#endif
