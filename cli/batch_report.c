/*
 * batch_report.c - the bar and the figures of `pith batch`. It looks on, and changes nothing.
 */
#define _POSIX_C_SOURCE 200809L

#include "batch_report.h"

#include <stdio.h>
#include <string.h>

#include <eval.h>

#include "draft.h"

#define AT(member) .offset = offsetof(struct batch_report_options, member)
const struct option batch_report_option_table[] = {
    {"--progress", NULL, NULL, OPTION_FLAG, AT(progress), .absent = "on a terminal",
     .help = "show the progress on standard error"},
    {"--quiet", "-q", NULL, OPTION_FLAG, AT(quiet), .help = "print no figures at the end"},
    {"--json", NULL, "FILE", OPTION_TEXT, AT(json), .absent = "", .writes = true,
     .help = "write the figures as JSON; - is standard output"},
    {0},
};
#undef AT

static bool is_standard(const char *path)
{
    return strcmp(path, "-") == 0;
}

void batch_report_check(const struct batch_report_options *o)
{
    pith_error err;
    if (o->json != NULL && !is_standard(o->json) && eval_check_file(o->json, &err) != PITH_OK)
        cli_fail("--json: %s", err.message);
}

void batch_report_start(struct batch_report *r, const struct batch_report_options *o)
{
    r->options = o;
    r->start_s = clock_s();
    r->bar = (struct cli_progress){.what = r->what, .on = o->progress || cli_progress_wanted()};
}

void batch_report_add(struct batch_report *r, const pith_answer_result *result)
{
    const pith_share_stats *share = &result->share;
    const pith_keep_stats *keep = &result->keep;
    r->share.steps_closed += share->steps_closed;
    r->share.steps_compared += share->steps_compared;
    r->share.steps_similar += share->steps_similar;
    r->share.pages_compared += share->pages_compared;
    r->share.pages_shared += share->pages_shared;
    r->share.tokens_shared += share->tokens_shared;
    r->share.bytes_saved += share->bytes_saved;
    r->share.seconds += share->seconds;
    r->keep.rounds += keep->rounds;
    r->keep.evicted += keep->evicted;
    r->keep.overwritten += keep->overwritten;
    r->keep.bytes_freed += keep->bytes_freed;
    r->keep.seconds += keep->seconds;
}

/* ---- the bar ---- */

static double percent(int64_t part, int64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0.0;
}

static double per_s(int64_t n, double seconds)
{
    return seconds > 0.0 ? (double)n / seconds : 0.0;
}

void batch_report_progress(struct batch_report *r, pith_scheduler *scheduler,
                           const pith_engine *engine)
{
    double now = clock_s();
    pith_scheduler_stats work;
    pith_kv_stats kv;
    int64_t n_done = r->n_skipped + r->n_answered + r->n_failed;
    pith_scheduler_get_stats(scheduler, &work);
    pith_engine_kv_stats(engine, &kv);
    snprintf(
        r->what, sizeof(r->what), "%lld of %lld requests, %d running, %.1f tokens/s, KV %.0f %%",
        (long long)n_done, (long long)r->n_request, work.n_running,
        per_s(work.generated_tokens, now - r->start_s), percent(kv.used_bytes, kv.reserved_bytes));
    cli_progress_step(&r->bar, r->n_request > 0 ? (double)n_done / (double)r->n_request : 1.0);
}

void batch_report_progress_end(struct batch_report *r)
{
    cli_progress_end(&r->bar);
}

/* ---- the figures ---- */

void batch_report_finish(struct batch_report *r, pith_scheduler *scheduler,
                         const pith_engine *engine)
{
    r->seconds = clock_s() - r->start_s;
    pith_scheduler_get_stats(scheduler, &r->work);
    pith_engine_kv_stats(engine, &r->kv);
}

static const char *or_none(const char *policy)
{
    return policy != NULL ? policy : "none";
}

static json_t *work_json(const struct batch_report *r)
{
    const pith_scheduler_stats *w = &r->work;
    return json_pack(
        "{s:I, s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "steps",
        (json_int_t)w->n_step, "peak_running", (int)w->peak_running, "prompt_tokens",
        (json_int_t)w->prompt_tokens, "cached_tokens", (json_int_t)w->cached_tokens,
        "generated_tokens", (json_int_t)w->generated_tokens, "recomputed_tokens",
        (json_int_t)w->recomputed_tokens, "prompt_tokens_per_s",
        per_s(w->prompt_tokens, r->seconds), "generated_tokens_per_s",
        per_s(w->generated_tokens, r->seconds), "preempted_recompute",
        (json_int_t)w->preempted_recompute, "preempted_swap", (json_int_t)w->preempted_swap,
        "prefix_pages", (json_int_t)w->prefix_pages, "prefix_bytes", (json_int_t)w->prefix_bytes,
        "prefix_dropped", (json_int_t)w->prefix_dropped, "schedule_s", w->schedule_s, "share_s",
        w->share_s);
}

static json_t *memory_json(const struct batch_report *r, const struct session *s)
{
    const pith_share_stats *share = &r->share;
    return json_pack(
        "{s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I}",
        "kv_reserved_bytes", (json_int_t)r->kv.reserved_bytes, "kv_peak_bytes",
        (json_int_t)r->kv.peak_bytes, "kv_table_bytes", (json_int_t)r->kv.table_bytes, "read",
        or_none(s->params.read), "recall", or_none(s->params.recall), "keep",
        or_none(s->params.keep), "keep_rounds", (json_int_t)r->keep.rounds, "keep_evicted",
        (json_int_t)r->keep.evicted, "keep_bytes_freed", (json_int_t)r->keep.bytes_freed, "share",
        or_none(s->params.share), "share_steps_closed", (json_int_t)share->steps_closed,
        "share_steps_compared", (json_int_t)share->steps_compared, "share_steps_similar",
        (json_int_t)share->steps_similar, "share_pages", (json_int_t)share->pages_shared,
        "share_tokens", (json_int_t)share->tokens_shared, "share_bytes_saved",
        (json_int_t)share->bytes_saved, "pressure_rounds", (json_int_t)r->work.pressure_rounds,
        "pressure_shared", (json_int_t)r->work.pressure_shared);
}

static bool write_json(const struct batch_report *r, const struct session *s)
{
    const char *path = r->options->json;
    json_t *o =
        json_pack("{s:I, s:I, s:I, s:I, s:f, s:f}", "requests", (json_int_t)r->n_request, "skipped",
                  (json_int_t)r->n_skipped, "answered", (json_int_t)r->n_answered, "failed",
                  (json_int_t)r->n_failed, "seconds", r->seconds, "load_s", s->load_s);
    json_t *work = work_json(r), *memory = memory_json(r, s);
    json_t *draft = draft_json(s, r->work.drafted_tokens, r->work.accepted_tokens);
    if (o == NULL || json_object_update(o, work) != 0 || json_object_update(o, memory) != 0 ||
        json_object_update(o, draft) != 0)
        cli_fail("no memory for the figures");
    json_decref(work);
    json_decref(memory);
    json_decref(draft);
    if (is_standard(path)) {
        cli_json_print(o, JSON_INDENT(2));
        return true;
    }
    pith_error err;
    struct eval_text text = {0};
    eval_text_add_json(&text, o, JSON_INDENT(2));
    eval_text_add(&text, "\n");
    if (text.failed)
        cli_fail("no memory for the figures");
    bool ok = eval_write_file(path, &text, &err) == PITH_OK;
    if (!ok)
        cli_note("--json: %s", err.message);
    eval_text_free(&text);
    json_decref(o);
    return ok;
}

static void print_memory(const struct batch_report *r, const struct session *s)
{
    char saved[32];
    draft_report(s, r->work.drafted_tokens, r->work.accepted_tokens);
    if (r->keep.rounds > 0 || r->keep.evicted > 0)
        fprintf(stderr, "keep     %8.3f s   %s: %lld rounds, %lld entries evicted\n",
                r->keep.seconds, or_none(s->params.keep), (long long)r->keep.rounds,
                (long long)r->keep.evicted);
    if (s->params.share != NULL && r->share.steps_closed > 0)
        fprintf(stderr,
                "share    %8.3f s   %s: %lld of %lld steps like an earlier one, %lld pages shared, "
                "%s saved\n",
                r->share.seconds, s->params.share, (long long)r->share.steps_similar,
                (long long)r->share.steps_closed, (long long)r->share.pages_shared,
                cli_bytes(r->share.bytes_saved, saved));
}

static void print_figures(const struct batch_report *r, const struct session *s)
{
    char peak[32], reserved[32], cached[32];
    const pith_scheduler_stats *w = &r->work;
    int64_t read = w->prompt_tokens + w->cached_tokens - w->recomputed_tokens;
    fprintf(stderr, "batch    %8.3f s   %lld requests: %lld answered, %lld failed", r->seconds,
            (long long)r->n_request, (long long)r->n_answered, (long long)r->n_failed);
    if (r->n_skipped > 0)
        fprintf(stderr, ", %lld were there already", (long long)r->n_skipped);
    fprintf(stderr, "\nprompt   %lld tokens, %.1f tokens/s; %lld more were found (%.1f %%)",
            (long long)w->prompt_tokens, per_s(w->prompt_tokens, r->seconds),
            (long long)w->cached_tokens, percent(w->cached_tokens, read));
    if (w->recomputed_tokens > 0)
        fprintf(stderr, "; %lld computed again", (long long)w->recomputed_tokens);
    fprintf(stderr, "\ngenerate %lld tokens, %.1f tokens/s; at most %d answers at once\n",
            (long long)w->generated_tokens, per_s(w->generated_tokens, r->seconds),
            w->peak_running);
    fprintf(stderr, "kv       at most %s of %s, %.1f %%; %lld times put back",
            cli_bytes(r->kv.peak_bytes, peak), cli_bytes(r->kv.reserved_bytes, reserved),
            percent(r->kv.peak_bytes, r->kv.reserved_bytes),
            (long long)(w->preempted_recompute + w->preempted_swap));
    if (w->preempted_swap > 0)
        fprintf(stderr, ", %lld of them to host memory", (long long)w->preempted_swap);
    fprintf(stderr, "\nprefix   %lld pages in all lanes, %s; %lld dropped\n",
            (long long)w->prefix_pages, cli_bytes(w->prefix_bytes, cached),
            (long long)w->prefix_dropped);
    print_memory(r, s);
}

bool batch_report_print(const struct batch_report *r, const struct session *s)
{
    if (!r->options->quiet)
        print_figures(r, s);
    return r->options->json == NULL || write_json(r, s);
}
