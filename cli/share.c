/*
 * share.c - what the commands say of share policies. The library decides which pages are shared.
 */
#include "share.h"
#include "pith/policy.h"

#include <stdio.h>
#include <string.h>

bool share_is_on(const char *share)
{
    return share != NULL && share[0] != '\0' && strcmp(share, "none") != 0;
}

/* The affected ratio of MemShare: of all tokens those in pages that others stand for. */
static double affected(const struct session *s, const pith_share_stats *t)
{
    int32_t n = pith_seq_length(s->seq);
    return n > 0 ? (double)t->tokens_shared / n : 0.0;
}

void share_report(const struct session *s)
{
    pith_share_stats t;
    char saved[32];
    if (!share_is_on(s->share))
        return;
    pith_seq_share_stats(s->seq, &t);
    fprintf(
        stderr,
        "share    %8.3f s   %.*s: %lld of %lld steps had one like them, %lld pages shared (%s), "
        "%.1f %% of the tokens, below a distance of %.3g\n",
        t.seconds, (int)strcspn(s->share, ":"), s->share, (long long)t.steps_similar,
        (long long)t.steps_closed, (long long)t.pages_shared, cli_bytes(t.bytes_saved, saved),
        100.0 * affected(s, &t), t.block);
}

json_t *share_json(const struct session *s)
{
    pith_share_stats t;
    if (!share_is_on(s->share))
        return json_pack("{s:s}", "share", "none");
    pith_seq_share_stats(s->seq, &t);
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "share", s->share,
        "share_steps", (json_int_t)t.steps_closed, "share_steps_compared",
        (json_int_t)t.steps_compared, "share_steps_similar", (json_int_t)t.steps_similar,
        "share_pages_compared", (json_int_t)t.pages_compared, "share_pages_early",
        (json_int_t)t.pages_early, "share_pages", (json_int_t)t.pages_shared, "share_tokens",
        (json_int_t)t.tokens_shared, "share_bytes_saved", (json_int_t)t.bytes_saved,
        "share_affected", affected(s, &t), "share_s", t.seconds, "share_block", t.block);
}
