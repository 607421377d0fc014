/*
 * draft_rig.h - one text generated with and without drafts, and a check that both are the same. It
 * compares tokens, text, the end, the logits' bits, the memory, and the sequence's later results.
 */
#ifndef PI_TEST_DRAFT_RIG_H
#define PI_TEST_DRAFT_RIG_H

#include "engine/draft.h"
#include "status.h"
#include "testing.h"

#define DRAFT_TEXT_MAX 8192
#define DRAFT_MORE 3 /* tokens that are evaluated behind the text */

struct told {
    char text[DRAFT_TEXT_MAX];
    size_t len;
    int32_t n_call;
    int32_t stop_at; /* the call that returns false; 0: none */
    int32_t n_token;
    uint64_t hash[1 + DRAFT_MORE]; /* of the logits at the end, and behind more tokens */
    int64_t used_bytes, live_bytes;
    pith_generate_result result;
    pith_keep_stats keep;
};

static inline bool tell(void *user, const char *text, size_t len)
{
    struct told *t = user;
    assert_true(t->len + len < DRAFT_TEXT_MAX);
    memcpy(t->text + t->len, text, len);
    t->len += len;
    return ++t->n_call != t->stop_at;
}

/* *tokens receives a copy of the sequence's, which the caller frees. */
static inline void tell_all(pith_engine *e, const int32_t *prompt, int32_t n_prompt,
                            const pith_generate_params *params, struct told *out, int32_t **tokens)
{
    pith_kv_stats kv;
    pith_model_info info;
    int32_t stop_at = out->stop_at, more[DRAFT_MORE] = {3, 5, 7};
    memset(out, 0, sizeof(*out));
    out->stop_at = stop_at;
    pith_seq *seq = seq_make(e);
    pith_model_get_info(pith_engine_model(e), &info);
    check(pith_generate(seq, prompt, n_prompt, params, tell, out, &out->result, &err), &err);
    assert_false(seq->ahead.is_ahead);
    out->n_token = pith_seq_length(seq);
    *tokens = calloc((size_t)out->n_token, sizeof(**tokens));
    memcpy(*tokens, pith_seq_tokens(seq), (size_t)out->n_token * sizeof(**tokens));
    pith_engine_kv_stats(e, &kv);
    out->used_bytes = kv.used_bytes;
    out->live_bytes = kv.live_bytes;
    pith_seq_keep_stats(seq, &out->keep);
    out->hash[0] = pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
    for (int i = 0; i < DRAFT_MORE; i++) {
        if (pith_seq_eval(seq, &more[i], 1, NULL) != PITH_OK)
            break;
        out->hash[1 + i] = pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
    }
    pith_seq_free(seq);
}

/* Fails unless both are the same. */
static inline void expect_told(const struct told *a, const int32_t *ids_a, const struct told *b,
                               const int32_t *ids_b, const char *what)
{
    if (a->n_token != b->n_token || a->result.n_generated != b->result.n_generated ||
        a->result.reason != b->result.reason)
        fail_msg("%s: %d tokens, %d generated, reason %d instead of %d, %d, %d", what, b->n_token,
                 b->result.n_generated, b->result.reason, a->n_token, a->result.n_generated,
                 a->result.reason);
    for (int32_t i = 0; i < a->n_token; i++)
        if (ids_a[i] != ids_b[i])
            fail_msg("%s: token %d of %d is %d instead of %d", what, i, a->n_token, ids_b[i],
                     ids_a[i]);
    if (a->len != b->len || memcmp(a->text, b->text, a->len) != 0)
        fail_msg("%s: \"%.*s\" instead of \"%.*s\"", what, (int)b->len, b->text, (int)a->len,
                 a->text);
    for (int i = 0; i <= DRAFT_MORE; i++)
        if (a->hash[i] != b->hash[i])
            fail_msg("%s: the logits %d behind the text have other bits", what, i);
    if (a->used_bytes != b->used_bytes || a->live_bytes != b->live_bytes)
        fail_msg("%s: %lld bytes in use, %lld live, instead of %lld, %lld", what,
                 (long long)b->used_bytes, (long long)b->live_bytes, (long long)a->used_bytes,
                 (long long)a->live_bytes);
    if (a->keep.rounds != b->keep.rounds || a->keep.evicted != b->keep.evicted)
        fail_msg("%s: %lld rounds instead of %lld", what, (long long)b->keep.rounds,
                 (long long)a->keep.rounds);
}

/* Generates both ways in one engine. Adds the drafted and accepted tokens to *n_draft and
   *n_accepted. */
static inline void draft_twice(pith_engine *e, const int32_t *prompt, int32_t n_prompt,
                               const pith_generate_params *params, const pith_draft_params *draft,
                               int32_t stop_at, int64_t *n_draft, int64_t *n_accepted,
                               const char *what)
{
    static struct told plain, drafted;
    int32_t *ids, *ids_drafted;
    pith_generate_params p = *params;
    plain.stop_at = drafted.stop_at = stop_at;
    p.draft = NULL;
    tell_all(e, prompt, n_prompt, &p, &plain, &ids);
    p.draft = draft;
    tell_all(e, prompt, n_prompt, &p, &drafted, &ids_drafted);
    expect_told(&plain, ids, &drafted, ids_drafted, what);
    assert_int_equal(plain.result.n_draft, 0);
    assert_true(drafted.result.n_draft_accepted <= drafted.result.n_draft);
    *n_draft += drafted.result.n_draft;
    *n_accepted += drafted.result.n_draft_accepted;
    free(ids);
    free(ids_drafted);
}

#endif
