/*
 * checked.h - the inside of the checked device: memory that is closed but while an operation of the
 * device runs, and streams whose operations run late.
 */
#ifndef PI_DEVICE_CHECKED_H
#define PI_DEVICE_CHECKED_H

#include "device/device.h"

/* ---- memory.c: the table's ---- */

struct pi_at checked_alloc(struct pi_device *d, enum pi_mem_tag tag, size_t size);
void checked_free(struct pi_device *d, struct pi_at at);
void checked_unmap(struct pi_device *d, enum pi_mem_tag tag, struct pi_at at, size_t size);

/* Between the two memory of the device can be read and written, by any thread: all of it, or pages
   of the store. Threads may call at the same time: memory closes with the last that leaves. */
enum checked_what { CHECKED_ALL, CHECKED_PAGES };
void checked_enter(enum checked_what what);
void checked_leave(enum checked_what what);
/* The same of a range of one block, for the calling thread. Others wait until it leaves. */
void checked_enter_range(struct pi_at from, size_t size);
void checked_leave_range(struct pi_at from, size_t size);
/* Bytes of one block to the host and back, outside of these. */
void checked_copy_out(struct pi_at from, size_t size, void *out);
void checked_copy_in(const void *in, size_t size, struct pi_at to);

/* ---- queue.c ---- */

struct checked_queue;

/* A kind of operation of a stream. Its arguments are a struct of `size` bytes. */
struct checked_kind {
    size_t size;
    /* Replaces pointers in the arguments by copies of their memory. False: there is no room. NULL:
       they point to nothing. */
    bool (*copy)(struct checked_queue *q, void *args);
    /* On a stream of the processor's kind, with the memory open. */
    void (*run)(struct pi_stream *inner, const void *args);
};

struct pi_stream *checked_open(struct pi_device *d, const struct pi_stream_shape *shape);
void checked_close(struct pi_stream *s);

/* Runs an operation later: with the next call that awaits its stream. Where there is no room for a
   copy of its arguments it runs at once, after all before it. */
void checked_ask(struct pi_stream *s, const struct checked_kind *kind, const void *args);
/* Runs the stored operations of a stream; NULL: of all. */
void checked_wait(struct pi_stream *s);
/* The stream of the processor's kind that a stream's operations run on. */
struct pi_stream *checked_inner(struct pi_stream *s);

/* A copy of n bytes that lasts until the operation has run; NULL: there is no room. keep of 0 bytes
   is no failure. */
void *checked_keep(struct checked_queue *q, const void *data, size_t n);

/* ---- late.c: the table's operations on streams ---- */

void checked_upload(struct pi_stream *s, const void *host, size_t size, struct pi_at to);
void *checked_download(struct pi_stream *s, struct pi_at from, size_t size, void *room);
void checked_rows(struct pi_stream *s, enum pi_rows_body body, const void *args, int64_t n_row,
                  int64_t work);
void checked_product(struct pi_stream *s, const struct pi_product *p);
void checked_product_heads(struct pi_stream *s, const struct pi_product_heads *p);
void checked_product_experts(struct pi_stream *s, const struct pi_product_experts *p);
void checked_moe_sort(struct pi_stream *s, const struct pi_moe_rule *rule,
                      const struct pi_moe_places *places, int32_t n_tok);
void checked_delta_conv(struct pi_stream *s, const struct pi_delta_rows *d, struct pi_at w,
                        const struct pi_delta_item *items, int32_t n);
void checked_delta_turn(struct pi_stream *s, const struct pi_delta_rows *d,
                        const struct pi_delta_item *items, int32_t n);

/* ---- lanes.c: those that read tables of lanes ---- */

void checked_append(struct pi_stream *s, const struct kv_append *jobs, int32_t n);
void checked_attend(struct pi_stream *s, const struct kv_attend_list *list);
void checked_score(struct pi_stream *s, const struct kv_score_list *list);
void checked_choose(struct pi_stream *s, const struct kv_choose_list *list);

#endif
