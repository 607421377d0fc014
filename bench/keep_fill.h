/*
 * keep_fill.h - sequences at a depth without the passes that lead there: random keys and values are
 * appended to every lane, and every keep round that is due on the way runs as in the engine. What a
 * round or a token costs at a depth depends on how many entries there are, not on what they hold,
 * so that a cache which takes minutes to evaluate can be measured after seconds.
 */
#ifndef BENCH_KEEP_FILL_H
#define BENCH_KEEP_FILL_H

#include "engine/engine.h"

#define FILL_NOISE (1 << 20) /* random numbers of a fill */

/* What the keep rounds on the way did. Bytes are those of the stored keys that were scored, and of
   the keys, values and positions that changed their slot, counted once read and once written. */
struct fill_rounds {
    int64_t n;
    double seconds;
    double scored_bytes;
    double moved_bytes;
};

struct fill {
    float *noise; /* [FILL_NOISE] random numbers in [-1, 1), owned */
    int32_t *pos; /* [2][cap] positions of a lane before and after a round, owned */
    int32_t cap;
};

/* A fill for sequences of at most most_tokens. NOMEM. */
pith_status fill_open(struct fill *f, int32_t most_tokens, pith_error *err);
void fill_close(struct fill *f);

/* Appends to the sequence until it has n_token tokens, and adds the rounds of that to *rounds. The
   policy must not want to see what passes compute, and must keep the same positions in every lane
   (granularity=all): INVALID otherwise, and beyond most_tokens. KV_FULL, NOMEM. */
pith_status fill_to(struct fill *f, struct pith_seq *seq, int32_t n_token,
                    struct fill_rounds *rounds, pith_error *err);

/* Appends n tokens to the sequence, whatever its policy: none must come to be due for a round on
   the way. What a policy remembers of tokens (marks, queries) is that of tokens nobody looked at.
   INVALID where a round would be due; KV_FULL, NOMEM. */
pith_status fill_without_rounds(struct fill *f, struct pith_seq *seq, int32_t n, pith_error *err);

/* Bytes that one entry takes in all lanes: as stored, positions included; and of its keys alone. */
double fill_entry_bytes(const struct kv_geometry *g);
double fill_key_bytes(const struct kv_geometry *g);

#endif
