/*
 * apart.c - how far entries of two lanes are apart (kv/apart.h). The lanes of all layers go in one
 * launch for each class of pages. The host adds an entry's sums to the next one's, in order.
 */
#include "kv/apart.h"
#include "device/gpu/host.h"

/* The places of n entries of a lane from a slot on, as side i of the pairs. */
static void put_places(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot,
                       int32_t n, int side, struct gpu_apart_pair *pair)
{
    int32_t entry, index = kv_lane_find(seq->cache, lane, slot, &entry);
    for (int32_t i = 0; i < n; i++, entry++) {
        while (entry >= lane->table[index].n) {
            entry = 0;
            index++;
        }
        pair[i].page[side] = gpu_page_at(lane->kind, lane->table[index].page);
        pair[i].slot[side] = entry;
    }
}

static void put_pairs(const struct kv_apart_list *list, int32_t first, int32_t n,
                      struct gpu_apart_pair *pair)
{
    for (int32_t i = first; i < first + n; i++, pair += list->n) {
        const struct kv_apart_job *job = &list->jobs[i];
        put_places(job->seq_a, kv_lane_at(job->seq_a, job->layer, job->head), job->a, list->n, 0,
                   pair);
        put_places(job->seq_b, kv_lane_at(job->seq_b, job->layer, job->head), job->b, list->n, 1,
                   pair);
        for (int32_t e = 0; e < list->n; e++)
            pair[e].turned = job->turned;
    }
}

static void take_sums(const struct kv_apart_list *list, int32_t first, int32_t n, const double *sum)
{
    for (int32_t i = first; i < first + n; i++) {
        struct kv_apart_job *job = &list->jobs[i];
        job->k = job->v = job->size = 0.0;
        for (int32_t e = 0; e < list->n; e++, sum += 3) {
            job->k += sum[0];
            job->v += sum[1];
            job->size += sum[2];
        }
    }
}

/* Jobs of one class of pages. */
static void apart_alike(struct gpu_device *d, const struct kv_apart_list *list, int32_t first,
                        int32_t n)
{
    const struct kv_apart_job *job = &list->jobs[first];
    const struct kv_geometry *g = &job->seq_a->cache->g;
    const struct kv_class *kind = kv_lane_at(job->seq_a, job->layer, job->head)->kind;
    size_t n_pair = (size_t)n * (size_t)list->n, out = n_pair * 3 * sizeof(double), turn = 0;
    size_t pairs = pi_align(n_pair * sizeof(struct gpu_apart_pair), 16);
    struct gpu_apart_args args = {.page_len = kind->page_len,
                                  .n = list->n,
                                  .by = 1.0f,
                                  .k = gpu_part_of(kind, &kind->k, true),
                                  .value = gpu_part_of(kind, &kind->value, g->v_in_k > 0)};
    void *host;
    if (list->rope != NULL) {
        args.n_pair = list->rope->n_pair;
        args.adjacent = list->rope->adjacent;
        args.by = 1.0f / (list->rope->magnitude * list->rope->magnitude);
        turn = (size_t)args.n_pair * 2 * sizeof(float);
    }
    args.out = gpu_room(d, GPU_ROOM_HOST, out);
    args.pairs =
        args.out != 0 && gpu_host_room(d, &d->rows, out) ? gpu_list(d, pairs + turn, &host) : 0;
    if (args.pairs == 0)
        return;
    args.turn = args.pairs + pairs;
    put_pairs(list, first, n, host);
    if (turn > 0)
        memcpy((uint8_t *)host + pairs, list->turn, turn);
    gpu_send(d, args.pairs, pairs + turn);
    size_t dim = (size_t)pi_max(args.k.dim, args.value.dim);
    gpu_run(d, GPU_KERNEL_apart, list->n, n, 1,
            128 * sizeof(double) + 2 * (dim + 1) * sizeof(float), &args);
    d->driver->get(d->driver, d->rows, args.out, out);
    take_sums(list, first, n, d->rows);
}

void gpu_apart(const struct kv_apart_list *list)
{
    if (list->n_job == 0)
        return;
    struct gpu_device *d = gpu_of_lane(list->jobs->seq_a, list->jobs->layer, list->jobs->head);
    gpu_enter(d);
    for (int32_t i = 0, end; i < list->n_job; i = end) {
        const struct kv_apart_job *jobs = list->jobs;
        const struct kv_class *kind = kv_lane_at(jobs[i].seq_a, jobs[i].layer, jobs[i].head)->kind;
        for (end = i + 1;
             end < list->n_job &&
             kv_lane_at(jobs[end].seq_a, jobs[end].layer, jobs[end].head)->kind == kind;)
            end++;
        apart_alike(d, list, i, end - i);
    }
    gpu_leave(d);
}
