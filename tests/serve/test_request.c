/*
 * Bodies of the six APIs: the values of each field, the refusals and their words, and the resulting
 * prompts and parameters.
 */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "pith/grammar.h"
#include "serve/api/request_body.h"
#include "serve/json.h"
#include "serve/api/request.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define MESSAGES "\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define TOOL "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{}}}]"

/* A template that shows everything that it is given, and whose calls are Hermes'. */
static const char shows[] =
    "{%- if false %}<tool_call>\n{\"name\": x, \"arguments\": y}\n</tool_call>{% endif %}"
    "{%- if tools %}T{{ tools | map(attribute='function.name') | join(',') }};{% endif %}"
    "{%- for m in messages %}[{{ m.role }}:{{ m.content if m.content is not none else '-' }}"
    "{%- if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}"
    "{%- for c in m.tool_calls or [] %}!{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{%- endfor %}{%- if m.tool_call_id %}@{{ m.tool_call_id }}{% endif %}]{% endfor %}"
    "{%- if enable_thinking is defined %}E{{ enable_thinking }}{% endif %}"
    "{%- if reasoning_effort %}R{{ reasoning_effort }}{% endif %}{{ extra }}"
    "{%- if add_generation_prompt %}>{% endif %}";

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
    setup.template_text = shows;
    setup.n_slot = 4;
    setup.pins = true;
}

static void unload(void)
{
    pith_model_free(model);
}

TEST_GROUP(load, unload);

static struct serve_request *read_good(enum serve_api api, const char *body)
{
    struct serve_request *r = NULL;
    struct serve_fault fault;
    if (serve_request_parse(&setup, api, body, strlen(body), &r, &fault) != PITH_OK)
        fail_msg("%s: %d %s", body, fault.code, fault.message);
    assert_int_equal(fault.code, 0);
    return r;
}

static void expect_fault(enum serve_api api, const char *body, int code, const char *message)
{
    struct serve_request *r = NULL;
    struct serve_fault fault;
    if (serve_request_parse(&setup, api, body, strlen(body), &r, &fault) == PITH_OK)
        fail_msg("%s: was taken, and should be: %s", body, message);
    assert_string_equal(fault.message, message);
    assert_int_equal(fault.code, code);
}

static void expect_prompt(enum serve_api api, const char *body, const char *text)
{
    size_t len;
    struct serve_request *r = read_good(api, body);
    assert_string_equal(serve_request_text(r, &len), text);
    assert_int_equal(len, strlen(text));
    assert_true(serve_request_n_prompt(r) > 0);
    serve_request_free(r);
}

static pith_generate_params params_of(struct serve_request *r, int32_t i)
{
    pith_generate_params params;
    pith_request request;
    serve_request_get(r, i, &params, &request);
    assert_true(request.n_prompt > 0);
    assert_ptr_equal(request.params, &params);
    return params;
}

/* ---- fields ---- */

/* Fields that ask for nothing are accepted: clients send their defaults. */
TEST(accepts_fields_that_ask_for_nothing)
{
    serve_request_free(read_good(
        SERVE_CHAT,
        "{" HI ",\"mirostat\":0,\"typical_p\":1.0,\"dry_multiplier\":0,\"xtc_probability\":0.0,"
        "\"top_n_sigma\":-1,\"adaptive_target\":-1,\"min_keep\":0,\"lora\":[],\"n_indent\":0,"
        "\"functions\":[],\"suffix\":\"\",\"repetition_penalty\":1.0,\"stop_token_ids\":[],"
        "\"min_tokens\":0,\"parse_tool_calls\":true,\"modalities\":[\"text\"],"
        "\"response_fields\":[],\"dynatemp_exponent\":1,\"guided_json\":null,"
        "\"skip_special_tokens\":true,\"truncate_prompt_tokens\":-1,\"documents\":[],"
        "\"chat_template\":null,\"image_data\":[],\"n_cmpl\":1}"));
}

/* Tokens by their texts: all of a text's, and never the special ones that it might name. */
TEST(biases_tokens_by_their_text)
{
    static const char *const forms[] = {"{\"The cat\":2.5,\"7\":1}", "[[\"The cat\",2.5],[7,1]]"};
    char body[256];
    for (int i = 0; i < 2; i++) {
        int32_t ids[16], n = 0;
        snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"logit_bias\":%s}", forms[i]);
        struct serve_request *r = read_good(SERVE_COMPLETION, body);
        pith_generate_params p = params_of(r, 0);
        assert_int_equal(pith_tokenize(setup.model, "The cat", 7, 0, ids, 16, &n, NULL), PITH_OK);
        assert_true(n > 1);
        assert_int_equal(p.sample.n_bias, n + 1);
        for (int32_t k = 0; k < n; k++)
            assert_true(p.sample.bias[k].token == ids[k] && p.sample.bias[k].bias == 2.5f);
        assert_true(p.sample.bias[n].token == 7 && p.sample.bias[n].bias == 1.0f);
        serve_request_free(r);
    }
}

TEST(takes_a_list_of_samplers)
{
    struct serve_request *r = read_good(
        SERVE_COMPLETION, "{\"prompt\":\"a\",\"top_k\":5,\"top_p\":0.5,\"min_p\":0.25,"
                          "\"temperature\":2,\"samplers\":[\"dry\",\"top_k\",\"min_p\"]}");
    pith_generate_params p = params_of(r, 0);
    assert_true(p.sample.top_k == 5 && p.sample.min_p == 0.25f);
    assert_true(p.sample.top_p == 1.0f && p.sample.temperature == 1.0f);
    assert_int_equal(p.sample.penalty_last_n, 0);
    serve_request_free(r);
    r = read_good(SERVE_COMPLETION, "{\"prompt\":\"a\",\"top_k\":5,\"top_p\":0.5,\"min_p\":0.25,"
                                    "\"temperature\":2,\"samplers\":\"edskypmxt\"}");
    p = params_of(r, 0);
    assert_true(p.sample.top_k == 5 && p.sample.min_p == 0.25f);
    assert_true(p.sample.top_p == 0.5f && p.sample.temperature == 2.0f);
    assert_true(p.sample.penalty_last_n != 0);
    serve_request_free(r);
}

TEST(reads_every_field)
{
    struct serve_request *r = read_good(
        SERVE_CHAT,
        "{" HI ",\"max_tokens\":5,\"max_completion_tokens\":7,\"temperature\":0.5,\"top_p\":0.75,"
        "\"top_k\":-1,\"min_p\":0.25,\"seed\":18446744073709551615,\"frequency_penalty\":1.5,"
        "\"presence_penalty\":2,"
        "\"repeat_penalty\":1.25,\"repeat_last_n\":9,\"n\":3.0,\"stop\":[\"a\",\"b\"],"
        "\"logit_bias\":[[5,false],[6,2.5]],\"stream\":true,\"user\":{\"x\":[]},"
        "\"model\":\"m\",\"ignore_eos\":true,\"timeout\":2.5,\"return_progress\":true,"
        "\"cache_prompt\":false,\"cache_salt\":\"s\",\"store\":null}");
    pith_generate_params p = params_of(r, 0);
    assert_int_equal(p.n_predict, 7);
    assert_true(p.sample.temperature == 0.5f && p.sample.top_p == 0.75f);
    assert_true(p.sample.min_p == 0.25f && p.sample.top_k == 0);
    assert_true(p.sample.frequency_penalty == 1.5f && p.sample.presence_penalty == 2.0f);
    assert_true(p.sample.repeat_penalty == 1.25f && p.sample.penalty_last_n == 9);
    assert_true(p.sample.seed == UINT64_MAX && p.ignore_end);
    assert_int_equal(p.n_stop, 2);
    assert_string_equal(p.stop[1], "b");
    assert_int_equal(p.sample.n_bias, 2);
    assert_true(p.sample.bias[0].bias == -INFINITY && p.sample.bias[1].bias == 2.5f);
    assert_int_equal(serve_request_answers(r), 3);
    assert_true(serve_request_streams(r) && serve_request_wants_progress(r));
    assert_false(serve_request_caches(r));
    assert_string_equal(serve_request_model(r), "m");
    assert_true(serve_request_salt(r) != 0 && serve_request_timeout(r) == 2.5);
    assert_int_equal(serve_request_slot(r), -1);
    serve_request_free(r);

    r = read_good(SERVE_CHAT, "{" HI ",\"id_slot\":2,\"stop\":\"x\"}");
    assert_int_equal(serve_request_slot(r), 2);
    assert_int_equal(params_of(r, 0).n_stop, 1);
    assert_true(serve_request_salt(r) == 0 && serve_request_caches(r));
    serve_request_free(r);

    /* An answer that named no slot says such a number. It may come back, as any. */
    r = read_good(SERVE_CHAT, "{" HI ",\"id_slot\":4,\"n\":2}");
    assert_int_equal(serve_request_slot(r), -1);
    serve_request_free(r);
}

TEST(refuses_bad_fields_by_name)
{
    static const struct {
        const char *field, *message;
    } cases[] = {
        {"\"stream\":1", "stream: 1 is not true or false"},
        {"\"stream_options\":[]", "stream_options: an array of 0 is not an object"},
        {"\"stream_options\":{\"include_usage\":2}",
         "stream_options.include_usage: 2 is not true or false"},
        {"\"max_tokens\":0.5", "max_tokens: 0.5 is not a whole number"},
        {"\"n_predict\":-2", "n_predict: -2 is not between -1 and 2147483647"},
        {"\"n\":129", "n: 129 is not between 1 and 128"},
        {"\"top_p\":2", "top_p: 2 is not between 0 and 1"},
        {"\"seed\":1.5", "seed: 1.5 is not a whole number of 64 bits"},
        {"\"seed\":18446744073709551616",
         "seed: 18446744073709551616 is not a whole number of 64 bits"},
        {"\"presence_penalty\":\"x\"", "presence_penalty: \"x\" is not a number"},
        {"\"frequency_penalty\":1e7", "frequency_penalty: 1e7 is not between -1000000 and 1000000"},
        {"\"id_slot\":1048576", "id_slot: 1048576 is not between -1 and 1048575"},
        {"\"temperature\":1e400", "temperature: 1e400 is not between 0 and 1000000"},
        {"\"n\":1e400", "n: 1e400 is not between 1 and 128"},
        {"\"n\":1.5", "n: 1.5 is not a whole number"},
        {"\"id_slot\":1e400", "id_slot: 1e400 is not between -1 and 1048575"},
        {"\"id_slot\":-2", "id_slot: -2 is not between -1 and 1048575"},
        {"\"id_slot\":\"a\"", "id_slot: \"a\" is not a whole number"},
        {"\"id_slot\":1,\"n\":2", "n: 2 answers do not fit in one slot, id_slot 1"},
        {"\"cache_salt\":5", "cache_salt: 5 is not a string"},
        {"\"cache_prompt\":5", "cache_prompt: 5 is not true or false"},
        {"\"timeout\":-1", "timeout: -1 is not between 0 and 1000000"},
        {"\"timings_per_token\":0", "timings_per_token: 0 is not true or false"},
        {"\"return_progress\":0", "return_progress: 0 is not true or false"},
        {"\"logprobs\":1", "logprobs: 1 is not true or false"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs: 21 is not between 0 and 20"},
        {"\"stop\":[\"\"]", "stop: \"\" would end everything"},
        {"\"logit_bias\":5", "logit_bias: 5 is not an object or an array of pairs"},
        {"\"logit_bias\":[[5]]",
         "logit_bias[0]: an array of 1 is not a pair of a token and a bias"},
        {"\"logit_bias\":[[true,1]]",
         "logit_bias[0]: an array of 2 is not a pair of a token and a bias"},
        {"\"logit_bias\":[[\"The\",true]]",
         "logit_bias: true, for token \"The\", is no number up to 1000000"},
        {"\"logit_bias\":{\"\":1}", "logit_bias: \"\" has no tokens"},
        {"\"logit_bias\":{\"-3\":1}", "logit_bias: -3 is not a token id"},
        {"\"response_fields\":5", "response_fields: 5 is not an array of strings"},
        {"\"response_fields\":[\"content\"]",
         "response_fields: is for /completion and /infill only, 1 are given"},
        {"\"post_sampling_probs\":1", "post_sampling_probs: 1 is not true or false"},
        {"\"mirostat\":2", "mirostat: 2 is not supported"},
        {"\"typical_p\":0.5", "typical_p: 0.5 is not supported"},
        {"\"dry_multiplier\":0.75", "dry_multiplier: 0.75 is not supported, but repeat_penalty is"},
        {"\"xtc_probability\":0.25", "xtc_probability: 0.25 is not supported"},
        {"\"lora\":[{\"id\":0}]", "lora: an array of 1 is not supported"},
        {"\"guided_json\":{\"type\":\"object\"}",
         "guided_json: an object is not supported, but response_format is"},
        {"\"stop_token_ids\":[3]", "stop_token_ids: an array of 1 is not supported, but stop is"},
        {"\"min_tokens\":3", "min_tokens: 3 is not supported, but ignore_eos is"},
        {"\"chat_template\":\"{{ x }}\"",
         "chat_template: \"{{ x }}\" is not supported, but chat_template_kwargs is"},
        {"\"truncate_prompt_tokens\":5", "truncate_prompt_tokens: 5 is not supported"},
        {"\"include_stop_str_in_output\":true",
         "include_stop_str_in_output: true is not supported"},
        {"\"skip_special_tokens\":false", "skip_special_tokens: false is not supported"},
        {"\"documents\":[1]",
         "documents: an array of 1 is not supported, but chat_template_kwargs is"},
        {"\"image_data\":[1]", "image_data: an array of 1 is not supported"},
        {"\"n_cmpl\":2", "n_cmpl: 2 is not supported, but n is"},
        {"\"parse_tool_calls\":false",
         "parse_tool_calls: false is not supported, but tool_choice is"},
        {"\"modalities\":[\"text\",\"audio\"]",
         "modalities: \"audio\" is not supported, \"text\" is"},
        {"\"samplers\":5", "samplers: 5 is not an array of names or a string of letters"},
        {"\"samplers\":[\"top_k\",\"infill\"]", "samplers: \"infill\" is not supported"},
        {"\"samplers\":\"kq\"", "samplers: q is not supported"},
        {"\"samplers\":[\"min_p\",\"top_p\"]",
         "samplers: \"top_p\" comes again or too late: the order is penalties, top_k, top_p, "
         "min_p, temperature"},
        {"\"echo\":true", "echo: true is for /v1/completions only"},
        {"\"suffix\":\"x\"", "suffix: \"x\" is not supported, but /infill is"},
        {"\"functions\":[{}]", "functions: an array of 1 is not supported, but tools is"},
        {"\"add_generation_prompt\":2", "add_generation_prompt: 2 is not true or false"},
        {"\"continue_final_message\":true",
         "continue_final_message: the last of 1 messages is no text of the assistant"},
        {"\"continue_final_message\":true,\"add_generation_prompt\":true",
         "continue_final_message: true and add_generation_prompt: true exclude each other"},
        {"\"reasoning_effort\":\"huge\"", "reasoning_effort: \"huge\" is not one of none, minimal, "
                                          "low, medium, high, xhigh and max"},
        {"\"reasoning_format\":\"x\"",
         "reasoning_format: \"x\" is not one of none, auto, deepseek and deepseek-legacy"},
        {"\"chat_template_kwargs\":3", "chat_template_kwargs: 3 is not an object"},
        {"\"chat_template_kwargs\":{\"enable_thinking\":\"no\"}",
         "chat_template_kwargs: \"no\" is not true or false (enable_thinking)"},
        {"\"chat_template_kwargs\":{\"messages\":[]}",
         "chat_template_kwargs: \"messages\" is a field of the request itself"},
        {"\"tools\":{}", "tools: an object is not an array"},
        {"\"tools\":[{\"type\":\"x\"}]", "tools[0].type: \"x\" is not one of function and custom"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools[0].function.name: is missing"},
        {"\"tool_choice\":\"must\"", "tool_choice: \"must\" is not one of auto, none and required"},
        {"\"tool_choice\":\"required\"", "tool_choice: \"required\" without tools"},
        {TOOL ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"sub\"}}",
         "tool_choice.function.name: \"sub\" is none of 1 tools"},
        {"\"parallel_tool_calls\":1", "parallel_tool_calls: 1 is not true or false"},
        {"\"response_format\":1", "response_format: 1 is not an object"},
    };
    char body[512];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(body, sizeof(body), "{" HI ",%s}", cases[i].field);
        expect_fault(SERVE_CHAT, body, 400, cases[i].message);
    }
    expect_fault(SERVE_CHAT, "nonsense", 400,
                 "body: \"nonsense\" is not JSON: invalid token near 'nonsense'");
    expect_fault(SERVE_CHAT, "7", 400, "body: 7 is not an object");
}

/* ---- chats ---- */

TEST(makes_the_prompt_of_a_chat)
{
    expect_prompt(SERVE_CHAT,
                  "{\"messages\":[{\"role\":\"developer\",\"content\":\"S\"},{\"role\":\"user\","
                  "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":"
                  "\"b\"}]}]}",
                  "[system:S][user:a\nb]>");
    expect_prompt(SERVE_CHAT, "{" HI ",\"add_generation_prompt\":false}", "[user:Hi]");
    expect_prompt(SERVE_CHAT,
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
                  "\"content\":\"Oh\"}],\"continue_final_message\":true}",
                  "[user:Hi]>Oh");
    expect_prompt(SERVE_CHAT,
                  "{" HI ",\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"extra\":\"x\","
                  "\"enable_thinking\":true}}",
                  "[user:Hi]ETrueRlowx>");
    expect_prompt(SERVE_CHAT, "{" HI ",\"reasoning_effort\":\"none\"}", "[user:Hi]EFalse>");
    setup.system = "Be brief.";
    expect_prompt(SERVE_CHAT, "{" HI "}", "[system:Be brief.][user:Hi]>");
    setup.system = NULL;
}

/* A template that looks into the content of a call finds an empty text where there is none. */
TEST(a_call_without_content_is_an_empty_text)
{
    const char *before = setup.template_text;
    setup.template_text = "{% for m in messages %}[{% if '</x>' in m.content %}x{% endif %}"
                          "{{ m.content }}{% for c in m.tool_calls or [] %}!{% endfor %}]"
                          "{% endfor %}";
    expect_prompt(
        SERVE_MESSAGES,
        "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":"
        "\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"add\","
        "\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
        "\"tool_use_id\":\"t1\",\"content\":\"2\"}]}]}",
        "[Hi][!][2]");
    setup.template_text = before;
}

/* Special tokens that a user types stay text. */
TEST(special_tokens_that_a_user_types_stay_text)
{
    struct serve_request *plain = read_good(SERVE_CHAT, "{" HI "}");
    struct serve_request *typed =
        read_good(SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"<|endoftext|>\"}]}");
    struct serve_request *opened = read_good(
        SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
                    "\"content\":\"<|endoftext|>\"}],\"continue_final_message\":true}");
    pith_generate_params params;
    pith_request q;
    struct serve_request *all[] = {plain, typed, opened};
    for (int k = 0; k < 3; k++) {
        serve_request_get(all[k], 0, &params, &q);
        for (int32_t i = 1; i < q.n_prompt; i++)
            assert_false(pith_token_is_end(setup.model, q.prompt[i]));
        serve_request_free(all[k]);
    }
}

/* Tokens that a policy pins: the named ones, or in a slot the tokens before the first word. */
TEST(pins_what_is_named_or_stands_first)
{
#define TALK "\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
#define TALK_HI TALK "{\"role\":\"user\",\"content\":\"Hi\"}]"
    struct serve_request *alone =
        read_good(SERVE_CHAT, "{" TALK "{\"role\":\"user\",\"content\":\"\"}]}");
    int32_t n_alone = (int32_t)serve_request_n_prompt(alone);
    serve_request_free(alone);
    static const struct {
        const char *more;
        int32_t least, most;
    } cases[] = {
        {"", 0, 0},
        {",\"id_slot\":1", 6, INT32_MAX},
        {",\"id_slot\":1,\"n_keep\":3", 3, 3},
        {",\"n_keep\":3", 3, 3},
        {",\"id_slot\":1,\"n_keep\":-1", 0, 0},
        {",\"n_keep\":9999", 0, 0}, /* the prompt */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char body[400];
        pith_generate_params params;
        pith_request q;
        snprintf(body, sizeof(body), "{" TALK_HI "%s}", cases[i].more);
        struct serve_request *r = read_good(SERVE_CHAT, body);
        serve_request_get(r, 0, &params, &q);
        assert_in_range(q.n_pin, cases[i].least, cases[i].most);
        assert_true(q.n_pin < n_alone); /* no word of the user's is in it */
        serve_request_free(r);
    }
    setup.pins = false; /* no field asks for it */
    pith_generate_params params;
    pith_request q;
    struct serve_request *r = read_good(SERVE_CHAT, "{" TALK_HI ",\"id_slot\":1}");
    serve_request_get(r, 0, &params, &q);
    assert_int_equal(q.n_pin, 0);
    serve_request_free(r);
    setup.pins = true;
    expect_fault(SERVE_CHAT, "{" HI ",\"n_keep\":-2}", 400,
                 "n_keep: -2 is not between -1 and 2147483647");
}

TEST(tells_the_template_of_tools)
{
    expect_prompt(
        SERVE_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":"
        "null,\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"add\","
        "\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\","
        "\"content\":\"2\"}]," TOOL "}",
        "Tadd;[user:Hi][assistant:-!add{\"a\": 1}][tool:2@c1]>");
    expect_prompt(SERVE_CHAT, "{" HI "," TOOL ",\"tool_choice\":\"none\"}", "[user:Hi]>");
    expect_fault(SERVE_CHAT,
                 "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":1}]}]}", 400,
                 "messages[0].tool_calls[0].id: 1 is not a string");
    expect_fault(SERVE_CHAT,
                 "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400,
                 "messages[0].content[0].type: \"image_url\" is not \"text\"");
    /* a template that puts arguments together as text gets them as text */
    const char *old = setup.template_text;
    setup.template_text = "{% for m in messages %}{% for c in m.tool_calls or [] %}"
                          "{{ 'call ' + c.function.arguments }}{% endfor %}{% endfor %}";
    expect_prompt(SERVE_CHAT,
                  "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
                  "\"add\",\"arguments\":\"{\\\"a\\\":1}\"}}]}]}",
                  "call {\"a\": 1}");
    setup.template_text = "{{ raise_exception('no chats today') }}";
    expect_fault(SERVE_CHAT, "{" HI "}", 400, "messages: no chats today");
    setup.template_text = old;
}

/* Thoughts are not left out without a word. */
TEST(an_answer_with_thoughts_is_not_gone_on)
{
    expect_fault(SERVE_CHAT,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
                 "\"content\":\"Ans\",\"reasoning_content\":\"so\"}],"
                 "\"continue_final_message\":true}",
                 400,
                 "continue_final_message: the last message has thoughts, with which an answer "
                 "cannot be gone on: leave them out");
    expect_fault(SERVE_MESSAGES,
                 "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":"
                 "\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"so\"},"
                 "{\"type\":\"text\",\"text\":\"Ans\"}]}]}",
                 400,
                 "messages: the last message has thoughts, with which an answer cannot be gone on: "
                 "leave them out");
    expect_prompt(SERVE_CHAT,
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
                  "\"content\":\"Ans\",\"reasoning_content\":\"\"}],"
                  "\"continue_final_message\":true}",
                  "[user:Hi]>Ans");
}

/* A template that knows no tools shows past calls and their results in texts, with tools or not. */
TEST(past_calls_stand_in_the_form_that_is_asked_for)
{
    const char *old = setup.template_text;
    setup.template_text = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}";
#define CALL(id, args)                                                                             \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"add\",\"arguments\":" args  \
    "}}"
#define PAST(content, calls)                                                                       \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","               \
    "\"content\":" content ",\"tool_calls\":[" calls                                               \
    "]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"2\"}"
    expect_prompt(SERVE_CHAT, PAST("null", CALL("c1", "\"{\\\"a\\\":1.10}\"")) "]}",
                  "[user:Hi][assistant:<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": "
                  "1.10}}\n</tool_call>][user:<tool_response>\n2\n</tool_response>]");
    expect_prompt(
        SERVE_CHAT,
        PAST("\"So.\"", CALL("c1", "{}") "," CALL(
                            "c2", "\"no JSON\"")) ",{\"role\":"
                                                  "\"tool\",\"tool_call_id\":\"c2\",\"content\":"
                                                  "\"\\\"3\\\"\"},{\"role\":\"user\","
                                                  "\"content\":\"And?\"}]}",
        "[user:Hi][assistant:So.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n"
        "</tool_call>\n<tool_call>\n{\"name\": \"add\", \"arguments\": \"no JSON\"}\n"
        "</tool_call>][user:<tool_response>\n{\"name\": \"add\", \"content\": \"2\"}\n"
        "</tool_response>\n<tool_response>\n{\"name\": \"add\", \"content\": "
        "\"\\\"3\\\"\"}\n</tool_response>\nAnd?]");
    expect_prompt(
        SERVE_MESSAGES,
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":"
        "\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\","
        "\"input\":{\"a\":1}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
        "\"tool_use_id\":\"t\",\"content\":\"R\"}]}]}",
        "[user:Hi][assistant:<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
        "</tool_call>][user:<tool_response>\nR\n</tool_response>]");
#undef PAST
#undef CALL
    setup.template_text = old;
}

/* A template that knows no tools is helped. */
TEST(tells_of_tools_where_the_template_does_not)
{
    const char *old = setup.template_text;
    setup.template_text = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}";
    struct serve_request *r = read_good(SERVE_CHAT, "{" HI "," TOOL "}");
    const char *text = serve_request_text(r, NULL);
    assert_int_equal(strncmp(text, "[system:", 8), 0);
    assert_non_null(strstr(text, "\"add\""));
    assert_non_null(strstr(text, "][user:Hi]"));
    serve_request_free(r);
    setup.template_text = old;
}

/* Where it takes no system message, the user's first one says it. A client's own stays refused. */
TEST(tells_of_tools_in_the_users_message_where_no_other_may_stand)
{
    const char *old = setup.template_text;
    setup.template_text =
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}";
    struct serve_request *r = read_good(SERVE_CHAT, "{" HI "," TOOL "}");
    const char *text = serve_request_text(r, NULL);
    assert_int_equal(strncmp(text, "[user:", 6), 0);
    assert_non_null(strstr(text, "\"add\""));
    assert_non_null(strstr(text, "\n\nHi]"));
    serve_request_free(r);
    expect_fault(SERVE_CHAT,
                 "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
                 "{\"role\":\"user\",\"content\":\"Hi\"}]," TOOL "}",
                 400, "messages: no system");
    setup.template_text = old;
}

/* ---- the form of an answer ---- */

#define SUB "{\"type\":\"function\",\"function\":{\"name\":\"sub\"}}"

TEST(allowed_tools_are_as_if_they_alone_were_given)
{
    static const char both[] = "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"}},"
                               "{\"type\":\"function\",\"function\":{\"name\":\"sub\"}}]",
                      flat[] = "\"tools\":[{\"type\":\"function\",\"name\":\"add\"},{\"type\":"
                               "\"function\",\"name\":\"sub\"}]";
    static const struct {
        enum serve_api api;
        const char *tools, *choice, *message; /* message: NULL: it is right */
    } cases[] = {
        {SERVE_CHAT, both, "{\"mode\":\"auto\",\"tools\":[" SUB "]}", NULL},
        {SERVE_CHAT, both, "{\"mode\":\"required\",\"tools\":[" SUB "]}", NULL},
        {SERVE_CHAT, both, "{\"mode\":\"none\",\"tools\":[" SUB "]}",
         "tool_choice.allowed_tools.mode: \"none\" is not one of auto and required"},
        {SERVE_CHAT, both, "{\"mode\":\"auto\",\"tools\":[]}",
         "tool_choice.allowed_tools.tools: must be an array of tools"},
        {SERVE_CHAT, both, "{\"mode\":\"auto\",\"tools\":[" SUB ",1]}",
         "tool_choice.allowed_tools.tools[1].function.name: is missing"},
        {SERVE_CHAT, TOOL, "{\"mode\":\"auto\",\"tools\":[" SUB "]}",
         "tool_choice.allowed_tools.tools[0].function.name: \"sub\" is none of 1 tools"},
        {SERVE_RESPONSES, flat, "\"auto\",\"tools\":[{\"type\":\"function\",\"name\":\"sub\"}]",
         NULL},
        {SERVE_RESPONSES, flat, "\"auto\",\"tools\":[{\"type\":\"function\",\"name\":\"mul\"}]",
         "tool_choice.tools[0].name: \"mul\" is none of 2 tools"},
    };
    char body[1024];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool chat = cases[i].api == SERVE_CHAT;
        snprintf(body, sizeof(body),
                 "{%s,%s,\"tool_choice\":{\"type\":\"allowed_tools\",\"%s\":%s}}",
                 chat ? HI : "\"input\":\"Hi\"", cases[i].tools, chat ? "allowed_tools" : "mode",
                 cases[i].choice);
        if (cases[i].message == NULL)
            expect_prompt(cases[i].api, body, "Tsub;[user:Hi]>");
        else
            expect_fault(cases[i].api, body, 400, cases[i].message);
    }
}

TEST(makes_grammars_of_formats)
{
    static const char *const good[] = {
        "\"response_format\":{\"type\":\"json_object\"}",
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\","
        "\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}}}",
        "\"json_schema\":{\"enum\":[1,2]}",
        "\"grammar\":\"root ::= \\\"yes\\\" | \\\"no\\\"\"",
        TOOL ",\"tool_choice\":\"required\"",
        TOOL ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"add\"}}",
        "\"tools\":[" SUB "],\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{"
        "\"mode\":\"required\",\"tools\":[" SUB "]}}",
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"strict\":true,"
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"}},"
        "\"$defs\":{\"n\":{\"type\":\"integer\"}}}}},{\"type\":\"function\",\"function\":{"
        "\"name\":\"sub\",\"parameters\":{\"type\":\"object\",\"properties\":{\"b\":{\"$ref\":"
        "\"#/$defs/n\"}},\"$defs\":{\"n\":{\"type\":\"string\"}}}}}]",
    };
    static const char *const free_ones[] = {TOOL, TOOL ",\"tool_choice\":\"auto\"",
                                            "\"response_format\":{\"type\":\"text\"}",
                                            "\"grammar\":\"\""};
    static const struct {
        const char *field, *message;
    } bad[] = {
        {"\"response_format\":{\"type\":\"xml\"}",
         "response_format.type: \"xml\" is not one of text, json_object and json_schema"},
        {"\"response_format\":{\"type\":\"json_schema\"}",
         "response_format.json_schema.schema: is missing"},
        {"\"json_schema\":{\"type\":\"object\"},\"grammar\":\"root ::= [a]\"",
         "grammar: is given beside json_schema"},
        {TOOL ",\"tool_choice\":\"required\",\"grammar\":\"root ::= [a]\"",
         "tool_choice: is given beside grammar"},
    };
    char body[1024];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(body, sizeof(body), "{" HI ",%s}", good[i]);
        struct serve_request *r = read_good(SERVE_CHAT, body);
        assert_non_null(params_of(r, 0).sample.grammar);
        serve_request_free(r);
    }
    for (size_t i = 0; i < sizeof(free_ones) / sizeof(free_ones[0]); i++) {
        snprintf(body, sizeof(body), "{" HI ",%s}", free_ones[i]);
        struct serve_request *r = read_good(SERVE_CHAT, body);
        assert_null(params_of(r, 0).sample.grammar);
        serve_request_free(r);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(body, sizeof(body), "{" HI ",%s}", bad[i].field);
        expect_fault(SERVE_CHAT, body, 400, bad[i].message);
    }
    struct serve_request *r = NULL;
    struct serve_fault fault; /* whose words are the grammar's own */
    static const char *const refused[] = {"{" HI ",\"grammar\":\"root = x\"}",
                                          "{" HI ",\"json_schema\":{\"type\":\"thing\"}}"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(
            serve_request_parse(&setup, SERVE_CHAT, refused[i], strlen(refused[i]), &r, &fault),
            PITH_INVALID);
        assert_int_equal(fault.code, 400);
        assert_string_equal(fault.param, i == 0 ? "grammar" : "json_schema");
    }
}

/* Markers that are control tokens may be written as such. */
TEST(markers_that_are_control_tokens_are_taken)
{
    struct serve_tools_style style = {SERVE_TOOLS_HERMES, "<|begin_of_text|>", "</think>", false};
    json_t *tools =
        json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]", 0, NULL);
    const struct serve_tools_grammar_options options = {.tools = tools,
                                                        .choice = SERVE_TOOLS_REQUIRED};
    int32_t id = -1, n = 0;
    pith_grammar *grammar = NULL;
    pith_grammar_state *state = NULL;
    assert_int_equal(pith_tokenize(model, style.think_open, strlen(style.think_open),
                                   PITH_TOKENIZE_SPECIAL, &id, 1, &n, NULL),
                     PITH_OK);
    assert_int_equal(request_call_grammar(model, &style, &options, &grammar, NULL), PITH_OK);
    assert_int_equal(pith_grammar_state_create(grammar, &state, NULL), PITH_OK);
    assert_int_equal(pith_grammar_state_accept(state, id, NULL), PITH_OK);
    assert_int_equal(pith_grammar_state_accept_bytes(state, "hm</think>\n<tool_call>", 22, NULL),
                     PITH_OK);
    assert_int_equal(pith_grammar_state_accept(state, id, NULL), PITH_INVALID);
    pith_grammar_state_free(state);
    pith_grammar_free(grammar);
    json_decref(tools);
}

/* Whether the grammar of a body takes a text to its end. */
static bool takes(enum serve_api api, const char *body, const char *text)
{
    struct serve_request *r = read_good(api, body);
    pith_grammar_state *state = NULL;
    assert_non_null(params_of(r, 0).sample.grammar);
    assert_int_equal(pith_grammar_state_create(params_of(r, 0).sample.grammar, &state, NULL),
                     PITH_OK);
    bool taken = pith_grammar_state_accept_bytes(state, text, strlen(text), NULL) == PITH_OK &&
                 pith_grammar_state_can_end(state);
    pith_grammar_state_free(state);
    serve_request_free(r);
    return taken;
}

/* The answer is a call or text of the schema, whichever API asks. */
TEST(a_schema_leaves_tools_to_be_called)
{
#define STEPS                                                                                      \
    "\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]"
#define CHAT_TOOLS                                                                                 \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{" STEPS "}}" \
    "}]"
#define CHAT_FORMAT                                                                                \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":"    \
    "{" STEPS "}}}"
#define MARKED "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"n\": 1}}\n</tool_call>"
#define ALONE "{\"name\": \"add\", \"arguments\": {\"n\": 1}}"
    static const char chat[] = "{" HI "," CHAT_TOOLS "," CHAT_FORMAT "}",
                      one[] =
                          "{" HI "," CHAT_TOOLS "," CHAT_FORMAT ",\"parallel_tool_calls\":false}",
                      any[] =
                          "{" HI "," CHAT_TOOLS ",\"response_format\":{\"type\":\"json_object\"}}",
                      llama[] = "{" HI "," CHAT_TOOLS ",\"json_schema\":{\"enum\":[7]}}",
                      required[] =
                          "{" HI "," CHAT_TOOLS "," CHAT_FORMAT ",\"tool_choice\":\"required\"}",
                      none[] = "{" HI "," CHAT_TOOLS "," CHAT_FORMAT ",\"tool_choice\":\"none\"}",
                      responses[] = "{\"input\":\"Hi\",\"tools\":[{\"type\":\"function\",\"name\":"
                                    "\"add\",\"strict\":true,\"parameters\":{" STEPS "}}],"
                                    "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"x\","
                                    "\"schema\":{" STEPS "}}}}",
                      messages[] =
                          "{" MESSAGES ",\"tools\":[{\"name\":\"add\",\"input_schema\":{" STEPS
                          "}}],\"output_config\":{\"format\":{\"type\":\"json_schema\","
                          "\"schema\":{" STEPS "}}}}",
                      odd[] = "{" HI
                              ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\","
                              "\"parameters\":{\"not\":{}}}}]," CHAT_FORMAT "}";
    static const struct {
        enum serve_api api;
        const char *body, *text;
        bool taken;
    } cases[] = {
        {SERVE_CHAT, chat, MARKED, true},
        {SERVE_CHAT, chat, MARKED "\n" MARKED, true},
        {SERVE_CHAT, chat, ALONE, true},
        {SERVE_CHAT, chat, "{\"n\": 2}", true},
        {SERVE_CHAT, chat, "two", false},
        {SERVE_CHAT, chat, "{\"n\": 2}" MARKED, false},
        {SERVE_CHAT, chat, "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>",
         false},
        {SERVE_CHAT, one, MARKED, true},
        {SERVE_CHAT, one, MARKED "\n" MARKED, false},
        {SERVE_CHAT, any, MARKED, true},
        {SERVE_CHAT, any, "{\"m\": 2}", true},
        {SERVE_CHAT, llama, MARKED, true},
        {SERVE_CHAT, llama, "7", true},
        {SERVE_CHAT, llama, "8", false},
        {SERVE_CHAT, required, MARKED, true},
        {SERVE_CHAT, required, "{\"n\": 2}", false},
        {SERVE_CHAT, none, MARKED, false},
        {SERVE_CHAT, none, "{\"n\": 2}", true},
        {SERVE_RESPONSES, responses, MARKED, true},
        {SERVE_RESPONSES, responses, "{\"n\": 2}", true},
        {SERVE_MESSAGES, messages, MARKED, true},
        {SERVE_MESSAGES, messages, "{\"n\": 2}", true},
        {SERVE_CHAT, odd, "{\"name\": \"add\", \"arguments\": {\"m\": 1}}", true},
        {SERVE_CHAT, odd, "{\"n\": 2}", true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (takes(cases[i].api, cases[i].body, cases[i].text) != cases[i].taken)
            fail_msg("%s: %s", cases[i].body, cases[i].text);
    struct serve_request *r = NULL;
    struct serve_fault fault; /* a strict tool's schema is promised */
    static const char strict[] =
        "{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"strict\":true,"
        "\"parameters\":{\"not\":{}}}}]," CHAT_FORMAT "}";
    assert_int_equal(serve_request_parse(&setup, SERVE_CHAT, strict, strlen(strict), &r, &fault),
                     PITH_INVALID);
    assert_string_equal(fault.param, "tools");
#undef STEPS
#undef CHAT_TOOLS
#undef CHAT_FORMAT
#undef MARKED
#undef ALONE
}

/* OpenAI's custom tools are functions with a text for an argument to the model. */
TEST(custom_tools_are_functions_of_a_text)
{
#define CUSTOM "\"type\":\"custom\",\"custom\":{\"name\":\"sh\""
#define REGEX(syntax, text)                                                                        \
    "{" CUSTOM ",\"format\":{\"type\":\"grammar\",\"grammar\":{\"syntax\":\"" syntax               \
    "\",\"definition\":\"" text "\"}}}}"
#define SH(text)                                                                                   \
    "<tool_call>\n{\"name\": \"sh\", \"arguments\": {\"input\": \"" text "\"}}\n</tool_call>"
    static const char past
        [] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"tool_"
             "calls\":"
             "[{\"id\":\"c\",\"type\":\"custom\",\"custom\":{\"name\":\"sh\",\"input\":\"ls\"}}]},{"
             "\"role\":"
             "\"tool\",\"tool_call_id\":\"c\",\"content\":\"x\"}],\"tools\":[{" CUSTOM "}}," SUB
             "]}",
    items[] =
        "{\"input\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"type\":\"custom_tool_call\",\"call_"
        "id\":"
        "\"c\",\"name\":\"sh\",\"input\":\"ls\"},{\"type\":\"custom_tool_call_output\",\"call_id\":"
        "\"c\","
        "\"output\":\"x\"}],\"tools\":[{\"type\":\"custom\",\"name\":\"sh\",\"format\":{\"type\":"
        "\"text\"}},{\"type\":\"function\",\"name\":\"sub\"}]}";
    static const char says[] = "Tsh,sub;[user:Hi][assistant:-!sh{\"input\": \"ls\"}][tool:x@c]>";
    expect_prompt(SERVE_CHAT, past, says);
    expect_prompt(SERVE_RESPONSES, items, says);
    static const char one[] = ",\"tool_choice\":{\"type\":\"custom\",\"custom\":{\"name\":\"sh\"}}";
    static const struct {
        const char *tool, *more, *text;
        bool taken;
    } cases[] = {
        {"{" CUSTOM "}}", one, SH("anything"), true},
        {REGEX("regex", "[a-z]+ x"), one, SH("ls x"), true},
        {REGEX("regex", "^[a-z]+ x$"), one, SH("ls x"), true},
        {REGEX("regex", "[a-z]+ x"), one, SH("ls y"), false},
        {REGEX("regex", "[a-z]+ x"), one, SH("ls x y"), false},
        {REGEX("regex", "[a-z]+"), ",\"json_schema\":{\"enum\":[7]}", SH("ls"), true},
        {REGEX("regex", "[a-z]+"), ",\"json_schema\":{\"enum\":[7]}", SH("7"), false},
        {REGEX("regex", "[a-z]+"), ",\"json_schema\":{\"enum\":[7]}", "7", true},
        {REGEX("regex", "[a-z]+"), "", "<tool_call>", false}, /* free text: it may not end here */
    };
    char body[1024];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(body, sizeof(body), "{" HI ",\"tools\":[%s]%s}", cases[i].tool, cases[i].more);
        if (takes(SERVE_CHAT, body, cases[i].text) != cases[i].taken)
            fail_msg("%s: %s", body, cases[i].text);
    }
    static const char *const bad[][2] = {
        {"{" CUSTOM ",\"format\":7}}", "tools[0].custom.format: 7 is not an object"},
        {"{\"type\":\"custom\"}", "tools[0].custom.name: is missing"},
        {REGEX("lark", "start: \\\"a\\\""),
         "tools[0].custom.format.grammar.syntax: \"lark\" is not one of regex"},
        {REGEX("regex", "(?=a)b"),
         "tools[0].custom.format.grammar.definition: schema: #/pattern: look-around and named "
         "groups of a pattern are not supported"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(body, sizeof(body), "{" HI ",\"tools\":[%s]}", bad[i][0]);
        expect_fault(SERVE_CHAT, body, 400, bad[i][1]);
    }
    expect_fault(
        SERVE_RESPONSES,
        "{\"input\":\"a\",\"tools\":[{\"type\":\"custom\",\"name\":\"sh\",\"format\":{\"type\":"
        "\"grammar\",\"syntax\":\"lark\",\"definition\":\"x\"}}]}",
        400, "tools[0].format.syntax: \"lark\" is not one of regex");
    expect_fault(SERVE_CHAT,
                 "{" HI ",\"tools\":[{" CUSTOM
                 "}}],\"tool_choice\":{\"type\":\"custom\",\"custom\":{\"name\":\"shx\"}}}",
                 400, "tool_choice.custom.name: \"shx\" is none of 1 tools");
    const char *old = setup.template_text;
    setup.template_text = "{# <tool_call> <function= #}{{ messages[0].content }}";
    snprintf(body, sizeof(body), "{" HI ",\"tools\":[%s]}", REGEX("regex", "a"));
    expect_fault(SERVE_CHAT, body, 400,
                 "tools: an input that fits an expression is not supported in the model's form of "
                 "calls \"qwen-coder\"");
    setup.template_text = old;
#undef CUSTOM
#undef REGEX
#undef SH
}

/* The other APIs have words of their own for the same promises. */
TEST(the_other_apis_promise_formats_in_their_words)
{
#define INPUT "\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}"
    static const struct {
        enum serve_api api;
        const char *body;
    } cases[] = {
        {SERVE_MESSAGES, "{" MESSAGES ",\"output_config\":{\"effort\":\"low\",\"format\":{"
                         "\"type\":\"json_schema\",\"schema\":{" INPUT "}}}}"},
        {SERVE_MESSAGES, "{" MESSAGES ",\"output_format\":{\"type\":\"json_schema\",\"schema\":{"
                         "\"enum\":[1]}}}"},
        {SERVE_MESSAGES, "{" MESSAGES ",\"tools\":[{\"name\":\"add\",\"strict\":true,"
                         "\"input_schema\":{" INPUT "}}]}"},
        {SERVE_RESPONSES, "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"add\","
                          "\"strict\":true,\"parameters\":{" INPUT "}}]}"},
        {SERVE_RESPONSES, "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\","
                          "\"name\":\"x\",\"schema\":{" INPUT "}}}}"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct serve_request *r = read_good(cases[i].api, cases[i].body);
        assert_non_null(params_of(r, 0).sample.grammar);
        serve_request_free(r);
    }
    expect_fault(SERVE_MESSAGES, "{" MESSAGES ",\"output_config\":7}", 400,
                 "output_config: 7 is not an object");
    expect_fault(SERVE_MESSAGES, "{" MESSAGES ",\"output_config\":{\"format\":{\"type\":\"x\"}}}",
                 400, "output_config.format.type: \"x\" is not one of json_schema");
#undef INPUT
}

/* ---- texts ---- */

TEST(the_other_apis_fields_have_their_own_names)
{
    expect_fault(SERVE_MESSAGES, "{" MESSAGES ",\"stop_sequences\":[\"\"]}", 400,
                 "stop_sequences: \"\" would end everything");
    expect_fault(SERVE_MESSAGES,
                 "{\"max_tokens\":9,\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}",
                 400, "messages: the last of 1 messages is no text of the assistant");
    expect_fault(SERVE_COUNT, "{" HI ",\"tools\":[{\"name\":\"a\",\"input_schema\":3}]}", 400,
                 "tools[0].input_schema: 3 is not an object");
    expect_fault(SERVE_RESPONSES, "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"x\"}}}", 400,
                 "text.format.type: \"x\" is not one of text, json_object and json_schema");
    expect_fault(SERVE_RESPONSES,
                 "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}", 400,
                 "text.format.schema: is missing");
    expect_fault(SERVE_RESPONSES,
                 "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"a\","
                 "\"parameters\":3}]}",
                 400, "tools[0].parameters: 3 is not an object");
}

TEST(prompts_may_be_texts_and_ids)
{
    pith_generate_params params;
    pith_request q;
    struct serve_request *r =
        read_good(SERVE_TEXT, "{\"prompt\":[\"The\",[5,6,7]],\"n\":2,\"seed\":10}");
    assert_int_equal(serve_request_count(r), 2);
    assert_int_equal(serve_request_answers(r), 4);
    serve_request_get(r, 1, &params, &q);
    assert_int_equal(q.n_prompt, 3);
    assert_int_equal(q.prompt[2], 7);
    assert_int_equal(params.sample.seed, 12); /* the third answer's */
    assert_null(serve_request_text(r, NULL));
    serve_request_free(r);
    r = read_good(SERVE_COMPLETION, "{\"prompt\":[5,\"The\",6],\"n_probs\":3}");
    serve_request_get(r, 0, &params, &q);
    assert_int_equal(serve_request_count(r), 1);
    assert_int_equal(q.prompt[0], 5);
    assert_int_equal(q.prompt[q.n_prompt - 1], 6);
    assert_in_range(q.n_prompt, 3, 8);
    serve_request_free(r);
    r = read_good(SERVE_COMPLETION, "{\"prompt\":[[5,6],{\"prompt_string\":\"The\"}]}");
    assert_int_equal(serve_request_count(r), 2);
    serve_request_free(r);
    expect_fault(SERVE_COMPLETION,
                 "{\"prompt\":{\"prompt_string\":\"a\",\"multimodal_data\":[\"x\"]}}", 400,
                 "prompt.multimodal_data: images and sound are not supported");
    expect_fault(SERVE_TEXT, "{\"prompt\":[1,99999]}", 400, "prompt: 99999 is not a token id");
    expect_fault(SERVE_TEXT, "{\"prompt\":\"a\",\"logprobs\":true}", 400,
                 "logprobs: true is not a whole number");
    expect_fault(SERVE_TEXT, "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":1}", 400,
                 "echo: true with logprobs is not supported here");
    setup.can_score_prompt = true;
    r = read_good(SERVE_TEXT, "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":1}");
    assert_true(serve_request_wants_prompt(r));
    serve_request_free(r);
    setup.can_score_prompt = false;
}

TEST(refuses_a_prompt_beyond_the_context)
{
    struct serve_request *r = NULL;
    struct serve_fault fault;
    static const char body[] = "{\"prompt\":[1,2,3,4,5,6,7,8]}";
    setup.n_ctx = 8;
    assert_int_equal(serve_request_parse(&setup, SERVE_TEXT, body, strlen(body), &r, &fault),
                     PITH_INVALID);
    assert_non_null(strstr(fault.message, "exceeds the available context size"));
    assert_string_equal(fault.type, "exceed_context_size_error");
    assert_int_equal(fault.n_prompt_tokens, 8);
    assert_int_equal(fault.n_ctx, 8);
    setup.n_ctx = 9;
    serve_request_free(read_good(SERVE_TEXT, body));
    setup.n_ctx = 0;
}

/* Requests that clients of other engines send, each with its result. */
TEST(accepts_what_clients_send)
{
    size_t len;
    static const struct {
        const char *body, *text;
    } chats[] = {
        {"{" HI ",\"metadata\":{\"trace\":12345678901234567890,\"x\":1e400}}", "[user:Hi]>"},
        {"\xef\xbb\xbf{" HI "}", "[user:Hi]>"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":"
         "null,"
         "\"reasoning\":\"hmm\"},{\"role\":\"user\",\"content\":\"go\"}]}",
         "[user:q][assistant:<hmm>][user:go]>"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":"
         "null,"
         "\"refusal\":\"No.\"},{\"role\":\"assistant\"},{\"role\":\"assistant\",\"content\":[{"
         "\"type\":"
         "\"refusal\",\"refusal\":\"Never.\"}]}]}",
         "[user:q][assistant:No.][assistant:][assistant:Never.]>"},
    };
    for (size_t i = 0; i < sizeof(chats) / sizeof(chats[0]); i++)
        expect_prompt(SERVE_CHAT, chats[i].body, chats[i].text);
    /* U+0000 is a character as others are. */
    static const char zero[] = "[user:a\0b]>";
    struct serve_request *r =
        read_good(SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}],"
                              "\"stop\":[\"x\\u0000y\"],\"cache_salt\":\"\\u0000\"}");
    const char *text = serve_request_text(r, &len);
    assert_int_equal(len, sizeof(zero) - 1);
    assert_memory_equal(text, zero, len);
    pith_generate_params p = params_of(r, 0);
    assert_int_equal(p.stop_len[0], 3);
    assert_memory_equal(p.stop[0], "x\0y", 3);
    serve_request_free(r);
    static const char *const zeros[][2] = {
        {"messages",
         "{\"max_tokens\":2,\"system\":\"\\u0000\",\"messages\":[{\"role\":\"user\",\"content\":"
         "[{\"type\":\"text\",\"text\":\"a\\u0000\"}]},{\"role\":\"assistant\",\"content\":null}]"
         "}"},
        {"responses",
         "{\"instructions\":\"\\u0000\",\"input\":[{\"role\":\"user\",\"content\":\"\\u0000\"},"
         "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":"
         "\"{\\\"n\\\": \\\"\\u0000\\\"}\"},{\"type\":\"function_call_output\",\"call_id\":\"c\","
         "\"output\":null}]}"},
    };
    serve_request_free(read_good(SERVE_MESSAGES, zeros[0][1]));
    serve_request_free(read_good(SERVE_RESPONSES, zeros[1][1]));
    /* The most tokens, in every spelling and size. */
    static const char *const most[] = {"max_tokens", "max_completion_tokens", "n_predict",
                                       "max_output_tokens"};
    for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
        char body[256];
        snprintf(body, sizeof(body), "{" HI ",\"%s\":18446744073709551615}", most[i]);
        r = read_good(SERVE_CHAT, body);
        assert_int_equal(params_of(r, 0).n_predict, INT32_MAX);
        serve_request_free(r);
    }
    setup.any_seed = 77;
    r = read_good(SERVE_CHAT, "{" HI ",\"seed\":-1}");
    assert_true(params_of(r, 0).sample.seed == 77);
    serve_request_free(r);
}

/* Numbers of a history and of schemas keep their digits. */
TEST(numbers_keep_their_digits)
{
    setup.template_text =
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ "
        "c.function.arguments|tojson }}{% endfor %}{% endfor %}{{ tools|tojson }}";
    expect_prompt(
        SERVE_CHAT,
        "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":"
        "\"function\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 18446744073709551616, \\\"b\\\": "
        "1.10, "
        "\\\"c\\\": 0.1000000000000000055, \\\"d\\\": 1e400, \\\"e\\\": -0, \\\"f\\\": 5, "
        "\\\"g\\\": "
        "\\\"\\\\u0000n1.5\\\"}\"}}]}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
        "\"f\","
        "\"parameters\":{\"maximum\":18446744073709551615}}}]}",
        "{\"a\": 18446744073709551616, \"b\": 1.10, \"c\": 0.1000000000000000055, \"d\": 1e400, "
        "\"e\": 0, \"f\": 5, \"g\": \"\\u0000n1.5\"}[{\"type\": \"function\", \"function\": "
        "{\"name\": "
        "\"f\", \"parameters\": {\"maximum\": 18446744073709551615}}}]");
    setup.template_text = shows;
}

TEST(reads_json_with_all_digits)
{
    static const char *const same[] = {
        "[1,18446744073709551615,-9223372036854775809,1.50,1E5,\"a\",{\"k\":[2.5e-7]}]",
        "[\"\\u0000n5\",\"\\u0000s\",\"\\u0000\",3.0]",
        "{\"a\":{\"b\":9223372036854775808},\"c\":\"\\u0000\\u0000n1\"}",
        "123456789012345678901234567890",
    };
    static const char *const bad[] = {"[1.5,",   "{1.5:2}",    "[01.5]",
                                      "[1.]",    "[1e]",       "[1.5 2]",
                                      "[--1.5]", "\"\\u0000n", "[18446744073709551615"};
    struct serve_numbers numbers = {0};
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        json_t *value = serve_json_load(&numbers, same[i], strlen(same[i]),
                                        JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(value);
        char *text = serve_json_dump(&numbers, value, JSON_COMPACT);
        assert_string_equal(text, same[i]);
        free(text);
        json_decref(value);
        assert_true(serve_json_is_value(same[i], strlen(same[i])));
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        json_error_t error = {.text = ""};
        assert_null(serve_json_load(&numbers, bad[i], strlen(bad[i]), JSON_DECODE_ANY, &error));
        assert_true(error.text[0] != '\0');
    }
    serve_numbers_free(&numbers);
}

TEST(refuses_infill_where_the_vocabulary_has_none)
{
    expect_fault(SERVE_INFILL, "{}", 400, "input_prefix: is missing, and input_suffix is, too");
    expect_fault(SERVE_INFILL, "{\"input_prefix\":5}", 400, "input_prefix: 5 is not a string");
    expect_fault(SERVE_INFILL, "{\"input_prefix\":\"a\",\"input_extra\":[{}]}", 400,
                 "input_extra[0].text: is missing");
    expect_fault(SERVE_INFILL, "{\"input_prefix\":\"a\",\"input_suffix\":\"b\"}", 501,
                 "infill: the model's vocabulary has no tokens for a gap in a text");
}

/* ---- Anthropic ---- */

TEST(makes_the_prompt_of_messages)
{
    expect_prompt(
        SERVE_MESSAGES,
        "{\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: "
        "cc_version=2; cch=a1b2c;\"},{\"type\":\"text\",\"text\":\"Be good.\"}],\"messages\":["
        "{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":[{\"type\":"
        "\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},{\"type\":\"tool_use\",\"id\":\"t1\","
        "\"name\":\"add\",\"input\":{\"a\":1}}]},{\"role\":\"user\",\"content\":[{\"type\":"
        "\"tool_result\",\"tool_use_id\":\"t1\",\"content\":[{\"type\":\"text\",\"text\":\"2\"}]},"
        "{\"type\":\"text\",\"text\":\"and?\"}]}],\"tools\":[{\"name\":\"add\",\"input_schema\":{}}"
        ","
        "{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]}",
        "Tadd;[system:x-anthropic-billing-header: cc_version=2; cch=00000;\nBe good.][user:Hi]"
        "[assistant:-<hm>!add{\"a\": 1}][tool:2@t1][user:and?]>");
    expect_prompt(SERVE_MESSAGES,
                  "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
                  "{\"role\":\"assistant\",\"content\":\"Oh\"}],\"thinking\":{\"type\":"
                  "\"disabled\"}}",
                  "[user:Hi]EFalse>Oh");
    static const struct {
        const char *body, *message;
    } cases[] = {
        {"{" HI "}", "max_tokens: is missing"},
        {"{" MESSAGES ",\"max_tokens_\":0,\"stop_sequences\":\"x\"}",
         "stop_sequences: \"x\" is not an array of strings"},
        {"{\"max_tokens\":0," HI "}", "max_tokens: 0 is not a whole number of 1 or more"},
        {"{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
         "messages[0].content[0].type: \"image\" is not one that is supported here"},
        {"{" MESSAGES ",\"tool_choice\":{\"type\":\"x\"}}",
         "tool_choice.type: \"x\" is not one of auto, any, tool and none"},
        {"{" MESSAGES ",\"thinking\":{\"type\":\"x\"}}",
         "thinking.type: \"x\" is not one of disabled, enabled and adaptive"},
        {"{" MESSAGES ",\"tools\":[{}]}", "tools[0].name: is missing"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_fault(SERVE_MESSAGES, cases[i].body, 400, cases[i].message);
    struct serve_request *r = read_good(SERVE_COUNT, "{" HI "}");
    struct serve_request *chat = read_good(SERVE_CHAT, "{" HI "}");
    assert_int_equal(serve_request_n_prompt(r), serve_request_n_prompt(chat));
    serve_request_free(chat);
    serve_request_free(r);
}

/* ---- Responses ---- */

TEST(makes_the_prompt_of_responses)
{
    expect_prompt(SERVE_RESPONSES, "{\"input\":\"Hi\",\"store\":true}", "[user:Hi]>");
    expect_prompt(
        SERVE_RESPONSES,
        "{\"instructions\":\"S\",\"input\":[{\"role\":\"developer\",\"content\":[{\"type\":"
        "\"input_text\",\"text\":\"D\"}]},{\"type\":\"message\",\"role\":\"user\",\"content\":"
        "\"Hi\"},{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\","
        "\"text\":\"hm\"}]},{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"add\","
        "\"arguments\":\"{\\\"a\\\":1}\"},{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":"
        "\"add\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c1\","
        "\"output\":\"2\"}],\"tools\":[{\"type\":\"function\",\"name\":\"add\",\"parameters\":{}},"
        "{\"type\":\"web_search\"}],\"reasoning\":{\"effort\":\"low\"}}",
        "Tadd;[system:S\n\nD][user:Hi][assistant:-<hm>!add{\"a\": 1}!add{}][tool:2@c1]Rlow>");
    static const struct {
        const char *body, *message;
    } cases[] = {
        {"{}", "input: is missing"},
        {"{\"input\":[]}", "input: an array of 0 is not a string or an array of items"},
        {"{\"input\":\"a\",\"previous_response_id\":\"resp_1\"}",
         "previous_response_id: \"resp_1\" is not known, as responses are not stored"},
        {"{\"input\":\"a\",\"background\":true}", "background: true is not supported"},
        {"{\"input\":\"a\",\"max_output_tokens\":0}",
         "max_output_tokens: 0 is not a whole number of 1 or more"},
        {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}",
         "input[0].type: \"item_reference\" is not one that is supported here"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
         "input[0].content[0].type: \"input_image\" is no text"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_fault(SERVE_RESPONSES, cases[i].body, 400, cases[i].message);
}
