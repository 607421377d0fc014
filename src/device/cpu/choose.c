/*
 * choose.c - choices among scores (kv/choose.h) on the stream's threads, a lane each.
 */
#include "device/cpu/cpu.h"
#include "device/cpu/pages.h"

static void choose_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct kv_choose_list *list = ctx;
    for (int64_t i = begin; i < end; i++)
        kv_choose(&list->jobs[i], list->scratch + (size_t)thread * list->scratch_size);
}

void cpu_choose(struct pi_stream *stream, const struct kv_choose_list *list)
{
    const struct cpu_stream *s = cpu_stream_of(stream);
    cpu_items(s, cpu_threads_for(s, list->work), list->n, choose_items, (void *)list);
}

void cpu_choose_all(struct pi_stream *stream, const struct kv_choose_all *job)
{
    (void)stream;
    kv_choose_all(job);
}
