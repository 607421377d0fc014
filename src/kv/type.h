/*
 * type.h - the storage types of keys and values: their names, their options, how many bits they
 * take. docs/store.md has the formats.
 */
#ifndef PI_KV_TYPE_H
#define PI_KV_TYPE_H

#include "base/base.h"

struct kv_geometry;

/* How keys or values are stored. The order is by bits of a value, except for the last one, which
   came later: files have the numbers. Values of the turbo types are rotated before they are coded
   (wht.h), and stay so in the page. Functions that return values turn them back. */
enum kv_type {
    KV_TYPE_F32,
    KV_TYPE_F16,
    KV_TYPE_Q8_0,
    KV_TYPE_Q4_0,
    KV_TYPE_TURBO4,
    KV_TYPE_TURBO3,
    KV_TYPE_TURBO2,
    KV_TYPE_BF16,
    KV_N_TYPE
};

/* The first `first` and the last `last` layers, which store another type than the others. */
struct kv_edge {
    enum kv_type type;
    int32_t first;
    int32_t last; /* both 0: there are none */
};

/* KV_N_TYPE for an unknown name. */
enum kv_type kv_type_find(const char *name);
const char *kv_type_name(enum kv_type type);

/* The text of a geometry's option for K or V: TYPE[:EDGE=FIRST+LAST]. EDGE is another type, for the
   first FIRST and the last LAST layers. For K ":force" and ":centre" may follow TYPE, in this
   order; engines look at them. */
struct kv_type_choice {
    enum kv_type type;
    struct kv_edge edge;
    bool force;
    bool centre;
};

/* The value of a field; NULL is f16. INVALID, one sentence that names the field and the value. */
pith_status kv_type_read(const char *field, const char *text, struct kv_type_choice *out,
                         pith_error *err);
/* The types of a geometry from the values of type_k and type_v; *k: the choice of K, whose force
   and centre V's must not have. INVALID, as above. */
pith_status kv_geometry_read_types(struct kv_geometry *g, const char *type_k, const char *type_v,
                                   struct kv_type_choice *k, pith_error *err);

bool kv_type_is_rotated(enum kv_type type);
/* Dimensions that share a scale in a head of a size: 32 for q8_0 and q4_0. For the turbo types it
   is the largest power of two that divides the head size, 128 at most. 1 for types without scales.
   0 for a head size that the type cannot store. */
int32_t kv_type_group(enum kv_type type, int32_t dim);
/* Bits of a value in a head of a size that the type stores, scales included. */
double kv_type_bits(enum kv_type type, int32_t dim);

/* Rounds a query as the kernels do where it meets keys of a type: to bf16 for bf16, and to its
   codes' values for q8_0. */
void kv_query_met(enum kv_type type, float *q, int32_t dim);

#endif
