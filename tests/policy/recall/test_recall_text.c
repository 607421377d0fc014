/*
 * Recall as text, from lanes to the message: evicted tokens, the spans in the store, forks,
 * truncation, and sessions with and without a name. Also stores that fail during a run. The
 * repository's small model finds an evicted fact for any chunk and threads.
 */
#define _POSIX_C_SOURCE 200809L

#include <sqlite3.h>
#include <string.h>

#include "mem_used.h"
#include "folder.h"
#include "engine/engine.h"
#include "engine/text_embed.h"
#include "kv/kv.h"
#include "model_maker.h"
#include "policy/recall/text.h"
#include "policy/recall/text_spans.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define PROMPT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"
#define N_MOST 4096

static pith_model *model;
static int32_t tokens[N_MOST]; /* of the prompt */
static int32_t n_prompt;

static struct recall_text_options defaults(void)
{
    return (struct recall_text_options){
        .alpha = 0.5, .top = 8, .floor = 0.2, .chars = 8000, .bleed = 32, .lost = 0.5, .ttl = 1800};
}

static struct recall_text *open_recall(const struct recall_text_options *o)
{
    struct recall_text *t = NULL;
    check(recall_text_open(o, model, pi_text_embed_open, 1, &t, &err), &err);
    return t;
}

static struct recall_text_seq *make_state(struct recall_text *t)
{
    struct recall_text_seq *s = NULL;
    check(recall_text_seq_create(t, &s, &err), &err);
    return s;
}

/* The spans of the store as "A..B A..B". */
static const char *listed(struct recall_text_seq *s)
{
    static char text[1024];
    struct text_hits hits = {0};
    size_t n = 0;
    text[0] = '\0';
    check(recall_text_list(s, &hits, &err), &err);
    for (int32_t i = 0; i < hits.n && n + 32 < sizeof(text); i++)
        n += (size_t)sprintf(text + n, "%s%d..%d", i > 0 ? " " : "", hits.hit[i].first,
                             hits.hit[i].last);
    text_hits_free(&hits);
    return text;
}

/* ---- lanes in which a test decides what it evicts ---- */

#define LAYERS 3 /* the model's */
#define HEADS 2

static struct kv_cache *make_cache(int32_t n_token)
{
    struct kv_geometry g = {.n_layer = LAYERS,
                            .n_head = HEADS,
                            .dim_k = 16,
                            .dim_v = 16,
                            .page_len = 16,
                            .type_k = KV_TYPE_F16,
                            .type_v = KV_TYPE_F16};
    struct kv_cache *cache = NULL;
    check(kv_cache_create(&g, kv_bytes_for_tokens(&g, n_token), &cache, &err), &err);
    return cache;
}

static struct kv_seq *make_kv(struct kv_cache *cache, int32_t n)
{
    static const float rows[N_MOST * 16];
    struct kv_seq *kv = NULL;
    check(kv_seq_create(cache, &kv, &err), &err);
    check(kv_seq_reserve(kv, n, &err), &err);
    for (int32_t lane = 0; lane < LAYERS * HEADS; lane++)
        kv_seq_append(kv, lane / HEADS, lane % HEADS, 0, n, rows, 16, rows, 16);
    return kv;
}

/* Takes positions [first, last) out of the first n_lane lanes. */
static void evict(struct kv_seq *kv, int32_t n_lane, int32_t first, int32_t last)
{
    static int32_t slots[N_MOST];
    for (int32_t lane = 0; lane < n_lane; lane++) {
        int32_t layer = lane / HEADS, head = lane % HEADS, n = 0;
        for (int32_t s = 0; s < kv_lane_len(kv, layer, head); s++) {
            int32_t pos = kv_lane_pos(kv, layer, head, s);
            if (pos < first || pos >= last)
                slots[n++] = s;
        }
        check(kv_seq_compact(kv, layer, head, slots, n, &err), &err);
    }
}

static const struct kv_geometry shape = {.n_layer = LAYERS, .n_head = HEADS};

static void expect_gone(const struct kv_seq *kv, int32_t n, double lost, const char *wanted)
{
    uint8_t gone[64];
    char text[65] = "";
    check(text_evicted(kv, &shape, n, lost, gone, &err), &err);
    for (int32_t p = 0; p < n; p++)
        text[p] = gone[p] ? 'x' : '.';
    text[n] = '\0';
    assert_string_equal(text, wanted);
}

TEST(tells_which_tokens_count_as_evicted)
{
    struct kv_cache *cache = make_cache(64);
    struct kv_seq *kv = make_kv(cache, 20);
    expect_gone(kv, 20, 0.001, "....................");
    assert_int_equal(text_missing(kv, &shape, 20), 0);
    evict(kv, 1, 2, 4);
    evict(kv, 3, 6, 8);
    evict(kv, 6, 10, 11);
    assert_int_equal(text_missing(kv, &shape, 20), 2 + 6 + 6);
    expect_gone(kv, 20, 0.001, "..xx..xx..x.........");
    expect_gone(kv, 20, 1.0 / 6, "..xx..xx..x.........");
    expect_gone(kv, 20, 0.2, "......xx..x.........");
    expect_gone(kv, 20, 0.5, "......xx..x.........");
    expect_gone(kv, 20, 0.51, "..........x.........");
    expect_gone(kv, 20, 1, "..........x.........");
    /* Entries that are read at other positions still belong to their tokens. */
    for (int32_t lane = 0; lane < LAYERS * HEADS; lane++) {
        int32_t layer = lane / HEADS, head = lane % HEADS;
        assert_int_equal(kv_seq_reserve_table(kv, 16, NULL), PITH_OK);
        assert_int_equal(kv_seq_split(kv, layer, head, 2, NULL), PITH_OK);
        kv_seq_shift(kv, layer, head, 2, 1);
    }
    expect_gone(kv, 20, 1, "..........x.........");
    kv_seq_free(kv);
    kv_cache_free(cache);
}

/* ---- updates ---- */

static void expect_found(struct recall_text_seq *s, struct kv_seq *kv, int32_t n, const char *word,
                         int32_t room)
{
    char *text = NULL;
    int32_t n_part, n_id;
    check(recall_text_find(s, kv, tokens, n, word, strlen(word), room, &text, &n_part, &err), &err);
    assert_non_null(text);
    assert_non_null(strstr(text, word));
    assert_true(n_part > 0);
    pith_status status = pith_tokenize(model, text, strlen(text), 0, NULL, 0, &n_id, &err);
    assert_true(status == PITH_RANGE && n_id <= room);
    pi_mem_free(text);
}

/* A word of tokens [first, last), one that stands nowhere else in the n tokens. */
static void rare_word(int32_t first, int32_t last, int32_t n, char *out, size_t cap)
{
    static char part[8192], all[32768];
    size_t len, len_all;
    check(pith_detokenize(model, tokens + first, last - first, false, part, sizeof(part) - 1, &len,
                          &err),
          &err);
    check(pith_detokenize(model, tokens, n, false, all, sizeof(all) - 1, &len_all, &err), &err);
    part[len] = '\0';
    all[len_all] = '\0';
    for (char *word = strtok(part, " .,\n?!"); word != NULL; word = strtok(NULL, " .,\n?!")) {
        const char *at = strstr(all, word);
        if (strlen(word) < 5 || at == NULL || strstr(at + 1, word) != NULL)
            continue;
        snprintf(out, cap, "%s", word);
        return;
    }
    fail_msg("tokens %d..%d have no word of their own", first, last);
}

TEST(the_store_follows_what_is_evicted)
{
    struct recall_text_options o = defaults();
    struct recall_text *t = open_recall(&o);
    struct recall_text_seq *s = make_state(t);
    struct kv_cache *cache = make_cache(600);
    struct kv_seq *kv = make_kv(cache, 600);
    struct recall_text_counts counts;
    recall_text_update(s, kv, tokens, 600);
    assert_string_equal(listed(s), "");
    evict(kv, 6, 100, 110);
    recall_text_update(s, kv, tokens, 600);
    assert_string_equal(listed(s), "68..142");
    recall_text_update(s, kv, tokens, 600);
    recall_text_count(s, &counts);
    assert_int_equal(counts.n_stored, 1);
    evict(kv, 2, 300, 310); /* of two lanes in six: not evicted yet */
    recall_text_update(s, kv, tokens, 600);
    assert_string_equal(listed(s), "68..142");
    evict(kv, 3, 300, 310);
    evict(kv, 6, 590, 591);
    recall_text_update(s, kv, tokens, 600);
    assert_string_equal(listed(s), "68..142 268..342 558..600");
    evict(kv, 6, 150, 160); /* grows into the first */
    evict(kv, 6, 105, 108);
    recall_text_update(s, kv, tokens, 600);
    assert_string_equal(listed(s), "68..192 268..342 558..600");
    recall_text_count(s, &counts);
    assert_int_equal(counts.n_span, 3);
    assert_int_equal(counts.n_stored, 4);
    evict(kv, 6, 50, 500); /* longer than a span may be */
    recall_text_update(s, kv, tokens, 600);
    assert_string_equal(listed(s), "18..160 96..288 224..416 352..532 558..600");
    char word[64];
    rare_word(380, 440, 600, word, sizeof(word));
    expect_found(s, kv, 600, word, 1000);
    expect_found(s, kv, 600, word, 40);
    recall_text_seq_free(s);
    recall_text_close(t);
    kv_seq_free(kv);
    kv_cache_free(cache);
}

TEST(stores_no_blank_spans)
{
    struct recall_text_options o = defaults();
    static int32_t blank[200];
    int32_t id[8], n;
    check(pith_tokenize(model, "\n", 1, 0, id, 8, &n, &err), &err);
    assert_int_equal(n, 1);
    for (int32_t i = 0; i < 200; i++)
        blank[i] = id[0];
    struct recall_text *t = open_recall(&o);
    struct recall_text_seq *s = make_state(t);
    struct kv_cache *cache = make_cache(200);
    struct kv_seq *kv = make_kv(cache, 200);
    evict(kv, 6, 90, 100);
    recall_text_update(s, kv, blank, 200);
    assert_null(recall_text_problem(t));
    assert_string_equal(listed(s), "");
    recall_text_seq_free(s);
    recall_text_close(t);
    kv_seq_free(kv);
    kv_cache_free(cache);
}

TEST(forks_and_truncations_keep_timelines_apart)
{
    struct recall_text_options o = defaults();
    struct recall_text *t = open_recall(&o);
    struct recall_text_seq *a = make_state(t), *b = NULL;
    struct kv_cache *cache = make_cache(1500);
    struct kv_seq *kv = make_kv(cache, 600), *other = NULL;
    char *text;
    int32_t n;
    evict(kv, 6, 100, 110);
    evict(kv, 6, 300, 310);
    recall_text_update(a, kv, tokens, 600);
    check(recall_text_seq_fork(a, &b, &err), &err);
    check(kv_seq_fork(kv, &other, &err), &err);
    /* A fork finds the spans stored before, and each side owns the spans it stores from now on. */
    evict(kv, 6, 450, 460);
    recall_text_update(a, kv, tokens, 600);
    assert_string_equal(listed(a), "68..142 268..342 418..492");
    check(recall_text_find(b, other, tokens, 600, "the", 3, 1000, &text, &n, &err), &err);
    pi_mem_free(text);
    assert_string_equal(listed(b), "68..142 268..342");
    recall_text_seq_truncate(b, 320);
    kv_seq_truncate(other, 320);
    assert_string_equal(listed(b), "68..142");
    recall_text_update(b, other, tokens, 320);
    assert_string_equal(listed(b), "68..142 268..320");
    recall_text_seq_truncate(b, 0);
    kv_seq_truncate(other, 0);
    assert_string_equal(listed(b), "");
    recall_text_update(b, other, tokens, 0);
    assert_string_equal(listed(a), "68..142 268..342 418..492");
    recall_text_seq_free(a);
    recall_text_seq_free(b);
    recall_text_close(t);
    kv_seq_free(other);
    kv_seq_free(kv);
    kv_cache_free(cache);
}

/* ---- sessions in a file ---- */

static int32_t count_rows(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int32_t n = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

TEST(a_named_session_survives_and_others_do_not)
{
    struct recall_text_options o = defaults();
    const char *path = in_folder("sessions.db");
    struct kv_cache *cache = make_cache(600);
    struct kv_seq *kv = make_kv(cache, 600);
    struct recall_text_counts counts;
    evict(kv, 6, 100, 110);
    strcpy(o.db, path);
    struct recall_text *t = open_recall(&o);
    struct recall_text_seq *a = make_state(t), *b = make_state(t);
    recall_text_update(a, kv, tokens, 600);
    assert_string_equal(listed(b), "");
    recall_text_update(b, kv, tokens, 600);
    assert_int_equal(count_rows(path, "SELECT count(*) FROM session"), 2);
    recall_text_seq_free(a); /* goes with its sequence */
    assert_int_equal(count_rows(path, "SELECT count(*) FROM session"), 1);
    assert_string_equal(listed(b), "68..142");
    recall_text_seq_free(b);
    assert_int_equal(count_rows(path, "SELECT count(*) FROM span"), 0);
    recall_text_close(t);
    /* With a name it stays, and the same conversation, read again, is not stored twice. */
    strcpy(o.session, "caf\xc3\xa9 'notes'");
    for (int32_t i = 0; i < 3; i++) {
        t = open_recall(&o);
        a = make_state(t);
        b = make_state(t);
        recall_text_update(a, kv, tokens, 600);
        assert_string_equal(listed(b), "68..142"); /* one session for all */
        recall_text_count(a, &counts);
        assert_int_equal(counts.n_stored, i == 0);
        recall_text_seq_free(a);
        recall_text_seq_free(b);
        recall_text_close(t);
    }
    /* Another conversation with the same name is another text in the same range. */
    t = open_recall(&o);
    a = make_state(t);
    recall_text_update(a, kv, tokens + 700, 600);
    assert_string_equal(listed(a), "68..142 68..142");
    recall_text_seq_free(a);
    recall_text_close(t);
    strcpy(o.session, "another");
    t = open_recall(&o);
    a = make_state(t);
    assert_string_equal(listed(a), "");
    recall_text_seq_free(a);
    recall_text_close(t);
    kv_seq_free(kv);
    kv_cache_free(cache);
}

/* ---- stores that fail ---- */

static int32_t n_warning;
static char warning[512];

static void hear(void *user, pith_log_level level, const char *line)
{
    (void)user;
    if (level != PITH_LOG_WARN || strstr(line, "recall=text") == NULL)
        return;
    n_warning++;
    snprintf(warning, sizeof(warning), "%s", line);
}

/* Nothing is found, nothing fails, and it was said once. */
static void expect_off(struct recall_text *t, struct recall_text_seq *s, struct kv_seq *kv,
                       const char *word)
{
    char *text;
    int32_t n;
    for (int32_t i = 0; i < 3; i++) {
        recall_text_update(s, kv, tokens, 600);
        check(recall_text_find(s, kv, tokens, 600, "the", 3, 1000, &text, &n, &err), &err);
        assert_null(text);
        assert_int_equal(n, 0);
    }
    assert_int_equal(n_warning, 1);
    assert_non_null(strstr(warning, word));
    assert_non_null(recall_text_problem(t));
    assert_non_null(strstr(recall_text_problem(t), word));
}

TEST(a_store_that_fails_is_left_alone)
{
    struct recall_text_options o = defaults();
    struct kv_cache *cache = make_cache(600);
    struct kv_seq *kv = make_kv(cache, 600);
    evict(kv, 6, 100, 110);
    pith_log_set(hear, NULL);
    n_warning = 0;
    strcpy(o.db, in_folder("no/such/folder.db"));
    struct recall_text *t = open_recall(&o);
    struct recall_text_seq *s = make_state(t);
    expect_off(t, s, kv, "no/such/folder.db");
    recall_text_seq_truncate(s, 10);
    recall_text_seq_free(s);
    recall_text_close(t);
    /* One that fails later: its table is gone. */
    n_warning = 0;
    const char *path = in_folder("pulled.db");
    strcpy(o.db, path);
    t = open_recall(&o);
    s = make_state(t);
    assert_null(recall_text_problem(t));
    recall_text_update(s, kv, tokens, 600);
    assert_string_equal(listed(s), "68..142");
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "DROP TABLE span", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    evict(kv, 6, 300, 310);
    expect_off(t, s, kv, "span");
    recall_text_seq_free(s);
    recall_text_close(t);
    pith_log_set(NULL, NULL);
    kv_seq_free(kv);
    kv_cache_free(cache);
}

TEST(refuses_bad_embedders_and_urls)
{
    struct recall_text_options o = defaults();
    struct recall_text *t = NULL;
    strcpy(o.embed, in_folder("none.gguf"));
    expect(recall_text_open(&o, model, pi_text_embed_open, 1, &t, &err), &err, PITH_IO,
           "none.gguf");
    strcpy(o.embed, MODEL);
    strcpy(o.url, "http://127.0.0.1:1");
    expect(recall_text_open(&o, model, pi_text_embed_open, 1, &t, &err), &err, PITH_INVALID,
           "embed");
    o = defaults();
    strcpy(o.session, "bad\xff");
    expect(recall_text_open(&o, model, pi_text_embed_open, 1, &t, &err), &err, PITH_INVALID,
           "session");
    struct model_spec spec;
    pith_model *mute = NULL;
    const char *path = in_folder("mute.gguf");
    model_spec_default(&spec);
    check(model_make(&spec, path, &err), &err);
    check(pith_model_load(path, NULL, &mute, &err), &err);
    o = defaults();
    expect(recall_text_open(&o, mute, pi_text_embed_open, 1, &t, &err), &err, PITH_UNSUPPORTED, "");
    pith_model_free(mute);
    strcpy(o.embed, path);
    expect(recall_text_open(&o, model, pi_text_embed_open, 1, &t, &err), &err, PITH_UNSUPPORTED,
           "");
}

TEST(failing_memory_changes_no_run)
{
    struct recall_text_options o = defaults();
    struct kv_cache *cache = make_cache(600);
    struct kv_seq *kv = make_kv(cache, 600);
    evict(kv, 6, 50, 500);
    int64_t used = pi_mem_used(PI_MEM_OTHER);
    for (int32_t i = 1;; i++) {
        struct recall_text *t = NULL;
        struct recall_text_seq *s = NULL;
        char *text = NULL;
        int32_t n = 0;
        pi_mem_fail_at(i, false);
        pith_status status = recall_text_open(&o, model, pi_text_embed_open, 1, &t, &err);
        if (status == PITH_OK)
            status = recall_text_seq_create(t, &s, &err);
        if (status == PITH_OK)
            status = recall_text_find(s, kv, tokens, 600, "the", 3, 1000, &text, &n, &err);
        pi_mem_fail_at(0, false);
        bool whole = status == PITH_OK && recall_text_problem(t) == NULL;
        assert_true(status == PITH_OK || status == PITH_NOMEM);
        assert_int_equal(text != NULL, whole && n > 0);
        pi_mem_free(text);
        recall_text_seq_free(s);
        recall_text_close(t);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
        if (whole) {
            assert_true(i > 20);
            break;
        }
    }
    kv_seq_free(kv);
    kv_cache_free(cache);
}

/* ---- a model that runs ---- */

/* The message that the prompt's fact comes back in, and the ranges in the store. */
static char *run_model(const char *keep, int32_t chunk, int32_t n_thread, char *ranges, size_t cap)
{
    struct recall_text_options o = defaults();
    char *text = NULL;
    int32_t n;
    const char *question = "What is the password of Walter?";
    pith_engine *e = engine_with(
        model, (pith_engine_params){.keep = keep, .chunk = chunk, .n_thread = n_thread});
    pith_seq *seq = seq_make(e);
    struct recall_text *t = open_recall(&o);
    struct recall_text_seq *s = make_state(t);
    check(pith_seq_eval(seq, tokens, n_prompt, &err), &err);
    const struct kv_seq *kv = ((const struct pith_seq *)seq)->memory.kv;
    check(recall_text_find(s, kv, tokens, n_prompt, question, strlen(question), 1000, &text, &n,
                           &err),
          &err);
    snprintf(ranges, cap, "%s", listed(s));
    recall_text_seq_free(s);
    recall_text_close(t);
    pith_seq_free(seq);
    pith_engine_free(e);
    return text;
}

TEST(the_model_is_given_the_fact_that_it_lost)
{
    static const char *const keeps[] = {"streaming:budget=256", "knorm:budget=25%"};
    char ranges[1024], again[1024];
    for (size_t i = 0; i < PI_LEN(keeps); i++) {
        char *text = run_model(keeps[i], 512, 1, ranges, sizeof(ranges));
        assert_non_null(text);
        assert_non_null(strstr(text, "plain book"));
        assert_true(strlen(text) <= 8000);
        for (int32_t k = (int32_t)i; k < 2; k++) {
            char *same = run_model(keeps[i], k == 0 ? 100 : 2000, 1 + k, again, sizeof(again));
            assert_string_equal(text, same);
            assert_string_equal(ranges, again);
            pi_mem_free(same);
        }
        pi_mem_free(text);
    }
    /* A budget that is never reached. */
    assert_null(run_model("knorm:budget=4000", 512, 1, ranges, sizeof(ranges)));
    assert_string_equal(ranges, "");
}

static void setup(void)
{
    static char text[N_MOST * 8];
    FILE *file = fopen(PROMPT, "rb");
    assert_non_null(file);
    make_folder();
    size_t len = fread(text, 1, sizeof(text), file);
    fclose(file);
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    check(pith_tokenize(model, text, len, 0, tokens, N_MOST, &n_prompt, &err), &err);
    assert_true(n_prompt >= 1300);
}

static void teardown(void)
{
    pith_model_free(model);
    mem_check(NULL);
    remove_folder();
}

TEST_GROUP(setup, teardown);
