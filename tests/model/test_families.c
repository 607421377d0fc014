/*
 * test_families.c - the promises of every family, on small random models. The logits of a text have
 * the same bits for any chunks, threads and other sequences. So they have after a fork, a file, a
 * swap or a truncation, and after a prefix that another request computed. Keep policies hold their
 * budgets, and chunks change no bit of any storage type. A family is one line of the table.
 */
#define _POSIX_C_SOURCE 200809L

#include "device/device.h"
#include "draft_rig.h"
#include "folder.h"
#include "mem_used.h"
#include "model_maker.h"
#include "pith/scheduler.h"
#include "status.h"

TEST_GROUP(make_folder, remove_folder);

#define N_TOKEN 90
#define N_PREFIX 64 /* of it: what two requests have in common */
#define N_VOCAB 101
#define N_PREDICT 6
#define PAGE_LEN 16

/* The oldest families come first. Windows are shorter than the text. */
static const char *const families[] = {
    "arch=llama layers=2 width=64 heads=4 kv_heads=2 head_dim=16 ff=96",
    "arch=qwen2 layers=2 width=64 heads=4 kv_heads=2 head_dim=16 ff=96",
    "arch=qwen3 layers=2 width=64 heads=4 kv_heads=2 head_dim=32 ff=96",
    "arch=qwen3moe layers=2 width=64 heads=4 kv_heads=2 head_dim=32 experts=8 used=2 expert_ff=40",
    "arch=glm4moe layers=4 width=64 heads=4 kv_heads=2 head_dim=32 rot=16 ff=96 experts=8 used=3 "
    "expert_ff=40 mtp=1 norm=1",
    "arch=gpt-oss layers=4 width=64 heads=4 kv_heads=2 head_dim=16 experts=4 used=2 expert_ff=48 "
    "window=24",
    "arch=smollm3 layers=5 width=64 heads=4 kv_heads=2 head_dim=16 ff=96",
    "arch=gemma3 layers=7 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=20 tied=1",
    "arch=gemma2 layers=3 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=20 attn_cap=5",
    "arch=phi3 layers=2 width=96 heads=6 kv_heads=2 head_dim=16 ff=80 fused=1 rot=12 longrope=1 "
    "ctx_orig=64 attn_factor=1.2",
    "arch=mistral3 layers=2 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 scaling=yarn factor=8 "
    "ctx_orig=16 log_mul=1 temperature=0.1",
    "arch=qwen35 layers=4 width=64 heads=4 kv_heads=2 head_dim=32 rot=8 ff=96",
    "arch=qwen35 layers=3 width=72 heads=3 kv_heads=1 head_dim=20 rot=12 ff=96 delta_keys=3 "
    "delta_values=3 delta_dim=24 taps=3 interval=2 listed=1",
    "arch=qwen35moe layers=4 width=64 heads=4 kv_heads=2 head_dim=32 rot=8 ff=96 experts=4 used=2",
    "arch=qwen3next layers=4 width=64 heads=4 kv_heads=2 head_dim=32 rot=8 ff=96 experts=4 used=2",
    "arch=qwen3next layers=2 width=64 heads=4 kv_heads=2 head_dim=32 rot=8 ff=96 experts=4 used=2 "
    "interval=2 legacy=1",
    "arch=deepseek2 layers=3 width=64 heads=4 head_dim=24 rot=8 rank=32 value_dim=24 query_rank=40 "
    "ff=96 experts=8 used=2 expert_ff=40 gating=2 norm=1 scaling=yarn factor=40 ctx_orig=64 "
    "log_mul=0.0707",
    "arch=deepseek2 layers=4 width=64 heads=12 head_dim=48 rot=16 rank=48 value_dim=20 ff=96 "
    "experts=4 used=2 expert_ff=40 old=1 mtp=1",
    "arch=deepseek2 layers=3 width=64 heads=3 head_dim=64 rot=32 rank=64 value_dim=24 "
    "query_rank=32 "
    "ff=96 experts=4 used=2 expert_ff=40 lead=2",
};

static pith_model *model; /* of the family that is tested */
static int32_t tokens[N_TOKEN];
static uint64_t wanted[N_TOKEN]; /* hashes of the logits, read in one piece by one thread */

static pith_engine *engine_make(int32_t chunk, int32_t n_thread)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.n_gpu_layers = test_gpu_layers();
    params.chunk = chunk;
    params.n_thread = n_thread;
    params.page_len = PAGE_LEN;
    check(pith_kv_estimate(model, &params, N_TOKEN, &params.kv_bytes, &err), &err);
    params.kv_bytes *= 8;
    /* kept states give way where it is short */ /* windows are shorter than the text: four texts
                                                    are not one of four */
    check(pith_engine_create(model, &params, &e, &err), &err);
    return e;
}

static bool look(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    uint64_t *hash = user;
    (void)seq;
    for (int32_t i = 0; i < N_VOCAB; i++)
        assert_true(logits[i] == logits[i]);
    hash[pos] = pith_logits_hash(logits, N_VOCAB);
    return true;
}

static pith_batch_item item_of(pith_seq *seq, const int32_t *ids, int32_t n, uint64_t *hash)
{
    return (pith_batch_item){.seq = seq,
                             .tokens = ids,
                             .n_token = n,
                             .logits = hash != NULL ? PITH_LOGITS_ALL : PITH_LOGITS_LAST,
                             .on_logits = hash != NULL ? look : NULL,
                             .user = hash};
}

static void read_on(pith_seq *seq, int32_t n)
{
    int32_t from = pith_seq_length(seq);
    if (from < n)
        check(pith_seq_eval(seq, tokens + from, n - from, &err), &err);
}

/* The sequence, wherever it is in the text, ends as the first one did. */
static void ends_alike(pith_seq *seq, const char *what)
{
    read_on(seq, N_TOKEN);
    if (pith_logits_hash(pith_seq_logits(seq), N_VOCAB) != wanted[N_TOKEN - 1])
        fail_msg("%s: other logits", what);
}

/* ---- the promises ---- */

static void chunks_and_threads(void)
{
    const int32_t chunks[] = {512, 7, 3, 1};
    for (size_t c = 0; c < PI_LEN(chunks); c++)
        for (int32_t n_thread = 1; n_thread <= 2; n_thread++) {
            uint64_t hash[N_TOKEN];
            pith_engine *e = engine_make(chunks[c], n_thread);
            pith_seq *seq = seq_make(e);
            pith_batch_item item = item_of(seq, tokens, N_TOKEN, hash);
            check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
            if (c == 0 && n_thread == 1)
                memcpy(wanted, hash, sizeof(hash));
            for (int32_t t = 0; t < N_TOKEN; t++)
                if (hash[t] != wanted[t])
                    fail_msg("chunks of %d, %d threads: other logits at %d", chunks[c], n_thread,
                             t);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

/* Three texts in one batch, of which one ends early. */
static void company(void)
{
    pith_engine *e = engine_make(16, 2);
    pith_seq *seq[3];
    pith_batch_item items[3];
    uint64_t hash[N_TOKEN];
    for (int i = 0; i < 3; i++)
        seq[i] = seq_make(e);
    items[0] = item_of(seq[0], tokens + 5, 20, NULL);
    items[1] = item_of(seq[1], tokens, N_TOKEN, hash);
    items[2] = item_of(seq[2], tokens + 1, N_TOKEN - 1, NULL);
    check(pith_batch_eval(e, items, 3, NULL, NULL, &err), &err);
    assert_memory_equal(hash, wanted, sizeof(hash));
    for (int i = 0; i < 3; i++)
        pith_seq_free(seq[i]);
    pith_engine_free(e);
}

static void fork_and_swap(void)
{
    pith_engine *e = engine_make(16, 1);
    pith_seq *seq = seq_make(e), *fork = NULL;
    struct kv_swapped *away = NULL;
    pith_kv_stats stats;
    read_on(seq, 40);
    check(pith_seq_fork(seq, &fork, &err), &err);
    check(pith_seq_eval(fork, tokens, 3, &err), &err);
    ends_alike(seq, "a sequence that was forked");
    pith_seq_free(fork);
    pith_seq_free(seq);
    seq = seq_make(e);
    read_on(seq, 41);
    check(pith_seq_fork(seq, &fork, &err), &err);
    pith_seq_free(seq);
    check(pi_memory_swap_out(&fork->memory, &away, &err), &err);
    pith_engine_kv_stats(e, &stats);
    assert_int_equal(stats.used_bytes, 0);
    check(pi_memory_swap_in(&fork->memory, away, &err), &err);
    ends_alike(fork, "a fork that was swapped");
    pith_seq_free(fork);
    pith_engine_free(e);
}

static void save_and_load(void)
{
    pith_engine *e = engine_make(32, 1);
    pith_seq *seq = seq_make(e), *loaded = NULL;
    read_on(seq, 70);
    check(pith_seq_save(seq, in_folder("seq"), &err), &err);
    check(pith_seq_load(e, in_folder("seq"), &loaded, &err), &err);
    ends_alike(seq, "a sequence that was saved");
    ends_alike(loaded, "a sequence of a file");
    pith_seq_free(seq);
    pith_seq_free(loaded);
    pith_engine_free(e);
}

/* Recurrent layers: whether a way back, or another text, begins where a state was kept. */
static bool has_states(const pith_engine *e)
{
    return kv_cache_geometry(e->kv)->state_bytes > 0;
}

/* Another text of the same beginning, then the first again. */
static void there_and_back(void)
{
    pith_engine *e = engine_make(32, 1);
    pith_seq *seq = seq_make(e);
    int32_t other[N_TOKEN];
    memcpy(other, tokens, sizeof(other));
    other[N_PREFIX] = (other[N_PREFIX] + 1) % N_VOCAB;
    check(pith_seq_sync(seq, other, N_TOKEN, NULL, NULL, &err), &err);
    assert_true(pith_logits_hash(pith_seq_logits(seq), N_VOCAB) != wanted[N_TOKEN - 1]);
    check(pith_seq_sync(seq, tokens, N_TOKEN, NULL, NULL, &err), &err);
    ends_alike(seq, "a sequence that went back");
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- requests ---- */

struct order {
    uint64_t hash[N_PREDICT + 1]; /* of the logits behind the prompt and behind each token */
    int32_t n, n_cached;
};

static bool on_token(void *user, const pith_answer_token *t)
{
    struct order *o = user;
    if (t->token >= 0 && o->n <= N_PREDICT)
        o->hash[o->n++] = pith_logits_hash(t->logits, N_VOCAB);
    return true;
}

static void on_done(void *user, const pith_answer_result *result)
{
    struct order *o = user;
    o->n_cached = result->n_cached;
    if (result->status != PITH_OK)
        fail_msg("a request ends with: %s", result->message);
}

static void ask(pith_scheduler *s, const int32_t *prompt, int32_t n, struct order *out)
{
    pith_generate_params params;
    pith_request request;
    int64_t id;
    pith_generate_params_default(&params);
    params.n_predict = N_PREDICT;
    params.ignore_end = true;
    params.sample.temperature = 0;
    pith_request_default(&request);
    request.prompt = prompt;
    request.n_prompt = n;
    request.params = &params;
    request.on_token = on_token;
    request.on_done = on_done;
    request.user = out;
    *out = (struct order){0};
    check(pith_scheduler_submit(s, &request, &id, &err), &err);
    check(pith_scheduler_run(s, &err), &err);
}

static void prefixes(void)
{
    pith_engine *e = engine_make(32, 1);
    pith_scheduler *s = NULL;
    struct order first, second;
    int32_t other[N_TOKEN];
    memcpy(other, tokens, sizeof(other));
    for (int32_t i = N_PREFIX; i < N_TOKEN; i++)
        other[i] = (other[i] + 1) % N_VOCAB;
    check(pith_scheduler_create(e, NULL, &s, &err), &err);
    ask(s, other, N_TOKEN, &first);
    assert_true(first.hash[0] != wanted[N_TOKEN - 1]);
    if (has_states(e)) { /* that two texts part there is known from the second one on */
        other[N_TOKEN - 1] = (other[N_TOKEN - 1] + 1) % N_VOCAB;
        other[N_PREFIX] = (other[N_PREFIX] + 2) % N_VOCAB;
        ask(s, other, N_TOKEN, &second);
        assert_true(second.n_cached <= N_PREFIX);
    }
    ask(s, tokens, N_TOKEN, &second);
    assert_true(second.n > 0 && second.hash[0] == wanted[N_TOKEN - 1]);
    if (e->traits.takes_prefixes)
        assert_int_equal(second.n_cached, N_PREFIX);
    pith_scheduler_free(s);
    pith_engine_free(e);
}

/* The answer to a request after another one under a keep policy, with prefixes or without. */
static void ask_under_keep(bool no_prefix, struct order *out)
{
    pith_engine_params params;
    pith_scheduler_params plan;
    pith_engine *e = NULL;
    pith_scheduler *s = NULL;
    int32_t other[N_TOKEN];
    memcpy(other, tokens, sizeof(other));
    other[N_PREFIX] = (other[N_PREFIX] + 1) % N_VOCAB;
    pith_engine_params_default(&params);
    params.n_gpu_layers = test_gpu_layers();
    params.chunk = 32;
    params.n_thread = 1;
    params.page_len = PAGE_LEN;
    params.keep = "streaming:sinks=2,budget=70,slack=8";
    check(pith_kv_estimate(model, &params, N_TOKEN, &params.kv_bytes, &err), &err);
    params.kv_bytes *= 8; /* kept states give way where it is short */
    check(pith_engine_create(model, &params, &e, &err), &err);
    pith_scheduler_params_default(&plan);
    plan.no_prefix = no_prefix;
    check(pith_scheduler_create(e, &plan, &s, &err), &err);
    ask(s, other, N_TOKEN, out);
    if (has_states(e)) { /* as in prefixes */
        other[N_PREFIX] = (other[N_PREFIX] + 1) % N_VOCAB;
        ask(s, other, N_TOKEN, out);
    }
    ask(s, tokens, N_TOKEN, out);
    pith_scheduler_free(s);
    pith_engine_free(e);
}

static void prefixes_under_keep(void)
{
    struct order with, without;
    ask_under_keep(false, &with);
    ask_under_keep(true, &without);
    assert_int_equal(without.n_cached, 0);
    assert_int_equal(with.n_cached, N_PREFIX);
    assert_int_equal(with.n, without.n);
    assert_memory_equal(with.hash, without.hash, sizeof(with.hash));
}

/* ---- drafts ---- */

/* Drafts from the text, which are mostly rejected, and from the model itself, which it accepts
   where it takes the likeliest token. Windows, borders of pages and all else as without drafts. */
static void drafts(void)
{
    int64_t n_draft = 0, n_accepted = 0;
    pith_draft_params draft;
    pith_engine *e = engine_make(32, 1), *other = engine_make(16, 1);
    int32_t twice[N_TOKEN];
    for (int32_t i = 0; i < N_TOKEN; i++)
        twice[i] = tokens[i % (N_TOKEN / 2)];
    pith_draft_params_default(&draft);
    draft.always = true;
    if (has_states(e))
        expect(pith_draft_check(e, &draft, &err), &err, PITH_UNSUPPORTED, "recurrent");
    for (int i = 0; !has_states(e) && i < 8; i++) {
        pith_generate_params p;
        pith_generate_params_default(&p);
        p.n_predict = 60;
        p.ignore_end = true;
        p.sample.temperature = i % 2 == 1 ? 4.0f : 0.0f;
        p.sample.top_p = 1.0f;
        p.sample.min_p = 0.0f;
        p.sample.seed = (uint64_t)i;
        draft.n_max = 3 + 4 * i % 13;
        draft.lookup = i < 3;
        draft.engine = i >= 2 ? other : NULL;
        draft_twice(e, twice, N_TOKEN / 2 + 5 * i, &p, &draft, 0, &n_draft, &n_accepted, "draft");
    }
    if (!has_states(e) && (n_accepted < 100 || n_draft - n_accepted < 100))
        fail_msg("%d of %d drafted tokens came true", (int)n_accepted, (int)n_draft);
    pith_engine_free(e);
    pith_engine_free(other);
}

/* ---- policies ---- */

static const char *const keeps[] = {"streaming:sinks=2", "snapkv:window=8",       "h2o",
                                    "keydiff",           "triattention:warmup=1", "expected"};

static uint64_t read_under(const char *keep, const char *budget, int32_t *longest)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_keep_stats stats;
    char text[128];
    pith_engine_params_default(&params);
    params.n_gpu_layers = test_gpu_layers();
    params.n_thread = 1;
    params.page_len = PAGE_LEN;
    params.kv_tokens = 2 * N_TOKEN;
    snprintf(text, sizeof(text), "%s%sbudget=%s,slack=8", keep,
             strchr(keep, ':') != NULL ? "," : ":", budget);
    params.keep = text;
    check(pith_engine_create(model, &params, &e, &err), &err);
    pith_seq *seq = seq_make(e);
    read_on(seq, N_TOKEN);
    pith_seq_keep_stats(seq, &stats);
    *longest = stats.longest;
    uint64_t hash = pith_logits_hash(pith_seq_logits(seq), N_VOCAB);
    pith_seq_free(seq);
    pith_engine_free(e);
    return hash;
}

/* A budget that holds the text changes nothing, and a smaller one is held. */
static void budgets(void)
{
    for (size_t i = 0; i < PI_LEN(keeps); i++) {
        int32_t longest;
        if (read_under(keeps[i], "200", &longest) != wanted[N_TOKEN - 1])
            fail_msg("%s: other logits under a budget that holds all", keeps[i]);
        read_under(keeps[i], "40", &longest);
        if (longest > 48)
            fail_msg("%s: %d entries under a budget of 40", keeps[i], longest);
    }
}

/* ---- weights that a file keeps ---- */

/* The first engine writes the file, the second maps it, and the bits equal those from memory. */
static void kept_weights(void)
{
    pith_model *in_memory = model;
    pith_model_params params;
    pith_model_params_default(&params);
    params.cache_weights = "";
    unlink(in_folder("model.gguf.packed"));
    for (int turn = 0; turn < 2; turn++) {
        check(pith_model_load(in_folder("model.gguf"), &params, &model, &err), &err);
        pith_engine *e = engine_make(512, 1);
        pith_seq *seq = seq_make(e);
        ends_alike(seq, "weights in a file");
        pith_seq_free(seq);
        pith_engine_free(e);
        pith_model_free(model);
    }
    model = in_memory;
}

/* ---- storage types ---- */

/* The last logits with keys and values of a type; false: the family's lanes cannot be stored so. */
static bool read_stored(const char *type, int32_t chunk, int32_t n_thread, uint64_t *hash)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    char forced[32];
    pith_engine_params_default(&params);
    params.n_gpu_layers = test_gpu_layers();
    snprintf(forced, sizeof(forced), "%s:force", type);
    params.chunk = chunk;
    params.n_thread = n_thread;
    params.page_len = PAGE_LEN;
    params.kv_tokens = 4 * N_TOKEN;
    params.type_k = forced;
    params.type_v = type;
    pith_status status = pith_engine_create(model, &params, &e, &err);
    if (status == PITH_UNSUPPORTED)
        return false;
    check(status, &err);
    pith_seq *seq = seq_make(e);
    read_on(seq, N_TOKEN);
    *hash = pith_logits_hash(pith_seq_logits(seq), N_VOCAB);
    pith_seq_free(seq);
    pith_engine_free(e);
    return true;
}

static void storage_types(void)
{
    pith_store_info type;
    for (int32_t i = 0; pith_store_type(i, &type) == PITH_OK; i++) {
        uint64_t whole, parts;
        if (!read_stored(type.name, 512, 1, &whole))
            continue;
        assert_true(read_stored(type.name, 7, 2, &parts));
        if (whole != parts)
            fail_msg("%s: other logits in chunks of 7", type.name);
    }
}

/* ---- the loop ---- */

static void load(const char *words)
{
    uint64_t seed = 31;
    char more[512];
    snprintf(more, sizeof(more), "%s vocab=%d ctx=512", words, N_VOCAB);
    check(model_make_of(more, in_folder("model.gguf"), &err), &err);
    check(pith_model_load(in_folder("model.gguf"), NULL, &model, &err), &err);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&seed, N_VOCAB);
}

TEST(every_family_keeps_its_promises)
{
    const char *only = getenv("PITH_FAMILY");
    for (size_t i = 0; i < PI_LEN(families); i++) {
        if (only != NULL && strstr(families[i], only) == NULL)
            continue;
        printf("%s\n", families[i]);
        load(families[i]);
        chunks_and_threads();
        company();
        fork_and_swap();
        save_and_load();
        there_and_back();
        prefixes();
        prefixes_under_keep();
        budgets();
        kept_weights();
        storage_types();
        drafts();
        pith_model_free(model);
        if (!pi_device_default()->floats) /* a GPU keeps what it computes in */
            mem_check(NULL);
    }
}
