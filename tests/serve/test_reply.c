/*
 * Replies of the APIs, from tokens that the test makes up. There are a golden document and a golden
 * stream of each, with the same text in both. Also errors before and after the first event, and log
 * probabilities.
 */
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <threads.h>

#include "serve/api/reply.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static struct serve_setup setup;
static pith_model *model;

static void load(void)
{
    pith_model_params params;
    pith_model_params_default(&params);
    params.vocab_only = true;
    assert_int_equal(pith_model_load(MODEL, &params, &model, NULL), PITH_OK);
    serve_setup_default(&setup);
    setup.model = model;
    setup.alias = "nano";
    setup.no_timings = true;
    setup.can_score_prompt = true;
    setup.template_text = "{% for m in messages %}{{ m.content }}{% endfor %}";
}

static void unload(void)
{
    pith_model_free(model);
}

TEST_GROUP(load, unload);

/* ---- a run ---- */

struct run {
    struct serve_request *request;
    struct serve_reply *reply;
    struct serve_bytes out;
};

static void start(struct run *run, enum serve_api api, const char *body)
{
    struct serve_fault fault;
    *run = (struct run){0};
    if (serve_request_parse(&setup, api, body, strlen(body), &run->request, &fault) != PITH_OK)
        fail_msg("%s: %s", body, fault.message);
    assert_int_equal(serve_reply_create(run->request, 1700000000, "abc", &run->reply), PITH_OK);
    assert_int_equal(serve_reply_code(run->reply), 0);
}

static void say(struct run *run, int32_t i, int32_t answer, int32_t token, const char *text)
{
    const pith_answer_token t = {
        .answer = answer, .token = token, .text = text, .len = strlen(text)};
    assert_true(serve_reply_token(run->reply, i, &t, &run->out));
}

static void finish(struct run *run, int32_t i, int32_t answer, pith_stop_reason reason)
{
    const pith_answer_result result = {.answer = answer,
                                       .reason = reason,
                                       .n_prompt = 1,
                                       .n_cached = 2,
                                       .n_generated = 3,
                                       .keep = {.rounds = 1, .evicted = 7, .live = 5, .budget = 4}};
    assert_true(serve_reply_done(run->reply, i, &result, &run->out));
}

/* Pieces "Once" and " upon"; returns the reply, terminated. */
static const char *tell(struct run *run, enum serve_api api, const char *body)
{
    start(run, api, body);
    say(run, 0, 0, 5, "Once");
    say(run, 0, 0, 6, " upon");
    finish(run, 0, 0, PITH_STOP_END);
    assert_true(serve_reply_finished(run->reply));
    assert_int_equal(serve_reply_code(run->reply), 200);
    assert_int_equal(serve_reply_is_events(run->reply), serve_request_streams(run->request));
    assert_true(serve_bytes_add(&run->out, "", 1));
    return run->out.data;
}

static void end(struct run *run)
{
    serve_reply_free(run->reply);
    serve_request_free(run->request);
    serve_bytes_free(&run->out);
}

/* All texts of a stream's events under keys, one after the other. */
static void join(const json_t *value, const char *key, char *text, size_t cap)
{
    const char *name;
    json_t *one;
    size_t i;
    if (json_is_array(value))
        json_array_foreach((json_t *)value, i, one) join(one, key, text, cap);
    json_object_foreach((json_t *)value, name, one)
    {
        if (strcmp(name, key) == 0 && json_is_string(one))
            strncat(text, json_string_value(one), cap - strlen(text) - 1);
        else
            join(one, key, text, cap);
    }
}

static void expect_text(const char *stream, const char *key, const char *expected)
{
    char text[256] = "";
    for (const char *at = strstr(stream, "data: {"); at != NULL; at = strstr(at + 1, "data: {")) {
        const char *close = strstr(at, "\n\n");
        assert_non_null(close);
        json_t *value = json_loadb(at + 6, (size_t)(close - at) - 6, 0, NULL);
        assert_non_null(value);
        json_t *part = json_object_get(value, "delta");
        if (json_is_string(part))
            strncat(text, json_string_value(part), sizeof(text) - strlen(text) - 1);
        else
            join(value, key, text, sizeof(text));
        json_decref(value);
    }
    assert_string_equal(text, expected);
}

static void expect_golden(enum serve_api api, const char *body, const char *golden)
{
    struct run run;
    assert_string_equal(tell(&run, api, body), golden);
    end(&run);
}

#define PITH "\"pith\":{\"keep_rounds\":1,\"evicted_entries\":7,\"kept_entries\":5,\"budget\":4}"

static const char *usage(int32_t n)
{
    static char text[512];
    snprintf(text, sizeof(text),
             "\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":3,\"total_tokens\":%d,"
             "\"prompt_tokens_details\":{\"cached_tokens\":2}," PITH "}",
             n, n + 3);
    return text;
}

/* ---- OpenAI ---- */

#define HEAD(object)                                                                               \
    "{\"id\":\"chatcmpl-abc\",\"object\":\"" object                                                \
    "\",\"created\":1700000000,\"model\":\"nano\","                                                \
    "\"system_fingerprint\":\"pith-%s\",\"choices\":["
#define CHUNK(delta, finish)                                                                       \
    "data: " HEAD("chat.completion.chunk") "{\"index\":0,\"delta\":" delta                         \
                                           ",\"logprobs\":null,\"finish_reason\":" finish          \
                                           "}]}\n\n"

TEST(a_chat_is_the_golden_one)
{
    char golden[4096];
    const char *v = pith_version();
    struct run run;
    start(&run, SERVE_CHAT, "{" HI "}");
    int32_t n = (int32_t)serve_request_n_prompt(run.request);
    end(&run);
    snprintf(golden, sizeof(golden),
             HEAD("chat.completion") "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                                     "\"Once upon\"},\"logprobs\":null,\"finish_reason\":\"stop\"}"
                                     "],%s}",
             v, usage(n));
    expect_golden(SERVE_CHAT, "{" HI "}", golden);
    snprintf(golden, sizeof(golden),
             CHUNK("{\"role\":\"assistant\",\"content\":null}", "null") CHUNK(
                 "{\"content\":\"Once\"}", "null") CHUNK("{\"content\":\" upon\"}", "null")
                 CHUNK("{}", "\"stop\"") "data: " HEAD("chat.completion.chunk") "],%s}\n\n"
                                                                                "data: [DONE]\n\n",
             v, v, v, v, v, usage(n));
    expect_golden(SERVE_CHAT,
                  "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}", golden);
}

/* Two prompts with two answers each, in any order. */
TEST(several_prompts_and_answers_keep_their_order)
{
    struct run run;
    start(&run, SERVE_TEXT, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"echo\":true}");
    for (int k = 3; k >= 0; k--) {
        char word[12];
        snprintf(word, sizeof(word), "%d", k);
        say(&run, k / 2, k % 2, 5, word);
    }
    for (int k = 0; k < 4; k++) {
        assert_int_equal(run.out.len, 0);
        finish(&run, k / 2, k % 2, k == 1 ? PITH_STOP_LENGTH : PITH_STOP_END);
    }
    json_t *all = json_loadb(run.out.data, run.out.len, 0, NULL);
    json_t *choices = json_object_get(all, "choices");
    static const char *const texts[] = {"a0", "a1", "b2", "b3"};
    assert_int_equal(json_array_size(choices), 4);
    for (size_t k = 0; k < 4; k++) {
        const json_t *c = json_array_get(choices, k);
        assert_string_equal(json_string_value(json_object_get(c, "text")), texts[k]);
        assert_string_equal(json_string_value(json_object_get(c, "finish_reason")),
                            k == 1 ? "length" : "stop");
    }
    json_t *figures = json_object_get(all, "usage");
    assert_int_equal(json_integer_value(json_object_get(figures, "completion_tokens")), 12);
    assert_int_equal(json_integer_value(json_object_get(
                         json_object_get(figures, "prompt_tokens_details"), "cached_tokens")),
                     4);
    json_decref(all);
    end(&run);
}

/* ---- the others ---- */

/* An answer that the memory or the context cut says so. Its first token is no step, so an answer of
   one token has no speed. */
TEST(a_cut_answer_says_so)
{
    static const struct {
        pith_stop_reason reason;
        int32_t n_generated;
        bool truncated;
        double per_second;
    } cases[] = {
        {PITH_STOP_LENGTH, 1, false, 0.0},
        {PITH_STOP_LENGTH, 9, false, 4.0},
        {PITH_STOP_FULL, 9, true, 4.0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct run run;
        start(&run, SERVE_COMPLETION, "{\"prompt\":\"a\"}");
        say(&run, 0, 0, 5, "Once");
        const pith_answer_result result = {
            .reason = cases[i].reason, .n_generated = cases[i].n_generated, .generate_s = 2.0};
        assert_true(serve_reply_done(run.reply, 0, &result, &run.out));
        json_t *all = json_loadb(run.out.data, run.out.len, 0, NULL);
        const json_t *timings = json_object_get(all, "timings");
        assert_int_equal(json_is_true(json_object_get(all, "truncated")), cases[i].truncated);
        assert_float_equal(
            (float)json_number_value(json_object_get(timings, "predicted_per_second")),
            (float)cases[i].per_second, 1e-6f);
        json_decref(all);
        end(&run);
    }
}

TEST(a_completion_has_llama_servers_fields)
{
    struct run run;
    json_t *all =
        json_loads(tell(&run, SERVE_COMPLETION,
                        "{\"prompt\":\"a\",\"n_predict\":3,\"return_tokens\":true,\"seed\":4}"),
                   0, NULL);
    assert_string_equal(json_string_value(json_object_get(all, "content")), "Once upon");
    assert_int_equal(json_array_size(json_object_get(all, "tokens")), 2);
    assert_true(json_is_true(json_object_get(all, "stop")));
    assert_string_equal(json_string_value(json_object_get(all, "stop_type")), "eos");
    assert_int_equal(json_integer_value(json_object_get(all, "tokens_predicted")), 3);
    const json_t *settings = json_object_get(all, "generation_settings");
    assert_int_equal(json_integer_value(json_object_get(settings, "seed")), 4);
    assert_int_equal(json_integer_value(json_object_get(settings, "n_predict")), 3);
    const json_t *timings = json_object_get(all, "timings");
    assert_int_equal(json_integer_value(json_object_get(timings, "cache_n")), 2);
    assert_int_equal(json_integer_value(json_object_get(timings, "prompt_n")), 1);
    json_decref(all);
    end(&run);
    const char *stream = tell(&run, SERVE_COMPLETION, "{\"prompt\":\"a\",\"stream\":true}");
    expect_text(stream, "content", "Once upon");
    assert_non_null(strstr(stream, "data: {\"index\":0,\"content\":\"Once\",\"tokens\":[5],"
                                   "\"stop\":false"));
    assert_non_null(strstr(stream, "\"content\":\"\",\"tokens\":[],\"stop\":true"));
    assert_null(strstr(stream, "[DONE]"));
    end(&run);
}

TEST(messages_are_the_golden_ones)
{
    char golden[4096];
    struct run run;
    start(&run, SERVE_MESSAGES, "{\"max_tokens\":9," HI "}");
    int n = (int)serve_request_n_prompt(run.request);
    end(&run);
#define FIGURES                                                                                    \
    "\"usage\":{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_"         \
    "tokens\":"                                                                                    \
    "%d,\"output_tokens\":%d"
    snprintf(golden, sizeof(golden),
             "{\"id\":\"msg_abc\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"nano\","
             "\"content\":[{\"type\":\"text\",\"text\":\"Once upon\"}],\"stop_reason\":"
             "\"end_turn\",\"stop_sequence\":null," FIGURES "," PITH "}}",
             n - 2, 2, 3);
    expect_golden(SERVE_MESSAGES, "{\"max_tokens\":9," HI "}", golden);
    snprintf(
        golden, sizeof(golden),
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_abc\","
        "\"type\":\"message\",\"role\":\"assistant\",\"model\":\"nano\",\"content\":[],"
        "\"stop_reason\":null,\"stop_sequence\":null," FIGURES "}}}\n\n"
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
        "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
        "\"delta\":{\"type\":\"text_delta\",\"text\":\"Once\"}}\n\n"
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
        "\"delta\":{\"type\":\"text_delta\",\"text\":\" upon\"}}\n\n"
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":"
        "\"end_turn\",\"stop_sequence\":null}," FIGURES "," PITH "}}\n\n"
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        n, 0, 0, n - 2, 2, 3);
    expect_golden(SERVE_MESSAGES, "{\"max_tokens\":9,\"stream\":true," HI "}", golden);
}

TEST(a_response_streams_its_events_in_order)
{
    static const char *const order[] = {"response.created",           "response.in_progress",
                                        "response.output_item.added", "response.content_part.added",
                                        "response.output_text.delta", "response.output_text.delta",
                                        "response.output_text.done",  "response.content_part.done",
                                        "response.output_item.done",  "response.completed"};
    struct run run;
    const char *at = tell(&run, SERVE_RESPONSES, "{\"input\":\"Hi\",\"stream\":true}");
    json_t *last = NULL;
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        char head[96];
        int len = snprintf(head, sizeof(head), "event: %s\ndata: ", order[i]);
        assert_int_equal(strncmp(at, head, (size_t)len), 0);
        at += len;
        json_decref(last);
        last = json_loadb(at, (size_t)(strstr(at, "\n\n") - at), 0, NULL);
        assert_string_equal(json_string_value(json_object_get(last, "type")), order[i]);
        assert_int_equal(json_integer_value(json_object_get(last, "sequence_number")), i);
        at = strstr(at, "\n\n") + 2;
    }
    assert_string_equal(at, "");
    expect_text(run.out.data, "", "Once upon");
    json_t *streamed = json_incref(json_object_get(last, "response"));
    json_decref(last);
    end(&run);
    json_t *whole = json_loads(tell(&run, SERVE_RESPONSES, "{\"input\":\"Hi\"}"), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(whole, "status")), "completed");
    assert_true(json_equal(streamed, whole));
    json_decref(streamed);
    json_decref(whole);
    end(&run);
}

/* ---- calls and thoughts ---- */

#define CALL                                                                                       \
    "<think>hm</think><tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>"
#define ARGS "{\"a\": 1}"

/* An answer that thinks and calls, in pieces of n bytes. */
static const char *call(struct run *run, enum serve_api api, const char *body, size_t n)
{
    char piece[sizeof(CALL)];
    start(run, api, body);
    for (size_t at = 0; at < sizeof(CALL) - 1; at += n) {
        snprintf(piece, sizeof(piece), "%.*s", (int)n, CALL + at);
        say(run, 0, 0, 5, piece);
    }
    finish(run, 0, 0, PITH_STOP_END);
    assert_true(serve_bytes_add(&run->out, "", 1));
    return run->out.data;
}

TEST(calls_are_told_in_the_form_of_each_api)
{
    static const struct {
        enum serve_api api;
        const char *body; /* without the brace that ends it */
        const char *whole[4], *events[6];
    } cases[] = {
        {SERVE_CHAT,
         "{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]",
         {"\"content\":null,\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"",
          "\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"a\\\": 1}\"}}]",
          "\"finish_reason\":\"tool_calls\""},
         {"{\"reasoning_content\":\"h", "{\"tool_calls\":[{\"index\":0,\"id\":\"",
          "\"function\":{\"name\":\"add\",\"arguments\":\"\"}}]}",
          "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\""}},
        {SERVE_MESSAGES,
         "{\"max_tokens\":9," HI ",\"tools\":[{\"name\":\"add\",\"input_schema\":{}}]",
         {"{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"}",
          "\"name\":\"add\",\"input\":{\"a\":1}}", "\"stop_reason\":\"tool_use\""},
         {"\"content_block\":{\"type\":\"thinking\"",
          "{\"type\":\"thinking_delta\",\"thinking\":\"h",
          "\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"",
          "{\"type\":\"input_json_delta\",\"partial_json\":\"", "\"stop_reason\":\"tool_use\""}},
        {SERVE_RESPONSES,
         "{\"input\":\"Hi\",\"tools\":[{\"type\":\"function\",\"name\":\"add\"}]",
         {"\"type\":\"reasoning\"", "{\"type\":\"reasoning_text\",\"text\":\"hm\"}",
          "\"name\":\"add\",\"arguments\":\"{\\\"a\\\": 1}\"}"},
         {"event: response.reasoning_text.delta", "event: response.reasoning_text.done",
          "event: response.function_call_arguments.delta",
          "event: response.function_call_arguments.done", "event: response.completed"}},
    };
    char body[256];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t n = 1; n < 8; n += 3) {
            struct run run;
            snprintf(body, sizeof(body), "%s}", cases[i].body);
            const char *text = call(&run, cases[i].api, body, n);
            for (size_t k = 0; k < 4 && cases[i].whole[k] != NULL; k++)
                if (strstr(text, cases[i].whole[k]) == NULL)
                    fail_msg("%s is not in %s", cases[i].whole[k], text);
            end(&run);
            snprintf(body, sizeof(body), "%s,\"stream\":true}", cases[i].body);
            text = call(&run, cases[i].api, body, n);
            for (size_t k = 0; k < 6 && cases[i].events[k] != NULL; k++)
                if (strstr(text, cases[i].events[k]) == NULL)
                    fail_msg("%s is not in %s", cases[i].events[k], text);
            if (cases[i].api == SERVE_CHAT)
                expect_text(text, "arguments", ARGS);
            if (cases[i].api == SERVE_MESSAGES)
                expect_text(text, "partial_json", ARGS);
            end(&run);
        }
}

/* A custom tool's call has a text in place of arguments, which comes as a whole. */
TEST(calls_of_custom_tools_have_their_input_as_text)
{
    static const struct {
        enum serve_api api;
        const char *body; /* without the brace that ends it */
        const char *whole, *events[3];
    } cases[] = {
        {SERVE_CHAT,
         "{" HI ",\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"sh\"}}]",
         "\"type\":\"custom\",\"custom\":{\"name\":\"sh\",\"input\":\"ls \\\"x\\\"\\n\"}}]",
         {"\"type\":\"custom\",\"custom\":{\"name\":\"sh\",\"input\":\"\"}}]}",
          "{\"tool_calls\":[{\"index\":0,\"custom\":{\"input\":\"ls \\\"x\\\"\\n\"}}]}",
          "\"finish_reason\":\"tool_calls\""}},
        {SERVE_RESPONSES,
         "{\"input\":\"Hi\",\"tools\":[{\"type\":\"custom\",\"name\":\"sh\"}]",
         "\"name\":\"sh\",\"input\":\"ls \\\"x\\\"\\n\"}]",
         {"\"type\":\"custom_tool_call\",\"status\":\"in_progress\"",
          "\"delta\":\"ls \\\"x\\\"\\n\",\"type\":\"response.custom_tool_call_input.delta\"",
          "\"input\":\"ls \\\"x\\\"\\n\",\"type\":\"response.custom_tool_call_input.done\""}},
    };
    static const char *const texts[] = {
        "<tool_call>\n{\"name\": \"sh\", \"arguments\": {\"input\": \"ls "
        "\\\"x\\\"\\n\"}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"sh\", \"arguments\": {\"input\": \"ls \\\"x\\\"\\n", /* cut */
    };
    char body[256];
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++)
        for (int streams = 0; streams < 2; streams++) {
            struct run run;
            snprintf(body, sizeof(body), "%s%s", cases[i / 2].body,
                     streams != 0 ? ",\"stream\":true}" : "}");
            start(&run, cases[i / 2].api, body);
            say(&run, 0, 0, 5, texts[i % 2]);
            finish(&run, 0, 0, i % 2 == 0 ? PITH_STOP_END : PITH_STOP_LENGTH);
            assert_true(serve_bytes_add(&run.out, "", 1));
            const char *text = run.out.data;
            if (streams == 0 && strstr(text, cases[i / 2].whole) == NULL)
                fail_msg("%s is not in %s", cases[i / 2].whole, text);
            for (size_t k = 0; k < 3 && streams != 0; k++)
                if (strstr(text, cases[i / 2].events[k]) == NULL && !(i == 1 && k == 2))
                    fail_msg("%s is not in %s", cases[i / 2].events[k], text);
            end(&run);
        }
}

/* Without tools the same text is no call. */
TEST(without_tools_a_call_is_text)
{
    struct run run;
    const char *text = call(&run, SERVE_CHAT, "{" HI "}", 3);
    assert_non_null(strstr(text, "\"content\":\"<tool_call>"));
    assert_non_null(strstr(text, "\"finish_reason\":\"stop\""));
    end(&run);
    text = call(&run, SERVE_CHAT, "{" HI ",\"reasoning_format\":\"none\"}", 3);
    assert_non_null(strstr(text, "\"content\":\"<think>hm</think>"));
    end(&run);
}

/* ---- ends ---- */

/* Which stop string it was, of several. */
TEST(tells_which_stop_string_it_was)
{
    char body[256], piece[64];
    size_t len = 0;
    struct run run;
    assert_int_equal(pith_token_bytes(setup.model, 300, false, piece, sizeof(piece) - 1, &len),
                     PITH_OK);
    piece[len] = '\0';
    snprintf(body, sizeof(body),
             "{\"max_tokens\":9,\"stop_sequences\":[\"no such\",\"%s\"]," HI "}", piece);
    start(&run, SERVE_MESSAGES, body);
    say(&run, 0, 0, 300, "");
    finish(&run, 0, 0, PITH_STOP_STRING);
    json_t *all = json_loadb(run.out.data, run.out.len, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(all, "stop_reason")), "stop_sequence");
    assert_string_equal(json_string_value(json_object_get(all, "stop_sequence")), piece);
    json_decref(all);
    end(&run);
}

/* Half a call is not told as one to be run. */
TEST(a_stop_string_within_a_call_is_why_the_answer_ended)
{
    static const struct {
        enum serve_api api;
        const char *body, *cut, *whole;
    } cases[] = {
        {SERVE_CHAT,
         "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}],"
         "\"tool_choice\":\"required\",\"stop\":\"}\"," HI,
         "\"finish_reason\":\"stop\"", "\"finish_reason\":\"tool_calls\""},
        {SERVE_MESSAGES,
         "{\"tools\":[{\"name\":\"add\",\"input_schema\":{}}],\"max_tokens\":9,"
         "\"tool_choice\":{\"type\":\"any\"},\"stop_sequences\":[\"}\"]," HI,
         "\"stop_reason\":\"stop_sequence\"", "\"stop_reason\":\"tool_use\""},
    };
    char body[512];
    for (size_t i = 0; i < 4 * sizeof(cases) / sizeof(cases[0]); i++) {
        bool cut = i % 2 != 0;
        struct run run;
        snprintf(body, sizeof(body), "%s,\"stream\":%s}", cases[i / 4].body,
                 i % 4 < 2 ? "false" : "true");
        start(&run, cases[i / 4].api, body);
        say(&run, 0, 0, 5, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1");
        if (!cut)
            say(&run, 0, 0, 5, "}}\n</tool_call>");
        finish(&run, 0, 0, cut ? PITH_STOP_STRING : PITH_STOP_END);
        assert_true(serve_bytes_add(&run.out, "", 1));
        assert_non_null(strstr(run.out.data, "\"add\""));
        assert_non_null(strstr(run.out.data, cut ? cases[i / 4].cut : cases[i / 4].whole));
        end(&run);
    }
}

TEST(faults_before_and_within_a_stream_are_told)
{
    struct run run;
    struct serve_fault fault = {0};
    serve_fault_status(&fault, PITH_CONTEXT, "too long", 9, 8);
    start(&run, SERVE_CHAT, "{" HI ",\"stream\":true}");
    assert_true(serve_reply_fail(run.reply, &fault, &run.out)); /* before the first event */
    assert_int_equal(serve_reply_code(run.reply), 400);
    assert_false(serve_reply_is_events(run.reply));
    assert_true(serve_bytes_add(&run.out, "", 1));
    assert_string_equal(run.out.data,
                        "{\"error\":{\"code\":\"context_length_exceeded\",\"message\":\"This "
                        "model's maximum context length is 8 tokens. However, your messages "
                        "resulted in 9 tokens, which leave no room for an answer.\",\"type\":"
                        "\"exceed_context_size_error\",\"param\":null,\"n_prompt_tokens\":9,"
                        "\"n_ctx\":8}}");
    end(&run);
    static const struct {
        enum serve_api api;
        const char *body, *event;
    } cases[] = {
        {SERVE_CHAT, "{" HI ",\"stream\":true}", "data: {\"error\":{\"code\":503,"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"stream\":true}", "data: {\"error\":{\"code\":503,"},
        {SERVE_MESSAGES, "{\"max_tokens\":9,\"stream\":true," HI "}",
         "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","},
        {SERVE_RESPONSES, "{\"input\":\"a\",\"stream\":true}", "event: response.failed\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) { /* and after it */
        const pith_answer_result result = {.status = PITH_CANCELLED, .message = "late"};
        start(&run, cases[i].api, cases[i].body);
        say(&run, 0, 0, 5, "Once");
        assert_true(serve_reply_done(run.reply, 0, &result, &run.out));
        assert_true(serve_reply_finished(run.reply) && serve_reply_is_events(run.reply));
        assert_int_equal(serve_reply_fault(run.reply)->code, 503);
        assert_true(serve_bytes_add(&run.out, "", 1));
        assert_non_null(strstr(run.out.data, cases[i].event));
        end(&run);
    }
}

/* A prompt that is too long, in the words of each API. */
TEST(a_long_prompt_is_refused_in_the_words_of_each_api)
{
    static const struct {
        enum serve_api api;
        const char *code, *message;
    } cases[] = {
        {SERVE_CHAT, "context_length_exceeded", "maximum context length is 8 tokens"},
        {SERVE_TEXT, "context_length_exceeded", "maximum context length is 8 tokens"},
        {SERVE_RESPONSES, "context_length_exceeded", "maximum context length is 8 tokens"},
        {SERVE_MESSAGES, NULL, "prompt is too long: 9 tokens > 7 maximum"},
        {SERVE_COMPLETION, "400",
         "request (9 tokens) exceeds the available context size (8 tokens), try increasing it"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int full = 0; full < 2; full++) { /* of the memory, and of the model */
            struct serve_fault fault = {0};
            struct serve_bytes out = {0};
            serve_fault_status(&fault, full ? PITH_KV_FULL : PITH_CONTEXT, "too long", 9, 8);
            assert_true(serve_fault_write(&fault, cases[i].api, &out));
            json_t *all = json_loadb(out.data, out.len, 0, NULL);
            const json_t *error = json_object_get(all, "error");
            const json_t *code = json_object_get(error, "code");
            assert_non_null(
                strstr(json_string_value(json_object_get(error, "message")), cases[i].message));
            if (json_is_string(code))
                assert_string_equal(json_string_value(code), cases[i].code);
            else if (cases[i].code != NULL)
                assert_int_equal(json_integer_value(code), 400);
            json_decref(all);
            serve_bytes_free(&out);
        }
    }
}

/* Clients choose the class of an error by the status, and users read the type. */
TEST(anthropics_errors_have_their_types)
{
    static const struct {
        int code;
        const char *type;
    } cases[] = {
        {400, "invalid_request_error"},
        {401, "authentication_error"},
        {403, "permission_error"},
        {404, "not_found_error"},
        {413, "request_too_large"},
        {429, "rate_limit_error"},
        {500, "api_error"},
        {501, "api_error"},
        {503, "overloaded_error"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct serve_fault fault = {0};
        serve_fault_set(&fault, cases[i].code, "invalid_request_error", NULL, "so it is");
        struct serve_bytes out = {0};
        assert_true(serve_fault_write(&fault, SERVE_MESSAGES, &out));
        json_t *all = json_loadb(out.data, out.len, 0, NULL);
        const json_t *error = json_object_get(all, "error");
        assert_string_equal(json_string_value(json_object_get(error, "type")), cases[i].type);
        json_decref(all);
        serve_bytes_free(&out);
    }
}

/* ---- streams and documents ---- */

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"input_schema\":{\"type\":\"object\"},"     \
    "\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]"

#define TOOLS_OF_MESSAGES "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}]"

/* The state of a chat client: content, then the calls. */
static void add_chat(const json_t *part, char *content, char *calls)
{
    size_t i;
    json_t *call;
    const char *text = json_string_value(json_object_get(part, "content"));
    strcat(content, text != NULL ? text : "");
    json_array_foreach(json_object_get(part, "tool_calls"), i, call)
    {
        const json_t *function = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const char *arguments = json_string_value(json_object_get(function, "arguments"));
        if (name != NULL)
            strcat(strcat(calls, "|"), name);
        strcat(calls, arguments != NULL ? arguments : "");
    }
}

/* Blocks of a message of Anthropic's, without the events' frame. */
static void add_blocks(const json_t *event, char *all)
{
    const json_t *block = json_object_get(event, "content_block"),
                 *delta = json_object_get(event, "delta");
    if (block != NULL)
        strcat(strcat(all, "|"), json_string_value(json_object_get(block, "type")));
    const char *text = json_string_value(json_object_get(delta, "text"));
    const char *json = json_string_value(json_object_get(delta, "partial_json"));
    const char *thought = json_string_value(json_object_get(delta, "thinking"));
    strcat(all, text != NULL ? text : json != NULL ? json : thought != NULL ? thought : "");
}

static void whole_blocks(const json_t *message, char *all)
{
    size_t i;
    json_t *block;
    json_array_foreach(json_object_get(message, "content"), i, block)
    {
        const char *text = json_string_value(json_object_get(block, "text"));
        const char *thought = json_string_value(json_object_get(block, "thinking"));
        char *input = json_dumps(json_object_get(block, "input"), 0);
        strcat(strcat(all, "|"), json_string_value(json_object_get(block, "type")));
        strcat(all, text != NULL ? text : thought != NULL ? thought : "");
        strcat(all, input != NULL ? input : "");
        free(input);
    }
}

/* Answers text in pieces; what came is in run->out. */
static void answer(struct run *run, enum serve_api api, const char *body, const char *text,
                   size_t piece, pith_stop_reason reason)
{
    char part[64];
    start(run, api, body);
    for (size_t at = 0, len = strlen(text); at < len; at += piece) {
        snprintf(part, sizeof(part), "%.*s", (int)piece, text + at);
        say(run, 0, 0, 5, part);
    }
    finish(run, 0, 0, reason);
    assert_true(serve_bytes_add(&run->out, "", 1));
}

/* The value of the next "data:" line; NULL: there is none. */
static json_t *next_event(const char **at)
{
    const char *from = strstr(*at, "data: {");
    if (from == NULL)
        return NULL;
    *at = strchr(from, '\n');
    return json_loadb(from + 6, (size_t)(*at - from - 6), JSON_ALLOW_NUL, NULL);
}

/* A stream adds up to the document, for calls that are whole, broken, cut and followed by text. */
TEST(a_stream_adds_up_to_the_document)
{
    static const char *const texts[] = {
        "Hello",
        "<think>why</think>yes",
        "Hm <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1,}}\n</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 18446744073709551616}}</tool_call> "
        "and so",
        "a<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>b<tool_call>{\"name\": \"f\", "
        "\"arguments\": {\"x\": [",
    };
    setup.template_text = "<tool_call>{% for m in messages %}{{ m.content }}{% endfor %}";
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        for (size_t k = 0; k < 6; k++) {
            struct run run;
            const char *at;
            json_t *event;
            char content[2][2048] = {""}, calls[2][2048] = {""}, blocks[2][2048] = {""};
            size_t piece = k < 3 ? 1 + 3 * k : 60;
            pith_stop_reason reason = k % 2 == 0 ? PITH_STOP_END : PITH_STOP_LENGTH;
            answer(&run, SERVE_CHAT, "{" HI "," TOOLS ",\"stream\":true}", texts[i], piece, reason);
            for (at = run.out.data; (event = next_event(&at)) != NULL; json_decref(event))
                add_chat(
                    json_object_get(json_array_get(json_object_get(event, "choices"), 0), "delta"),
                    content[0], calls[0]);
            end(&run);
            answer(&run, SERVE_CHAT, "{" HI "," TOOLS "}", texts[i], 50, reason);
            json_t *all = json_loads(run.out.data, JSON_ALLOW_NUL, NULL);
            add_chat(json_object_get(json_array_get(json_object_get(all, "choices"), 0), "message"),
                     content[1], calls[1]);
            json_decref(all);
            end(&run);
            assert_string_equal(content[0], content[1]);
            assert_string_equal(calls[0], calls[1]);
            assert_true(strstr(content[0], "<tool_call>") == NULL || calls[0][0] == '\0' ||
                        reason == PITH_STOP_END);
            answer(&run, SERVE_MESSAGES,
                   "{\"max_tokens\":9," HI "," TOOLS_OF_MESSAGES ",\"stream\":true}", texts[i],
                   piece, PITH_STOP_END);
            for (at = run.out.data; (event = next_event(&at)) != NULL; json_decref(event))
                add_blocks(event, blocks[0]);
            end(&run);
            answer(&run, SERVE_MESSAGES, "{\"max_tokens\":9," HI "," TOOLS_OF_MESSAGES "}",
                   texts[i], 50, PITH_STOP_END);
            if (i == 4) /* digit for digit */
                assert_non_null(strstr(run.out.data, "\"input\":{\"a\":18446744073709551616}"));
            all = json_loads(run.out.data, i == 4 ? JSON_DECODE_INT_AS_REAL : 0, NULL);
            whole_blocks(all, blocks[1]);
            json_decref(all);
            end(&run);
            if (i != 4)
                assert_string_equal(blocks[0], blocks[1]);
            /* And of responses: the same items, in the same order. */
            json_t *items[2];
            for (int s = 0; s < 2; s++) {
                answer(&run, SERVE_RESPONSES,
                       s == 0 ? "{\"input\":\"a\"," TOOLS ",\"stream\":true}"
                              : "{\"input\":\"a\"," TOOLS "}",
                       texts[i], s == 0 ? piece : 50, reason);
                json_t *last = s == 1 ? json_loads(run.out.data, 0, NULL) : NULL;
                for (at = run.out.data; s == 0 && (event = next_event(&at)) != NULL;) {
                    json_decref(last);
                    last = event;
                }
                const json_t *response = s == 0 ? json_object_get(last, "response") : last;
                items[s] = json_incref(json_object_get(response, "output"));
                json_decref(last);
                end(&run);
            }
            assert_non_null(items[0]);
            assert_true(json_equal(items[0], items[1]));
            json_decref(items[0]);
            json_decref(items[1]);
        }
    setup.template_text = "{% for m in messages %}{{ m.content }}{% endfor %}";
}

/* An answer that had room for fewer tokens than were asked for says so. */
TEST(tells_when_there_was_room_for_fewer_tokens)
{
    struct run run;
    for (int32_t most = 40; most <= 50; most += 10) {
        pith_answer_result result = {.reason = PITH_STOP_LENGTH, .n_predict = most};
        start(&run, SERVE_CHAT, "{" HI ",\"max_tokens\":50}");
        say(&run, 0, 0, 5, "Once");
        assert_true(serve_reply_done(run.reply, 0, &result, &run.out));
        assert_true(serve_bytes_add(&run.out, "", 1));
        json_t *all = json_loads(run.out.data, 0, NULL);
        const json_t *said =
            json_object_get(json_object_get(json_object_get(all, "usage"), "pith"), "max_tokens");
        assert_int_equal(json_integer_value(said), most < 50 ? most : 0);
        assert_true((said == NULL) == (most == 50));
        json_decref(all);
        end(&run);
    }
}

/* ---- log probabilities ---- */

/* A row in which token id has probability p, and all others the same. */
static float *make_row(int32_t id, double p)
{
    pith_model_info info;
    pith_model_get_info(setup.model, &info);
    float *row = calloc((size_t)info.n_vocab, sizeof(*row));
    row[id] = (float)log(p * (info.n_vocab - 1) / (1.0 - p));
    return row;
}

/* The request of lm-eval: the prompt's tokens with the answer's. */
TEST(echoes_the_prompts_tokens_with_log_probabilities)
{
    struct run run;
    float *row = make_row(6, 0.5), *next = make_row(9, 0.25);
    start(&run, SERVE_TEXT, "{\"prompt\":[5,6],\"echo\":true,\"logprobs\":1,\"max_tokens\":1}");
    assert_true(serve_request_wants_prompt(run.request));
    assert_true(serve_reply_prompt(run.reply, 0, 0, row));
    assert_true(serve_reply_prompt(run.reply, 0, 1, next));
    const pith_answer_token t = {.token = 9, .text = "x", .len = 1, .logits = next};
    assert_true(serve_reply_token(run.reply, 0, &t, &run.out));
    finish(&run, 0, 0, PITH_STOP_LENGTH);
    json_t *all = json_loadb(run.out.data, run.out.len, 0, NULL);
    const json_t *l =
        json_object_get(json_array_get(json_object_get(all, "choices"), 0), "logprobs");
    const json_t *p = json_object_get(l, "token_logprobs");
    assert_int_equal(json_array_size(p), 3);
    assert_true(json_is_null(json_array_get(p, 0)));
    assert_true(json_is_null(json_array_get(json_object_get(l, "top_logprobs"), 0)));
    assert_true(fabs(json_real_value(json_array_get(p, 1)) - log(0.5)) < 1e-5);
    assert_true(fabs(json_real_value(json_array_get(p, 2)) - log(0.25)) < 1e-5);
    assert_int_equal(json_object_size(json_array_get(json_object_get(l, "top_logprobs"), 1)), 1);
    assert_int_equal(json_array_size(json_object_get(l, "text_offset")), 3);
    json_decref(all);
    end(&run);
    free(row);
    free(next);
}

/* post_sampling_probs: the probabilities that the token was drawn from. Logits 2, 1 and a bias that
   bans the first. */
TEST(tells_probabilities_after_sampling)
{
    struct run run;
    pith_model_info info;
    pith_logit_bias ban = {5, -INFINITY};
    pith_sample_params params;
    pith_sampler *sampler = NULL;
    pith_model_get_info(setup.model, &info);
    float *row = calloc((size_t)info.n_vocab, sizeof(*row));
    row[5] = 9.0f;
    row[6] = 8.0f;
    row[7] = 8.0f + logf(3.0f); /* three times as likely */
    pith_sample_params_default(&params);
    params.temperature = 1.0f;
    params.top_k = 2;
    params.top_p = 1.0f;
    params.bias = &ban;
    params.n_bias = 1;
    assert_int_equal(pith_sampler_create(&params, info.n_vocab, &sampler, NULL), PITH_OK);
    int32_t id = pith_sampler_sample(sampler, row);
    start(&run, SERVE_COMPLETION, "{\"prompt\":\"a\",\"n_probs\":5,\"post_sampling_probs\":true}");
    const pith_answer_token t = {
        .token = id, .text = "x", .len = 1, .logits = row, .sampler = sampler};
    assert_true(serve_reply_token(run.reply, 0, &t, &run.out));
    finish(&run, 0, 0, PITH_STOP_LENGTH);
    json_t *all = json_loadb(run.out.data, run.out.len, 0, NULL);
    const json_t *one = json_array_get(json_object_get(all, "completion_probabilities"), 0);
    const json_t *top = json_object_get(one, "top_probs");
    assert_int_equal(json_array_size(top), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(top, 0), "id")), 7);
    assert_true(fabs(json_real_value(json_object_get(json_array_get(top, 0), "prob")) - 0.75) <
                1e-6);
    assert_true(fabs(json_real_value(json_object_get(one, "prob")) - (id == 7 ? 0.75 : 0.25)) <
                1e-6);
    assert_null(json_object_get(one, "logprob"));
    assert_null(json_object_get(one, "top_logprobs"));
    json_decref(all);
    end(&run);
    pith_sampler_free(sampler);
    free(row);
}

/* Only the requested fields of the last object, under the paths as names. */
TEST(gives_only_the_fields_that_were_asked_for)
{
    for (int stream = 0; stream < 2; stream++) {
        struct run run;
        char body[256];
        snprintf(body, sizeof(body),
                 "{\"prompt\":\"a\",\"stream\":%s,\"n_predict\":4,\"response_fields\":"
                 "[\"content\",\"generation_settings/n_predict\",\"no/such\",\"stop/x\"]}",
                 stream != 0 ? "true" : "false");
        const char *text = tell(&run, SERVE_COMPLETION, body);
        const char *last = stream != 0 ? strstr(text, "\"generation_settings") - 14 : text;
        const char *expected =
            stream != 0 ? "{\"content\":\"\",\"generation_settings/n_predict\":4}"
                        : "{\"content\":\"Once upon\",\"generation_settings/n_predict\":4}";
        assert_non_null(last);
        assert_memory_equal(last, expected, strlen(expected));
        if (stream != 0) /* the others are whole */
            assert_non_null(strstr(text, "\"tokens_predicted\":1"));
        end(&run);
    }
}

/* t_max_predict_ms counts from the first token, once there is a line. */
TEST(a_time_limit_counts_from_the_first_token)
{
    struct run run;
    const struct timespec pause = {.tv_nsec = 3 * 1000 * 1000};
    setup.no_timings = false;
    for (int has_line = 0; has_line < 2; has_line++) {
        start(&run, SERVE_COMPLETION, "{\"prompt\":\"a\",\"t_max_predict_ms\":2}");
        say(&run, 0, 0, 5, has_line != 0 ? "a\n" : "a");
        thrd_sleep(&pause, NULL);
        say(&run, 0, 0, 6, "b");
        assert_int_equal(serve_reply_is_over(run.reply, 0, 0), has_line);
        finish(&run, 0, 0, PITH_STOP_CALLER);
        end(&run);
    }
    setup.no_timings = true;
}

/* In a stream every token's is told once. */
/* Text behind it is not told, so the model need not write it until its tokens run out. */
TEST(an_answer_ends_behind_the_only_call_that_it_may_have)
{
    for (int one = 0; one < 2; one++) {
        struct run run;
        start(&run, SERVE_CHAT,
              one != 0 ? "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}],"
                         "\"parallel_tool_calls\":false," HI "}"
                       : "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]," HI
                         "}");
        say(&run, 0, 0, 5, "<tool_call>\n{\"name\": \"add\", \"arguments\": {}");
        assert_false(serve_reply_is_over(run.reply, 0, 0));
        say(&run, 0, 0, 6, "}\n</tool_call>");
        assert_int_equal(serve_reply_is_over(run.reply, 0, 0), one);
        finish(&run, 0, 0, one != 0 ? PITH_STOP_CALLER : PITH_STOP_END);
        assert_true(serve_bytes_add(&run.out, "", 1));
        assert_non_null(strstr(run.out.data, "\"finish_reason\":\"tool_calls\""));
        end(&run);
    }
}

TEST(a_stream_tells_each_tokens_log_probability_once)
{
    struct run run;
    float *row = make_row(5, 0.5);
    start(&run, SERVE_CHAT, "{" HI ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":2}");
    for (int i = 0; i < 4; i++) {
        const pith_answer_token t = {.token = 5, .text = "a", .len = i % 2 != 0, .logits = row};
        assert_true(serve_reply_token(run.reply, 0, &t, &run.out));
    }
    finish(&run, 0, 0, PITH_STOP_LENGTH);
    assert_true(serve_bytes_add(&run.out, "", 1));
    int n = 0;
    for (const char *at = run.out.data; (at = strstr(at, "\"top_logprobs\"")) != NULL; at++)
        n++;
    assert_int_equal(n, 4);
    end(&run);
    free(row);
}

TEST(tells_timings_and_progress_when_asked)
{
    struct run run;
    const char *text =
        tell(&run, SERVE_CHAT, "{" HI ",\"stream\":true,\"timings_per_token\":true}");
    assert_non_null(strstr(text, "\"timings\":{\"prompt_n\":"));
    assert_non_null(strstr(text, "\"predicted_n\":1,"));
    assert_non_null(strstr(text, "\"predicted_n\":2,"));
    end(&run);
    start(&run, SERVE_CHAT, "{" HI ",\"stream\":true,\"return_progress\":true}");
    assert_true(serve_reply_progress(run.reply, 0, 1, 2, 0.25, &run.out));
    assert_true(serve_bytes_add(&run.out, "", 1));
    assert_non_null(strstr(run.out.data, "\"prompt_progress\":{\"total\":"));
    assert_non_null(strstr(run.out.data, "\"cache\":1,\"processed\":2,\"time_ms\":250}"));
    end(&run);
    start(&run, SERVE_COUNT, "{" HI "}");
    assert_true(serve_count_write(run.request, &run.out));
    assert_true(serve_bytes_add(&run.out, "", 1));
    char golden[64];
    snprintf(golden, sizeof(golden), "{\"input_tokens\":%d}",
             (int)serve_request_n_prompt(run.request));
    assert_string_equal(run.out.data, golden);
    end(&run);
    start(&run, SERVE_RESPONSES, "{\"input\":\"Hi\"}");
    assert_true(serve_count_write(run.request, &run.out));
    assert_true(serve_bytes_add(&run.out, "", 1));
    snprintf(golden, sizeof(golden), "{\"object\":\"response.input_tokens\",\"input_tokens\":%d}",
             (int)serve_request_n_prompt(run.request));
    assert_string_equal(run.out.data, golden);
    end(&run);
    start(&run, SERVE_TEXT, "{\"prompt\":[[3,4],[5]]}");
    assert_true(serve_render_write(run.request, &run.out));
    assert_true(serve_bytes_add(&run.out, "", 1));
    assert_string_equal(run.out.data, "[{\"token_ids\":[3,4]},{\"token_ids\":[5]}]");
    end(&run);
}
