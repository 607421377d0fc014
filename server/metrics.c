/*
 * metrics.c - /metrics in Prometheus' text format: a table of names, and where their numbers are.
 */
#include <microhttpd.h>
#include <stdio.h>

#include "routes.h"
#include "state.h"

struct numbers {
    pith_scheduler_stats run;
    pith_kv_stats kv;
    pith_memory_stats all;
    const struct server_counts *count;
    double uptime_s;
};

enum kind { COUNTER, GAUGE };

struct metric {
    enum kind kind;
    const char *name;
    const char *help;
    double (*value)(const struct numbers *n);
};

#define VALUE(name, expression)                                                                    \
    static double value_##name(const struct numbers *n)                                            \
    {                                                                                              \
        return (double)(expression);                                                               \
    }

VALUE(requests, atomic_load(&n->count->n_request))
VALUE(refused, atomic_load(&n->count->n_refused))
VALUE(gone, atomic_load(&n->count->n_gone))
VALUE(dropped, atomic_load(&n->count->n_dropped))
VALUE(done, n->run.n_done)
VALUE(cancelled, n->run.n_cancelled)
VALUE(failed, n->run.n_failed)
VALUE(queue_full, n->run.n_refused)
VALUE(waiting, n->run.n_waiting)
VALUE(running, n->run.n_running)
VALUE(prompt, n->run.prompt_tokens)
VALUE(cached, n->run.cached_tokens)
VALUE(generated, n->run.generated_tokens)
VALUE(drafted, n->run.drafted_tokens)
VALUE(accepted, n->run.accepted_tokens)
VALUE(recomputed, n->run.recomputed_tokens)
VALUE(preempted, n->run.preempted_recompute + n->run.preempted_swap)
VALUE(swapped, n->run.swapped_bytes)
VALUE(prefix, n->run.prefix_bytes)
VALUE(prefix_dropped, n->run.prefix_dropped)
VALUE(parked, n->run.n_parked)
VALUE(parked_bytes, n->run.parked_bytes)
VALUE(parked_dropped, n->run.parked_dropped)
VALUE(parked_found, n->run.parked_found)
VALUE(parked_tokens, n->run.parked_tokens)
VALUE(reuse_differs, n->run.reuse_differs)
VALUE(reuse_policy, n->run.reuse_policy)
VALUE(reuse_dropped, n->run.reuse_dropped)
VALUE(step_seconds, n->run.seconds)
VALUE(steps, n->run.n_step)
VALUE(evicted, atomic_load(&n->count->evicted))
VALUE(reserved, n->kv.reserved_bytes)
VALUE(used, n->kv.used_bytes)
VALUE(peak, n->kv.peak_bytes)
VALUE(live, n->kv.live_bytes)
VALUE(shared, n->kv.shared_bytes)
VALUE(saved, n->kv.saved_bytes)
VALUE(table, n->kv.table_bytes)
VALUE(part_lanes, n->all.lane_bytes)
VALUE(part_guests, n->all.guest_bytes)
VALUE(part_states, n->all.state_bytes)
VALUE(part_idle, n->all.idle_bytes)
VALUE(part_tier, n->all.tier_bytes)
VALUE(part_text, n->all.text_bytes)
VALUE(part_aside, n->all.aside_bytes)
VALUE(part_tables, n->all.table_bytes)
VALUE(part_marks, n->all.mark_bytes)
VALUE(part_policy, n->all.policy_bytes)
VALUE(part_drafts, n->all.draft_bytes)
VALUE(part_work, n->all.work_bytes)
VALUE(total, n->all.total_bytes)
VALUE(budget, n->all.budget_bytes)
VALUE(tier_file, n->all.file_bytes)
VALUE(ratio,
      n->kv.reserved_bytes > 0 ? (double)n->kv.used_bytes / (double)n->kv.reserved_bytes : 0.0)
VALUE(uptime, n->uptime_s)

static const struct metric metrics[] = {
    {COUNTER, "pith_http_requests_total", "Requests of any kind.", value_requests},
    {COUNTER, "pith_http_refused_total", "Requests answered with 4xx or 5xx.", value_refused},
    {COUNTER, "pith_http_gone_total", "Clients that hung up before the end.", value_gone},
    {COUNTER, "pith_http_dropped_total", "Readers that were too slow.", value_dropped},
    {COUNTER, "pith_requests_done_total", "Requests to the model that ended.", value_done},
    {COUNTER, "pith_requests_cancelled_total", "Of them, cancelled or late.", value_cancelled},
    {COUNTER, "pith_requests_failed_total", "Of them, failed.", value_failed},
    {COUNTER, "pith_requests_refused_total", "Refused by the scheduler.", value_queue_full},
    {GAUGE, "pith_requests_waiting", "Requests in the queue.", value_waiting},
    {GAUGE, "pith_answers_running", "Answers that run.", value_running},
    {COUNTER, "pith_prompt_tokens_total", "Prompt tokens computed.", value_prompt},
    {COUNTER, "pith_cached_tokens_total", "Prompt tokens that were there.", value_cached},
    {COUNTER, "pith_generated_tokens_total", "Tokens of answers.", value_generated},
    {COUNTER, "pith_drafted_tokens_total", "Tokens that were drafted.", value_drafted},
    {COUNTER, "pith_accepted_tokens_total", "Of them, those that came true.", value_accepted},
    {COUNTER, "pith_recomputed_tokens_total", "Tokens computed again.", value_recomputed},
    {COUNTER, "pith_preempted_total", "Answers put back for want of memory.", value_preempted},
    {GAUGE, "pith_swapped_bytes", "Answers' pages in host memory.", value_swapped},
    {GAUGE, "pith_prefix_bytes", "Cached prefixes that nobody uses.", value_prefix},
    {COUNTER, "pith_prefix_dropped_total", "Cached pages that made room.", value_prefix_dropped},
    {GAUGE, "pith_parked_slots", "Conversations that are parked.", value_parked},
    {GAUGE, "pith_parked_bytes", "Pages of them.", value_parked_bytes},
    {COUNTER, "pith_parked_dropped_total", "Conversations that made room.", value_parked_dropped},
    {COUNTER, "pith_conversations_found_total", "Requests that went on from a parked conversation.",
     value_parked_found},
    {COUNTER, "pith_conversation_tokens_total", "Prompt tokens of parked conversations.",
     value_parked_tokens},
    {COUNTER, "pith_reuse_differs_total", "Requests that say something else than what is parked.",
     value_reuse_differs},
    {COUNTER, "pith_reuse_policy_total", "Requests for which a policy allows no way back.",
     value_reuse_policy},
    {COUNTER, "pith_reuse_dropped_total", "Requests whose conversation had made room.",
     value_reuse_dropped},
    {COUNTER, "pith_step_seconds_total", "Seconds in steps.", value_step_seconds},
    {COUNTER, "pith_steps_total", "Steps.", value_steps},
    {COUNTER, "pith_kv_evicted_entries_total", "Entries evicted, of answers that ended.",
     value_evicted},
    {GAUGE, "pith_kv_reserved_bytes", "The KV memory's budget.", value_reserved},
    {GAUGE, "pith_kv_used_bytes", "Pages in use.", value_used},
    {GAUGE, "pith_kv_peak_bytes", "Most pages ever in use.", value_peak},
    {GAUGE, "pith_kv_live_bytes", "Of used: entries that a lane sees.", value_live},
    {GAUGE, "pith_kv_shared_bytes", "Of used: pages in several tables.", value_shared},
    {GAUGE, "pith_kv_saved_bytes", "What sharing saves.", value_saved},
    {GAUGE, "pith_kv_table_bytes", "Page tables, beside the pages.", value_table},
    {GAUGE, "pith_kv_usage_ratio", "Used over reserved.", value_ratio},
    /* All that grows with conversations: the parts sum to the total. */
    {GAUGE, "pith_memory_budget_bytes", "--kv-memory; 0: nothing was said.", value_budget},
    {GAUGE, "pith_memory_total_bytes", "All parts together.", value_total},
    {GAUGE, "pith_memory_lanes_bytes", "Pages of sequences.", value_part_lanes},
    {GAUGE, "pith_memory_guests_bytes", "Pages of entries that recall brought back.",
     value_part_guests},
    {GAUGE, "pith_memory_states_bytes", "States of recurrent layers.", value_part_states},
    {GAUGE, "pith_memory_idle_bytes", "Free pages that the next tokens take.", value_part_idle},
    {GAUGE, "pith_memory_tier_bytes", "Evicted entries that recall keeps.", value_part_tier},
    {GAUGE, "pith_memory_text_bytes", "Text that recall keeps.", value_part_text},
    {GAUGE, "pith_memory_aside_bytes", "Sequences in host memory.", value_part_aside},
    {GAUGE, "pith_memory_tables_bytes", "Tables of pages, tokens and evicted entries.",
     value_part_tables},
    {GAUGE, "pith_memory_marks_bytes", "Floats beside entries.", value_part_marks},
    {GAUGE, "pith_memory_policy_bytes", "What policies remember.", value_part_policy},
    {GAUGE, "pith_memory_drafts_bytes", "What drafts are looked up in.", value_part_drafts},
    {GAUGE, "pith_memory_work_bytes", "Buffers of rounds and recalls.", value_part_work},
    {GAUGE, "pith_tier_file_bytes", "Recall's file on disk.", value_tier_file},
    {GAUGE, "pith_uptime_seconds", "Seconds since the start.", value_uptime},
    /* The names that llama-server's dashboards know. */
    {COUNTER, "llamacpp:prompt_tokens_total", "Prompt tokens computed.", value_prompt},
    {COUNTER, "llamacpp:tokens_predicted_total", "Tokens of answers.", value_generated},
    {COUNTER, "llamacpp:prompt_tokens_cached_total", "Prompt tokens that were there.",
     value_cached},
    {COUNTER, "llamacpp:n_decode_total", "Steps.", value_steps},
    {GAUGE, "llamacpp:requests_processing", "Answers that run.", value_running},
    {GAUGE, "llamacpp:requests_deferred", "Requests in the queue.", value_waiting},
    {GAUGE, "llamacpp:kv_cache_usage_ratio", "Used over reserved.", value_ratio},
};

#define N_METRIC (sizeof(metrics) / sizeof(metrics[0]))
#define LINE_BYTES 320

void metrics_answer(struct exchange *ex)
{
    struct server *s = ex->server;
    struct numbers n = {.count = &s->count};
    struct serve_bytes text = {0};
    char line[LINE_BYTES];
    bool ok = true;
    n.uptime_s = server_now() - s->started_s;
    pith_scheduler_get_stats(s->scheduler, &n.run);
    pthread_mutex_lock(&s->lock);
    n.kv = s->kv;
    n.all = s->memory;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < N_METRIC && ok; i++) {
        const struct metric *m = &metrics[i];
        int len =
            snprintf(line, sizeof(line), "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", m->name, m->help,
                     m->name, m->kind == COUNTER ? "counter" : "gauge", m->name, m->value(&n));
        ok = serve_bytes_add(&text, line, (size_t)len);
    }
    if (ok)
        exchange_text(ex, "text/plain; version=0.0.4", text.data, text.len);
    else
        exchange_abort(ex);
    serve_bytes_free(&text);
}
