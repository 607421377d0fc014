/*
 * choose.h - choices among scores that the host has: of each lane's the best, or of all lanes'
 * together. A device's `choose` and `choose_all` do it; these are the same on the calling thread.
 */
#ifndef PI_KV_CHOOSE_H
#define PI_KV_CHOOSE_H

#include "device/device.h"

/* Of n scores the k highest, or with `lowest` the k lowest; of equal scores the lower slots. None
   is NaN. With n_part > 0 the positions lo .. hi are cut into that many parts of equal length. Of a
   part with m of the scores k m / n, rounded down, are chosen first, and then of all the rest. */
struct kv_choose_job {
    const float *score; /* [n] */
    struct pi_at at;    /* not none: a device has them there (kv/weigh.h), not the host */
    int32_t n;
    int32_t k; /* 0 .. n */
    bool lowest;
    int32_t n_part;
    const int32_t *pos; /* [n] ascending, within lo .. hi; of parts */
    int32_t lo, hi;
    int32_t *slots; /* [k] receives the chosen slots, ascending */
    struct pi_at
        there; /* not none, and then `at` is not, either: they stay on the device, int32 [k]
                           here, and slots is not written */
};

/* Jobs of a call. */
struct kv_choose_list {
    const struct kv_choose_job *jobs; /* [n] */
    int32_t n;
    int64_t work;        /* of all, about; as that of device.h's rows */
    uint8_t *scratch;    /* of the host, [threads of the stream][scratch_size] */
    size_t scratch_size; /* kv_choose_scratch_bytes of the most scores of a job */
};

/* The scores of a lane that compete with other lanes', and their entries' positions. */
struct kv_choose_lane {
    const float *score; /* [n] */
    struct pi_at at;    /* as in kv_choose_job; of all lanes or of none */
    const int32_t *pos; /* [n] */
    int32_t n;
    int32_t n_top; /* gets how many of the k highest are its own */
    int32_t n_equal;
};

/* Of the scores of all lanes together the k highest. Of equal scores at the border each lane has
   its share; by_age: those at higher positions, then of higher lanes, are taken. */
struct kv_choose_all {
    struct kv_choose_lane *lanes; /* [n_lane] */
    int32_t n_lane;
    int64_t k; /* 0 .. the number of scores */
    bool by_age;
};

size_t kv_choose_scratch_bytes(int32_t n);
void kv_choose(const struct kv_choose_job *job, void *scratch);
void kv_choose_all(const struct kv_choose_all *job);
/* The last step of it. n_top and n_equal count each lane's scores above the border and at it. Of
   the n_equal at it n_tie are taken, and each lane gets its share. */
void kv_choose_share(const struct kv_choose_all *job, int64_t n_tie, int64_t n_equal);

#endif
