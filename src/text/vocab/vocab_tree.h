/*
 * vocab_tree.h - the tokens of a vocabulary as a tree of their bytes. A search for the tokens that
 * may follow then looks at each beginning that tokens share once.
 *
 * Nodes stand in preorder: what is below node i is i + 1 to end[i] - 1. Some characters are plain:
 * most grammars treat them alike (no control characters, no quote, no backslash). So the tree has
 * parts: tokens of plain characters only, and the others. The others stand in it once more, by how
 * many plain characters they begin with and without these.
 */
#ifndef PI_VOCAB_TREE_H
#define PI_VOCAB_TREE_H

#include "text/vocab/vocab.h"

#define VOCAB_TREE_PLAIN_MAX 32 /* plain characters that are counted */

enum {
    VOCAB_TREE_PLAIN,  /* tokens of at most 32 characters, all plain */
    VOCAB_TREE_MIXED,  /* at most 32 plain characters and then others */
    VOCAB_TREE_LONG,   /* more than 32 plain characters, whatever follows */
    VOCAB_TREE_BEHIND, /* part BEHIND + n: what MIXED tokens have behind n plain characters */
    VOCAB_TREE_PARTS = VOCAB_TREE_BEHIND + VOCAB_TREE_PLAIN_MAX + 1,
};

struct vocab_tree_part {
    uint32_t begin, end; /* nodes */
};

struct vocab_tree {
    int32_t n_token; /* ids are below; bit sets have n_word words */
    int32_t n_word;
    uint32_t n_node;
    uint32_t max_depth; /* bytes of the longest token */
    uint8_t *byte;      /* [n_node] */
    uint32_t *end;      /* [n_node] */
    uint32_t *first;    /* [n_node + 1]: token[first[i]] up to first[i + 1] end at node i */
    int32_t *token;     /* ids; tokens of MIXED stand there twice */
    uint64_t *plain;    /* [PLAIN_MAX + 1][n_word] PLAIN tokens of at most that many characters */
    struct vocab_tree_part part[VOCAB_TREE_PARTS];
};

/* Control tokens, end tokens and empty ones are not in the tree. UNSUPPORTED: the vocabulary has no
   tokens; NOMEM. */
pith_status vocab_tree_create(const struct pi_vocab *vocab, struct vocab_tree **out,
                              pith_error *err);
void vocab_tree_free(struct vocab_tree *tree);

/* The vocabulary's tree, made at the first call and owned by the vocabulary. Thread-safe. */
pith_status pi_vocab_tree(const struct pi_vocab *vocab, const struct vocab_tree **out,
                          pith_error *err);

#endif
