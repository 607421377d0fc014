/*
 * pages.h - bytes of pages on the processor (kv/class.h has their layout), for the files of
 * device/cpu/ alone. Entries in a page, the index, attention and scores over pages.
 */
#ifndef PI_DEVICE_PAGES_H
#define PI_DEVICE_PAGES_H

#include "cpu/attend.h"
#include "device/cpu/ptr.h"
#include "kv/internal.h"

static inline uint8_t *kv_page_at(const struct kv_class *kind, int32_t page)
{
    return (uint8_t *)pi_cpu_ptr(kind->pool) + (size_t)page * kind->layout.stride;
}

/* Floats of a page, from an offset on. */
static inline float *kv_page_floats(uint8_t *page, size_t offset)
{
    return (float *)(void *)(page + offset);
}

/* page.c. Entries of a page, at its first byte. n rows of floats, stride apart, become the keys or
   values of entries slot, slot + 1, ... */
void kv_page_write_keys(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page,
                        int32_t slot, int32_t n, const float *rows, size_t stride);
void kv_page_write_values(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page,
                          int32_t slot, int32_t n, const float *rows, size_t stride);
/* An entry as it was before it was stored, but for what storing it cost: turned back. */
void kv_page_read_key(const struct kv_cache *cache, const struct kv_class *kind,
                      const uint8_t *page, int32_t slot, float *out);
void kv_page_read_value(const struct kv_cache *cache, const struct kv_class *kind,
                        const uint8_t *page, int32_t slot, float *out);
/* Dimensions d .. d + n of a key (where keys lie entry by entry) or a value. d is a multiple of
   KV_CODEC_MAX, and n is at most KV_CODEC_MAX and the rest of the row. */
void kv_page_read_part(const struct kv_part *part, const uint8_t *page, int32_t slot, int32_t d,
                       int32_t n, float *out);

/* A key or value as stored, to a row of its planes and back (kv_part_bytes). The index stays. */
void kv_page_get_side(const struct kv_class *kind, enum kv_side side, const uint8_t *page,
                      int32_t slot, uint8_t *out);
void kv_page_put_side(const struct kv_class *kind, enum kv_side side, uint8_t *page, int32_t slot,
                      const uint8_t *bytes);
/* columns.c: the same of keys that lie side by side. */
void kv_columns_write(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page,
                      int32_t slot, int32_t n, const float *rows, size_t stride);
void kv_columns_read(const struct kv_cache *cache, const struct kv_class *kind, const uint8_t *page,
                     int32_t slot, float *out);
void kv_columns_move(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                     const struct kv_page_part *part, int32_t n_part);
/* The elements of a plane that belong to one entry, to a row and back. */
void kv_columns_get(const struct kv_plane *plane, const uint8_t *page, int32_t page_len,
                    int32_t slot, uint8_t *row);
void kv_columns_put(const struct kv_plane *plane, uint8_t *page, int32_t page_len, int32_t slot,
                    const uint8_t *row);
/* Transposes the keys of all places of a page, and back. The layouts of the pages are equal
   otherwise. */
void kv_columns_from_rows(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page,
                          const uint8_t *rows);
void kv_columns_to_rows(const struct kv_cache *cache, const struct kv_class *kind,
                        const uint8_t *page, uint8_t *rows);

/* Copies the rows of `size` bytes that lie from an offset of a page on. */
void kv_page_move_rows(const struct kv_class *kind, int32_t to, const struct kv_page_part *part,
                       int32_t n_part, size_t offset, size_t size);
/* Entries as stored, and their index. */
void kv_page_move_bytes(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                        const struct kv_page_part *part, int32_t n_part);

/* index.c. */
/* Makes what belongs to entries slot .. slot + n of a page of lane number `lane`; their keys are
   written. */
void kv_index_write(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
                    uint8_t *page, int32_t slot, int32_t n);
/* Makes what belongs to a page whose page_len entries are written. */
void kv_index_finish(const struct kv_cache *cache, const struct kv_class *kind, uint8_t *page);
/* Moves the index of entries with them. Parts as in kv_page_move. */
void kv_index_move(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                   const struct kv_page_part *part, int32_t n_part);
/* Bounds of the first n entries of a page: each dimension's least key, then each one's largest, out
   [2][dim_k]. The sum of dimensions d .. d + n_dim of their values, one after the other, out
   [n_dim]. d is a multiple of KV_CODEC_MAX and n_dim at most that. */
void kv_index_bounds(const struct kv_cache *cache, const struct kv_class *kind, const uint8_t *page,
                     int32_t n, float *out);
void kv_index_value_sum(const struct kv_cache *cache, const struct kv_class *kind,
                        const uint8_t *page, int32_t n, int32_t d, int32_t n_dim, float *out);
/* A lane's matrix times x [dim_k], out [index_dim]: by cpu/score.h's arithmetic of few vectors. */
void kv_index_project(const struct kv_cache *cache, int32_t lane, const float *x, float *out);

/* gather.c. Some of a lane's entries, tile after tile. */
enum { KV_GATHER_LEN = 64 }; /* entries of a tile, at most */

struct kv_cursor {
    int32_t at;    /* slots that are done */
    int32_t index; /* table entry that the next one does not lie before */
    int32_t begin; /* its first slot */
};

/* A part of a page whose entries have rows of `size` bytes. */
struct kv_gather_part {
    size_t from; /* offset in a page */
    size_t to;   /* and in the tile */
    size_t size;
};

struct kv_gather {
    const struct kv_cache *cache;
    const struct kv_lane *lane;
    const int32_t *slots; /* [n] ascending */
    int32_t n;
    struct kv_cursor here;        /* the next entry to gather */
    struct kv_cursor asked;       /* the next entry to prefetch */
    struct kv_page_layout layout; /* of the tile: a page of KV_GATHER_LEN entries, no index */
    uint8_t *tile;                /* [layout.stride], 64-byte aligned */
    int32_t pos[KV_GATHER_LEN];
    struct kv_gather_part part[2 * KV_N_PLANE];
    int32_t n_part;
};

size_t kv_gather_bytes(const struct kv_geometry *g); /* of the largest tile of any layer */
void kv_gather_start(struct kv_gather *g, const struct kv_cache *cache, const struct kv_lane *lane,
                     const int32_t *slots, int32_t n, uint8_t *tile);
/* Fills the tile with the next entries, *n of them. All are read *delta positions later than
   written and count *n_folded additional times. False when there are none left. */
bool kv_gather_next(struct kv_gather *g, int32_t *n, int32_t *delta, int32_t *n_folded);
/* Asks the memory for entries of the slots before number `end` of the list. */
void kv_gather_ask(struct kv_gather *g, int32_t end);

/* run.c. A page of a class as kernels see it, at `page`, with a layout of its types. n of page_len
   places are in use, and have these positions. */
void kv_page_view(const struct kv_class *kind, const struct kv_page_layout *layout,
                  const uint8_t *page, const int32_t *pos, int32_t page_len, int32_t n,
                  struct pi_attend_page *out);

/* attend_query.c. Turns a vector by cosines and sines that pi_rope_fill_delta wrote. */
void kv_rotate(const struct pi_rope *rope, const float *cs, float *x);

/* Where the queries of attention go. */
struct kv_queries {
    float *q;           /* [block][dim_k][rows of the block], or with pairs half as many of these
                           (cpu/attend.h), or where keys are q8_0 codes, in the same places */
    int32_t block_rows; /* of all blocks but the last */
    bool pairs;
};

/* The queries of a job as they meet keys of pages with a delta. row, cs: [dim_k], overwritten. */
void kv_queries_put(const struct kv_attend_job *job, const struct kv_part *k, int32_t delta,
                    float *row, float *cs, const struct kv_queries *to);

/* Where the codes, the scales and the sums of a block's rows are in its place. */
static inline struct pi_attend_codes kv_query_codes(float *block, int32_t dim, int32_t n_row)
{
    float *scale = block + (size_t)(dim / 4) * (size_t)n_row;
    return (struct pi_attend_codes){
        .code = (uint32_t *)(void *)block,
        .scale = scale,
        .sum = (int32_t *)(void *)(scale + (size_t)(dim / 32) * (size_t)n_row),
    };
}

/* Smallest stored position that row r sees in pages with a delta of a lane with a window. */
int32_t kv_query_first(const struct kv_attend_job *job, int32_t window, int32_t r, int32_t delta);
/* The largest stored position that row r sees in pages with a delta, and the same for all rows from
   r0 on. */
int32_t kv_query_limit(const struct kv_attend_job *job, int32_t r, int32_t delta);
void kv_query_limits(const struct kv_attend_job *job, int32_t delta, int32_t r0, int32_t n_row,
                     int32_t *out);

/* A row's values or codes: one plane of bits, turbo3 another of each code's bit 2, and scales. */
struct kv_row {
    uint8_t *low;
    uint8_t *high;
    uint16_t *scale;
};
struct kv_stored_row {
    const uint8_t *low;
    const uint8_t *high;
    const uint16_t *scale;
};

/* codec.c. A value beyond the type's range is stored as the nearest finite value, NaN as 0. Masked
   slots are multiplied by 0 and must not poison others. */
struct kv_coder {
    /* n <= KV_CODEC_MAX dimensions of one row, a multiple of the group; scales [n / group]. */
    void (*encode)(const float *x, int32_t n, int32_t group, const struct kv_row *out);
    /* Any n that is a multiple of the group. Rotated values stay rotated. */
    void (*decode)(const struct kv_stored_row *row, int32_t n, int32_t group, float *out);
};

extern const struct kv_coder kv_coders[KV_N_TYPE];
/* The largest magnitude that a type can hold as it is, or close to it. */
float kv_codec_limit(enum kv_type type);

/* coded.c. The numbers of a type's codes in groups of a length, [KV_CODE_MAX], repeated where there
   are fewer codes; constant. NULL for types without. */
const float *kv_codec_table(enum kv_type type, int32_t group);

/* One group of the rotated types, encoded: codes [group] and the scale as f16. centroid [1 << bits]
   ascends. */
uint16_t kv_coded_encode(const float *x, int32_t group, const float *centroid, int32_t bits,
                         uint8_t *code);
/* Codes [n], n a multiple of 8, to planes and back. high is NULL but for codes of 3 bits. */
void kv_codes_pack(const uint8_t *code, int32_t n, int32_t bits, uint8_t *low, uint8_t *high);
void kv_codes_unpack(const uint8_t *low, const uint8_t *high, int32_t n, int32_t bits,
                     uint8_t *code);
void kv_q4_encode(const float *x, int32_t n, int32_t group, const struct kv_row *out);
void kv_turbo4_encode(const float *x, int32_t n, int32_t group, const struct kv_row *out);
void kv_turbo3_encode(const float *x, int32_t n, int32_t group, const struct kv_row *out);
void kv_turbo2_encode(const float *x, int32_t n, int32_t group, const struct kv_row *out);
void kv_q4_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out);
void kv_turbo4_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out);
void kv_turbo3_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out);
void kv_turbo2_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out);

/* ---- the operations of the device's table (store.c, attend.c, score.c, choose.c, run.c) ---- */

size_t cpu_attend_scratch(const struct kv_geometry *g, int32_t n_row);
int32_t cpu_attend_tile(int32_t n_group);
size_t cpu_score_scratch(const struct kv_geometry *g, int32_t n_q);
void cpu_append(struct pi_stream *s, const struct kv_append *jobs, int32_t n);
void cpu_attend(struct pi_stream *s, const struct kv_attend_list *list);
void cpu_attend_one(const struct kv_attend_job *job, void *scratch);
void cpu_score(struct pi_stream *s, const struct kv_score_list *list);
void cpu_score_one(const struct kv_score_job *job, void *scratch);
void cpu_choose(struct pi_stream *s, const struct kv_choose_list *list);
void cpu_choose_all(struct pi_stream *s, const struct kv_choose_all *job);
void cpu_decode_run(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                    enum kv_side side, float *out);
void cpu_value_sum(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n, float *out);
void cpu_decode_entry(const struct kv_place *p, enum kv_side side, float *out);
void cpu_encode_entry(const struct kv_place *p, enum kv_side side, const float *row);
void cpu_get_entry(const struct kv_place *p, enum kv_side side, uint8_t *out);
void cpu_put_entry(const struct kv_place *p, enum kv_side side, const uint8_t *bytes);
void cpu_fill(const struct kv_copy *c, const int32_t *slots, int32_t n, int32_t to_slot);
void cpu_index(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
               int32_t page, int32_t slot, int32_t n);
void cpu_finish(const struct kv_cache *cache, const struct kv_class *kind, int32_t page);
void cpu_norms(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
               int32_t slot, int32_t n, uint16_t *out);
void cpu_copy(const struct kv_cache *cache, const struct kv_class *kind, int32_t to, int32_t from);
void cpu_read_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                   enum kv_page_form form, uint8_t *out);
void cpu_write_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                    enum kv_page_form form, const uint8_t *bytes);
void cpu_clear_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page);

/* The operations that do not depend on where addresses are. */
#define CPU_OPERATIONS                                                                             \
    .free = cpu_free, .unmap = cpu_unmap, .drop = cpu_drop, .close = cpu_stream_free,              \
    .wait = cpu_wait, .rows = cpu_rows, .product = cpu_product,                                    \
    .product_heads = cpu_product_heads, .product_experts = cpu_product_experts,                    \
    .moe_sort = cpu_moe_sort, .delta_conv = cpu_delta_conv, .delta_turn = cpu_delta_turn,          \
    .attend_scratch = cpu_attend_scratch, .score_scratch = cpu_score_scratch,                      \
    .attend_tile = cpu_attend_tile, .append = cpu_append, .attend = cpu_attend,                    \
    .attend_one = cpu_attend_one, .score = cpu_score, .score_one = cpu_score_one,                  \
    .choose = cpu_choose, .choose_all = cpu_choose_all, .decode_run = cpu_decode_run,              \
    .value_sum = cpu_value_sum, .decode_entry = cpu_decode_entry,                                  \
    .encode_entry = cpu_encode_entry, .get_entry = cpu_get_entry, .put_entry = cpu_put_entry,      \
    .fill = cpu_fill, .index = cpu_index, .finish = cpu_finish, .norms = cpu_norms,                \
    .move = kv_page_move_bytes, .copy = cpu_copy, .read_page = cpu_read_page,                      \
    .write_page = cpu_write_page, .clear_page = cpu_clear_page

#endif
