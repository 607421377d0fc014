/*
 * note.c - what attention's weights leave beside a lane's entries (kv/note.h). Marks of a lane lie
 * on the device where attention notes them, and come to the host when that asks (kv/marks.c). Here
 * they go up again, are cleared for new entries, and are packed behind a round. Notes for arrays of
 * the host, and rows of weights that it looks at, come down in one copy a launch.
 *
 * Invariant: no number depends on how tokens are cut into calls, or on the calls of a launch.
 */
#include "device/gpu/attend_plan.h"
#include "kv/marks_internal.h"
#include "kv/note.h"

static_assert(KV_NOTE_SUM == 0 && KV_NOTE_SEEN == 1 && KV_NOTE_MOST == 2 && KV_NOTE_LAST == 3 &&
                  KV_NOTE_TIME == 4 && KV_NOTE_GAPS == 5 && KV_NOTE_LOW == 6 && KV_NOTE_NORM == 7 &&
                  KV_NOTE_BEFORE == 8 && KV_NOTE_TOGETHER == 9 && KV_GROUP_MEAN == 0 &&
                  KV_GROUP_MAX == 1 && KV_GROUP_SUM == 2 && KV_GROUP_EACH == 3,
              "words of note.cuh");

/* ---- marks ---- */

gpu_at gpu_mark_at(const struct kv_seq *seq, const struct kv_lane *lane, int32_t i)
{
    return lane->marks.at + (size_t)i * kv_marks_row(seq);
}

gpu_at gpu_norm_at(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot)
{
    if (!pi_at_some(lane->marks) || !seq->cache->value_norm)
        return 0;
    return gpu_mark_at(seq, lane, seq->cache->n_mark) + (size_t)slot * sizeof(uint16_t);
}

/* Entries begin .. end of all rows of a lane, to the device or back. */
static void carry(struct gpu_device *d, const struct kv_seq *seq, const struct kv_lane *lane,
                  int32_t begin, int32_t end, bool up)
{
    size_t l = (size_t)kv_lane_number(seq, lane), n = (size_t)(end - begin);
    for (int32_t i = 0; begin < end && i < seq->cache->n_mark + seq->cache->value_norm; i++) {
        bool norms = i == seq->cache->n_mark;
        size_t size = norms ? sizeof(uint16_t) : sizeof(float);
        uint8_t *host = norms ? (uint8_t *)kv_norms_at(seq, l) : (uint8_t *)kv_marks_at(seq, l, i);
        gpu_at there = gpu_mark_at(seq, lane, i) + (size_t)begin * size;
        if (up)
            d->driver->put(d->driver, there, host + (size_t)begin * size, n * size);
        else
            d->driver->get(d->driver, host + (size_t)begin * size, there, n * size);
    }
}

void gpu_marks_up(struct gpu_device *d, const struct kv_seq *seq, struct kv_lane *lane, int32_t n)
{
    if (!pi_at_some(lane->marks))
        return;
    lane->n_there = (int32_t)pi_min(lane->n_there, n);
    carry(d, seq, lane, lane->n_there, n, true);
    lane->n_there = n;
}

void gpu_marks_down(struct gpu_device *d, const struct kv_seq *seq, struct kv_lane *lane)
{
    if (lane->n_there > 0)
        carry(d, seq, lane, 0, kv_marks_there(lane), false);
    lane->n_there = 0;
}

/* A kernel over lanes [n], and over runs of entries. */
static void run_marks(struct gpu_device *d, const struct kv_cache *cache, enum gpu_kernel kernel,
                      const struct gpu_marks_lane *lanes, size_t n, struct gpu_marks_args *args)
{
    void *host;
    size_t size = n * sizeof(*lanes);
    args->n_mark = cache->n_mark;
    args->norms = cache->value_norm;
    args->places = cache->places;
    args->lanes = gpu_list(d, size, &host);
    if (args->lanes == 0)
        return;
    memcpy(host, lanes, size);
    gpu_send(d, args->lanes, size);
    gpu_run(d, kernel, (int64_t)n, 1, 1, 0, args);
}

void gpu_marks_append(struct gpu_device *d, const struct kv_append *jobs, int32_t n)
{
    const struct kv_cache *cache = jobs->seq->cache;
    struct gpu_marks_args args = {.n_run = 0};
    struct gpu_marks_lane *to = NULL;
    size_t n_lane = 0;
    if (!cache->marks_noted ||
        !gpu_host_room(d, &d->rows, 2 * (size_t)n * sizeof(struct gpu_marks_lane)))
        return;
    to = d->rows;
    for (int32_t i = 0; i < n; i++) {
        const struct kv_append *job = &jobs[i];
        struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
        int32_t n_new = job->n - job->n_over, old = lane->len - n_new;
        if (!pi_at_some(lane->marks))
            continue;
        gpu_marks_up(d, job->seq, lane, old);
        lane->n_there = lane->len;
        struct gpu_marks_lane all = {.marks = lane->marks.at, .row = kv_marks_row(job->seq)};
        all.slot = old, all.n = n_new, all.first = job->pos0 + job->n_over;
        to[n_lane++] = all;
        all.slot = job->slot, all.n = job->n_over, all.first = job->pos0;
        if (job->n_over > 0)
            to[n_lane++] = all;
    }
    if (n_lane > 0 && cache->n_mark > 0)
        run_marks(d, cache, GPU_KERNEL_marks_clear, to, n_lane, &args);
}

/* ---- packing ---- */

static bool waits(const struct gpu_mark_moves *all, const struct kv_lane *lane)
{
    for (size_t i = 0; i < all->n_lane; i++)
        if (all->lane[i].marks == lane->marks.at)
            return true;
    return false;
}

static int32_t count_run(const int32_t *slots, int32_t n)
{
    int32_t i = 1;
    while (i < n && slots[i] == slots[0] + i)
        i++;
    return i;
}

void gpu_pack_marks(const struct kv_seq *seq, const struct kv_lane *lane, const int32_t *slots,
                    int32_t n)
{
    struct gpu_device *d = gpu_of_class(lane->kind);
    struct gpu_mark_moves *all = &d->marks;
    int32_t first = n > 0 && slots[0] == 0 ? count_run(slots, n) : 0;
    if (first == n)
        return;
    pi_lock_take(&d->lock);
    if (all->n_lane > 0 && (all->cache != seq->cache || waits(all, lane)))
        gpu_flush_marks(d);
    bool ok =
        gpu_host_grow(d, (void **)&all->lane, all->n_lane, 1, sizeof(*all->lane)) &&
        gpu_host_grow(d, (void **)&all->run, all->n_run, (size_t)(n - first), sizeof(*all->run));
    all->cache = seq->cache;
    if (ok)
        all->lane[all->n_lane++] = (struct gpu_marks_lane){.marks = lane->marks.at,
                                                           .row = kv_marks_row(seq),
                                                           .slot = first,
                                                           .n = n - first,
                                                           .first = (int32_t)all->n_source};
    for (int32_t i = first, part; ok && i < n; i += part) {
        part = count_run(slots + i, n - i);
        all->run[all->n_run++] = (struct gpu_marks_run){(int32_t)all->n_source, slots[i], part};
        all->n_source += (size_t)part;
    }
    pi_lock_give(&d->lock);
}

void gpu_flush_marks(struct gpu_device *d)
{
    struct gpu_mark_moves *all = &d->marks;
    struct gpu_marks_args args = {.n_run = (int32_t)all->n_run};
    void *host;
    size_t size = all->n_run * sizeof(*all->run);
    args.source = all->n_run > 0 ? gpu_room(d, GPU_ROOM_PART, all->n_source * sizeof(int32_t)) : 0;
    args.runs = args.source != 0 ? gpu_list(d, size, &host) : 0;
    if (args.runs != 0) {
        memcpy(host, all->run, size);
        gpu_send(d, args.runs, size);
        gpu_run(d, GPU_KERNEL_marks_sources, pi_ceil_div(args.n_run, 128), 1, 1, 0, &args);
        run_marks(d, all->cache, GPU_KERNEL_marks_keep, all->lane, all->n_lane, &args);
    }
    all->n_lane = all->n_run = all->n_source = 0;
}

/* ---- notes ---- */

size_t gpu_logits_stride(const struct kv_attend_job *job)
{
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    return pi_align((size_t)lane->n_live * (size_t)job->seq->cache->g.page_len, 64);
}

/* A note for an array of the host: where it is on the device, and which part comes back. */
struct returning {
    float *to, *log_scale;
    size_t at, stride, n;
    int32_t n_row;
    bool reads; /* what is there goes up first */
};

/* The calls of a launch that have notes. */
struct notes {
    struct gpu_device *d;
    const struct kv_attend_job *jobs;
    const struct gpu_attend_job *there;
    int32_t n;
    struct gpu_listing list;
    gpu_at room;
    size_t room_used;
    struct returning *back;
    size_t n_back;
    int32_t n_lane, most_place, most_sum; /* most_sum: rows of words with a softmax of their own */
};

/* The next n elements of the list; without memory of the host they are counted alone. */
static void *take(struct notes *w, size_t n, size_t size, gpu_at *at)
{
    if (w->list.host != NULL)
        return gpu_take(&w->list, n, size, at);
    *at = 0;
    w->list.used += pi_align(n * size, 16);
    return NULL;
}

static struct kv_lane *lane_of(const struct kv_attend_job *job)
{
    return kv_lane_at(job->seq, job->layer, job->head);
}

/* Number of the lane's mark that an array is the place of; -1: it is another. */
static int32_t mark_of(const struct kv_attend_job *job, const float *to)
{
    const struct kv_lane *lane = lane_of(job);
    size_t l = (size_t)kv_lane_number(job->seq, lane);
    for (int32_t i = 0; pi_at_some(lane->marks) && i < job->seq->cache->n_mark; i++)
        if (kv_marks_at(job->seq, l, i) == to)
            return i;
    return -1;
}

bool gpu_notes_host(const struct kv_attend_job *job)
{
    bool host = false;
    for (int32_t i = 0; i < job->n_note; i++)
        host = host || (!pi_at_some(job->notes[i].there) && mark_of(job, job->notes[i].to) < 0);
    return host;
}

static bool is_lane_norm(const struct kv_attend_job *job, const uint16_t *norm)
{
    const struct kv_lane *lane = lane_of(job);
    return pi_at_some(lane->marks) && job->seq->cache->value_norm &&
           kv_norms_at(job->seq, (size_t)kv_lane_number(job->seq, lane)) == norm;
}

static int32_t rows_of(const struct kv_attend_job *job, const struct kv_note *note)
{
    return note->group == KV_GROUP_EACH ? job->n_group
           : note->word == KV_NOTE_GAPS ? 2
           : note->word == KV_NOTE_LOW  ? (note->window + 31) / 32
                                        : 1;
}

/* Entries that a call's last token sees, which may get notes. */
static int32_t seen_of(const struct kv_attend_job *job, const struct kv_note *note)
{
    int32_t n = lane_of(job)->len - (int32_t)pi_max(job->n_later, 0);
    return note->n > 0 ? (int32_t)pi_min(note->n, n) : n;
}

/* Room for a note that goes to the host. */
static gpu_at take_array(struct notes *w, const struct kv_attend_job *job,
                         const struct kv_note *note)
{
    struct returning r = {.to = note->to,
                          .log_scale = note->log_scale,
                          .at = w->room_used / sizeof(float),
                          .stride = note->stride,
                          .n = (size_t)seen_of(job, note),
                          .n_row = rows_of(job, note),
                          .reads = (note->word != KV_NOTE_LAST && note->word != KV_NOTE_NORM) ||
                                   note->from > job->pos0};
    gpu_at at = w->room + w->room_used;
    if (w->back != NULL)
        w->back[w->n_back] = r;
    w->n_back++;
    w->room_used += ((size_t)r.n_row * (size_t)pi_max(r.n, 1) + 1) * sizeof(float);
    return at;
}

static gpu_at take_norms(struct notes *w, const struct kv_attend_job *job,
                         const struct kv_note *note)
{
    gpu_at at;
    size_t n = (size_t)seen_of(job, note);
    if (is_lane_norm(job, note->norm))
        return gpu_norm_at(job->seq, lane_of(job), 0);
    uint16_t *to = take(w, n, sizeof(*to), &at);
    if (to != NULL)
        memcpy(to, note->norm, n * sizeof(*to));
    return at;
}

static void add_word(struct notes *w, const struct kv_attend_job *job, const struct kv_note *note,
                     struct gpu_note_word *to)
{
    int32_t mark = mark_of(job, note->to);
    struct gpu_note_word word = {.stride = kv_marks_row(job->seq) / sizeof(float),
                                 .word = (int32_t)note->word,
                                 .group = (int32_t)note->group,
                                 .from = note->from,
                                 .n = note->n,
                                 .window = note->window,
                                 .newest = note->newest,
                                 .threshold = note->threshold};
    if (mark >= 0) {
        word.to = gpu_mark_at(job->seq, lane_of(job), mark);
    } else if (pi_at_some(note->there)) {
        word.to = note->there.at;
        word.stride = note->stride;
    } else {
        word.to = take_array(w, job, note);
        word.stride = (uint64_t)pi_max(seen_of(job, note), 1);
        if (note->log_scale != NULL)
            word.log_scale = word.to + (size_t)rows_of(job, note) * word.stride * sizeof(float);
    }
    if (note->word == KV_NOTE_NORM)
        word.norm = take_norms(w, job, note);
    if (note->word == KV_NOTE_MOST && note->scale != NULL) {
        float *scale = take(w, (size_t)job->n_tok, sizeof(*scale), &word.scale);
        if (scale != NULL)
            memcpy(scale, note->scale + (job->pos0 - note->pos0),
                   (size_t)job->n_tok * sizeof(*scale));
    }
    if (note->word == KV_NOTE_BEFORE || note->word == KV_NOTE_TOGETHER) {
        word.sums = w->room + w->room_used;
        w->room_used += 2 * (size_t)(job->n_tok * job->n_group) * sizeof(float);
        w->most_sum = (int32_t)pi_max(w->most_sum, job->n_tok * job->n_group);
    }
    if (to != NULL)
        *to = word;
}

/* A call as note.cuh has it, but for its words. */
static struct gpu_note_call call_of(const struct kv_attend_job *job,
                                    const struct gpu_attend_job *there)
{
    return (struct gpu_note_call){.logits = there->logits,
                                  .ml = there->ml,
                                  .stride = there->logits_stride,
                                  .n_word = job->n_note,
                                  .n_tok = job->n_tok,
                                  .pos0 = job->pos0,
                                  .n_later = job->n_later,
                                  .first = there->first * there->per - there->guests.n,
                                  .end = there->end * there->per - there->guests.n};
}

static void add_call(struct notes *w, int32_t i, struct gpu_note_call *to)
{
    const struct kv_attend_job *job = &w->jobs[i];
    struct gpu_note_call call = call_of(job, &w->there[i]);
    struct gpu_note_word *word = take(w, (size_t)job->n_note, sizeof(*word), &call.words);
    for (int32_t j = 0; j < job->n_note; j++)
        add_word(w, job, &job->notes[j], word != NULL ? &word[j] : NULL);
    if (to != NULL)
        *to = call;
}

static struct gpu_note_lane start_lane(struct notes *w, const struct kv_attend_job *job)
{
    const struct kv_lane *lane = lane_of(job);
    struct gpu_note_lane to = {.n_group = job->n_group,
                               .len = lane->len,
                               .page_len = job->seq->cache->g.page_len,
                               .n_page = lane->n_live};
    w->most_place = (int32_t)pi_max(w->most_place, lane->n_live * to.page_len);
    if (!lane->ragged)
        return to;
    int32_t *page = take(w, 2 * (size_t)lane->n_live, sizeof(*page), &to.pages);
    for (int32_t i = 0, slot = 0; page != NULL && i < lane->n_live; slot += lane->table[i++].n) {
        page[2 * i] = slot;
        page[2 * i + 1] = lane->table[i].n;
    }
    return to;
}

/* Calls of a lane follow each other. */
static void lay_out(struct notes *w)
{
    gpu_at at;
    w->room_used = w->n_back = 0;
    w->n_lane = w->most_place = w->most_sum = 0;
    if (w->list.host == NULL)
        w->list.used = 0;
    struct gpu_note_lane *lane = take(w, (size_t)w->n, sizeof(*lane), &at);
    for (int32_t i = 0, end; i < w->n; i = end) {
        end = i + 1;
        if (w->jobs[i].n_note == 0)
            continue;
        while (end < w->n && w->jobs[end].n_note > 0 &&
               lane_of(&w->jobs[end]) == lane_of(&w->jobs[i]))
            end++;
        struct gpu_note_lane to = start_lane(w, &w->jobs[i]);
        to.n_call = end - i;
        struct gpu_note_call *call = take(w, (size_t)to.n_call, sizeof(*call), &to.calls);
        for (int32_t j = i; j < end; j++)
            add_call(w, j, call != NULL ? &call[j - i] : NULL);
        if (lane != NULL)
            lane[w->n_lane] = to;
        w->n_lane++;
    }
}

/* Arrays of the host that notes are added to go up first. */
static void send_ahead(struct notes *w)
{
    for (size_t i = 0; i < w->n_back; i++) {
        const struct returning *r = &w->back[i];
        for (int32_t j = 0; r->reads && j < r->n_row; j++)
            w->d->driver->put(w->d->driver,
                              w->room +
                                  (r->at + (size_t)j * (size_t)pi_max(r->n, 1)) * sizeof(float),
                              r->to + (size_t)j * r->stride, r->n * sizeof(float));
    }
}

/* Notes for arrays of the host come down together. */
static void bring_back(struct notes *w)
{
    float *all;
    if (w->n_back == 0 || !gpu_host_room(w->d, (void **)&w->d->list, w->room_used))
        return;
    all = (float *)(void *)w->d->list;
    w->d->driver->get(w->d->driver, all, w->room, w->room_used);
    for (size_t i = 0; i < w->n_back; i++) {
        const struct returning *r = &w->back[i];
        const float *from = all + r->at;
        for (int32_t j = 0; j < r->n_row; j++, from += (size_t)pi_max(r->n, 1))
            memcpy(r->to + (size_t)j * r->stride, from, r->n * sizeof(*from));
        if (r->log_scale != NULL)
            *r->log_scale = *from;
    }
}

static void run_notes(struct gpu_device *d, const struct kv_attend_job *jobs,
                      const struct gpu_attend_job *there, int32_t n)
{
    struct notes w = {.d = d, .jobs = jobs, .there = there, .n = n};
    void *host;
    for (int32_t i = 0; i < n; i++)
        if (jobs[i].n_note > 0)
            gpu_marks_up(d, jobs[i].seq, lane_of(&jobs[i]), lane_of(&jobs[i])->len);
    lay_out(&w);
    if (w.n_lane == 0)
        return;
    w.room = w.room_used > 0 ? gpu_room(d, GPU_ROOM_NOTE, w.room_used) : 0;
    if (w.n_back > 0 && (w.room == 0 || !gpu_host_room(d, &d->rows, w.n_back * sizeof(*w.back))))
        return;
    w.back = w.n_back > 0 ? d->rows : NULL;
    w.list.size = w.list.used + 256;
    w.list.at = gpu_list(d, w.list.size, &host);
    if (w.list.at == 0)
        return;
    w.list.host = host;
    w.list.used = 0;
    lay_out(&w);
    const struct gpu_note_args args = {.lanes = w.list.at, .n_block = w.most_sum};
    send_ahead(&w); /* first: small copies take places in the list that is sent */
    gpu_send(d, w.list.at, w.list.used);
    gpu_run(d, GPU_KERNEL_note_sums, w.most_sum, w.n_lane, 1, 256 * sizeof(float), &args);
    gpu_run(d, GPU_KERNEL_note_words, pi_ceil_div(w.most_place, 256), w.n_lane, 1, 0, &args);
    bring_back(&w);
}

/* ---- rows for the host ---- */

static void finish_row(const struct kv_attend_job *job, int32_t row, int32_t len, const float *from,
                       float *to, bool weights)
{
    to += (size_t)row * job->tap->row_stride;
    memcpy(to, from, (size_t)len * sizeof(*to));
    for (int32_t i = len; weights && i < gpu_up16(len); i++)
        to[i] = 0.0f;
}

static void finish_tap(const struct kv_attend_job *job, int32_t n_row, int32_t len, const float *ml)
{
    struct kv_attend_tap *tap = job->tap;
    for (int32_t r = 0; r < n_row; r++) {
        if (tap->max != NULL)
            tap->max[r] = ml[2 * r] * 0.693147181f;
        if (tap->sum != NULL)
            tap->sum[r] = ml[2 * r + 1];
    }
    if (tap->weight == NULL || tap->parts == NULL)
        return;
    tap->parts->n = len > 0; /* one part, which is finished */
    tap->parts->n_row = n_row;
    tap->parts->end[0] = len;
    for (int32_t r = 0; r < n_row; r++)
        tap->parts->factor[r] = 1.0f;
}

/* The logits and weights of a call, and its rows' maxima and sums, in one copy. */
static void show_rows(struct gpu_device *d, const struct kv_attend_job *job,
                      const struct gpu_attend_job *there)
{
    const struct kv_attend_tap *tap = job->tap;
    struct notes pages = {.d = d};
    struct gpu_note_rows_args args = {.call = call_of(job, there)};
    int32_t n_row = job->n_tok * job->n_group, len = lane_of(job)->len;
    size_t rows = (size_t)n_row * (size_t)len, ml = 2 * (size_t)n_row;
    size_t n = rows * (size_t)((tap->weight != NULL) + (tap->logits != NULL));
    gpu_at room = gpu_room(d, GPU_ROOM_NOTE, (n + ml) * sizeof(float));
    void *host;
    pages.list.size = 2 * (size_t)lane_of(job)->n_live * sizeof(int32_t) + 256;
    pages.list.at = room != 0 ? gpu_list(d, pages.list.size, &host) : 0;
    if (pages.list.at == 0 || !gpu_host_room(d, (void **)&d->list, (n + ml) * sizeof(float)))
        return;
    pages.list.host = host;
    args.lane = start_lane(&pages, job);
    args.weight = tap->weight != NULL ? room : 0;
    args.logit = tap->logits != NULL ? room + (n - rows) * sizeof(float) : 0;
    args.row_stride = (size_t)len;
    gpu_send(d, pages.list.at, pages.list.used);
    gpu_run(d, GPU_KERNEL_note_rows, pi_ceil_div(pages.most_place, 256), n > 0 ? n_row : 0, 1, 0,
            &args);
    d->driver->copy(d->driver, room + n * sizeof(float), there->ml, ml * sizeof(float));
    float *all = (float *)(void *)d->list;
    d->driver->get(d->driver, all, room, (n + ml) * sizeof(float));
    for (int32_t r = 0; r < n_row; r++) {
        if (tap->weight != NULL)
            finish_row(job, r, len, all + (size_t)r * (size_t)len, tap->weight, true);
        if (tap->logits != NULL)
            finish_row(job, r, len, all + (n - rows) + (size_t)r * (size_t)len, tap->logits, false);
    }
    finish_tap(job, n_row, len, all + n);
}

void gpu_note_calls(struct gpu_device *d, const struct kv_attend_job *jobs,
                    const struct gpu_attend_job *at, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (gpu_is_watched(&jobs[i]) && !jobs[i].notes_only)
            show_rows(d, &jobs[i], &at[i]);
    run_notes(d, jobs, at, n);
}
