/*
 * test_prompt.c - pith_prompt: conversations as messages and as JSON in a model's own template, the
 * pieces of a prompt, and its tokens. A user's text never gives a special token.
 */
#define _POSIX_C_SOURCE 200809L

#include "pith/pith.h"
#include "with_template.h"

#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define BOS "<|begin_of_text|>" /* a control token of the model */

/* A model with a template; the caller frees. */
static pith_model *load(const char *template)
{
    char path[] = "/tmp/pith-prompt-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_with_template(NANO, path, template);
    pith_model *model;
    pith_model_params params;
    pith_model_params_default(&params);
    params.vocab_only = true;
    if (pith_model_load(path, &params, &model, &err) != PITH_OK)
        fail_msg("%s", err.message);
    unlink(path);
    return model;
}

static pith_prompt *make(const pith_model *model, const char *json, uint32_t flags)
{
    pith_chat_params params;
    pith_prompt *prompt = NULL;
    pith_chat_params_default(&params);
    params.json = json;
    params.json_len = strlen(json);
    params.flags = flags;
    if (pith_prompt_create(model, &params, &prompt, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return prompt;
}

static void expect(const char *template, const char *json, uint32_t flags, const char *want)
{
    pith_model *model = load(template);
    pith_prompt *prompt = make(model, json, flags);
    size_t len;
    assert_string_equal(pith_prompt_text(prompt, &len), want);
    assert_int_equal(len, strlen(want));
    pith_prompt_free(prompt);
    pith_model_free(model);
}

#define TURNS "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"

TEST(templates_see_every_key_of_the_json)
{
    static const char two[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"},"
                              "{\"role\": \"user\", \"content\": \"U\"}], \"x\": [1, 2.5]}";
    expect(TURNS "{{ x[1] }}{{ y -}}", two, 0, "[system]S[user]U2.5");
    expect("{{ add_generation_prompt is defined -}}", two, 0, "False");
    expect("{{ add_generation_prompt -}}", two, PITH_CHAT_GENERATE, "True");
    expect("{{ eos_token ~ '!' -}}", two, 0, "<|end_of_text|>!");
    expect("{{ tools|tojson -}}", "{\"messages\": [], \"tools\": [{\"b\": 1, \"a\": null}]}", 0,
           "[{\"b\": 1, \"a\": null}]");
    /* Without a clock strftime_now is not defined, but a template that calls it gets a fixed
       day. */
    expect("{{ strftime_now is defined }} {{ strftime_now('%Y-%m-%d') -}}", two, 0,
           "False 2024-07-26");
}

TEST(templates_switch_thinking)
{
    static const char ask[] = "{\"messages\": []}";
    uint32_t quick = PITH_CHAT_GENERATE | PITH_CHAT_NO_THINKING;
    expect("{{ 'on' if enable_thinking is undefined or enable_thinking else 'off' -}}", ask,
           PITH_CHAT_GENERATE, "on");
    expect("{{ 'on' if enable_thinking is undefined or enable_thinking else 'off' -}}", ask, quick,
           "off");
    expect("{{ 'A:<think>\\n' -}}", ask, quick, "A:<think>\n\n</think>\n\n");
    expect("{{ 'A:' }}{% if false %}</think>{% endif -%}", ask, quick, "A:<think>\n\n</think>\n\n");
    expect("{{ 'A:' -}}", ask, quick, "A:");
}

TEST(pieces_say_what_a_user_wrote)
{
    pith_model *model = load(TURNS "{{ '!' -}}");
    pith_prompt *prompt = make(model,
                               "{\"messages\": [{\"role\": \"user\", \"content\": \"one\"}, "
                               "{\"role\": \"critic\", \"content\": \"two\"}]}",
                               0);
    static const struct {
        const char *text;
        bool from_user;
    } want[] = {{"[user]", false}, {"one", true}, {"[", false}, {"critic", true},
                {"]", false},      {"two", true}, {"!", false}};
    const char *text = pith_prompt_text(prompt, NULL);
    size_t from, len, sum = 0;
    bool from_user;
    for (int32_t i = 0; i < 7; i++) {
        assert_true(pith_prompt_piece(prompt, i, &from, &len, &from_user));
        assert_int_equal(from, sum);
        assert_int_equal(len, strlen(want[i].text));
        assert_memory_equal(text + from, want[i].text, len);
        assert_int_equal(from_user, want[i].from_user);
        sum += len;
    }
    assert_false(pith_prompt_piece(prompt, 7, &from, &len, &from_user));
    assert_false(pith_prompt_piece(prompt, -1, &from, &len, &from_user));
    pith_prompt_free(prompt);
    pith_model_free(model);
}

/* How often BOS stands among the tokens, which are the text's. */
static int32_t count_bos(const pith_model *model, const char *json, uint32_t flags)
{
    pith_prompt *prompt = make(model, json, 0);
    int32_t ids[512], n = 0, found = 0;
    char text[2048];
    size_t len = 0, want;
    assert_int_equal(pith_prompt_tokenize(model, prompt, flags, NULL, 0, &n, &err), PITH_RANGE);
    assert_int_equal(pith_prompt_tokenize(model, prompt, flags, ids, 512, &n, &err), PITH_OK);
    for (int32_t i = 0; i < n; i++)
        found += ids[i] == pith_token_bos(model);
    bool added = (flags & PITH_TOKENIZE_BOS) != 0;
    assert_int_equal(
        pith_detokenize(model, ids + added, n - added, true, text, sizeof(text), &len, &err),
        PITH_OK);
    const char *said = pith_prompt_text(prompt, &want);
    assert_int_equal(len, want);
    assert_memory_equal(text, said, len);
    pith_prompt_free(prompt);
    return found;
}

/* A template of the caller's, and the beginning of an answer. That beginning is a user's text after
   any template text: the template's alone, a user's alone, or both. */
TEST(a_beginning_of_the_answer_is_the_users)
{
    static const char *const templates[] = {"[A]", "{{ messages[0].content }}",
                                            "{{ messages[0].content }}[A]"};
    static const char *const texts[] = {"[A]" BOS "x", "U" BOS "x", "U[A]" BOS "x"};
    static const size_t user_from[] = {3, 0, 4};
    pith_message message = {"user", "U"};
    pith_model *model = load("not this one");
    for (int i = 0; i < 3; i++) {
        pith_chat_params params;
        pith_prompt *prompt = NULL;
        size_t from, len, end;
        bool from_user = false;
        pith_chat_params_default(&params);
        params.template_text = templates[i];
        params.messages = &message;
        params.n_message = 1;
        params.opening = BOS "x and more";
        params.opening_len = strlen(BOS "x");
        assert_int_equal(pith_prompt_create(model, &params, &prompt, NULL), PITH_OK);
        assert_string_equal(pith_prompt_text(prompt, &end), texts[i]);
        int32_t last = 0;
        while (pith_prompt_piece(prompt, last + 1, &from, &len, &from_user))
            last++;
        assert_true(pith_prompt_piece(prompt, last, &from, &len, &from_user));
        assert_true(from_user);
        assert_int_equal(from, user_from[i]);
        assert_int_equal(from + len, end);
        pith_prompt_free(prompt);
    }
    pith_model_free(model);
}

TEST(a_user_types_no_special_token)
{
    static const char typed[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"" BOS "a" BOS "\"}]}";
    static const char part[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"of_text|>\"}]}";
    pith_model *model = load(TURNS "{{ '" BOS "' -}}");
    assert_int_equal(count_bos(model, typed, PITH_TOKENIZE_SPECIAL), 1); /* the template's */
    assert_int_equal(count_bos(model, typed, 0), 0);
    pith_model_free(model);
    /* Neither beginning in the template's text and ending in a user's, nor the other way. */
    model = load("{{ '<|begin_' ~ messages[0].content ~ ' x<|begin_of_text|>' -}}");
    assert_int_equal(count_bos(model, part, PITH_TOKENIZE_SPECIAL), 1);
    pith_model_free(model);
    model = load("{{ messages[0].content|upper|lower ~ messages[0].content[:17] -}}");
    assert_int_equal(count_bos(model, typed, PITH_TOKENIZE_SPECIAL), 0);
    pith_model_free(model);
}

/* The template's own BOS is left out where the tokenizer puts one, a user's never. */
TEST(the_templates_own_bos_is_left_out)
{
    static const char typed[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"" BOS "\"}]}";
    pith_model *model = load("{{ bos_token ~ 'x' -}}");
    pith_prompt *prompt = make(model, typed, 0);
    int32_t ids[8], n = 0;
    assert_int_equal(pith_tokenize(model, "", 0, PITH_TOKENIZE_BOS, ids, 8, &n, NULL), PITH_OK);
    assert_int_equal(n, 1); /* this model's tokenizer adds it */
    assert_string_equal(pith_prompt_text(prompt, NULL), "x");
    assert_int_equal(count_bos(model, typed, PITH_TOKENIZE_SPECIAL | PITH_TOKENIZE_BOS), 1);
    pith_prompt_free(prompt);
    pith_model_free(model);
    expect("{{ messages[0].content -}}", typed, 0, BOS);
}

static void refuse(const char *template, const char *json, pith_status want, const char *says)
{
    pith_model *model = load(template);
    pith_chat_params params;
    pith_prompt *prompt = NULL;
    err = (pith_error){0};
    pith_chat_params_default(&params);
    params.json = json;
    params.json_len = strlen(json);
    assert_int_equal(pith_prompt_create(model, &params, &prompt, &err), want);
    assert_null(prompt);
    if (strstr(err.message, says) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, says);
    pith_model_free(model);
}

TEST(refuses_bad_conversations)
{
    refuse(TURNS, "{", PITH_INVALID, "JSON: at byte 1");
    refuse(TURNS, "[]", PITH_INVALID, "no object");
    refuse(TURNS, "{}", PITH_INVALID, "messages: is missing");
    refuse(TURNS, "{\"messages\": {}}", PITH_INVALID, "messages: is missing or no array");
    refuse(TURNS, "{\"messages\": [1]}", PITH_INVALID, "messages[0]: is no object");
    refuse(TURNS, "{\"messages\": [{\"role\": 1}]}", PITH_INVALID, "messages[0].role");
    refuse("{{ raise_exception('Not so.') }}", "{\"messages\": []}", PITH_INVALID, "Not so.");
    refuse("{% if %}", "{\"messages\": []}", PITH_UNSUPPORTED, "chat template: line 1");
    pith_model *model = load("{% if %}");
    assert_memory_equal(pith_chat_template(model), "{% if %}", 8); /* as it is in the file */
    pith_model_free(model);
    pith_prompt_free(NULL);
}
