/*
 * prefix.h - exact reuse of prefixes: full pages of sequences that nothing has altered, found again
 * by all tokens before them. A node is a block (kv_block) of page_len tokens in all lanes, under
 * its parent's chained hash. Tokens are compared on a hit, so that a collision of hashes finds
 * nothing. Where lanes have windows a text goes on only behind a node whose block, and some before
 * it, has what they see there (kv/block.h). Nodes that no sequence uses stay until their memory is
 * needed: the longest unused first, and of a chain its end before its beginning.
 *
 * Owner: the thread that runs the scheduler.
 */
#ifndef PI_PREFIX_H
#define PI_PREFIX_H

#include "kv/kv.h"
#include "pith/scheduler.h"

struct prefix_cache;

/* salt: whatever else the entries depend on (the model's fingerprint, storage types, policies and
   their options), as text; borrowed during the call. NOMEM. */
pith_status prefix_create(struct kv_cache *kv, const char *salt, struct prefix_cache **out,
                          pith_error *err);
void prefix_free(struct prefix_cache *cache); /* NULL is ignored */

/* From now on fn is told what is stored and removed, but for texts of users' salts, and not that
   the cache is freed. NULL: none is told. */
void prefix_watch(struct prefix_cache *cache, pith_prefix_fn *fn, void *user);

/* Texts of different users' salts have nothing in common; 0: of users without one. */

/* How many of the first tokens of tokens [n] are there: a multiple of the page length, at most n
   - 1. So something is left to evaluate. *n_unused: of them those whose pages are not in use
   yet. Touches nothing. */
int32_t prefix_find(const struct prefix_cache *cache, uint64_t salt, const int32_t *tokens,
                    int32_t n, int32_t *n_unused);

/* The same, and appends their blocks to an empty sequence; *n_found receives the tokens. They are
   used now. NOMEM leaves the sequence empty. */
pith_status prefix_append(struct prefix_cache *cache, uint64_t salt, const int32_t *tokens,
                          int32_t n, struct kv_seq *kv, int32_t *n_found, pith_error *err);

/* Puts the full pages of the sequence's first n tokens into the cache where they are not yet, which
   takes no pages. Every lane holds entries 0 .. n - 1 in order, in full pages but for the last.
   Failing to remember is no error: returns the tokens that are there now. */
int32_t prefix_publish(struct prefix_cache *cache, uint64_t salt, const int32_t *tokens, int32_t n,
                       const struct kv_seq *kv);

/* Frees blocks that no sequence uses, and their pages of windows before the rest, until `bytes`
   of pages came free, or none is left. Returns the bytes. */
int64_t prefix_reclaim(struct prefix_cache *cache, int64_t bytes);
/* Frees what is left: states behind blocks that are used, and blocks that no sequence uses but for
   what lies behind them, which is forgotten. Returns the bytes. */
int64_t prefix_reclaim_rest(struct prefix_cache *cache);
/* Forgets all blocks, those that sequences use too, whose pages are then the sequences' alone;
   returns how many there were. */
int64_t prefix_clear(struct prefix_cache *cache);
/* Bytes that prefix_reclaim could free, and those beside them that prefix_reclaim_rest could. */
int64_t prefix_unused_bytes(const struct prefix_cache *cache);
int64_t prefix_rest_bytes(const struct prefix_cache *cache);
int64_t prefix_count(const struct prefix_cache *cache);   /* blocks */
int64_t prefix_dropped(const struct prefix_cache *cache); /* by prefix_reclaim, so far */

/* The chained hash: FNV-1a of 64 bits over the parent's hash and the tokens, little endian
   (vectors of hash_chain). The first parent is prefix_root(salt). With a user's salt it is the
   hash of that and the salt's eight bytes. */
uint64_t prefix_hash(uint64_t parent, const int32_t *tokens, int32_t n);
uint64_t prefix_root(const char *salt);

#endif
