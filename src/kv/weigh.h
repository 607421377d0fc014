/*
 * weigh.h - the scores of a round by keys, values or marks, as a device with memory of its own
 * makes them. They stay there: its choices (kv/choose.h) take them from there, and the host learns
 * which entries go.
 */
#ifndef PI_KV_WEIGH_H
#define PI_KV_WEIGH_H

#include "device/device.h"
#include "kv/note.h"

/* k: a key as attention sees it, v: a value. */
enum kv_weigh_kind {
    KV_WEIGH_WAVES,    /* of rows of vectors the best; see struct kv_weigh_waves */
    KV_WEIGH_KEY,      /* |k| */
    KV_WEIGH_ALIKE,    /* cos(k, the mean of all k / |k|) */
    KV_WEIGH_VALUE_L1, /* |v[0]| + |v[1]| + .. */
    KV_WEIGH_VALUE_L2, /* |v| */
    /* By marks that the device has (kv/marks.h), m: the first, and the others. */
    KV_WEIGH_MARK,         /* m[0] */
    KV_WEIGH_MARK_MEAN,    /* m[0] / max(m[1], 1) */
    KV_WEIGH_MARK_NORM,    /* m[0] times the L1 norm of the value */
    KV_WEIGH_MARK_BITS,    /* less by 1 for each bit that is set in all marks */
    KV_WEIGH_MARK_GAPS,    /* struct kv_weigh_gaps, of m[0] a time and m[1] a gap */
    KV_WEIGH_MARK_OR_MOST, /* m[0], or FLT_MAX where that is 0 */
    KV_WEIGH_POSITION,
    KV_WEIGH_VOTES,    /* struct kv_weigh_votes */
    KV_WEIGH_UNLIKE,   /* the same, and struct kv_weigh_unlike */
    KV_WEIGH_EXPECTED, /* struct kv_weigh_expected */
    KV_WEIGH_N
};

/* s(x) = 1 / (1 + exp(-x)), ago = now - m[0], gap = m[1]; where m[0] is 0: ago 0, gap 1.
   code: 2 s(-1 - ago / (gap + 1e-5)) + 2 s(1 - gap), the second where gap > 0.
   Else 2 s(-ago / gap) + 2 s(-1 / gap) where gap > 0, else 0. */
struct kv_weigh_gaps {
    float now;
    bool code;
};

/*
 * A row scores a key by the greatest of its vectors w. A vector gives the sum of w[d] k[d], and of
 * e[f] times the modulus of the rope's pair f. Rows may be standardised over the entries that may
 * go: mean 0, deviation 1. The best row counts.
 */
struct kv_weigh_waves {
    const float *w; /* [n_row][n_vector][dim_k] */
    const float *e; /* [n_row][n_pair]; NULL: moduli do not count */
    int32_t n_row;
    int32_t n_vector;
    bool standard;
    bool still; /* keys are turned back to position 0 */
};

/* Whose attention counts, and over what its softmax goes. */
enum kv_votes_softmax {
    KV_VOTES_ALL,      /* of each query head, over all entries that the query sees */
    KV_VOTES_BEFORE,   /* over the entries that are scored alone */
    KV_VOTES_TOGETHER, /* likewise, of the largest logit of a group's heads */
};

/* The sum of the weights that the last queries of a sequence give, pooled over neighbours. Entries
   from the position `before` on get FLT_MAX instead. */
struct kv_weigh_votes {
    struct pi_at q; /* f32 [n_ring][stride]: from there on the queries of the lane's group of
                       position p are in row p mod n_ring (KV_LEARN_RING) */
    size_t stride;
    int32_t n_ring;
    int32_t count; /* queries, the last of them at position next - 1 */
    int32_t next;
    int32_t n_group;
    float scale; /* multiplies q.k */
    enum kv_votes_softmax softmax;
    enum kv_group group; /* not TOGETHER: the sums of heads become their mean, max or sum */
    bool largest;        /* the largest of the neighbours counts, else their mean */
    int32_t kernel;      /* neighbours (policy/pool.h) */
    int32_t before;
};

/* Votes less what other keys repeat: lambda * votes - (1 - lambda) * r. r is the softmax over all
   entries of the mean of cos(k_i, k_j) over j, without i = j. */
struct kv_weigh_unlike {
    double lambda;
    float threshold; /* of each key the last cosine above it counts as 0, */
    bool last;       /* where this is set. A key without one */
    bool quirk;      /* then loses its cosine with the oldest entry */
};

/* The attention that Gaussian queries are expected to give (expected.c). Their sums are as
   KV_LEARN_MOMENTS keeps them, of count tokens. Before they count they are rotated by `turn`. */
struct kv_weigh_expected {
    struct pi_at moments; /* f32, of the lane's first query head; the others' follow */
    int64_t count;
    const double *turn; /* [n_pair][2] */
    int32_t n_group;
    float scale;
    bool square, norm; /* the sums have products; the values' lengths count */
    bool sum;          /* scores are relative to the softmax's sum over entries from begin on */
    bool share;        /* no logarithm */
    double epsilon;
};

/* A lane of a layer. */
struct kv_weigh_job {
    const struct kv_seq *seq;
    int32_t layer;
    int32_t head;
    int32_t set; /* that it counts for */
    enum kv_weigh_kind kind;
    const struct pi_rope *rope;  /* of its keys; NULL: not known, WAVES needs it */
    struct kv_weigh_waves waves; /* of WAVES */
    struct kv_weigh_gaps gaps;   /* of MARK_GAPS */
    struct kv_weigh_votes votes; /* of VOTES, UNLIKE */
    struct kv_weigh_unlike unlike;
    struct kv_weigh_expected expected;
    bool lowest; /* scores change their sign */
    bool mapped; /* then: slope * score + intercept */
    float slope, intercept;
};

/* Lanes of one length whose scores become one, position by position. */
struct kv_weigh_set {
    int32_t n;
    const int32_t *pos; /* [n] of the entries of each of its lanes */
    int32_t begin, end; /* slots that may go; others get no score */
    int32_t n_of;       /* lanes that have scored in earlier calls */
    float unknown;      /* the score where no lane did, or it is no number */
    struct pi_at score; /* receives where the scores are, f32 [n] */
};

/* Lanes of one layer, or none, and all sets of the stage. Sets and their order are the same from
   the first call of a stage to the last, which has `last` set and completes the scores. They last
   until the next stage. Lanes of a set come in the order of heads. */
struct kv_weigh_list {
    const struct kv_weigh_job *jobs; /* [n] sorted by their sets */
    int32_t n;
    struct kv_weigh_set *sets; /* [n_set] */
    int32_t n_set;
    bool mean; /* the lanes' scores become their mean, else the largest */
    bool last;
};

#endif
