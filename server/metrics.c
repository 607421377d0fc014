/*
 * metrics.c - /metrics in Prometheus' text format: a table of names, and where their numbers are.
 */
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>

#include "routes.h"
#include "state.h"

struct numbers {
    pith_scheduler_stats run;
    pith_kv_stats kv;
    pith_kv_device pages[SERVER_DEVICES]; /* [n_pages] */
    int32_t n_pages;
    pith_memory_stats all;
    pith_memory_stats draft; /* of the drafting model's engine; zero without one */
    struct {
        int64_t n_request, n_refused, n_gone, n_dropped, evicted;
    } http;
    int64_t preempted;
    int64_t total; /* of both engines */
    double usage;
    double uptime_s;
};

enum kind { COUNTER, GAUGE };
enum type { INT32, INT64, DOUBLE };

struct metric {
    enum kind kind;
    enum type type;
    size_t offset; /* in struct numbers */
    const char *name;
    const char *help;
};

#define TYPE_OF(field)                                                                             \
    _Generic(((struct numbers *)0)->field, int32_t : INT32, int64_t : INT64, double : DOUBLE)
#define METRIC(kind, field, name, help)                                                            \
    {                                                                                              \
        kind, TYPE_OF(field), offsetof(struct numbers, field), name, help                          \
    }

static const struct metric metrics[] = {
    METRIC(COUNTER, http.n_request, "pith_http_requests_total", "Requests of any kind."),
    METRIC(COUNTER, http.n_refused, "pith_http_refused_total",
           "Requests answered with 4xx or 5xx."),
    METRIC(COUNTER, http.n_gone, "pith_http_gone_total", "Clients that hung up before the end."),
    METRIC(COUNTER, http.n_dropped, "pith_http_dropped_total", "Readers that were too slow."),
    METRIC(COUNTER, run.n_done, "pith_requests_done_total", "Requests to the model that ended."),
    METRIC(COUNTER, run.n_cancelled, "pith_requests_cancelled_total",
           "Of them, cancelled or late."),
    METRIC(COUNTER, run.n_failed, "pith_requests_failed_total", "Of them, failed."),
    METRIC(COUNTER, run.n_refused, "pith_requests_refused_total", "Refused by the scheduler."),
    METRIC(GAUGE, run.n_waiting, "pith_requests_waiting", "Requests in the queue."),
    METRIC(GAUGE, run.n_running, "pith_answers_running", "Answers that run."),
    METRIC(COUNTER, run.prompt_tokens, "pith_prompt_tokens_total", "Prompt tokens computed."),
    METRIC(COUNTER, run.cached_tokens, "pith_cached_tokens_total",
           "Prompt tokens that were there."),
    METRIC(COUNTER, run.generated_tokens, "pith_generated_tokens_total", "Tokens of answers."),
    METRIC(COUNTER, run.drafted_tokens, "pith_drafted_tokens_total", "Tokens that were drafted."),
    METRIC(COUNTER, run.accepted_tokens, "pith_accepted_tokens_total",
           "Of them, those that came true."),
    METRIC(COUNTER, run.recomputed_tokens, "pith_recomputed_tokens_total",
           "Tokens computed again."),
    METRIC(COUNTER, preempted, "pith_preempted_total", "Answers put back for want of memory."),
    METRIC(GAUGE, run.swapped_bytes, "pith_swapped_bytes",
           "Pages of answers and parked conversations in host memory."),
    METRIC(GAUGE, run.prefix_bytes, "pith_prefix_bytes", "Cached prefixes that are not in use."),
    METRIC(COUNTER, run.prefix_dropped, "pith_prefix_dropped_total",
           "Cached pages that made room."),
    METRIC(GAUGE, run.n_parked, "pith_parked_slots", "Conversations that are parked."),
    METRIC(GAUGE, run.parked_bytes, "pith_parked_bytes", "Pages of them."),
    METRIC(GAUGE, run.n_parked_swapped, "pith_parked_swapped", "Of them, those in host memory."),
    METRIC(COUNTER, run.parked_dropped, "pith_parked_dropped_total",
           "Conversations that made room."),
    METRIC(COUNTER, run.parked_found, "pith_conversations_found_total",
           "Requests that went on from a parked conversation."),
    METRIC(COUNTER, run.parked_tokens, "pith_conversation_tokens_total",
           "Prompt tokens of parked conversations."),
    METRIC(COUNTER, run.reuse_differs, "pith_reuse_differs_total",
           "Requests that say something else than what is parked."),
    METRIC(COUNTER, run.reuse_policy, "pith_reuse_policy_total",
           "Requests for which a policy allows no way back."),
    METRIC(COUNTER, run.reuse_dropped, "pith_reuse_dropped_total",
           "Requests whose conversation had made room."),
    METRIC(COUNTER, run.seconds, "pith_step_seconds_total", "Seconds in steps."),
    METRIC(COUNTER, run.n_step, "pith_steps_total", "Steps."),
    METRIC(COUNTER, http.evicted, "pith_kv_evicted_entries_total",
           "Entries evicted, of answers that ended."),
    METRIC(GAUGE, kv.reserved_bytes, "pith_kv_reserved_bytes", "The KV memory's budget."),
    METRIC(GAUGE, kv.used_bytes, "pith_kv_used_bytes", "Pages in use."),
    METRIC(GAUGE, kv.peak_bytes, "pith_kv_peak_bytes", "Most pages ever in use."),
    METRIC(GAUGE, kv.live_bytes, "pith_kv_live_bytes", "Of used: entries that a lane sees."),
    METRIC(GAUGE, kv.shared_bytes, "pith_kv_shared_bytes", "Of used: pages in several tables."),
    METRIC(GAUGE, kv.saved_bytes, "pith_kv_saved_bytes", "Bytes that sharing saves."),
    METRIC(GAUGE, kv.table_bytes, "pith_kv_table_bytes", "Page tables, beside the pages."),
    METRIC(GAUGE, usage, "pith_kv_usage_ratio", "Used over reserved."),
    /* KV memory: the parts sum to the total, but for drafts and logits, which stand beside it. */
    METRIC(GAUGE, all.budget_bytes, "pith_memory_budget_bytes",
           "--kv-memory; 0: nothing was said."),
    METRIC(GAUGE, total, "pith_memory_total_bytes", "All parts together."),
    METRIC(GAUGE, all.lane_bytes, "pith_memory_lanes_bytes", "Pages of sequences."),
    METRIC(GAUGE, all.guest_bytes, "pith_memory_guests_bytes",
           "Pages of entries that recall brought back."),
    METRIC(GAUGE, all.state_bytes, "pith_memory_states_bytes", "States of recurrent layers."),
    METRIC(GAUGE, all.idle_bytes, "pith_memory_idle_bytes",
           "Free pages that the next tokens take."),
    METRIC(GAUGE, all.tier_bytes, "pith_memory_tier_bytes", "Evicted entries that recall keeps."),
    METRIC(GAUGE, all.text_bytes, "pith_memory_text_bytes", "Text that recall keeps."),
    METRIC(GAUGE, all.aside_bytes, "pith_memory_aside_bytes", "Sequences in host memory."),
    METRIC(GAUGE, all.table_bytes, "pith_memory_tables_bytes",
           "Tables of pages, tokens and evicted entries."),
    METRIC(GAUGE, all.mark_bytes, "pith_memory_marks_bytes", "Floats beside entries."),
    METRIC(GAUGE, all.policy_bytes, "pith_memory_policy_bytes", "Memory of policies."),
    METRIC(GAUGE, all.draft_bytes, "pith_memory_drafts_bytes",
           "Indexes that drafts are looked up in, beside the total."),
    METRIC(GAUGE, all.logits_bytes, "pith_memory_logits_bytes",
           "Rows of logits, beside the total."),
    METRIC(GAUGE, draft.total_bytes, "pith_memory_draft_model_bytes",
           "Memory of the drafting model."),
    METRIC(GAUGE, all.work_bytes, "pith_memory_work_bytes", "Buffers of rounds and recalls."),
    METRIC(GAUGE, all.file_bytes, "pith_tier_file_bytes", "Recall's file on disk."),
    METRIC(GAUGE, uptime_s, "pith_uptime_seconds", "Seconds since the start."),
    /* The names that llama-server's dashboards know. */
    METRIC(COUNTER, run.prompt_tokens, "llamacpp:prompt_tokens_total", "Prompt tokens computed."),
    METRIC(COUNTER, run.generated_tokens, "llamacpp:tokens_predicted_total", "Tokens of answers."),
    METRIC(COUNTER, run.cached_tokens, "llamacpp:prompt_tokens_cached_total",
           "Prompt tokens that were there."),
    METRIC(COUNTER, run.n_step, "llamacpp:n_decode_total", "Steps."),
    METRIC(GAUGE, run.n_running, "llamacpp:requests_processing", "Answers that run."),
    METRIC(GAUGE, run.n_waiting, "llamacpp:requests_deferred", "Requests in the queue."),
    METRIC(GAUGE, usage, "llamacpp:kv_cache_usage_ratio", "Used over reserved."),
};

#define N_METRIC (sizeof(metrics) / sizeof(metrics[0]))
#define LINE_BYTES 320

static double value_of(const struct metric *m, const struct numbers *n)
{
    const void *at = (const char *)n + m->offset;
    if (m->type == DOUBLE)
        return *(const double *)at;
    return m->type == INT32 ? (double)*(const int32_t *)at : (double)*(const int64_t *)at;
}

static void collect(struct server *s, struct numbers *n)
{
    *n = (struct numbers){.uptime_s = server_now() - s->started_s};
    n->http.n_request = atomic_load(&s->count.n_request);
    n->http.n_refused = atomic_load(&s->count.n_refused);
    n->http.n_gone = atomic_load(&s->count.n_gone);
    n->http.n_dropped = atomic_load(&s->count.n_dropped);
    n->http.evicted = atomic_load(&s->count.evicted);
    pith_scheduler_get_stats(s->scheduler, &n->run);
    pthread_mutex_lock(&s->lock);
    n->kv = s->kv;
    memcpy(n->pages, s->pages, sizeof(n->pages));
    n->n_pages = s->n_pages;
    n->all = s->memory;
    n->draft = s->draft;
    pthread_mutex_unlock(&s->lock);
    n->total = n->all.total_bytes + n->draft.total_bytes;
    n->preempted = n->run.preempted_recompute + n->run.preempted_swap;
    if (n->kv.reserved_bytes > 0)
        n->usage = (double)n->kv.used_bytes / (double)n->kv.reserved_bytes;
}

/* The lines of a gauge that each device has. */
static bool add_head(struct serve_bytes *text, const char *name, const char *help)
{
    char line[LINE_BYTES];
    int len = snprintf(line, sizeof(line), "# HELP %s %s\n# TYPE %s gauge\n", name, help, name);
    return serve_bytes_add(text, line, (size_t)len);
}

static bool add_of_device(struct serve_bytes *text, const char *name, const char *device,
                          int64_t bytes)
{
    char line[LINE_BYTES];
    int len =
        snprintf(line, sizeof(line), "%s{device=\"%s\"} %lld\n", name, device, (long long)bytes);
    return serve_bytes_add(text, line, (size_t)len);
}

/* Bytes that the process has taken of each device, and has pinned of the processor's memory for it. */
static bool add_devices(struct serve_bytes *text)
{
    static const char used[] = "pith_device_used_bytes", pinned[] = "pith_device_pinned_bytes";
    pith_device_info d;
    bool ok = add_head(text, used, "Weights, pages (the cpu's as reserved), and buffers.");
    for (int32_t i = 0; ok && pith_device_get(i, &d) == PITH_OK; i++)
        ok = add_of_device(text, used, d.name, d.used_bytes);
    ok = ok && add_head(text, pinned, "Memory of the cpu pinned for sequences that are swapped.");
    for (int32_t i = 0; ok && pith_device_get(i, &d) == PITH_OK; i++)
        ok = add_of_device(text, pinned, d.name, d.pinned_bytes);
    return ok;
}

/* Pages that are used on each device, which sum to pith_kv_used_bytes, and how many there may be. */
static bool add_pages(struct serve_bytes *text, const struct numbers *n)
{
    static const char used[] = "pith_kv_device_used_bytes", most[] = "pith_kv_device_most_bytes";
    bool ok = add_head(text, used, "Pages in use on a device.");
    for (int32_t i = 0; ok && i < n->n_pages; i++)
        ok = add_of_device(text, used, n->pages[i].device, n->pages[i].used_bytes);
    ok = ok && add_head(text, most, "Pages that a device may have.");
    for (int32_t i = 0; ok && i < n->n_pages; i++)
        ok = add_of_device(text, most, n->pages[i].device, n->pages[i].most_bytes);
    return ok;
}

void metrics_answer(struct exchange *ex)
{
    struct numbers n;
    struct serve_bytes text = {0};
    char line[LINE_BYTES];
    bool ok = true;
    collect(ex->server, &n);
    for (size_t i = 0; i < N_METRIC && ok; i++) {
        const struct metric *m = &metrics[i];
        int len =
            snprintf(line, sizeof(line), "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", m->name, m->help,
                     m->name, m->kind == COUNTER ? "counter" : "gauge", m->name, value_of(m, &n));
        ok = serve_bytes_add(&text, line, (size_t)len);
    }
    if (ok && add_devices(&text) && add_pages(&text, &n))
        exchange_text(ex, "text/plain; version=0.0.4", text.data, text.len);
    else
        exchange_abort(ex);
    serve_bytes_free(&text);
}
