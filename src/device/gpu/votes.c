/*
 * votes.c - the attention of a round's queries, which the device remembers (kv/learn.h), to the
 * entries of its lanes. The queries are calls of attention whose weights are noted (note.c), and
 * the sums are pooled here.
 *
 * Invariant: a lane's sums depend neither on the other lanes nor on where a ring begins.
 */
#include "device/gpu/host.h"

/* A layer's lanes. */
struct votes {
    const struct kv_weigh_list *list;
    struct kv_note *note; /* [list->n] */
    struct kv_attend_tap tap;
};

/* Where lane i has its sums, behind the sums of lanes before. With i the number of lanes: the
   size. */
static size_t place_of(const struct kv_weigh_list *list, int32_t i)
{
    size_t n = 0;
    for (int32_t j = 0; j < i; j++)
        n += pi_align((size_t)list->jobs[j].votes.n_group *
                          (size_t)list->sets[list->jobs[j].set].n * sizeof(float),
                      256);
    return n;
}

int32_t gpu_votes_before(const struct kv_weigh_set *set, const struct kv_weigh_votes *votes)
{
    int32_t low = 0, high = set->n;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (set->pos[mid] < votes->before)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

gpu_at gpu_votes_at(struct gpu_device *d, int32_t i)
{
    return ((const struct kv_note *)d->votes)[i].there.at;
}

static struct kv_note note_of(const struct kv_weigh_list *list, int32_t i, gpu_at room)
{
    const struct kv_weigh_job *job = &list->jobs[i];
    const struct kv_weigh_set *set = &list->sets[job->set];
    struct kv_note note = {.word = KV_NOTE_SUM,
                           .group = KV_GROUP_EACH,
                           .n = set->n,
                           .there = {(uintptr_t)(room + place_of(list, i))},
                           .stride = (size_t)set->n};
    if (job->votes.softmax == KV_VOTES_ALL)
        return note;
    note.n = gpu_votes_before(set, &job->votes);
    note.word = job->votes.softmax == KV_VOTES_BEFORE ? KV_NOTE_BEFORE : KV_NOTE_TOGETHER;
    note.group = job->votes.softmax == KV_VOTES_BEFORE ? KV_GROUP_EACH : KV_GROUP_MAX;
    return note;
}

/* Queries that lie next to each other in the ring: one call, or two where its end is between. */
static bool job_of(void *ctx, int64_t i, int32_t turn, int32_t thread, struct kv_attend_job *out)
{
    struct votes *v = ctx;
    const struct kv_weigh_job *of = &v->list->jobs[i];
    const struct kv_weigh_votes *votes = &of->votes;
    int32_t pos = votes->next - votes->count, place = pos % votes->n_ring;
    int32_t n_first = (int32_t)pi_min(votes->count, votes->n_ring - place);
    (void)thread;
    if (turn > 1 || (turn == 1 && n_first == votes->count) || v->note[i].n == 0)
        return false;
    *out = (struct kv_attend_job){
        .seq = of->seq,
        .layer = of->layer,
        .head = of->head,
        .n_tok = turn == 0 ? n_first : votes->count - n_first,
        .n_group = votes->n_group,
        .pos0 = turn == 0 ? pos : pos + n_first,
        .q_at = pi_at_item(votes->q, turn == 0 ? (size_t)place * votes->stride : 0),
        .q_stride = votes->stride,
        .scale = votes->scale,
        .rope = of->rope,
        .tap = &v->tap,
        .notes = &v->note[i],
        .n_note = 1,
        .notes_only = true,
        .n_later = -1,
    };
    return true;
}

bool gpu_votes(struct pi_stream *s, const struct kv_weigh_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    struct votes v = {.list = list};
    const struct kv_attend_list calls = {.ctx = &v, .n = list->n, .job = job_of};
    size_t size = place_of(list, list->n);
    gpu_enter_beside(d);
    gpu_at room = gpu_room(d, GPU_ROOM_VOTES, size);
    bool ok = room != 0 && gpu_host_room(d, &d->votes, (size_t)list->n * sizeof(*v.note));
    v.note = d->votes;
    for (int32_t i = 0; ok && i < list->n; i++)
        v.note[i] = note_of(list, i, room);
    if (ok)
        d->driver->clear(d->driver, room, size);
    gpu_leave(d);
    if (ok)
        gpu_attend(s, &calls);
    return ok;
}
