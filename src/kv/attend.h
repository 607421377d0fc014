/*
 * attend.h - attention over a lane.
 */
#ifndef PI_KV_ATTEND_H
#define PI_KV_ATTEND_H

#include "base/base.h"
#include "device/device.h"
#include "kv/geometry.h"
#include "kv/note.h"

struct kv_seq;

/* Weights of rows as their pass wrote them. Part j is the slots before end[j] that are in no
   earlier part. There the softmax weight of row r is the stored number times factor[j * n_row + r].
   The last part ends where the lane does. A part is a page. If the lane has more pages than there
   is room for, the rows are finished, in one part, with factors 1. */
struct kv_weight_parts {
    int32_t room;  /* parts that end and factor hold, at least 1; the caller's */
    int32_t n;     /* set by the call, as are the others: 0 for a lane without entries */
    int32_t n_row; /* floats from one part's factors to the next one's */
    int32_t *end;  /* [room] ascending */
    float *factor; /* [room][n_tok * n_group] */
};

/* The logits and the weights of one attention call; NULL: not wanted. Weights have the guarantees
   of the output: their bits depend only on the entries that the query sees and on their slots. They
   leave the output's bits alone. */
struct kv_attend_tap {
    float *logits; /* [n_tok][n_group][row_stride] scaled logits q.k, -INFINITY where not visible */
    float *weight; /* [n_tok][n_group][row_stride] softmax of the logits over the entries that the
                      query sees, else 0. Also 0 from the lane's length to the next multiple of 16
                      (attend.c has the arithmetic) */
    size_t row_stride; /* at least the lane's length; for weights its next multiple of 16 */
    struct kv_weight_parts *parts; /* where weights are wanted in parts, which spares another pass
                                      over them; else NULL */
    float *max;                    /* [n_tok][n_group] -INFINITY for a query that sees nothing */
    float *sum;                    /* [n_tok][n_group] sum of exp(logit - max), 0 likewise:
                                      weight = exp(logit - max) / sum */
};

/* Entries that a device chose (kv_choose_job.there): of the lane's slots the first n_first, then n
   that it lists, then the last n_last before `end`. All queries see those before the last ones. The
   lane's positions ascend, and its pages are full but the last, count once and have no delta. */
struct kv_attend_chosen {
    struct pi_at at; /* int32 [n] slots, counted from n_first on; none: nothing was chosen */
    int32_t n_first, n, n_last, end;
};

/* One attention call: n_tok queries times the n_group query heads that share one KV head. */
struct kv_attend_job {
    const struct kv_seq *seq;
    const struct kv_seq *guests; /* its entries of the same layer and head are read before the
                                    entries of seq, as if they were the lane's first. All are read,
                                    also if slots lists entries of seq. NULL: none. The tap shows
                                    the entries of seq alone, whose weights then sum to less than 1;
                                    the guests are in its max and sum */
    int32_t layer;
    int32_t head; /* KV head */
    int32_t n_tok;
    int32_t n_group;
    int32_t pos0;      /* position of the first query; query t sees entries at <= pos0 + t, and in a
                       layer with a window no more than that before itself */
    const float *q;    /* query (t, g) at q + t * q_stride + g * dim_k; after rope; NULL: */
    struct pi_at q_at; /* they are there on the device */
    size_t q_stride;
    float scale; /* multiplies q.k */
    float cap;   /* the product becomes cap * tanh(product / cap), also in a tap; 0: it does not */
    const float *sink;   /* [n_group] a logit of no entry, in a tap's max and sum, too; or NULL */
    float *out;          /* output (t, g) at out + t * out_stride + g * dim_v; NULL: */
    struct pi_at out_at; /* it goes there on the device; none: only the tap is wanted, and no value
                            is read */
    size_t out_stride;
    const struct pi_rope
        *rope;                 /* rotates queries for pages with a delta; may be NULL without any */
    struct kv_attend_tap *tap; /* may be NULL */
    const struct kv_note *notes; /* [n_note] of the lane's weights, for which a device that keeps
                                    them on the host has the tap's rows */
    int32_t n_note;
    bool notes_only; /* the tap's rows are not looked at: a device may leave them as they are */
    int32_t n_later; /* of notes: the lane's last entries that are of tokens behind the call's; -1:
                        every query may see all entries */
    const int32_t *slots; /* [n_slot] ascending: the entries that are read, of which a query sees
                             those at its position or before; NULL: the whole lane. A tap's rows are
                             then as long as slots, and weights come in no parts */
    int32_t n_slot;
    struct kv_attend_chosen
        chosen; /* its slots are on the device, n_slot of them; there is no tap */
};

/* Bytes of scratch of one thread for calls with at most n_tok * n_group rows. */
size_t kv_attend_scratch_bytes(const struct kv_geometry *g, int32_t n_row);

/* Exact softmax attention over the lane, with one exception. For values of a rotated type, a weight
   below PI_ATTEND_SMALL of the sum of its row so far counts as 0. The bits of a query depend only
   on the entries that it sees and on their slots, not on n_tok. So a prompt gives the same output
   in chunks of any size. */
void kv_attend(const struct kv_attend_job *job, void *scratch);

/* Tokens of queries that one call should take at least to run at full speed, given n_group. */
int32_t kv_attend_tile(const struct kv_geometry *g, int32_t n_group);

/* The calls of a layer, in the best order to begin them. `job` fills call number `turn` of unit i,
   from 0 on, and returns false when there are no more. Calls of a unit come in order and on one
   thread. Different units run at the same time; thread is below the stream's. Their queries and
   outputs are on the device. Notes are made call by call, in order, and are there when the list is
   done. */
struct kv_attend_list {
    void *ctx;
    int64_t n;        /* units */
    int64_t work;     /* multiplications of all, about */
    int32_t n_thread; /* the stream's that may be used; 0: all */
    bool (*job)(void *ctx, int64_t i, int32_t turn, int32_t thread, struct kv_attend_job *out);
    /* After a call: its tap is filled. NULL: nothing. It may come before a call that has no tap, or
       only for notes. */
    void (*done)(void *ctx, int64_t i, int32_t turn, const struct kv_attend_job *job,
                 int32_t thread);
};

#endif
