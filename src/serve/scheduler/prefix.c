/*
 * prefix.c - the cache of prefixes: a tree of blocks, kept as a hash table. It knows tokens and
 * blocks; which answers run, and when memory is short, is the scheduler's.
 *
 * Invariants: a node's parent is in the cache as long as the node is. In the list of nodes from the
 * longest unused to the last used a node stands before its parent. Using a node uses the nodes
 * before it in the text. So one walk from the list's head meets the end of each chain before its
 * beginning. A find depends on tokens alone: two nodes of one hash differ in parent or tokens, and
 * the order within a bucket decides nothing.
 */
#include "serve/scheduler/prefix.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "kv/block.h"

#define FIRST_BUCKETS 64 /* a power of two; doubled when there are as many nodes */

struct node {
    uint64_t hash;
    uint64_t salt;                /* of the user */
    struct node *parent;          /* NULL: the text begins here */
    struct node *next;            /* of its bucket */
    struct node *older, *younger; /* of the cache's list */
    struct kv_block *block;       /* owned */
    int64_t n_child;
    int64_t n_kept;  /* scratch of a walk: children that stay; zero between walks */
    int32_t token[]; /* [page_len] */
};

struct prefix_cache {
    struct kv_cache *kv; /* borrowed */
    int32_t page_len;
    int32_t n_reach;              /* last nodes of a text that must have what windows see */
    uint64_t root;                /* of all texts without a salt */
    struct node **bucket;         /* [n_bucket], by the lower bits of the hash; owned */
    size_t n_bucket;              /* a power of two */
    struct node *oldest, *newest; /* the ends of the list */
    int64_t n_node;
    int64_t n_dropped;
    pith_prefix_fn *told; /* NULL: changes are not told */
    void *told_user;
};

/* ---- the hash ---- */

uint64_t prefix_hash(uint64_t parent, const int32_t *tokens, int32_t n)
{
    uint64_t hash = pi_hash_number(PI_HASH_EMPTY, parent, 8);
    for (int32_t i = 0; i < n; i++)
        hash = pi_hash_number(hash, (uint32_t)tokens[i], 4);
    return hash;
}

uint64_t prefix_root(const char *salt)
{
    return pi_hash_bytes(PI_HASH_EMPTY, salt, strlen(salt));
}

/* The hash that the first page of a text is chained to. */
static uint64_t first_parent(const struct prefix_cache *cache, uint64_t salt)
{
    return salt == 0 ? cache->root : pi_hash_number(cache->root, salt, 8);
}

/* ---- nodes by their pages ---- */

static struct node **bucket_of(const struct prefix_cache *cache, uint64_t hash)
{
    return &cache->bucket[hash & (cache->n_bucket - 1)];
}

/* The node that follows parent (NULL: begins a text of the salt) with the tokens of a page. *hash
   receives its hash, whether or not there is one. */
static struct node *child_of(const struct prefix_cache *cache, uint64_t salt,
                             const struct node *parent, const int32_t *tokens, uint64_t *hash)
{
    size_t size = (size_t)cache->page_len * sizeof(*tokens);
    uint64_t before = parent != NULL ? parent->hash : first_parent(cache, salt);
    *hash = prefix_hash(before, tokens, cache->page_len);
    struct node *node = *bucket_of(cache, *hash);
    while (node != NULL && (node->hash != *hash || node->salt != salt || node->parent != parent ||
                            memcmp(node->token, tokens, size) != 0))
        node = node->next;
    return node;
}

/* ---- the list ---- */

static void list_remove(struct prefix_cache *cache, struct node *node)
{
    *(node->older != NULL ? &node->older->younger : &cache->oldest) = node->younger;
    *(node->younger != NULL ? &node->younger->older : &cache->newest) = node->older;
}

static void list_add(struct prefix_cache *cache, struct node *node)
{
    node->older = cache->newest;
    node->younger = NULL;
    *(cache->newest != NULL ? &cache->newest->younger : &cache->oldest) = node;
    cache->newest = node;
}

/* Says that a chain is used now: its end first, so that each node comes before its parent. */
static void use(struct prefix_cache *cache, struct node *last)
{
    for (struct node *node = last; node != NULL; node = node->parent) {
        list_remove(cache, node);
        list_add(cache, node);
    }
}

/* ---- telling ---- */

void prefix_watch(struct prefix_cache *cache, pith_prefix_fn *fn, void *user)
{
    cache->told = fn;
    cache->told_user = user;
}

/* Texts under a user's salt are hidden. */
static void tell(const struct prefix_cache *cache, pith_prefix_change change,
                 const struct node *node)
{
    pith_prefix_event event = {.change = change, .page_len = cache->page_len};
    if (cache->told == NULL || (node != NULL && node->salt != 0))
        return;
    if (node != NULL)
        event.hash = node->hash;
    if (change == PITH_PREFIX_STORED) {
        event.first = node->parent == NULL;
        event.parent = node->parent != NULL ? node->parent->hash : 0;
        event.tokens = node->token;
    }
    cache->told(cache->told_user, &event);
}

/* ---- adding and removing ---- */

/* Twice as many buckets. Where there is no memory, buckets become longer, and nothing else. */
static void grow(struct prefix_cache *cache)
{
    size_t n = 2 * cache->n_bucket;
    struct node **bucket = pi_mem_alloc_n(PI_MEM_OTHER, n, sizeof(struct node *));
    if (bucket == NULL)
        return;
    pi_mem_free(cache->bucket);
    cache->bucket = bucket;
    cache->n_bucket = n;
    for (struct node *node = cache->oldest; node != NULL; node = node->younger) {
        struct node **head = bucket_of(cache, node->hash);
        node->next = *head;
        *head = node;
    }
}

/* The page of run `index` of a sequence as a node behind parent; NULL: no memory, or no page that
   can be kept. */
static struct node *add(struct prefix_cache *cache, uint64_t salt, struct node *parent,
                        uint64_t hash, const int32_t *tokens, const struct kv_seq *kv,
                        int32_t index)
{
    size_t size = (size_t)cache->page_len * sizeof(*tokens);
    struct node *node = pi_mem_alloc(PI_MEM_OTHER, sizeof(*node) + size);
    if (node == NULL || kv_block_hold(kv, index, &node->block, NULL) != PITH_OK) {
        pi_mem_free(node);
        return NULL;
    }
    node->hash = hash;
    node->salt = salt;
    node->parent = parent;
    memcpy(node->token, tokens, size);
    if (parent != NULL)
        parent->n_child++;
    if ((size_t)cache->n_node == cache->n_bucket)
        grow(cache);
    struct node **head = bucket_of(cache, hash);
    node->next = *head;
    *head = node;
    list_add(cache, node);
    cache->n_node++;
    tell(cache, PITH_PREFIX_STORED, node);
    return node;
}

static void drop(struct prefix_cache *cache, struct node *node)
{
    struct node **at = bucket_of(cache, node->hash);
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    list_remove(cache, node);
    if (node->parent != NULL)
        node->parent->n_child--;
    kv_block_drop(cache->kv, node->block);
    pi_mem_free(node);
    cache->n_node--;
}

pith_status prefix_create(struct kv_cache *kv, const char *salt, struct prefix_cache **out,
                          pith_error *err)
{
    struct prefix_cache *cache = pi_mem_alloc(PI_MEM_OTHER, sizeof(*cache));
    if (cache != NULL)
        cache->bucket = pi_mem_alloc_n(PI_MEM_OTHER, FIRST_BUCKETS, sizeof(struct node *));
    if (cache == NULL || cache->bucket == NULL) {
        pi_mem_free(cache);
        return pi_fail(err, PITH_NOMEM, "no memory for a cache of prefixes");
    }
    cache->kv = kv;
    cache->page_len = kv_cache_geometry(kv)->page_len;
    cache->n_reach = kv_block_reach(kv_cache_geometry(kv));
    cache->root = prefix_root(salt);
    cache->n_bucket = FIRST_BUCKETS;
    *out = cache;
    return PITH_OK;
}

void prefix_free(struct prefix_cache *cache)
{
    if (cache == NULL)
        return;
    while (cache->oldest != NULL)
        drop(cache, cache->oldest);
    pi_mem_free(cache->bucket);
    pi_mem_free(cache);
}

/* ---- reuse ---- */

/* Tokens that may be found of n: something is left to evaluate. */
static int32_t most_found(int32_t n)
{
    return n > 0 ? n - 1 : 0;
}

/* The last of the nodes for the first tokens, *n_token, behind which a text can go on. Its last
   pages have the entries that windows see, and it has a state, where there are states. NULL:
   there is none. *n_known receives how many tokens are held. */
static struct node *last_of(const struct prefix_cache *cache, uint64_t salt, const int32_t *tokens,
                            int32_t n, int32_t *n_token, int32_t *n_known)
{
    struct node *node = NULL, *last = NULL;
    int32_t len = cache->page_len, at = 0, n_seen = 0;
    uint64_t hash;
    *n_token = *n_known = 0;
    while (most_found(n) - at >= len) {
        node = child_of(cache, salt, node, tokens + at, &hash);
        if (node == NULL)
            break;
        *n_known = at += len;
        n_seen = kv_block_has_windows(cache->kv, node->block) ? n_seen + 1 : 0;
        if (n_seen < pi_min(at / len, cache->n_reach) || !kv_block_ends(cache->kv, node->block))
            continue;
        last = node;
        *n_token = at;
    }
    return last;
}

int32_t prefix_find(const struct prefix_cache *cache, uint64_t salt, const int32_t *tokens,
                    int32_t n, int32_t *n_unused)
{
    int32_t n_token, n_known;
    *n_unused = 0;
    for (const struct node *node = last_of(cache, salt, tokens, n, &n_token, &n_known);
         node != NULL; node = node->parent)
        *n_unused += kv_block_is_alone(cache->kv, node->block) ? cache->page_len : 0;
    return n_token;
}

pith_status prefix_append(struct prefix_cache *cache, uint64_t salt, const int32_t *tokens,
                          int32_t n, struct kv_seq *kv, int32_t *n_found, pith_error *err)
{
    int32_t n_known;
    struct node *last = last_of(cache, salt, tokens, n, n_found, &n_known);
    int32_t n_block = *n_found / cache->page_len, i = n_block;
    if (n_known > *n_found) /* texts part there; the next one can begin with the state */
        kv_seq_want_state(kv, n_known);
    if (n_block == 0)
        return PITH_OK;
    struct kv_block **block = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_block, sizeof(*block));
    if (block == NULL) {
        *n_found = 0;
        return pi_fail(err, PITH_NOMEM, "no memory for the %d pages of a prefix", n_block);
    }
    for (const struct node *node = last; node != NULL; node = node->parent)
        block[--i] = node->block;
    pith_status status = kv_seq_append_blocks(kv, block, n_block, err);
    pi_mem_free(block);
    if (status == PITH_OK)
        use(cache, last);
    else
        *n_found = 0;
    return status;
}

/* From the last node on back, as far as windows see. */
static void hold_windows(struct prefix_cache *cache, struct node *last, int32_t n_token,
                         const struct kv_seq *kv)
{
    int32_t index = n_token / cache->page_len - 1;
    for (int32_t i = 0; i < cache->n_reach && last != NULL; i++, last = last->parent)
        if (!kv_block_hold_windows(kv, index - i, last->block))
            return;
}

int32_t prefix_publish(struct prefix_cache *cache, uint64_t salt, const int32_t *tokens, int32_t n,
                       const struct kv_seq *kv)
{
    struct node *node = NULL;
    int32_t len = cache->page_len, n_token = 0;
    uint64_t hash;
    while (n - n_token >= len) {
        struct node *next = child_of(cache, salt, node, tokens + n_token, &hash);
        if (next == NULL)
            next = add(cache, salt, node, hash, tokens + n_token, kv, n_token / len);
        if (next == NULL)
            break;
        node = next;
        n_token += len;
        kv_block_hold_state(kv, n_token, node->block);
    }
    hold_windows(cache, node, n_token, kv);
    use(cache, node);
    return n_token;
}

/* ---- memory ---- */

int64_t prefix_reclaim(struct prefix_cache *cache, int64_t bytes)
{
    int64_t freed = 0;
    int64_t window = kv_block_window_bytes(cache->kv);
    struct node *younger;
    for (struct node *node = cache->oldest; node != NULL && freed < bytes; node = younger) {
        younger = node->younger;
        if (kv_block_windows_are_alone(cache->kv, node->block)) {
            kv_block_drop_windows(cache->kv, node->block);
            freed += window;
        }
        if (node->n_child > 0 || !kv_block_is_alone(cache->kv, node->block) || freed >= bytes)
            continue;
        freed += kv_block_held_bytes(cache->kv, node->block);
        tell(cache, PITH_PREFIX_REMOVED, node);
        drop(cache, node);
        cache->n_dropped++;
    }
    return freed;
}

/* Whether a page that no sequence uses is held for what lies behind it: for this node. */
static bool is_behind_unused(const struct prefix_cache *cache, const struct node *node)
{
    while (node != NULL && !kv_block_is_alone(cache->kv, node->block))
        node = node->parent;
    return node != NULL;
}

/* Children come first. A state that is a sequence's own, too, is written to without a copy then. */
int64_t prefix_reclaim_rest(struct prefix_cache *cache)
{
    int64_t freed = 0, state = kv_bytes_of_state(kv_cache_geometry(cache->kv));
    struct node *younger;
    for (struct node *node = cache->oldest; node != NULL; node = younger) {
        younger = node->younger;
        freed += kv_block_drop_state(cache->kv, node->block) ? state : 0;
        if (node->n_child > 0 || !is_behind_unused(cache, node))
            continue;
        bool alone = kv_block_is_alone(cache->kv, node->block);
        freed += alone ? kv_block_held_bytes(cache->kv, node->block) : 0;
        tell(cache, PITH_PREFIX_REMOVED, node);
        drop(cache, node);
        cache->n_dropped++;
    }
    return freed;
}

int64_t prefix_clear(struct prefix_cache *cache)
{
    int64_t n = cache->n_node;
    while (cache->oldest != NULL)
        drop(cache, cache->oldest);
    cache->n_dropped += n;
    if (n > 0)
        tell(cache, PITH_PREFIX_CLEARED, NULL);
    return n;
}

/* A node stays where a sequence uses it, or a node behind it stays. Children come first. */
int64_t prefix_unused_bytes(const struct prefix_cache *cache)
{
    int64_t bytes = 0, n_window = 0;
    for (struct node *node = cache->oldest; node != NULL; node = node->younger) {
        bool stays = node->n_kept > 0 || !kv_block_is_alone(cache->kv, node->block);
        node->n_kept = 0;
        bytes += stays ? 0 : kv_block_held_bytes(cache->kv, node->block);
        n_window += kv_block_windows_are_alone(cache->kv, node->block);
        if (stays && node->parent != NULL)
            node->parent->n_kept++;
    }
    return bytes + n_window * kv_block_window_bytes(cache->kv);
}

/* The same nodes, where they stay. */
int64_t prefix_rest_bytes(const struct prefix_cache *cache)
{
    int64_t bytes = 0, state = kv_bytes_of_state(kv_cache_geometry(cache->kv));
    for (struct node *node = cache->oldest; node != NULL; node = node->younger) {
        bool alone = kv_block_is_alone(cache->kv, node->block);
        bool stays = node->n_kept > 0 || !alone;
        if (alone && node->n_kept > 0)
            bytes += kv_block_held_bytes(cache->kv, node->block);
        else if (!alone && state > 0 && kv_block_state_is_spare(cache->kv, node->block))
            bytes += state;
        node->n_kept = 0;
        if (stays && node->parent != NULL)
            node->parent->n_kept++;
    }
    return bytes;
}

int64_t prefix_count(const struct prefix_cache *cache)
{
    return cache->n_node;
}

int64_t prefix_dropped(const struct prefix_cache *cache)
{
    return cache->n_dropped;
}
