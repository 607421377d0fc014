/*
 * victim.h - the entry that a lane's next one overwrites (kv_seq_set_victim), chosen by a device
 * that has the scores of a step. It compares positions, which lie beside entries
 * (kv_cache_note_places).
 */
#ifndef PI_KV_VICTIM_H
#define PI_KV_VICTIM_H

#include "kv/weigh.h"

/* Lanes head .. head + n_head of a layer, which hold the same positions slot by slot: their scores
   become one, heads in ascending order. Of the entries that may go the lowest score goes, of equals
   the lowest position. */
struct kv_victim_job {
    const struct kv_seq *seq;
    int32_t layer;
    int32_t head;
    int32_t n_head;
    bool mean;               /* scores are added, else the largest counts */
    struct pi_at score;      /* f32 [n_head][stride]; none: they are made of marks */
    size_t stride;           /* floats */
    enum kv_weigh_kind kind; /* then: KV_WEIGH_MARK, _MARK_MEAN or _MARK_NORM */
    int32_t lo, hi;          /* positions that may go: lo <= position < hi, */
    int32_t n_sink;          /* but for this number of oldest entries */
    struct pi_at out;        /* int32: receives the slot; -1: none may go */
};

struct kv_victim_list {
    const struct kv_victim_job *jobs;
    int32_t n;
};

#endif
