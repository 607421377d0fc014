/*
 * class.h - the inside of a page: its layout in memory, and the classes of pages that are alike.
 */
#ifndef PI_KV_CLASS_H
#define PI_KV_CLASS_H

#include "device/device.h"
#include "kv/geometry.h"

struct kv_codec;

/*
 * A page holds P = page_len entries of one layer and KV head. Values are stored entry by entry.
 * Keys are, too, if the geometry has an index (index.h). One key is then a few lines of memory, and
 * kernels put keys side by side on their way into registers (cpu/attend.h). Without an index keys
 * lie side by side, in elements of 4 bytes. Elements have 2 bytes if a plane's values have 2 bytes
 * or less than 2 bits. An element is a value of f32, f16 or bf16, or four codes of q8_0. It is 8
 * codes of 4 bits, or 16 of 2 bits or 1 bit.
 *
 *                   K entry by entry, or side by side            V
 *   f32, f16, bf16  [P][dim] or [dim][P]                         [P][dim]
 *   q8_0            int8 [P][dim] or [dim / 4][P][4]             int8 [P][dim]
 *   q4_0, turbo4    [P][dim / 2] or [dim / 8][P][4]              [P][dim / 2]
 *   turbo3, turbo2  [P][dim / 4] or [dim / 16][P][4]             [P][dim / 4]   lower two bits
 *   turbo3, then    [P][dim / 8] or [dim / 16][P][2]             [P][dim / 8]   bit 2
 *   then, of types with scales, f16
 *                   [P][dim / group] or [dim / group][P]         [P][dim / group]
 *   behind both     what the geometry's index has (struct kv_page_layout)
 *
 * Positions int32 [P] lie apart, in an array of all pages of a class (kv_class.pos): a search by
 * position reads no page.
 *
 * If values are parts of keys (kv_geometry.v_in_k), keys are stored entry by entry and V has no
 * bytes. A value is a stretch of its key's row, with K's distance from one row to the next.
 *
 * A stored value of q8_0 is scale * code, of the types of fewer bits scale * table[code], rounded
 * once. The scale is that of its group of dimensions (kv_type_group). Codes are packed little end
 * first (cpu/attend.h).
 *
 * Every part starts at a multiple of 64 bytes. Entries fill a page from its first slot on, in
 * ascending order of position but in lanes that were overwritten. Slots that hold no entry contain
 * finite values.
 */
struct kv_page_layout {
    bool side_by_side; /* keys */
    size_t k;          /* offset of K, its codes or their lower bits; always 0 */
    size_t k_high;     /* of bit 2 of K's codes, turbo3 only */
    size_t k_scale;    /* offset of K's scales, types with scales only */
    size_t k_end;      /* where the parts of V begin, if it has some */
    size_t v;          /* of a value, which may be a part of a key */
    size_t v_high;
    size_t v_scale;
    size_t stored; /* bytes of these parts, from which the following parts are made (a multiple of
                      64) */
    size_t saved;  /* the same with positions after them, as files have pages */

    /* index.c; where the geometry has them */
    size_t norm;       /* f32 [P] */
    size_t unit;       /* uint8_t [P][kv_unit_dim], codes + 128 */
    size_t unit_scale; /* f32 [P] */
    size_t columns;    /* f16 [dim_k][P] */
    size_t proj;       /* f16 [P][index_dim] */
    size_t bounds;     /* f32 [2][dim_k], the least values and the largest */
    size_t value_sum;  /* f32 [dim_v] */

    size_t stride; /* bytes from one page to the next, a multiple of 64 */
    size_t bytes;  /* that a page is charged: these, and its positions */
    size_t entry;  /* bytes of one entry in all parts and its position, without padding */
    size_t whole;  /* bytes of a full page beside its entries, without padding */
};

/* A plane of keys or values: rows of an entry each, cut into elements where they lie side by
   side. */
struct kv_plane {
    size_t at;      /* offset in a page */
    size_t row;     /* bytes of an entry, 0 where the type has no such plane */
    size_t element; /* bytes */
    size_t pitch;   /* bytes from one row to the next, where they lie entry by entry */
};

enum { KV_PLANE_LOW, KV_PLANE_HIGH, KV_PLANE_SCALE, KV_N_PLANE };

/* The keys or values of a class of pages. */
struct kv_part {
    enum kv_type type;
    const struct kv_codec *codec; /* the type's */
    int32_t dim;
    int32_t group; /* kv_type_group */
    struct kv_plane plane[KV_N_PLANE];
};

/*
 * Pages of one size and form, for all layers of a device with the same pair of types. They have a
 * pool of their own in address space, of as many pages as the whole budget pays for. Page numbers
 * count within it. Pages get memory as they are touched. Free ones lose it again if all classes
 * together would hold more than the budget (pool.c).
 */
struct kv_class {
    enum kv_type type_k;
    enum kv_type type_v;
    int32_t group_k; /* of k and value below */
    int32_t group_v;
    struct kv_part k;
    struct kv_part v;     /* what is stored beside keys: of no dimension where nothing is */
    struct kv_part value; /* where values are read: v, or a part of k */
    int32_t v_pitch;      /* dimensions from one value to the next: dim_v, or dim_k */
    struct kv_page_layout layout;

    struct pi_device *device; /* that has the pages */
    int32_t part;             /* of the geometry's devices; 0 where there are none */
    int32_t number;           /* in the cache's list */
    struct pi_at pool;        /* [n_page][layout.stride] there, one mapping; owned by the cache */
    size_t pool_size;
    int32_t *pos; /* [n_page][page_len] as written, one mapping; NULL: of states; owned likewise */
    size_t pos_size;
    int32_t page_len;
    int32_t n_page;
    int32_t n_used;
    void *lists; /* one mapping that holds the seven arrays; owned by the cache */
    size_t lists_size;
    uint64_t *taken;    /* [ceil(n_page / 64)] bit p % 64 of word p / 64 is set when p is in use */
    uint64_t *left;     /* likewise: free, and better taken by the lane of the page before p */
    uint64_t *resident; /* likewise: the system may have given p memory */
    uint64_t *moving;   /* likewise: p may be on its way to the host or from there (swap.c) */
    int32_t *n_ref;     /* [n_page] table entries that point to the page, and blocks that hold it */
    int32_t *n_held;    /* [n_page] of these the blocks */
    uint8_t *n_entry;   /* [n_page] scratch of counts (kv_cache_stats, charges); zero between */
    int32_t low_word;   /* no word of `taken` below it has a clear bit */
    int32_t open_word;  /* likewise of `taken` and `left` together */
    int32_t n_resident; /* bits of `resident` */
    int32_t n_shared;   /* pages that more than one table entry points to */
    int64_t n_ref_extra; /* the sum of those beyond each one's first */
};

/* Two types of keys with two of values on each device, and states. */
enum { KV_CLASS_MAX = 4 * KV_PART_MOST + 1 };
enum { KV_PAGE_LEN_MAX = 64 }; /* of those that kv_geometry_check lets through */

/* The form of pages of a geometry's layers with a pair of types; no pool. */
void kv_class_make(const struct kv_geometry *g, enum kv_type type_k, enum kv_type type_v,
                   struct kv_class *out);
/* The forms of all layers, in the order in which they come first; returns their number. */
int32_t kv_classes_make(const struct kv_geometry *g, struct kv_class kind[KV_CLASS_MAX]);
/* The one of a layer among them. */
const struct kv_class *kv_class_of(const struct kv_class *kind, const struct kv_geometry *g,
                                   int32_t layer);

static inline int32_t *kv_page_pos(const struct kv_class *kind, int32_t page)
{
    return kind->pos + (size_t)page * (size_t)kind->page_len;
}

/* Bytes of n pages. */
static inline int64_t kv_pages_bytes(const struct kv_class *kind, int64_t n)
{
    return n * (int64_t)kind->layout.bytes;
}

/* Bytes of a stored key or value in any layout of pages: its planes one after the other. */
static inline size_t kv_part_bytes(const struct kv_part *part)
{
    return part->plane[KV_PLANE_LOW].row + part->plane[KV_PLANE_HIGH].row +
           part->plane[KV_PLANE_SCALE].row;
}

#endif
