/*
 * share_rig.h - for tests of share policies in an engine: the repository's small model, and a text
 * of steps of which some recur. Sequences read the text one token at a time. A test program
 * includes it once.
 */
#ifndef SHARE_RIG_H
#define SHARE_RIG_H

#include <string.h>

#include "engine/engine.h"
#include "mem_used.h"
#include "status.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define IDS_MAX 2048
#define N_PROMPT 40
#define STEP_MAX 32

/* Thresholds that any two pages of like steps are below. */
#define LAX "memshare:step=0.5,block=100,relative=2"

static pith_model *model;
static int32_t ids[IDS_MAX], n_id;    /* N_PROMPT of the prompt, then steps */
static int32_t ends[STEP_MAX], n_end; /* where steps end */

static inline int32_t encode(const char *text, int32_t *out)
{
    int32_t n = 0;
    check(pith_tokenize(model, text, strlen(text), 0, out, IDS_MAX, &n, &err), &err);
    return n;
}

/* Facts of a few people, each of which is told more than once, sometimes with another word. */
static inline void load_model(void)
{
    static const char *const names[] = {"Maria", "Anton", "Nora"};
    static const char *const things[] = {"copper lantern", "bright pencil", "dark rope",
                                         "iron feather"};
    static const int32_t order[] = {0, 1, 0, 2, 1, 0, 2, 0, 1, 2, 0, 1, 1, 2, 0};
    char text[512];
    uint64_t seed = 3;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    n_id = encode("Question: What is the password of Maria, and who is the friend of Anton? ", ids);
    while (n_id < N_PROMPT) {
        ids[n_id] = ids[n_id - 7];
        n_id++;
    }
    n_id = N_PROMPT;
    for (size_t i = 0; i < PI_LEN(order); i++) {
        const char *name = names[order[i]], *thing = things[rng_below(&seed, 4)];
        snprintf(text, sizeof(text),
                 "The password of %s is %s. The friend of %s is %s, and the way goes from bridge "
                 "to tower.%s\n\n",
                 name, thing, name, names[(order[i] + 1) % 3],
                 i % 4 == 3 ? " Then the way goes on." : "");
        n_id += encode(text, ids + n_id);
        ends[n_end++] = n_id;
    }
}

static inline void free_model(void)
{
    pith_model_free(model);
    mem_check(NULL);
}

static inline pith_engine_params params_of(const char *share)
{
    pith_engine_params p;
    pith_engine_params_default(&p);
    p.share = share;
    p.kv_tokens = 8192;
    p.n_thread = 1;
    return p;
}

static inline pith_engine *engine_of(const pith_engine_params *p)
{
    pith_engine *e = NULL;
    check(pith_engine_create(model, p, &e, &err), &err);
    return e;
}

static inline pith_seq *seq_of(pith_engine *e)
{
    return seq_make(e);
}

/* The text from where the sequence is to token n: the prompt at once, steps token by token. */
static inline void read_to(pith_seq *seq, int32_t n)
{
    if (pith_seq_length(seq) == 0)
        check(pith_seq_eval(seq, ids, N_PROMPT, &err), &err);
    for (int32_t i = pith_seq_length(seq); i < n; i++)
        check(pith_seq_eval(seq, &ids[i], 1, &err), &err);
}

static inline uint64_t hash_of(const pith_seq *seq)
{
    const float *logits = pith_seq_logits(seq);
    assert_non_null(logits);
    return pith_logits_hash(logits, model->hp.n_vocab);
}

static inline pith_share_stats stats_of(const pith_seq *seq)
{
    pith_share_stats t;
    pith_seq_share_stats(seq, &t);
    return t;
}

/* A sequence of its own that read the text to n. */
static inline uint64_t hash_at(pith_engine *e, int32_t n)
{
    pith_seq *seq = seq_of(e);
    read_to(seq, n);
    uint64_t hash = hash_of(seq);
    pith_seq_free(seq);
    return hash;
}

#endif
