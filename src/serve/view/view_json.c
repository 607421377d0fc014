/*
 * view_json.c - the documents of view.h: docs/page.md describes each field. It reads what view.c
 * noted and the engine's account, and changes only what the next delta may leave out.
 *
 * Everything that a delta says has its absolute place (positions, rounds, numbers of events). So a
 * watcher whose snapshot was newer loses nothing by reading it.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/view/view_state.h"

#define VERSION 1
#define PIECE_MAX 512 /* bytes of a token or an option that are shown */

/* ---- small parts ---- */

/* A name or an option, of which JSON wants valid characters; null for NULL. */
static json_t *name_json(const char *name)
{
    char text[3 * (PIECE_MAX + 4)];
    pith_utf8_stream stream = {{0}, 0};
    if (name == NULL)
        return json_null();
    size_t len = strlen(name);
    size_t n = pith_utf8_push(&stream, name, len < PIECE_MAX ? len : PIECE_MAX, text, sizeof(text));
    return json_stringn(text, n);
}

/* Both take the value. A value that could not be made turns its object into NULL, up to the
   document. */
static void put(json_t **object, const char *key, json_t *value)
{
    if (json_object_set_new(*object, key, value) == 0)
        return;
    json_decref(*object);
    *object = NULL;
}

static void add(json_t **array, json_t *value)
{
    if (json_array_append_new(*array, value) == 0)
        return;
    json_decref(*array);
    *array = NULL;
}

static json_t *from_text(struct view_text *t)
{
    json_t *out = t->failed ? NULL : json_stringn_nocheck(t->data != NULL ? t->data : "", t->len);
    view_text_free(t);
    return out;
}

static json_t *rules_json(const pith_keep_rules *r)
{
    if (r->policy == NULL)
        return json_null();
    return json_pack("{s:s, s:s, s:f, s:s, s:i, s:i, s:i, s:i, s:b, s:b}", "policy", r->policy,
                     "budget_unit", r->budget_unit, "budget", r->budget, "granularity",
                     r->granularity, "slack", r->slack, "prefix", r->prefix, "sinks", r->sinks,
                     "window", r->window, "pin_prompt", r->pin_prompt, "overwrite", r->overwrite);
}

static json_t *model_json(const struct serve_view *v)
{
    return json_pack("{s:o, s:o, s:i, s:i, s:i, s:i}", "name",
                     name_json(v->alias != NULL ? v->alias : v->info.name), "architecture",
                     name_json(v->info.architecture), "n_layer", v->info.n_layer, "n_head_kv",
                     v->info.n_head_kv, "n_head", v->info.n_head, "n_ctx_train",
                     v->info.n_ctx_train);
}

static json_t *policies_json(const struct serve_view *v)
{
    json_t *out = json_object();
    for (int i = 0; i < PITH_N_VERB; i++)
        put(&out, pith_verb_name((pith_verb)i), name_json(v->policy[i]));
    return out;
}

/* ---- bytes ---- */

/* Bytes of the entries of a sequence that its policy never evicts, each in its slot of a page. */
static int64_t pinned_bytes(const struct serve_view *v, const struct serve_view_item *item)
{
    int64_t bytes = 0;
    int32_t first = v->rules.prefix > v->rules.sinks ? v->rules.prefix : v->rules.sinks;
    int32_t pin = item->n_pin > 0 ? item->n_pin : item->n_prompt;
    if (v->rules.pin_prompt && pin <= v->rules.pin_most && pin > first)
        first = pin;
    for (int32_t l = 0; first > 0 && l < v->info.n_layer; l++)
        for (int32_t h = 0; h < v->info.n_head_kv; h++) {
            pith_lane_info lane = {0};
            pith_kv_stats kv;
            pith_seq_lane(item->seq, l, h, &lane, NULL, 0);
            pith_engine_kv_stats(pith_seq_engine(item->seq), &kv);
            int64_t slots = (int64_t)lane.n_page * kv.page_len;
            if (slots > 0)
                bytes += lane.bytes / slots * (lane.n_entry < first ? lane.n_entry : first);
        }
    return bytes;
}

/* The parts that sum to the total. */
static json_t *parts_json(const pith_memory_stats *m, int64_t draft_model)
{
    const struct {
        const char *name;
        int64_t bytes;
    } part[] = {
        {"lanes", m->lane_bytes},    {"guests", m->guest_bytes}, {"states", m->state_bytes},
        {"idle", m->idle_bytes},     {"tier", m->tier_bytes},    {"text", m->text_bytes},
        {"aside", m->aside_bytes},   {"tables", m->table_bytes}, {"marks", m->mark_bytes},
        {"policy", m->policy_bytes}, {"work", m->work_bytes},    {"draft_model", draft_model},
    };
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
        put(&out, part[i].name, json_integer(part[i].bytes));
    return out;
}

/* Bytes that the process has taken of each device. */
static json_t *devices_json(void)
{
    pith_device_info d;
    json_t *out = json_object();
    for (int32_t i = 0; pith_device_get(i, &d) == PITH_OK; i++)
        put(&out, d.name, json_integer(d.used_bytes));
    return out;
}

/* Pages that are used on each device. They sum to all that are. */
static json_t *pages_json(const pith_engine *engine)
{
    pith_kv_device d;
    json_t *out = json_object();
    for (int32_t i = 0; pith_engine_kv_device(engine, i, &d) == PITH_OK; i++)
        put(&out, d.device,
            json_pack("{s:I, s:I, s:I, s:I}", "used", (json_int_t)d.used_bytes, "peak",
                      (json_int_t)d.peak_bytes, "idle", (json_int_t)d.idle_bytes, "most",
                      (json_int_t)d.most_bytes));
    return out;
}

static json_t *memory_json(const struct serve_view *v, const struct serve_view_source *s)
{
    pith_kv_stats kv;
    pith_engine_kv_stats(s->engine, &kv);
    pith_memory_stats all, draft = {0};
    int64_t pinned = 0;
    for (int32_t i = 0; i < s->n_item; i++)
        if (s->items[i].seq != NULL)
            pinned += pinned_bytes(v, &s->items[i]);
    pinned = pinned < kv.live_bytes ? pinned : kv.live_bytes; /* shared pages count once */
    pith_engine_memory_stats(s->engine, &all);
    if (s->draft_engine != NULL)
        pith_engine_memory_stats(s->draft_engine, &draft);
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:o, s:o, s:o}",
        "reserved", (json_int_t)kv.reserved_bytes, "used", (json_int_t)kv.used_bytes, "live",
        (json_int_t)kv.live_bytes, "pinned", (json_int_t)pinned, "shared",
        (json_int_t)kv.shared_bytes, "saved", (json_int_t)kv.saved_bytes, "free",
        (json_int_t)(kv.reserved_bytes - kv.used_bytes), "peak", (json_int_t)kv.peak_bytes,
        "tables", (json_int_t)kv.table_bytes, "page", (json_int_t)kv.page_bytes, "page_len",
        (int)kv.page_len, "prefixes", (json_int_t)s->stats.prefix_bytes, "swapped",
        (json_int_t)s->stats.swapped_bytes, "tier_memory", (json_int_t)all.tier_bytes, "tier_file",
        (json_int_t)all.file_bytes, "budget", (json_int_t)all.budget_bytes, "total",
        (json_int_t)(all.total_bytes + draft.total_bytes), "parts",
        parts_json(&all, draft.total_bytes), "devices", devices_json(), "pages",
        pages_json(s->engine));
}

/* ---- requests ---- */

static json_t *item_json(const struct serve_view_item *item)
{
    json_t *out = json_pack(
        "{s:I, s:i, s:i, s:s, s:i, s:i, s:i, s:i, s:I, s:I}", "id", (json_int_t)item->id, "answer",
        item->answer, "slot", item->slot, "state", item->state, "n_prompt", item->n_prompt,
        "n_done", item->n_done, "n_generated", item->n_generated, "n_cached", item->n_cached,
        "held", (json_int_t)item->held_bytes, "aside", (json_int_t)item->aside_bytes);
    if (out == NULL || item->seq == NULL)
        return out;
    pith_keep_stats keep;
    pith_read_stats read;
    pith_recall_stats recall = {0};
    pith_seq_keep_stats(item->seq, &keep);
    pith_seq_read_stats(item->seq, &read);
    pith_seq_recall_stats(item->seq, &recall);
    put(&out, "n_token", json_integer(pith_seq_length(item->seq)));
    put(&out, "full", json_integer(item->full_bytes));
    put(&out, "tier", json_integer(recall.ram_bytes));
    put(&out, "entries", json_integer(keep.live));
    put(&out, "evicted", json_integer(keep.evicted));
    put(&out, "rounds", json_integer(keep.rounds));
    put(&out, "budget", json_integer(keep.budget));
    put(&out, "remembered", json_integer(keep.remembered_bytes));
    put(&out, "stored", json_integer(read.stored));
    put(&out, "read", json_integer(read.read));
    put(&out, "guests", json_integer(recall.guests));
    put(&out, "guest_bytes", json_integer(recall.guest_bytes));
    put(&out, "in_tier", json_integer(recall.stored));
    return out;
}

static json_t *items_json(const struct serve_view_source *s)
{
    json_t *out = json_array();
    for (int32_t i = 0; i < s->n_item; i++)
        add(&out, item_json(&s->items[i]));
    return out;
}

static json_t *totals_json(const struct serve_view *v, const struct serve_view_source *s)
{
    const pith_scheduler_stats *t = &s->stats;
    const struct view_watch *w = v->watch;
    return json_pack("{s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f}", "steps",
                     (json_int_t)t->n_step, "done", (json_int_t)t->n_done, "cancelled",
                     (json_int_t)t->n_cancelled, "failed", (json_int_t)t->n_failed, "waiting",
                     t->n_waiting, "running", t->n_running, "reading", t->n_reading,
                     "prompt_tokens", (json_int_t)t->prompt_tokens, "cached_tokens",
                     (json_int_t)t->cached_tokens, "generated_tokens",
                     (json_int_t)t->generated_tokens, "evicted", (json_int_t)w->evicted, "recalled",
                     (json_int_t)w->recalled, "seconds", t->seconds);
}

/* ---- the log and the steps ---- */

static void write_why(const struct serve_view *v, const struct view_event *e, char *out, size_t cap)
{
    switch (e->kind) {
    case VIEW_ROUND:
        if (e->pressure)
            snprintf(out, cap, "the KV memory was short, and the largest request gave way");
        else
            snprintf(out, cap, "a lane reached its budget of %d entries and the slack of %d",
                     e->budget, v->rules.slack);
        break;
    case VIEW_OVERWRITE:
        snprintf(out, cap, "lanes are at their budget of %d: each token takes an entry's place",
                 e->budget);
        break;
    case VIEW_RECALL:
        snprintf(out, cap, "the last tokens asked for entries that had gone");
        break;
    case VIEW_SHARE:
        snprintf(out, cap, "pages are near enough to earlier ones to stand for them");
        break;
    }
}

static json_t *event_json(const struct serve_view *v, const struct view_event *e)
{
    char why[128] = "";
    write_why(v, e, why, sizeof(why));
    json_t *out = json_pack(
        "{s:I, s:s, s:I, s:f, s:I, s:i, s:I, s:i, s:i, s:i, s:I, s:I, s:I, s:s}", "number",
        (json_int_t)e->number, "kind", view_kind_name(e->kind), "step", (json_int_t)e->step, "time",
        e->time, "id", (json_int_t)e->id, "answer", e->answer, "epoch", (json_int_t)e->epoch,
        "round", e->round, "round_last", e->round_last, "at", e->at, "rounds",
        (json_int_t)e->n_round, "n", (json_int_t)e->n, "bytes", (json_int_t)e->bytes, "why", why);
    if (out != NULL && e->from >= 0) {
        put(&out, "from", json_integer(e->from));
        put(&out, "to", json_integer(e->to));
        put(&out, "lanes", json_integer(e->n_lane));
    }
    return out;
}

static json_t *events_json(const struct serve_view *v, int64_t after)
{
    const struct view_watch *w = v->watch;
    json_t *out = json_array();
    int64_t first = w->n_event - VIEW_EVENTS;
    for (int64_t i = after > first ? after : first < 0 ? 0 : first; i < w->n_event; i++)
        add(&out, event_json(v, &w->event[i % VIEW_EVENTS]));
    return out;
}

/* A frame is a list: number, step, time, epoch, tokens, round, running, used, live, evicted. */
static json_t *frames_json(const struct view_watch *w, int64_t after)
{
    json_t *out = json_array();
    int64_t first = w->n_frame - VIEW_FRAMES;
    for (int64_t i = after > first ? after : first < 0 ? 0 : first; i < w->n_frame; i++) {
        const struct view_frame *f = &w->frame[i % VIEW_FRAMES];
        add(&out, json_pack("[I, I, f, I, i, i, i, I, I, I]", (json_int_t)f->number,
                            (json_int_t)f->step, f->time, (json_int_t)f->epoch, f->n_token,
                            f->round, f->n_running, (json_int_t)f->used_bytes,
                            (json_int_t)f->live_bytes, (json_int_t)f->evicted));
    }
    return out;
}

/* ---- the followed sequence ---- */

/* The text of each token from a place on. A character of several tokens stands at its last. */
static json_t *tokens_json(const struct serve_view *v, int32_t from)
{
    const struct view_lanes *lanes = &v->watch->lanes;
    json_t *out = json_array();
    pith_utf8_stream stream = {{0}, 0};
    int32_t first = from > 3 ? from - 3 : 0; /* the bytes before a character's last are at most 3 */
    for (int32_t i = first; i < lanes->n_token; i++) {
        char bytes[PIECE_MAX], text[3 * (PIECE_MAX + 4)];
        size_t len = 0;
        if (pith_token_bytes(v->model, lanes->tokens[i], true, bytes, sizeof(bytes), &len) !=
            PITH_OK)
            len = 0;
        size_t n = pith_utf8_push(&stream, bytes, len, text, sizeof(text));
        if (i >= from)
            add(&out, json_stringn(text, n));
    }
    return out;
}

static json_t *lane_json(const struct view_lanes *lanes, int32_t i)
{
    struct view_text text = {0};
    view_lanes_write(lanes, i, &text);
    return from_text(&text);
}

static json_t *head_json(const struct view_watch *w)
{
    return json_pack("{s:I, s:I, s:i, s:b, s:i, s:i, s:i}", "epoch", (json_int_t)w->epoch, "id",
                     (json_int_t)w->id, "answer", w->answer, "there", w->there, "n_token",
                     w->lanes.n_token, "n_prompt", w->n_prompt, "round", w->round);
}

/* All of it; null where there never was one. */
static json_t *followed_json(const struct serve_view *v)
{
    const struct view_watch *w = v->watch;
    struct view_text held = {0};
    if (w->epoch == 0)
        return json_null();
    json_t *out = head_json(w), *rows = json_array();
    if (w->too_large)
        put(&out, "why", json_string("the sequence is too long to be followed"));
    for (int32_t i = 0; i < w->lanes.n_layer * w->lanes.n_head; i++)
        add(&rows, lane_json(&w->lanes, i));
    put(&out, "text_from", json_integer(0));
    put(&out, "text", tokens_json(v, 0));
    put(&out, "lanes", rows);
    if (!view_lanes_write_held(&w->lanes, &held))
        held.failed = true;
    put(&out, "held", from_text(&held));
    return out;
}

/* Its changes since the last delta. */
static json_t *followed_delta_json(const struct serve_view *v)
{
    const struct view_watch *w = v->watch;
    if (w->epoch == 0 || w->epoch != w->sent_epoch || w->too_large)
        return followed_json(v);
    json_t *out = head_json(w), *gone = json_object(), *whole = json_object();
    for (int32_t i = 0; i < w->lanes.n_layer * w->lanes.n_head; i++) {
        const struct view_lane *lane = &w->lanes.lane[i];
        struct view_text text = {0};
        char key[16];
        snprintf(key, sizeof(key), "%d", i);
        if (lane->back)
            put(&whole, key, lane_json(&w->lanes, i));
        if (lane->back || !lane->changed)
            continue;
        view_lanes_write_gone(&w->lanes, i, w->sent_round + 1, &text);
        put(&gone, key, from_text(&text));
    }
    put(&out, "text_from", json_integer(w->sent_token));
    put(&out, "text", tokens_json(v, w->sent_token));
    put(&out, "gone", gone);
    put(&out, "whole", whole);
    return out;
}

static void mark_sent(struct view_watch *w)
{
    w->sent_frame = w->n_frame;
    w->sent_event = w->n_event;
    w->sent_epoch = w->epoch;
    w->sent_token = w->lanes.n_token;
    w->sent_round = w->round;
    for (int32_t i = 0; i < w->lanes.n_layer * w->lanes.n_head; i++)
        w->lanes.lane[i].changed = w->lanes.lane[i].back = false;
}

/* ---- documents ---- */

static json_t *common_json(const struct serve_view *v, const struct serve_view_source *s,
                           const char *type)
{
    return json_pack("{s:s, s:i, s:f, s:o, s:o, s:o}", "type", type, "version", VERSION, "time",
                     s->now_s, "memory", memory_json(v, s), "totals", totals_json(v, s), "requests",
                     items_json(s));
}

/* Takes the document. */
static pith_status finish(json_t *document, char **json, size_t *len)
{
    char *text = document != NULL ? json_dumps(document, JSON_COMPACT) : NULL;
    json_decref(document);
    if (text == NULL)
        return PITH_NOMEM;
    *json = text;
    *len = strlen(text);
    return PITH_OK;
}

pith_status serve_view_snapshot(struct serve_view *view, const struct serve_view_source *source,
                                char **json, size_t *len)
{
    bool watched = serve_view_watched(view);
    serve_view_watch(view, true);
    if (!serve_view_watched(view))
        return PITH_NOMEM;
    serve_view_step(view, source);
    json_t *out = common_json(view, source, "snapshot");
    if (out != NULL) {
        put(&out, "model", model_json(view));
        put(&out, "policies", policies_json(view));
        put(&out, "rules", rules_json(&view->rules));
        put(&out, "followed", followed_json(view));
        put(&out, "events", events_json(view, 0));
        put(&out, "frames", frames_json(view->watch, 0));
    }
    if (!watched)
        serve_view_watch(view, false);
    return finish(out, json, len);
}

pith_status serve_view_delta(struct serve_view *view, const struct serve_view_source *source,
                             char **json, size_t *len)
{
    serve_view_watch(view, true);
    if (!serve_view_watched(view))
        return PITH_NOMEM;
    serve_view_step(view, source);
    json_t *out = common_json(view, source, "delta");
    if (out != NULL) {
        put(&out, "followed", followed_delta_json(view));
        put(&out, "events", events_json(view, view->watch->sent_event));
        put(&out, "frames", frames_json(view->watch, view->watch->sent_frame));
    }
    pith_status status = finish(out, json, len);
    if (status == PITH_OK)
        mark_sent(view->watch);
    return status;
}

void serve_view_text_free(char *json)
{
    free(json);
}
