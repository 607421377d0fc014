/*
 * note.h - the notes that attention makes beside the entries of a lane: the vocabulary of policies
 * that watch weights. A device makes them where the weights are; a policy that needs more gets rows
 * on the host.
 */
#ifndef PI_KV_NOTE_H
#define PI_KV_NOTE_H

#include <stdatomic.h>

#include "device/device.h"

/* How the weights that a group of query heads gave to an entry become one. */
enum kv_group {
    KV_GROUP_MEAN,
    KV_GROUP_MAX,
    KV_GROUP_SUM,
    KV_GROUP_EACH, /* they do not: every query head has a row */
};

/* w: the weight that a token's queries gave to entry i, for the entries that the token sees. */
enum kv_note_word {
    KV_NOTE_SUM,  /* to[i] += w */
    KV_NOTE_SEEN, /* to[i] += 1 */
    KV_NOTE_MOST, /* to[i] = the largest w so far, times the token's scale */
    KV_NOTE_LAST, /* to[i] = w of the last token, the mean as a quotient */
    KV_NOTE_TIME, /* to[i] = the token's position + 1 where w >= threshold */
    KV_NOTE_GAPS, /* where w >= threshold to[i] = the token's position + 2. At the first token that
                     sees the entry it begins one lower. Row 1 has the longest time between uses */
    KV_NOTE_LOW,  /* bit (position mod window) of to's rows, 32 bits in each: whether w < 1 / n, n
                     the entries that the token sees */
    KV_NOTE_NORM, /* to[i] = w times the norm of the entry's value: LongFlow's contribution */
    /* Of devices that weigh (kv/weigh.h) alone, to[i] += w, w a softmax over the first n
       entries: */
    KV_NOTE_BEFORE,   /* of each query head, with EACH */
    KV_NOTE_TOGETHER, /* of the largest logit of a group */
};

/* One word of one lane. Arrays are the host's, and valid until the call returns. Where `to` or norm
   are the places of the lane's marks or norms, and its device has these, they are meant. */
struct kv_note {
    enum kv_note_word word;
    enum kv_group group; /* EACH goes with SUM, MOST and BEFORE, MEAN alone with NORM */
    int32_t from;        /* tokens at lower positions are left out */
    int32_t n;           /* no more than the first n entries are noted; 0: all */
    float *to;           /* [rows][stride] */
    struct pi_at there;  /* none, or in the place of `to` memory of the device, likewise */
    size_t stride;
    float threshold;
    int32_t window;     /* of LOW */
    const float *scale; /* of MOST: [tokens] from position pos0 on; NULL: 1 */
    int32_t pos0;
    /* Of NORM: */
    const uint16_t *norm; /* [entries] bf16 */
    float *log_scale; /* not NULL: exp(logit) counts instead of the weight. The result is `to` times
                         exp(*log_scale), which is written */
    int32_t newest;   /* this entry gets INFINITY; -1: none does */
    /* Lanes of a layer that may be added up. Where `first` has the sum of the lanes before number,
       this lane's is added there instead of to `to`. A device may leave all in `to`. */
    float *first;
    _Atomic int32_t *n_sum; /* lanes that are in first; NULL: each stands alone */
    int32_t number;
};

/* Most words of a lane. */
#define KV_NOTE_ROOM 3

/* Entries that kv_group_weights takes at once: a part of the stack that stays in the first
   cache. */
#define KV_GROUP_BLOCK 128

/* out[i], [n], n <= KV_GROUP_BLOCK: the weights that n_group rows [stride] gave to an entry as one.
   Heads are added in ascending order; the mean is the sum times 1 / n_group. */
void kv_group_weights(const float *weight, size_t stride, int32_t n_group, enum kv_group how,
                      int32_t n, float *out);

#endif
