/*
 * vocab.h - a model's tokens: text to ids and back. Immutable after load, usable by many threads.
 * It reads only tokenizer.* metadata, so a file without tensors of any architecture will do.
 */
#ifndef PI_VOCAB_H
#define PI_VOCAB_H

#include "file/gguf.h"

struct pi_vocab;

/* tokenizer.ggml.model "none" or absent gives a vocabulary that refuses to tokenize (UNSUPPORTED)
   but knows its size. n_token_min: rows of the embedding; ids below it are valid even when the file
   lists fewer tokens. FORMAT, UNSUPPORTED, NOMEM. */
pith_status pi_vocab_load(const struct pi_gguf *g, int32_t n_token_min, struct pi_vocab **out,
                          pith_error *err);
void pi_vocab_free(struct pi_vocab *vocab);

int32_t pi_vocab_size(const struct pi_vocab *vocab);
const char *pi_vocab_kind(const struct pi_vocab *vocab); /* "bpe/qwen2", "spm", "none" */
int32_t pi_vocab_bos(const struct pi_vocab *vocab);      /* -1 when absent */
int32_t pi_vocab_eos(const struct pi_vocab *vocab);
bool pi_vocab_is_end(const struct pi_vocab *vocab, int32_t id);
bool pi_vocab_gap_tokens(const struct pi_vocab *vocab, pith_gap_tokens *out);

/* Whether ids are the same tokens in both; one may have a few more, which no text uses. INVALID,
   with the first that differs. */
pith_status pi_vocab_check_same(const struct pi_vocab *a, const struct pi_vocab *b,
                                pith_error *err);

/* As pith_tokenize. Bytes that are no well-formed UTF-8 keep apart from the text around them and
   become the tokens of their bytes. So they come back as they were. Of special tokens that overlap
   in the text the leftmost is read, of those that start together the longest. A literal U+2581 is a
   space to SentencePiece. */
pith_status pi_vocab_tokenize(const struct pi_vocab *vocab, const char *text, size_t text_len,
                              uint32_t flags, int32_t *out, int32_t cap, int32_t *n_id,
                              pith_error *err);
/* The same, for a text whose marks [text_len] say which bytes a user wrote (1): there, control
   tokens are text. marks NULL: nowhere. */
pith_status pi_vocab_tokenize_marked(const struct pi_vocab *vocab, const char *text,
                                     size_t text_len, const uint8_t *marks, uint32_t flags,
                                     int32_t *out, int32_t cap, int32_t *n_id, pith_error *err);
/* Whether PITH_TOKENIZE_BOS adds one. */
bool pi_vocab_adds_bos(const struct pi_vocab *vocab);
/* As pith_token_bytes. */
pith_status pi_vocab_token_bytes(const struct pi_vocab *vocab, int32_t id, bool special, char *out,
                                 size_t cap, size_t *len);
/* As pith_detokenize. Of SentencePiece's tokens, the first that is no control token loses its
   leading space where tokenizing adds one. No other spaces are cleaned up. */
pith_status pi_vocab_detokenize(const struct pi_vocab *vocab, const int32_t *ids, int32_t n_id,
                                bool special, char *out, size_t cap, size_t *len, pith_error *err);

#endif
