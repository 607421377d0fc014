/*
 * attend.h - the working memory of a call of attention, for attend.c and attend_weights.c alone.
 */
#ifndef PI_DEVICE_CPU_ATTEND_H
#define PI_DEVICE_CPU_ATTEND_H

#include "device/cpu/cpu.h"
#include "device/cpu/pages.h"

/* Stretches of a row of weights that wait for the row's last maximum. The maximum of random logits
   moves about as often as the logarithm of the pages; more stretches than these are joined. */
#define MAX_STRETCH 32

/* Weights of a row that were stored relative to the same maximum: those from a slot on, up to where
   the next stretch begins. The first begins at slot 0. */
struct stretches {
    int32_t n;
    int32_t slot[MAX_STRETCH];
    float rescale[MAX_STRETCH]; /* the factor of earlier stretches; the first one's is unused */
};

/* One call's working memory, parts of the caller's scratch. */
struct attend {
    const struct kv_attend_job *job;
    const struct kv_cache *cache;
    const struct kv_lane *lane;
    const struct pi_attend_kernels *cpu;
    int32_t len;        /* entries that are read, of which slots and rows of a tap are numbers */
    int32_t n_row;      /* n_tok * n_group; row r is query (r / n_group, r % n_group) */
    int32_t block_rows; /* rows of one kernel call */
    bool decoded;       /* pages are decoded to f32 first, or put in pairs */
    bool pairs_k;       /* the latter, of keys and queries */
    bool pairs_v;
    bool guest;          /* lane is that of the job's guests, which no tap is shown */
    bool weights;        /* they are wanted of the lane */
    const uint8_t *next; /* page, whose rest is prefetched beside the softmax; NULL: none */
    int32_t look_ahead;  /* pages between the one that is read and the one that is prefetched */
    int32_t delta;       /* the queries in q are rotated for pages with this delta */
    int32_t n_folded;    /* additional times that each of the page's entries counts */
    float *q;            /* [block][dim_k][rows of the block], or half as many pairs */
    float *row;          /* [dim_k] a query on its way into q */
    float *cs;           /* [dim_k] cosines and sines of a rotation */
    float *x;            /* [PI_ATTEND_ROWS][PI_ATTEND_SLOTS] */
    float *o;            /* [n_row][dim_v] */
    float *max;          /* [n_row] */
    float *sum;          /* [n_row] */
    float *rescale;      /* [PI_ATTEND_ROWS] */
    int32_t *limit;      /* [PI_ATTEND_ROWS] */
    struct stretches *stretch;     /* [n_row] of rows whose weights are wanted, but in parts */
    struct kv_weight_parts *parts; /* NULL: weights are not wanted in parts, or have no room */
    float *moved;                  /* [n_row] replaces rescale; NULL: the page needs none */
    void *k;       /* f32 [dim_k][page_len or tile] decoded, side by side, or pairs */
    void *v;       /* f32 [page_len or tile][dim_v] decoded, or pairs */
    uint8_t *tile; /* of the entries that are gathered */
    struct kv_gather gather;
};

/* ---- attend_weights.c ---- */

/* 1 / sum of row r, 0 for a row that sees nothing. */
static inline float cpu_inverse_sum(const struct attend *a, int32_t r)
{
    return a->sum[r] > 0.0f ? 1.0f / a->sum[r] : 0.0f;
}

/* Parts are taken where every page of the lane has room for one. */
void cpu_parts_start(struct attend *a);
/* The next page, which ends before a slot, is a part; rows r0.. see nothing of it. */
void cpu_part_begin(struct attend *a, int32_t end);
void cpu_part_pass(const struct attend *a, int32_t r0, int32_t n_row);
/* After rows r0.. have seen the page that begins at a slot. */
void cpu_weights_note(const struct attend *a, int32_t r0, int32_t n_row, int32_t slot);
/* Rows r0.. see nothing of the n entries from a slot on. */
void cpu_weights_clear(const struct attend *a, int32_t r0, int32_t n_row, int32_t slot, int32_t n);
/* The weights of a page that the kernels left in x. */
void cpu_weights_copy(const struct attend *a, int32_t r0, int32_t n_row, int32_t slot, int32_t n);
/* When the last page is done. */
void cpu_weights_finish(const struct attend *a);

#endif
