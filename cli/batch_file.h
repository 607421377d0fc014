/*
 * batch_file.h - the two files of a batch. Requests are read whole and judged before anything is
 * computed. Answers come line by line, and every line is whole whatever happens. Everything here
 * fails with a sentence, so that a verb never sees half.
 */
#ifndef CLI_BATCH_FILE_H
#define CLI_BATCH_FILE_H

#include "io.h"
#include "serve/batch/batch.h"

struct batch_item {
    const char *at; /* [len] the line */
    size_t len;
    int64_t number; /* in the file, from 1 */
    bool done;      /* the output has it */
    bool chat;
    int32_t n_answer; /* of all its prompts; 0: it is refused */
    bool wrong;       /* it is no request, or has no name */
    int64_t twin;     /* the line that has its custom_id before it; 0: none */
};

struct batch_input {
    const char *path; /* borrowed */
    struct cli_text text;
    struct batch_item *item; /* [n] without blank lines */
    size_t n;
    json_t *names; /* custom_id -> index of item */
};

/* SplitMix64's end: every bit of z changes the result. */
static inline uint64_t batch_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* One part of n of the requests, chosen by custom_id: it does not change when the file grows. */
struct batch_shard {
    int64_t index; /* 0 <= index < n */
    int64_t n;
};

/* Reads the requests of a shard; lines that have no custom_id are the first shard's.
   A line that is wrong, that is no request or has another's custom_id is an item all the same.
   Fails where no line is a request: then it is another file that was meant. */
void batch_input_read(struct batch_input *in, const char *path, struct batch_shard shard,
                      const struct serve_batch_setup *setup);
void batch_input_free(struct batch_input *in);

struct batch_output {
    const char *path; /* borrowed */
    int fd;
    int64_t end; /* bytes of whole lines */
    int error;   /* why a line could not be written; 0: all could */
};

/* Makes the file, which is empty or not there yet, and is not the input. With resume it goes on
   with one that may be there. Items that it has are done, and the rest of a line at its end is
   dropped.
 */
void batch_output_open(struct batch_output *out, const char *path, bool resume,
                       struct batch_input *in);
/* Appends a line, whole or not at all, and frees the value; false: out->error tells why not. */
bool batch_output_add(struct batch_output *out, json_t *line);
/* False where what was written did not reach the disk; out->error tells why. */
bool batch_output_close(struct batch_output *out);

#endif
