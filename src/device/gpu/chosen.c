/*
 * chosen.c - what is made of choices that stay on the device (kv/chosen.h). It chooses nothing.
 * Invariant: nothing comes to the host.
 */
#include "kv/chosen.h"
#include "device/gpu/host.h"

enum { MOST_CHOICES = 32 }; /* of a launch */

/* Ranks of all jobs in one launch; *keys receives where the first job's are. False: no memory. */
static bool rank_all(struct gpu_device *d, const struct kv_unite_list *list, gpu_at *keys)
{
    struct gpu_chosen_args args = {0};
    size_t n_list = 0, n_key = 0, jobs = (size_t)list->n * sizeof(struct gpu_unite_job);
    int32_t most_n = 0, most_k = 0, most_list = 0;
    void *host;
    for (int32_t i = 0; i < list->n; i++) {
        const struct kv_unite_job *job = &list->jobs[i];
        n_list += (size_t)job->n_list;
        n_key += pi_align((size_t)job->n, 64);
        most_n = (int32_t)pi_max(most_n, job->n);
        most_k = (int32_t)pi_max(most_k, job->k);
        most_list = (int32_t)pi_max(most_list, job->n_list);
    }
    gpu_at key = gpu_room(d, GPU_ROOM_LOGITS, n_key * sizeof(float));
    size_t size = jobs + n_list * sizeof(gpu_at);
    args.jobs = key != 0 ? gpu_list(d, size, &host) : 0;
    *keys = key;
    if (args.jobs == 0)
        return false;
    struct gpu_unite_job *to = host;
    gpu_at *score = (gpu_at *)(void *)((uint8_t *)host + jobs), at = args.jobs + jobs;
    for (int32_t i = 0; i < list->n; i++) {
        const struct kv_unite_job *job = &list->jobs[i];
        to[i] = (struct gpu_unite_job){.score = at,
                                       .lists = job->lists.at,
                                       .key = key,
                                       .n_list = job->n_list,
                                       .n = job->n,
                                       .k = job->k};
        for (int32_t h = 0; h < job->n_list; h++)
            *score++ = job->score[h].at;
        at += (size_t)job->n_list * sizeof(gpu_at);
        key += pi_align((size_t)job->n, 64) * sizeof(float);
    }
    gpu_send(d, args.jobs, size);
    gpu_run(d, GPU_KERNEL_unite_clear, pi_ceil_div(most_n, 256), list->n, 1, 0, &args);
    gpu_run(d, GPU_KERNEL_unite_rank, pi_ceil_div(most_k, 256), most_list, list->n, 0, &args);
    return true;
}

void gpu_unite(struct pi_stream *s, const struct kv_unite_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    gpu_at key;
    if (list->n == 0)
        return;
    gpu_enter_beside(d);
    bool ready = rank_all(d, list, &key);
    gpu_leave(d);
    struct kv_choose_job choice[MOST_CHOICES];
    for (int32_t i = 0, k = 0; ready && i < list->n; i++) {
        const struct kv_unite_job *job = &list->jobs[i];
        choice[k++] = (struct kv_choose_job){
            .at = {(uintptr_t)key}, .n = job->n, .k = job->k, .lowest = true, .there = job->out};
        key += pi_align((size_t)job->n, 64) * sizeof(float);
        if (k == MOST_CHOICES || i == list->n - 1) {
            gpu_choose(s, &(struct kv_choose_list){.jobs = choice, .n = k});
            k = 0;
        }
    }
}

void gpu_share(struct pi_stream *s, const struct kv_share_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct gpu_chosen_args args = {0};
    size_t size = (size_t)list->n * sizeof(struct gpu_share_job);
    int32_t most = 0;
    void *host;
    gpu_enter_beside(d);
    args.jobs = list->n > 0 ? gpu_list(d, size, &host) : 0;
    struct gpu_share_job *to = args.jobs != 0 ? host : NULL;
    for (int32_t i = 0; to != NULL && i < list->n; i++) {
        const struct kv_share_job *job = &list->jobs[i];
        to[i] = (struct gpu_share_job){.weight = job->weight.at,
                                       .chosen = job->chosen->at.at,
                                       .out = job->out.at,
                                       .n = job->n,
                                       .n_first = job->chosen->n_first,
                                       .n_chosen = job->chosen->n,
                                       .n_last = job->chosen->n_last};
        most = (int32_t)pi_max(most, job->n_group);
    }
    if (to != NULL) {
        gpu_send(d, args.jobs, size);
        gpu_run(d, GPU_KERNEL_share_of, most, list->n, 1, 128 * sizeof(double), &args);
    }
    gpu_leave(d);
}

/* ---- values that were not read ---- */

static const struct kv_lane *lane_of(const struct kv_blend_job *job)
{
    return kv_lane_at(job->seq, job->layer, job->head);
}

/* Jobs of lanes of one class. */
static void blend_alike(struct gpu_device *d, const struct kv_blend_job *jobs, int32_t n)
{
    const struct kv_class *kind = lane_of(jobs)->kind;
    struct gpu_value_args values = gpu_value_args_of(kind);
    size_t dim = (size_t)kind->value.dim, n_page = 0;
    size_t size = (size_t)n * sizeof(struct gpu_blend_job);
    for (int32_t i = 0; i < n; i++)
        n_page += (size_t)lane_of(&jobs[i])->n_live;
    gpu_at room = gpu_room(d, GPU_ROOM_PART, (n_page + 1) * dim * sizeof(float));
    void *host;
    struct gpu_chosen_args args = {.dim = (int32_t)dim};
    size_t all = size + n_page * sizeof(struct gpu_value_page);
    args.jobs = room != 0 ? gpu_list(d, all, &host) : 0;
    if (args.jobs == 0)
        return;
    struct gpu_blend_job *to = host;
    struct gpu_value_page *page = (void *)((uint8_t *)host + size);
    args.pages = values.pages = args.jobs + size;
    for (int32_t i = 0; i < n; i++) {
        const struct kv_blend_job *job = &jobs[i];
        int32_t first = values.n_page,
                here = gpu_list_values(job->seq, lane_of(job), job->n,
                                       room + (size_t)first * dim * sizeof(float), page + first);
        to[i] = (struct gpu_blend_job){.share = job->share.at,
                                       .out = job->out.at,
                                       .first = first,
                                       .n_page = here,
                                       .n = job->n,
                                       .n_group = job->n_group};
        values.n_page += here;
    }
    gpu_send(d, args.jobs, all);
    gpu_run(d, GPU_KERNEL_value_pages, values.n_page, 1, 1,
            (size_t)values.n_entry * (dim + 1) * sizeof(float), &values);
    gpu_run(d, GPU_KERNEL_blend, pi_ceil_div((int64_t)dim, 128), n, 1, 0, &args);
}

void gpu_blend(struct pi_stream *s, const struct kv_blend_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    gpu_enter_pass(d);
    for (int32_t i = 0, end; i < list->n; i = end) {
        for (end = i + 1;
             end < list->n && lane_of(&list->jobs[end])->kind == lane_of(&list->jobs[i])->kind;)
            end++;
        blend_alike(d, list->jobs + i, end - i);
    }
    gpu_leave(d);
}
