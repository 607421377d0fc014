/*
 * metrics.c - /metrics in Prometheus' text format: a table of names, and where their numbers are.
 */
#include <microhttpd.h>
#include <stdarg.h>
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
    double claimed;          /* of the budget */
    int64_t asked_tokens;    /* of prompts */
    int64_t n_batch, n_lost; /* of events.h */
    struct timings timing[N_TIMING];
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
           "Requests for which a policy, or layers with windows or states, allow no way back."),
    METRIC(COUNTER, run.reuse_short, "pith_reuse_short_total",
           "Requests that begin like what is parked for less than a page."),
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
    METRIC(GAUGE, claimed, "pith_kv_claimed_ratio",
           "Used over reserved, unused prefixes and parked conversations left out."),
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
    METRIC(COUNTER, n_batch, "pith_kv_events_total", "Batches of KV events that were sent."),
    METRIC(COUNTER, n_lost, "pith_kv_events_lost_total", "KV events that had no room to wait."),
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
    /* The names that vLLM's dashboards, routers and autoscalers know. vLLM itself has dropped the
       older ones, but its production stack's router still reads them. */
    METRIC(GAUGE, run.n_running, "vllm:num_requests_running", "Answers that run."),
    METRIC(GAUGE, run.n_waiting, "vllm:num_requests_waiting", "Requests in the queue."),
    METRIC(GAUGE, claimed, "vllm:kv_cache_usage_perc", "pith_kv_claimed_ratio: 1 is full."),
    METRIC(GAUGE, claimed, "vllm:gpu_cache_usage_perc", "The same, by its older name."),
    METRIC(COUNTER, run.prompt_tokens, "vllm:prompt_tokens_total", "Prompt tokens computed."),
    METRIC(COUNTER, run.generated_tokens, "vllm:generation_tokens_total", "Tokens of answers."),
    METRIC(COUNTER, asked_tokens, "vllm:prefix_cache_queries_total", "Tokens of prompts."),
    METRIC(COUNTER, run.cached_tokens, "vllm:prefix_cache_hits_total",
           "Of them, those that were there."),
    METRIC(COUNTER, asked_tokens, "vllm:gpu_prefix_cache_queries_total",
           "Tokens of prompts, by an older name."),
    METRIC(COUNTER, run.cached_tokens, "vllm:gpu_prefix_cache_hits_total",
           "Of them, those that were there, by an older name."),
    METRIC(COUNTER, preempted, "vllm:num_preemptions_total",
           "Answers put back for want of memory."),
};

#define N_METRIC (sizeof(metrics) / sizeof(metrics[0]))
#define LINE_BYTES 1024
#define LABEL_BYTES 520 /* a model's name, and each of its bytes escaped */
#define NAME_MAX_BYTES 240

/* vLLM's bounds, in seconds; 0 ends a list. */
static const double first_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                      0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                      20,    40,    80,   160,  640,  2560, 0};
static const double token_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                      0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80,  0};
static const double whole_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                                      30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680, 0};

struct histogram {
    enum timing what;
    const double *bounds;
    const char *name;
    const char *help;
};

/* The first of each timing has the bounds that count. */
static const struct histogram histograms[] = {
    {TIMING_FIRST, first_bounds, "vllm:time_to_first_token_seconds", "Until the first token."},
    {TIMING_TOKEN, token_bounds, "vllm:time_per_output_token_seconds", "From token to token."},
    {TIMING_TOKEN, token_bounds, "vllm:inter_token_latency_seconds", "The same, by a newer name."},
    {TIMING_WHOLE, whole_bounds, "vllm:e2e_request_latency_seconds", "Of whole requests."},
    {TIMING_QUEUE, whole_bounds, "vllm:request_queue_time_seconds", "In the queue."},
};

#define N_HISTOGRAM (sizeof(histograms) / sizeof(histograms[0]))

void metrics_note(struct server *s, enum timing what, double seconds)
{
    size_t h = 0;
    int i = 0;
    while (histograms[h].what != what)
        h++;
    while (histograms[h].bounds[i] > 0.0 && seconds > histograms[h].bounds[i])
        i++;
    pthread_mutex_lock(&s->lock);
    s->timing[what].count[i]++;
    s->timing[what].n++;
    s->timing[what].sum += seconds;
    pthread_mutex_unlock(&s->lock);
}

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
    memcpy(n->timing, s->timing, sizeof(n->timing));
    int64_t claimed = s->claimed_bytes;
    pthread_mutex_unlock(&s->lock);
    n->total = n->all.total_bytes + n->draft.total_bytes;
    n->preempted = n->run.preempted_recompute + n->run.preempted_swap;
    events_count(s->events, &n->n_batch, &n->n_lost);
    n->asked_tokens = n->run.prompt_tokens + n->run.cached_tokens;
    if (n->kv.reserved_bytes > 0) {
        n->usage = (double)n->kv.used_bytes / (double)n->kv.reserved_bytes;
        n->claimed = (double)claimed / (double)n->kv.reserved_bytes;
    }
}

/* All lines have the model's name as a label: label [LABEL_BYTES]. A quote, a backslash and the end
   of a line are escaped; a name that is too long is cut. */
static void write_label(const struct server *s, char *label)
{
    const char *name = server_model_name(s);
    char *out = label + sprintf(label, "model_name=\"");
    for (size_t i = 0; name[i] != '\0' && i < NAME_MAX_BYTES; i++) {
        if (name[i] == '"' || name[i] == '\\' || name[i] == '\n')
            *out++ = '\\';
        *out++ = name[i] == '\n' ? 'n' : name[i];
    }
    strcpy(out, "\"");
}

/* ---- lines ---- */

struct page {
    struct serve_bytes text;
    char label[LABEL_BYTES];
    bool failed; /* for want of memory */
};

static void add_line(struct page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add_line(struct page *p, const char *fmt, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    if (len < 0 || len >= LINE_BYTES || !serve_bytes_add(&p->text, line, (size_t)len))
        p->failed = true;
}

static void add_head(struct page *p, const char *name, const char *help, const char *type)
{
    add_line(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void add_of_device(struct page *p, const char *name, const char *device, int64_t bytes)
{
    add_line(p, "%s{%s,device=\"%s\"} %lld\n", name, p->label, device, (long long)bytes);
}

/* Bytes that the process has taken of each device, and has pinned of the processor's memory for
   it. */
static void add_devices(struct page *p)
{
    static const char used[] = "pith_device_used_bytes", pinned[] = "pith_device_pinned_bytes";
    pith_device_info d;
    add_head(p, used, "Weights, pages (the cpu's as reserved), and buffers.", "gauge");
    for (int32_t i = 0; pith_device_get(i, &d) == PITH_OK; i++)
        add_of_device(p, used, d.name, d.used_bytes);
    add_head(p, pinned, "Memory of the cpu pinned for sequences that are swapped.", "gauge");
    for (int32_t i = 0; pith_device_get(i, &d) == PITH_OK; i++)
        add_of_device(p, pinned, d.name, d.pinned_bytes);
}

/* Pages that are used on each device, which sum to pith_kv_used_bytes, and how many there may
   be. */
static void add_pages(struct page *p, const struct numbers *n)
{
    static const char used[] = "pith_kv_device_used_bytes", most[] = "pith_kv_device_most_bytes";
    add_head(p, used, "Pages in use on a device.", "gauge");
    for (int32_t i = 0; i < n->n_pages; i++)
        add_of_device(p, used, n->pages[i].device, n->pages[i].used_bytes);
    add_head(p, most, "Pages that a device may have.", "gauge");
    for (int32_t i = 0; i < n->n_pages; i++)
        add_of_device(p, most, n->pages[i].device, n->pages[i].most_bytes);
}

static void add_histogram(struct page *p, const struct histogram *h, const struct timings *t)
{
    int64_t below = 0;
    add_head(p, h->name, h->help, "histogram");
    for (int i = 0; h->bounds[i] > 0.0; i++) {
        below += t->count[i];
        add_line(p, "%s_bucket{%s,le=\"%g\"} %lld\n", h->name, p->label, h->bounds[i],
                 (long long)below);
    }
    add_line(p, "%s_bucket{%s,le=\"+Inf\"} %lld\n", h->name, p->label, (long long)t->n);
    add_line(p, "%s_sum{%s} %.9g\n", h->name, p->label, t->sum);
    add_line(p, "%s_count{%s} %lld\n", h->name, p->label, (long long)t->n);
}

/* A router's size of a block is our page; there are as many as hold a page of tokens in all
   lanes. */
static void add_cache_info(struct page *p, const struct server *s, const struct numbers *n)
{
    static const char name[] = "vllm:cache_config_info";
    add_head(p, name, "Tokens of a page, and how many pages of all layers there are.", "gauge");
    add_line(p, "%s{%s,block_size=\"%d\",num_gpu_blocks=\"%lld\",enable_prefix_caching=\"%s\"} 1\n",
             name, p->label, n->kv.page_len, (long long)s->config.n_block,
             s->config.schedule.no_prefix ? "False" : "True");
}

void metrics_answer(struct exchange *ex)
{
    struct numbers n;
    struct page p = {.failed = false};
    collect(ex->server, &n);
    write_label(ex->server, p.label);
    for (size_t i = 0; i < N_METRIC; i++) {
        const struct metric *m = &metrics[i];
        add_head(&p, m->name, m->help, m->kind == COUNTER ? "counter" : "gauge");
        add_line(&p, "%s{%s} %.17g\n", m->name, p.label, value_of(m, &n));
    }
    add_devices(&p);
    add_pages(&p, &n);
    add_cache_info(&p, ex->server, &n);
    for (size_t i = 0; i < N_HISTOGRAM; i++)
        add_histogram(&p, &histograms[i], &n.timing[histograms[i].what]);
    if (p.failed)
        exchange_abort(ex);
    else
        exchange_text(ex, "text/plain; version=0.0.4", p.text.data, p.text.len);
    serve_bytes_free(&p.text);
}
