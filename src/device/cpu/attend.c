/*
 * attend.c - attention over a lane. It walks the lane's pages, or tiles of the entries that the
 * caller lists (gather.c), and hands each one to the kernels of cpu/attend.h. It decides which
 * entries each query sees, and the rotation between them. It knows no policy and no arithmetic
 * beyond the last division, of outputs and of weights (see there).
 *
 * There are two ways over a page, with the same bits. Few rows (a generated token's query group)
 * read it as it is stored, once. Many rows (a prompt) decode it first, keys side by side, to f32,
 * pairs or codes, and go over it in blocks of rows. Invariant: a row's result depends on the
 * entries it sees and their slots, and on nothing else.
 */
#include <math.h>

#include "device/cpu/attend.h"
#include "device/cpu/note.h"
#include "device/cpu/wht.h"

/* Rows that make the decoding of a page small beside the work on it. */
#define TILE_ROWS 96

/* Pages are prefetched at least this many bytes before they are read: at the speed of memory,
   longer than its latency. More is worse: it fills the first level of cache, and at the end of a
   lane the memory rests that much longer. */
#define LOOK_AHEAD_BYTES 8192

/* The next n floats of scratch, each part on its own cache line; only counts while base is NULL. */
static void *take(uint8_t *base, size_t *used, size_t n)
{
    return pi_mem_part(base, used, n, sizeof(float));
}

/* Places the parts into scratch (NULL: counts alone) and returns the bytes they take. */
static size_t place(struct attend *a, const struct kv_geometry *g, int32_t n_row, uint8_t *scratch)
{
    size_t used = 0, rows = (size_t)n_row, dim_k = (size_t)g->dim_k, dim_v = (size_t)g->dim_v;
    size_t len = (size_t)pi_max(g->page_len, KV_GATHER_LEN);
    a->q = take(scratch, &used, rows * dim_k);
    a->row = take(scratch, &used, dim_k);
    a->cs = take(scratch, &used, dim_k + 1);
    a->x = take(scratch, &used, (size_t)PI_ATTEND_ROWS * PI_ATTEND_SLOTS);
    a->o = take(scratch, &used, rows * dim_v);
    a->max = take(scratch, &used, rows);
    a->sum = take(scratch, &used, rows);
    a->rescale = take(scratch, &used, PI_ATTEND_ROWS);
    a->limit = take(scratch, &used, PI_ATTEND_ROWS);
    a->stretch = take(scratch, &used, rows * (sizeof(*a->stretch) / sizeof(float)));
    if (n_row > PI_ATTEND_ROWS_STORED) {
        a->k = take(scratch, &used, dim_k * len);
        a->v = take(scratch, &used, dim_v * len);
    }
    a->tile = pi_mem_part(scratch, &used, scratch == NULL ? kv_gather_bytes(g) : 0, 1);
    return used;
}

size_t cpu_attend_scratch(const struct kv_geometry *g, int32_t n_row)
{
    struct attend a;
    return place(&a, g, n_row, NULL) + 64;
}

int32_t cpu_attend_tile(int32_t n_group)
{
    return n_group >= TILE_ROWS ? 1 : TILE_ROWS / n_group;
}

/* Fills q for pages with a delta. */
static void queries_fill(struct attend *a, int32_t delta)
{
    const struct kv_queries to = {a->q, a->block_rows, a->pairs_k};
    kv_queries_put(a->job, &a->lane->kind->k, delta, a->row, a->cs, &to);
    a->delta = delta;
}

/* ---- pages -------------------------------------------------------------------------------- */

/* n entries in page_len places from a base on, at these positions. */
static struct pi_attend_page page_view(const struct attend *a, const struct kv_page_layout *layout,
                                       const uint8_t *base, const int32_t *pos, int32_t page_len,
                                       int32_t n)
{
    struct pi_attend_page page;
    kv_page_view(a->lane->kind, layout, base, pos, page_len, n, &page);
    return page;
}

static enum pi_attend_type kernel_k(const struct attend *a)
{
    return a->lane->kind->k.codec->kernel;
}

static enum pi_attend_type kernel_v(const struct attend *a)
{
    return a->lane->kind->value.codec->kernel;
}

/* Whether values are rounded (cpu/attend.h): bf16, and rotated types where a head is one group and
   stands by itself. q4_0 with its groups of 32 has the arithmetic of the wider types for every head
   size. */
static bool rounded(const struct attend *a)
{
    const struct kv_part *v = &a->lane->kind->value;
    return v->codec->kernel == PI_ATTEND_BF16 ||
           (v->codec->rotated && v->group == v->dim && a->lane->kind->v_pitch == v->dim);
}

/* Keys of q8_0 stay codes. Where they are not side by side they are put so once for all rows. */
static void codes_turn(const struct attend *a, struct pi_attend_page *page)
{
    uint8_t *out = a->k;
    if (page->columns)
        return;
    a->cpu->turn_k(page, out);
    page->k = out;
    page->k_scale = (const uint16_t *)(void *)(out + (size_t)page->dim_k * (size_t)page->page_len);
    page->columns = true;
}

/* Replaces K by a transposed copy in f32, unless it is one already. Replaces V, where it is needed
   and not f32, by a copy in f32. Or it replaces either by pairs, and K by codes. */
static void page_decode(struct attend *a, struct pi_attend_page *page)
{
    enum pi_attend_type type_k = kernel_k(a), type_v = kernel_v(a);
    page->next = 0; /* the next page is prefetched part by part, beside the rows */
    if (type_k == PI_ATTEND_Q8_0) {
        codes_turn(a, page);
    } else if (!page->columns || type_k != PI_ATTEND_F32) {
        if (a->pairs_k)
            a->cpu->pair_k(page, a->k);
        else
            a->cpu->decode_k[type_k](page, a->k);
        page->k = a->k;
    }
    if (a->job->out != NULL && type_v != PI_ATTEND_F32) {
        if (a->pairs_v && type_v == PI_ATTEND_BF16)
            a->cpu->pair_v(page, a->v);
        else if (rounded(a))
            a->cpu->decode_rounded[type_v](page, a->v);
        else
            a->cpu->decode_v[type_v](page, a->v);
        if (a->pairs_v && type_v != PI_ATTEND_BF16)
            a->cpu->pair_rounded(page, a->v);
        page->v = a->v;
        page->v_pitch = page->dim_v;
    }
}

/* Entries of a page, from the first on, at positions <= limit: ascending, so the rest are not. */
static int32_t count_visible(const struct pi_attend_page *page, int32_t limit)
{
    int32_t n = page->n;
    while (n > 0 && page->pos[n - 1] > limit)
        n--;
    return n;
}

/* ---- one page ----------------------------------------------------------------------------- */

/* The places for a page's logits and weights. Kernels write whole groups of 16 weights. Where pages
   with a delta let the last group begin at an odd slot, it would exceed the row: then there are
   none. */
static struct pi_attend_tap tap_of_page(const struct attend *a, int32_t n, int32_t slot, int32_t r0)
{
    const struct kv_attend_tap *tap = a->job->tap;
    if (tap == NULL || a->guest)
        return (struct pi_attend_tap){0};
    size_t at = (size_t)r0 * tap->row_stride + (size_t)slot;
    bool fits = pi_align((size_t)n, 16) + (size_t)slot <= pi_align((size_t)a->len, 16);
    return (struct pi_attend_tap){.logits = tap->logits == NULL ? NULL : tap->logits + at,
                                  .weight = tap->weight == NULL || !fits ? NULL : tap->weight + at,
                                  .stride = tap->row_stride};
}

/* An entry that counts m times is m entries alike: m E(x - max) = E(x + ln m - max). The largest
   logits stay as they are, a unit in the last place of which is more than any ln m. */
static void count_more(const struct attend *a, int32_t n_row, int32_t n)
{
    float bias = (float)log(1.0 + a->n_folded);
    for (int32_t i = 0; i < n_row; i++)
        for (int32_t s = 0; s < n; s++)
            a->x[i * PI_ATTEND_SLOTS + s] += bias;
}

static void cap_logits(const struct attend *a, int32_t n_row, int32_t n)
{
    for (int32_t i = 0; i < n_row; i++)
        pi_kernels()->vec.soft_cap(a->x + i * PI_ATTEND_SLOTS, a->job->cap, n);
}

/* Hides the entries before its window from each of a block's rows: they are at the front of the
   page, whose positions ascend. */
static void hide_passed(const struct attend *a, const struct pi_attend_page *page, int32_t r0,
                        int32_t n_row)
{
    for (int32_t i = 0; i < n_row; i++) {
        int32_t first = kv_query_first(a->job, a->lane->window, r0 + i, a->delta);
        for (int32_t s = 0; s < page->n && page->pos[s] < first; s++)
            a->x[i * PI_ATTEND_SLOTS + s] = -INFINITY;
    }
}

/* Whether the first of a block's rows, and with it all, sees all entries of a page. In a lane that
   was overwritten, the page's largest position is taken to be the lane's largest: a generated token
   comes after it. */
static bool sees_all(const struct attend *a, const struct pi_attend_page *page, int32_t r0)
{
    if (a->lane->unordered)
        return a->lane->top <= a->job->pos0 + r0 / a->job->n_group;
    return page->pos[page->n - 1] <= a->limit[0];
}

/* The values' part of a block's work on a page, the weights being in x. */
static void block_values(const struct attend *a, const struct pi_attend_page *page,
                         const struct pi_attend_rows *rows)
{
    if (a->pairs_v) {
        a->cpu->values_paired(page, rows);
    } else if (!rounded(a)) {
        a->cpu->values[a->decoded ? PI_ATTEND_F32 : kernel_v(a)](page, rows);
    } else if (!a->decoded) {
        a->cpu->values_rounded[kernel_v(a)](page, rows);
    } else {
        struct pi_attend_rows weighed = *rows;
        weighed.rescale = a->rescale; /* it changes, and the parts of the weights need theirs */
        memmove(weighed.rescale, rows->rescale, (size_t)rows->n_row * sizeof(float));
        a->cpu->round_weights(page, &weighed);
        a->cpu->values[PI_ATTEND_F32](page, &weighed);
    }
}

/* Prefetches the part of a page that belongs to block i of n, so that the requests spread over the
   work on this page. */
static void prefetch_part(const struct attend *a, const uint8_t *page, int32_t i, int32_t n)
{
    const struct kv_page_layout *layout = &a->lane->kind->layout;
    size_t bytes = a->job->out != NULL ? layout->stored : layout->k_end;
    size_t step = pi_align(bytes / (size_t)n + 1, 64);
    size_t begin = (size_t)i * step;
    if (begin < bytes)
        a->cpu->prefetch(page + begin, step < bytes - begin ? step : bytes - begin);
}

/* Prefetches the lines that the kernels of few rows do not: values of f32 at once, and the small
   parts. Beside the softmax, which reads none: the memory would be at rest. */
static void prefetch_rest(const struct attend *a, const uint8_t *page)
{
    const struct kv_page_layout *layout = &a->lane->kind->layout;
    size_t k = layout->k_scale;
    size_t v = kernel_v(a) == PI_ATTEND_F32 ? layout->v : layout->v_scale;
    v = a->job->out != NULL && a->lane->kind->v.dim > 0 ? v : layout->stored;
    a->cpu->prefetch(page + k, layout->k_end - k);
    if (v < layout->stored)
        a->cpu->prefetch(page + v, layout->stored - v);
}

/* One block of rows, from r0 on, on one page that begins at a slot of the lane: logits, weights,
   values. Values are read for the entries that its last row sees. Where positions do not ascend,
   they are read for all entries, and a row adds nothing for entries that it does not see. Small
   weights are dropped with rotated types: their values are coded so coarsely that such weights
   would add less than the error of coding. */
static void block_attend(struct attend *a, struct pi_attend_page page, int32_t slot, int32_t r0)
{
    const struct kv_geometry *g = &a->cache->g;
    int32_t n_row = (int32_t)pi_min(a->block_rows, a->n_row - r0), n_all = page.n;
    kv_query_limits(a->job, a->delta, r0, n_row, a->limit);
    if (!a->lane->unordered)
        page.n = count_visible(&page, a->limit[n_row - 1]);
    if (a->weights)
        cpu_weights_clear(a, r0, n_row, slot + page.n, n_all - page.n);
    if (page.n == 0) {
        cpu_part_pass(a, r0, n_row);
        return;
    }
    float *q = a->q + (size_t)r0 * (size_t)g->dim_k;
    struct pi_attend_rows rows = {
        .n_row = n_row,
        .q = q,
        .q_pair = (const uint32_t *)(const void *)q,
        .q_codes = kv_query_codes(q, g->dim_k, n_row),
        .scale = a->job->scale,
        .limit = a->limit,
        .all_visible = sees_all(a, &page, r0),
        .x = a->x,
        .max = a->max + r0,
        .sum = a->sum + r0,
        .rescale = a->moved != NULL ? a->moved + r0 : a->rescale,
        .o = a->o + (size_t)r0 * (size_t)g->dim_v,
        .o_stride = (size_t)g->dim_v,
    };
    struct pi_attend_tap page_tap = tap_of_page(a, page.n, slot, r0);
    if (a->pairs_k)
        a->cpu->logits_paired(&page, &rows);
    else if (a->decoded && kernel_k(a) != PI_ATTEND_Q8_0)
        a->cpu->logits_decoded(&page, &rows);
    else
        a->cpu->logits[kernel_k(a)](&page, &rows);
    if (a->job->cap > 0)
        cap_logits(a, n_row, page.n);
    if (a->n_folded > 0)
        count_more(a, n_row, page.n);
    if (a->lane->window > 0 &&
        page.pos[0] < kv_query_first(a->job, a->lane->window, r0 + n_row - 1, a->delta))
        hide_passed(a, &page, r0, n_row);
    if (a->next != NULL)
        prefetch_rest(a, a->next);
    a->next = NULL;
    a->cpu->softmax(&page, &rows, &page_tap);
    if (a->weights && page_tap.weight == NULL)
        cpu_weights_copy(a, r0, n_row, slot, page.n);
    if (a->weights && a->parts == NULL)
        cpu_weights_note(a, r0, n_row, slot);
    if (a->job->out == NULL)
        return;
    rows.need = UINT64_MAX >> (64 - page.n);
    if (a->lane->kind->value.codec->rotated)
        rows.need = a->cpu->drop(&page, &rows);
    block_values(a, &page, &rows);
}

/* Prefetches the entries after this page beside block i of n_block: a page, or with NULL the
   entries to gather next. */
static void prefetch_next(struct attend *a, const uint8_t *next, int32_t i, int32_t n_block)
{
    if (next != NULL)
        prefetch_part(a, next, i, n_block);
    else
        kv_gather_ask(&a->gather, a->gather.here.at + KV_GATHER_LEN * (i + 1) / n_block);
}

/* Whether no row sees anything of a page: where positions ascend in it its first one and its last
   say so. */
static bool is_hidden(const struct attend *a, const struct pi_attend_page *page, int32_t delta)
{
    return !a->lane->unordered &&
           (page->pos[0] > kv_query_limit(a->job, a->n_row - 1, delta) ||
            (a->lane->window > 0 &&
             page->pos[page->n - 1] < kv_query_first(a->job, a->lane->window, 0, delta)));
}

/* A page whose entries begin at a slot. */
static void page_attend(struct attend *a, struct pi_attend_page page, int32_t delta, int32_t slot,
                        const uint8_t *next)
{
    if (is_hidden(a, &page, delta)) {
        if (a->weights)
            cpu_weights_clear(a, 0, a->n_row, slot, page.n);
        cpu_part_pass(a, 0, a->n_row);
        return;
    }
    if (delta != a->delta)
        queries_fill(a, delta);
    if (a->decoded)
        page_decode(a, &page);
    a->next = a->decoded ? NULL : next;
    int32_t n_block = (int32_t)pi_ceil_div(a->n_row, a->block_rows);
    for (int32_t i = 0; i < n_block; i++) {
        if (a->decoded || next == NULL)
            prefetch_next(a, next, i, n_block);
        block_attend(a, page, slot, i * a->block_rows);
    }
}

/* Pages whose marks are prefetched beside one. */
#define MARK_PAGES 4

/* Prefetches the marks of MARK_PAGES full pages from a slot on. The receiver of the weights reads
   marks with them, when nothing else is read. */
static void prefetch_marks(const struct attend *a, int64_t slot)
{
    const struct kv_seq *seq = a->job->seq;
    size_t lane = (size_t)(a->lane - seq->lane);
    int64_t n = pi_min(a->len - slot, (int64_t)MARK_PAGES * a->cache->g.page_len);
    for (int32_t i = 0; n > 0 && i < a->cache->n_mark; i++)
        a->cpu->prefetch_near(kv_marks_at(seq, lane, i) + slot, (size_t)n * sizeof(float));
    if (n > 0 && a->cache->value_norm)
        a->cpu->prefetch_near(kv_norms_at(seq, lane) + slot, (size_t)n * sizeof(uint16_t));
}

/* The first page beside which marks are prefetched. Not earlier: in a long lane the lines would
   leave the cache again. */
static int32_t first_mark_page(const struct attend *a)
{
    return a->weights ? a->lane->n_live - (a->lane->n_live + MARK_PAGES - 1) / MARK_PAGES
                      : INT32_MAX;
}

static void prefetch_pos(const struct attend *a, int32_t page)
{
    a->cpu->prefetch(kv_page_pos(a->lane->kind, page),
                     (size_t)a->cache->g.page_len * sizeof(int32_t));
}

/* Every page of the lane. */
static void lane_attend(struct attend *a)
{
    const struct kv_page_layout *layout = &a->lane->kind->layout;
    const struct kv_page_ref *table = a->lane->table;
    int32_t mark_page = first_mark_page(a);
    for (int32_t i = 0; i < a->look_ahead && i < a->lane->n_live; i++) {
        prefetch_part(a, kv_page_at(a->lane->kind, table[i].page), 0, 1);
        prefetch_pos(a, table[i].page);
    }
    for (int32_t i = 0, slot = 0; i < a->lane->n_live; slot += table[i++].n) {
        const uint8_t *base = kv_page_at(a->lane->kind, table[i].page), *next = base;
        if (i + a->look_ahead < a->lane->n_live) {
            next = kv_page_at(a->lane->kind, table[i + a->look_ahead].page);
            prefetch_pos(a, table[i + a->look_ahead].page);
        }
        struct pi_attend_page page =
            page_view(a, layout, base, kv_page_pos(a->lane->kind, table[i].page),
                      a->cache->g.page_len, table[i].n);
        page.next = next - base;
        page.far = a->cpu->far;
        a->n_folded = table[i].n_folded;
        if (i >= mark_page)
            prefetch_marks(a, (int64_t)(i - mark_page) * MARK_PAGES * a->cache->g.page_len);
        if (a->weights && a->parts != NULL)
            cpu_part_begin(a, slot + table[i].n);
        page_attend(a, page, table[i].delta, slot, next);
    }
}

/* Every page of the guests' lane, with which the rows begin. */
static void guests_attend(struct attend *a)
{
    const struct kv_lane *own = a->lane;
    bool weights = a->weights;
    a->lane = kv_lane_at(a->job->guests, a->job->layer, a->job->head);
    a->guest = true;
    a->weights = false;
    lane_attend(a);
    a->lane = own;
    a->guest = false;
    a->weights = weights;
}

/* The entries that the job lists, tile after tile. */
static void slots_attend(struct attend *a)
{
    struct kv_gather *g = &a->gather;
    int32_t n, delta;
    kv_gather_start(g, a->cache, a->lane, a->job->slots, a->len, a->tile);
    kv_gather_ask(g, KV_GATHER_LEN);
    for (int32_t slot = 0; kv_gather_next(g, &n, &delta, &a->n_folded); slot += n)
        page_attend(a, page_view(a, &g->layout, a->tile, g->pos, KV_GATHER_LEN, n), delta, slot,
                    NULL);
}

/* ---- the call ----------------------------------------------------------------------------- */

static void rows_start(struct attend *a)
{
    const struct kv_attend_tap *tap = a->job->tap;
    for (int32_t r = 0; r < a->n_row; r++) {
        const float *sink = a->job->sink;
        a->max[r] = sink != NULL ? sink[r % a->job->n_group] : -INFINITY;
        a->sum[r] = sink != NULL ? 1.0f : 0.0f;
        a->stretch[r].n = 1;
        a->stretch[r].slot[0] = 0;
        a->stretch[r].rescale[0] = 0.0f;
        for (int32_t s = 0; tap != NULL && tap->logits != NULL && s < a->len; s++)
            tap->logits[(size_t)r * tap->row_stride + (size_t)s] = -INFINITY;
    }
    if (a->job->out != NULL)
        memset(a->o, 0, (size_t)a->n_row * (size_t)a->cache->g.dim_v * sizeof(float));
}

/* out = o / l. Adding zero turns a negative zero, whose sign may depend on which slots were
   skipped, into the positive one. A sum of values that are stored rotated is the sum of the values,
   rotated: it is turned back once, for all of them. */
static void rows_finish(struct attend *a)
{
    const struct kv_attend_job *job = a->job;
    const struct kv_part *v = &a->lane->kind->value;
    size_t dim_v = (size_t)a->cache->g.dim_v;
    for (int32_t r = 0; job->out != NULL && r < a->n_row; r++) {
        const float *o = a->o + (size_t)r * dim_v;
        float *out = job->out + (size_t)(r / job->n_group) * job->out_stride +
                     (size_t)(r % job->n_group) * dim_v;
        float inverse = cpu_inverse_sum(a, r);
        for (size_t d = 0; d < dim_v; d++)
            out[d] = o[d] * inverse + 0.0f;
        if (v->codec->rotated)
            kv_wht(out, v->dim, v->group, true);
    }
    if (a->weights)
        cpu_weights_finish(a);
    if (job->tap != NULL && job->tap->max != NULL)
        memcpy(job->tap->max, a->max, (size_t)a->n_row * sizeof(float));
    if (job->tap != NULL && job->tap->sum != NULL)
        memcpy(job->tap->sum, a->sum, (size_t)a->n_row * sizeof(float));
}

/* The first byte of scratch that is on a cache line. */
static void *scratch_of(void *scratch)
{
    return (uint8_t *)scratch + (64 - (uintptr_t)scratch % 64) % 64;
}

/* Of a job whose queries and output are pointers. */
static void run(const struct kv_attend_job *job, void *scratch)
{
    struct attend a = {
        .job = job,
        .cache = job->seq->cache,
        .lane = kv_lane_at(job->seq, job->layer, job->head),
        .cpu = &pi_kernels()->attend,
        .n_row = job->n_tok * job->n_group,
        .weights = job->tap != NULL && job->tap->weight != NULL,
    };
    a.decoded = a.n_row > PI_ATTEND_ROWS_STORED;
    a.pairs_k = a.decoded && a.cpu->pair_k != NULL && kernel_k(&a) == PI_ATTEND_BF16;
    a.pairs_v = a.decoded && a.cpu->pair_v != NULL && rounded(&a);
    a.block_rows = a.decoded ? PI_ATTEND_ROWS : PI_ATTEND_ROWS_STORED;
    a.len = job->slots != NULL ? job->n_slot : a.lane->len;
    a.look_ahead = (int32_t)pi_ceil_div(LOOK_AHEAD_BYTES, (int64_t)a.lane->kind->layout.stored);
    assert(job->slots == NULL || job->tap == NULL || job->tap->parts == NULL);
    place(&a, &a.cache->g, a.n_row, scratch_of(scratch));
    rows_start(&a);
    cpu_parts_start(&a);
    queries_fill(&a, 0);
    if (job->guests != NULL)
        guests_attend(&a);
    if (job->slots != NULL)
        slots_attend(&a);
    else
        lane_attend(&a);
    rows_finish(&a);
}

void cpu_attend_one(const struct kv_attend_job *job, void *scratch)
{
    struct kv_attend_job own = *job;
    if (own.q == NULL)
        own.q = pi_cpu_floats(own.q_at);
    if (own.out == NULL)
        own.out = pi_cpu_floats(own.out_at);
    struct kv_attend_tap finished;
    if (own.n_note > 0 && own.tap->parts != NULL && !cpu_notes_take_parts(job)) {
        finished = *own.tap;
        finished.parts = NULL;
        own.tap = &finished;
    }
    run(&own, scratch);
    if (own.n_note > 0)
        cpu_note_job(&own, scratch_of(scratch));
}

/* ---- a layer ---- */

struct layer {
    const struct cpu_stream *s;
    const struct kv_attend_list *list;
};

static void layer_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct layer *layer = ctx;
    const struct kv_attend_list *list = layer->list;
    struct kv_attend_job job;
    for (int64_t i = begin; i < end; i++)
        for (int32_t turn = 0; list->job(list->ctx, i, turn, thread, &job); turn++) {
            cpu_attend_one(&job, cpu_scratch(layer->s, thread));
            if (list->done != NULL)
                list->done(list->ctx, i, turn, &job, thread);
        }
}

void cpu_attend(struct pi_stream *stream, const struct kv_attend_list *list)
{
    struct layer layer = {cpu_stream_of(stream), list};
    int32_t n_thread = cpu_threads_for(layer.s, list->work);
    if (list->n_thread > 0)
        n_thread = (int32_t)pi_min(n_thread, list->n_thread);
    cpu_items(layer.s, n_thread, list->n, layer_items, &layer);
}
