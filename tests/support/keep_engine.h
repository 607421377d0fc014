/*
 * keep_engine.h - keep policies in an engine: the repository's small model, and engines with a
 * policy and pages of 16 entries. Sequences have random tokens, and their logits are hashed. For
 * one file of a test program, which loads the model in its group's setup and frees it in its
 * teardown.
 */
#ifndef PI_TEST_KEEP_ENGINE_H
#define PI_TEST_KEEP_ENGINE_H

#include <string.h>

#include "mem_used.h"
#include "engine/engine.h"
#include "status.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define PAGE_LEN 16
#define TOKENS_MAX 512

static pith_model *model;
static pith_model_info info;
static int32_t n_lane;             /* layers times KV heads */
static int32_t tokens[TOKENS_MAX]; /* random */

/* Seeds the tokens, too. */
static inline void model_load(uint64_t seed)
{
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    n_lane = info.n_layer * info.n_head_kv;
    for (int32_t i = 0; i < TOKENS_MAX; i++)
        tokens[i] = (int32_t)rng_below(&seed, (uint64_t)info.n_vocab);
}

/* Nothing that the library took is left. */
static inline void model_free(void)
{
    pith_model_free(model);
    mem_check(NULL);
}

/* type: of keys and values, NULL for the default. kv_tokens 0: the number that the policy asks
   for. */
static inline pith_engine *engine_make_typed(const char *keep, const char *type, int32_t chunk,
                                             int32_t n_thread, int32_t kv_tokens)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.n_gpu_layers = test_gpu_layers();
    params.chunk = chunk;
    params.n_thread = n_thread;
    params.kv_tokens = kv_tokens;
    params.page_len = PAGE_LEN;
    params.keep = keep;
    if (type != NULL)
        params.type_k = params.type_v = type;
    check(pith_engine_create(model, &params, &e, &err), &err);
    return e;
}

static inline pith_engine *engine_make(const char *keep, int32_t chunk, int32_t n_thread,
                                       int32_t kv_tokens)
{
    return engine_make_typed(keep, NULL, chunk, n_thread, kv_tokens);
}

/* ids[begin..end), the sequence having begin tokens. */
static inline void eval_ids(pith_seq *seq, const int32_t *ids, int32_t begin, int32_t end)
{
    assert_int_equal(pith_seq_length(seq), begin);
    check(pith_seq_eval(seq, ids + begin, end - begin, &err), &err);
}

static inline void eval(pith_seq *seq, int32_t begin, int32_t end)
{
    eval_ids(seq, tokens, begin, end);
}

static inline uint64_t hash_of(const pith_seq *seq)
{
    assert_non_null(pith_seq_logits(seq));
    return pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
}

static inline bool keep_hash(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    (void)seq;
    ((uint64_t *)user)[pos] = pith_logits_hash(logits, info.n_vocab);
    return true;
}

/* A new sequence of the first n tokens, evaluated in one call; hashes [n]: of the logits after
 * each.
 */
static inline pith_seq *eval_all(pith_engine *e, int32_t n, uint64_t *hashes)
{
    pith_seq *seq = seq_make(e);
    pith_batch_item item = {.seq = seq,
                            .tokens = tokens,
                            .n_token = n,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = keep_hash,
                            .user = hashes};
    assert_true(n <= TOKENS_MAX);
    check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
    return seq;
}

static inline pith_keep_stats stats_of(const pith_seq *seq)
{
    pith_keep_stats s;
    pith_seq_keep_stats(seq, &s);
    return s;
}

/* Pages in use by all sequences of the engine. */
static inline int64_t used_pages(pith_engine *e)
{
    pith_kv_stats s;
    pith_engine_kv_stats(e, &s);
    assert_true(s.used_bytes <= s.reserved_bytes && s.peak_bytes <= s.reserved_bytes);
    assert_int_equal(s.used_bytes, s.n_page_used * s.page_bytes);
    return s.n_page_used;
}

#endif
