/*
 * keep_fill.h - fills a sequence to a depth without passes. It appends random keys and values to
 * every lane and runs every keep round that is due on the way, as the engine does. The cost of a
 * round or a token at a depth depends on the number of entries, not on their contents. So a cache
 * that takes minutes to evaluate can be measured after seconds.
 */
#ifndef BENCH_KEEP_FILL_H
#define BENCH_KEEP_FILL_H

#include "engine/engine.h"

#define FILL_NOISE (1 << 20) /* random numbers of a fill */

/* Totals of the keep rounds on the way. Bytes count the stored keys that were scored. They count
   the keys, values and positions that changed their slot twice: once read, once written. */
struct fill_rounds {
    int64_t n;
    double seconds;
    double scored_bytes;
    double moved_bytes;
};

struct fill {
    struct pi_device *device; /* that has the lanes */
    float *noise;             /* [FILL_NOISE] random numbers in [-1, 1), owned */
    struct pi_at room;        /* of the device, owned; none where it reads the host's */
    struct pi_at at;          /* the same numbers, for the device */
    int32_t *pos;             /* [2][cap] positions of a lane before and after a round, owned */
    int32_t cap;
};

/* A fill for sequences of at most most_tokens, on engines of one device. NOMEM. */
pith_status fill_open(struct fill *f, struct pi_device *device, int32_t most_tokens,
                      pith_error *err);
void fill_close(struct fill *f);

/* Appends to the sequence until it has n_token tokens, and adds the rounds of that to *rounds. The
   policy must not want to see what passes compute, and must keep the same positions in every lane
   (granularity=all): INVALID otherwise, and beyond most_tokens. KV_FULL, NOMEM. */
pith_status fill_to(struct fill *f, struct pith_seq *seq, int32_t n_token,
                    struct fill_rounds *rounds, pith_error *err);

/* Appends n tokens to the sequence under any policy, if no round becomes due on the way. The
   policy's records of these tokens (marks, queries) are as for tokens that no query attended to.
   INVALID where a round would be due; KV_FULL, NOMEM. */
pith_status fill_without_rounds(struct fill *f, struct pith_seq *seq, int32_t n, pith_error *err);

/* Bytes that one entry takes in all lanes: as stored, positions included; and of its keys alone. */
double fill_entry_bytes(const struct kv_geometry *g);
double fill_key_bytes(const struct kv_geometry *g);

#endif
