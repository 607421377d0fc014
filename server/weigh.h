/*
 * weigh.h - how much memory a body will take as JSON, told from its bytes while they come. So one
 * that takes too much is refused before it is parsed. The memory that Jansson needs for the values
 * of a body can be hundreds of times its size: `[{},{},...]`.
 */
#ifndef SERVER_WEIGH_H
#define SERVER_WEIGH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero it before use. */
struct body_weight {
    int64_t bytes;  /* of the values so far; never less than they take */
    int64_t text;   /* length of the string that is open */
    int64_t letter; /* the longest so far: while it is read it is there several times */
    int64_t len;    /* of the body so far */
    int64_t word;   /* of the number or word that is open */
    bool in_text, escaped, in_word;
    bool number, kept, any_kept; /* the word is a number; whose text is kept; any was */
};

void body_weigh(struct body_weight *w, const char *data, size_t len);
/* The most that parsing takes. */
int64_t body_weight_most(const struct body_weight *w);

#endif
