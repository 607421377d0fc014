/*
 * note.cuh - what attention's weights leave beside a lane's entries (kv/note.h): notes, made from the
 * exponents that the kernels of attention kept, and marks of entries that are new or move. A thread
 * has an entry and takes the tokens in order, so that no number depends on how tokens are cut.
 */
#ifndef PI_GPU_NOTE_CUH
#define PI_GPU_NOTE_CUH

#include "device/gpu/attend.cuh"

/* enum kv_note_word and enum kv_group: host files assert that they are these. */
enum { NOTE_SUM, NOTE_SEEN, NOTE_MOST, NOTE_LAST, NOTE_TIME, NOTE_GAPS, NOTE_LOW, NOTE_NORM };
enum { GROUP_MEAN, GROUP_MAX, GROUP_SUM, GROUP_EACH };
#define LN2 0.693147181f

/* ---- weights ---- */

/* The slot of a place; -1: nothing is there. */
DEV int slot_of_place(const gpu_note_lane &l, int place)
{
    if (l.pages == 0)
        return place < l.len ? place : -1;
    const int page = place / l.page_len, entry = place % l.page_len;
    if (page >= l.n_page)
        return -1;
    const int32_t *at = AT(const int32_t, l.pages) + 2 * page;
    return entry < at[1] ? at[0] + entry : -1;
}

DEV float exponent_of(const gpu_note_call &c, const gpu_note_lane &l, int row, int place)
{
    const int page = place / l.page_len;
    if (page < c.first || page >= c.end)
        return NEG_INF;
    return AT(const float, c.logits)[(size_t)row * c.stride + place];
}

DEV float weight_of(const gpu_note_call &c, const gpu_note_lane &l, int row, int place)
{
    const float m = AT(const float, c.ml)[2 * row], sum = AT(const float, c.ml)[2 * row + 1];
    return sum > 0.0f ? ex2(exponent_of(c, l, row, place) - finite_of(m)) / sum : 0.0f;
}

/* The weights of a group as one; heads in ascending order. */
DEV float group_weight(const gpu_note_call &c, const gpu_note_lane &l, int t, int place, int group)
{
    float w = weight_of(c, l, t * l.n_group, place);
    for (int g = 1; g < l.n_group; g++) {
        const float x = weight_of(c, l, t * l.n_group + g, place);
        w = group == GROUP_MAX ? f_max(w, x) : w + x;
    }
    return group == GROUP_MEAN ? w * (1.0f / (float)l.n_group) : w;
}

/* ---- words ---- */

DEV float sum_logarithm(const gpu_note_call &c, int row)
{
    return AT(const float, c.ml)[2 * row] * LN2 + logf(AT(const float, c.ml)[2 * row + 1]);
}

/* The weight times the norm; where exp(logit) counts, relative to the largest sum of the group. */
DEV float norm_word(const gpu_note_call &c, const gpu_note_lane &l, const gpu_note_word &w, int t,
                    int place, int slot)
{
    const float part = 1.0f / (float)l.n_group;
    float largest = NEG_INF, sum = 0.0f;
    for (int g = 0; w.log_scale != 0 && g < l.n_group; g++)
        largest = f_max(largest, sum_logarithm(c, t * l.n_group + g));
    for (int g = 0; g < l.n_group; g++) {
        const int row = t * l.n_group + g;
        const float by =
            w.log_scale != 0 ? ex2((sum_logarithm(c, row) - largest) * LOG2E) * part : part;
        sum += weight_of(c, l, row, place) * by;
    }
    if (w.log_scale != 0 && slot == 0)
        *AT(float, w.log_scale) = largest;
    const uint32_t bits = (uint32_t)AT(const uint16_t, w.norm)[slot] << 16;
    return slot == w.newest ? -NEG_INF : sum * AS_F(bits);
}

/* One row's word of token t, which sees n_seen entries. */
DEV void word_row(const gpu_note_call &c, const gpu_note_word &w, int t, int n_seen, int slot,
                  float x, float *row)
{
    const float now = (float)(c.pos0 + t + 1);
    float *to = row + slot;
    if (w.word == NOTE_SUM) {
        *to += x;
    } else if (w.word == NOTE_SEEN) {
        *to += 1.0f;
    } else if (w.word == NOTE_MOST) {
        x *= w.scale != 0 ? AT(const float, w.scale)[t] : 1.0f;
        *to = x > *to ? x : *to;
    } else if (w.word == NOTE_TIME) {
        *to = x >= w.threshold ? now : *to;
    } else if (w.word == NOTE_GAPS) {
        float *gap = to + w.stride;
        const float since = *to > 0.0f ? *to : now, ago = now + 1.0f - since;
        *gap = x >= w.threshold && ago > *gap ? ago : *gap;
        *to = x >= w.threshold ? now + 1.0f : since;
    } else if (w.word == NOTE_LOW) {
        const int at = (c.pos0 + t) % w.window;
        uint32_t *word = (uint32_t *)(to + (size_t)(at / 32) * w.stride), bit = 1u << at % 32;
        *word = (*word & ~bit) | (x < 1.0f / (float)n_seen ? bit : 0u);
    } else {
        *to = x; /* LAST and NORM */
    }
}

DEV void note_word(const gpu_note_call &c, const gpu_note_lane &l, const gpu_note_word &w, int t,
                   int n_seen, int place, int slot)
{
    float *to = AT(float, w.to);
    if (c.pos0 + t < w.from || (w.n > 0 && slot >= w.n))
        return;
    if (w.group == GROUP_EACH) {
        for (int g = 0; g < l.n_group; g++)
            word_row(c, w, t, n_seen, slot, weight_of(c, l, t * l.n_group + g, place),
                     to + (size_t)g * w.stride);
        return;
    }
    float x = 0.0f;
    if (w.word == NOTE_NORM)
        x = norm_word(c, l, w, t, place, slot);
    else if (w.word == NOTE_LAST && w.group == GROUP_MEAN) /* the mean as a quotient */
        x = group_weight(c, l, t, place, GROUP_SUM) / (float)l.n_group;
    else if (w.word != NOTE_SEEN)
        x = group_weight(c, l, t, place, w.group);
    word_row(c, w, t, n_seen, slot, x, to);
}

/* Grid: (places / 256, lanes). */
KERNEL(256, 4) note_words(const gpu_note_args a)
{
    const gpu_note_lane l = AT(const gpu_note_lane, a.lanes)[blockIdx.y];
    const int place = (int)blockIdx.x * 256 + TID, slot = slot_of_place(l, place);
    for (int i = 0; slot >= 0 && i < l.n_call; i++) {
        const gpu_note_call c = AT(const gpu_note_call, l.calls)[i];
        for (int t = 0; t < c.n_tok; t++) {
            const int n_seen = l.len - (c.n_later < 0 ? 0 : c.n_later + c.n_tok - 1 - t);
            for (int j = 0; slot < n_seen && j < c.n_word; j++)
                note_word(c, l, AT(const gpu_note_word, c.words)[j], t, n_seen, place, slot);
        }
    }
}

/* Grid: (places / 256, rows). */
KERNEL(256, 4) note_rows(const gpu_note_rows_args a)
{
    const int place = (int)blockIdx.x * 256 + TID, row = (int)blockIdx.y;
    const int slot = slot_of_place(a.lane, place);
    if (slot < 0)
        return;
    const size_t at = (size_t)row * a.row_stride + slot;
    if (a.weight != 0)
        AT(float, a.weight)[at] = weight_of(a.call, a.lane, row, place);
    if (a.logit != 0)
        AT(float, a.logit)[at] = exponent_of(a.call, a.lane, row, place) * LN2;
}

/* ---- marks ---- */

/* Grid: lanes. */
KERNEL(128, 8) marks_clear(const gpu_marks_args a)
{
    const gpu_marks_lane l = AT(const gpu_marks_lane, a.lanes)[blockIdx.x];
    for (int m = 0; m < a.n_mark; m++)
        for (int i = TID; i < l.n; i += 128)
            AT(float, l.marks + m * l.row)[l.slot + i] = 0.0f;
}

/* A thread has a run. */
KERNEL(128, 8) marks_sources(const gpu_marks_args a)
{
    const int i = (int)blockIdx.x * 128 + TID;
    if (i >= a.n_run)
        return;
    const gpu_marks_run run = AT(const gpu_marks_run, a.runs)[i];
    for (int e = 0; e < run.n; e++)
        AT(int32_t, a.source)[run.to + e] = run.from + e;
}

/* No source lies before its goal: a block's 1,024 entries are read before they are written, and later
   ones lie behind them. */
template <class T> DEV void keep_row(const gpu_marks_lane &l, const int32_t *source, T *row)
{
    for (int first = 0; first < l.n; first += 1024) {
        const int i = first + TID;
        const T x = i < l.n ? row[source[i]] : (T)0;
        sync_block();
        if (i < l.n)
            row[l.slot + i] = x;
    }
}

/* Grid: lanes. */
KERNEL(1024, 1) marks_keep(const gpu_marks_args a)
{
    const gpu_marks_lane l = AT(const gpu_marks_lane, a.lanes)[blockIdx.x];
    const int32_t *source = AT(const int32_t, a.source) + l.first;
    for (int m = 0; m < a.n_mark; m++)
        keep_row(l, source, AT(float, l.marks + m * l.row));
    if (a.norms)
        keep_row(l, source, AT(uint16_t, l.marks + a.n_mark * l.row));
}

#endif
