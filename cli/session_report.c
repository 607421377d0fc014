/*
 * session_report.c - the report of a session when its text ends: times, the content of the KV
 * memory, and the work of policies beside the full cache. It is for people or JSON, on standard
 * error.
 */
#include "session.h"

#include "draft.h"
#include "ranks.h"
#include "recall.h"
#include "share.h"
#include "pith/inspect.h"
#include "pith/policy.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *stop_name(pith_stop_reason reason)
{
    static const char *const names[] = {
        [PITH_STOP_END] = "end",       [PITH_STOP_LENGTH] = "length", [PITH_STOP_STRING] = "string",
        [PITH_STOP_CALLER] = "caller", [PITH_STOP_FULL] = "full",
    };
    return names[reason];
}

/* Tokens per second; 0 where nothing was measured. */
static double speed(int32_t n, double seconds)
{
    return seconds > 0.0 ? n / seconds : 0.0;
}

static uint64_t last_hash(const struct session *s)
{
    const float *logits = pith_seq_logits(s->seq);
    return logits != NULL ? pith_logits_hash(logits, s->info.n_vocab) : 0;
}

/* The work of rounds, beside the full cache of as many tokens. */
struct account {
    pith_kv_stats kv;
    pith_memory_stats memory;
    pith_keep_stats keep;
    pith_read_stats read;
    int64_t n_guest; /* entries that recall has brought back, which are in kv and not in keep */
    int32_t n_token;
    int64_t n_full;          /* entries that the full cache would have */
    int32_t n_gone;          /* tokens that no lane has an entry of */
    int64_t full_live_bytes; /* of entries, as pith_kv_stats.live_bytes */
    int64_t full_bytes;      /* of pages */
    double share;            /* of the time that rounds took; below 0: not known */
    int64_t disk;            /* bytes read from disks since the last report; -1: not known */
};

/* Counts tokens that no lane holds any more, and the bytes of entries with those that are gone. The
   lanes that a policy keeps come first; those with a window hold what they would without it. Guests
   of recall are not the full cache's: each is as large as an entry of the kept lanes, on average.
 */
static void count_gone(const struct session *s, struct account *a)
{
    pith_lane_info lane;
    bool *held = cli_alloc((size_t)a->n_token, sizeof(*held));
    int32_t *positions = cli_alloc((size_t)a->n_token, sizeof(*positions));
    int64_t entry_sum = 0, n_lane = 0;
    a->full_live_bytes = a->kv.live_bytes;
    for (int32_t l = 0; l < s->info.n_layer_kv; l++)
        for (int32_t h = 0; h < s->info.n_head_kv; h++) {
            if (pith_seq_lane(s->seq, l, h, &lane, positions, a->n_token) != PITH_OK)
                continue;
            for (int32_t i = 0; i < lane.n_entry && i < a->n_token; i++)
                held[positions[i]] = true;
            if (l * s->info.n_head_kv + h >= a->keep.n_lane || lane.n_page == 0)
                continue;
            int64_t entry = lane.bytes / lane.n_page / a->kv.page_len;
            a->full_live_bytes += (a->n_token - lane.n_entry) * entry;
            entry_sum += entry;
            n_lane++;
        }
    if (n_lane > 0)
        a->full_live_bytes -= a->n_guest * entry_sum / n_lane;
    for (int32_t i = 0; i < a->n_token; i++)
        a->n_gone += !held[i];
    free(positions);
    free(held);
}

static struct account make_account(struct session *s, const pith_generate_result *r)
{
    struct account a = {.n_token = pith_seq_length(s->seq), .share = -1.0};
    pith_engine_params full = s->params;
    int64_t disk = disk_bytes();
    a.disk = disk >= 0 ? disk - s->disk_seen : -1;
    s->disk_seen = disk;
    pith_engine_kv_stats(s->engine, &a.kv);
    pith_engine_memory_stats(s->engine, &a.memory);
    pith_seq_keep_stats(s->seq, &a.keep);
    pith_seq_read_stats(s->seq, &a.read);
    a.n_guest = recall_guests(s);
    if (a.keep.budget < 0)
        return a;
    a.n_full = (int64_t)a.n_token * a.keep.n_lane;
    count_gone(s, &a);
    full.keep = NULL;
    full.recall = NULL; /* there is none without a keep policy */
    full.share = NULL;
    full.kv_bytes = full.memory_bytes = 0;
    full.kv_tokens = 0;
    if (pith_kv_estimate(s->model, &full, a.n_token, &a.full_bytes, NULL) != PITH_OK)
        a.full_bytes = 0;
    /* Where nothing was cached, this call had all of the sequence's rounds. */
    if (r->n_cached == 0 && r->prompt_s + r->generate_s > 0.0)
        a.share = a.keep.seconds / (r->prompt_s + r->generate_s);
    return a;
}

static double percent(double part, double whole)
{
    return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

/* Figures that are worth knowing with a keep policy only. */
static json_t *keep_json(const struct account *a)
{
    json_t *o = json_pack("{s:I, s:I, s:i, s:I, s:I}", "keep_live", (json_int_t)a->keep.live,
                          "keep_full", (json_int_t)a->n_full, "keep_evicted_tokens", (int)a->n_gone,
                          "kv_full_live_bytes", (json_int_t)a->full_live_bytes, "kv_full_bytes",
                          (json_int_t)a->full_bytes);
    if (o != NULL && a->share >= 0.0)
        json_object_set_new(o, "keep_share_of_time", json_real(a->share));
    return o;
}

static json_t *read_json(const struct session *s, const pith_read_stats *r)
{
    if (s->read == NULL)
        return json_pack("{s:s}", "read", "none");
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:f}", "read", s->read, "read_chunks",
                     (json_int_t)r->chunks, "read_sparse", (json_int_t)r->sparse, "read_stored",
                     (json_int_t)r->stored, "read_entries", (json_int_t)r->read, "read_s",
                     r->seconds);
}

/* The parts that sum to pith_memory_stats.total_bytes. */
static const struct part {
    const char *name; /* as JSON has it */
    const char *text;
    size_t at;
} parts[] = {
    {"lanes", "lanes", offsetof(pith_memory_stats, lane_bytes)},
    {"guests", "guests", offsetof(pith_memory_stats, guest_bytes)},
    {"states", "states", offsetof(pith_memory_stats, state_bytes)},
    {"idle", "free pages that were used", offsetof(pith_memory_stats, idle_bytes)},
    {"tier", "recall's tier", offsetof(pith_memory_stats, tier_bytes)},
    {"text", "recall's text", offsetof(pith_memory_stats, text_bytes)},
    {"aside", "swapped", offsetof(pith_memory_stats, aside_bytes)},
    {"tables", "tables", offsetof(pith_memory_stats, table_bytes)},
    {"marks", "marks", offsetof(pith_memory_stats, mark_bytes)},
    {"policy", "what policies remember", offsetof(pith_memory_stats, policy_bytes)},
    {"work", "buffers of rounds and recalls", offsetof(pith_memory_stats, work_bytes)},
};

/* Stands beside KV memory, and in no budget of it. */
static const struct part besides[] = {
    {"drafts", "drafts", offsetof(pith_memory_stats, draft_bytes)},
    {"logits", "logits", offsetof(pith_memory_stats, logits_bytes)},
};

static int64_t part_of(const pith_memory_stats *m, const struct part *part)
{
    int64_t bytes;
    memcpy(&bytes, (const char *)m + part->at, sizeof(bytes));
    return bytes;
}

/* Bytes that the process has taken of each device. */
static json_t *devices_json(void)
{
    pith_device_info d;
    json_t *o = json_object();
    for (int32_t i = 0; pith_device_get(i, &d) == PITH_OK; i++)
        json_object_set_new(o, d.name, json_integer(d.used_bytes));
    return o;
}

/* Pages that are used on each device. They sum to all that are. */
static json_t *pages_json(const struct session *s)
{
    pith_kv_device d;
    json_t *o = json_object();
    for (int32_t i = 0; pith_engine_kv_device(s->engine, i, &d) == PITH_OK; i++)
        json_object_set_new(o, d.device,
                            json_pack("{s:I, s:I, s:I, s:I}", "used", (json_int_t)d.used_bytes,
                                      "peak", (json_int_t)d.peak_bytes, "idle",
                                      (json_int_t)d.idle_bytes, "most", (json_int_t)d.most_bytes));
    return o;
}

/* Weights that are mapped are pages of a file, and none of these. */
static void print_devices(const struct session *s)
{
    pith_device_info d;
    char text[32];
    const char *before = "devices  ";
    for (int32_t i = 0; pith_device_get(i, &d) == PITH_OK; i++, before = ", ")
        fprintf(stderr, "%s%s %s", before, d.name, cli_bytes(d.used_bytes, text));
    fprintf(stderr, " of %s; the cpu's pages as reserved\n",
            s->info.weights_mapped ? "pages and buffers, beside mapped weights"
                                   : "weights, pages, and buffers");
}

/* Where layers are on several devices. */
static void print_pages(const struct session *s)
{
    pith_kv_device d;
    char used[32], most[32];
    const char *before = "pages    ";
    if (pith_engine_kv_device(s->engine, 1, &d) != PITH_OK)
        return;
    for (int32_t i = 0; pith_engine_kv_device(s->engine, i, &d) == PITH_OK; i++, before = ", ")
        fprintf(stderr, "%s%s %s of %s at most", before, d.device, cli_bytes(d.used_bytes, used),
                cli_bytes(d.most_bytes, most));
    fputc('\n', stderr);
}

static void print_stages(const struct session *s)
{
    char text[512];
    if (session_stages(s, text, sizeof(text)))
        fprintf(stderr, "layers   %s\n", text);
}

static json_t *memory_json(const struct session *s, const struct account *a)
{
    const pith_memory_stats *m = &a->memory;
    json_t *list = json_object();
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        json_object_set_new(list, parts[i].name, json_integer(part_of(m, &parts[i])));
    json_t *beside = json_object();
    for (size_t i = 0; i < sizeof(besides) / sizeof(besides[0]); i++)
        json_object_set_new(beside, besides[i].name, json_integer(part_of(m, &besides[i])));
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "memory_total_bytes",
                     (json_int_t)m->total_bytes, "memory_budget_bytes", (json_int_t)m->budget_bytes,
                     "memory_file_bytes", (json_int_t)m->file_bytes, "memory_tier_device_bytes",
                     (json_int_t)m->tier_device_bytes, "memory_parts", list, "memory_beside",
                     beside, "devices", devices_json(), "pages", pages_json(s));
}

/* The parts that are there. */
static void print_parts(const pith_memory_stats *m, const struct part *part, size_t n,
                        const char *before)
{
    char text[32];
    for (size_t i = 0; i < n; i++) {
        int64_t bytes = part_of(m, &part[i]);
        if (bytes == 0)
            continue;
        fprintf(stderr, "%s%s %s", before, part[i].text, cli_bytes(bytes, text));
        before = ", ";
    }
}

static void print_memory(const struct session *s, const struct account *a)
{
    char text[32];
    const pith_memory_stats *m = &a->memory;
    int64_t draft = draft_memory(s);
    fprintf(stderr, "memory   %s", cli_bytes(m->total_bytes + draft, text));
    if (s->kv_memory > 0)
        fprintf(stderr, " of %s", cli_bytes(s->kv_memory, text));
    print_parts(m, parts, sizeof(parts) / sizeof(parts[0]), ": ");
    if (draft > 0)
        fprintf(stderr, ", drafting model %s", cli_bytes(draft, text));
    if (m->tier_device_bytes > 0)
        fprintf(stderr, "; %s of recall's tier on GPUs", cli_bytes(m->tier_device_bytes, text));
    if (a->full_bytes > 0)
        fprintf(stderr, "; %.1f %% of the full cache's pages in %s/%s",
                percent((double)(m->total_bytes + draft), (double)a->full_bytes),
                s->params.type_k != NULL ? s->params.type_k : "f16",
                s->params.type_v != NULL ? s->params.type_v : "f16");
    print_parts(m, besides, sizeof(besides) / sizeof(besides[0]), "; beside it ");
    fputc('\n', stderr);
}

static int32_t tokens_of(const pith_generate_result *r)
{
    return r->n_prompt + r->n_recalled + r->n_generated;
}

static json_t *weights_json(const struct session *s, const pith_generate_result *r, int64_t disk)
{
    int32_t n = tokens_of(r);
    json_t *o = json_pack("{s:b}", "weights_mapped", s->info.weights_mapped);
    if (o != NULL && disk >= 0) {
        json_object_set_new(o, "disk_bytes", json_integer(disk));
        json_object_set_new(o, "disk_bytes_per_token", json_real(n > 0 ? (double)disk / n : 0.0));
    }
    return o;
}

static void print_weights(const struct session *s, const pith_generate_result *r, int64_t disk)
{
    char all[32], each[32];
    int32_t n = tokens_of(r);
    if (!s->info.weights_mapped)
        return;
    fprintf(stderr, "weights  mapped");
    if (disk > 0 && n > 0)
        fprintf(stderr, ", %s read from disk in %d tokens (%s a token)", cli_bytes(disk, all), n,
                cli_bytes(disk / n, each));
    else if (disk == 0)
        fprintf(stderr, ", nothing read from disk");
    fputc('\n', stderr);
}

static void report_json(const struct session *s, const pith_generate_result *r,
                        const struct account *a)
{
    char hash[24];
    const pith_kv_stats *kv = &a->kv;
    const pith_keep_stats *keep = &a->keep;
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)last_hash(s));
    json_t *o = json_pack(
        "{s:s, s:f, s:i, s:i, s:f, s:i, s:f, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, "
        "s:I, "
        "s:i, s:I, s:i, s:f, s:s}",
        "stop", stop_name(r->reason), "load_s", s->load_s, "prompt_tokens", (int)r->n_prompt,
        "cached_tokens", (int)r->n_cached, "prompt_s", r->prompt_s, "generated_tokens",
        (int)r->n_generated, "generate_s", r->generate_s, "length", (int)a->n_token, "weight_bytes",
        (json_int_t)s->info.weight_bytes, "kv_reserved_bytes", (json_int_t)kv->reserved_bytes,
        "kv_used_bytes", (json_int_t)kv->used_bytes, "kv_peak_bytes", (json_int_t)kv->peak_bytes,
        "kv_live_bytes", (json_int_t)kv->live_bytes, "kv_table_bytes", (json_int_t)kv->table_bytes,
        "keep", s->keep != NULL ? s->keep : "none", "keep_rounds", (json_int_t)keep->rounds,
        "keep_evicted", (json_int_t)keep->evicted, "keep_bytes_freed",
        (json_int_t)keep->bytes_freed, "keep_first_round_at", (int)keep->first_round_at,
        "keep_overwritten", (json_int_t)keep->overwritten, "keep_first_overwrite_at",
        (int)keep->first_overwrite_at, "keep_s", keep->seconds, "logits_hash", hash);
    json_t *more = keep->budget >= 0 ? keep_json(a) : json_object();
    json_t *read = read_json(s, &a->read), *recall = recall_json(s, r), *share = share_json(s);
    json_t *weights = weights_json(s, r, a->disk);
    if (s->plan.line[0] != '\0')
        json_object_set_new(more, "kv_plan", json_string(s->plan.line));
    json_t *draft = draft_json(s, r->n_draft, r->n_draft_accepted), *memory = memory_json(s, a);
    if (o == NULL || json_object_update(o, weights) != 0 || json_object_update(o, more) != 0 ||
        json_object_update(o, read) != 0 || json_object_update(o, recall) != 0 ||
        json_object_update(o, share) != 0 || json_object_update(o, draft) != 0 ||
        json_object_update(o, memory) != 0 || ranks_add(o) != 0)
        cli_fail("no memory for the statistics");
    json_decref(weights);
    json_decref(more);
    json_decref(read);
    json_decref(recall);
    json_decref(share);
    json_decref(draft);
    json_decref(memory);
    json_dumpf(o, stderr, JSON_COMPACT);
    fputc('\n', stderr);
    json_decref(o);
}

static void print_keep(const struct session *s, const struct account *a)
{
    char freed[32], live[32], full_live[32], peak[32], full[32], lane[32] = "", guests[48] = "";
    const pith_keep_stats *k = &a->keep;
    int64_t n_lane = k->n_lane;
    if (k->budget < 0)
        return;
    fprintf(stderr, "keep     %8.3f s   ", k->seconds);
    if (k->evicted == 0 && k->rounds == 0) {
        fprintf(stderr, "%s: no round yet, the fullest lane holds %d entries\n", s->keep,
                k->longest);
        return;
    }
    if (k->rounds == 0)
        fprintf(stderr, "%s: no round", s->keep);
    else
        fprintf(stderr, "%s: %lld rounds, the first at %d tokens", s->keep, (long long)k->rounds,
                k->first_round_at);
    if (a->share >= 0.0 && k->rounds > 0)
        fprintf(stderr, ", %.2f ms or %.2f %% of the time", 1e3 * k->seconds, 100.0 * a->share);
    if (k->overwritten > 0)
        fprintf(stderr, "; %lld entries overwritten from token %d on", (long long)k->overwritten,
                k->first_overwrite_at);
    fprintf(stderr,
            "\nevicted  %lld of %lld entries, %d of %d tokens from every lane; pages freed %s\n",
            (long long)k->evicted, (long long)a->n_full, a->n_gone, a->n_token,
            cli_bytes(k->bytes_freed, freed));
    if (k->live % n_lane == 0)
        snprintf(lane, sizeof(lane), ", %lld per lane", (long long)(k->live / n_lane));
    if (a->n_guest > 0)
        snprintf(guests, sizeof(guests), " and %lld that came back", (long long)a->n_guest);
    fprintf(stderr,
            "live     %s in %lld entries%s%s: %.1f %% of the full cache's %s; pages at most %s, "
            "%.1f %% of %s\n",
            cli_bytes(a->kv.live_bytes, live), (long long)k->live, lane, guests,
            percent((double)a->kv.live_bytes, (double)a->full_live_bytes),
            cli_bytes(a->full_live_bytes, full_live), cli_bytes(a->kv.peak_bytes, peak),
            percent((double)a->kv.peak_bytes, (double)a->full_bytes),
            cli_bytes(a->full_bytes, full));
}

/* The name of a policy without its options. */
static int name_len(const char *policy)
{
    return (int)strcspn(policy, ":");
}

/* A large number in a few digits. */
static const char *short_count(double n, char out[16])
{
    static const char units[] = {'k', 'M', 'G', 'T'};
    size_t unit = 0;
    if (n < 1e4) {
        snprintf(out, 16, "%.0f", n);
        return out;
    }
    for (n /= 1e3; n >= 999.95 && unit + 1 < sizeof(units); unit++)
        n /= 1e3;
    snprintf(out, 16, "%.1f%c", n, units[unit]);
    return out;
}

/* Where no generated token chose anything, that is said: a user thinks that it did. */
static void print_steps(const pith_read_stats *r)
{
    if (r->steps == 0 || r->steps_sparse > 0)
        return;
    if (r->step_gate > 0)
        fprintf(stderr, "; generated tokens read lanes of up to %lld entries whole (gate)",
                (long long)r->step_gate);
    else
        fprintf(stderr, "; generated tokens read everything (gate)");
}

static void print_read(const struct session *s, const pith_read_stats *r)
{
    char stored[16];
    if (s->read == NULL || strcmp(s->read, "none") == 0)
        return;
    fprintf(stderr, "read     %8.3f s   %.*s: ", r->seconds, name_len(s->read), s->read);
    if (r->chunks == 0)
        fprintf(stderr, "no chunk that it chooses for");
    else
        fprintf(stderr, "%.1f %% of %s entries; %lld of %lld lane chunks read a part",
                percent((double)r->read, (double)r->stored), short_count((double)r->stored, stored),
                (long long)r->sparse, (long long)r->chunks);
    print_steps(r);
    fputc('\n', stderr);
}

void session_report(struct session *s, const pith_generate_result *r, bool json)
{
    char used[32], reserved[32], weights[32];
    struct account a = make_account(s, r);
    const pith_kv_stats *kv = &a.kv;
    if (json) {
        report_json(s, r, &a);
        return;
    }
    fprintf(stderr, "load     %8.3f s   %s of weights\n", s->load_s,
            cli_bytes(s->info.weight_bytes, weights));
    fprintf(stderr, "prompt   %8.3f s   %d tokens, %.1f tokens/s", r->prompt_s, r->n_prompt,
            speed(r->n_prompt + r->n_recalled, r->prompt_s));
    if (r->n_cached > 0)
        fprintf(stderr, ", %d more were cached", r->n_cached);
    fprintf(stderr, "\ngenerate %8.3f s   %d tokens, %.1f tokens/s\n", r->generate_s,
            r->n_generated, speed(r->n_generated, r->generate_s));
    draft_report(s, r->n_draft, r->n_draft_accepted);
    print_weights(s, r, a.disk);
    fprintf(stderr, "kv       %s of %s: %d tokens, %lld of %lld pages, %lld bytes live\n",
            cli_bytes(kv->used_bytes, used), cli_bytes(kv->reserved_bytes, reserved), a.n_token,
            (long long)kv->n_page_used, (long long)kv->n_page, (long long)kv->live_bytes);
    print_memory(s, &a);
    print_stages(s);
    ranks_report();
    print_devices(s);
    print_pages(s);
    print_keep(s, &a);
    print_read(s, &a.read);
    recall_report(s, r);
    share_report(s);
    fprintf(stderr, "logits   %016llx\n", (unsigned long long)last_hash(s));
}

void session_explain_full(const struct session *s)
{
    pith_kv_stats kv;
    char reserved[32];
    pith_engine_kv_stats(s->engine, &kv);
    cli_note("the text ends at %d tokens because the KV memory (%s) or the context (%d) is full; "
             "-c, --kv or --kv-memory size the memory",
             pith_seq_length(s->seq), cli_bytes(kv.reserved_bytes, reserved), s->info.n_ctx_train);
}
