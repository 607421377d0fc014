/*
 * choose.c - choices of a round on the device, among scores that are there. Choices among scores of
 * the host are the host's. compact.c has what follows.
 */
#include "device/gpu/host.h"

/* ---- choices ---- */

/* The first of n ascending positions that belongs to a part behind `part`. */
static int32_t part_end(const struct kv_choose_job *job, int32_t part)
{
    int64_t length = (int64_t)job->hi - job->lo;
    int32_t low = 0, high = job->n;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (((int64_t)job->pos[mid] - job->lo) * job->n_part < (part + 1) * length)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The parts of a choice, and all that is left. */
static void put_parts(const struct kv_choose_job *job, struct gpu_choose_part *out)
{
    int32_t left = job->k, begin = 0;
    for (int32_t i = 0; i < job->n_part; i++) {
        int32_t end = part_end(job, i);
        int32_t share = job->n > 0 ? (int32_t)((int64_t)(end - begin) * job->k / job->n) : 0;
        *out++ = (struct gpu_choose_part){begin, end, share, 0};
        left -= share;
        begin = end;
    }
    *out = (struct gpu_choose_part){0, job->n, left, 0};
}

/* Choices [0, n), all among scores of the device. */
static void choose_there(struct gpu_device *d, const struct kv_choose_job *jobs, int32_t n)
{
    size_t n_part = 0, n_slot = 0, n_taken = 0, used = (size_t)n * sizeof(struct gpu_choose_job);
    for (int32_t i = 0; i < n; i++) {
        n_part += (size_t)jobs[i].n_part + 1;
        n_slot += pi_at_some(jobs[i].there) ? 0 : (size_t)jobs[i].k;
        n_taken += pi_align((size_t)jobs[i].n, 16);
    }
    void *host;
    size_t size = used + n_part * sizeof(struct gpu_choose_part);
    size_t slot_size = pi_align(n_slot * sizeof(int32_t), 256);
    gpu_at room = gpu_room(d, GPU_ROOM_PART, slot_size + n_taken + 256), slot = room;
    bool ready = room != 0 && gpu_host_room(d, &d->rows, slot_size);
    gpu_at list = ready ? gpu_list(d, size, &host) : 0;
    if (list == 0)
        return;
    struct gpu_choose_job *to = host;
    gpu_at taken = room + slot_size;
    for (int32_t i = 0; i < n; i++) {
        to[i] =
            (struct gpu_choose_job){.score = jobs[i].at.at,
                                    .parts = list + used,
                                    .slots = pi_at_some(jobs[i].there) ? jobs[i].there.at : slot,
                                    .taken = taken,
                                    .n = jobs[i].n,
                                    .k = jobs[i].k,
                                    .lowest = jobs[i].lowest,
                                    .n_part = jobs[i].n_part + 1};
        put_parts(&jobs[i], (struct gpu_choose_part *)(void *)((uint8_t *)host + used));
        used += (size_t)(jobs[i].n_part + 1) * sizeof(struct gpu_choose_part);
        slot += pi_at_some(jobs[i].there) ? 0 : (size_t)jobs[i].k * sizeof(int32_t);
        taken += pi_align((size_t)jobs[i].n, 16);
    }
    gpu_send(d, list, used);
    const struct gpu_choose_args args = {.jobs = list, .n_job = n};
    gpu_run(d, GPU_KERNEL_choose_best, n, 1, 1, 2048 * 4 + 36 * 4, &args);
    if (n_slot == 0)
        return;
    d->driver->get(d->driver, d->rows, room, n_slot * sizeof(int32_t));
    const int32_t *chosen = d->rows;
    for (int32_t i = 0; i < n; i++)
        if (!pi_at_some(jobs[i].there)) {
            memcpy(jobs[i].slots, chosen, (size_t)jobs[i].k * sizeof(*chosen));
            chosen += jobs[i].k;
        }
}

void gpu_choose(struct pi_stream *s, const struct kv_choose_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    for (int32_t i = 0, end; i < list->n; i = end) {
        end = i + 1;
        if (!pi_at_some(list->jobs[i].at)) {
            kv_choose(&list->jobs[i], list->scratch);
            continue;
        }
        while (end < list->n && pi_at_some(list->jobs[end].at))
            end++;
        gpu_enter_beside(d);
        choose_there(d, list->jobs + i, end - i);
        gpu_leave(d);
    }
}

/* ---- choices among all ---- */

struct all_state {
    int64_t left;
    uint32_t found, known;
};

/* The k highest scores of all lanes: n_top and n_equal of each lane become the numbers of those
   above the border and at it. Returns how many of the latter are among the k; -1: no memory. */
static int64_t count_all(struct gpu_device *d, const struct kv_choose_all *job)
{
    size_t n = (size_t)job->n_lane, size = n * sizeof(struct gpu_choose_job), n_bin = 2048;
    struct all_state state = {.left = job->k};
    int32_t most = 0;
    void *host;
    size_t counts = pi_align(n * 2 * sizeof(uint32_t), 256);
    gpu_at room = gpu_room(d, GPU_ROOM_PART, counts + n_bin * sizeof(uint32_t) + 256);
    bool ready = room != 0 && gpu_host_room(d, &d->rows, counts);
    gpu_at list = ready ? gpu_list(d, size, &host) : 0;
    if (list == 0)
        return -1;
    struct gpu_choose_job *to = host;
    for (int32_t i = 0; i < job->n_lane; i++) {
        to[i] = (struct gpu_choose_job){.score = job->lanes[i].at.at,
                                        .n = job->lanes[i].n,
                                        .count = room + (size_t)i * 2 * sizeof(uint32_t)};
        most = (int32_t)pi_max(most, job->lanes[i].n);
    }
    gpu_send(d, list, size);
    struct gpu_choose_args args = {.jobs = list,
                                   .count = room + counts,
                                   .state = room + counts + n_bin * sizeof(uint32_t),
                                   .n_job = job->n_lane};
    d->driver->clear(d->driver, room, counts + n_bin * sizeof(uint32_t));
    d->driver->put(d->driver, args.state, &state, sizeof(state));
    static const int32_t shift[] = {21, 10, 0};
    int64_t blocks = pi_ceil_div(most, 4096);
    for (size_t i = 0; i < PI_LEN(shift); i++) {
        args.shift = shift[i];
        gpu_run(d, GPU_KERNEL_all_count, blocks, job->n_lane, 1, n_bin * 4, &args);
        gpu_run(d, GPU_KERNEL_all_digit, 1, 1, 1, n_bin * 4 + 36 * 4, &args);
    }
    gpu_run(d, GPU_KERNEL_all_above, blocks, job->n_lane, 1, 0, &args);
    d->driver->get(d->driver, d->rows, room, n * 2 * sizeof(int32_t));
    d->driver->get(d->driver, &state, args.state, sizeof(state));
    const int32_t *count = d->rows;
    for (int32_t i = 0; i < job->n_lane; i++) {
        job->lanes[i].n_top = count[2 * i];
        job->lanes[i].n_equal = count[2 * i + 1];
    }
    return state.left;
}

/* Scores come to the host, where equal ones are compared by their age. */
static void choose_by_age(struct gpu_device *d, const struct kv_choose_all *job)
{
    size_t n = 0, at = 0;
    for (int32_t i = 0; i < job->n_lane; i++)
        n += (size_t)job->lanes[i].n;
    float *score = pi_mem_alloc_n(PI_MEM_SCRATCH, n + 1, sizeof(*score));
    if (score == NULL) {
        d->driver->failure = "no memory of the host";
        return;
    }
    for (int32_t i = 0; i < job->n_lane; at += (size_t)job->lanes[i++].n) {
        struct kv_choose_lane *lane = &job->lanes[i];
        d->driver->get(d->driver, score + at, lane->at.at, (size_t)lane->n * sizeof(*score));
        lane->score = score + at;
    }
    kv_choose_all(job);
    pi_mem_free(score);
}

void gpu_choose_all(struct pi_stream *s, const struct kv_choose_all *job)
{
    struct gpu_device *d = gpu_of_stream(s);
    if (job->n_lane == 0 || !pi_at_some(job->lanes[0].at) || job->k == 0) {
        kv_choose_all(job);
        return;
    }
    gpu_enter(d);
    int64_t n_tie = count_all(d, job), n_equal = 0;
    for (int32_t i = 0; i < job->n_lane; i++)
        n_equal += job->lanes[i].n_equal;
    if (n_tie >= 0 && job->by_age && n_tie < n_equal)
        choose_by_age(d, job);
    else if (n_tie >= 0 && n_equal > 0)
        kv_choose_share(job, n_tie, n_equal);
    gpu_leave(d);
}
