/*
 * reply_figures.c - what replies say in numbers: usage, times, what eviction lost, and why an
 * answer ended.
 */
#include "serve/api/reply_form.h"

#include <time.h>

int64_t reply_sum_generated(const struct serve_reply *reply)
{
    int64_t n = 0;
    for (int32_t i = 0; i < reply->n_answer; i++)
        n += reply->answer[i].n_generated;
    return n;
}

/* Answers to one prompt have it in common. */
int64_t reply_sum_cached(const struct serve_reply *reply)
{
    int64_t n = 0;
    for (int32_t i = 0; i < reply->n_answer; i += reply->r->n_answer)
        n += reply->answer[i].n_cached;
    return n;
}

bool reply_calls(const struct reply_answer *a)
{
    return a->n_call > 0;
}

bool reply_ends_in_calls(const struct reply_answer *a)
{
    return reply_calls(a) && !a->call[a->n_call - 1].cut;
}

bool reply_has_its_call(const struct reply_answer *a)
{
    const struct serve_request *r = a->reply->r;
    return r->calls.one && r->format.grammar == NULL && a->n_call > 0 && a->call[0].ended;
}

/* Memory that ran out is told as a length that was reached, which it is for the client. */
const char *reply_finish(const struct reply_answer *a)
{
    if (a->reason != PITH_STOP_END && a->reason != PITH_STOP_STRING)
        return "length";
    return reply_ends_in_calls(a) ? "tool_calls" : "stop";
}

/* How much of the prompt was reused, from where, and why no more; no reason where all was. Of
   several prompts the first says why. */
static void set_reuse(struct serve_reply *reply, json_t *object)
{
    static const char *const words[] = {
        [PITH_REUSE_NEW] = "new",         [PITH_REUSE_DIFFERS] = "differs",
        [PITH_REUSE_DROPPED] = "dropped", [PITH_REUSE_SALT] = "salt",
        [PITH_REUSE_POLICY] = "policy",   [PITH_REUSE_OFF] = "off",
        [PITH_REUSE_SHORT] = "short",
    };
    const struct reply_answer *a = &reply->answer[0];
    json_int_t cached = (json_int_t)reply_sum_cached(reply), parked = 0;
    for (int32_t i = 0; i < reply->n_answer; i += reply->r->n_answer)
        parked += reply->answer[i].n_from_park;
    reply_set(reply, object, "cached_tokens", json_integer(cached));
    reply_set(reply, object, "read_tokens",
              json_integer((json_int_t)serve_request_n_prompt(reply->r) - cached));
    if (cached > 0)
        reply_set(reply, object, "cache_from", json_string(parked > 0 ? "conversation" : "prefix"));
    if (a->reuse == PITH_REUSE_NONE)
        return;
    reply_set(reply, object, "cache_why", json_string(words[a->reuse]));
    if (a->differs_at >= 0 && (a->reuse == PITH_REUSE_DIFFERS || a->reuse == PITH_REUSE_POLICY ||
                               a->reuse == PITH_REUSE_SHORT))
        reply_set(reply, object, "cache_differs_at", json_integer(a->differs_at));
}

/* The most tokens that answers could get, where that is less than was asked for. */
static void set_ceiling(struct serve_reply *reply, json_t *object)
{
    int32_t least = reply->r->params.n_predict;
    for (int32_t i = 0; i < reply->n_answer; i++) {
        const struct reply_answer *a = &reply->answer[i];
        least = a->done && a->n_predict > 0 && a->n_predict < least ? a->n_predict : least;
    }
    if (least < reply->r->params.n_predict)
        reply_set(reply, object, "max_tokens", json_integer(least));
}

/* Bytes of KV memory at the end, beside the bytes of the full cache. They are said where a
   policy makes them differ, or the request has a budget of its own. */
static void set_bytes(struct serve_reply *reply, json_t *object)
{
    int64_t held = 0, full = 0, tier = 0;
    for (int32_t i = 0; i < reply->n_answer; i++) {
        held += reply->answer[i].held_bytes;
        full += reply->answer[i].full_bytes;
        tier += reply->answer[i].recalled.ram_bytes;
    }
    if (full == 0 || (reply->answer[0].kept.budget < 0 && reply->r->cache.budget == NULL))
        return;
    reply_set(reply, object, "kv_bytes", json_integer((json_int_t)held));
    reply_set(reply, object, "tier_bytes", json_integer((json_int_t)tier));
    reply_set(reply, object, "full_bytes", json_integer((json_int_t)full));
}

/* Entries of all lanes that a keep policy evicted are lost to the answer. That is said with the
   usage, and not at all where there are none. Beside it, what recall has brought back, and what
   was reused: of a batch nothing goes on. */
void reply_set_kept(struct serve_reply *reply, json_t *usage)
{
    int64_t rounds = 0, evicted = 0, live = 0, recalls = 0, guests = 0, text = 0;
    double doubt = 0.0;
    for (int32_t i = 0; i < reply->n_answer; i++) {
        rounds += reply->answer[i].kept.rounds;
        evicted += reply->answer[i].kept.evicted;
        live += reply->answer[i].kept.live;
        const pith_recall_stats *r = &reply->answer[i].recalled;
        recalls += r->ram_bytes + r->file_bytes > 0 ? r->recalls : 0; /* of entries */
        guests += r->guests;
        doubt = r->doubt > doubt ? r->doubt : doubt;
        text += reply->answer[i].n_recalled;
    }
    json_t *pith = reply_need(reply, json_object());
    set_bytes(reply, pith);
    if (rounds > 0 || evicted > 0) {
        reply_set(reply, pith, "keep_rounds", json_integer((json_int_t)rounds));
        reply_set(reply, pith, "evicted_entries", json_integer((json_int_t)evicted));
        reply_set(reply, pith, "kept_entries", json_integer((json_int_t)live));
        reply_set(reply, pith, "budget", json_integer(reply->answer[0].kept.budget));
    }
    if (!reply->r->setup->no_timings)
        set_reuse(reply, pith);
    set_ceiling(reply, pith);
    if (json_object_size(pith) == 0) {
        json_decref(pith);
        return;
    }
    if (recalls > 0)
        reply_set(reply, pith, "recalled_entries", json_integer((json_int_t)guests));
    if (recalls > 0)
        reply_set(reply, pith, "doubt", json_real(doubt));
    if (text > 0)
        reply_set(reply, pith, "recalled_tokens", json_integer((json_int_t)text));
    reply_set(reply, usage, "pith", pith);
}

json_t *reply_usage(struct serve_reply *reply)
{
    json_int_t n_prompt = (json_int_t)serve_request_n_prompt(reply->r);
    json_int_t generated = (json_int_t)reply_sum_generated(reply);
    json_t *usage = reply_need(
        reply, json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", n_prompt, "completion_tokens",
                         generated, "total_tokens", n_prompt + generated, "prompt_tokens_details",
                         "cached_tokens", (json_int_t)reply_sum_cached(reply)));
    reply_set_kept(reply, usage);
    return usage;
}

static void set_speed(struct serve_reply *reply, json_t *timings, const char *per_token,
                      const char *per_second, int64_t n, double seconds)
{
    reply_set(reply, timings, per_token, json_real(n > 0 ? seconds * 1000.0 / (double)n : 0.0));
    reply_set(reply, timings, per_second, json_real(seconds > 0.0 ? (double)n / seconds : 0.0));
}

/* The first token of an answer comes with its prompt: n tokens of n_answer take fewer steps. */
static void set_generation(struct serve_reply *reply, json_t *timings, int64_t n, int64_t n_answer,
                           double seconds)
{
    int64_t n_step = n > n_answer ? n - n_answer : 0;
    set_speed(reply, timings, "predicted_per_token_ms", "predicted_per_second", n_step, seconds);
}

/* Prompts and answers that ran at the same time: the longest is the time of all. */
json_t *reply_timings(struct serve_reply *reply)
{
    int64_t n_prompt = 0, generated = reply_sum_generated(reply), draft = 0, accepted = 0;
    double prompt_s = 0.0, generate_s = 0.0;
    for (int32_t i = 0; i < reply->n_answer; i++) {
        const struct reply_answer *a = &reply->answer[i];
        n_prompt += a->n_prompt;
        draft += a->n_draft;
        accepted += a->n_draft_accepted;
        prompt_s = a->prompt_s > prompt_s ? a->prompt_s : prompt_s;
        generate_s = a->generate_s > generate_s ? a->generate_s : generate_s;
    }
    json_t *t = reply_need(reply, json_pack("{s:I, s:I, s:f, s:I, s:f}", "cache_n",
                                            (json_int_t)reply_sum_cached(reply), "prompt_n",
                                            (json_int_t)n_prompt, "prompt_ms", prompt_s * 1000.0,
                                            "predicted_n", (json_int_t)generated, "predicted_ms",
                                            generate_s * 1000.0));
    set_speed(reply, t, "prompt_per_token_ms", "prompt_per_second", n_prompt, prompt_s);
    set_generation(reply, t, generated, reply->n_answer, generate_s);
    if (draft > 0) {
        reply_set(reply, t, "draft_n", json_integer((json_int_t)draft));
        reply_set(reply, t, "draft_n_accepted", json_integer((json_int_t)accepted));
    }
    return t;
}

double reply_clock_s(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* While an answer runs: what was found of the prompt is known at its end only. */
json_t *reply_timings_so_far(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    int64_t n_prompt = reply->r->prompts.item[a->index / reply->r->n_answer].n_id;
    double prompt_s = a->first_s - reply->start_s, generate_s = reply_clock_s() - a->first_s;
    json_t *t =
        reply_need(reply, json_pack("{s:I, s:f, s:i, s:f}", "prompt_n", (json_int_t)n_prompt,
                                    "prompt_ms", prompt_s * 1000.0, "predicted_n", (int)a->n_seen,
                                    "predicted_ms", generate_s * 1000.0));
    set_speed(reply, t, "prompt_per_token_ms", "prompt_per_second", n_prompt, prompt_s);
    set_generation(reply, t, a->n_seen, 1, generate_s);
    return t;
}
