/*
 * keep.c - scores of a round on the device, of keys, values and marks. They stay in a room of
 * their own, set behind set, until the next stage. choose.c has what follows.
 */
#include <math.h>

#include "device/gpu/host.h"
#include "kv/marks_internal.h"

static_assert(KV_WEIGH_WAVES == 0 && KV_WEIGH_KEY == 1 && KV_WEIGH_ALIKE == 2 &&
                  KV_WEIGH_VALUE_L1 == 3 && KV_WEIGH_VALUE_L2 == 4 && KV_WEIGH_MARK == 5 &&
                  KV_WEIGH_MARK_MEAN == 6 && KV_WEIGH_MARK_NORM == 7 && KV_WEIGH_MARK_BITS == 8 &&
                  KV_WEIGH_MARK_GAPS == 9 && KV_WEIGH_MARK_OR_MOST == 10 &&
                  KV_WEIGH_POSITION == 11 && KV_WEIGH_VOTES == 12 && KV_WEIGH_UNLIKE == 13 &&
                  KV_WEIGH_EXPECTED == 14 && KV_WEIGH_N == 15 && KV_VOTES_ALL == 0,
              "kinds of keep.cuh");

enum {
    WEIGH_MEAN = KV_WEIGH_N, /* of keep.cuh */
    SMEM_MOST = 90 << 10,    /* of a part of a page and its vectors */
    UNLIKE_SMEM = 2 * GPU_UNLIKE_TILE * 33 * 4 + GPU_UNLIKE_TILE * 16 * 8 + 16 /* of unlike_last */
};

/* ---- the list of a layer ---- */

/* A layer's lanes on their way to the device. */
struct weigh {
    struct gpu_device *d;
    const struct kv_weigh_list *list;
    struct gpu_weigh_args args;
    uint8_t *host;
    gpu_at at;
    size_t used;
    struct gpu_weigh_lane *lane; /* [list->n] */
    gpu_at room;                 /* of raw scores, sums and spreads */
    size_t room_used;
    int32_t most_page, most_vector, most_row, most_entry, most_all, most_head;
    bool half; /* weigh_half does it */
};

/* The next n elements of the list; w->host NULL: they are counted alone. */
static void *take(struct weigh *w, size_t n, size_t size, gpu_at *at)
{
    size_t from = w->used;
    w->used += pi_align(n * size, 16);
    *at = w->at + from;
    return w->host != NULL ? w->host + from : NULL;
}

static gpu_at take_room(struct weigh *w, size_t n, size_t size)
{
    size_t from = w->room_used;
    w->room_used += pi_align(n * size, 256);
    return w->room + from;
}

/* The vectors of all rows, in fours. */
static void put_vectors(const struct weigh *w, const struct kv_weigh_job *job, int32_t n, float *to)
{
    const struct kv_weigh_waves *from = &job->waves;
    int32_t dim = w->args.part.dim, n_pair = w->args.n_pair, adjacent = w->args.adjacent;
    int32_t len = GPU_WEIGH_LEN(n_pair, dim);
    memset(to, 0, (size_t)pi_ceil_div(n, 4) * (size_t)len * sizeof(*to));
    for (int32_t v = 0; v < n; v++) {
        const float *x = from->w + (size_t)v * (size_t)dim;
        const float *e = from->e != NULL ? from->e + (size_t)(v / from->n_vector * n_pair) : NULL;
        float *out = to + v / 4 * len + v % 4;
        for (int32_t f = 0; f < n_pair; f++) {
            out[12 * f] = x[adjacent ? 2 * f : f];
            out[12 * f + 4] = x[adjacent ? 2 * f + 1 : n_pair + f];
            out[12 * f + 8] = e != NULL ? e[f] : 0.0f;
        }
        for (int32_t d = 2 * n_pair; d < dim; d++)
            out[12 * n_pair + 4 * (d - 2 * n_pair)] = x[d];
    }
}

/* Rotations by which pages are read elsewhere than they were written: one for each delta. */
static gpu_at turn_of(struct weigh *w, const struct kv_weigh_job *job, int32_t delta)
{
    gpu_at at;
    int32_t n_pair = w->args.n_pair;
    if (delta == 0 || n_pair == 0)
        return 0;
    float *cs = take(w, 2 * (size_t)n_pair, sizeof(*cs), &at);
    for (int32_t f = 0; cs != NULL && f < n_pair; f++) {
        double angle = delta * job->rope->freq[f];
        cs[2 * f] = (float)cos(angle);
        cs[2 * f + 1] = (float)sin(angle);
    }
    w->half = false;
    return at;
}

static void add_pages(struct weigh *w, const struct kv_weigh_job *job, const struct kv_lane *lane,
                      struct gpu_weigh_lane *to)
{
    int32_t slot = 0, n = 0, delta = 0;
    gpu_at turn = 0;
    struct gpu_weigh_page *page = take(w, (size_t)lane->n_live, sizeof(*page), &to->pages);
    for (int32_t i = 0; i < lane->n_live; slot += lane->table[i++].n) {
        const struct kv_page_ref *ref = &lane->table[i];
        if (ref->n == 0)
            continue;
        if (ref->delta != delta)
            turn = turn_of(w, job, ref->delta);
        delta = ref->delta;
        if (page != NULL)
            page[n] =
                (struct gpu_weigh_page){gpu_page_at(lane->kind, ref->page), turn, slot, ref->n};
        n++;
    }
    to->n_page = n;
    w->most_page = (int32_t)pi_max(w->most_page, n);
}

/* Kinds that look at no page. */
static bool looks_at_marks(enum kv_weigh_kind kind)
{
    return kind >= KV_WEIGH_MARK && kind <= KV_WEIGH_POSITION;
}

static bool takes_votes(enum kv_weigh_kind kind)
{
    return kind == KV_WEIGH_VOTES || kind == KV_WEIGH_UNLIKE;
}

static void add_unlike(struct weigh *w, const struct kv_weigh_job *job, struct gpu_weigh_unlike *to)
{
    size_t n = (size_t)w->list->sets[job->set].n, dim = (size_t)w->args.part.dim;
    to->unit = take_room(w, n * dim, sizeof(float));
    to->part = take_room(w, (size_t)pi_ceil_div(n, GPU_UNLIKE_PART) * dim, sizeof(double));
    to->all = take_room(w, dim, sizeof(double));
    to->mean = take_room(w, n, sizeof(double));
    to->last = take_room(w, n, sizeof(int32_t));
    to->cosine = take_room(w, n, sizeof(float));
    to->lambda = job->unlike.lambda;
    to->threshold = job->unlike.threshold;
    to->drops = job->unlike.last;
    to->quirk = job->unlike.quirk;
}

static void add_expected(struct weigh *w, const struct kv_weigh_job *job, struct gpu_weigh_lane *to)
{
    const struct kv_weigh_expected *of = &job->expected;
    size_t n = (size_t)to->n, dim = (size_t)w->args.part.dim, n_group = (size_t)of->n_group;
    size_t n_turn = 2 * (size_t)w->args.n_pair;
    struct gpu_weigh_expected x = {.moments = of->moments.at,
                                   .count = of->count,
                                   .epsilon = of->epsilon,
                                   .scale = of->scale,
                                   .n_group = of->n_group,
                                   .square = of->square,
                                   .sum = of->sum,
                                   .share = of->share};
    double *turn = take(w, n_turn, sizeof(*turn), &x.turn);
    if (turn != NULL)
        memcpy(turn, of->turn, n_turn * sizeof(*turn));
    x.mean = take_room(w, n_group * dim, sizeof(float));
    x.spread = of->square ? take_room(w, n_group * dim * dim, sizeof(float)) : 0;
    x.logit = take_room(w, n_group * n, sizeof(float));
    x.norm = of->norm ? take_room(w, n, sizeof(double)) : 0;
    x.down = take_room(w, n_group, sizeof(double));
    w->most_head = (int32_t)pi_max(w->most_head, of->n_group);
    struct gpu_weigh_expected *out = take(w, 1, sizeof(*out), &to->w);
    if (out != NULL)
        *out = x;
}

static void add_votes(struct weigh *w, int32_t i, struct gpu_weigh_lane *to)
{
    const struct kv_weigh_job *job = &w->list->jobs[i];
    const struct kv_weigh_votes *of = &job->votes;
    bool together = of->softmax == KV_VOTES_TOGETHER;
    gpu_at all = take_room(w, (size_t)to->n, sizeof(float));
    struct gpu_weigh_unlike unlike = {.drops = 0};
    struct gpu_weigh_votes *votes = NULL;
    if (job->kind == KV_WEIGH_UNLIKE) {
        add_unlike(w, job, &unlike);
        struct gpu_weigh_unlike *out = take(w, 1, sizeof(*out), &to->w);
        if (out != NULL)
            *out = unlike;
        votes = out != NULL ? &out->votes : NULL;
    } else {
        votes = take(w, 1, sizeof(*votes), &to->w);
    }
    if (votes != NULL)
        *votes = (struct gpu_weigh_votes){
            .vote = gpu_votes_at(w->d, i),
            .all = all,
            .n_group = together ? 1 : of->n_group,
            .group = (int32_t)of->group,
            .largest = of->largest,
            .kernel = of->kernel,
            .n_before = gpu_votes_before(&w->list->sets[w->list->jobs[i].set], of),
            .by = together ? 1.0f / (float)of->count : 1.0f};
}

static void add_lane(struct weigh *w, int32_t i, struct gpu_weigh_lane *to)
{
    const struct kv_weigh_job *job = &w->list->jobs[i];
    const struct kv_weigh_set *set = &w->list->sets[job->set];
    const struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
    bool waves = job->kind == KV_WEIGH_WAVES;
    int32_t n_row = waves ? job->waves.n_row : 1;
    int32_t n_vector = waves ? n_row * job->waves.n_vector : 1;
    size_t n_chunk = (size_t)pi_ceil_div(pi_max(set->end - set->begin, 1), GPU_WEIGH_CHUNK);
    *to = (struct gpu_weigh_lane){.n_vector = n_vector,
                                  .n = set->n,
                                  .n_row = n_row,
                                  .begin = set->begin,
                                  .end = set->end,
                                  .standard = waves && job->waves.standard,
                                  .mapped = job->mapped,
                                  .slope = job->slope,
                                  .intercept = job->intercept,
                                  .sign = job->lowest ? -1.0f : 1.0f};
    assert(set->n == lane->len);
    if (looks_at_marks(job->kind)) {
        to->marks = lane->marks.at;
        to->row = kv_marks_row(job->seq);
        to->n_mark = job->seq->cache->n_mark;
        to->now = job->gaps.now;
        to->code = job->gaps.code;
    } else if (job->kind != KV_WEIGH_VOTES) {
        add_pages(w, job, lane, to);
    }
    if (takes_votes(job->kind))
        add_votes(w, i, to);
    if (job->kind == KV_WEIGH_EXPECTED)
        add_expected(w, job, to);
    if (waves) {
        size_t len = (size_t)GPU_WEIGH_LEN(w->args.n_pair, w->args.part.dim);
        float *x = take(w, (size_t)pi_ceil_div(n_vector, 4) * len, sizeof(*x), &to->w);
        if (x != NULL)
            put_vectors(w, job, n_vector, x);
    }
    if ((waves && job->waves.still && w->args.n_pair > 0) || job->kind == KV_WEIGH_POSITION) {
        int32_t *pos = take(w, (size_t)set->n, sizeof(*pos), &to->pos);
        if (pos != NULL)
            memcpy(pos, set->pos, (size_t)set->n * sizeof(*pos));
        w->half = false;
    }
    to->raw = take_room(w, (size_t)n_vector * (size_t)set->n, sizeof(float));
    if (job->kind == KV_WEIGH_ALIKE) {
        size_t dim = (size_t)w->args.part.dim;
        size_t n_part = (size_t)to->n_page * (size_t)(w->args.page_len / w->args.n_entry);
        to->sum = take_room(w, n_part * dim, sizeof(float));
        to->spread = take_room(w, dim + 1, sizeof(float));
    } else if (to->standard) {
        to->sum = take_room(w, (size_t)n_row * n_chunk * 2, sizeof(double));
        to->spread = take_room(w, (size_t)n_row * 2, sizeof(double));
    }
    w->most_vector = (int32_t)pi_max(w->most_vector, n_vector);
    w->most_row = (int32_t)pi_max(w->most_row, to->standard ? n_row : 0);
    w->most_entry = (int32_t)pi_max(w->most_entry, set->end - set->begin);
    w->most_all = (int32_t)pi_max(w->most_all, set->n);
}

static void add_sets(struct weigh *w, struct gpu_weigh_set *out, int32_t *n_set)
{
    const struct kv_weigh_list *list = w->list;
    *n_set = 0;
    for (int32_t i = 0, end; i < list->n; i = end) {
        const struct kv_weigh_set *set = &list->sets[list->jobs[i].set];
        for (end = i + 1; end < list->n && list->jobs[end].set == list->jobs[i].set;)
            end++;
        if (out != NULL)
            out[*n_set] = (struct gpu_weigh_set){.score = set->score.at,
                                                 .begin = set->begin,
                                                 .end = set->end,
                                                 .lane = i,
                                                 .n_lane = end - i,
                                                 .n_before = set->n_of,
                                                 .mean = list->mean,
                                                 .unknown = set->unknown};
        ++*n_set;
    }
}

/* Everything of the list; with w->host NULL its size, and the room's. */
static void lay_out(struct weigh *w)
{
    struct gpu_weigh_lane none;
    w->used = w->room_used = 0;
    w->half =
        w->args.part.type == KV_TYPE_F16 && w->args.part.beside && w->args.kind == KV_WEIGH_WAVES;
    w->lane = take(w, (size_t)w->list->n, sizeof(*w->lane), &w->args.lanes);
    add_sets(w, take(w, (size_t)w->list->n, sizeof(struct gpu_weigh_set), &w->args.sets),
             &w->args.n_set);
    for (int32_t i = 0; i < w->list->n; i++)
        add_lane(w, i, w->lane != NULL ? &w->lane[i] : &none);
}

/* ---- scores ---- */

/* Angles of positions, by which the keys of the sets are turned back. */
static void fill_turn(struct weigh *w)
{
    struct gpu_device *d = w->d;
    int32_t least = INT32_MAX, most = 0, n = GPU_TURN_LOW;
    for (int32_t i = 0; i < w->list->n; i++) {
        const struct kv_weigh_job *job = &w->list->jobs[i];
        const struct kv_weigh_set *set = &w->list->sets[job->set];
        if (job->kind != KV_WEIGH_WAVES || !job->waves.still || set->n == 0)
            continue;
        least = (int32_t)pi_min(least, set->pos[0]);
        most = (int32_t)pi_max(most, set->pos[set->n - 1]);
    }
    if (least > most || w->args.n_pair == 0)
        return;
    w->args.first_high = least / GPU_TURN_LOW;
    n += most / GPU_TURN_LOW - w->args.first_high + 1;
    size_t size = pi_align((size_t)n * sizeof(int32_t), 256);
    gpu_at room =
        gpu_room(d, GPU_ROOM_HOST, size + (size_t)(n * w->args.n_pair) * 2 * sizeof(float));
    if (room == 0 || !gpu_host_room(d, &d->rows, size))
        return;
    int32_t *pos = d->rows;
    for (int32_t i = 0; i < n; i++)
        pos[i] = i < GPU_TURN_LOW ? i : (w->args.first_high + i - GPU_TURN_LOW) * GPU_TURN_LOW;
    d->driver->put(d->driver, room, pos, (size_t)n * sizeof(*pos));
    w->args.turn = room + size;
    const struct gpu_embed_args args = {.pos = room, /* no row, one rotation */
                                        .freq = {gpu_freq(d, w->list->jobs[0].rope)},
                                        .cs = {w->args.turn},
                                        .n_pair = {w->args.n_pair},
                                        .magnitude = {1.0f}};
    gpu_run(d, GPU_KERNEL_embed, n, 1, 1, 0, &args);
}

static size_t part_smem(const struct gpu_weigh_args *a, int32_t n_entry)
{
    size_t len = (size_t)pi_max(GPU_WEIGH_LEN(a->n_pair, a->part.dim), 64);
    return (pi_align((size_t)n_entry * (size_t)(a->part.dim + 1), 4) + len) * sizeof(float);
}

static struct gpu_weigh_args args_of(const struct kv_weigh_job *job)
{
    const struct kv_class *kind = kv_lane_at(job->seq, job->layer, job->head)->kind;
    bool values = job->kind == KV_WEIGH_VALUE_L1 || job->kind == KV_WEIGH_VALUE_L2;
    struct gpu_weigh_args args = {
        .kind = (int32_t)job->kind,
        .page_len = kind->page_len,
        .n_entry = kind->page_len,
        .n_pair = job->rope != NULL && !values ? job->rope->n_pair : 0,
        .adjacent = job->rope != NULL && job->rope->adjacent,
        .part = values ? gpu_part_of(kind, &kind->value, false) : gpu_part_of(kind, &kind->k, true),
    };
    struct gpu_weigh_args wide = args;
    if (job->kind == KV_WEIGH_EXPECTED) {
        args.value = gpu_part_of(kind, &kind->value, false);
        wide.part.dim = (int32_t)pi_max(args.part.dim, args.value.dim);
    }
    while (args.n_entry > 1 && part_smem(&wide, args.n_entry) > SMEM_MOST)
        args.n_entry /= 2;
    return args;
}

static void run_votes(struct weigh *w, int64_t parts, size_t smem)
{
    struct gpu_device *d = w->d;
    const struct gpu_weigh_args *a = &w->args;
    int64_t n = w->list->n, blocks = pi_ceil_div(w->most_all, 256);
    gpu_run(d, GPU_KERNEL_votes_fold, blocks, n, 1, 0, a);
    gpu_run(d, GPU_KERNEL_votes_pool, blocks, n, 1, 0, a);
    if (a->kind == KV_WEIGH_VOTES)
        return;
    gpu_run(d, GPU_KERNEL_unlike_unit, parts, n, 1, smem, a);
    gpu_run(d, GPU_KERNEL_unlike_part, pi_ceil_div(w->most_all, GPU_UNLIKE_PART), n, 1, 0, a);
    gpu_run(d, GPU_KERNEL_unlike_all, n, 1, 1, 0, a);
    gpu_run(d, GPU_KERNEL_unlike_mean, pi_ceil_div(w->most_all, 8), n, 1, 0, a);
    gpu_run(d, GPU_KERNEL_unlike_last, pi_ceil_div(w->most_all, GPU_UNLIKE_TILE), n, 1, UNLIKE_SMEM,
            a);
    gpu_run(d, GPU_KERNEL_unlike_drop, blocks, n, 1, 0, a);
    gpu_run(d, GPU_KERNEL_unlike_score, n, 1, 1, 256 * sizeof(double), a);
}

static void run_expected(struct weigh *w, int64_t parts, size_t smem)
{
    struct gpu_device *d = w->d;
    const struct gpu_weigh_args *a = &w->args;
    int64_t n = w->list->n, n_head = w->most_head;
    struct gpu_weigh_args values = *a;
    values.part = a->value;
    gpu_run(d, GPU_KERNEL_expect_query, a->part.dim, n, n_head, 0, a);
    gpu_run(d, GPU_KERNEL_expect_logit, parts, n, n_head, smem + 128 * sizeof(float), a);
    gpu_run(d, GPU_KERNEL_expect_norm, parts, n, 1, part_smem(&values, a->n_entry), &values);
    gpu_run(d, GPU_KERNEL_expect_down, n_head, n, 1, 256 * sizeof(double), a);
    gpu_run(d, GPU_KERNEL_expect_score, pi_ceil_div(w->most_all, 256), n, 1, 0, a);
}

static void run_layer(struct weigh *w)
{
    struct gpu_device *d = w->d;
    struct gpu_weigh_args *a = &w->args;
    int64_t n = w->list->n, groups = pi_ceil_div(w->most_vector, 4);
    int64_t parts = (int64_t)w->most_page * (a->page_len / a->n_entry);
    size_t smem = part_smem(a, a->n_entry);
    if (a->kind == KV_WEIGH_ALIKE) {
        a->kind = WEIGH_MEAN;
        gpu_run(d, GPU_KERNEL_weigh_page, parts, n, 1, smem, a);
        gpu_run(d, GPU_KERNEL_weigh_anchor, n, 1, 1, 128 * sizeof(float), a);
        a->kind = KV_WEIGH_ALIKE;
    }
    if (looks_at_marks((enum kv_weigh_kind)a->kind))
        gpu_run(d, GPU_KERNEL_weigh_marks, pi_ceil_div(w->most_entry, 256), n, 1, 0, a);
    else if (takes_votes((enum kv_weigh_kind)a->kind))
        run_votes(w, parts, smem);
    else if (a->kind == KV_WEIGH_EXPECTED)
        run_expected(w, parts, smem);
    else if (w->half)
        gpu_run(d, GPU_KERNEL_weigh_half, pi_ceil_div(w->most_page, 128 / a->page_len), n, groups,
                (size_t)GPU_WEIGH_LEN(a->n_pair, a->part.dim) * sizeof(float), a);
    else
        gpu_run(d, GPU_KERNEL_weigh_page, parts, n, groups, smem, a);
    if (w->most_row > 0) {
        gpu_run(d, GPU_KERNEL_weigh_sums, pi_ceil_div(w->most_entry, GPU_WEIGH_CHUNK), n,
                w->most_row, 256 * sizeof(double), a);
        gpu_run(d, GPU_KERNEL_weigh_spread, n, 1, 1, 0, a);
    }
    gpu_run(d, GPU_KERNEL_weigh_fold, pi_ceil_div(w->most_entry, 256), a->n_set, 1, 0, a);
}

/* Where the sets' scores are: one behind the other. */
static bool place_scores(struct gpu_device *d, const struct kv_weigh_list *list)
{
    size_t used = 0;
    for (int pass = 0; pass < 2; pass++) {
        gpu_at room = pass == 0 ? 0 : gpu_room(d, GPU_ROOM_SCORE, used);
        if (pass == 1 && room == 0)
            return false;
        used = 0;
        for (int32_t i = 0; i < list->n_set; i++) {
            list->sets[i].score.at = (uintptr_t)(room + used);
            used += pi_align((size_t)list->sets[i].n * sizeof(float), 256);
        }
        used += 256;
    }
    return true;
}

static void finish(struct gpu_device *d, const struct kv_weigh_list *list)
{
    struct gpu_weigh_args args = {.n_set = list->n_set};
    struct gpu_weigh_set *sets;
    void *host;
    int32_t most = 0;
    size_t size = (size_t)list->n_set * sizeof(*sets);
    args.sets = gpu_list(d, size, &host);
    if (args.sets == 0)
        return;
    sets = host;
    for (int32_t i = 0; i < list->n_set; i++) {
        const struct kv_weigh_set *set = &list->sets[i];
        sets[i] = (struct gpu_weigh_set){.score = set->score.at,
                                         .begin = set->begin,
                                         .end = set->end,
                                         .n_before = set->n_of,
                                         .mean = list->mean,
                                         .unknown = set->unknown};
        most = (int32_t)pi_max(most, set->end - set->begin);
    }
    gpu_send(d, args.sets, size);
    gpu_run(d, GPU_KERNEL_weigh_finish, pi_ceil_div(most, 256), list->n_set, 1, 0, &args);
}

static void weigh_layer(struct gpu_device *d, const struct kv_weigh_list *list)
{
    struct weigh w = {.d = d, .list = list, .args = args_of(&list->jobs[0])};
    void *host;
    for (int32_t i = 0; i < list->n && looks_at_marks(list->jobs[i].kind); i++) {
        const struct kv_weigh_job *job = &list->jobs[i];
        struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
        gpu_marks_up(d, job->seq, lane, lane->len);
    }
    fill_turn(&w);
    lay_out(&w);
    w.room = gpu_room(d, GPU_ROOM_PART, w.room_used);
    w.at = w.room != 0 ? gpu_list(d, w.used, &host) : 0;
    if (w.at == 0)
        return;
    w.host = host;
    lay_out(&w);
    gpu_send(d, w.at, w.used);
    run_layer(&w);
}

/* Whether moves wait that concern a lane of the jobs. */
static bool moves_concern(const struct gpu_moves *all, const struct kv_weigh_list *list)
{
    for (int32_t i = 0; i < list->n; i++) {
        const struct kv_weigh_job *job = &list->jobs[i];
        if (gpu_moving_of(all, kv_lane_at(job->seq, job->layer, job->head)) != NULL)
            return true;
    }
    return false;
}

/* Moves of other lanes wait on, so that all layers go together. */
void gpu_weigh(struct pi_stream *s, const struct kv_weigh_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    if (list->n > 0 && takes_votes(list->jobs[0].kind) && !gpu_votes(s, list))
        return;
    gpu_enter_beside(d);
    if (moves_concern(&d->moves, list))
        gpu_flush_moves(d);
    if (place_scores(d, list)) {
        if (list->n > 0)
            weigh_layer(d, list);
        if (list->last)
            finish(d, list);
    }
    gpu_leave(d);
}
