/*
 * vocab_tree.c - sorts a vocabulary's tokens by their bytes and makes a tree of them. It knows no
 * grammar: which characters are plain is a matter of their bytes.
 *
 * Invariant: a tree is immutable once another thread can see it. Two threads that want the first
 * one at the same time both make it, and one of them throws its own away.
 */
#include "text/vocab/vocab_tree.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/vocab/vocab_internal.h"

struct entry {
    const char *bytes;
    uint32_t len;
    int32_t id;
    int32_t part;
};

/* The plain characters that a token begins with; *n_byte receives their bytes. */
static int32_t plain_prefix(const char *bytes, size_t len, size_t *n_byte)
{
    int32_t n_char = 0;
    size_t i = 0;
    while (i < len) {
        uint8_t c = (uint8_t)bytes[i];
        struct pi_utf8_char next = pi_utf8_next(bytes + i, len - i);
        if (!next.valid || c < 0x20 || c == 0x7f || c == '"' || c == '\\')
            break;
        i += next.len;
        n_char++;
    }
    *n_byte = i;
    return n_char;
}

static int order(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    if (a->part != b->part)
        return a->part < b->part ? -1 : 1;
    int c = memcmp(a->bytes, b->bytes, a->len < b->len ? a->len : b->len);
    if (c != 0)
        return c;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Adds one token's entries, at most two, and returns how many. */
static size_t add_token(struct vocab_tree *t, int32_t id, const char *bytes, uint32_t len,
                        struct entry *out)
{
    size_t n_byte;
    int32_t n_char = plain_prefix(bytes, len, &n_byte);
    out[0] = (struct entry){bytes, len, id, VOCAB_TREE_LONG};
    if (n_char > VOCAB_TREE_PLAIN_MAX)
        return 1;
    out[0].part = n_byte == len ? VOCAB_TREE_PLAIN : VOCAB_TREE_MIXED;
    if (n_byte == len) {
        for (int32_t n = n_char; n <= VOCAB_TREE_PLAIN_MAX; n++)
            t->plain[n * t->n_word + id / 64] |= UINT64_C(1) << (id % 64);
        return 1;
    }
    out[1] = (struct entry){bytes + n_byte, len - (uint32_t)n_byte, id, VOCAB_TREE_BEHIND + n_char};
    return 2;
}

static size_t list_entries(const struct pi_vocab *v, struct vocab_tree *t, struct entry *entries)
{
    size_t n = 0;
    for (int32_t id = 0; id < v->n_id; id++) {
        const struct pi_token *token = &v->token[id];
        if (token->piece_len > 0 &&
            (v->attr[id] & (PI_TOKEN_CONTROL | PI_TOKEN_UNKNOWN | PI_TOKEN_END)) == 0)
            n += add_token(t, id, v->text + token->piece, token->piece_len, entries + n);
    }
    qsort(entries, n, sizeof(*entries), order);
    return n;
}

/* Bytes that an entry has in common with the one in front of it. */
static uint32_t common(const struct entry *e, size_t i)
{
    uint32_t n = 0;
    if (i == 0 || e[i].part != e[i - 1].part)
        return 0;
    while (n < e[i].len && n < e[i - 1].len && e[i].bytes[n] == e[i - 1].bytes[n])
        n++;
    return n;
}

static bool allocate(struct vocab_tree *t, size_t n_node, size_t n_entry)
{
    t->byte = pi_mem_alloc_n(PI_MEM_MODEL, n_node, sizeof(*t->byte));
    t->end = pi_mem_alloc_n(PI_MEM_MODEL, n_node, sizeof(*t->end));
    t->first = pi_mem_alloc_n(PI_MEM_MODEL, n_node + 1, sizeof(*t->first));
    t->token = pi_mem_alloc_n(PI_MEM_MODEL, n_entry, sizeof(*t->token));
    return t->byte != NULL && t->end != NULL && t->first != NULL && t->token != NULL;
}

/* Nodes of one entry behind what it shares; open [max_depth] are those that go on. */
static void add_entry(struct vocab_tree *t, const struct entry *e, uint32_t shared, uint32_t *open,
                      uint32_t *depth, uint32_t *n_node)
{
    while (*depth > shared)
        t->end[open[--*depth]] = *n_node;
    while (*depth < e->len) {
        open[*depth] = *n_node;
        t->byte[*n_node] = (uint8_t)e->bytes[(*depth)++];
        t->first[(*n_node)++] = UINT32_MAX; /* unknown yet */
    }
}

static void fill(struct vocab_tree *t, const struct entry *e, size_t n, uint32_t *open)
{
    uint32_t depth = 0, n_node = 0;
    for (size_t i = 0; i < n; i++) {
        struct vocab_tree_part *part = &t->part[e[i].part];
        uint32_t shared = common(e, i);
        bool same = i > 0 && shared == e[i].len && e[i - 1].len == shared;
        if (i == 0 || e[i].part != e[i - 1].part) {
            add_entry(t, &e[i], 0, open, &depth, &n_node);
            part->begin = n_node - e[i].len;
        } else {
            add_entry(t, &e[i], shared, open, &depth, &n_node);
        }
        part->end = n_node;
        if (!same)
            t->first[open[depth - 1]] = (uint32_t)i;
        t->token[i] = e[i].id;
    }
    while (depth > 0)
        t->end[open[--depth]] = n_node;
    t->first[n_node] = (uint32_t)n;
    /* Tokens stand in the order of their nodes: a node without any begins where the next does. */
    for (uint32_t i = n_node; i-- > 0;)
        if (t->first[i] == UINT32_MAX)
            t->first[i] = t->first[i + 1];
}

static pith_status build(const struct pi_vocab *v, struct entry *entries, struct vocab_tree *t)
{
    size_t n = list_entries(v, t, entries), n_node = 0;
    for (size_t i = 0; i < n; i++) {
        n_node += entries[i].len - common(entries, i);
        if (entries[i].len > t->max_depth)
            t->max_depth = entries[i].len;
    }
    if (n_node >= UINT32_MAX || !allocate(t, n_node, n))
        return PITH_NOMEM;
    t->n_node = (uint32_t)n_node;
    uint32_t *open = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)t->max_depth + 1, sizeof(*open));
    if (open == NULL)
        return PITH_NOMEM;
    fill(t, entries, n, open);
    pi_mem_free(open);
    return PITH_OK;
}

pith_status vocab_tree_create(const struct pi_vocab *v, struct vocab_tree **out, pith_error *err)
{
    if (v->type == PI_VOCAB_NONE)
        return pi_fail(err, PITH_UNSUPPORTED, "the model has no tokenizer");
    struct vocab_tree *t = pi_mem_alloc(PI_MEM_MODEL, sizeof(*t));
    struct entry *entries = pi_mem_alloc_n(PI_MEM_OTHER, 2 * (size_t)v->n_id, sizeof(*entries));
    pith_status status = PITH_NOMEM;
    if (t != NULL && entries != NULL) {
        t->n_token = v->n_id;
        t->n_word = (v->n_id + 63) / 64;
        t->plain = pi_mem_alloc_n(PI_MEM_MODEL, (VOCAB_TREE_PLAIN_MAX + 1) * (size_t)t->n_word,
                                  sizeof(*t->plain));
        if (t->plain != NULL)
            status = build(v, entries, t);
    }
    pi_mem_free(entries);
    if (status != PITH_OK) {
        vocab_tree_free(t);
        return pi_fail(err, status, "no memory for a tree of %d tokens", v->n_id);
    }
    *out = t;
    return PITH_OK;
}

void vocab_tree_free(struct vocab_tree *t)
{
    if (t == NULL)
        return;
    pi_mem_free(t->plain);
    pi_mem_free(t->byte);
    pi_mem_free(t->end);
    pi_mem_free(t->first);
    pi_mem_free(t->token);
    pi_mem_free(t);
}

pith_status pi_vocab_tree(const struct pi_vocab *vocab, const struct vocab_tree **out,
                          pith_error *err)
{
    struct pi_vocab *v = (struct pi_vocab *)vocab; /* made by pi_vocab_load, so not a constant */
    struct vocab_tree *tree = atomic_load(&v->tree), *mine = NULL;
    if (tree == NULL) {
        PI_TRY(vocab_tree_create(vocab, &mine, err));
        if (atomic_compare_exchange_strong(&v->tree, &tree, mine))
            tree = mine;
        else
            vocab_tree_free(mine);
    }
    *out = tree;
    return PITH_OK;
}
