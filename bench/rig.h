/*
 * rig.h - the common part of the benchmark programs: options by a table (eval/option.h), failures
 * that end the program with a sentence, medians, random lanes and bounds.
 */
#ifndef BENCH_RIG_H
#define BENCH_RIG_H

#include "base/threads.h"
#include "kv/kv.h"
#include "option.h"
#include "pith/inspect.h"

/* ---- options ---- */

/* Rows of a program's table; their fields belong to its own struct options. */
#define RIG_FLAG(name, field, what)                                                                \
    {                                                                                              \
        name, NULL, NULL, OPTION_FLAG, offsetof(struct options, field), .help = what, .env = ""    \
    }
#define RIG_INT(name, field, least, most, what)                                                    \
    {                                                                                              \
        name, NULL, "N", OPTION_INT, offsetof(struct options, field), least, most, .help = what,   \
                                                                                   .env = ""       \
    }
#define RIG_INTS(name, field, least, most, what)                                                   \
    {                                                                                              \
        name, NULL, "N,...", OPTION_INTS, offsetof(struct options, field), least, most,            \
            .help = what, .env = ""                                                                \
    }
#define RIG_BYTES(name, field, otherwise, what)                                                    \
    {                                                                                              \
        name, NULL, "SIZE", OPTION_BYTES, offsetof(struct options, field), .absent = otherwise,    \
                                                                           .help = what, .env = "" \
    }
#define RIG_TEXT(name, value, field, otherwise, what)                                              \
    {                                                                                              \
        name, NULL, value, OPTION_TEXT, offsetof(struct options, field), .absent = otherwise,      \
                                                                         .help = what, .env = ""   \
    }
#define RIG_MODEL(field)                                                                           \
    {                                                                                              \
        "MODEL.gguf", NULL, NULL, OPTION_TEXT, offsetof(struct options, field),                    \
            .required = true, .absent = "", .help = "the model"                                    \
    }
#define RIG_CPU(field) RIG_TEXT("--cpu", "LEVEL", field, "the best", "kernels")
#define RIG_CSV(field) RIG_FLAG("--csv", field, "for programs")

/* Reads the command line into options, which holds the defaults, and sets the level of --cpu. Ends
   the program where it is wrong (2) or asks for help (0). */
void rig_options(int argc, char **argv, const struct option *table, void *options);

/* Ends the program as a wrong command line does. */
void rig_usage(const char *sentence) __attribute__((noreturn));

/* Whether a list of names, NULL for all, has this one. */
bool rig_wants(const char *names, const char *name);

/* ---- failures ---- */

void stop(const pith_error *err) __attribute__((noreturn));
void check(pith_status status, const pith_error *err);
void *memory(size_t size); /* zeroed pi_mem_alloc that does not fail */

/* ---- figures ---- */

#define MAX_SAMPLE 1024

/* Measurements of one kind. Zero it before use. */
struct samples {
    double value[MAX_SAMPLE];
    int32_t n;
};

void add(struct samples *s, double value);
double median(const struct samples *s); /* NAN of nothing */
double median_of(const double *values, int32_t n);

/* Seconds of the best of several rounds, which together take `seconds` at least: disturbances only
   ever slow a round down. */
double best_round(double seconds, int32_t n_thread, int64_t n_item, pi_job_fn *fn, void *ctx);

/* ---- the machine ---- */

/* 0: all threads. */
pith_machine machine_of(int32_t n_thread);
/* The machine with n_thread threads; 0: with one, and with all. Returns how many of out. */
int32_t machines_of(int32_t n_thread, pith_machine out[2]);

pith_model *load_model(const char *path, int32_t n_thread, pith_model_info *info);

/* Bytes of weights that a generated token reads: an embedding that is no output matrix, too, is
   read by row. */
double generation_bytes(const pith_model *model);

/* Numbers in [-1, 1) without a pattern that a sum could profit from. */
void fill_random(float *x, size_t n, uint32_t seed);
uint32_t random_u32(uint32_t *seed);

#define APPEND 64 /* tokens appended to every lane in turn, so that its pages lie scattered */

/* A cache of one sequence with n entries in each lane: room for them, and the entries. Keys and
   values are taken from one row of random numbers, from places that no two chunks share. So no two
   entries are equal: to choose among equal scores takes longer. */
void lanes_open(const struct kv_geometry *g, int32_t n, struct kv_cache **cache,
                struct kv_seq **seq);
void lanes_fill(struct kv_seq *seq, const struct kv_geometry *g, int32_t n);

/* One layer of f16 or the like: K and V of one type and head size. */
struct kv_geometry lanes_shape(int32_t n_head, int32_t dim, int32_t page_len, enum kv_type type);
/* The same with as many layers as lanes of n entries fill a pool of bytes with. */
struct kv_geometry lanes_shape_of(int64_t bytes, int32_t n, struct kv_geometry g);

#endif
