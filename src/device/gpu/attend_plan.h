/*
 * attend_plan.h - shared by attend_plan.c, which finds the pages that calls of attention read, and
 * attend.c, which launches the kernels that read them.
 */
#ifndef PI_GPU_ATTEND_PLAN_H
#define PI_GPU_ATTEND_PLAN_H

#include "device/cpu/pages.h"
#include "device/gpu/host.h"

enum {
    GPU_ROWS = 16,       /* of a tile of calls */
    GPU_TILE = 64,       /* entries */
    GPU_TILE_ROWS = 128, /* rows of a call at full speed */
};

/* References of a table that go to the device. */
struct gpu_patch {
    gpu_at to;
    const struct kv_page_ref *from;
    int32_t n;
};

/* The kernel of a call: attend_part; for few rows attend_few or attend_decode; for many rows
   attend_many. That one reads pages as they are, or a copy of f16. Heads of other sizes take
   attend_wide, and of more rows than 16 attend_tall: a block has a chunk (SPLIT), or all. */
enum gpu_way {
    GPU_WAY_ANY,
    GPU_WAY_FEW,
    GPU_WAY_DECODE,
    GPU_WAY_MANY,
    GPU_WAY_COPY,
    GPU_WAY_WIDE,
    GPU_WAY_TALL_SPLIT,
    GPU_WAY_TALL
};

struct gpu_plan {
    const struct kv_attend_job *job;
    struct gpu_attend_list guests, own;
    /* Where entries are listed: own has tiles of 64, of n_guest guests and of listed entries. */
    struct gpu_attend_list lane, lane_guests; /* pages of both */
    int32_t n_guest, n_tile;
    int32_t first, end, n_low, high; /* struct gpu_attend_job */
    int32_t delta0, n_variant, n_chunk;
    int32_t per;    /* pages of the store that are one of these */
    int32_t most;   /* pages of a chunk, in a lane with a window */
    bool is_simple; /* all entries are in pages, or become pages */
    bool is_whole;  /* short pages that are one are full but the lane's last, and count once */
    size_t bytes;   /* of the list, at most */
    enum gpu_way way;
};

struct gpu_attend {
    struct lane_copy *lane; /* [cap_lane], a power of two: by the hash of the lane's address */
    size_t n_lane, cap_lane;
    size_t n_ref, cap_ref; /* of GPU_ROOM_REFS */
    int64_t n_launch;
    bool forgot; /* the lists were dropped, which plan_some has not seen */
    struct gpu_patch *patch;
    size_t n_patch, cap_patch;
    int32_t *delta; /* of all plans, one after the other */
    size_t n_delta, cap_delta;
    struct gpu_plan plan[GPU_JOBS];
    struct gpu_attend_job there[GPU_JOBS]; /* of a launch that keeps logits */
};

/* A list that goes to the device. */
struct gpu_listing {
    uint8_t *host; /* where it is written, and where it will be */
    gpu_at at;
    size_t used, size;
};

/* The next n elements of the list, and where they will be. */
void *gpu_take(struct gpu_listing *l, size_t n, size_t size, gpu_at *at);

/* References that a plan may take for a lane. */
size_t gpu_plan_want(const struct kv_seq *seq, const struct kv_attend_job *job);
/* Asks the processor's cache for what gpu_plan_make will look at of the calls behind the first of
   n. */
void gpu_plan_ask(const struct gpu_attend *s, const struct kv_attend_job *jobs, int32_t n);
/* The pages that a call reads. Where there is no room for references all lists are dropped. A
   launch begins anew then, with room for what was read lately and for `want`. False: no memory. */
bool gpu_plan_make(struct gpu_device *d, const struct kv_attend_job *job, size_t want,
                   struct gpu_plan *p);
/* Rows of sums of a call. */
size_t gpu_plan_sums(const struct gpu_plan *p);
/* The entries that a call lists, in tiles as the processor's gather.c has them; returns how many
   tiles. refs NULL: they are only counted. */
int32_t gpu_plan_tiles(const struct kv_attend_job *job, struct gpu_attend_ref *refs,
                       struct gpu_attend_entry *entries);
/* Whether a call reads entries that it lists, or that the device chose. */
static inline bool gpu_is_listed(const struct kv_attend_job *job)
{
    return job->slots != NULL || pi_at_some(job->chosen.at);
}

static inline bool gpu_is_many(enum gpu_way way)
{
    return way == GPU_WAY_MANY || way == GPU_WAY_COPY;
}

/* Whether heads keep their size, whatever it is. */
static inline bool gpu_is_wide(enum gpu_way way)
{
    return way == GPU_WAY_WIDE || way == GPU_WAY_TALL_SPLIT || way == GPU_WAY_TALL;
}

/* attend_way.c: whether kernels take the class (else the processor does); and the way of a call,
   where n calls wait that may share a launch. copies: there is memory for a copy of its pages. */
bool gpu_way_exists(const struct gpu_device *d, const struct gpu_attend_args *a);
enum gpu_way gpu_way_of(const struct gpu_device *d, const struct gpu_attend_args *a,
                        const struct gpu_plan *p, int32_t n, bool copies);
/* Launches the kernel of a plan's way for n calls, of at most that many rows and chunks each. */
struct gpu_extent {
    int32_t n, rows, chunks;
};
void gpu_way_run(struct gpu_device *d, const struct gpu_attend_args *a, const struct gpu_plan *plan,
                 const struct gpu_extent *most);

/* attend_gather.c: the dimensions of keys and values in pages of f16 that are made of others. They
   are the next size that kernels for few and many rows have (0: there is none). */
int32_t gpu_copy_dim(const struct gpu_attend_args *a);
/* The form of pages that listed entries become, and the bytes of a call's part of the list. Heads
   keep their size for attend_wide (own), or where those kernels have none. */
struct gpu_attend_args gpu_gather_form(const struct gpu_attend_args *a, bool own);
size_t gpu_gather_bytes(const struct gpu_plan *p);
/* Lists a call's tiles and, of those that the host chose, entries; take_positions sets job->pos.
   gpu_gather_place says where pages or lists will be (false: no memory). */
struct gpu_gathered {
    const struct gpu_attend_ref *tiles;
    const struct gpu_attend_entry *entries; /* NULL: the device chose */
};
struct gpu_gathered gpu_gather_add(struct gpu_listing *l, const struct gpu_plan *p,
                                   struct gpu_gather_job *job, struct gpu_attend_job *to);
bool gpu_gather_place(struct gpu_device *d, const struct gpu_attend_args *from, enum gpu_way way,
                      struct gpu_gather_job *jobs, gpu_at jobs_at, struct gpu_attend_job *calls,
                      int32_t n, struct gpu_gather_args *args);
void gpu_gather_run(struct gpu_device *d, const struct gpu_gather_args *args, bool pages,
                    int32_t n);
/* The pages of n calls become a copy of f16. `to`: the calls as they read it, which are theirs in
   all else. False: no memory. */
struct gpu_attend_args gpu_copy_form(const struct gpu_attend_args *a);
size_t gpu_copy_bytes(const struct gpu_attend_args *a, const struct gpu_plan *p);
bool gpu_copy_place(struct gpu_device *d, const struct gpu_attend_args *from,
                    struct gpu_attend_job *calls, struct gpu_attend_job *to, int32_t n,
                    struct gpu_gather_args *args);

/* Where chunks of a lane with a window begin; returns how many there are. to NULL: they are only
   counted. *most becomes the most pages of one. */
int32_t gpu_plan_chunks(const struct gpu_plan *p, int32_t *to, int32_t *most);

/* Patches bring the lists that stay up to date: their size in a list, and their part of it. */
size_t gpu_patches_size(const struct gpu_attend *s);
void gpu_patches_take(const struct gpu_attend *s, struct gpu_listing *l, gpu_at *patches);

static inline int32_t gpu_up16(int32_t n)
{
    return (n + 15) / 16 * 16;
}

static inline int32_t gpu_many_tiles(const struct kv_attend_job *job)
{
    return (job->n_tok * job->n_group + GPU_TILE_ROWS - 1) / GPU_TILE_ROWS;
}

#endif
