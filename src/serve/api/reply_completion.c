/*
 * reply_completion.c - the layout of llama-server's own /completion and /infill: flat objects, the
 * last of which has the settings and the times.
 */
#include "serve/api/reply_form.h"

#include <stdio.h>
#include <string.h>

static const struct serve_prompt *prompt_of(const struct reply_answer *a)
{
    return &a->reply->r->prompts.item[a->index / a->reply->r->n_answer];
}

static json_t *ids_json(struct reply_answer *a, size_t from)
{
    json_t *list = reply_need(a->reply, json_array());
    for (size_t i = from; i < a->n_id; i++)
        reply_append(a->reply, list, json_integer(a->ids[i]));
    return list;
}

static json_t *stops_json(struct serve_reply *reply, const pith_generate_params *p)
{
    json_t *all = reply_need(reply, json_array());
    for (int32_t i = 0; i < p->n_stop; i++)
        reply_append(reply, all, reply_string(reply, p->stop[i], p->stop_len[i]));
    return all;
}

/* All 64 bits, of which JSON's numbers have room where Jansson's have 63. */
static json_t *seed_json(struct serve_reply *reply, uint64_t seed)
{
    char digits[24];
    int n = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)seed);
    if (seed <= INT64_MAX)
        return json_integer((json_int_t)seed);
    return serve_json_number(&reply->numbers, digits, (size_t)n);
}

static json_t *settings_json(struct serve_reply *reply)
{
    const pith_generate_params *p = &reply->r->params;
    const pith_sample_params *s = &p->sample;
    return reply_need(
        reply,
        json_pack("{s:o, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:o, s:b, s:b, s:i, s:b}",
                  "seed", seed_json(reply, s->seed), "temperature", (double)s->temperature, "top_k",
                  (int)s->top_k, "top_p", (double)s->top_p, "min_p", (double)s->min_p,
                  "repeat_penalty", (double)s->repeat_penalty, "presence_penalty",
                  (double)s->presence_penalty, "frequency_penalty", (double)s->frequency_penalty,
                  "repeat_last_n", (int)s->penalty_last_n, "n_predict", (int)p->n_predict, "stop",
                  stops_json(reply, p), "ignore_eos", (int)p->ignore_end, "stream",
                  (int)reply->r->reply.stream, "n_probs",
                  (int)(reply->r->reply.top_logprobs > 0 ? reply->r->reply.top_logprobs : 0),
                  "post_sampling_probs", (int)reply->r->reply.after_sampling));
}

static const char *stop_type(const struct reply_answer *a)
{
    return a->reason == PITH_STOP_END ? "eos" : a->reason == PITH_STOP_STRING ? "word" : "limit";
}

/* Takes content and tokens over. */
static json_t *part(struct reply_answer *a, json_t *content, json_t *tokens, bool stop)
{
    return reply_need(
        a->reply, json_pack("{s:i, s:o, s:o, s:b, s:i, s:i, s:i}", "index", (int)a->index,
                            "content", content, "tokens", tokens, "stop", (int)stop, "id_slot",
                            (int)(a->done ? a->slot : a->reply->r->cache.slot), "tokens_predicted",
                            (int)(a->done ? a->n_generated : (int32_t)a->n_id), "tokens_evaluated",
                            (int)prompt_of(a)->n_id));
}

static void set_last(struct reply_answer *a, json_t *value)
{
    struct serve_reply *reply = a->reply;
    const struct serve_prompt *p = prompt_of(a);
    const char *model = reply_model(reply);
    size_t len = a->content.len;
    bool line = len > 0 && memchr(a->content.data, '\n', len) != NULL;
    reply_set(reply, value, "model", reply_string(reply, model, strlen(model)));
    reply_set(reply, value, "generation_settings", settings_json(reply));
    reply_set(reply, value, "prompt",
              reply_string(reply, p->text != NULL ? p->text : "", p->text != NULL ? p->len : 0));
    reply_set(reply, value, "has_new_line", json_boolean(line));
    reply_set(reply, value, "truncated", json_boolean(a->reason == PITH_STOP_FULL));
    reply_set(reply, value, "stop_type", json_string(stop_type(a)));
    reply_set(reply, value, "stopping_word", reply_stop(a, json_string("")));
    reply_set(reply, value, "tokens_cached", json_integer(a->n_cached));
    reply_set(reply, value, "timings", reply_timings(reply));
    reply_set_kept(reply, value);
}

static void set_probabilities(struct reply_answer *a, json_t *value)
{
    size_t from = a->n_sent, to = reply_tokens_told(a);
    if (a->reply->r->reply.top_logprobs < 0)
        return;
    reply_set(a->reply, value, "completion_probabilities",
              reply_own_logprobs(a->reply, &a->tokens, from, to));
    a->n_sent = to;
}

/* The value of a path of keys with slashes between them; NULL: there is none. */
static json_t *find(json_t *value, const char *path)
{
    char key[64];
    while (value != NULL) {
        size_t len = strcspn(path, "/");
        if (len >= sizeof(key)) /* no key is that long */
            return NULL;
        memcpy(key, path, len);
        key[len] = '\0';
        value = json_object_get(value, key);
        if (path[len] == '\0')
            break;
        path += len + 1;
    }
    return value;
}

/* The values that response_fields asks for of the last object, under the paths as names; takes
   value over. */
static json_t *pick(struct serve_reply *reply, json_t *value)
{
    const json_t *fields = reply->r->reply.response_fields;
    if (fields == NULL)
        return value;
    json_t *picked = reply_need(reply, json_object());
    for (size_t i = 0; i < json_array_size(fields); i++) {
        const char *path = json_string_value(json_array_get(fields, i));
        json_t *one = find(value, path);
        if (one != NULL)
            reply_set(reply, picked, path, json_incref(one));
    }
    json_decref(value);
    return picked;
}

static void begin(struct reply_answer *a)
{
    (void)a; /* the first text is the first word */
}

static void event(struct reply_answer *a, const struct reply_event *e)
{
    json_t *value =
        part(a, reply_string(a->reply, e->text, e->len), ids_json(a, (size_t)a->n_open), false);
    a->n_open = a->n_id; /* those that went out */
    set_probabilities(a, value);
    if (a->reply->r->reply.timings_per_token)
        reply_set(a->reply, value, "timings", reply_timings_so_far(a));
    reply_emit(a->reply, NULL, value);
}

static void end(struct reply_answer *a)
{
    json_t *value = part(a, reply_need(a->reply, json_string("")), ids_json(a, a->n_open), true);
    set_last(a, value);
    set_probabilities(a, value);
    reply_emit(a->reply, NULL, pick(a->reply, value));
}

static void finish(struct serve_reply *reply)
{
    (void)reply; /* "stop": true was the last word */
}

static void fault(struct serve_reply *reply)
{
    reply_emit(reply, NULL, serve_fault_json(&reply->fault, SERVE_COMPLETION));
}

static void progress(struct reply_answer *a, json_t *value)
{
    json_t *one =
        part(a, reply_need(a->reply, json_string("")), reply_need(a->reply, json_array()), false);
    reply_set(a->reply, one, "prompt_progress", value);
    reply_emit(a->reply, NULL, one);
}

static json_t *whole(struct reply_answer *a)
{
    bool ids = a->reply->r->reply.return_tokens;
    json_t *value =
        part(a, reply_text(a->reply, &a->content), ids_json(a, ids ? 0 : a->n_id), true);
    set_last(a, value);
    set_probabilities(a, value);
    return pick(a->reply, value);
}

/* One object, or of several answers an array. */
static json_t *document(struct serve_reply *reply)
{
    if (reply->n_answer == 1)
        return whole(&reply->answer[0]);
    json_t *all = reply_need(reply, json_array());
    for (int32_t i = 0; i < reply->n_answer; i++)
        reply_append(reply, all, whole(&reply->answer[i]));
    return all;
}

const struct reply_form reply_form_completion = {
    .begin = begin,
    .event = event,
    .end = end,
    .finish = finish,
    .fault = fault,
    .progress = progress,
    .document = document,
};
