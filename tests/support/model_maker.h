/*
 * model_maker.h - GGUF models with random weights, for tests and benchmarks: any shape of any
 * family, any weight type, the same bytes on every machine. Quantised weights are written as random
 * blocks with chosen scales. So nothing is ever quantised, and the files are made as fast as they
 * can be written.
 *
 * The weights are scaled so that a pass resembles a trained model's. Activations stay of order one,
 * attention scores spread by two to three units, logits by about three.
 */
#ifndef MODEL_MAKER_H
#define MODEL_MAKER_H

#include "base/base.h"

/* A word of a group of families (model_maker_family.h). */
struct model_extra {
    const char *key;
    double value;
};

struct model_spec {
    char arch[16];        /* "llama" (default), ... */
    char type[16];        /* of the matrices: "F32" (default) ... "Q6_K", or the mix "Q4_K_M" */
    char scaling[16];     /* rope: "none" (default), "linear", "yarn", "factors" (Llama 3.1's) */
    char vocab_file[512]; /* a GGUF file whose tokenizer is copied; "": no tokenizer */
    int32_t layers;
    int32_t width;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t rot; /* rotated dimensions of a head, even; 0 (default): all of them */
    int32_t ff;
    int32_t vocab;    /* tokens; of vocab_file when there is one */
    int32_t pad;      /* with vocab_file: tokens, and the ones after the file's are unused; 0
                         (default): the file's */
    int32_t ctx;      /* positions the model claims to be trained for */
    int32_t ctx_orig; /* positions before rope scaling */
    int32_t tied;     /* 1: the output projection is the embedding */
    int32_t bias;     /* 1: biases on q, k and v also in the llama family (qwen2 always has them) */
    int32_t seed;
    int32_t pooling; /* ARCH.pooling_type; 0 (default): the file does not say */
    int32_t both;    /* 1: the file says that tokens see later ones, too */
    double theta;
    double eps;
    double factor; /* of the rope scaling */
    struct model_extra extra[16];
    int32_t n_extra;
};

void model_spec_default(struct model_spec *spec);

/* Sets what words like "arch=qwen3 layers=2" say, separated by spaces. INVALID names a word that is
   no known key or has a value out of range. */
pith_status model_spec_parse(struct model_spec *spec, const char *words, pith_error *why);

/* Writes the model. IO, NOMEM, INVALID (a width that the type's blocks do not divide), and the
   failures of reading vocab_file. */
pith_status model_make(const struct model_spec *spec, const char *path, pith_error *why);

/* The model that words say, by model_spec_parse; what they leave out is the default. */
pith_status model_make_of(const char *words, const char *path, pith_error *why);

#endif
