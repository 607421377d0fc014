/*
 * budget.c - `--kv` on the command line: what its value means in bytes, and the line that says how
 * they are spent. Also the files that `pith calibrate` has left for a model.
 * Invariant: what the user names stands; only what is left out is chosen.
 */
#define _POSIX_C_SOURCE 200809L

#include "budget.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "draft.h"
#include "models_folder.h"
#include "outputs.h"

#include <eval.h>

#include "pith/calibrate.h"
#include "pith/policy.h"
#include "pith/ranks.h"
#include "pith/scheduler.h"

/* With --kv auto an eighth stays free for others, and this at least. Where little is free a quarter
   is enough. */
#define RESERVE_LEAST ((int64_t)256 << 20)
#define RESERVE_PART 8
#define RESERVE_MOST_PART 4

/* Tokens that ask together, which one pass must hold (the option last of recall). */
#define ASKING 32

/* Tokens of a text that is planned as it is. For a shorter one the share may be less than whole
   pages and protected entries take. It is then planned as a text of this length. */
#define SHORT_TEXT 1024

/* An engine divides bytes as its longest conversation would fill them. A text beyond the trained
   context takes a little more of pages, for which this part is held back. */
#define BEYOND_PART 64

/* Of the bytes of f16, what all entries take as q8_0/turbo4, which loses little. */
#define FEW_BITS 0.41

/* Seconds of `pith calibrate` for a parameter, on two cores of a Zen 5 (82 s for 630 million). */
#define CALIBRATION_S_PER_PARAM (82.0 / 630e6)

struct budget budget_parse(const char *text)
{
    struct budget b = {0};
    char *end;
    double percent = strtod(text, &end);
    if (strcmp(text, "auto") == 0) {
        b.automatic = true;
        return b;
    }
    if (end != text && strcmp(end, "%") == 0) {
        if (!(percent > 0.0))
            cli_fail_usage("--kv: %s leaves no entry: give a share above 0%%", text);
        if (percent > 100.0)
            cli_fail_usage("--kv: %s is more than the full cache, which is 100%%", text);
        b.share = percent / 100.0;
        return b;
    }
    if (!options_parse_bytes(text, &b.bytes) || (end != text && *end == '\0'))
        cli_fail_usage("--kv: \"%.40s\" is neither a share (25%%), nor a size of the whole process "
                       "(500MiB), nor auto",
                       text);
    if (b.bytes <= 0)
        cli_fail_usage("--kv: %s is no memory", text);
    return b;
}

/* ---- statistics ---- */

/* The keep policy that a text names; false: there is none. */
static bool find_policy(const char *keep, pith_policy_info *out)
{
    size_t n = strcspn(keep, ":");
    for (int32_t i = 0; pith_policy_get(PITH_KEEP, i, out) == PITH_OK; i++)
        if (strlen(out->name) == n && strncmp(keep, out->name, n) == 0)
            return true;
    return false;
}

bool budget_wants_stats(const char *keep)
{
    pith_policy_info info;
    if (keep == NULL || strstr(keep, "stats=") != NULL || !find_policy(keep, &info))
        return false;
    bool global = strstr(keep, ":global") != NULL || strstr(keep, "granularity=global") != NULL;
    return strncmp(info.file, "stats", 5) == 0 || strstr(keep, "split=calibrated") != NULL ||
           (global && !info.ranks_lanes);
}

char *budget_stats_path(const pith_model *model)
{
    char name[64], *models = models_folder();
    char *slash = strrchr(models, '/');
    *slash = '\0'; /* beside the models */
    snprintf(name, sizeof(name), "%016" PRIx64 ".stats", pith_model_fingerprint(model));
    char *path = models_join(models, "/", name);
    free(models);
    return path;
}

pith_status budget_check_stats(const pith_model *model, const char *path, pith_error *err)
{
    pith_stats *stats = NULL;
    pith_importance_info importance;
    pith_status status = pith_stats_load(path, &stats, err);
    if (status == PITH_OK)
        status = pith_stats_check(stats, model, err);
    if (status == PITH_OK && pith_stats_get_importance(stats, &importance) != PITH_OK) {
        snprintf(err->message, sizeof(err->message), "%.128s holds no importance", path);
        status = PITH_NOT_FOUND;
    }
    pith_stats_free(stats);
    return status;
}

const char *budget_find_stats(struct session *s)
{
    pith_error err;
    if (s->stats != NULL || s->stats_are_bad)
        return s->stats;
    if (getenv("XDG_CACHE_HOME") == NULL && getenv("HOME") == NULL)
        return NULL;
    char *path = budget_stats_path(s->model);
    bool there = strlen(path) < 256 && strchr(path, ',') == NULL && access(path, F_OK) == 0;
    s->stats_are_bad = there && budget_check_stats(s->model, path, &err) != PITH_OK;
    if (s->stats_are_bad && !s->quiet)
        cli_note("%s: its statistics are left out; \"pith calibrate %s\" learns them anew",
                 err.message, s->path);
    if (there && !s->stats_are_bad)
        s->stats = path;
    else
        free(path);
    return s->stats;
}

/* The policy with one option more, owned by the session as *kept. */
static const char *with_option(char **kept, const char *policy, const char *key, const char *value)
{
    size_t size = strlen(policy) + strlen(key) + strlen(value) + 3;
    char *text = cli_alloc(size, 1);
    snprintf(text, size, "%s%c%s=%s", policy, strchr(policy, ':') != NULL ? ',' : ':', key, value);
    free(*kept);
    return *kept = text;
}

static void add_stats(struct session *s, struct memory_options *o)
{
    if (budget_wants_stats(o->keep) && budget_find_stats(s) != NULL)
        o->keep = with_option(&s->keep_text, o->keep, "stats", s->stats);
}

/* Loki's bases lie beside the statistics. */
static void add_bases(struct session *s, struct memory_options *o)
{
    if (o->read == NULL || strncmp(o->read, "loki", strcspn(o->read, ":")) != 0 ||
        strstr(o->read, "projection=") != NULL || budget_find_stats(s) == NULL)
        return;
    char *bases = models_join(s->stats, ".", "loki");
    if (access(bases, R_OK) == 0)
        o->read = with_option(&s->read_text, o->read, "projection", bases);
    free(bases);
}

pith_status budget_read_threshold(const char *path, char value[BUDGET_THRESHOLD], pith_error *err)
{
    char line[BUDGET_THRESHOLD] = "", *end = line;
    FILE *file = fopen(path, "r");
    if (file == NULL && errno == ENOENT)
        return PITH_NOT_FOUND;
    if (file != NULL && fgets(line, sizeof(line), file) != NULL)
        line[strcspn(line, "\r\n")] = '\0';
    if (file != NULL)
        fclose(file);
    bool named = strncmp(line, "block=", 6) == 0;
    strcpy(value, named ? line + 6 : "");
    double block = strtod(value, &end);
    if (strcmp(value, "auto") == 0 || (block > 0.0 && isfinite(block) && *end == '\0'))
        return PITH_OK;
    err->status = PITH_FORMAT;
    snprintf(err->message, sizeof(err->message),
             "%.128s: the first line is \"%.40s\", not block=auto or like block=0.8", path, line);
    return PITH_FORMAT;
}

/* Thresholds of another form or mode are of other distances. */
static void add_threshold(struct session *s, struct memory_options *o)
{
    static const char *const own[] = {"block=", "quantile=", "form=", "mode="};
    char value[BUDGET_THRESHOLD];
    pith_error err;
    if (o->share == NULL || strncmp(o->share, "memshare", strcspn(o->share, ":")) != 0)
        return;
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strstr(o->share, own[i]) != NULL)
            return;
    if (budget_find_stats(s) == NULL)
        return;
    char *path = models_join(s->stats, ".", "share");
    pith_status status = budget_read_threshold(path, value, &err);
    if (status == PITH_FORMAT)
        cli_fail("%s: \"pith calibrate %s\" learns it anew", err.message, s->path);
    if (status == PITH_OK && strcmp(value, "auto") != 0)
        o->share = with_option(&s->share_text, o->share, "block", value);
    free(path);
}

const char *budget_calibration_time(const pith_model_info *info, char buf[32])
{
    double seconds = CALIBRATION_S_PER_PARAM * (double)info->n_param;
    if (seconds < 100.0)
        snprintf(buf, 32, "%.0f seconds", seconds < 5.0 ? 5.0 : seconds);
    else
        snprintf(buf, 32, "%.0f minutes", seconds / 60.0);
    return buf;
}

/* ---- the plan ---- */

static int64_t reserve_of(int64_t unused)
{
    int64_t part = unused / RESERVE_PART, least = unused / RESERVE_MOST_PART;
    least = least < RESERVE_LEAST ? least : RESERVE_LEAST;
    return part > least ? part : least;
}

/* On a GPU what fits there beside the weights of both models. Else what the process can have. */
static int64_t free_bytes(const struct session *s, const struct model_options *m, bool *on_gpu)
{
    pith_error err;
    char all[32];
    pith_model_info draft = {0};
    pith_device_info device;
    pith_engine_params p = draft_params(m, 1);
    cli_check(pith_device_find(p.device, &device, &err), &err);
    *on_gpu = strcmp(device.name, "cpu") != 0;
    int64_t rest = device.free_bytes - reserve_of(device.free_bytes);
    if (*on_gpu && s->draft_model != NULL)
        pith_model_get_info(s->draft_model, &draft);
    if (*on_gpu)
        rest = session_room(s->model, m) - draft.weight_bytes;
    if (rest <= 0)
        cli_fail("--kv auto: %s of memory are free, which is too little",
                 cli_bytes(device.free_bytes, all));
    return rest;
}

/* Bytes of the process beside KV memory, of both models. */
static int64_t process_bytes(const struct session *s, const struct model_options *m,
                             const pith_engine_params *p)
{
    pith_error err;
    int64_t taken, draft, now;
    cli_check(pith_process_bytes(s->model, p, &taken, &err), &err);
    if (s->draft_model == NULL)
        return taken;
    const pith_engine_params drafting = draft_params(m, p->chunk);
    cli_check(pith_process_bytes(s->draft_model, &drafting, &draft, &err), &err);
    cli_check(pith_process_bytes(NULL, NULL, &now, &err), &err);
    return taken + draft - now;
}

/* ---- what answers take beside KV memory ---- */

/* Beside the process some bytes are left. Rows of answers may take one part of them, and rows of
   drafts another. Else there are fewer. */
#define ANSWERS_PART 3
#define DRAFTS_PART 4
#define PASS_EXTRA ((int64_t)8 << 20) /* of an engine, beside rows of a pass */
#define DRAFTING_AT_ONCE 4            /* answers of a scheduler */
#define INDEX_BYTES 80                /* of a token, in the index in which drafts are looked up */

/* Of n answers at once, whose drafts have up to n_draft tokens. */
static int64_t beside_of(const struct session *s, int32_t n, int32_t n_draft)
{
    pith_error err;
    int64_t bytes;
    if (n_draft > 0)
        n_draft += s->n_answer > 0 ? DRAFTING_AT_ONCE : 1;
    cli_check(pith_answers_bytes(s->model, s->sample, n, n_draft, &bytes, &err), &err);
    return bytes;
}

/* Bytes of answers beside KV memory, where `left` bytes are left for both. Fewer answers run at
   once, and drafts are shorter, where their rows would take most of it. */
static int64_t answers_bytes(struct session *s, const char *kv, int64_t left, int32_t n_token)
{
    char each[32];
    int32_t n = s->n_answer > 0 ? s->n_answer : 1, asked = n;
    int32_t least = s->least_answer > 0 ? s->least_answer : 1;
    bool may_draft = s->drafting == NULL || strcmp(s->drafting, "auto") == 0;
    int64_t one = beside_of(s, 1, 0);
    while (s->draft_most > (may_draft ? 0 : 1) &&
           beside_of(s, 1, s->draft_most) - one > left / DRAFTS_PART)
        s->draft_most /= 2;
    while (n > least && beside_of(s, n, 0) > left / ANSWERS_PART)
        n--;
    if (n < asked && !s->quiet)
        cli_note("--kv %s: at most %d answers run at once, as each takes %s beside KV memory", kv,
                 n, cli_bytes(one, each));
    s->n_answer = s->n_answer > 0 ? n : 0;
    pith_ranks_tell(&s->draft_most, sizeof(s->draft_most)); /* all draft alike */
    return beside_of(s, n, s->draft_most) +
           (s->draft_most > 0 ? INDEX_BYTES * (int64_t)n_token : 0);
}

/* ---- what tasks take ---- */

#define ROWS_MOST 64 /* of logits that a pass computes together, at most */

/* Buffers of the engine beside the measured one. Weights, which the two share, cancel. */
static int64_t pass_bytes(const struct session *s, const pith_engine_params *p)
{
    pith_error err;
    int64_t chunk, one;
    pith_engine_params least = *p;
    least.chunk = 1;
    cli_check(pith_process_bytes(s->model, p, &chunk, &err), &err);
    cli_check(pith_process_bytes(s->model, &least, &one, &err), &err);
    return chunk - one + PASS_EXTRA;
}

static bool is_kept(const char *keep)
{
    return keep != NULL && keep[0] != '\0' && strcmp(keep, "none") != 0;
}

/* Rows of logits of all engines of a task, the buffers of the second, and the full cache of a text
   in it. */
static int64_t task_bytes(const struct session *s, const pith_engine_params *f16, int32_t n_token,
                          int64_t *full)
{
    bool read = f16->read != NULL && strcmp(f16->read, "none") != 0;
    bool pairs = s->pairs == PAIRS_ALWAYS ||
                 (s->pairs == PAIRS_WITH_A_POLICY && (read || is_kept(f16->keep)));
    pith_error err;
    *full = 0;
    int64_t rows = 2 * beside_of(s, ROWS_MOST, 0) - beside_of(s, 2 * ROWS_MOST, 0);
    if (!pairs)
        return rows;
    pith_engine_params p = *f16;
    p.keep = p.read = p.recall = p.share = NULL;
    cli_check(pith_kv_estimate(s->model, &p, n_token, full, &err), &err);
    int64_t held = EVAL_BOUNDED_STEP * (int64_t)s->info.n_vocab * (int64_t)sizeof(float);
    return 2 * rows + pass_bytes(s, &p) + *full + (s->pairs == PAIRS_ALWAYS ? held : 0);
}

/* Bytes of KV memory that a value means; 0: a share says it. Unless --swap says so nothing of a
   size is kept in host memory, where it would be on top. */
static int64_t bytes_of(struct session *s, const struct model_options *m,
                        const pith_engine_params *p, const char *text, const struct budget *b,
                        int32_t n_token)
{
    char all[32], aside[32];
    bool on_gpu = false;
    if (b->share > 0.0)
        return 0;
    int64_t bytes = b->automatic ? free_bytes(s, m, &on_gpu) : b->bytes;
    if (on_gpu) /* host memory is none of a GPU's */
        return bytes;
    int64_t taken = process_bytes(s, m, p);
    if (b->automatic) { /* what is free is beside what is taken already */
        pith_error err;
        int64_t now;
        cli_check(pith_process_bytes(NULL, NULL, &now, &err), &err);
        taken -= now;
    }
    if (s->swap_bytes < 0)
        s->swap_bytes = 0;
    if (s->task)
        taken += task_bytes(s, p, n_token, &s->task_bytes);
    else if (bytes - taken > s->swap_bytes)
        taken += answers_bytes(s, text, bytes - taken - s->swap_bytes, n_token);
    if (bytes <= taken)
        cli_fail("--kv %s: weights, buffers and tables of the process take %s, which leaves "
                 "nothing to the KV memory",
                 text, cli_bytes(taken, all));
    if (bytes - taken <= s->swap_bytes)
        cli_fail("--kv %s: --swap takes %s of the %s that are left beside weights, buffers and "
                 "tables, which leaves nothing to the KV memory",
                 text, cli_bytes(s->swap_bytes, aside), cli_bytes(bytes - taken, all));
    if (s->task)
        s->task_bytes += bytes - taken - s->swap_bytes;
    return bytes - taken - s->swap_bytes;
}

/* How long conversations are that a drafting model is for: as said, at most so, or several. */
enum draft_length { LENGTH_KNOWN, LENGTH_MOST, LENGTH_SEVERAL };

static int64_t part_of(int64_t all, double mine, double other)
{
    return (int64_t)((double)all * (mine / (mine + other)));
}

/* KV memory of the drafting model for a conversation. It keeps all entries, as far as its context
   goes. */
static int64_t draft_need(const struct session *s, const struct model_options *m, int32_t chunk,
                          int32_t n_token)
{
    pith_error err;
    pith_model_info info;
    int64_t bytes;
    if (s->draft_model == NULL)
        return 0;
    pith_model_get_info(s->draft_model, &info);
    const pith_engine_params p = draft_params(m, chunk);
    cli_check(pith_memory_estimate(s->draft_model, &p,
                                   n_token < info.n_ctx_train ? n_token : info.n_ctx_train, &bytes,
                                   &err),
              &err);
    return bytes;
}

/* The drafting model's part of the bytes. One conversation takes no more than `need`, and where its
   length is known less would be of no use. Several get the part under which both models hold as
   many tokens. Where not even one fits in full, the other one spends fewer bits. */
static int64_t draft_part(const struct session *s, const struct model_options *m, int32_t n_token,
                          int64_t all, int64_t need, enum draft_length length)
{
    pith_error err;
    int64_t full;
    if (need == 0)
        return 0;
    const pith_engine_params p = draft_params(m, 1);
    cli_check(pith_memory_estimate(s->model, &p, n_token, &full, &err), &err);
    if (length == LENGTH_SEVERAL && all >= need + full)
        return part_of(all, (double)need, (double)full);
    if (length == LENGTH_KNOWN || all >= need + full)
        return need;
    int64_t part = part_of(all, (double)need, FEW_BITS * (double)full);
    return part < need ? part : need;
}

/* The options as params, of which the plan chooses what is NULL. */
static pith_engine_params given_params(const struct model_options *m,
                                       const struct memory_options *o)
{
    struct memory_options defaults;
    pith_engine_params p = engine_params(m, o);
    memory_options_default(&defaults);
    p.type_k = o->type_k == defaults.type_k ? NULL : o->type_k;
    p.type_v = o->type_v == defaults.type_v ? NULL : o->type_v;
    p.chunk = o->chunk == defaults.chunk ? 0 : o->chunk;
    p.kv_tokens = 0;
    return p;
}

static void say(const struct session *s, const struct memory_options *o)
{
    char time[32];
    if (s->quiet)
        return;
    cli_note("--kv %s: %s", o->kv, s->plan.line);
    if (s->plan.wants_stats)
        cli_note(
            "\"pith calibrate %s\" would lose less: it learns once, in about %s, which entries "
            "matter",
            s->path, budget_calibration_time(&s->info, time));
}

/* Whether drafts were asked for by name, so that no choice may forbid them. */
static bool must_draft(const struct session *s)
{
    return s->drafting != NULL && strcmp(s->drafting, "auto") != 0 &&
           strcmp(s->drafting, "none") != 0;
}

/* Sets the bytes of the goal, and the drafting model's. */
static void divide(struct session *s, const struct model_options *m, const struct memory_options *o,
                   enum draft_length length, const struct budget *b, pith_plan_goal *goal)
{
    char takes[32], there[32];
    pith_engine_params f16 = engine_params(m, o);
    f16.type_k = f16.type_v = "f16";
    f16.kv_tokens = 0;
    int32_t n = goal->n_token > 0 ? goal->n_token : s->info.n_ctx_train;
    int64_t all = bytes_of(s, m, &f16, o->kv, b, n);
    int64_t need = draft_need(s, m, o->chunk, n);
    if (b->share > 0.0) {
        s->draft_bytes = need;
        return;
    }
    s->draft_bytes = draft_part(s, m, n, all, need, length);
    goal->bytes = all - s->draft_bytes;
    if (goal->bytes <= 0)
        cli_fail(
            "--kv %s leaves %s beside weights and buffers, of which --draft %s takes %s for %d "
            "tokens: nothing is left to the model",
            o->kv, cli_bytes(all, there), s->drafting, cli_bytes(need, takes), n);
}

static void plan(struct session *s, const struct model_options *m, struct memory_options *o,
                 enum budget_use use, int64_t n_token)
{
    pith_error err;
    struct budget b = budget_parse(o->kv);
    pith_engine_params p = given_params(m, o);
    bool several = use == BUDGET_SERVER || use == BUDGET_BATCH;
    pith_plan_goal goal = {.share = b.share,
                           .stats = budget_find_stats(s),
                           .no_text = use == BUDGET_TEXTS,
                           .drafts = must_draft(s)};
    bool known = n_token < s->info.n_ctx_train || (use == BUDGET_ONE && n_token < INT32_MAX);
    goal.n_token = o->n_ctx > 0 ? o->n_ctx : known ? (int32_t)n_token : 0;
    enum draft_length length = n_token > 0 ? LENGTH_KNOWN : LENGTH_MOST;
    divide(s, m, o, several ? LENGTH_SEVERAL : length, &b, &goal);
    bool beyond = goal.n_token > s->info.n_ctx_train;
    if (beyond) {
        goal.bytes -= goal.bytes / BEYOND_PART;
        goal.share -= goal.share < 1.0 ? goal.share / BEYOND_PART : 0.0;
    }
    pith_status status = pith_plan_make(s->model, &p, &goal, &s->plan, &err);
    if (status != PITH_OK && b.share > 0.0 && o->n_ctx == 0 && use != BUDGET_TEXTS &&
        use != BUDGET_QUESTIONS && goal.n_token > 0 && goal.n_token < SHORT_TEXT) {
        goal.n_token = SHORT_TEXT < s->info.n_ctx_train ? SHORT_TEXT : s->info.n_ctx_train;
        divide(s, m, o, length, &b, &goal);
        status = pith_plan_make(s->model, &p, &goal, &s->plan, NULL);
    }
    if (status == PITH_OK && s->task && s->pairs == PAIRS_WITH_A_POLICY && s->task_bytes > 0 &&
        is_kept(s->plan.keep)) { /* which needs the full cache to compare with */
        s->pairs = PAIRS_ALWAYS;
        divide(s, m, o, length, &b, &goal);
        status = pith_plan_make(s->model, &p, &goal, &s->plan, &err);
    }
    if (status != PITH_OK)
        cli_fail("--kv %s: %s", o->kv, err.message);
    say(s, o);
    p.type_k = o->type_k;
    p.type_v = o->type_v;
    p.chunk = o->chunk;
    pith_plan_apply(&s->plan, &p);
    o->chunk = p.chunk;
    o->type_k = p.type_k;
    o->type_v = p.type_v;
    o->keep = p.keep;
    o->recall = p.recall;
    o->n_ctx = 0;
    if (use == BUDGET_ONE)
        o->kv_bytes = s->plan.bytes + (beyond ? s->plan.bytes / BEYOND_PART : 0);
    if (several)
        o->kv_bytes = goal.bytes;
}

void budget_several(struct session *s, const struct model_options *m, struct memory_options *o,
                    int64_t n)
{
    pith_error err;
    int64_t bytes, most = session_room(s->model, m);
    pith_engine_params params = engine_params(m, o);
    if (o->n_ctx > 0 || o->kv_bytes > 0)
        return;
    int64_t n_token = s->plan.n_token > 0 ? s->plan.n_token : s->info.n_ctx_train;
    cli_check(pith_memory_estimate(s->model, &params, n_token, &bytes, &err), &err);
    double times = (double)n, whole = (double)(bytes + s->draft_bytes);
    if (most > 0 && whole * times > (double)most)
        times = (double)most / whole;
    o->kv_bytes = (int64_t)((double)bytes * times);
    s->draft_bytes = (int64_t)((double)s->draft_bytes * times);
}

int32_t budget_context(const struct session *s)
{
    return s->keep == NULL || strcmp(s->keep, "none") == 0 ? s->plan.n_token : 0;
}

/* Turns recall on for entries that a keep policy evicts, unless it is declined or the policies do
   not go together. */
static void recall_by_default(const struct session *s, const struct model_options *m,
                              struct memory_options *o)
{
    pith_error err;
    int64_t bytes;
    if (o->keep == NULL || strcmp(o->keep, "none") == 0 || o->recall != NULL)
        return;
    o->recall = "kv";
    pith_engine_params params = engine_params(m, o);
    if (o->chunk < ASKING ||
        (must_draft(s) && pith_policies_fit(&params, PITH_USE_DRAFT, &err) != PITH_OK)) {
        o->recall = NULL; /* explicit options forbid the default */
        return;
    }
    if (pith_kv_estimate(s->model, &params, s->info.n_ctx_train, &bytes, &err) == PITH_OK)
        return;
    o->recall = params.recall = NULL;
    /* A policy that is refused either way is refused later. */
    pith_error other;
    bool alone =
        pith_kv_estimate(s->model, &params, s->info.n_ctx_train, &bytes, &other) == PITH_OK;
    if (alone && !s->quiet)
        cli_note("entries that --keep evicts do not come back: %s", err.message);
}

void budget_settle(struct session *s, const struct model_options *m, struct memory_options *o,
                   enum budget_use use, int64_t n_token)
{
    add_stats(s, o);
    add_bases(s, o);
    add_threshold(s, o);
    if (o->kv != NULL)
        plan(s, m, o, use, n_token);
    else if (use == BUDGET_ONE || use == BUDGET_SERVER)
        recall_by_default(s, m, o);
    outputs_agree_policies((const char *const[]){o->keep, o->read}, 2);
    o->kv = NULL;
    if (s->swap_bytes < 0) {
        pith_scheduler_params usual;
        pith_scheduler_params_default(&usual);
        s->swap_bytes = usual.swap_bytes;
    }
}
