/*
 * metrics.h - what /metrics shows beyond numbers that others keep: how long things took.
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <stdint.h>

struct server;

enum timing {
    TIMING_FIRST, /* from a request's head to its answer's first token */
    TIMING_TOKEN, /* from a token to the next one of its answer */
    TIMING_WHOLE, /* from the head to the answer's end */
    TIMING_QUEUE, /* from submission to admission */
    N_TIMING,
};

enum { TIMING_BUCKETS = 24 }; /* at most, the last one without an upper bound included */

/* The server's lock guards it. */
struct timings {
    int64_t count[TIMING_BUCKETS];
    int64_t n;
    double sum;
};

/* Counts one duration. */
void metrics_note(struct server *s, enum timing what, double seconds);

#endif
