/*
 * type_internal.h - how the storage types are coded.
 */
#ifndef PI_KV_TYPE_INTERNAL_H
#define PI_KV_TYPE_INTERNAL_H

#include "cpu/attend.h"
#include "kv/type.h"

enum {
    KV_CODEC_MAX = 128,  /* most values that one call encodes, and of a group */
    KV_CODE_MAX = 16,    /* codes of a table */
    KV_CODEC_GROUP = 16, /* the shortest group */
};

/* One per storage type. */
struct kv_codec {
    const char *name;
    enum pi_attend_type kernel; /* attention's and scoring's */
    int32_t bits;               /* of a value or code, without the high plane */
    int32_t bits_high;          /* of a code in the high plane */
    int32_t block; /* dimensions that share a scale, of which the head size is a multiple. 0: a
                      group that depends on the head size, at least KV_CODEC_GROUP. 1: no scales */
    bool rotated;  /* groups are rotated before they are coded (wht.h) */
};

extern const struct kv_codec kv_codecs[KV_N_TYPE];

#endif
