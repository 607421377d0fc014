/* reading.h - what the files of read/ share beside read.h; policies do not need it. */
#ifndef PI_READING_H
#define PI_READING_H

#include "policy/read/read.h"

/* ---- rules.c ---- */

/* Whether the rules go together; INVALID: a budget of bytes, one that is smaller than what is
   always read. */
pith_status read_rules_check(const struct read_rules *rules, pith_error *err);
/* As the functions of read.h without _of. */
int32_t read_tokens_of(const struct read_rules *rules, int32_t n_token);
int32_t read_take_of(const struct read_rules *rules, int32_t most, int32_t left, int32_t left_read,
                     int32_t until);
/* Most tokens of a chunk. */
int32_t read_chunk_of(const struct read_rules *rules);
/* Entries up to which any lane is read whole, whatever follows. */
int32_t read_whole_up_to(const struct read_rules *rules);

/* ---- choose.c ---- */

/* Of the lists best[h], [n_best[h]], takes first all firsts in the order of h, then all seconds,
   and so on. It stops at n_most different positions (>= 0), in that order in out. Returns how many
   there are. set [read_union_size(n_most)] is scratch. */
int32_t read_unite(const int32_t *const *best, const int32_t *n_best, int32_t n_head,
                   int32_t n_most, int32_t *out, int32_t *set);
size_t read_union_size(int32_t n_most);

#endif
