/*
 * note.c - notes of attention's weights (kv/note.h), one token after the other. It reads the rows
 * that attend.c has just written, which are still in the cache. Loops run over entries side by
 * side, a block at a time; no entry's number depends on where a block begins.
 */
#include <math.h>

#include "cpu/expf.h"
#include "device/cpu/note.h"

/* Bits live in floats' places: read and written by memcpy alone. */
#define WORD_BITS 32
static_assert(sizeof(float) == sizeof(uint32_t), "a mark holds a word of bits");

/* Entries [begin, begin + n) of a token, n <= KV_GROUP_BLOCK, and the weights that they got. */
struct block {
    int32_t begin, n;
    float w[KV_GROUP_BLOCK];
};

typedef void note_fn(const struct kv_note *note, const struct cpu_noted *t, const struct block *b);

static void add(const struct kv_note *note, const struct cpu_noted *t, const struct block *b)
{
    float *restrict to = note->to + b->begin;
    (void)t;
    for (int32_t i = 0; i < b->n; i++)
        to[i] += b->w[i];
}

static void count(const struct kv_note *note, const struct cpu_noted *t, const struct block *b)
{
    float *restrict to = note->to + b->begin;
    (void)t;
    for (int32_t i = 0; i < b->n; i++)
        to[i] += 1.0f;
}

static void take_most(const struct kv_note *note, const struct cpu_noted *t, const struct block *b)
{
    float *restrict to = note->to + b->begin;
    float scale = note->scale != NULL ? note->scale[t->pos - note->pos0] : 1.0f;
    for (int32_t i = 0; i < b->n; i++) {
        float x = b->w[i] * scale;
        to[i] = x > to[i] ? x : to[i];
    }
}

static void take_last(const struct kv_note *note, const struct cpu_noted *t, const struct block *b)
{
    float *restrict to = note->to + b->begin;
    memcpy(to, b->w, (size_t)b->n * sizeof(*to));
    for (int32_t i = 0; note->group == KV_GROUP_MEAN && t->n_group > 1 && i < b->n; i++)
        to[i] /= (float)t->n_group;
}

static void stamp(const struct kv_note *note, const struct cpu_noted *t, const struct block *b)
{
    float *restrict to = note->to + b->begin;
    float now = (float)(t->pos + 1), threshold = note->threshold;
    for (int32_t i = 0; i < b->n; i++)
        to[i] = b->w[i] >= threshold ? now : to[i];
}

static void measure_gaps(const struct kv_note *note, const struct cpu_noted *t,
                         const struct block *b)
{
    float *restrict last = note->to + b->begin;
    float *restrict gap = note->to + note->stride + b->begin;
    float now = (float)(t->pos + 2), before = (float)(t->pos + 1), threshold = note->threshold;
    for (int32_t i = 0; i < b->n; i++) {
        float since = last[i] > 0.0f ? last[i] : before;
        float longest = now - since > gap[i] ? now - since : gap[i];
        gap[i] = b->w[i] >= threshold ? longest : gap[i];
        last[i] = b->w[i] >= threshold ? now : since;
    }
}

/* Sets the token's bit of each entry whose weight is below the limit, and clears that of others. */
static void mark_low(const struct kv_note *note, const struct cpu_noted *t, const struct block *b)
{
    int32_t at = t->pos % note->window;
    float *to = note->to + (size_t)(at / WORD_BITS) * note->stride + b->begin;
    uint32_t word[KV_GROUP_BLOCK], bit = (uint32_t)1 << at % WORD_BITS;
    float limit = 1.0f / (float)t->n;
    memcpy(word, to, (size_t)b->n * sizeof(*word));
    for (int32_t i = 0; i < b->n; i++)
        word[i] = (word[i] & ~bit) | (b->w[i] < limit ? bit : 0);
    memcpy(to, word, (size_t)b->n * sizeof(*word));
}

static note_fn *const words[] = {
    [KV_NOTE_SUM] = add,        [KV_NOTE_SEEN] = count, [KV_NOTE_MOST] = take_most,
    [KV_NOTE_LAST] = take_last, [KV_NOTE_TIME] = stamp, [KV_NOTE_GAPS] = measure_gaps,
    [KV_NOTE_LOW] = mark_low,
};

/* A row of weights, or a group's rows as one. */
static void note_rows(const struct kv_note *note, const struct cpu_noted *t, const float *weight,
                      int32_t n_group, enum kv_group group)
{
    int32_t n = note->n > 0 && note->n < t->n ? note->n : t->n;
    struct block b;
    if (note->word == KV_NOTE_LAST && group == KV_GROUP_MEAN)
        group = KV_GROUP_SUM; /* which take_last divides */
    for (b.begin = 0; b.begin < n; b.begin += KV_GROUP_BLOCK) {
        b.n = (int32_t)pi_min(n - b.begin, KV_GROUP_BLOCK);
        if (note->word != KV_NOTE_SEEN)
            kv_group_weights(weight + b.begin, t->stride, n_group, group, b.n, b.w);
        words[note->word](note, t, &b);
    }
}

/* ---- the norm of the contribution ---- */

/* Factors of the weights: 1 / n_group. For exp(logit) they are multiplied by the head's sum of
   exponentials, Z_h = exp(max_h) sum_h. That is relative to the largest of the group, whose
   logarithm is their scale. */
static void fill_factors(const struct kv_note *note, const struct cpu_noted *t, float *factor)
{
    float largest = -INFINITY, part = 1.0f / (float)t->n_group;
    for (int32_t g = 0; g < t->n_group; g++) {
        factor[g] = note->log_scale == NULL ? part : t->max[g] + logf(t->sum[g]);
        largest = factor[g] > largest ? factor[g] : largest;
    }
    if (note->log_scale == NULL)
        return;
    *note->log_scale = largest;
    for (int32_t g = 0; g < t->n_group; g++) {
        float x = factor[g] - largest;
        factor[g] = (x < PI_EXP_MIN ? 0.0f : pi_expf(x)) * part;
    }
}

/* Factors that the weights still lack go into the factors of the heads: rows are read once. At once
   into the sum of the lanes before, while that is in the cache, where all of them are there. */
static void note_norm(const struct kv_note *note, const struct cpu_noted *t)
{
    bool sums = note->n_sum != NULL;
    bool adds = sums && note->number > 0 &&
                atomic_load_explicit(note->n_sum, memory_order_acquire) == note->number;
    float *out = adds ? note->first : note->to;
    struct pi_vec_weigh weigh = {.w = t->weight,
                                 .stride = t->stride,
                                 .n_row = t->n_group,
                                 .c = t->factor,
                                 .end = &t->n,
                                 .n_part = 1,
                                 .factor = note->norm,
                                 .out = out,
                                 .add = adds};
    fill_factors(note, t, t->factor);
    if (t->parts != NULL) {
        weigh.end = t->parts->end;
        weigh.n_part = t->parts->n;
        weigh.part = t->parts->factor;
        weigh.part_stride = (size_t)t->parts->n_row;
    }
    pi_kernels()->vec.weigh(&weigh);
    if (note->newest >= 0)
        out[note->newest] = INFINITY;
    if (sums && (adds || note->number == 0))
        atomic_store_explicit(note->n_sum, note->number + 1, memory_order_release);
}

/* ---- a token, and a call ---- */

void cpu_note_token(const struct kv_note *note, const struct cpu_noted *t)
{
    if (t->pos < note->from)
        return;
    if (note->word == KV_NOTE_NORM) {
        note_norm(note, t);
        return;
    }
    if (note->group != KV_GROUP_EACH) {
        note_rows(note, t, t->weight, t->n_group, note->group);
        return;
    }
    struct kv_note own = *note;
    for (int32_t g = 0; g < t->n_group; g++, own.to += note->stride)
        note_rows(&own, t, t->weight + (size_t)g * t->stride, 1, KV_GROUP_SUM);
}

bool cpu_notes_take_parts(const struct kv_attend_job *job)
{
    bool all = job->n_note > 0;
    for (int32_t i = 0; i < job->n_note; i++)
        all = all && job->notes[i].word == KV_NOTE_NORM;
    return all && job->n_tok == 1;
}

void cpu_note_job(const struct kv_attend_job *job, float *factor)
{
    const struct kv_attend_tap *tap = job->tap;
    int32_t len = kv_lane_len(job->seq, job->layer, job->head);
    for (int32_t t = 0; t < job->n_tok; t++) {
        size_t row = (size_t)(t * job->n_group);
        int32_t n_later = job->n_later < 0 ? 0 : job->n_later + job->n_tok - 1 - t;
        const struct cpu_noted token = {
            .weight = tap->weight + row * tap->row_stride,
            .stride = tap->row_stride,
            .parts = tap->parts,
            .max = tap->max != NULL ? tap->max + row : NULL,
            .sum = tap->sum != NULL ? tap->sum + row : NULL,
            .n_group = job->n_group,
            .n = len - n_later,
            .pos = job->pos0 + t,
            .factor = factor,
        };
        for (int32_t i = 0; i < job->n_note; i++)
            cpu_note_token(&job->notes[i], &token);
    }
}
