/*
 * count.c - the pages that a few sequences hold together, each once: the pages that would come
 * free, or be shared by fewer, without them. It marks pages in the pool's scratch of counts, which
 * is zero between two counts. So every counted sequence is uncounted before any other code looks.
 */
#include "kv/count.h"
#include "kv/state_internal.h"

int64_t kv_seq_count_bytes(struct kv_seq *seq)
{
    int64_t bytes = 0;
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++)
        for (int32_t i = 0; i < seq->lane[l].n_page; i++) {
            const struct kv_class *kind = seq->lane[l].kind;
            uint8_t *mark = &kind->n_entry[seq->lane[l].table[i].page];
            bytes += *mark == 0 ? kv_pages_bytes(kind, 1) : 0;
            *mark = 1;
        }
    return bytes + kv_state_count(seq);
}

void kv_seq_uncount(struct kv_seq *seq)
{
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++)
        for (int32_t i = 0; i < seq->lane[l].n_page; i++)
            seq->lane[l].kind->n_entry[seq->lane[l].table[i].page] = 0;
    kv_state_uncount(seq);
}
