/*
 * note.cuh - what attention's weights leave beside a lane's entries (kv/note.h): notes, made from
 * the exponents that the kernels of attention kept, and marks of entries that are new or move. A
 * thread has an entry and takes the tokens in order, so that no number depends on how tokens are
 * cut.
 */
#ifndef PI_GPU_NOTE_CUH
#define PI_GPU_NOTE_CUH

#include "device/gpu/attend.cuh"

/* enum kv_note_word and enum kv_group: host files assert that they are these. */
enum {
    NOTE_SUM,
    NOTE_SEEN,
    NOTE_MOST,
    NOTE_LAST,
    NOTE_TIME,
    NOTE_GAPS,
    NOTE_LOW,
    NOTE_NORM,
    NOTE_BEFORE,
    NOTE_TOGETHER
};
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
    if (w.word == NOTE_SUM || w.word >= NOTE_BEFORE) {
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

/* The exponent of a row of BEFORE, or the largest of a token's group. */
DEV float vote_exponent(const gpu_note_call &c, const gpu_note_lane &l, const gpu_note_word &w,
                        int row, int place)
{
    if (w.word == NOTE_BEFORE)
        return exponent_of(c, l, row, place);
    float x = exponent_of(c, l, row * l.n_group, place);
    for (int g = 1; g < l.n_group; g++)
        x = f_max(x, exponent_of(c, l, row * l.n_group + g, place));
    return x;
}

DEV float vote_of(const gpu_note_call &c, const gpu_note_lane &l, const gpu_note_word &w, int row,
                  int place)
{
    const float m = AT(const float, w.sums)[2 * row], sum = AT(const float, w.sums)[2 * row + 1];
    return sum > 0.0f ? ex2(vote_exponent(c, l, w, row, place) - finite_of(m)) / sum : 0.0f;
}

/* The largest, or the sum, over 256 threads. All get it; room: [256]. */
DEV float fold_block(float x, bool sum, float *room)
{
    sync_block();
    room[TID] = x;
    sync_block();
    for (int d = 128; d > 0; d /= 2) {
        if (TID < d)
            room[TID] = sum ? room[TID] + room[TID + d] : f_max(room[TID], room[TID + d]);
        sync_block();
    }
    return room[0];
}

/* A row's maximum and sum over the first w.n entries. A block has the row. */
DEV void sum_votes(const gpu_note_call &c, const gpu_note_lane &l, const gpu_note_word &w, int row,
                   float *room)
{
    const int n_place = l.n_page * l.page_len;
    float most = NEG_INF, sum = 0.0f;
    for (int place = TID; place < n_place; place += 256) {
        const int slot = slot_of_place(l, place);
        if (slot >= 0 && slot < w.n)
            most = f_max(most, vote_exponent(c, l, w, row, place));
    }
    most = fold_block(most, false, room);
    for (int place = TID; place < n_place; place += 256) {
        const int slot = slot_of_place(l, place);
        if (slot >= 0 && slot < w.n)
            sum += ex2(vote_exponent(c, l, w, row, place) - finite_of(most));
    }
    sum = fold_block(sum, true, room);
    if (TID == 0) {
        AT(float, w.sums)[2 * row] = most;
        AT(float, w.sums)[2 * row + 1] = sum;
    }
}

/* For words that have a softmax of their own. Grid: (blocks that rows go round, lanes). */
KERNEL(256, 4) note_sums(const gpu_note_args &a)
{
    SHARED(smem);
    const gpu_note_lane l = AT(const gpu_note_lane, a.lanes)[blockIdx.y];
    for (int i = 0; i < l.n_call; i++) {
        const gpu_note_call c = AT(const gpu_note_call, l.calls)[i];
        for (int j = 0; j < c.n_word; j++) {
            const gpu_note_word w = AT(const gpu_note_word, c.words)[j];
            const int n_row = w.word == NOTE_BEFORE ? c.n_tok * l.n_group : c.n_tok;
            for (int row = (int)blockIdx.x; w.sums != 0 && row < n_row; row += a.n_block)
                sum_votes(c, l, w, row, (float *)smem);
        }
    }
}

DEV void note_word(const gpu_note_call &c, const gpu_note_lane &l, const gpu_note_word &w, int t,
                   int n_seen, int place, int slot)
{
    float *to = AT(float, w.to);
    if (c.pos0 + t < w.from || (w.n > 0 && slot >= w.n))
        return;
    if (w.group == GROUP_EACH) {
        for (int g = 0; g < l.n_group; g++) {
            const int row = t * l.n_group + g;
            word_row(c, w, t, n_seen, slot,
                     w.word == NOTE_BEFORE ? vote_of(c, l, w, row, place)
                                           : weight_of(c, l, row, place),
                     to + (size_t)g * w.stride);
        }
        return;
    }
    float x = 0.0f;
    if (w.word == NOTE_TOGETHER)
        x = vote_of(c, l, w, t, place);
    else if (w.word == NOTE_NORM)
        x = norm_word(c, l, w, t, place, slot);
    else if (w.word == NOTE_LAST && w.group == GROUP_MEAN) /* the mean as a quotient */
        x = group_weight(c, l, t, place, GROUP_SUM) / (float)l.n_group;
    else if (w.word != NOTE_SEEN)
        x = group_weight(c, l, t, place, w.group);
    word_row(c, w, t, n_seen, slot, x, to);
}

/* Grid: (places / 256, lanes). */
KERNEL(256, 4) note_words(const gpu_note_args &a)
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
KERNEL(256, 4) note_rows(const gpu_note_rows_args &a)
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

/* ---- the entry that goes ---- */

struct victim_best {
    float score;
    int pos, slot; /* slot -1: there is none */
};

DEV void take_lower(victim_best *best, float score, int pos, int slot)
{
    const bool takes = slot >= 0 && (best->slot < 0 || score < best->score ||
                                     (score == best->score && pos < best->pos));
    best->score = takes ? score : best->score;
    best->pos = takes ? pos : best->pos;
    best->slot = takes ? slot : best->slot;
}

/* The lowest over 256 threads. All get it; room: [8]. */
DEV victim_best lowest_of_block(victim_best best, victim_best *room)
{
    for (int mask = 16; mask > 0; mask /= 2) {
        const float score = shfl_xor(best.score, mask);
        const int pos = (int)shfl((uint32_t)best.pos, LANE ^ mask);
        const int slot = (int)shfl((uint32_t)best.slot, LANE ^ mask);
        take_lower(&best, score, pos, slot);
    }
    sync_block();
    if (LANE == 0)
        room[WARP] = best;
    sync_block();
    best = room[0];
    for (int i = 1; i < 8; i++)
        take_lower(&best, room[i].score, room[i].pos, room[i].slot);
    return best;
}

/* Behind the n_sink oldest entries. They are a lane's first ones, but where it was made
   otherwise. */
DEV int behind_sinks(const gpu_victim &v, const int32_t *place, victim_best *room)
{
    victim_best last = {0.0f, 0, -1}, other = {0.0f, 0, -1};
    for (int i = TID; i < v.n_sink; i += 256)
        take_lower(&last, 0.0f, 1 - place[i], i);
    last = lowest_of_block(last, room); /* the highest position, with its sign changed */
    for (int i = v.n_sink + TID; i < v.n; i += 256)
        if (place[i] - 1 <= -last.pos)
            take_lower(&other, 0.0f, place[i] - 1, i);
    other = lowest_of_block(other, room);
    int lo = other.slot < 0 ? 1 - last.pos : 0;
    for (int s = 0; s < v.n_sink && other.slot >= 0; s++) {
        victim_best next = {0.0f, 0, -1};
        for (int i = TID; i < v.n; i += 256)
            if (place[i] - 1 >= lo)
                take_lower(&next, 0.0f, place[i] - 1, i);
        next = lowest_of_block(next, room);
        lo = next.pos + 1;
    }
    return lo;
}

DEV float row_score_of(const gpu_victim_row &r, int i)
{
    const float x = AT(const float, r.score)[i];
    if (r.seen != 0)
        return x / f_max(AT(const float, r.seen)[i], 1.0f);
    if (r.norm == 0)
        return x;
    const float norm = AS_F((uint32_t)AT(const uint16_t, r.norm)[i] << 16);
    return x * (norm < 3.402823466e38f ? norm : 3.402823466e38f);
}

DEV float victim_score(const gpu_victim &v, int i)
{
    const gpu_victim_row *row = AT(const gpu_victim_row, v.rows);
    float x = row_score_of(row[0], i);
    for (int r = 1; r < v.n_row; r++) {
        const float y = row_score_of(row[r], i);
        x = v.mean ? x + y : f_max(x, y);
    }
    return x == x ? x : 0.0f;
}

/* Grid: victims. */
KERNEL(256, 4) victims(const gpu_victim_args &a)
{
    SHARED(smem);
    victim_best *room = (victim_best *)smem, best = {0.0f, 0, -1};
    const gpu_victim v = AT(const gpu_victim, a.victims)[blockIdx.x];
    const int32_t *place = AT(const int32_t, v.place);
    const int sinks = v.n_sink > 0 ? behind_sinks(v, place, room) : 0,
              lo = sinks > v.lo ? sinks : v.lo;
    for (int i = TID; i < v.n; i += 256) {
        const int pos = place[i] - 1;
        if (pos >= lo && pos < v.hi)
            take_lower(&best, victim_score(v, i), pos, i);
    }
    best = lowest_of_block(best, room);
    if (TID == 0)
        *AT(int32_t, v.out) = best.slot;
}

/* ---- marks ---- */

/* Grid: lanes. */
KERNEL(128, 8) marks_clear(const gpu_marks_args &a)
{
    const gpu_marks_lane l = AT(const gpu_marks_lane, a.lanes)[blockIdx.x];
    for (int m = 0; m < a.n_mark; m++)
        for (int i = TID; i < l.n; i += 128)
            AT(int32_t, l.marks + m * l.row)
    [l.slot + i] = a.places && m == a.n_mark - 1 ? l.first + i + 1 : 0;
}

/* A thread has a run. */
KERNEL(128, 8) marks_sources(const gpu_marks_args &a)
{
    const int i = (int)blockIdx.x * 128 + TID;
    if (i >= a.n_run)
        return;
    const gpu_marks_run run = AT(const gpu_marks_run, a.runs)[i];
    for (int e = 0; e < run.n; e++)
        AT(int32_t, a.source)[run.to + e] = run.from + e;
}

/* No source lies before its goal: a block's 1,024 entries are read before they are written, and
   later ones lie behind them. */
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
KERNEL(1024, 1) marks_keep(const gpu_marks_args &a)
{
    const gpu_marks_lane l = AT(const gpu_marks_lane, a.lanes)[blockIdx.x];
    const int32_t *source = AT(const int32_t, a.source) + l.first;
    for (int m = 0; m < a.n_mark; m++)
        keep_row(l, source, AT(float, l.marks + m * l.row));
    if (a.norms)
        keep_row(l, source, AT(uint16_t, l.marks + a.n_mark * l.row));
}

#endif
