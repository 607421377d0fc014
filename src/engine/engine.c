/*
 * engine.c - engines and sequences as objects: creation, forking, truncation. eval.c gives them
 * tokens, and files.c has their files. Invariant: every lane of a sequence that no policy has
 * altered holds one entry per token of seq->tokens.
 */
#include "engine/engine.h"

#include "base/mem.h"
#include "base/processors.h"
#include "base/ranks.h"
#include "base/threads.h"
#include "engine/over_ranks.h"
#include "engine/sampler.h"
#include "engine/split.h"
#include "model/delta.h"
#include "pith/plan.h"

#define MAX_CHUNK 8192

void pith_engine_params_default(pith_engine_params *out)
{
    *out = (pith_engine_params){.chunk = 512, .type_k = "f16", .type_v = "f16"};
}

/* The params as checked numbers. */
struct plan {
    struct kv_geometry geometry;
    struct kv_geometry given; /* with the types that were asked for */
    bool k_replaced;          /* K's are others */
    int64_t kv_bytes;
    int32_t n_thread;
    int32_t chunk;
    struct policy_set policies;
    struct policy_model model;
    struct pi_account account;
    struct pi_split split;
    struct pi_stages stages;
    int64_t room; /* bytes of pages that there is room for */
};

/* Values that are parts of keys are stored as these are, where that is what was asked for. */
static void follow_keys(const struct kv_geometry *given, struct kv_geometry *g)
{
    if (g->v_in_k > 0 && given->type_v == given->type_k)
        g->type_v = g->type_k;
    if (g->v_in_k > 0 && given->edge_v.type == given->edge_k.type)
        g->edge_v.type = g->edge_k.type;
}

/* Keys of few bits cost most where many query heads share them. With 7 to 1 in Qwen2.5-7B turbo3
   raises the perplexity from 6.6 to 3,556, with q8_0 for K to 6.7 (TurboQuant+, "asymmetric KV
   compression"). There K is q8_0 instead, in all layers that would be turbo, unless forced. */
static pith_status choose_types(const struct pi_hparams *hp, const pith_engine_params *params,
                                struct plan *out, pith_error *err)
{
    struct kv_geometry *g = &out->geometry;
    struct kv_type_choice *k = &out->policies.k;
    PI_TRY(kv_geometry_read_types(g, params->type_k, params->type_v, k, err));
    out->given = *g;
    if (k->force || pi_shape_group(hp) < PITH_SHARED_KEYS)
        return PITH_OK;
    out->k_replaced = kv_type_is_rotated(g->type_k) || kv_type_is_rotated(g->edge_k.type);
    if (out->k_replaced && kv_type_group(KV_TYPE_Q8_0, hp->dim_k) == 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "type_k: \"%.64s\": %d query heads share a KV head, so K should be q8_0, "
                       "which cannot store a head size of %d; \"%s:force\" takes %s",
                       params->type_k, hp->n_head / hp->n_head_kv, hp->dim_k,
                       kv_type_name(g->type_k), kv_type_name(g->type_k));
    if (kv_type_is_rotated(g->type_k))
        g->type_k = KV_TYPE_Q8_0;
    if (kv_type_is_rotated(g->edge_k.type))
        g->edge_k.type = KV_TYPE_Q8_0;
    follow_keys(&out->given, g);
    return PITH_OK;
}

/* Makes the keep policy, which knows what its rounds take. */
static pith_status open_account(struct plan *plan, pith_error *err)
{
    return keep_create(&plan->policies.keep, &plan->model, plan->n_thread, &plan->account.keep,
                       err);
}

static void close_account(struct plan *plan)
{
    keep_free(plan->account.keep);
    plan->account.keep = NULL;
}

/* The bytes of pages, and of recall's tier. */
static pith_status size_memory(const pith_engine_params *params, struct plan *out, pith_error *err)
{
    const struct pi_account *a = &out->account;
    const struct pith_model *model = out->split.model;
    int64_t *ram = &out->policies.recall.kv.ram;
    if (params->memory_bytes > 0 && (params->kv_bytes > 0 || params->kv_tokens > 0))
        return pi_fail(err, PITH_INVALID,
                       "memory_bytes: %lld is for everything, and %s: %lld for pages alone: give "
                       "one",
                       (long long)params->memory_bytes,
                       params->kv_bytes > 0 ? "kv_bytes" : "kv_tokens",
                       (long long)(params->kv_bytes > 0 ? params->kv_bytes : params->kv_tokens));
    if (params->memory_bytes > 0) {
        pith_status status = open_account(out, err);
        if (status == PITH_OK)
            status = pi_account_split(a, pi_over_ranks_part(model, params->memory_bytes),
                                      &out->kv_bytes, ram, err);
        close_account(out);
        return status;
    }
    out->kv_bytes = pi_account_pages(a, a->n_ctx);
    if (params->kv_tokens > 0)
        out->kv_bytes = kv_bytes_for_tokens(&out->geometry, params->kv_tokens) +
                        kv_bytes_of_state(&out->geometry);
    if (params->kv_bytes > 0)
        out->kv_bytes = pi_over_ranks_part(model, params->kv_bytes);
    *ram = pi_account_tier(a, out->kv_bytes);
    return PITH_OK;
}

/* Tokens that a device has room for at least, unless params say otherwise. */
#define ROOM_TOKENS 8192

/* Where the layers are. Without a size of their own pages are as many as fit beside them. */
static pith_status split_layers(const pith_engine_params *params, struct plan *out, pith_error *err)
{
    const struct pi_account *a = &out->account;
    bool sized = params->memory_bytes > 0 || params->kv_bytes > 0 || params->kv_tokens > 0;
    int32_t n_token = params->n_gpu_layers == 0 ? ROOM_TOKENS : 1;
    int64_t least = sized ? out->kv_bytes : pi_account_pages(a, (int32_t)pi_min(n_token, a->n_ctx));
    PI_TRY(pi_split_plan(&out->split, params->n_gpu_layers, least, &out->stages, &out->room, err));
    if (!sized && out->room < out->kv_bytes) {
        out->kv_bytes = out->room;
        out->policies.recall.kv.ram = pi_account_tier(a, out->room);
    }
    pi_split_bound(&out->split, &out->stages, out->kv_bytes);
    return PITH_OK;
}

static pith_status make_plan(const pith_model *model, const pith_engine_params *params,
                             struct plan *out, pith_error *err)
{
    pith_engine_params defaults;
    const struct pi_hparams *hp = &model->hp;
    pith_engine_params_default(&defaults);
    if (params == NULL)
        params = &defaults;
    if (hp->n_layer == 0)
        return pi_fail(err, PITH_UNSUPPORTED, "the model's file says no shape that Pith can run");
    PI_TRY(pi_check_range("n_thread", params->n_thread, 0, PI_THREADS_MOST, err));
    PI_TRY(pi_check_range("chunk", params->chunk, 1, MAX_CHUNK, err));
    PI_TRY(pi_check_range("kv_bytes", params->kv_bytes, 0, INT64_MAX / 2, err));
    PI_TRY(pi_check_range("kv_tokens", params->kv_tokens, 0, INT32_MAX, err));
    PI_TRY(pi_check_range("memory_bytes", params->memory_bytes, 0, INT64_MAX / 2, err));
    PI_TRY(
        pi_check_range("n_gpu_layers", params->n_gpu_layers, PITH_GPU_LAYERS_NONE, INT32_MAX, err));
    struct pi_split split = {.model = model, .max_tok = params->chunk, .n_ctx = hp->n_ctx_train};
    PI_TRY(pi_split_open(&split, params, err));
    *out = (struct plan){
        .geometry = {.n_layer = hp->n_layer_kv,
                     .n_head = hp->n_head_kv,
                     .dim_k = hp->dim_k,
                     .dim_v = hp->dim_v,
                     .v_in_k = hp->latent.n_rank > 0 ? hp->n_rot : 0,
                     .page_len = params->page_len,
                     .window = model->kv_window,
                     .step_len = params->chunk,
                     .state_bytes = pi_delta_state_bytes(&hp->delta),
                     .device = split.device[0]},
        .n_thread = params->n_thread > 0 ? params->n_thread : pi_thread_count(),
        .chunk = params->chunk,
        .split = split,
    };
    out->split.geometry = &out->geometry;
    struct policy_set *policies = &out->policies;
    PI_TRY(policy_set_parse(params, policies, err));
    if (params->page_len == 0)
        out->geometry.page_len = policy_set_page_len(policies);
    PI_TRY(choose_types(hp, params, out, err));
    PI_TRY(pi_over_ranks_check(model, policies, split.device[0], err));
    PI_TRY(pi_over_ranks_fit(model, policies, &out->geometry, err));
    PI_TRY(kv_geometry_check(&out->geometry, err));
    PI_TRY(policy_set_fit(policies, &out->geometry, err));
    if (policy_set_verb(policies) != NULL)
        PI_TRY(pi_model_check_full(model, policy_set_verb(policies), err));
    const struct kv_geometry lanes = kv_full_lanes(&out->geometry);
    out->model = pi_policy_model(model, &lanes);
    out->account = (struct pi_account){.g = &out->geometry,
                                       .policies = policies,
                                       .n_group = out->model.n_group,
                                       .n_ctx = hp->n_ctx_train,
                                       .ram = policies->recall.kv.ram,
                                       .mark_size = pi_keep_mark_size(policies, &out->geometry),
                                       .model = &out->model};
    PI_TRY(size_memory(params, out, err));
    return split_layers(params, out, err);
}

pith_status pith_kv_estimate(const pith_model *model, const pith_engine_params *params,
                             int64_t n_token, int64_t *bytes, pith_error *err)
{
    struct plan plan;
    PI_TRY(make_plan(model, params, &plan, err));
    PI_TRY(pi_check_range("n_token", n_token, 0, INT32_MAX, err));
    *bytes = pi_over_ranks_whole(model, pi_account_pages(&plan.account, (int32_t)n_token));
    return PITH_OK;
}

pith_status pith_memory_estimate(const pith_model *model, const pith_engine_params *params,
                                 int64_t n_token, int64_t *bytes, pith_error *err)
{
    struct plan plan;
    PI_TRY(make_plan(model, params, &plan, err));
    PI_TRY(pi_check_range("n_token", n_token, 0, INT32_MAX, err));
    PI_TRY(open_account(&plan, err));
    *bytes = pi_over_ranks_whole(model, pi_account_whole(&plan.account, (int32_t)n_token));
    close_account(&plan);
    return PITH_OK;
}

pith_status pith_kv_room(const pith_model *model, const pith_engine_params *params, int64_t *bytes,
                         pith_error *err)
{
    struct plan plan;
    pith_engine_params unsized;
    pith_engine_params_default(&unsized);
    if (params != NULL)
        unsized = *params;
    unsized.kv_bytes = unsized.memory_bytes = 0;
    unsized.kv_tokens = 0;
    PI_TRY(make_plan(model, &unsized, &plan, err));
    *bytes =
        pi_over_ranks_whole(model, plan.room < INT64_MAX ? plan.room : pi_split_half(&plan.split));
    return PITH_OK;
}

/* The products' own buffers and what threads have, beside the rows of a pass. */
#define PASS_EXTRA ((int64_t)8 << 20)

pith_status pith_process_bytes(const pith_model *model, const pith_engine_params *params,
                               int64_t *bytes, pith_error *err)
{
    struct plan plan;
    pith_engine_params unsized;
    int64_t own, of_files, weights = 0;
    pi_memory_resident(&own, &of_files);
    if (own < 0 || of_files < 0)
        return pi_fail(err, PITH_UNSUPPORTED, "the system does not say what the process takes");
    *bytes = own + of_files;
    if (model == NULL)
        return PITH_OK;
    pith_engine_params_default(&unsized);
    if (params != NULL)
        unsized = *params;
    unsized.kv_bytes = unsized.memory_bytes = 0;
    unsized.kv_tokens = 1;
    PI_TRY(make_plan(model, &unsized, &plan, err));
    *bytes += PASS_EXTRA + (int64_t)model->hp.n_vocab * (int64_t)sizeof(float);
    for (int32_t i = 0; i < plan.stages.n; i++) {
        const struct pi_stage *stage = &plan.stages.stage[i];
        bool there =
            stage->device->in_host && model->weights != NULL && model->weights_file.data == NULL;
        weights += there ? 0 : pi_split_weights(model, stage);
        *bytes += pi_pass_stage_bytes(model, stage, plan.chunk);
    }
    /* Of a mapped file those that were read count already, beside pages of other files. */
    if (model->weights_file.data != NULL)
        weights -= pi_min(
            weights, pi_memory_resident_in(model->weights_file.data, model->weights_file.size));
    *bytes += weights;
    return PITH_OK;
}

/* Beside its row and its sampler: the end of its text, stop strings, and what callers know. */
#define ANSWER_EXTRA ((int64_t)16 << 10)

pith_status pith_answers_bytes(const pith_model *model, const pith_sample_params *sample,
                               int32_t n_answer, int32_t n_draft, int64_t *bytes, pith_error *err)
{
    const int64_t row = (int64_t)model->hp.n_vocab * (int64_t)sizeof(float);
    int64_t changes = sample == NULL || pi_sampler_changes(sample); /* of all samplers together */
    int64_t in_pass = pi_min(pi_batch_rows(model, true, PI_PASS_LOGITS), pi_max(n_answer, n_draft));
    PI_TRY(pi_check_range("n_answer", n_answer, 0, INT32_MAX, err));
    PI_TRY(pi_check_range("n_draft", n_draft, 0, INT32_MAX, err));
    int64_t one = row + pi_sampler_bytes(sample, model->hp.n_vocab) + ANSWER_EXTRA;
    *bytes = n_answer * one + (n_draft + pi_max(0, in_pass - 1) + changes) * row;
    return PITH_OK;
}

static void describe_stage(const pith_model *model, const struct pi_stage *stage,
                           pith_stage_info *out)
{
    *out = (pith_stage_info){
        .device = stage->device->name,
        .first_layer = model->hp.whole.first_layer + stage->begin,
        .n_layer = stage->end - stage->begin,
        .output = stage->output,
        .weight_bytes = pi_split_weights(model, stage),
    };
}

pith_status pith_stage_plan(const pith_model *model, const pith_engine_params *params, int32_t i,
                            pith_stage_info *out, pith_error *err)
{
    struct plan plan;
    PI_TRY(make_plan(model, params, &plan, err));
    if (i < 0 || i >= plan.stages.n)
        return pi_fail(err, PITH_NOT_FOUND, "stage %d: an engine of these params has %d", i,
                       plan.stages.n);
    describe_stage(model, &plan.stages.stage[i], out);
    return PITH_OK;
}

struct policy_model pi_engine_policy_model(const struct pith_engine *e)
{
    return pi_policy_model(e->model, &e->lanes);
}

static pith_status open_verbs(struct pith_engine *e, const struct plan *plan,
                              const pith_engine_params *params, pith_error *err)
{
    struct policy_model model = pi_engine_policy_model(e);
    e->policies = plan->policies;
    e->traits = engine_traits_compute(&e->policies);
    PI_TRY(pi_verbs_open(e, params, &model, err));
    return pi_engine_update_tap(e, NULL, NULL, err);
}

static void log_stage(const struct plan *plan, int32_t i)
{
    const struct pi_stage *s = &plan->stages.stage[i];
    pi_log(PITH_LOG_INFO,
           "stage=%d device=%s layers=%d..%d output=%d weight_bytes=%lld kv_bytes=%lld", i,
           s->device->name, s->begin, s->end, s->output,
           (long long)pi_split_weights(plan->split.model, s), (long long)plan->kv_bytes);
}

/* Threads with buffers of their own. They are never more than the loops have. */
static pith_status count_workers(const pith_engine_params *params, struct plan *plan, int32_t *out,
                                 pith_error *err)
{
    int64_t budget = pi_over_ranks_part(plan->split.model, params->memory_bytes);
    int64_t *ram = &plan->policies.recall.kv.ram, found = *ram;
    PI_TRY(open_account(plan, err));
    *ram = plan->account.ram;
    *out = pi_account_workers(&plan->account, budget, plan->kv_bytes);
    *ram = found;
    close_account(plan);
    *out = (int32_t)pi_min(*out, pi_min(plan->n_thread, pi_thread_count()));
    return PITH_OK;
}

pith_status pith_engine_create(const pith_model *model, const pith_engine_params *params,
                               pith_engine **out, pith_error *err)
{
    struct plan plan;
    pith_engine_params defaults;
    pith_engine_params_default(&defaults);
    if (params == NULL)
        params = &defaults;
    if (model == NULL || out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_engine_create: model and out must not be NULL");
    if (model->weights == NULL)
        return pi_fail(err, PITH_UNSUPPORTED, "the model was loaded for its vocabulary only");
    PI_TRY(pi_ranks_agree(make_plan(model, params, &plan, err), err));
    plan.kv_bytes = pi_over_ranks_pages(model, &plan.policies.keep, &plan.geometry, plan.kv_bytes);

    struct pith_engine *e = pi_mem_alloc(PI_MEM_OTHER, sizeof(*e));
    if (e == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for an engine");
    e->model = model;
    pi_model_hold(model);
    e->lanes = kv_full_lanes(&plan.geometry);
    e->stages = plan.stages;
    e->chunk = plan.chunk;
    e->n_thread = plan.n_thread;
    e->memory_bytes = params->memory_bytes;
    e->advance.fn = params->on_advance;
    e->advance.user = params->advance_user;
    if (plan.k_replaced)
        pi_log(PITH_LOG_INFO, "type_k=%s given=%s query_heads=%d kv_heads=%d",
               kv_type_name(plan.geometry.type_k), kv_type_name(plan.given.type_k),
               model->hp.n_head, model->hp.n_head_kv);
    for (int32_t i = 0;
         i < plan.stages.n && (plan.stages.n > 1 || plan.stages.stage[0].device != &pi_device_cpu);
         i++)
        log_stage(&plan, i);
    plan.stages.progress = params->progress;
    plan.stages.progress_user = params->progress_user;
    pith_status status = count_workers(params, &plan, &e->n_worker, err);
    if (status == PITH_OK)
        status = kv_cache_create(&plan.geometry, plan.kv_bytes, &e->kv, err);
    if (status == PITH_OK)
        status = pi_pass_create(model, &plan.geometry, &plan.stages, plan.chunk, plan.n_thread,
                                &e->pass, err);
    if (status == PITH_OK)
        status = open_verbs(e, &plan, params, err);
    if (status == PITH_OK)
        status = pi_batch_create(e, err);
    /* None of its pages is touched before a sampler changes logits. */
    e->sample_row = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)model->hp.n_vocab, sizeof(float));
    if (status == PITH_OK && e->sample_row == NULL)
        status = pi_fail(err, PITH_NOMEM, "no memory for a row of logits");
    status = pi_ranks_agree(status, err);
    if (status != PITH_OK) {
        pith_engine_free(e);
        return status;
    }
    *out = e;
    return PITH_OK;
}

void pi_engine_destroy(struct pith_engine *e)
{
    pi_batch_free(e);
    pi_mem_free(e->advance.state);
    pi_mem_free(e->sample_row);
    pi_pass_free(e->pass);
    kv_cache_free(e->kv);
    pi_verbs_close(e); /* pass and cache borrowed from them */
    pith_model_free((pith_model *)(uintptr_t)e->model);
    pi_mem_free(e);
}

const pith_model *pith_engine_model(const pith_engine *e)
{
    return e->model;
}

const char *pith_engine_device(const pith_engine *e)
{
    return kv_geometry_device(kv_cache_geometry(e->kv))->name;
}

pith_status pith_engine_stage(const pith_engine *e, int32_t i, pith_stage_info *out)
{
    if (i < 0 || i >= e->stages.n)
        return PITH_NOT_FOUND;
    const struct pi_stage *stage = &e->stages.stage[i];
    struct kv_device_parts kv;
    describe_stage(e->model, stage, out);
    kv_cache_device_parts(e->kv, stage->device, &kv);
    out->page_bytes = kv.used;
    return PITH_OK;
}

pith_status pith_engine_kv_device(const pith_engine *e, int32_t i, pith_kv_device *out)
{
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    int32_t n = g->devices.n;
    struct pi_device *d =
        n > 0 && i < n ? g->devices.part[i < 0 ? 0 : i].device : kv_geometry_device(g);
    struct kv_device_parts kv;
    if (i < 0 || i >= (n > 0 ? n : 1))
        return PITH_NOT_FOUND;
    kv_cache_device_parts(e->kv, d, &kv);
    *out = (pith_kv_device){.device = d->name,
                            .most_bytes = kv.most,
                            .used_bytes = kv.used,
                            .peak_bytes = kv.peak,
                            .idle_bytes = kv.idle};
    return PITH_OK;
}

void pith_engine_kv_stats(const pith_engine *e, pith_kv_stats *out)
{
    kv_cache_stats(e->kv, out);
    out->n_seq -= e->recall.n_guest_seq;
    out->whole_bytes = pi_over_ranks_whole(e->model, out->reserved_bytes);
    /* The policy remembers a block of each sequence. */
    out->table_bytes += out->n_seq * (int64_t)e->traits.state_size;
}
void pith_engine_kv_reset_peak(pith_engine *e)
{
    kv_cache_reset_peak(e->kv);
}

/* ---- sequences ---- */

pith_status pi_seq_alloc(struct pith_engine *e, struct pith_seq **out, pith_error *err)
{
    struct pith_seq *seq = pi_mem_alloc(PI_MEM_OTHER, sizeof(*seq));
    if (seq == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a sequence");
    seq->engine = e;
    pi_engine_hold(e);
    seq->next = e->first;
    if (e->first != NULL)
        e->first->prev = seq;
    e->first = seq;
    pith_status status = pi_verbs_start(seq, err);
    if (status != PITH_OK) {
        pith_seq_free(seq);
        return status;
    }
    *out = seq;
    return PITH_OK;
}

pith_status pi_seq_create(struct pith_engine *e, struct pith_seq **out, pith_error *err)
{
    struct pith_seq *seq = NULL;
    PI_TRY(pi_seq_alloc(e, &seq, err));
    pith_status status = pi_memory_create(&seq->memory, e->kv, err);
    if (status != PITH_OK) {
        pith_seq_free(seq);
        return status;
    }
    pi_verbs_attach(seq);
    *out = seq;
    return PITH_OK;
}

void pi_seq_destroy(struct pith_seq *seq)
{
    struct pith_engine *e = seq->engine;
    pi_generation_detach(seq);
    if (seq->prev != NULL)
        seq->prev->next = seq->next;
    else
        seq->engine->first = seq->next;
    if (seq->next != NULL)
        seq->next->prev = seq->prev;
    pi_verbs_stop(seq);
    pi_memory_free(&seq->memory);
    pi_mem_free(seq->tokens);
    pi_mem_free(seq->logits);
    pi_row_free(seq);
    pi_mem_free(seq);
    pith_engine_free(e);
}

pith_status pi_seq_grow(struct pith_seq *seq, int32_t n, pith_error *err)
{
    if (n > INT32_MAX - seq->n_token)
        return pi_fail(err, PITH_CONTEXT, "%d tokens after %d are more than a sequence can hold", n,
                       seq->n_token);
    if (seq->n_token + n <= seq->cap)
        return PITH_OK;
    int64_t all = seq->n_token + (int64_t)n;
    int64_t cap = pi_min(all + pi_max(all / 8, PI_SEQ_GROWTH), INT32_MAX);
    int32_t *tokens = pi_mem_grow(PI_MEM_TABLE, seq->tokens, (size_t)cap, sizeof(*tokens));
    if (tokens == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a list of %lld tokens", (long long)cap);
    seq->tokens = tokens;
    seq->cap = (int32_t)cap;
    return PITH_OK;
}

pith_status pi_seq_set_tokens(struct pith_seq *seq, const int32_t *tokens, int32_t n,
                              pith_error *err)
{
    PI_TRY(pi_seq_grow(seq, n, err));
    if (n > 0)
        memcpy(seq->tokens, tokens, (size_t)n * sizeof(*tokens));
    seq->n_token = n;
    return PITH_OK;
}

pith_status pi_seq_fork(const struct pith_seq *from, struct pith_seq **out, pith_error *err)
{
    struct pith_seq *seq = NULL;
    size_t logits_size = (size_t)from->engine->model->hp.n_vocab * sizeof(float);
    PI_TRY(pi_seq_alloc(from->engine, &seq, err));
    pith_status status = pi_memory_fork(&from->memory, &seq->memory, err);
    if (status == PITH_OK)
        status = pi_seq_set_tokens(seq, from->tokens, from->n_token, err);
    if (status == PITH_OK && from->has_logits) {
        seq->logits = pi_mem_alloc(PI_MEM_OTHER, logits_size);
        if (seq->logits == NULL)
            status = pi_fail(err, PITH_NOMEM, "no memory for a row of logits");
        else
            memcpy(seq->logits, pith_seq_logits(from), logits_size);
        seq->has_logits = true;
    }
    if (status == PITH_OK)
        status = pi_verbs_fork(from, seq, err);
    if (status != PITH_OK) {
        pith_seq_free(seq);
        return status;
    }
    seq->is_loaded = from->is_loaded;
    seq->n_prompt = from->n_prompt;
    seq->pinned = from->pinned;
    *out = seq;
    return PITH_OK;
}

/* Whether the sequence's memory can go back to n_token tokens. */
static pith_status check_reach(const struct pith_seq *seq, int32_t n_token, pith_error *err)
{
    int32_t reach = pi_memory_reach(&seq->memory, n_token);
    if (reach == n_token)
        return PITH_OK;
    if (kv_cache_geometry(seq->engine->kv)->state_bytes > 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "n_token: %d: the recurrent layers have kept no state there, so tokens from "
                       "%d on must be read again (%d can be gone back to)",
                       n_token, reach, reach);
    return pi_fail(err, PITH_UNSUPPORTED,
                   "n_token: %d: layers with a window have forgotten what token %d sees, so "
                   "that all must be read again (0 can be gone back to)",
                   n_token, n_token);
}

pith_status pi_seq_truncate(struct pith_seq *seq, int32_t n_token, pith_error *err)
{
    if (n_token < 0 || n_token > seq->n_token)
        return pi_fail(err, PITH_INVALID, "n_token: %d is not in 0..%d, the sequence's length",
                       n_token, seq->n_token);
    if (n_token == seq->n_token)
        return PITH_OK;
    PI_TRY(check_reach(seq, n_token, err));
    int64_t copies = kv_seq_truncate_copies(seq->memory.kv, n_token);
    pith_status status = PITH_OK;
    if (copies > kv_seq_free_bytes(seq->memory.kv))
        status = pi_fail(err, PITH_KV_FULL,
                         "forgetting what follows token %d copies shared pages of %lld bytes, and "
                         "%lld are free",
                         n_token, (long long)copies, (long long)kv_seq_free_bytes(seq->memory.kv));
    PI_TRY(pi_over_ranks_agree(seq->engine, status, err));
    keep_truncate(seq->engine->keep.handle, seq->memory.kv, n_token);
    seq->n_token = n_token;
    seq->has_logits = false;
    if (n_token < seq->n_prompt)
        seq->n_prompt = 0;
    if (n_token <= seq->pinned)
        seq->pinned = 0;
    seq->is_loaded = seq->is_loaded && n_token > 0;
    pi_verbs_truncate(seq, n_token, pi_seq_first_gap(seq) == n_token);
    return PITH_OK;
}

pith_engine *pith_seq_engine(const pith_seq *seq)
{
    return seq->engine;
}
int32_t pith_seq_length(const pith_seq *seq)
{
    return seq->n_token;
}
const int32_t *pith_seq_tokens(const pith_seq *seq)
{
    return seq->tokens;
}
