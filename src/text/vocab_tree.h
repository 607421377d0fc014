/*
 * vocab_tree.h - the tokens of a vocabulary as a tree of their bytes, so that whoever asks which
 * tokens may follow looks at each beginning that tokens share once.
 *
 * Nodes stand in preorder: what is below node i is i + 1 to end[i] - 1. The tree has one part for
 * each kind of tokens; those of parts with max_char > 0 are plain: whole characters that JSON and
 * most grammars treat alike (no control characters, no quote, no backslash).
 */
#ifndef PI_VOCAB_TREE_H
#define PI_VOCAB_TREE_H

#include "text/vocab.h"

#define VOCAB_TREE_PARTS 6
#define VOCAB_TREE_MOST_CHAR 32 /* of plain tokens; longer ones are in part 0 */

struct vocab_tree_part {
    uint32_t begin, end; /* nodes */
    int32_t max_char;    /* 0: tokens that are not plain; else they have 1 to max_char characters */
    uint64_t *bits;      /* [n_word] the part's tokens; owned by the tree */
};

struct vocab_tree {
    int32_t n_token;     /* ids are below; bit sets have n_word words */
    int32_t n_word;
    uint32_t n_node;
    uint32_t max_depth;  /* bytes of the longest token */
    uint8_t *byte;       /* [n_node] */
    uint32_t *end;       /* [n_node] */
    uint32_t *first;     /* [n_node + 1]: token[first[i]] up to first[i + 1] end at node i */
    int32_t *token;      /* [tokens with bytes] */
    struct vocab_tree_part part[VOCAB_TREE_PARTS];
};

/* Control tokens, end tokens and empty ones are not in the tree. UNSUPPORTED: the vocabulary has no
   tokens; NOMEM. */
pith_status vocab_tree_create(const struct pi_vocab *vocab, struct vocab_tree **out,
                              pith_error *err);
void vocab_tree_free(struct vocab_tree *tree);

/* The vocabulary's tree, made when somebody first asks and owned by the vocabulary. Thread-safe. */
pith_status pi_vocab_tree(const struct pi_vocab *vocab, const struct vocab_tree **out,
                          pith_error *err);

#endif
