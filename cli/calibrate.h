/*
 * calibrate.h - the options of the commands of `pith calibrate`.
 */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include "command.h"
#include "session.h"

struct calibrate_options {
    struct model_options model;
    struct memory_options memory;
    struct option_texts files;
    const char *text; /* the first of them */
    const char *tokens;
    const char *out;
    const char *keys;
    const char *select;
    const char *inspect;
    const char *html;
    struct option_texts keep;
    int32_t n_piece;
    int32_t pieces;
    int32_t n_generate;
    int32_t n_centre;
    int32_t n_sample;
    int64_t seed;
    float temperature;
    int32_t layer;
    int32_t head;
    bool hidden;
    bool again;
    bool progress;
    bool quiet;
};

/* The file that is read, of text or of tokens; NULL: none is given. */
const char *calibrate_source(const struct calibrate_options *o);

/* Its tokens, freed by the caller. Fails where they are none. */
struct cli_ids calibrate_read_tokens(const struct calibrate_options *o, const struct session *s);

/* Draws what is in the file of o->inspect (calibrate_inspect.c); the exit status. */
int calibrate_inspect(struct calibrate_options *o);

#endif
