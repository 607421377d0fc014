/*
 * importance_target.h - how important the entries of a text are for repeating it. It is measured in
 * a pass while a model reads the text and then the text again.
 *
 * KVzip (Kim et al., arXiv 2505.23416) takes the largest weight that a query j of the repeated text
 * gives to entry i in some query head h of its KV head's group; KVzip+, the target of KVzap (arXiv
 * 2601.07891), weighs it by what the entry adds to the residual stream:
 *
 *     s(i)  = log max over j, h of a(h, j, i)
 *     s+(i) = log max over j, h of a(h, j, i) |Wo_h v_i| / |h_j|
 *
 * Wo_h: head h's columns of the output projection; h_j: the layer's input after its norm at query
 * j. With G_h = Wo_h' Wo_h, |Wo_h v|^2 = v' G_h v.
 */
#ifndef PI_KEEP_IMPORTANCE_TARGET_H
#define PI_KEEP_IMPORTANCE_TARGET_H

#include "model/forward.h"

#define IMPORTANCE_LEAST 1e-12 /* an entry that gets no attention counts as this much */

/* G_h of every layer and query head, made once for a model. */
struct importance_gram;

/* On n_thread threads, which changes no bit. NOMEM. */
pith_status importance_gram_create(const struct pith_model *model, int32_t n_thread,
                                   struct importance_gram **out, pith_error *err);
void importance_gram_free(struct importance_gram *gram);

/* |Wo_h v| of a value [dim_v] in query head h. */
double importance_norm(const struct importance_gram *gram, int32_t layer, int32_t head,
                       const float *v);

/* Positions whose entries have targets, and those whose queries count. */
struct importance_span {
    int32_t key_begin, key_end;
    int32_t query_begin, query_end; /* key_end <= query_begin */
};

/* The targets of one sequence. Slot i of its lanes holds position i up to key_end: nothing was
   evicted. */
struct importance_target;

/* gram is borrowed until the target is freed; NULL: s, which needs no rows. NOMEM. */
pith_status importance_target_create(const struct pith_model *model,
                                     const struct importance_gram *gram,
                                     const struct importance_span *span,
                                     struct importance_target **out, pith_error *err);
void importance_target_free(struct importance_target *t);

/* From the pass's tap, for every layer of every pass with tokens of the span: notes |Wo v| of keys'
   values and |h| of queries. On n_thread threads. */
void importance_target_rows(struct importance_target *t, const struct pi_pass_tap_rows *rows,
                            int32_t n_thread);

/* From the pass's watch, whose weights are whole (no parts): different lanes at the same time. */
void importance_target_attended(struct importance_target *t, const struct pi_pass_attention *a);

/* out [key_end - key_begin] of a lane. */
void importance_target_lane(const struct importance_target *t, int32_t layer, int32_t head,
                            float *out);

#endif
