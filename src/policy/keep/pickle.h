/*
 * pickle.h - reads the part of Python's pickle format that a file of tensors in dictionaries needs,
 * and executes nothing: names of classes and functions are compared with the three that PyTorch
 * writes for float tensors, everything else is refused. Pure functions of (bytes, length).
 */
#ifndef PI_KEEP_PICKLE_H
#define PI_KEEP_PICKLE_H

#include "base/base.h"

enum pickle_type {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_FLOAT,
    PICKLE_TEXT,
    PICKLE_LIST, /* and tuples */
    PICKLE_DICT, /* keys and values take turns */
    PICKLE_NAME, /* a class or function: one of enum pickle_name */
    PICKLE_STORAGE,
    PICKLE_TENSOR,
};

enum pickle_name { PICKLE_REBUILD_TENSOR, PICKLE_FLOAT_STORAGE, PICKLE_ORDERED_DICT };

struct pickle_node {
    enum pickle_type type;
    int32_t first; /* cells of a list or dict; -1: none */
    int32_t last;
    int32_t n;      /* their number; bytes of a text */
    int64_t value;  /* of an int or bool, the name; the storage's number; where a text begins */
    int64_t len;    /* elements of a storage; of a contiguous tensor in one dimension */
    int64_t offset; /* first element of a tensor in its storage */
};

/* One place of a list. */
struct pickle_cell {
    int32_t node;
    int32_t next; /* -1: none */
};

struct pickle {
    const uint8_t *data; /* [size] borrowed */
    size_t size;
    struct pickle_node *node; /* [n_node], owned, as the others */
    int32_t n_node;
    int32_t cap_node;
    struct pickle_cell *cell; /* [n_cell] */
    int32_t n_cell;
    int32_t cap_cell;
    int32_t *stack; /* [n_stack] nodes, or MARK */
    int32_t n_stack;
    int32_t cap_stack;
    int32_t *memo; /* [n_memo] nodes */
    int32_t n_memo;
    int32_t cap_memo;
    int32_t root;
};

/* p is zeroed; pickle_free in any case. FORMAT, UNSUPPORTED (something beyond that part: named with
   its offset), NOMEM. */
pith_status pickle_parse(struct pickle *p, const uint8_t *data, size_t size, pith_error *err);
void pickle_free(struct pickle *p);

/* The value of a key in a dict; -1 where it is absent or node is no dict (or -1). */
int32_t pickle_get(const struct pickle *p, int32_t node, const char *key);
/* Whether node is this text. */
bool pickle_is_text(const struct pickle *p, int32_t node, const char *text);

#endif
