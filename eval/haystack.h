/*
 * haystack.h - text to hide facts in: prose of a file or lines of noise, taken word by word. It
 * also finds the places where a sentence may be put.
 */
#ifndef PI_EVAL_HAYSTACK_H
#define PI_EVAL_HAYSTACK_H

#include "prompt.h"

/* RULER's line of noise. */
#define EVAL_NOISE                                                                                 \
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

/* Text that words are taken from, without end: behind its last word comes its first again. */
struct eval_prose {
    const char *text; /* borrowed */
    size_t len;
};

/* The noise as prose: one line after the other. */
struct eval_prose eval_prose_noise(void);

/* INVALID when there is no word in it, or a zero byte, which would end a prompt; task is named. */
pith_status eval_prose_check(const char *task, const struct eval_prose *prose, pith_error *err);

/* Appends n_word words from byte start on, with the space between them as it stands there, or with
   single spaces where squeeze is set. There is no space before the first or behind the last. The
   prose must not be empty. */
void eval_prose_append(const struct eval_prose *prose, size_t start, int32_t n_word, bool squeeze,
                       struct eval_text *out);

/* The start of a sentence of the prose, at random; 0 when it has no other, or 2 GiB. */
size_t eval_prose_pick(const struct eval_prose *prose, struct eval_rng *rng);

/* Offsets in a text where a sentence may be inserted. Zero it before use. */
struct eval_places {
    size_t *at; /* [n] ascending; owned */
    int32_t n;
    bool failed;
};
/* Finds the start of the text and the end of every sentence. That is right behind its full stop
   (question mark, exclamation mark) and the quotes and brackets that close after it. Abbreviations
   count as ends. Where a text has no end of sentence, every end of a word is a place. */
void eval_places_find(const char *text, size_t len, struct eval_places *out);
void eval_places_free(struct eval_places *p);

/* Writes n_word words of the prose from byte start on to haystack, as eval_prose_append does, and
   finds its places. NOMEM, with the task named. */
pith_status eval_haystack_make(const char *task, const struct eval_prose *prose, size_t start,
                               int32_t n_word, bool squeeze, struct eval_text *haystack,
                               struct eval_places *places, pith_error *err);

/* A sentence to insert. */
struct eval_insert {
    const char *sentence;
    int32_t place; /* index into the places */
};

/* Appends haystack [len] with the sentences in it, one space around each; inserts [n] stand in the
   order of their places. offset[i] (may be NULL) becomes the byte in out->data where sentence i
   starts. */
void eval_places_insert(const char *haystack, size_t len, const struct eval_places *places,
                        const struct eval_insert *inserts, int32_t n, struct eval_text *out,
                        size_t *offset);

#endif
