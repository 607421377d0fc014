/*
 * choose.c - the best scores of a lane, in parts where a policy wants that, and of all lanes
 * together. It knows no policy and no cache: pure functions of numbers, which take the same time
 * for every order of them.
 */
#include "kv/choose.h"
#include "base/half.h"
#include "base/mem.h"
#include "kv/top.h"

/* ---- of a lane ---- */

/* A call's scratch. */
struct work {
    float *score;   /* [n] the scores that are left, the better the higher */
    int32_t *at;    /* [n] their slots */
    int32_t *found; /* [n] */
    uint8_t *taken; /* [n] whether a slot was chosen */
    void *top;
};

static size_t lay_out(struct work *w, int32_t n, uint8_t *scratch)
{
    size_t used = 0;
    w->score = pi_mem_part(scratch, &used, (size_t)n, sizeof(*w->score));
    w->at = pi_mem_part(scratch, &used, (size_t)n, sizeof(*w->at));
    w->found = pi_mem_part(scratch, &used, (size_t)n, sizeof(*w->found));
    w->taken = pi_mem_part(scratch, &used, (size_t)n, 1);
    w->top = pi_mem_part(scratch, &used, kv_top_scratch_bytes(n), 1);
    return used;
}

size_t kv_choose_scratch_bytes(int32_t n)
{
    struct work w;
    return lay_out(&w, n, NULL) + 64;
}

/* Takes the k best of slots [begin, end) that were not taken yet. */
static void take_best(const struct kv_choose_job *job, struct work *w, int32_t begin, int32_t end,
                      int32_t k)
{
    int32_t n = 0;
    for (int32_t i = begin; i < end; i++) {
        w->score[n] = job->lowest ? -job->score[i] : job->score[i];
        w->at[n] = i;
        n += !w->taken[i];
    }
    kv_top(w->score, n, k, w->found, w->top);
    for (int32_t i = 0; i < k; i++)
        w->taken[w->at[w->found[i]]] = 1;
}

/* The parts' shares; part of position p = (p - lo) * n_part / (hi - lo), in whole numbers. Returns
   how many were taken. */
static int32_t take_shares(const struct kv_choose_job *job, struct work *w)
{
    int64_t length = (int64_t)job->hi - job->lo;
    int32_t n_taken = 0;
    for (int32_t s = 0, begin = 0; s < job->n_part; s++) {
        int32_t end = begin;
        while (end < job->n && ((int64_t)job->pos[end] - job->lo) * job->n_part < (s + 1) * length)
            end++;
        int32_t share = (int32_t)((int64_t)(end - begin) * job->k / job->n);
        take_best(job, w, begin, end, share);
        n_taken += share;
        begin = end;
    }
    return n_taken;
}

void kv_choose(const struct kv_choose_job *job, void *scratch)
{
    struct work w;
    int32_t n_taken = 0, n = 0;
    uint8_t *base = (uint8_t *)scratch + (64 - (uintptr_t)scratch % 64) % 64;
    assert(job->k >= 0 && job->k <= job->n);
    lay_out(&w, job->n, base);
    if (!job->lowest && job->n_part == 0) {
        kv_top(job->score, job->n, job->k, job->slots, w.top);
        return;
    }
    if (job->k == 0)
        return;
    memset(w.taken, 0, (size_t)job->n);
    if (job->n_part > 0)
        n_taken = take_shares(job, &w);
    take_best(job, &w, 0, job->n, job->k - n_taken);
    for (int32_t i = 0; i < job->n; i++)
        if (w.taken[i])
            job->slots[n++] = i;
}

/* ---- of all lanes together ---- */

/* Entries are compared by their score, or, where the score is one, by their age. */
struct order {
    bool by_age;
    uint32_t rank; /* with by_age: the rank of the scores that are compared by age */
};

/* Unsigned numbers in the order of floats; both zeros are one. */
static inline uint32_t rank_of(float score)
{
    uint32_t bits = pi_bits_from_f32(score + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/* Score i of a lane as a number; false: it is not compared. */
static inline bool key_of(const struct order *o, const struct kv_choose_lane *lane, int32_t i,
                          uint32_t *key)
{
    uint32_t rank = rank_of(lane->score[i]);
    *key = o->by_age ? (uint32_t)lane->pos[i] : rank;
    return !o->by_age || rank == o->rank;
}

/* The k-th highest key of all lanes, 1 <= k <= the number of keys, eleven bits at a time from the
   top. *n_tie receives how many equal keys are among the k highest. */
static uint32_t find_border(const struct order *o, const struct kv_choose_all *job, int64_t k,
                            int64_t *n_tie)
{
    static const struct {
        int32_t shift;
        uint32_t mask;
    } digits[] = {{21, 0x7ff}, {10, 0x7ff}, {0, 0x3ff}};
    uint32_t found = 0, known = 0, key;
    for (size_t d = 0; d < PI_LEN(digits); d++) {
        int64_t count[0x800] = {0};
        uint32_t digit = digits[d].mask;
        for (int32_t l = 0; l < job->n_lane; l++)
            for (int32_t i = 0; i < job->lanes[l].n; i++)
                if (key_of(o, &job->lanes[l], i, &key) && (key & known) == found)
                    count[key >> digits[d].shift & digits[d].mask]++;
        while (k > count[digit])
            k -= count[digit--];
        found |= digit << digits[d].shift;
        known |= digits[d].mask << digits[d].shift;
    }
    *n_tie = k;
    return found;
}

/* n_top and n_equal of every lane: how many of its scores are above the border, and at it. Returns
   how many are at it. */
static int64_t count_above(const struct kv_choose_all *job, uint32_t border)
{
    int64_t n_equal = 0;
    for (int32_t l = 0; l < job->n_lane; l++) {
        struct kv_choose_lane *lane = &job->lanes[l];
        for (int32_t i = 0; i < lane->n; i++) {
            uint32_t rank = rank_of(lane->score[i]);
            lane->n_top += rank > border;
            lane->n_equal += rank == border;
        }
        n_equal += lane->n_equal;
    }
    return n_equal;
}

void kv_choose_share(const struct kv_choose_all *job, int64_t n_tie, int64_t n_equal)
{
    int64_t given = 0;
    for (int32_t l = 0; l < job->n_lane; l++) {
        struct kv_choose_lane *lane = &job->lanes[l];
        int32_t share = (int32_t)(n_tie * lane->n_equal / n_equal);
        lane->n_top += share;
        lane->n_equal -= share;
        given += share;
    }
    /* Less than one for each lane is left of the shares that were rounded down. */
    for (int32_t l = 0; l < job->n_lane && given < n_tie; l++)
        if (job->lanes[l].n_equal > 0) {
            job->lanes[l].n_top++;
            given++;
        }
}

static void age_ties(const struct kv_choose_all *job, int64_t n_tie, uint32_t rank)
{
    const struct order o = {true, rank};
    int64_t n_last;
    uint32_t border = find_border(&o, job, n_tie, &n_last), key;
    for (int32_t l = job->n_lane - 1; l >= 0; l--)
        for (int32_t i = 0; i < job->lanes[l].n; i++)
            if (key_of(&o, &job->lanes[l], i, &key) && key >= border)
                job->lanes[l].n_top += key > border || n_last-- > 0;
}

void kv_choose_all(const struct kv_choose_all *job)
{
    const struct order o = {false, 0};
    int64_t n_tie;
    for (int32_t l = 0; l < job->n_lane; l++)
        job->lanes[l].n_top = job->lanes[l].n_equal = 0;
    if (job->k == 0)
        return;
    uint32_t border = find_border(&o, job, job->k, &n_tie);
    int64_t n_equal = count_above(job, border);
    if (job->by_age && n_tie < n_equal)
        age_ties(job, n_tie, border);
    else
        kv_choose_share(job, n_tie, n_equal);
}
