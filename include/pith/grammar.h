/*
 * grammar.h - output that follows a grammar: GBNF, or a JSON schema, compiled for one model's
 * vocabulary. A sampler with a grammar (pith_sample_params.grammar) chooses among the tokens that
 * the text so far allows. It chooses an end token only where the text may end.
 *
 *     pith_grammar_create_json_schema(model, schema, strlen(schema), NULL, &grammar, &err);
 *     params.sample.grammar = grammar;
 *     pith_generate(seq, ids, n_id, &params, print_piece, NULL, NULL, &err);
 *     pith_grammar_free(grammar);
 *
 * The promise: every text that ends by itself is in the language of the grammar. With a schema it
 * is valid JSON that the schema allows. A schema that asks for something that Pith cannot promise
 * is refused when the grammar is made, never ignored. docs/grammar.md lists what is understood.
 */
#ifndef PITH_GRAMMAR_H
#define PITH_GRAMMAR_H

#include "pith/pith.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- grammars ----------------------------------------------------------------------------- */

/* Any number of threads, samplers and states may use one grammar at the same time. A grammar caches
   the states that it meets for all of them, behind a lock. */
typedef struct pith_grammar pith_grammar;

typedef struct pith_grammar_params {
    const char *root;           /* GBNF: the rule that texts follow. NULL (default): "root" */
    const char *const *trigger; /* [n_trigger] strings: until one of them has been generated the
                                   text is free, and behind it the grammar holds. Copied. None
                                   (default): it holds from the first token */
    int32_t n_trigger;
    bool again;   /* with triggers: where nothing can follow in the grammar, the text is free
                          again until the next trigger (default false: it ends) */
    bool compact; /* schema: no white space between JSON's parts. Default false: where JSON allows
                          it a space, or one or two line ends and at most 20 blanks */
    bool open_objects;  /* schema: where additionalProperties is not given beside properties, others
                          may follow those, as JSON Schema has it (default false: none) */
    bool keeps_trigger; /* the grammar's texts begin with the trigger itself, so that each may go on
                           in its own way (default false: they begin behind it) */
    int32_t n_trigger_first; /* the first n_trigger_first triggers count only where nothing but
                                white space stands before them (default 0) */
    uint32_t reserved[7];
} pith_grammar_params;

PITH_API void pith_grammar_params_default(pith_grammar_params *out);

/* Compiles a grammar in llama.cpp's GBNF, text[0..len), for the model's vocabulary; the model must
   outlive the grammar. params may be NULL; it and the text are needed during the call only.
   INVALID: the text is no grammar (the line is named), or the root is not there. Likewise where a
   rule begins with itself, or no text of it ever ends. UNSUPPORTED: a token reference, a grammar
   that is too large, or a model without tokenizer. NOMEM. Thread-safe. */
PITH_API pith_status pith_grammar_create_gbnf(const pith_model *model, const char *text, size_t len,
                                              const pith_grammar_params *params, pith_grammar **out,
                                              pith_error *err);

/* The same for a JSON schema, text[0..len). "{}" and "true" are any JSON value, {"type":"object"}
   any object. INVALID: the text is no JSON, a keyword's value is of the wrong kind, or nothing
   satisfies the schema. UNSUPPORTED: a keyword that cannot be honoured, in one sentence that names
   its path ("#/properties/a/not: ..."). */
PITH_API pith_status pith_grammar_create_json_schema(const pith_model *model, const char *text,
                                                     size_t len, const pith_grammar_params *params,
                                                     pith_grammar **out, pith_error *err);

/* Frees a grammar; its samplers and states must be freed before. NULL is ignored. */
PITH_API void pith_grammar_free(pith_grammar *grammar);

/* ---- where a text stands ------------------------------------------------------------------ */

/* One text's place in a grammar. Samplers have their own; programs that choose tokens themselves
   make one. One thread at a time may use a state. */
typedef struct pith_grammar_state pith_grammar_state;

/* At the beginning of a text. NOMEM, UNSUPPORTED (see pith_grammar_state_mask). */
PITH_API pith_status pith_grammar_state_create(const pith_grammar *grammar,
                                               pith_grammar_state **out, pith_error *err);
PITH_API void pith_grammar_state_free(pith_grammar_state *state);

/* Sets bits [(n_vocab + 63) / 64]: bit id % 64 of word id / 64 where the token may come next; end
   tokens where the text may end. While a trigger is awaited all bits are set. Accepting a token
   fails all the same if it would end a trigger and go on as the grammar forbids. UNSUPPORTED: the
   grammar is so ambiguous that its states exceed a limit. NOMEM. */
PITH_API pith_status pith_grammar_state_mask(pith_grammar_state *state, uint64_t *bits,
                                             pith_error *err);

/* Takes a token. INVALID: the grammar does not allow it; the state is then unchanged. An end token
   ends the text, behind which no token is allowed. */
PITH_API pith_status pith_grammar_state_accept(pith_grammar_state *state, int32_t token,
                                               pith_error *err);

/* Takes bytes, of whatever tokens. As pith_grammar_state_accept. */
PITH_API pith_status pith_grammar_state_accept_bytes(pith_grammar_state *state, const char *bytes,
                                                     size_t len, pith_error *err);

/* Whether the text may end here; and whether it must, because nothing can follow. */
PITH_API bool pith_grammar_state_can_end(const pith_grammar_state *state);
PITH_API bool pith_grammar_state_must_end(const pith_grammar_state *state);

#ifdef __cplusplus
}
#endif

#endif
