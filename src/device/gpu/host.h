/*
 * host.h - the inside of a device of GPU kind: the host's part of it, and the operations of the
 * table (device.h has their contracts). All operations run one after the other, on any stream. A
 * lock lets one thread in at a time.
 */
#ifndef PI_GPU_HOST_H
#define PI_GPU_HOST_H

#include "base/lock.h"
#include "base/mem.h"
#include "device/device.h"
#include "device/gpu/driver.h"
#include "kv/attend.h"
#include "kv/choose.h"
#include "kv/internal.h"
#include "kv/page.h"
#include "kv/score.h"
#include "kv/weigh.h"

/* Addresses whose chunks get memory when they are first touched. */
struct gpu_mapping {
    gpu_at at;
    size_t size;
    uint64_t *touched; /* a bit for each chunk */
    void *host;        /* pinned memory of the host, which is always there; NULL: the device's */
    struct gpu_mapping *next;
};

/* Memory of the device that grows, and is not kept from one operation to the next. */
enum gpu_room {
    GPU_ROOM_X,       /* packed activations */
    GPU_ROOM_X_SCALE, /* and their powers of two */
    GPU_ROOM_PART,    /* sums of stretches, or of chunks */
    GPU_ROOM_ML,      /* maxima and sums of chunks */
    GPU_ROOM_QUERY,   /* packed queries */
    GPU_ROOM_REFS,    /* lists of pages, which stay until the room grows */
    GPU_ROOM_GATHER,  /* entries that attention reads, as pages or as a list */
    GPU_ROOM_HOST,    /* rows of the host's */
    GPU_ROOM_SCORE,   /* scores of a round, which last until the next */
    GPU_ROOM_LOGITS,  /* of calls whose weights are looked at, and maxima and sums of rows */
    GPU_ROOM_NOTE,    /* notes for arrays of the host, rows for the host */
    GPU_ROOM_VOTES,   /* sums of weights of a round's queries */
    GPU_N_ROOM
};

struct gpu_block {
    gpu_at at;
    size_t size;
};

/* Bytes of a mapping that the host asked for, and those behind them. */
struct gpu_ahead {
    gpu_at at;
    size_t size;
    bool has;       /* they are in bytes */
    uint64_t asked; /* the driver's count: they are as on the device while it stays */
    uint8_t *bytes;
};

/* A packed matrix, or several that lie one behind the other; what pi_weight.data has the address
   of. */
struct gpu_weight {
    enum gpu_weight_type type;
    gpu_at at;
    size_t size, slab_bytes;
    int32_t n_block; /* of 256 columns */
    float scale;     /* what products are multiplied by */
};

/* Rows whose packed form is up to date in GPU_ROOM_X; x 0: there are none. */
struct gpu_packed_rows {
    gpu_at x;
    int32_t n_tok, n_col;
};

/* A copy of rope's frequencies. */
struct gpu_rope {
    gpu_at freq;
    double *copy; /* [n_pair] */
    int32_t n_pair;
};

/* Pages of a lane in the host's memory, as a lane of a sequence of their own. */
struct gpu_stage {
    struct kv_class kind;
    struct kv_seq seq;
    struct kv_lane *lane; /* [n_lane] */
    struct kv_page_ref *table;
    uint8_t *page; /* [n][stride] */
    int32_t *pos;
    size_t n_lane;
};

/* A page on its way to be filled: its parts begin there. */
struct gpu_goal {
    struct kv_page_goal of;
    size_t part;
};
struct gpu_moving {
    const void *lane;
    size_t n_goal, first, last; /* chunks */
};
/* Goals of a lane that came in one call. */
struct gpu_move_chunk {
    size_t first, n, next; /* of the lane; 0: it is the last one */
};
/* Moves that wait (compact.c), of one class. */
struct gpu_moves {
    const struct kv_cache *cache;
    const struct kv_class *kind;
    struct gpu_moving *lane;
    int32_t *place; /* [cap_place], a power of two: 1 + the number of the lane that hashes there */
    size_t cap_place;
    struct gpu_move_chunk *chunk;
    struct gpu_goal *goal;
    struct kv_page_part *part;
    size_t n_lane, n_chunk, n_goal, n_part;
};

/* Marks that wait to be packed. */
struct gpu_mark_moves {
    const struct kv_cache *cache;
    struct gpu_marks_lane *lane;
    struct gpu_marks_run *run;
    size_t n_lane, n_run, n_source;
};

enum { GPU_COUNTS = 1024 };
/* Entries that wait (entries.c), to pages of one class. */
/* Kernels ask this of a class: others may have the same. */
struct gpu_form {
    const struct kv_class *kind; /* the last of them */
    struct gpu_part k, v;
    int32_t page_len;
};

struct gpu_entries {
    const struct kv_cache *cache;
    struct gpu_form to, from; /* from: of other lanes, which some rows come from: `copies` */
    bool copies;
    struct gpu_entry_row *row;
    struct gpu_index_row *index; /* made behind them */
    uint8_t *bytes;              /* of the host: `from` and 1 + `shift` of a row begin there */
    uint64_t *place;             /* [cap_place] a set of the places that rows read or write */
    size_t n, n_index, n_byte, n_place, cap_place;
};

/* A copy of projections. */
struct gpu_projection {
    const float *of;
    gpu_at at;
    size_t size;
};

enum { GPU_N_ROPE = 4, GPU_JOBS = 512 /* calls of attention that are made together */ };

struct gpu_device {
    struct pi_device base;
    struct gpu_card *card;
    struct gpu_driver *driver; /* over the card */
    struct pi_lock lock;
    bool lost;               /* what is in some page is not what it was to be */
    bool attend_wgmma;       /* attention may take attend_wgmma.cuh */
    bool carries;            /* copies beside passes may be on their way */
    struct gpu_block *block; /* [n_block] what was given out, in any order */
    size_t n_block, cap_block;
    struct gpu_block spare[2]; /* given back; at 0: none */
    struct gpu_mapping *mapping;
    struct gpu_weight **weight; /* [n_weight] */
    size_t n_weight, cap_weight;
    struct gpu_block room[GPU_N_ROOM];
    struct gpu_packed_rows packed;
    struct gpu_rope rope[GPU_N_ROPE];
    int32_t next_rope;
    gpu_at padded;          /* int32 [PI_MOE_MAX_EXPERT + 1] */
    int32_t *clipped_host;  /* the least that append noted, in the host's memory, */
    gpu_at clipped;         /* and where kernels see it */
    struct kv_cache *noted; /* the cache of that number; NULL: none */
    struct gpu_ahead ahead;
    gpu_at counts;             /* gpu_counts; 0: not yet */
    struct gpu_stage stage[2]; /* of a lane, and of its guests */
    struct gpu_moves moves;
    struct gpu_mark_moves marks;
    struct gpu_entries entries;
    struct gpu_projection projection;
    struct gpu_pinned *pinned; /* blocks of the host */
    void *rows;                /* entries whose index is made */
    uint8_t *list;             /* rows on their way */
    void *scratch;             /* of the processor's attention */
    void *votes;               /* struct kv_note [lanes of a layer] of a round */
    struct gpu_attend *attend; /* what attend.c knows of lists of pages; NULL: nothing yet */
};

struct gpu_stream {
    struct pi_stream base;
    struct kv_attend_job job[GPU_JOBS + 1]; /* that are made together, and the next one */
};

/* Of a lane's address, or another's. */
static inline size_t gpu_hash(const void *p)
{
    return (size_t)(((uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u) >> 20);
}

static inline struct gpu_device *gpu_of(struct pi_device *d)
{
    return (struct gpu_device *)d;
}

static inline struct gpu_device *gpu_of_stream(struct pi_stream *s)
{
    return gpu_of(s->device);
}

static inline struct gpu_device *gpu_of_class(const struct kv_class *kind)
{
    return gpu_of(kind->device);
}

static inline struct gpu_device *gpu_of_lane(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return gpu_of_class(kv_lane_at(seq, layer, head)->kind);
}

/* pinned.c: memory of the host for copies beside passes, pinned for many at a time; NULL: none is
   left. A part that is given back is free for the next one. All are when the device is freed. */
void *gpu_pinned_take(struct gpu_device *d, size_t size);
void gpu_pinned_give(struct gpu_device *d, void *host);
void gpu_pinned_free(struct gpu_device *d);

/* device.c */
/* Counts, uint32 [GPU_COUNTS]; 0: no memory. The first is step.cuh's barrier's. The others are
   zeros, for kernels whose last block does more, and every launch leaves them so. */
gpu_at gpu_counts(struct gpu_device *d);
/* Begins an operation, after copies beside passes. */
void gpu_enter(struct gpu_device *d);
/* Begins one of a pass, which does not wait for them. */
void gpu_enter_pass(struct gpu_device *d);
/* Likewise, for an operation that itself tells whether packed rows stay up to date (product.c). All
   others make them out of date. */
void gpu_enter_product(struct gpu_device *d);
/* Likewise, for an operation beside moves that wait. */
void gpu_enter_beside(struct gpu_device *d);
void gpu_leave(struct gpu_device *d);
/* Room for a list that kernels read, and where to write it now; 0: there is none. gpu_send says
   that the first bytes of it are written, before the kernels that read it run. One list is written
   at a time. It stays as it is until the operation ends. */
gpu_at gpu_list(struct gpu_device *d, size_t size, void **host);
void gpu_send(struct gpu_device *d, gpu_at list, size_t size);
/* Blocks of the kernel's threads, its shared memory, its struct. */
void gpu_run(struct gpu_device *d, enum gpu_kernel kernel, int64_t x, int64_t y, int64_t z,
             size_t smem, const void *args);
/* Takes the note of appending to its cache, when all is done. */
void gpu_fold_clipped(struct gpu_device *d);

/* memory.c; the first seven are operations of the table */
struct pi_at gpu_alloc(struct pi_device *device, enum pi_mem_tag tag, size_t size);
void gpu_free(struct pi_device *device, struct pi_at at);
struct pi_at gpu_map(struct pi_device *device, enum pi_mem_tag tag, size_t size);
void gpu_unmap(struct pi_device *device, enum pi_mem_tag tag, struct pi_at at, size_t size);
struct pi_at gpu_map_host(struct pi_device *device, size_t size);
void gpu_drop(struct pi_device *device, struct pi_at at, size_t size);
bool gpu_spare(struct pi_device *device, size_t size);
void gpu_free_spare(struct gpu_device *d, struct gpu_block *spare);
/* The mapping that an address is in; NULL: none. */
struct gpu_mapping *gpu_mapping_of(struct gpu_device *d, gpu_at at);
/* Gives memory to what is in a mapping, before it is touched; false: none is left. */
bool gpu_touch(struct gpu_device *d, gpu_at at, size_t size);
/* To the host from a mapping. Where the host goes through its pages one by one, those behind come
   along. */
void gpu_get_near(struct gpu_device *d, void *host, gpu_at from, size_t size);
/* Room of at least `size` bytes; 0: there is none, and the driver says so. */
gpu_at gpu_room(struct gpu_device *d, enum gpu_room room, size_t size);
/* Host memory of at least `size` bytes in the place of *block; false: none is left. */
bool gpu_host_room(struct gpu_device *d, void **block, size_t size);
/* Room of the host for n more elements behind `used`; false: no memory. */
bool gpu_host_grow(struct gpu_device *d, void **block, size_t used, size_t n, size_t size);

/* pack.c */
enum gpu_weight_type gpu_weight_type_of(enum pi_dtype type);
struct pi_at gpu_pack(struct pi_device *d, const struct pi_matrix *w, int32_t n_slab);
struct pi_at gpu_pack_vector(struct pi_device *d, const float *x, size_t n);
void gpu_unpack(struct pi_device *d, struct pi_at at);
void gpu_weight_free(struct gpu_device *d, struct gpu_weight *w);

/* product.c */
/* Where a kernel that writes rows x leaves their packed form, so that a product that comes next
   finds it. The kernel writes the rows of all tokens, in the operation that asks. */
struct gpu_packed gpu_packs(struct gpu_device *d, gpu_at x, int64_t n_tok, int32_t n_col);
void gpu_product(struct pi_stream *s, const struct pi_product *p);
void gpu_product_heads(struct pi_stream *s, const struct pi_product_heads *p);
void gpu_product_experts(struct pi_stream *s, const struct pi_product_experts *p);

/* rows.c */
/* The device's copy of frequencies; 0: no memory. */
gpu_at gpu_freq(struct gpu_device *d, const struct pi_rope *rope);
void gpu_rows(struct pi_stream *s, enum pi_rows_body body, const void *args, int64_t n_row,
              int64_t work);
void gpu_moe_sort(struct pi_stream *s, const struct pi_moe_rule *rule,
                  const struct pi_moe_places *places, int32_t n_tok);
void gpu_delta_conv(struct pi_stream *s, const struct pi_delta_rows *d, struct pi_at w,
                    const struct pi_delta_item *items, int32_t n);
void gpu_delta_turn(struct pi_stream *s, const struct pi_delta_rows *d,
                    const struct pi_delta_item *items, int32_t n);

/* store.c; carry.c: over the host's memory */
struct gpu_part gpu_part_of(const struct kv_class *kind, const struct kv_part *part, bool keys);
static inline gpu_at gpu_page_at(const struct kv_class *kind, int32_t page)
{
    return kind->pool.at + (size_t)page * kind->layout.stride;
}
/* Gives memory to a page before it is used. Where there is none, the page's contents are lost. */
static inline void gpu_touch_page(struct gpu_device *d, const struct kv_class *kind, int32_t page)
{
    d->lost = !gpu_touch(d, gpu_page_at(kind, page), kind->layout.stride) || d->lost;
}
/* The planes of a page that belong to entries. */
void gpu_planes_of(struct gpu_move_args *a, const struct kv_cache *cache,
                   const struct kv_class *kind);
void gpu_append(struct pi_stream *s, const struct kv_append *jobs, int32_t n);
void gpu_note_clipped(struct pi_device *device);
/* The cache whose clipped entries are noted from now on. */
void gpu_note_for(struct gpu_device *d, struct kv_cache *cache);
void gpu_move(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
              const struct kv_page_part *part, int32_t n_part);
void gpu_copy(const struct kv_cache *cache, const struct kv_class *kind, int32_t to, int32_t from);
void gpu_clear_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page);
void gpu_read_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                   enum kv_page_form form, uint8_t *out);
void gpu_write_page(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                    enum kv_page_form form, const uint8_t *bytes);

/* Pages of a lane to the host, as the only lane with entries of the stage's sequence; false: no
   memory. A page alone is page 0 of the stage's class. */
bool gpu_stage_lane(struct gpu_device *d, int which, const struct kv_seq *seq, int32_t layer,
                    int32_t head);
bool gpu_stage_page(struct gpu_device *d, const struct kv_class *kind, int32_t page);
void gpu_stage_free(struct gpu_stage *stage);
void gpu_decode_run(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                    enum kv_side side, float *out);
void gpu_value_sum(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t n, float *out);
void gpu_decode_entry(const struct kv_place *p, enum kv_side side, float *out);
void gpu_encode_entry(const struct kv_place *p, enum kv_side side, const float *row);
void gpu_get_entry(const struct kv_place *p, enum kv_side side, uint8_t *out);
void gpu_put_entry(const struct kv_place *p, enum kv_side side, const uint8_t *bytes);
void gpu_fill(const struct kv_copy *c, const int32_t *slots, int32_t n, int32_t to_slot);

/* entries.c: what waits is done; the index of entries that wait is made behind them (false: they do
   not wait). */
void gpu_flush_entries(struct gpu_device *d);
void gpu_entries_free(struct gpu_device *d);
bool gpu_index_later(struct gpu_device *d, const struct kv_cache *cache,
                     const struct kv_class *kind, int32_t lane, int32_t page, int32_t slot,
                     int32_t n);

/* apart.c */
void gpu_apart(const struct kv_apart_list *list);

/* keep.c; choices are of choose.c */
void gpu_weigh(struct pi_stream *s, const struct kv_weigh_list *list);
void gpu_choose(struct pi_stream *s, const struct kv_choose_list *list);
void gpu_choose_all(struct pi_stream *s, const struct kv_choose_all *job);

/* votes.c: sums of the weights that a round's queries give, to be there for gpu_weigh; outside of
   operations; false: no memory. And inside: where lane i of the list has them, and how many entries
   are scored. */
bool gpu_votes(struct pi_stream *s, const struct kv_weigh_list *list);
gpu_at gpu_votes_at(struct gpu_device *d, int32_t i);
int32_t gpu_votes_before(const struct kv_weigh_set *set, const struct kv_weigh_votes *votes);

/* compact.c */
void gpu_move_lane(const struct kv_cache *cache, const struct kv_lane_moves *m);
/* The moves of a lane that wait; NULL: none do. */
struct gpu_moving *gpu_moving_of(const struct gpu_moves *all, const void *lane);
/* Does the moves that wait. */
void gpu_flush_moves(struct gpu_device *d);
void gpu_moves_free(struct gpu_device *d);

/* note.c */
/* The device gets the marks of a lane's first n entries that it has not yet. Or the host gets all,
   and the device forgets them. Inside of operations. */
void gpu_marks_up(struct gpu_device *d, const struct kv_seq *seq, struct kv_lane *lane, int32_t n);
void gpu_marks_down(struct gpu_device *d, const struct kv_seq *seq, struct kv_lane *lane);
/* Where a lane on the device has its row of mark i. */
gpu_at gpu_mark_at(const struct kv_seq *seq, const struct kv_lane *lane, int32_t i);
/* Where a lane has its norm of a slot; 0: the host has them. */
gpu_at gpu_norm_at(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot);
/* Marks of the entries that jobs append, lanes of one class. */
void gpu_marks_append(struct gpu_device *d, const struct kv_append *jobs, int32_t n);
void gpu_pack_marks(const struct kv_seq *seq, const struct kv_lane *lane, const int32_t *slots,
                    int32_t n);
void gpu_flush_marks(struct gpu_device *d);
/* Whether a call's weights are looked at: by notes, or by the host. */
static inline bool gpu_is_watched(const struct kv_attend_job *job)
{
    return job->tap != NULL;
}
/* Whether some note is for an array of the host. */
bool gpu_notes_host(const struct kv_attend_job *job);
/* Floats from row to row of a call's logits. */
size_t gpu_logits_stride(const struct kv_attend_job *job);
/* Notes of calls, and the rows that the host looks at, once their logits are there; at: as the
   launch has them. */
void gpu_note_calls(struct gpu_device *d, const struct kv_attend_job *jobs,
                    const struct gpu_attend_job *at, int32_t n);
/* learn.c */
void gpu_learn(struct pi_stream *s, const struct kv_learn_list *list);
void gpu_predict(struct pi_stream *s, const struct kv_predict_list *list);
void gpu_clone(struct pi_device *d, struct pi_at to, struct pi_at from, size_t size);
/* victim.c */
void gpu_victims(struct pi_stream *s, const struct kv_victim_list *list);

/* step.c */
bool gpu_step(struct pi_stream *s, const struct pi_step *p);

/* chosen.c */
void gpu_unite(struct pi_stream *s, const struct kv_unite_list *list);
void gpu_share(struct pi_stream *s, const struct kv_share_list *list);
void gpu_blend(struct pi_stream *s, const struct kv_blend_list *list);

/* entries.c */
/* The pages of the first n values of a lane; sums that no page has go to `room`, one after the
   other. Returns how many pages they are. */
int32_t gpu_list_values(const struct kv_seq *seq, const struct kv_lane *lane, int32_t n,
                        gpu_at room, struct gpu_value_page *page);
struct gpu_value_args gpu_value_args_of(const struct kv_class *kind);

/* asked.c */
void gpu_asked(struct pi_stream *s, const struct kv_asked_list *list);

/* read.c */
/* Rows of softmax that a caller has room for: maxima and 1 / sums of jobs, gpu_rows_bytes each, one
   behind the other. */
struct gpu_soft_rows {
    gpu_at at;
    bool only;    /* no scores are made of them */
    gpu_at asked; /* struct gpu_asked_job of each job, which change its rows; none: nothing does */
};
static inline size_t gpu_rows_bytes(int32_t n_vector)
{
    return pi_align((size_t)n_vector * 2 * sizeof(float), 256);
}
/* Scores jobs, and says where each one's scores are; rows may be NULL. Then brings them. */
bool gpu_score_jobs(struct gpu_device *d, struct kv_score_job *jobs, int32_t n,
                    const struct gpu_soft_rows *rows);
void gpu_score_fetch(struct gpu_device *d, const struct kv_score_job *jobs, int32_t n);
size_t gpu_score_scratch(const struct kv_geometry *g, int32_t n_q);
void gpu_score(struct pi_stream *s, const struct kv_score_list *list);
void gpu_score_one(const struct kv_score_job *job, void *scratch);
void gpu_index(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
               int32_t page, int32_t slot, int32_t n);
void gpu_finish(const struct kv_cache *cache, const struct kv_class *kind, int32_t page);
void gpu_norms(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
               int32_t slot, int32_t n, uint16_t *out);
/* The index of n entries, lanes of one layer; norms [n] of their values, NULL: not wanted. And that
   of full pages. Rows lie elsewhere than lists. */
void gpu_index_rows(struct gpu_device *d, const struct kv_cache *cache, const struct kv_class *kind,
                    const struct gpu_index_row *rows, int32_t n, uint16_t *norms);
void gpu_index_full(struct gpu_device *d, const struct kv_cache *cache, const struct kv_class *kind,
                    const struct gpu_index_row *rows, int32_t n);
/* The device's copy of the cache's projections; 0: no memory. */
gpu_at gpu_projection(struct gpu_device *d, const struct kv_cache *cache);
void gpu_forget_projection(struct gpu_device *d);

/* attend.c */
void gpu_attend_free(struct gpu_attend *s);
/* The list that the device keeps of a lane's pages. */
struct gpu_lane_list {
    gpu_at refs;    /* struct gpu_attend_ref [n_live] */
    bool is_turned; /* some page has a delta */
};
/* Brings the lists of n lanes up to date. They stay until the operation ends. False: no memory. */
bool gpu_attend_lists(struct gpu_device *d, const struct kv_lane *const *lanes, int32_t n,
                      struct gpu_lane_list *out);
/* The chunk of a page of 64 entries; and what attend.cuh calls the order of a class. */
int32_t gpu_chunk_of(int32_t page);
int32_t gpu_order_of(const struct gpu_part *k, const struct gpu_part *v, int32_t page_len);
/* 1 / (cap log2 e); 0 without a cap. */
float gpu_cap_by(float cap);
size_t gpu_attend_scratch(const struct kv_geometry *g, int32_t n_row);
int32_t gpu_attend_tile(int32_t n_group);
void gpu_attend(struct pi_stream *s, const struct kv_attend_list *list);
/* Whether kernels look at attention in the lanes of a layer. */
bool gpu_sees(const struct kv_seq *seq, int32_t layer);
void gpu_attend_one(const struct kv_attend_job *job, void *scratch);

/* sample.c */
void gpu_best(struct pi_stream *s, const struct pi_best_rows *b);

/* measure.c */
pith_status gpu_measure(struct pi_device *device, struct pith_machine *out, pith_error *err);

#endif
