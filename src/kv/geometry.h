/*
 * geometry.h - the shape of a cache: its lanes, their types and windows, and the bytes of their
 * pages.
 */
#ifndef PI_KV_GEOMETRY_H
#define PI_KV_GEOMETRY_H

#include "base/base.h"
#include "kv/index.h"
#include "kv/type.h"

struct pi_device;

/* Layers on several devices. A part has the lanes of the layers below its end that no earlier part
   has, and the next bytes of a state. */
enum { KV_PART_MOST = 10 };

struct kv_devices {
    int32_t n;             /* parts, each of another device; 0: the geometry's has everything */
    const int32_t *number; /* [n_layer] of each layer, which the ends count in; borrowed as long as
                              there is a cache */
    struct {
        struct pi_device *device;
        int32_t end;
        size_t state_bytes;
        int64_t most; /* bytes of pages that the device has room for; 0: nothing is said */
    } part[KV_PART_MOST];
};

/* Bytes of pages: all, and of them those on the device of each part. */
struct kv_need {
    int64_t all;
    int64_t part[KV_PART_MOST];
};

static inline void kv_need_add(struct kv_need *n, int32_t part, int64_t bytes)
{
    n->all += bytes;
    n->part[part] += bytes;
}

static inline void kv_need_join(struct kv_need *n, const struct kv_need *more)
{
    n->all += more->all;
    for (int32_t i = 0; i < KV_PART_MOST; i++)
        n->part[i] += more->part[i];
}

struct kv_geometry {
    int32_t n_layer; /* those that have lanes: of a model its layers with attention */
    int32_t n_head;  /* KV heads */
    int32_t dim_k;   /* of one head */
    int32_t dim_v;
    int32_t page_len; /* 16, 32 or 64 entries */
    enum kv_type type_k;
    enum kv_type type_v;
    uint32_t index;    /* a set of kv_index; 0: none */
    int32_t index_dim; /* of KV_INDEX_PROJ, at most dim_k; else 0 */
    struct kv_edge edge_k;
    struct kv_edge edge_v;
    const int32_t *window; /* [n_layer] a query sees its own position and the window - 1 before it.
                              0: it sees all before it; such layers come before those with a window.
                              NULL: no layer has a window. Borrowed as long as there is a cache */
    int32_t step_len;      /* where there are windows: most entries that are appended to a lane from
                              one kv_seq_slide to the next */
    size_t state_bytes; /* of a sequence's state (state.c), which layers without lanes have in the
                              place of entries; 0: none */
    int32_t v_in_k; /* 0: values are stored beside keys; else they are the dim_v dimensions of keys
                       from this one on, and take no bytes: latent lanes */
    struct pi_device *device; /* that has the pages; NULL: the first of the list */
    struct kv_devices devices;
};

/* That has the pages of a layer's lanes; and of all, or of most. */
struct pi_device *kv_layer_device(const struct kv_geometry *g, int32_t layer);
struct pi_device *kv_geometry_device(const struct kv_geometry *g);
/* The part that a layer is of; 0 where there are none. */
int32_t kv_layer_part(const struct kv_geometry *g, int32_t layer);

static inline int32_t kv_layer_window(const struct kv_geometry *g, int32_t layer)
{
    return g->window != NULL ? g->window[layer] : 0;
}

/* The lanes of layers without a window, which come before the others. */
struct kv_geometry kv_full_lanes(const struct kv_geometry *g);
/* The types of a layer. */
enum kv_type kv_layer_type_k(const struct kv_geometry *g, int32_t layer);
enum kv_type kv_layer_type_v(const struct kv_geometry *g, int32_t layer);

/* UNSUPPORTED with a sentence if the geometry cannot be stored. q8_0 and q4_0 need a head size that
   is a multiple of 32, the turbo types a multiple of 16. If values are parts of keys, both types
   are the same, and no group holds dimensions of both. INVALID for a page length other than 16, 32,
   64. */
pith_status kv_geometry_check(const struct kv_geometry *g, pith_error *err);

/* Bytes of a page of a layer's lanes, and of the largest of all. */
size_t kv_layer_page_bytes(const struct kv_geometry *g, int32_t layer);
size_t kv_page_bytes(const struct kv_geometry *g);
/* Bytes of pages for n_token tokens of one sequence in every lane: in those with a window the most
   that they hold on the way. */
int64_t kv_bytes_for_tokens(const struct kv_geometry *g, int64_t n_token);
int64_t kv_layer_bytes_for_tokens(const struct kv_geometry *g, int32_t layer, int64_t n_token);
/* Bytes that a state takes of the budget; 0: there are none. Likewise those on each device. */
int64_t kv_bytes_of_state(const struct kv_geometry *g);
struct kv_need kv_need_of_state(const struct kv_geometry *g);
/* As kv_bytes_for_tokens and a state. */
struct kv_need kv_need_for_tokens(const struct kv_geometry *g, int64_t n_token);

#endif
