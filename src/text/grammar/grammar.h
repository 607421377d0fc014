/*
 * grammar.h - inside the library: texts to trees of expressions. Beyond pith/grammar.h it has the
 * questions that a sampler asks of a grammar's state.
 *
 *   grammar_gbnf.c     GBNF -> tree               grammar_expr.c     expressions of a tree
 *   grammar_schema.c   JSON schema -> tree        grammar_compile.c  tree -> program
 *   grammar_merge.c      keywords that combine    grammar_check.c      what it must satisfy
 *   grammar_object.c     objects and arrays       grammar_machine.c  runs a program on bytes
 *   grammar_regex.c      patterns                 grammar_mask.c     tokens that may follow
 *   grammar_format.c     formats                  grammar.c          grammars and states
 *   grammar_number.c     ranges of numbers
 *   grammar_json.c       values as they are, any value
 */
#ifndef PI_GRAMMAR_H
#define PI_GRAMMAR_H

#include "pith/grammar.h"
#include "text/grammar/grammar_expr.h"
#include "text/vocab/vocab.h"

/* Pure functions of their bytes; a failure is in the tree's heap. */
void grammar_read_gbnf(struct grammar_tree *t, const char *text, size_t len, const char *root);
void grammar_read_schema(struct grammar_tree *t, const char *text, size_t len,
                         const pith_grammar_params *params);

/* Compiles a tree for a vocabulary, which must outlive the grammar. */
pith_status pi_grammar_create(const struct pi_vocab *vocab, struct grammar_tree *tree,
                              const pith_grammar_params *params, pith_grammar **out,
                              pith_error *err);

/* A text may be of the other grammar in g's place; neither has triggers. Takes the other over. */
void pi_grammar_or(pith_grammar *g, pith_grammar *other);
/* A control token that counts as its text, where the grammar has that. At most GRAMMAR_MARKERS, of
   which each grammar of an alternative has its own. */
#define GRAMMAR_MARKERS 16
void pi_grammar_add_marker(pith_grammar *g, int32_t token);

/* ---- questions of a sampler ---- */

int32_t pi_grammar_n_vocab(const pith_grammar *g);
/* Whether a trigger is awaited; and then, whether a token may be taken. */
bool pi_grammar_state_is_free(const pith_grammar_state *state);
bool pi_grammar_state_allows(pith_grammar_state *state, int32_t token);
/* Whether a text may still be of either of two grammars. Then, whether the first allows a token,
   and the tokens of the second, as pith_grammar_state_mask has them. */
bool pi_grammar_state_is_open(const pith_grammar_state *state);
bool pi_grammar_state_allows_first(pith_grammar_state *state, int32_t token);
pith_status pi_grammar_state_mask_other(pith_grammar_state *state, uint64_t *bits, pith_error *err);
/* And from now on it is of the second alone. */
void pi_grammar_state_take_other(pith_grammar_state *state);

#endif
