/*
 * The loop from prompt to text, on the repository's model. The output is the text of the tokens,
 * cut at the right place. Afterwards the sequence is as pith.h says.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "pith/grammar.h"
#include "status.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define PROMPT                                                                                     \
    "The password of Maria is copper lantern. The friend of Maria is Anton.\n"                     \
    "Question: What is the password of Maria?\nAnswer:"

static pith_model *model;
static int32_t prompt[256];
static int32_t n_prompt;

struct output {
    char text[4096];
    size_t len;
    int n_call;
    int stop_at; /* the call that returns false; 0: none does */
};

static bool collect(void *user, const char *text, size_t len)
{
    struct output *o = user;
    assert_true(len > 0);
    assert_true(o->len + len < sizeof(o->text));
    memcpy(o->text + o->len, text, len);
    o->len += len;
    return ++o->n_call != o->stop_at;
}

static pith_engine *engine_make_keep(int32_t kv_tokens, const char *keep)
{
    return engine_with(
        model,
        (pith_engine_params){.kv_tokens = kv_tokens, .page_len = 16, .n_thread = 1, .keep = keep});
}

static pith_engine *engine_make(int32_t kv_tokens)
{
    return engine_make_keep(kv_tokens, NULL);
}

static pith_generate_params greedy(int32_t n_predict)
{
    pith_generate_params p;
    pith_generate_params_default(&p);
    p.sample.temperature = 0.0f;
    p.n_predict = n_predict;
    return p;
}

static pith_generate_result generate(pith_seq *seq, const pith_generate_params *p,
                                     struct output *out)
{
    pith_generate_result r;
    *out = (struct output){.stop_at = out->stop_at};
    check(pith_generate(seq, prompt, n_prompt, p, collect, out, &r, &err), &err);
    return r;
}

static void set_up(void)
{
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    check(pith_tokenize(model, PROMPT, strlen(PROMPT), PITH_TOKENIZE_BOS, prompt, 256, &n_prompt,
                        &err),
          &err);
}

static void tear_down(void)
{
    pith_model_free(model);
}

TEST_GROUP(set_up, tear_down);

/* ---- tests ---- */

TEST(hands_out_the_text_of_the_tokens)
{
    struct output out = {.len = 0};
    char text[4096];
    size_t len;
    pith_engine *e = engine_make(512);
    pith_seq *seq = seq_make(e);
    pith_generate_params p = greedy(40);
    p.ignore_end = true;
    pith_generate_result r = generate(seq, &p, &out);
    assert_int_equal(r.reason, PITH_STOP_LENGTH);
    assert_int_equal(r.n_generated, 40);
    assert_int_equal(r.n_prompt, n_prompt);
    assert_int_equal(r.n_cached, 0);
    /* The last token is not in the sequence. */
    assert_int_equal(pith_seq_length(seq), n_prompt + 39);
    assert_memory_equal(pith_seq_tokens(seq), prompt, (size_t)n_prompt * sizeof(int32_t));
    check(pith_detokenize(model, pith_seq_tokens(seq) + n_prompt, 39, false, text, sizeof(text),
                          &len, NULL),
          NULL);
    assert_true(out.len > len);
    assert_memory_equal(out.text, text, len);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- with a grammar ---- */

/* The text is in the grammar, and ends where nothing can follow, though the model would go on and
   end tokens are passed over. Every answer has a state of its own. */
TEST(the_text_stays_in_the_grammar)
{
    static const char gbnf[] = "root ::= \" <\" [xyz]{3} \">\"";
    struct output out = {.len = 0};
    pith_grammar *g = NULL;
    check(pith_grammar_create_gbnf(model, gbnf, strlen(gbnf), NULL, &g, &err), &err);
    pith_engine *e = engine_make(512);
    pith_seq *seq = seq_make(e);
    pith_generate_params p = greedy(40);
    p.sample.grammar = g;
    for (int i = 0; i < 4; i++) {
        p.sample.temperature = i < 2 ? 0.0f : 1.5f;
        p.ignore_end = i % 2 == 1;
        pith_generate_result r = generate(seq, &p, &out);
        assert_int_equal(r.reason, PITH_STOP_END);
        assert_int_equal(out.len, 6);
        assert_memory_equal(out.text, " <", 2);
        assert_int_equal(strspn(out.text + 2, "xyz"), 3);
    }
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_grammar_free(g);
}

/* If bias forbids every token that the grammar allows, generation fails. It does not choose another
   token. */
TEST(a_grammar_without_a_token_is_a_failure)
{
    static const char gbnf[] = "root ::= \"\\x01\"";
    pith_logit_bias ban[64];
    struct output out = {.len = 0};
    pith_grammar *g = NULL;
    pith_model_info info;
    pith_model_get_info(model, &info);
    check(pith_grammar_create_gbnf(model, gbnf, strlen(gbnf), NULL, &g, &err), &err);
    pith_engine *e = engine_make(512);
    pith_seq *seq = seq_make(e);
    pith_generate_params p = greedy(4);
    for (int32_t id = 0; id < info.n_vocab; id++) {
        char piece[64];
        size_t len;
        if (pith_token_bytes(model, id, false, piece, sizeof(piece), &len) == PITH_OK && len == 1 &&
            piece[0] == 1) {
            assert_true(p.sample.n_bias < 64);
            ban[p.sample.n_bias++] = (pith_logit_bias){id, -INFINITY};
        }
    }
    p.sample.bias = ban;
    p.sample.grammar = g;
    assert_int_equal(pith_generate(seq, prompt, n_prompt, &p, collect, &out, NULL, &err),
                     PITH_INVALID);
    assert_non_null(strstr(err.message, "no token"));
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_grammar_free(g);
}

TEST(ends_where_the_model_ends)
{
    struct output out = {.len = 0};
    pith_engine *e = engine_make(512);
    pith_seq *seq = seq_make(e);
    pith_generate_params p = greedy(-1);
    pith_generate_result r = generate(seq, &p, &out);
    assert_int_equal(r.reason, PITH_STOP_END);
    assert_int_equal(out.len, strlen(" The password of Maria is copper lantern."));
    assert_memory_equal(out.text, " The password of Maria is copper lantern.", out.len);
    /* Again: the prompt is there, its last token must be evaluated for its logits. */
    r = generate(seq, &p, &out);
    assert_int_equal(r.n_cached, n_prompt - 1);
    assert_int_equal(r.n_prompt, 1);
    assert_int_equal(out.len, strlen(" The password of Maria is copper lantern."));
    /* With nothing generated the sequence ends with the prompt, and nothing need be evaluated. */
    p.n_predict = 0;
    r = generate(seq, &p, &out);
    assert_int_equal(r.reason, PITH_STOP_LENGTH);
    assert_int_equal(out.len, 0);
    assert_int_equal(pith_seq_length(seq), n_prompt);
    r = generate(seq, &p, &out);
    assert_int_equal(r.n_cached, n_prompt);
    assert_int_equal(r.n_prompt, 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(stop_strings_cross_tokens)
{
    static const char *const stops[] = {"never", "is cop"};
    struct output out = {.len = 0};
    pith_engine *e = engine_make(512);
    pith_seq *seq = seq_make(e);
    pith_generate_params p = greedy(-1);
    p.stop = stops;
    p.n_stop = 2;
    pith_generate_result r = generate(seq, &p, &out);
    assert_int_equal(r.reason, PITH_STOP_STRING);
    assert_int_equal(out.len, strlen(" The password of Maria "));
    assert_memory_equal(out.text, " The password of Maria ", out.len);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(the_caller_may_stop)
{
    struct output out = {.stop_at = 3};
    pith_engine *e = engine_make(512);
    pith_seq *seq = seq_make(e);
    pith_generate_params p = greedy(-1);
    pith_generate_result r = generate(seq, &p, &out);
    assert_int_equal(r.reason, PITH_STOP_CALLER);
    assert_int_equal(out.n_call, 3);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(full_memory_is_no_failure)
{
    struct output out = {.len = 0}, whole = {.len = 0};
    int32_t room = (n_prompt + 15) / 16 * 16;
    pith_engine *e = engine_make(room + 16), *large = engine_make(512);
    pith_seq *seq = seq_make(e), *reference = seq_make(large);
    pith_generate_params p = greedy(-1);
    p.ignore_end = true;
    pith_generate_result r = generate(seq, &p, &out);
    assert_int_equal(r.reason, PITH_STOP_FULL);
    assert_int_equal(pith_seq_length(seq), room + 16);
    p.n_predict = r.n_generated;
    generate(reference, &p, &whole);
    assert_int_equal(out.len, whole.len);
    assert_memory_equal(out.text, whole.text, out.len);
    /* A prompt that does not fit is one. */
    int32_t *much = calloc((size_t)room + 17, sizeof(*much));
    assert_int_equal(pith_generate(seq, much, room + 17, &p, collect, &out, NULL, &err),
                     PITH_KV_FULL);
    free(much);
    pith_seq_free(seq);
    pith_seq_free(reference);
    pith_engine_free(e);
    pith_engine_free(large);
}

static bool cancel(void *user, double fraction)
{
    (void)user;
    (void)fraction;
    return false;
}

TEST(refuses_bad_parameters)
{
    pith_engine *e = engine_make(512);
    pith_seq *seq = seq_make(e);
    pith_generate_params p = greedy(1);
    assert_int_equal(pith_generate(seq, prompt, 0, &p, NULL, NULL, NULL, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "n_prompt"));
    p.n_predict = -2;
    assert_int_equal(pith_generate(seq, prompt, 1, &p, NULL, NULL, NULL, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "n_predict: -2"));
    p = greedy(1);
    p.sample.top_p = 2.0f;
    assert_int_equal(pith_generate(seq, prompt, 1, &p, NULL, NULL, NULL, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "top_p"));
    p = greedy(1);
    p.stop = (const char *const[]){""};
    p.n_stop = 1;
    assert_int_equal(pith_generate(seq, prompt, 1, &p, NULL, NULL, NULL, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "stop"));
    p = greedy(1);
    p.progress = cancel;
    assert_int_equal(pith_generate(seq, prompt, n_prompt, &p, NULL, NULL, NULL, &err),
                     PITH_CANCELLED);
    assert_int_equal(pith_seq_length(seq), 0);
    check(pith_generate(seq, prompt, n_prompt,
                        &(pith_generate_params){.n_predict = 1, .sample = p.sample}, NULL, NULL,
                        NULL, &err),
          &err);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* The id of the token that is one byte. */
static int32_t byte_token(char byte)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    for (int32_t id = 0; id < info.n_vocab; id++) {
        char piece[64];
        size_t len;
        if (pith_token_bytes(model, id, false, piece, sizeof(piece), &len) == PITH_OK && len == 1 &&
            piece[0] == byte)
            return id;
    }
    fail_msg("no token is the byte %02x", (unsigned char)byte);
    return -1;
}

/* U+20AC in three tokens. Biases choose the first, and each one taken is penalised, so that the
   next comes. */
TEST(half_characters_wait)
{
    const pith_logit_bias bias[] = {
        {byte_token('\xe2'), 9e3f}, {byte_token('\x82'), 8e3f}, {byte_token('\xac'), 7e3f}};
    pith_engine *e = engine_make(512);
    for (int32_t n = 1; n <= 3; n++) {
        struct output out = {.len = 0};
        pith_seq *seq = seq_make(e);
        pith_generate_params p = greedy(n);
        p.sample.bias = bias;
        p.sample.n_bias = 3;
        p.sample.presence_penalty = 1e5f;
        pith_generate_result r = generate(seq, &p, &out);
        assert_int_equal(r.n_generated, n);
        assert_int_equal(out.n_call, n == 3);
        assert_int_equal(out.len, n == 3 ? 3 : 0);
        assert_memory_equal(out.text, "\xe2\x82\xac", out.len);
        pith_seq_free(seq);
    }
    pith_engine_free(e);
}

TEST(survives_every_failing_allocation)
{
    pith_engine *e = engine_make(512);
    pith_seq *seq = seq_make(e);
    pith_generate_params p = greedy(3);
    p.stop = (const char *const[]){"zzz"};
    p.n_stop = 1;
    p.sample.repeat_penalty = 1.1f;
    int64_t before = pi_mem_used(PI_MEM_OTHER);
    int n_failed = 0;
    for (int nth = 1;; nth++) {
        struct output out = {.len = 0};
        pi_mem_fail_at(nth, false);
        pith_status status = pith_generate(seq, prompt, n_prompt, &p, collect, &out, NULL, &err);
        pi_mem_fail_at(0, false);
        if (status == PITH_OK)
            break;
        assert_int_equal(status, PITH_NOMEM);
        n_failed++;
        assert_true(nth < 1000);
    }
    assert_true(n_failed >= 6);
    /* Nothing stays behind but the sequence's own row of logits, and the best tokens of it. */
    pith_model_info info;
    pith_model_get_info(model, &info);
    assert_true(pi_mem_used(PI_MEM_OTHER) <= before + 4 * info.n_vocab + 2048);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* Asks for a fact that stands before or behind some hundred tokens of stories. */
static bool remembers(const char *keep, bool fact_first)
{
    static const char fact[] = "The password of Maria is copper lantern. ";
    char prose[2600], text[4096];
    FILE *file = fopen(PITH_SOURCE_DIR "/models/demo/prompt-2k.txt", "r");
    assert_non_null(file);
    prose[fread(prose, 1, sizeof(prose) - 1, file)] = '\0';
    fclose(file);
    assert_true(strlen(prose) == sizeof(prose) - 1);
    strrchr(prose, '.')[1] = '\0';
    snprintf(text, sizeof(text), "%s%s %s\nQuestion: What is the password of Maria?\n",
             fact_first ? fact : "", prose, fact_first ? "" : fact);

    int32_t ids[1024], n_id;
    struct output o = {0};
    pith_generate_params p = greedy(16);
    pith_engine *e = engine_make_keep(keep != NULL ? 0 : 1024, keep);
    pith_seq *seq = seq_make(e);
    check(pith_tokenize(model, text, strlen(text), PITH_TOKENIZE_BOS, ids, 1024, &n_id, &err),
          &err);
    assert_true(n_id > 400);
    check(pith_generate(seq, ids, n_id, &p, collect, &o, NULL, &err), &err);
    pith_seq_free(seq);
    pith_engine_free(e);
    return strstr(o.text, "copper lantern") != NULL;
}

/* Facts that a keep policy holds are answered, and evicted ones are not. */
TEST(facts_stay_or_go_with_the_policy)
{
    assert_true(remembers(NULL, true));
    assert_true(remembers(NULL, false));
    assert_true(remembers("streaming:budget=128,slack=32", false));
    assert_false(remembers("streaming:budget=128,slack=32", true));
    assert_true(remembers("streaming:budget=128,slack=32,prefix=32", true));
}
