/*
 * recall.c - what the commands say of recall, and how a conversation asks for it. The library
 * decides which tokens are recalled, and when.
 */
#include "recall.h"
#include "pith/policy.h"

#include <stdio.h>
#include <string.h>

/* The default of the most characters that recall of text inserts; no token is less than one. A
   longer text is left out where it does not fit. */
#define MOST_TOKENS 8000

bool recall_is_on(const struct session *s)
{
    return s->recall != NULL && s->recall[0] != '\0' && strcmp(s->recall, "none") != 0;
}

static bool is_text(const struct session *s)
{
    return recall_is_on(s) && strncmp(s->recall, "text", 4) == 0;
}

int64_t recall_most_tokens(const char *recall)
{
    return recall != NULL && strncmp(recall, "text", 4) == 0 ? MOST_TOKENS : 0;
}

/* ---- reports ---- */

/* Spans of text, or entries and where they are. */
static void print_held(const struct session *s, const pith_recall_stats *r, int32_t n_token)
{
    char ram[32], file[32];
    if (is_text(s)) {
        fprintf(stderr, "text: %lld spans in the store", (long long)r->stored);
        if (r->recalls > 0)
            fprintf(stderr, ", %lld found for the last question", (long long)r->guests);
        if (n_token > 0)
            fprintf(stderr, ", %d tokens of them read before it", n_token);
        return;
    }
    fprintf(stderr, "kv: %lld evicted entries in %s of memory", (long long)r->stored,
            cli_bytes(r->ram_bytes, ram));
    if (r->file_bytes > 0)
        fprintf(stderr, " and %s of the file", cli_bytes(r->file_bytes, file));
    fprintf(stderr, ", %lld lost; %lld recall%s, %lld entries are back", (long long)r->lost,
            (long long)r->recalls, r->recalls == 1 ? "" : "s", (long long)r->guests);
}

int64_t recall_guests(const struct session *s)
{
    pith_recall_stats r = {0};
    if (recall_is_on(s) && !is_text(s))
        pith_seq_recall_stats(s->seq, &r);
    return r.guests;
}

/* Share of a token's attention, in lanes that look for evicted entries, from which an answer leaned
   on what did not come back. */
#define DOUBTFUL 0.5

void recall_doubt(const struct session *s)
{
    pith_recall_stats r;
    if (!recall_is_on(s))
        return;
    pith_seq_recall_stats(s->seq, &r);
    if (r.doubt >= DOUBTFUL)
        cli_note(
            "doubt %.2f: a token of the answer looked for evicted entries that did not all come "
            "back; a larger budget is safer",
            r.doubt);
}

void recall_report(const struct session *s, const pith_generate_result *result)
{
    pith_recall_stats r;
    if (!recall_is_on(s))
        return;
    pith_seq_recall_stats(s->seq, &r);
    fprintf(stderr, "recall   %8.3f s   ", r.seconds);
    print_held(s, &r, result->n_recalled);
    fputc('\n', stderr);
}

json_t *recall_json(const struct session *s, const pith_generate_result *result)
{
    pith_recall_stats r;
    if (!recall_is_on(s))
        return json_pack("{s:s}", "recall", "none");
    pith_seq_recall_stats(s->seq, &r);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:f, s:f}", "recall", s->recall,
                     "recalls", (json_int_t)r.recalls, "recall_stored", (json_int_t)r.stored,
                     "recall_lost", (json_int_t)r.lost, "recall_guests", (json_int_t)r.guests,
                     "recall_ram_bytes", (json_int_t)r.ram_bytes, "recall_file_bytes",
                     (json_int_t)r.file_bytes, "recalled_tokens", (int)result->n_recalled,
                     "recall_s", r.seconds, "doubt", r.doubt);
}

void recall_hint(const struct session *s)
{
    pith_keep_stats keep;
    pith_seq_keep_stats(s->seq, &keep);
    if (recall_is_on(s) || keep.evicted == 0)
        return;
    fprintf(stderr,
            "recall   %lld of %lld entries were evicted; --recall kv reads them again where a "
            "question needs them\n",
            (long long)keep.evicted, (long long)(keep.evicted + keep.live));
}

/* ---- conversations ---- */

char *recall_find(const struct session *s, const char *message, size_t len)
{
    pith_error err;
    const char *question;
    size_t question_len;
    char *text = NULL;
    if (!is_text(s))
        return NULL;
    pith_recall_question(message, len, &question, &question_len);
    cli_check(pith_seq_recall_text(s->seq, question, question_len, &text, &err), &err);
    return text;
}

struct cli_text recall_join(const char *message, size_t len, const char *found)
{
    size_t at = pith_recall_place(message, len), n = strlen(found);
    struct cli_text out = {cli_alloc(len + n + 2, 1), 0};
    bool line = at > 0 && message[at - 1] != '\n';
    memcpy(out.data, message, at);
    out.len = at;
    if (line)
        out.data[out.len++] = '\n';
    memcpy(out.data + out.len, found, n);
    out.len += n;
    memcpy(out.data + out.len, message + at, len - at);
    out.len += len - at;
    return out;
}
