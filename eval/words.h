/*
 * words.h - words to write texts with, and words that are in no list.
 */
#ifndef PI_EVAL_WORDS_H
#define PI_EVAL_WORDS_H

#include <stddef.h>

#include "eval.h"

struct eval_word_list {
    const char *const *word; /* [n], constant */
    int32_t n;
};

/* words.c: the lists of scripts/train/language.py. onsets, vowels and codas are the parts of
   invented words; codas holds empty strings. */
extern const struct eval_word_list eval_names;
extern const struct eval_word_list eval_adjectives;
extern const struct eval_word_list eval_things;
extern const struct eval_word_list eval_places;
extern const struct eval_word_list eval_roles;
extern const struct eval_word_list eval_onsets;
extern const struct eval_word_list eval_vowels;
extern const struct eval_word_list eval_codas;

#endif
