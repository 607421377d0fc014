/*
 * internal.h - the parts of a share policy, for the files of share/. They are where steps end
 * (steps.c), how far apart two pages are (distance.c) and where stretches lie (pages.c). Then which
 * pages stand for which (choose.c), and the state of a sequence (share.c).
 */
#ifndef PI_SHARE_INTERNAL_H
#define PI_SHARE_INTERNAL_H

#include "policy/share/share.h"
#include "pith/policy.h"

#define SHARE_CANDIDATES_MAX 64

/* ---- steps.c: where steps end, and which are alike ---- */

/* The role of a token's text in blank lines, as bits. */
enum share_flag {
    SHARE_BLANK = 1 << 0,  /* it has one: "\n\n" */
    SHARE_BEGINS = 1 << 1, /* it begins with a line feed */
    SHARE_ENDS = 1 << 2,   /* it ends with one */
    SHARE_EMPTY = 1 << 3,  /* it has no text, so that the one before it counts */
};

/* The flags of a text. */
uint8_t share_text_flags(const char *text, size_t len);
/* The flags of all tokens of a model, [n_vocab], a pi_mem block. NOMEM. */
pith_status share_vocab_flags(const struct pith_model *model, uint8_t **out, pith_error *err);
/* Whether the last of tokens [n], which follow each other, completes a blank line. */
bool share_ends_step(const uint8_t *flags, const int32_t *tokens, int32_t n);

/* Tokens of a step and how often each occurs, in the order in which they first do. */
struct share_bag {
    int32_t *id;    /* [n] */
    int32_t *count; /* [n] */
    int32_t n;
};

/* Fills bag, which has room for n, and count [n_vocab] with it, which is zero before. Returns the
   squared norm of the counts. */
int64_t share_bag_fill(struct share_bag *bag, const int32_t *tokens, int32_t n, int32_t *count);
/* Makes count zero again. */
void share_bag_clear(const struct share_bag *bag, int32_t *count);
/* The sum of products of a bag's counts with count [n_vocab]. */
int64_t share_bag_dot(const struct share_bag *bag, const int32_t *count);
/* Whether dot / sqrt(a * b) > cosine, which counts in thousandths, without rounding:
   dot > 0 and (1000 dot)^2 > thousandths^2 a b. */
bool share_alike(int64_t dot, int64_t a, int64_t b, double cosine);

/* ---- distance.c: how far apart two pages are ---- */

/* Of one lane: sums of squares over n entries and all dimensions. */
struct share_sums {
    double k;    /* of the keys' differences */
    double v;    /* of the values' */
    double size; /* of the entries, the mean of both pages */
};

/* A page's entries as kv_lane_run_keys and kv_lane_run_values give them. */
struct share_rows {
    const float *k; /* [dim_k][page_len] */
    const float *v; /* [page_len][dim_v] */
};

/* How keys of `a` are turned before they are compared. */
struct share_turn {
    const struct pi_rope *rope;
    const float *cs; /* [n_pair][2] cosine and sine of the angles that they are turned by */
};

/* Of the first n entries of two pages; turn NULL: keys as they are. keys of a, turned, are left in
   work [dim_k][page_len]. Bits depend on these alone. */
void share_lane_sums(const struct kv_geometry *g, const struct share_rows *a,
                     const struct share_rows *b, int32_t n, const struct share_turn *turn,
                     float *work, struct share_sums *out);

/* Adds up layers; zero before. */
struct share_total {
    double paper; /* sum over layers of (||dK|| + ||dV||) / (2 n h) */
    double rms;   /* sum over layers of (RMS(dK) + RMS(dV)) / 2 */
    double apart; /* sums of squares over all of them: differences, */
    double size;  /* and entries */
};

/* Adds a layer of n_head lanes. */
void share_total_add(struct share_total *t, const struct kv_geometry *g,
                     const struct share_sums *lane, int32_t n);
/* The distance for n_layer layers, those that were not added counting as equal. */
double share_total_paper(const struct share_total *t, int32_t n_layer);
double share_total_rms(const struct share_total *t, int32_t n_layer);
double share_total_relative(const struct share_total *t);

/* ---- share.c: the steps of sequences ---- */

struct share_tally {
    int32_t compared; /* 1: there were steps to compare it with */
    int32_t similar;  /* 1: one was alike */
    int32_t pages_compared;
    int32_t pages_early;
    int32_t pages_shared;
    int32_t tokens_shared;
    int64_t bytes; /* of pages that came free */
};

struct share_step {
    int32_t begin, end; /* positions */
    int32_t ids;        /* where its tokens begin in share_seq.ids, and its bag */
    int32_t n_bag;
    int64_t norm; /* squared, of its bag */
    bool gone;    /* a keep round came after it */
    struct share_tally tally;
};

#define SHARE_NO_STEP (-1)

/* The distance of two pages that a sequence compared, for a threshold that it measures. */
struct share_sample {
    int32_t step; /* the one that closed */
    float distance;
    bool chance; /* of a page that chance took, and that says something else */
};

#define SHARE_SAMPLES 2048 /* of a sequence at most: the threshold stays what it is then */

struct share_seq {
    struct share *share; /* borrowed */
    const pith_seq *owner;
    struct kv_seq *kv; /* borrowed; NULL until something is noted */
    struct share_seq *prev, *next;

    int32_t begin;  /* of the running step; SHARE_NO_STEP: none runs */
    int32_t n_seen; /* tokens that were noted */
    int32_t first_change;
    bool lanes_differ; /* lanes may differ in their pages: there was a round, or it was loaded */
    bool began;        /* the last share_seq_begin began a step */

    struct share_step *step; /* [cap_step] */
    int32_t n_step, cap_step;
    int32_t *ids;       /* [cap_id] tokens of all steps, one after the other */
    int32_t *bag_id;    /* [cap_id] */
    int32_t *bag_count; /* [cap_id] */
    int32_t n_id, cap_id;
    struct share_sample *sample; /* [cap_sample] by step; NULL: the threshold is given */
    int32_t n_sample, cap_sample;
    double seconds;
};

/* Figures of one pair of pages. */
struct share_distance {
    double paper;
    double rms;
    double relative;
    bool early;
};

/* A page of an earlier step, as far as it goes, and where it would stand. */
struct share_block {
    int32_t from;  /* number of the step among those that it is compared with */
    int32_t at;    /* position of its first entry */
    int32_t begin; /* of the place that it is compared with, from the closed step's first token
                      on */
    int32_t n;
    bool compared;
    bool near;
    bool shared;
    struct share_distance distance;
};

/* A page that lies in a step. */
struct share_page {
    int32_t at; /* position of the first entry */
    int32_t n;  /* entries */
};

/* The buffers in which a thread compares. */
struct share_scratch {
    float *work;             /* [5][work_row] keys and values of pages */
    float *cs;               /* [n_pair][2] of keys that are turned by cs_delta positions */
    int32_t cs_delta;        /* 0: cs may hold anything */
    struct share_sums *sums; /* [n_head] of a layer */
    struct kv_apart_job
        *apart; /* [n_layer][n_head] where one device sums up all layers; else NULL */
};

struct share {
    struct share_config config;
    struct kv_geometry g;
    const struct pi_rope *rope;
    const struct pi_rope *const *lane_rope; /* as policy_model's */
    int32_t n_thread;
    uint8_t *flags;                /* [n_vocab] */
    int32_t *count;                /* [n_vocab] zero between calls */
    struct share_scratch *scratch; /* [n_thread] */
    size_t work_row;               /* floats */
    struct share_block
        *block; /* [cap_block] of a step that closes, with any number of candidates */
    int32_t cap_block;
    int32_t *cut; /* [cap_cut] struct share_layout */
    int32_t cap_cut;
    struct share_page *page; /* [2][cap_page] of a step and of another */
    int32_t cap_page;
    struct share_seq *first; /* all sequences, in the order in which they were made */
    pith_share_fn *log;
    void *log_user;
    bool log_all;
};

/* Table entries of a lane that sharing may add for a step of n tokens, and blocks of another that
   it is compared with. They are twice its pages, and some. */
static inline int32_t share_runs_at(const struct share *s, int32_t n)
{
    return 2 * (n / s->g.page_len) + 8;
}

/* ---- pages.c: stretches in lanes ---- */

/* Where a stretch of positions lies in a lane. */
struct share_spot {
    int32_t run;   /* of its first entry, */
    int32_t entry; /* which it is there */
    int32_t slot;
    int32_t n_run; /* runs */
    int32_t delta; /* of the first run */
    int32_t turns; /* runs whose delta is not that of the one before */
    int32_t count; /* the most that one counts */
    bool ends;     /* its last entry is the last of its run */
};

struct share_place {
    const struct kv_seq *kv;
    int32_t pos; /* of its first entry */
    int32_t n;
    bool lanes_differ;      /* of the sequence */
    struct share_spot spot; /* in the first lane */
};

/* The pages of the first lane that lie in positions begin .. end - 1, take no more entries, and are
   read themselves. They are at most cap. */
int32_t share_pages_inside(const struct kv_seq *kv, int32_t begin, int32_t end,
                           struct share_page *out, int32_t cap);
/* The first run of the first lane that begins at a position or behind it. */
int32_t share_run_from(const struct kv_seq *kv, int32_t pos);

/* Finds it in the first lane; false: not all of its positions are there. */
bool share_place_find(struct share_place *p);

/* How far apart two places of at most a page are. It compares the last layers first, and no others
   once the configured distance comes to limit. False: some lane does not have them, or reads parts
   of them differently. Threads may compare at the same time, each with a scratch of its own. */
bool share_compare(const struct share *s, struct share_scratch *scratch,
                   const struct share_place *a, const struct share_place *b, double limit,
                   struct share_distance *out);

/* Where pages of a lane are cut within a step. */
struct share_layout {
    const int32_t
        *cut; /* [n + 1] where runs begin, from the step's first entry on, and their end */
    int32_t n;
    int32_t page_len;
    int32_t room; /* of the lane's last page, if that is the last run; else 0 */
    bool at_end;  /* it is */
    bool literal;
};

/* Of a lane, as it is now, in the share's memory. False: it is not there whole, or has too many. */
bool share_layout_find(struct share *s, const struct share_place *step, int32_t layer, int32_t head,
                       struct share_layout *out);
/* How many places come free, the ones in the lane's last page included, when others stand for n
   entries from `begin` on. Negative: more are taken, or it cannot be. */
int32_t share_gain(const struct share_layout *layout, int32_t begin, int32_t n);

/* Lets place b of a sequence stand for place a of kv in all lanes, as the mode says. Both lie in
   steps, and b begins a page. False: some lane does not have them so, or would take more memory
   than it does. Also where there would be more stretches than memory is set aside for. */
bool share_apply(struct share *s, struct kv_seq *kv, const struct share_place *step,
                 const struct share_place *a, const struct share_place *b);

/* ---- measure.c: the threshold of pages ---- */

/* Below this distance pages stand for each other: `block`, or what the sequence has measured; 0
   until it has enough. */
double share_block_limit(const struct share_seq *seq);
/* Notes a distance, for which there is room. */
void share_sample_add(struct share_seq *seq, int32_t step, double distance, bool chance);

/* ---- choose.c: what stands for what ---- */

/* Compares closed step `index` with pages of earlier steps, at thresholds times `loose`, and
   shares. */
void share_step_compare(struct share_seq *seq, int32_t index, double loose);

#endif
