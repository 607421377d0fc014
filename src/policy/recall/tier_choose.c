/*
 * tier_choose.c - what comes back to a lane. Every entry in memory is scored, and those pages of
 * the file that can hold something better. A good entry brings its neighbours, since an answer
 * mostly follows the words that its question repeats. Formally, p is the position and s the score
 * of an entry. Weights (RECALL_ATTENTION) fade with the distance, half as far before the entry as
 * behind it. So a strong match brings many neighbours and a weak one few:
 *
 *     reach(i) = max over j of s(j) 2^(-d / fade),  d = p(i) - p(j) behind, 2 (p(j) - p(i)) before
 *
 * Scores of other kinds have no zero to fade to (and fade=0 turns it off). There an entry brings a
 * block, a quarter of it before the entry and the rest behind it:
 *
 *     reach(i) = max { s(j) : p(j) - block / 4 <= p(i) < p(j) - block / 4 + block }
 *
 * The entries of largest reach come back, of equal reach the lower positions.
 *
 * A page of the file is read where its promise is above the least reach that would come back
 * without it. The promise is the bound of its scores, or the score of an entry whose block it has a
 * part in. As many pages are read as guests could fill, or RECALL_FILE_LEAST. Blocks that only
 * begin in those can need as many again.
 *
 * Invariant: the choice follows from the stored entries and the queries, whichever thread makes it.
 */
#include <float.h>
#include <math.h>

#include "policy/recall/tier.h"

enum {
    MATCHES = 64, /* best entries whose blocks ask for pages of the file */
    DIGIT = 11,   /* bits of a position that a sort counts at a time */
    BINS = 1 << DIGIT,
    FILE_ROUNDS = 2, /* of reading: blocks that begin in the first pages can ask for others */
    FADE_BEFORE = 2, /* weights fade this many times as fast before an entry */
};

/* ---- scratch ---- */

/* Entries that a recall of one lane has to do with at most. */
static int32_t most_entries(const struct recall_tier *tier)
{
    int64_t n_page = tier->n_page + pi_min(tier->n_place, RECALL_FILE_MOST);
    return (int32_t)pi_max(n_page, RECALL_STAGING_LEN) * RECALL_PAGE_LEN;
}

/* Rows of scores. A choice comes when scores are finished, so its parts lie in their place. */
static void place_rows(const struct recall_tier *tier, int32_t n_tok, size_t n, size_t top,
                       uint8_t *base, size_t *used, struct recall_work *w)
{
    size_t scores = *used, n_raw = tier->stats.n_row > 0 ? RECALL_ROWS * n : 0;
    size_t n_weight = recall_attend_rows(tier, n_tok) * pi_align(n, 16);
    w->weight = pi_mem_part(base, &scores, n_weight, sizeof(*w->weight));
    w->raw = pi_mem_part(base, &scores, n_raw, sizeof(*w->raw));
    w->order = pi_mem_part(base, used, n, sizeof(*w->order));
    w->other = pi_mem_part(base, used, n, sizeof(*w->other));
    w->wait = pi_mem_part(base, used, n, sizeof(*w->wait));
    w->top = pi_mem_part(base, used, kv_top_scratch_bytes((int32_t)top), 1);
    *used = *used > scores ? *used : scores;
}

/* Parts for recalls by n_tok tokens among n_entry entries, with n_place pages of the file. */
static size_t place_work(const struct recall_tier *tier, int32_t n_tok, int32_t n_entry,
                         int32_t n_place, uint8_t *base, struct recall_work *w)
{
    size_t used = 0, n = (size_t)n_entry, page = 0;
    recall_score_place(tier, n_tok, n_place, base, &used, w);
    w->value = pi_mem_part(base, &used, n, sizeof(*w->value));
    w->pos = pi_mem_part(base, &used, n, sizeof(*w->pos));
    w->reach = pi_mem_part(base, &used, n, sizeof(*w->reach));
    w->chosen = pi_mem_part(base, &used, n, sizeof(*w->chosen));
    place_rows(tier, n_tok, n, (size_t)pi_max(n_entry, n_place), base, &used, w);
    w->count = pi_mem_part(base, &used, BINS, sizeof(*w->count));
    for (int32_t k = 0; k < tier->n_kind && n_place > 0; k++)
        page = (size_t)pi_max((int64_t)page, (int64_t)kv_page_bytes(&tier->kind[k]));
    w->page = pi_mem_part(base, &used, (size_t)pi_min(n_place, RECALL_FILE_MOST), sizeof(*w->page));
    w->taken = pi_mem_part(base, &used, (size_t)n_place, sizeof(*w->taken));
    w->buffer = pi_mem_part(base, &used, n_place > 0 ? RECALL_HEAD_SIZE + page : 0, 1);
    return used;
}

/* Pages of the file that a recall reads in a round, at most. */
static int32_t pages_of_round(int32_t n_most)
{
    int64_t n = pi_max(pi_ceil_div(n_most, RECALL_PAGE_LEN), RECALL_FILE_LEAST);
    return (int32_t)pi_min(n, RECALL_FILE_MOST / FILE_ROUNDS);
}

/* Bytes of a thread's staging lanes, and of its room for a lane that comes in. */
static int64_t desk_bytes(const struct recall_tier *tier, bool file)
{
    int64_t bytes = 0, page = 0;
    for (int32_t k = 0; k < tier->n_kind && file; k++) {
        bytes += RECALL_STAGING_LEN * (int64_t)kv_page_bytes(&tier->kind[k]) +
                 kv_cache_bytes_at(1, RECALL_STAGING_LEN) +
                 kv_seq_bytes_at(&tier->kind[k], 0, RECALL_STAGING_LEN * RECALL_PAGE_LEN, 0);
        page = pi_max(page, (int64_t)kv_page_bytes(&tier->kind[k]));
    }
    return bytes + page + RECALL_PAGE_LEN * (int64_t)tier->model.g.dim_k * (int64_t)sizeof(float);
}

pith_status recall_tier_reserve(struct recall_tier *tier, int32_t n_tok, pith_error *err)
{
    struct recall_work counted;
    if (n_tok <= tier->n_tok)
        return PITH_OK;
    size_t size = place_work(tier, n_tok, most_entries(tier), tier->n_place, NULL, &counted);
    for (int32_t t = 0; t < tier->n_thread; t++) {
        struct recall_work *w = &tier->work[t];
        if (w->block_size >= size) /* by a reserve that failed later */
            continue;
        uint8_t *block = pi_mem_map(PI_MEM_SCRATCH, size);
        if (block == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for recalls by %d tokens", n_tok);
        pi_mem_unmap(PI_MEM_SCRATCH, w->block, w->block_size);
        w->block = block;
        w->block_size = size;
        place_work(tier, n_tok, most_entries(tier), tier->n_place, block, w);
    }
    PI_TRY(recall_ask_reserve(tier, most_entries(tier), err));
    tier->n_tok = n_tok;
    return PITH_OK;
}

pith_status recall_work_at(const struct recall_kv_options *o, const struct policy_model *model,
                           int32_t n_thread, int32_t n_token, int32_t n_guest, int64_t *bytes,
                           pith_error *err)
{
    struct recall_work counted;
    struct recall_tier tier = {.o = *o, .model = *model};
    int64_t n_page = pi_ceil_div(n_token, RECALL_PAGE_LEN) + 1, all = 0;
    bool file = o->file[0] != '\0';
    int32_t n_place = file ? (int32_t)n_page : 0;
    for (int32_t l = 0; l < model->g.n_layer; l++) {
        const struct kv_geometry lane = recall_lane_geometry(o, &model->g, l, model->n_group);
        recall_tier_kind(&tier, &lane);
        all += model->g.n_head * (int64_t)kv_page_bytes(&lane);
    }
    /* Pages in memory, and pages of the file that a recall reads. */
    if (o->ram != RECALL_RAM_AUTO && all > 0)
        n_page = pi_min(n_page, o->ram / all + (file ? FILE_ROUNDS * pages_of_round(n_guest) : 0));
    int32_t n_entry = (int32_t)pi_max(n_page, file ? RECALL_STAGING_LEN : 1) * RECALL_PAGE_LEN;
    pith_status status = recall_score_open(&tier, err);
    if (status == PITH_OK)
        *bytes = n_thread * ((int64_t)place_work(&tier, o->last, n_entry, n_place, NULL, &counted) +
                             desk_bytes(&tier, file));
    recall_score_close(&tier);
    return status;
}

int64_t recall_work_bytes(const struct recall_tier *tier)
{
    struct recall_work counted;
    int32_t n_entry = 0, n_place = 0;
    for (int32_t t = 0; t < tier->n_thread; t++) {
        n_entry = (int32_t)pi_max(n_entry, tier->work[t].most_entry);
        n_place = (int32_t)pi_max(n_place, tier->work[t].most_place);
    }
    size_t block = 0;
    if (tier->n_tok > 0)
        block = place_work(tier, tier->n_tok, n_entry, n_place, NULL, &counted);
    return tier->n_thread * ((int64_t)block + desk_bytes(tier, tier->n_place > 0));
}

/* ---- entries in order of position ---- */

/* One lane's recall. */
struct choice {
    struct recall_tier *tier;
    const struct recall_shelf *shelf;
    struct recall_row *row;
    struct recall_work *w;
    struct recall_scorer scorer;
    int32_t n_most;
    int32_t fade;     /* positions behind an entry over which its claim halves; 0: blocks */
    int32_t before;   /* positions of a block before the entry that asks for it */
    int32_t after;    /* and behind it */
    int32_t n_memory; /* entries in memory */
    int32_t n;        /* entries that can come back, in w->order */
};

static int32_t numbers(const struct choice *c)
{
    return c->n_memory + c->w->n_page * RECALL_PAGE_LEN;
}

static int32_t number_at(const struct choice *c, int32_t i)
{
    return (int32_t)(c->w->order[i] & UINT32_MAX);
}

static int32_t position_at(const struct choice *c, int32_t i)
{
    return (int32_t)(c->w->order[i] >> 32);
}

/* By one digit of the positions, the rest as it was. */
static void sort_digit(const uint64_t *from, uint64_t *to, int32_t n, int32_t shift,
                       uint32_t *count)
{
    uint32_t sum = 0;
    memset(count, 0, BINS * sizeof(*count));
    for (int32_t i = 0; i < n; i++)
        count[(from[i] >> shift) & (BINS - 1)]++;
    for (int32_t b = 0; b < BINS; b++) {
        uint32_t here = count[b];
        count[b] = sum;
        sum += here;
    }
    for (int32_t i = 0; i < n; i++)
        to[count[(from[i] >> shift) & (BINS - 1)]++] = from[i];
}

/* w->order: the entries that there are, by position. The entries in memory come in ascending runs,
   mostly several. */
static void put_in_order(struct choice *c)
{
    struct recall_work *w = c->w;
    uint64_t all = 0;
    bool ascends = true;
    c->n = 0;
    for (int32_t i = 0; i < numbers(c); i++) {
        if (w->pos[i] < 0)
            continue;
        uint64_t entry = (uint64_t)(uint32_t)w->pos[i] << 32 | (uint32_t)i;
        ascends = ascends && (c->n == 0 || w->order[c->n - 1] < entry);
        all |= entry;
        w->order[c->n++] = entry;
    }
    for (int32_t shift = 32; !ascends && shift < 64 && all >> shift != 0; shift += DIGIT) {
        uint64_t *sorted = w->other;
        sort_digit(w->order, sorted, c->n, shift, w->count);
        w->other = w->order;
        w->order = sorted;
    }
}

/* The most that an entry of score x at position p gives to positions [low, high]; -FLT_MAX: it does
   not reach them. */
static float claim(const struct choice *c, float x, int64_t p, int64_t low, int64_t high)
{
    int64_t behind = pi_max(low - p, 0), before = pi_max(p - high, 0);
    if (c->fade > 0)
        return x * exp2f(-(float)(behind + FADE_BEFORE * before) / (float)c->fade);
    return behind <= c->after && before <= c->before ? x : -FLT_MAX;
}

/* w->reach of weights: what is left of the largest behind it, then before it. */
static void fade_reach(struct choice *c)
{
    struct recall_work *w = c->w;
    float left = 0.0f;
    for (int32_t i = 0; i < c->n; i++) {
        if (i > 0)
            left = claim(c, left, position_at(c, i - 1), position_at(c, i), position_at(c, i));
        left = fmaxf(left, w->value[number_at(c, i)]);
        w->reach[i] = left;
    }
    left = 0.0f;
    for (int32_t i = c->n - 1; i >= 0; i--) {
        if (i < c->n - 1)
            left = claim(c, left, position_at(c, i + 1), position_at(c, i), position_at(c, i));
        left = fmaxf(left, w->value[number_at(c, i)]);
        w->reach[i] = fmaxf(w->reach[i], left);
    }
}

/* w->reach of blocks: the largest score in a window that slides over the positions. w->wait has the
   entries of the window that can still be the largest, scores descending. */
static void find_reach(struct choice *c)
{
    struct recall_work *w = c->w;
    int32_t first = 0, n_wait = 0;
    for (int32_t i = 0, next = 0; i < c->n; i++) {
        int64_t low = (int64_t)position_at(c, i) - c->after;
        int64_t high = (int64_t)position_at(c, i) + c->before;
        for (; next < c->n && position_at(c, next) <= high; next++) {
            float x = w->value[number_at(c, next)];
            while (n_wait > first && w->value[number_at(c, w->wait[n_wait - 1])] < x)
                n_wait--;
            w->wait[n_wait++] = next;
        }
        while (position_at(c, w->wait[first]) < low)
            first++;
        w->reach[i] = w->value[number_at(c, w->wait[first])];
    }
}

/* w->chosen: places in w->order, ascending; returns how many. */
static int32_t choose_best(struct choice *c)
{
    put_in_order(c);
    if (c->fade > 0)
        fade_reach(c);
    else
        find_reach(c);
    int32_t n = (int32_t)pi_min(c->n, c->n_most);
    kv_top(c->w->reach, c->n, n, c->w->chosen, c->w->top);
    return n;
}

/* ---- pages of the file ---- */

/* The promise that a page must have to be read: more than the least that comes back as it is. */
static float least_reach(struct choice *c)
{
    float least = FLT_MAX;
    int32_t n = choose_best(c);
    if (n < c->n_most)
        return -FLT_MAX;
    for (int32_t i = 0; i < n; i++)
        least = c->w->reach[c->w->chosen[i]] < least ? c->w->reach[c->w->chosen[i]] : least;
    return least;
}

/* w->line: what each page of the row promises, -FLT_MAX for those that are not to be read; returns
   how many are. */
static int32_t find_promises(struct choice *c)
{
    struct recall_work *w = c->w;
    float least = least_reach(c);
    int32_t n = 0, n_match = (int32_t)pi_min(numbers(c), MATCHES);
    kv_top(w->value, numbers(c), n_match, w->chosen, w->top);
    for (int32_t i = 0; i < c->row->n_ref; i++) {
        const struct recall_ref *ref = recall_row_ref(c->shelf, c->row, i);
        const struct recall_place *place = &c->shelf->place[ref->place];
        float promise = w->promise[ref->place];
        for (int32_t j = 0; j < n_match; j++) {
            int32_t p = w->pos[w->chosen[j]];
            if (p >= 0)
                promise =
                    fmaxf(promise, claim(c, w->value[w->chosen[j]], p, place->low, place->high));
        }
        bool wanted = !w->taken[i] && promise > least;
        w->line[i] = wanted ? promise : -FLT_MAX;
        n += wanted;
    }
    return n;
}

/* A page that cannot be read is no longer there. */
static void lose(struct choice *c, struct recall_ref *ref)
{
    c->row->n_lost += ref->n;
    ref->n = 0;
}

/* Reads a page of the row to the staging lane, behind the pages that lie there. */
static bool fetch(struct choice *c, const struct recall_ref *ref, struct recall_head *head)
{
    struct recall_work *w = c->w;
    if (!recall_file_read(c->tier, c->shelf, ref->place, true, head, w->buffer))
        return false;
    kv_lane_put_page(w->staging[c->shelf->kind].kv, 0, 0, w->buffer + RECALL_HEAD_SIZE, ref->seen);
    return true;
}

/* Scores the entries in the staging lane: the pages from number `begin` on that were read. */
static void score_desk(struct choice *c, int32_t begin)
{
    struct recall_work *w = c->w;
    const float *x = w->reach;
    recall_scorer_run(&c->scorer, w->staging[c->shelf->kind].kv, false, w->reach);
    for (int32_t j = begin; j < w->n_page; j++) {
        const struct recall_ref *ref = recall_row_ref(c->shelf, c->row, w->page[j]);
        int32_t at = c->n_memory + j * RECALL_PAGE_LEN;
        for (int32_t e = 0; e < RECALL_PAGE_LEN; e++) {
            bool there = e < ref->seen && w->pos[at + e] < ref->below;
            w->value[at + e] = there ? x[e] : -FLT_MAX;
            w->pos[at + e] = there ? w->pos[at + e] : -1;
        }
        x += ref->seen;
    }
    kv_lane_clear(w->staging[c->shelf->kind].kv, 0, 0);
}

/* Reads and scores the best n of the pages that promise something. */
static void read_pages(struct choice *c, int32_t n)
{
    struct recall_work *w = c->w;
    struct recall_head head;
    int32_t begin = w->n_page;
    kv_top(w->line, c->row->n_ref, n, w->chosen, w->top);
    for (int32_t i = 0; i < n; i++) {
        struct recall_ref *ref = recall_row_ref(c->shelf, c->row, w->chosen[i]);
        w->taken[w->chosen[i]] = true;
        if (!fetch(c, ref, &head)) {
            lose(c, ref);
            continue;
        }
        memcpy(w->pos + numbers(c), head.pos, sizeof(head.pos));
        w->page[w->n_page++] = w->chosen[i];
        if (w->n_page - begin == RECALL_STAGING_LEN) {
            score_desk(c, begin);
            begin = w->n_page;
        }
    }
    score_desk(c, begin);
}

static void look_into_file(struct choice *c)
{
    struct recall_work *w = c->w;
    if (c->row->n_ref == 0)
        return;
    memset(w->taken, 0, (size_t)c->row->n_ref * sizeof(*w->taken));
    recall_scorer_promise(&c->scorer, c->shelf);
    w->most_place = (int32_t)pi_max(w->most_place, c->shelf->n_fresh);
    for (int32_t round = 0; round < FILE_ROUNDS; round++) {
        int32_t n = (int32_t)pi_min(find_promises(c), pages_of_round(c->n_most));
        if (n > 0)
            read_pages(c, n);
    }
}

/* ---- guests ---- */

/* Copies the chosen entries of a page of the file, those with a place in w->wait. */
static bool fill_from_file(struct choice *c, const struct recall_query *query,
                           struct kv_seq *guests, int32_t j)
{
    struct recall_work *w = c->w;
    struct kv_seq *staging = w->staging[c->shelf->kind].kv;
    const int32_t *to = w->wait + c->n_memory + (size_t)j * RECALL_PAGE_LEN;
    struct recall_head head;
    int32_t n = 0;
    for (int32_t e = 0; e < RECALL_PAGE_LEN; e++)
        n += to[e] >= 0;
    if (n == 0)
        return true;
    if (!fetch(c, recall_row_ref(c->shelf, c->row, w->page[j]), &head))
        return false;
    struct kv_copy copy = {.from = staging,
                           .to = guests,
                           .to_layer = query->layer,
                           .to_head = query->head,
                           .shift = recall_row_centre(c->row)};
    for (int32_t e = 0; e < RECALL_PAGE_LEN; e++)
        if (to[e] >= 0)
            kv_lane_fill(&copy, e, to[e]);
    kv_lane_clear(staging, 0, 0);
    return true;
}

/* Fills the lane with n chosen entries. False: a page could be read no more, and is forgotten. */
static bool fill_guests(struct choice *c, const struct recall_query *query, struct kv_seq *guests,
                        int32_t n)
{
    struct recall_work *w = c->w;
    const struct kv_copy copy = {.from = c->row->kv,
                                 .to = guests,
                                 .to_layer = query->layer,
                                 .to_head = query->head,
                                 .shift = recall_row_centre(c->row)};
    for (int32_t i = c->n_memory; i < numbers(c); i++)
        w->wait[i] = -1;
    kv_lane_extend(guests, query->layer, query->head, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t number = number_at(c, w->chosen[i]);
        if (number < c->n_memory)
            kv_lane_fill(&copy, number, i);
        else
            w->wait[number] = i;
    }
    for (int32_t j = 0; j < w->n_page; j++) {
        if (fill_from_file(c, query, guests, j))
            continue;
        lose(c, recall_row_ref(c->shelf, c->row, w->page[j]));
        for (int32_t e = 0; e < RECALL_PAGE_LEN; e++)
            w->pos[c->n_memory + j * RECALL_PAGE_LEN + e] = -1;
        return false;
    }
    kv_lane_seal(guests, query->layer, query->head, 0);
    return true;
}

int32_t recall_store_choose(struct recall_store *store, const struct recall_query *query,
                            struct kv_seq *guests, int32_t n_most, int32_t thread)
{
    struct recall_tier *tier = store->tier;
    int32_t number = query->layer * tier->model.g.n_head + query->head, n = 0;
    struct choice c = {
        .tier = tier,
        .shelf = &tier->shelf[number],
        .row = &store->row[number],
        .w = &tier->work[thread],
        .n_most = n_most,
        .fade = tier->o.score == RECALL_ATTENTION ? tier->o.fade : 0,
        .before = tier->o.block / 4,
        .after = tier->o.block - 1 - tier->o.block / 4,
    };
    assert(query->n_tok <= tier->n_tok && c.w->block != NULL);
    kv_lane_clear(guests, query->layer, query->head);
    c.w->best = 0.0f;
    c.n_memory = kv_lane_len(c.row->kv, 0, 0);
    c.w->n_page = 0;
    if (n_most <= 0 || (c.n_memory == 0 && c.row->n_ref == 0))
        return 0;
    if (query->value == NULL) {
        recall_scorer_start(tier, query, c.w, &c.scorer);
        c.scorer.centre = recall_row_centre(c.row);
        recall_scorer_run(&c.scorer, c.row->kv, true, c.w->value);
    } else {
        memcpy(c.w->value, query->value, (size_t)c.n_memory * sizeof(*c.w->value));
    }
    kv_lane_positions(c.row->kv, 0, 0, c.w->pos, c.n_memory);
    for (int32_t i = 0; i < c.n_memory; i++)
        c.w->best = fmaxf(c.w->best, c.w->value[i]);
    look_into_file(&c);
    c.w->most_entry = (int32_t)pi_max(c.w->most_entry, numbers(&c));
    do {
        kv_lane_clear(guests, query->layer, query->head);
        n = choose_best(&c);
    } while (!fill_guests(&c, query, guests, n));
    recall_row_sweep(&tier->shelf[number], c.row);
    return n;
}

float recall_tier_best(const struct recall_tier *tier, int32_t thread)
{
    return tier->work[thread].best;
}
