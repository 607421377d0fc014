/* A task by name, with options and result as JSON: what the command measures, and every mistake. */
#include "testing.h"

#include <string.h>

#include "eval/call.h"
#include "eval/eval.h"
#include "eval/needle.h"

static pith_model *model; /* stays until the process ends */
static pith_engine_params engine;

static pith_eval_params call_of(const char *task, const char *options)
{
    if (model == NULL &&
        pith_model_load(PITH_SOURCE_DIR "/models/pith-nano.gguf", NULL, &model, &err) != PITH_OK)
        fail_msg("%s", err.message);
    pith_engine_params_default(&engine);
    return (pith_eval_params){
        .model = model, .engine = &engine, .task = task, .options = options, .seed = 11};
}

TEST(a_call_measures_what_the_task_does)
{
    pith_eval_params p =
        call_of("needle", "{\"lengths\": 256, \"depths\": [0, 50], \"style\": \"pith\"}");
    static const int32_t lengths[] = {256};
    static const double depths[] = {0.0, 0.5};
    struct eval_needle_params direct = {.style = EVAL_NEEDLE_PITH,
                                        .n_needle = 1,
                                        .n_repeat = 1,
                                        .n_predict = 64,
                                        .lengths = lengths,
                                        .n_length = 1,
                                        .depths = depths,
                                        .n_depth = 2};
    struct eval_setup setup = {.model = model, .engine = engine, .seed = 11};
    char *text = NULL;
    json_t *want = NULL;
    if (pith_eval(&p, &text, &err) != PITH_OK ||
        eval_needle(&setup, &direct, &want, &err) != PITH_OK)
        fail_msg("%s", err.message);
    json_t *got = json_loads(text, 0, NULL);
    assert_non_null(got);
    assert_true(json_equal(json_object_get(got, "settings"), json_object_get(want, "settings")));
    assert_int_equal(json_array_size(json_object_get(got, "rows")), 2);
    assert_true(json_equal(json_object_get(json_object_get(got, "summary"), "score"),
                           json_object_get(json_object_get(want, "summary"), "score")));
    json_decref(got);
    json_decref(want);
    pith_eval_free(text);
}

static bool never(void *user, double fraction, const char *what)
{
    (void)fraction, (void)what;
    ++*(int *)user;
    return false;
}

TEST(a_call_says_what_is_wrong)
{
    static const struct {
        const char *task, *options, *says;
        pith_status status;
    } wrong[] = {
        {"noodle", NULL, "needle", PITH_NOT_FOUND},
        {"needle", "{\"lenghts\": 3}", "lenghts", PITH_INVALID},
        {"needle", "[]", "object", PITH_INVALID},
        {"needle", "{", "options: ", PITH_INVALID},
        {"perplexity", "{}", "file", PITH_INVALID},
        {"perplexity", "{\"file\": \"/no/such/file\"}", "/no/such/file", PITH_IO},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        pith_eval_params p = call_of(wrong[i].task, wrong[i].options);
        char *text = "untouched";
        assert_int_equal(pith_eval(&p, &text, &err), wrong[i].status);
        assert_null(text);
        assert_non_null(strstr(err.message, wrong[i].says));
    }
    int n = 0;
    char *text;
    pith_eval_params p = call_of("needle", "{\"lengths\": 256, \"style\": \"pith\"}");
    p.progress = never;
    p.user = &n;
    assert_int_equal(pith_eval(&p, &text, &err), PITH_CANCELLED);
    assert_int_equal(n, 1);
    pith_eval_free(NULL);
}
